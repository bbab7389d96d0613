"""A query whose ZooKeeper server is behind the others: nothing it was told before is said to be gone."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.client import client_of
from pyspark_ledger.datasource import LedgerDataSource, planning, write_plan
from pyspark_ledger.datasource.options import WriteOptions
from pyspark_ledger.datasource.types import spark_schema
from pyspark_ledger.errors import DataLoss, InvalidInput, NotFound
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import NamespaceKey
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support.flaky import Behind
from tests.support.query import INITIAL, edited, fields

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])


class Ensemble:
    """One namespace; each reader is a session of its own, whose server may be behind."""

    def __init__(self, folder, monkeypatch) -> None:
        self.server, self.folder, self._patch = MemoryServer(), str(folder), monkeypatch
        self.namespace = OpenNamespace(MemoryMetadata(self.server), self.folder)
        self.client = client_of(self.namespace)

    def put(self, *numbers, key="a") -> None:
        with self.client.producer("t") as producer:
            for number in numbers:
                producer.send({"k": key, "n": number})

    def source(self, behind=0, **options):
        metadata = MemoryMetadata(self.server, Behind(behind) if behind else None)
        metadata.read(NamespaceKey())  # the session's first look
        session = OpenNamespace(metadata, self.folder)
        self._patch.setattr(planning, "shared_namespace", lambda *_: session)
        return LedgerDataSource({"topic": "t", **options})

    def reader(self, behind=0, **options):
        schema = self.source(**options).schema()
        return self.source(behind, **options).streamReader(schema)


@pytest.fixture
def ensemble(tmp_path, monkeypatch):
    ensemble = Ensemble(tmp_path, monkeypatch)
    ensemble.client.create_topic("t", SCHEMA, key="k")
    return ensemble


def latest(reader, start=INITIAL):
    return reader.latestOffset(start, reader.getDefaultReadLimit())


@pytest.mark.parametrize("behind", [4, 5, 6])
def test_a_generation_that_a_batch_was_planned_on_is_not_gone(ensemble, behind):
    ensemble.put(1)
    ensemble.client.compact("t")
    ensemble.put(2, key="b")
    ensemble.client.compact("t")
    end = latest(ensemble.reader(readCompacted="true"))
    restarted = ensemble.reader(behind, readCompacted="true")
    assert len(restarted.partitions(INITIAL, end)) == 1
    with pytest.raises(DataLoss, match="LEDGER_GENERATION_GONE"):
        ensemble.reader(behind, readCompacted="true").partitions(INITIAL, edited(end, gen=9))


@pytest.mark.parametrize("behind", [3, 4, 5])
def test_a_batch_of_a_recreated_topic_is_read_by_who_still_sees_the_deleted_one(ensemble, behind):
    ensemble.put(1)
    ensemble.client.delete_topic("t")
    ensemble.client.create_topic("t", SCHEMA, key="k")
    ensemble.put(2)
    end = latest(ensemble.reader())
    reader = ensemble.reader(behind)
    assert len(reader.partitions(INITIAL, end)) == 1
    with pytest.raises(InvalidInput, match="LEDGER_TOPIC_RECREATED"):
        reader.partitions(INITIAL, edited(end, id="another"))


@pytest.mark.parametrize("behind", [3, 4, 5, 6])
def test_a_commit_that_a_checkpoint_has_seen_is_not_lost(ensemble, behind):
    ensemble.put(1)
    ensemble.put(2)
    end = latest(ensemble.reader())
    assert latest(ensemble.reader(behind), end) is end
    assert len(ensemble.reader(behind).partitions(INITIAL, end)) == 1
    text = json.dumps(end)
    assert fields(latest(ensemble.reader(behind, startingOffsets=text)))["pos"] == fields(end)["pos"]
    assert ensemble.namespace.log("t").view().head.set_back is None


def test_a_topic_a_column_and_an_end_of_a_moment_ago_are_there(ensemble):
    assert len(ensemble.source(2).schema()) == 2
    ensemble.put(1, 2)
    end = str(ensemble.client.end("t"))
    assert fields(latest(ensemble.reader(4, endingOffsets=end)))["pos"] == end
    wider = SCHEMA.append(pa.field("more", pa.string()))
    log = ensemble.namespace.log("t")
    rows = pa.RecordBatch.from_pylist([{"k": "a", "n": 3, "more": "x"}], schema=wider)
    entry = stage_entry(log.storage, log.topic.uuid, log.view().head.gc_epoch, [rows], "lz4", log.clock)
    protocol.append(log, StagedBatch(log.clock.new_id(), (entry,), wider, merge_schema=True))
    assert ensemble.source(3, columns="more").schema().names == ["more"]
    assert fields(latest(ensemble.reader(3, columns="more")))["pos"] == str(ensemble.client.end("t"))
    with pytest.raises(InvalidInput, match="LEDGER_COLUMN_NOT_FOUND"):
        ensemble.source(3, columns="less").schema()


@pytest.mark.parametrize("behind", [1, 10, 20, 24])
def test_numbers_are_those_of_the_topic_that_has_the_name_now(ensemble, monkeypatch, behind):
    """Not of one that was deleted, nor of one that is not there yet, as a server that is behind may say."""
    for _ in range(2):
        ensemble.client.create_topic("orders", SCHEMA)
        metadata = MemoryMetadata(ensemble.server, Behind(behind))
        metadata.read(NamespaceKey())
        session = OpenNamespace(metadata, ensemble.folder)
        monkeypatch.setattr(write_plan, "shared_namespace", lambda *_, session=session, **__: session)
        options = {"topic": "t", "deduplication": "token", "tokenColumn": "token", "tokenTopic": "orders"}
        columns = spark_schema(SCHEMA.append(pa.field("token", pa.int64())))
        plan = write_plan.plan_write(WriteOptions.parse(options), columns, overwrite=False, stream=False)
        assert plan.tokens is not None
        assert plan.tokens.uuid == ensemble.namespace.log("orders").topic.uuid
        for number in range(20):
            ensemble.put(number)  # it was there for a while
        ensemble.client.delete_topic("orders")
    with pytest.raises(NotFound, match=r"LEDGER_TOPIC_NOT_FOUND.*option 'tokenTopic' is 'orders'"):
        write_plan.plan_write(WriteOptions.parse(options), columns, overwrite=False, stream=False)
