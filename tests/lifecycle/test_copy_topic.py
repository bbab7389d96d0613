"""A topic in another namespace: each record once, and what is deleted there is what is deleted here (I5, I9)."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.names import staged_file
from pyspark_ledger.client import client_of, namespace_of
from pyspark_ledger.errors import Conflict, DataLoss, InvalidInput, LedgerError
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.lifecycle import copy_topic, retention
from pyspark_ledger.lifecycle.copy_topic import TopicCopy
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.memory import Faults, MemoryMetadata, MemoryServer
from tests.support import examples

LIMITS = Limits(commits_per_ledger=3, index_fanout=3)
KINDS = {"k": pa.string(), "v": pa.binary(), "w": pa.int64()}


def a_client(folder, faults=None, server=None):
    metadata = MemoryMetadata(server or MemoryServer(), faults)
    return client_of(OpenNamespace(metadata, str(folder), limits=LIMITS))


@pytest.fixture
def here(tmp_path):
    client = a_client(tmp_path / "here")
    client.create_topic("t", schema_of("kv"), key="k")
    return client


@pytest.fixture
def there(tmp_path):
    return a_client(tmp_path / "there")


def schema_of(columns):
    return pa.schema([(name, KINDS[name]) for name in columns])


def put(client, columns, *rows):
    """One commit of an entry that has these columns, and no others; the topic gets those that it has not."""
    log, schema = namespace_of(client).log("t"), schema_of(columns)
    batch = pa.RecordBatch.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], schema=schema)
    entry = stage_entry(log.storage, log.topic.uuid, log.refresh(sync=True).head.gc_epoch, [batch], "lz4", log.clock)
    protocol.append(log, StagedBatch(log.clock.new_id(), (entry,), schema, merge_schema=True))


def copy(here, there, name="t", *, around_lost=False):
    """Begun anew, as another process would."""
    made = TopicCopy(namespace_of(here).log("t"), namespace_of(there), name, around_lost=around_lost)
    copied = made.catch_up(namespace_of(here).log("t").refresh(sync=True))
    made.finish()
    return copied


def values(client, topic="t", **how):
    return [dict(record.value) for record in client.reader(topic, end="latest", **how)]


def test_records_key_columns_and_policies_are_the_same_and_a_second_run_copies_what_is_new_I5(here, there):
    here.set_policies("t", retention_age=timedelta(days=7), compact_after_bytes=1000)
    put(here, "kv", ("a", b"1"), ("b", b"1"))
    assert copy(here, there) == 2
    assert copy(here, there) == 0
    put(here, "kvw", ("a", b"2", 5))  # with a column that came meanwhile
    put(here, "kv", ("b", None))
    assert copy(here, there) == 2
    assert values(there) == values(here)
    assert values(there, compacted=True) == values(here, compacted=True)
    assert (there.topic("t").key, there.policies("t")) == ("k", here.policies("t"))
    assert [record.sequence_id for record in there.reader("t", end="latest")] == [0, 1, 2, 3]


def test_a_copy_may_be_beside_its_source_and_deduplication_is_as_for_that_when_it_is_done(here):
    here.set_policies("t", deduplication=False)
    put(here, "kv", ("a", b"1"))
    assert copy(here, here, "t2") == 1
    assert here.policies("t2").deduplication is False
    put(here, "kv", ("a", b"2"))
    assert copy(here, here, "t2") == 1
    assert values(here, "t2") == values(here)
    with pytest.raises(InvalidInput, match="to itself"):
        copy(here, here)


def test_a_topic_that_is_something_else_is_left_alone(here, there):
    put(here, "kv", ("a", b"1"))
    there.create_topic("t", schema_of("kv"))
    with pytest.raises(Conflict, match=r"with the key ''.*--as"):
        copy(here, there)
    there.create_topic("u", schema_of("kv"), key="k")
    with there.producer("u") as producer:
        producer.send({"k": "mine"})
    with pytest.raises(Conflict, match=r"with 1 records, which are no copy of 't'"):
        copy(here, there, "u")
    assert [row["k"] for row in values(there, "u")] == ["mine"]


ROW = st.tuples(st.sampled_from("abc"), st.sampled_from([None, b"", b"1"]), st.sampled_from([None, 1]))
COMMIT = st.tuples(st.sampled_from(["k", "kv", "kw", "kvw"]), st.lists(ROW, min_size=1, max_size=3))


@settings(max_examples=examples(25))
@given(st.lists(COMMIT, max_size=9), st.integers(0, 8), st.booleans(), st.booleans())
def test_the_state_of_the_copy_is_that_of_the_source_also_if_the_log_begins_late_I9(
    tmp_path_factory, commits, trimmed, compacts, interrupted
):
    folder = tmp_path_factory.mktemp("c")
    here, there = a_client(folder / "here"), a_client(folder / "there")
    here.create_topic("t", schema_of("k"), key="k")
    for number, (columns, rows) in enumerate(commits):
        put(here, columns, *[[row["kvw".index(name)] for name in columns] for row in rows])
        if number == trimmed and compacts:
            here.compact("t")
            retention.trim(namespace_of(here).log("t"), before="latest")
    if interrupted:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(copy_topic, "_COMMIT_ROWS", 1)
            made = TopicCopy(namespace_of(here).log("t"), namespace_of(there), "t")
            for records, numbers in list(made._commits(namespace_of(here).log("t").refresh(sync=True)))[:2]:
                made._producer.send_batch(records, numbers)
    copy(here, there)

    def state(client):
        return {
            row.pop("k"): {name: v for name, v in row.items() if v is not None}
            for row in values(client, compacted=True)
        }

    assert state(there) == state(here)


def test_what_retention_has_taken_between_two_runs_is_told_and_nothing_is_copied(here, there):
    put(here, "kv", ("a", b"1"), ("b", b"1"))
    copy(here, there)
    for number in range(9):
        put(here, "kv", ("a", None) if number == 0 else ("c", b"1"))
    here.compact("t")
    retention.trim(namespace_of(here).log("t"), before="latest")
    with pytest.raises(DataLoss, match=r"LEDGER_TRIMMED.*8 records after those that are in the copy.*--as"):
        copy(here, there)
    assert len(values(there)) == 2
    copy(here, there, "again")
    assert values(there, "again", compacted=True) == values(here, compacted=True)


def test_a_key_alone_that_only_a_generation_has_is_there_in_the_copy_I9(here, there):
    put(here, "k", ("a",), ("b",))
    put(here, "kv", ("c", b"1"))
    here.compact("t")
    for _ in range(4):
        put(here, "kv", ("d", b"1"))
    here.compact("t")
    retention.trim(namespace_of(here).log("t"), before="latest")
    copy(here, there)
    assert [row["k"] for row in values(there, compacted=True)] == ["a", "b", "c", "d"]


def test_a_copy_goes_around_lost_entries_and_goes_on_after_them_I5(here, there):
    for number in range(6):
        put(here, "kv", (f"{number}", b"1"), (f"{number}-", b"1"))
    damage(here, "0:1")
    with pytest.raises(DataLoss, match="LEDGER_ENTRY_LOST"):
        copy(here, there)
    assert copy(here, there, around_lost=True) == 10
    put(here, "kv", ("6", b"1"))
    assert copy(here, there, around_lost=True) == 1
    assert [record.sequence_id for record in there.reader("t", end="latest")] == [0, 1, *range(4, 13)]


def damage(client, position):
    log = namespace_of(client).log("t")
    commit = log.commit(log.refresh(sync=True), 1)
    file = log.entries(commit)[0].file
    log.storage.delete(staged_file(log.topic.uuid, file.epoch, file.uid))
    client.skip_damaged("t", position)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_becomes_of_answers_each_record_is_there_once_I5_I14(tmp_path, here, seed, monkeypatch):
    monkeypatch.setattr(copy_topic, "_COMMIT_ROWS", 2)
    for number in range(10):
        put(here, "kv", *[(f"{number}-{n}", b"1") for n in range(2)])
    server = MemoryServer()
    a_client(tmp_path / "there", server=server).create_topic("t", schema_of("kv"), key="k")
    for attempt in range(60):
        lost = {"lost_before": 0.1, "applied_then_lost": 0.1, "delayed": 0.1}
        faults = Faults(seed * 100 + attempt, **lost, stale_read=0.1, expired=0.02)
        try:
            copy(here, a_client(tmp_path / "there", faults, server))
            break
        except LedgerError:
            pass
    there = a_client(tmp_path / "there", server=server)
    copy(here, there)
    assert values(there) == values(here)
