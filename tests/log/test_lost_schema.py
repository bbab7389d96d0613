"""A record that every topic has, and that is gone because ZooKeeper was rolled back."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.errors import CorruptData, DataLoss
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.metadata.port import Delete, SchemaKey
from tests.support.rollback import restore, snapshot
from tests.support.worlds import World, append


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def widen(world: World) -> None:
    log = world.log()
    wider = log.schema(0).append(pa.field("c", pa.string()))
    rows = pa.RecordBatch.from_pylist([{"n": 2, "c": "x"}], schema=wider)
    entry = stage_entry(log.storage, log.topic.uuid, 0, [rows], "lz4", log.clock)
    protocol.append(log, StagedBatch(log.clock.new_id(), (entry,), wider, merge_schema=True))


def test_who_asks_for_a_schema_that_a_rollback_has_lost_is_told_of_the_rollback_I14_I18(world):
    """It was told that the topic was deleted."""
    append(world.log(), 1)
    backup = snapshot(world.server)
    widen(world)
    survivor = world.log()
    newest = survivor.view().head.schema_id
    restore(world.server, backup)
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        survivor.schema(newest)


def test_a_schema_that_somebody_has_deleted_is_damage_and_no_deleted_topic_I14(world):
    log = world.log()
    log.view()
    world.metadata().transact([Delete(SchemaKey(world.topic.uuid, 0))])
    with pytest.raises(CorruptData, match="SchemaKey"):
        log.schema(0)
