"""A topic that gets columns: what is deleted is judged by the columns that each entry has, for ever (I9)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.client import client_of, namespace_of
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support import examples

LIMITS = Limits(commits_per_ledger=4, index_fanout=3)
KINDS = {"k": pa.string(), "n": pa.int64(), "v": pa.binary(), "w": pa.int64(), "x": pa.string()}


def a_client(folder, columns, version_column=""):
    client = client_of(OpenNamespace(MemoryMetadata(MemoryServer()), str(folder), limits=LIMITS))
    client.create_topic("t", schema_of(columns), key="k", version_column=version_column)
    return client


def schema_of(columns):
    return pa.schema([(name, KINDS[name]) for name in columns])


def put(client, columns, *rows):
    """One commit of an entry that has these columns, and no others; the topic gets those that it has not."""
    log, schema = namespace_of(client).log("t"), schema_of(columns)
    batch = pa.RecordBatch.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], schema=schema)
    entry = stage_entry(log.storage, log.topic.uuid, log.refresh(sync=True).head.gc_epoch, [batch], "lz4", log.clock)
    protocol.append(log, StagedBatch(log.clock.new_id(), (entry,), schema, merge_schema=True))


def state(client):
    """key -> what it has besides."""
    records = list(client.reader("t", end="latest", compacted=True))
    assert len({record["k"] for record in records}) == len(records), "each key once"
    return {r["k"]: {name: value for name, value in r.value.items() if name != "k" and value} for r in records}


@pytest.mark.parametrize("version_column", ["", "n"])
@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_keys_alone_are_not_deleted_by_a_column_that_comes_later(tmp_path, version_column, when):
    columns = ["k", "n"] if version_column else ["k"]
    client = a_client(tmp_path, columns, version_column)
    put(client, columns, *[("a", 1)[: len(columns)], ("b", 1)[: len(columns)]])
    if when == "before":
        client.compact("t")
    put(client, [*columns, "w"], ("c", 1, 7) if version_column else ("c", 7))
    if when == "after":
        client.compact("t")
    assert list(state(client)) == ["a", "b", "c"]
    put(client, [*columns, "w"], ("a", 2, None) if version_column else ("a", None))  # this entry has a value column
    client.compact("t")
    assert list(state(client)) == ["b", "c"]


@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_a_deletion_as_empty_bytes_stays_one_when_a_column_comes(tmp_path, when):
    client = a_client(tmp_path, "kv")
    put(client, "kv", ("a", b"secret"), ("a", b""), ("b", b"x"))
    if when == "before":
        client.compact("t")
    put(client, "kvw", ("c", b"", 1))
    if when == "after":
        client.compact("t")
    assert state(client) == {"b": {"v": b"x"}, "c": {"w": 1}}


def test_a_writer_that_does_not_know_a_column_deletes_with_those_it_knows(tmp_path):
    client = a_client(tmp_path, "kvw")
    put(client, "kvw", ("a", b"1", 1), ("b", b"1", 1), ("c", b"1", 1))
    put(client, "kv", ("a", None), ("b", b""))
    put(client, "k", ("c",))  # no value column: a record that says nothing but its key is none that deletes it
    assert state(client) == {"c": {}}


ROW = st.tuples(
    st.sampled_from("abc"), st.integers(0, 2), st.sampled_from([None, b"", b"1"]), st.sampled_from([None, 1]),
    st.sampled_from([None, "", "1"]),
)  # fmt: skip
COMMIT = st.tuples(st.sets(st.sampled_from("nvwx")), st.lists(ROW, min_size=1, max_size=4))
ACTS = st.lists(st.one_of(COMMIT, st.sampled_from(["compact", "gc"])), max_size=12)


@settings(max_examples=examples(80))
@given(ACTS, st.booleans())
def test_the_state_is_a_fold_in_which_each_entry_is_judged_by_its_own_columns_I9(tmp_path_factory, acts, versioned):
    client = a_client(tmp_path_factory.mktemp("w"), "kn" if versioned else "k", "n" if versioned else "")
    wanted, live = {}, client.table_view("t")
    for act in acts:
        if act == "compact":
            client.compact("t")
        elif act == "gc":
            client.gc("t")
        else:
            columns, rows = "".join(name for name in KINDS if name in {"k", *act[0]}), act[1]
            rows = [{name: row[list(KINDS).index(name)] for name in columns} for row in rows]
            put(client, columns, *[tuple(row.values()) for row in rows])
            for row in rows:
                model(wanted, row, versioned)
    assert state(client) == {key: value for key, (_, value) in wanted.items()}
    with live:
        assert live.wait_until_current(30)
        assert _without_nothing(live) == state(client) == _without_nothing(client.table_view("t"))


def _without_nothing(view):
    return {key: {name: value for name, value in row.items() if name != "k" and value} for key, row in view.items()}


def model(wanted, row, versioned):
    values = {name: value for name, value in row.items() if name != "k" and not (versioned and name == "n")}
    rank = row.get("n", -1) if versioned else 0
    alone = len(values) == 1 and "v" in values
    if values and all(value is None or (alone and value == b"") for value in values.values()):
        wanted.pop(row["k"], None)
    elif row["k"] not in wanted or rank >= wanted[row["k"]][0]:
        wanted[row["k"]] = rank, {name: value for name, value in row.items() if name != "k" and value}
