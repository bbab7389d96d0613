"""client.reader(compacted=True): the state of every key up to the end, and then every change (I9)."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.client import client_of
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("version", pa.int64())])
LIMITS = Limits(commits_per_ledger=4, index_fanout=3)


def a_client(folder, version_column=""):
    client = client_of(OpenNamespace(MemoryMetadata(MemoryServer()), str(folder), limits=LIMITS))
    client.create_topic("t", SCHEMA, key="k", version_column=version_column)
    return client


@pytest.fixture
def client(tmp_path):
    return a_client(tmp_path)


def put(client, *rows):
    """One commit of (key, value) or (key, value, version); a value of None is a tombstone."""
    with client.producer("t", name="web") as producer:
        for row in rows:
            producer.send(dict(zip(SCHEMA.names, (*row, None)[:3], strict=True)))


def folded(records, *, versioned=False):
    """The last record of every key, and the records without one: what a reader of everything ends with."""
    state, keyless = {}, []
    for record in records:
        key, rank = record["k"], -1 if record["version"] is None else record["version"]
        if key is None:
            keyless.append(record)
        elif record["v"] is None and (versioned or record["version"] is None):
            state.pop(key, None)
        elif not versioned or key not in state or rank >= state[key][0]:
            state[key] = rank, record
    return sorted([*(record for _, record in state.values()), *keyless], key=lambda record: record.position)


def test_every_key_once_with_its_last_record_and_where_it_came_from(client):
    put(client, ("a", 1), ("b", 1), (None, 7))
    client.compact("t")
    put(client, ("a", 2), ("c", 3))
    put(client, ("b", None))
    records = list(client.reader("t", end="latest", compacted=True))
    assert [(record["k"], record["v"]) for record in records] == [(None, 7), ("a", 2), ("c", 3)]
    assert records == folded(client.reader("t", end="latest"))  # position, publish time, producer, sequence id too
    table = pa.Table.from_batches(client.reader("t", end="latest", compacted=True, columns=["v"]).batches())
    assert table.to_pydict() == {"v": [7, 2, 3]}
    assert [record.value for record in client.reader("t", end="latest", compacted=True, columns=[])] == [{}] * 3


def test_without_an_end_the_state_comes_first_and_then_every_change(client):
    put(client, ("a", 1), ("b", 1), ("a", 2))
    client.compact("t")
    put(client, ("b", 2))
    reader, seen = client.reader("t", compacted=True), []
    done = threading.Event()

    def follow():
        for record in reader:
            seen.append((record["k"], record["v"]))
            if len(seen) == 5:
                done.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    while len(seen) < 2:
        assert not done.wait(0.01)
    client.compact("t")  # changes nothing for a reader that is past it
    put(client, ("a", None), ("a", 3))
    put(client, ("c", 1))
    assert done.wait(30)
    reader.stop()
    thread.join(5)
    assert seen == [("a", 2), ("b", 2), ("a", None), ("a", 3), ("c", 1)]
    assert reader.position == client.end("t")


def test_the_position_moves_when_the_whole_state_has_been_read(client):
    put(client, ("a", 1), ("b", 1))
    client.compact("t")
    put(client, ("c", 1))
    reader = client.reader("t", end="latest", compacted=True)
    seen = []
    for record in reader:
        seen.append(record["k"])
        assert reader.position == EARLIEST  # half a state is of no use
    assert (seen, reader.position) == (["a", "b", "c"], client.end("t"))
    put(client, ("a", None))
    changes = client.reader("t", reader.position, "latest")  # goes on from there, and misses no deletion
    assert [(record["k"], record["v"]) for record in changes] == [("a", None)]


def test_the_state_at_an_end_before_the_horizon_is_what_was_true_then(client):
    put(client, ("a", 1), ("b", 1))
    end = client.end("t")
    put(client, ("a", 2), ("b", None))
    client.compact("t")
    then = [(record["k"], record["v"]) for record in client.reader("t", end=end, compacted=True)]
    assert then == [("a", 1), ("b", 1)]


def test_only_records_from_the_start_on_count(client):
    put(client, ("a", 1), ("b", 1))
    start = client.end("t")
    put(client, ("b", 2), ("c", 1))
    put(client, ("c", None))
    for _ in range(2):
        found = client.reader("t", start, "latest", compacted=True)
        assert [(record["k"], record["v"]) for record in found] == [("b", 2)]
        client.compact("t")


def test_a_topic_without_a_key_is_refused_before_anything_is_read(client):
    client.create_topic("plain", SCHEMA)
    with pytest.raises(InvalidInput, match=r"LEDGER_NOT_COMPACTABLE.*'plain' has no key"):
        client.reader("plain", compacted=True)


ROW = st.tuples(
    st.one_of(st.none(), st.sampled_from("abc")), st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 3)
)
ACTS = st.lists(st.one_of(st.lists(ROW, min_size=1, max_size=5), st.sampled_from(["compact", "gc"])), max_size=12)


@settings(max_examples=60)
@given(ACTS)
def test_the_state_at_any_end_is_a_full_read_up_to_there_folded_by_key_I9(tmp_path_factory, acts):
    client = a_client(tmp_path_factory.mktemp("w"))
    ends = [client.end("t")]
    for act in acts:
        if act == "compact":
            client.compact("t")
        elif act == "gc":
            client.gc("t")
        else:
            put(client, *[(key, value) for key, value, _ in act])
            ends.append(client.end("t"))
    for end in ends:
        assert list(client.reader("t", end=end, compacted=True)) == folded(client.reader("t", end=end))


@settings(max_examples=60)
@given(ACTS)
def test_with_versions_the_state_is_the_highest_since_the_last_tombstone_I9(tmp_path_factory, acts):
    client = a_client(tmp_path_factory.mktemp("w"), version_column="version")
    for act in acts:
        if act == "compact":
            client.compact("t")
        elif act == "gc":
            client.gc("t")
        else:
            put(client, *act)
    state = list(client.reader("t", end="latest", compacted=True))
    assert state == folded(client.reader("t", end="latest"), versioned=True)
