"""What queries see of a damaged entry that was given up by name: exactly what is missing, or everything else."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from pyspark_ledger.base.names import staged_file
from pyspark_ledger.base.position import Position
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.datasource import LedgerDataSource, planning
from pyspark_ledger.errors import CorruptData, DataLoss
from pyspark_ledger.lifecycle.skipping import skip_damaged
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.clock import SeededClock
from tests.support.query import WorldQuery, flat
from tests.support.said import said
from tests.support.worlds import SMALL, World, append

GO_ON = {"failOnDataLoss": "false"}
LOST = r"\[LEDGER_ENTRY_LOST\] topic 't': 1 records from 1:1:0 up to 1:2:0 are lost: their file .*arrow is damaged"
LEFT = [n for n in range(10) if n != 5]


@pytest.fixture
def world(tmp_path) -> World:
    """Ten records, four in a ledger; the file of the sixth is gone."""
    world = World(tmp_path, SMALL, SeededClock(1), key="n")
    for number in range(10):
        append(world.log(), number)
    lose(world, Position(1, 1, 0))
    return world


def lose(world: World, position: Position) -> None:
    log = world.log()
    (entry,) = log.entries(next(log.commits_from(log.refresh(), position)))
    world.storage.delete(staged_file(log.topic.uuid, entry.file.epoch, entry.file.uid))


@pytest.fixture
def given_up(world) -> World:
    skip_damaged(world.log(), Position(1, 1, 0))
    return world


def read_batch(world: World, **options: str) -> list[int]:
    session = OpenNamespace(world.metadata(), world.storage.uri, limits=world.limits, clock=world.clock)
    with patch.object(planning, "shared_namespace", lambda *_: session):
        source = LedgerDataSource({"topic": "t", **options})
        reader = source.reader(source.schema())
        return [n for part in reader.partitions() for batch in reader.read(part) for n in batch.column("n").to_pylist()]


def test_an_entry_that_nobody_has_given_up_is_damage_whatever_the_option_says(world):
    for options in ({}, GO_ON):
        with pytest.raises(CorruptData, match="LEDGER_FILE_MISSING"):
            read_batch(world, **options)


@pytest.mark.parametrize("compacted", ["false", "true"])
def test_a_batch_read_is_told_or_goes_around_it_and_says_so(given_up, compacted, caplog):
    with pytest.raises(DataLoss, match=LOST + ".*set failOnDataLoss=false"):
        read_batch(given_up, readCompacted=compacted)
    assert read_batch(given_up, readCompacted=compacted, **GO_ON) == LEFT
    assert len(said(caplog)) == 1
    assert read_batch(given_up, startingOffsets="1:2:0") == [6, 7, 8, 9]
    assert read_batch(given_up, endingOffsets="1:1:0") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rows", ["1", "2", "100"])
def test_a_stream_is_told_before_the_batch_is_logged_or_goes_around_it(given_up, rows):
    query = WorldQuery(given_up, maxRowsPerTrigger=rows)
    with pytest.raises(DataLoss, match=LOST + ".*set failOnDataLoss=false"):
        query.all()
    read = flat([batch for _, _, batch in query.batches])
    assert read == LEFT[: len(read)] == [n for n in read if n < 5]
    offset = query.batches[-1][1] if query.batches else None
    assert read + flat(WorldQuery(given_up, maxRowsPerTrigger=rows, offset=offset, **GO_ON).all()) == LEFT


def test_a_batch_that_was_logged_before_is_told_or_reads_what_is_left_and_always_the_same_I7(world):
    query = WorldQuery(world)
    start, end = query.plan()
    with pytest.raises(CorruptData):
        query.read(start, end)
    skip_damaged(world.log(), Position(1, 1, 0))
    query.log.refresh(sync=True)
    with pytest.raises(DataLoss, match=LOST):
        query.read(start, end)
    for _ in range(2):
        assert WorldQuery(world, offset=end, **GO_ON).read(start, end) == LEFT


def test_a_subscription_counts_what_its_query_went_around_once(given_up):
    query = WorldQuery(given_up, subscription="s", maxRowsPerTrigger="3", **GO_ON)
    assert flat(query.all()) == LEFT
    query.plan()
    query.stop()
    stats = CursorHandle(given_up.log(), "s").stats()
    assert (stats.lost, stats.backlog_records) == (1, 0)
    again = WorldQuery(given_up, subscription="s", offset=query.offset, **GO_ON)
    assert again.all() == []
    again.stop()
    assert CursorHandle(given_up.log(), "s").stats().lost == 1


def test_a_query_that_is_told_acknowledges_nothing_of_it(given_up):
    query = WorldQuery(given_up, subscription="s")
    with pytest.raises(DataLoss, match=LOST):
        query.all()
    query.stop()
    stats = CursorHandle(given_up.log(), "s").stats()
    assert (stats.lost, stats.backlog_records) == (0, 10)


def test_a_compacted_query_is_told_only_of_what_is_after_the_horizon(given_up):
    with pytest.raises(DataLoss, match=LOST):
        WorldQuery(given_up, readCompacted="true").all()
    assert compact(given_up.log()) is not None
    append(given_up.log(), 10)
    query = WorldQuery(given_up, readCompacted="true")
    assert flat(query.all()) == [*LEFT, 10]
    query.stop()


def test_a_loss_at_the_end_is_told_too(given_up):
    lose(given_up, Position(2, 1, 0))
    skip_damaged(given_up.log(), Position(2, 1, 0))
    query = WorldQuery(given_up, startingOffsets="2:1:0")
    with pytest.raises(DataLoss, match="from 2:1:0 up to 2:2:0"):
        query.all()
    onward = WorldQuery(given_up, startingOffsets="2:1:0", maxRowsPerTrigger="5", **GO_ON)
    assert onward.all() == []
    append(given_up.log(), 10)
    assert onward.all() == [[10]]
