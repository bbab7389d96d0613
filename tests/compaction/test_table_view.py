"""client.table_view: a compacted topic as a live mapping, which sees every change and every deletion (I9)."""

from __future__ import annotations

import gc as garbage
import math
import os
import threading

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.client import LedgerClient, client_of, namespace_of
from pyspark_ledger.compaction import table_view
from pyspark_ledger.errors import InvalidInput, LedgerError, NotFound, Unavailable
from pyspark_ledger.lifecycle import retention
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support import examples
from tests.support.query import eventually

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("version", pa.int64())])
LIMITS = Limits(commits_per_ledger=4, index_fanout=3)
SOON = 30.0


def a_client(folder, schema=SCHEMA, version_column=""):
    client = client_of(OpenNamespace(MemoryMetadata(MemoryServer()), str(folder), limits=LIMITS))
    client.create_topic("t", schema, key="k", version_column=version_column)
    return client


@pytest.fixture
def client(tmp_path):
    return a_client(tmp_path)


def put(client, *rows):
    """One commit of (key, value) or (key, value, version); a value of None is a tombstone."""
    with client.producer("t") as producer:
        producer.send_batch(pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=False)) for row in rows], SCHEMA))


def shown(view):
    assert view.wait_until_current(SOON)
    return {key: row["v"] for key, row in view.items()}


def test_it_begins_with_the_state_and_follows_every_change_and_deletion_I9(client):
    put(client, ("a", 1), ("b", 1), (None, 7))
    client.compact("t")
    put(client, ("a", 2), ("c", 3))
    with client.table_view("t") as view:
        assert shown(view) == {"a": 2, "b": 1, "c": 3}
        assert view["b"] == {"k": "b", "v": 1, "version": None}
        put(client, ("b", None), ("d", 4))
        client.compact("t")  # its generation does not have the tombstone's key any more
        assert shown(view) == {"a": 2, "c": 3, "d": 4}
        assert ("b" in view, view.get("b"), view.get("b", 0), len(view)) == (False, None, 0, 3)
        assert view.position == client.end("t")
        with pytest.raises(KeyError):
            view["b"]
        put(client, ("b", 5), ("b", None), ("b", 6))
        assert shown(view)["b"] == 6


def test_rows_have_the_columns_that_were_asked_for_and_changing_one_changes_nothing(client):
    put(client, ("a", 1, 5))
    with client.table_view("t", columns=["v"]) as view, client.table_view("t", columns=[]) as keys:
        assert dict(view) == {"a": {"v": 1}}
        view["a"]["v"] = 8
        view.snapshot()["a"]["v"] = 9
        assert view["a"] == {"v": 1}
        put(client, ("b", 2, 1), ("a", None, None))
        assert keys.wait_until_current(SOON)
        assert dict(keys) == {"b": {}}
    with pytest.raises(InvalidInput, match="no column 'w'"):
        client.table_view("t", columns=["w"])


ROWS = st.lists(
    st.tuples(st.sampled_from("abc") | st.none(), st.none() | st.integers(0, 9), st.none() | st.integers(0, 3)),
    min_size=1, max_size=4,
)  # fmt: skip


@pytest.mark.parametrize("version_column", ["", "version"])
@settings(max_examples=examples(15))
@given(before=st.lists(ROWS, max_size=3), after=st.lists(ROWS, max_size=4), compact=st.booleans())
def test_it_ends_with_what_a_compacted_reader_says_I9(tmp_path_factory, version_column, before, after, compact):
    client = a_client(tmp_path_factory.mktemp("t"), version_column=version_column)
    for rows in before:
        put(client, *rows)
    if compact:
        client.compact("t")
    with client.table_view("t") as view:
        for rows in after:
            put(client, *rows)
            if rows is after[0]:
                assert view.wait_until_current(SOON)
        assert view.wait_until_current(SOON)
        folded = client.reader("t", end="latest", compacted=True)
        assert dict(view) == {record["k"]: record.value for record in folded if record["k"] is not None}


def test_after_a_deletion_versions_count_anew_I9(tmp_path):
    client = a_client(tmp_path, version_column="version")
    put(client, ("a", 1, 9))
    with client.table_view("t") as view:
        put(client, ("a", 2, 3))
        assert shown(view) == {"a": 1}  # a lower version changes nothing
        put(client, ("a", None, None))
        assert shown(view) == {}
        put(client, ("a", 3, 1))
        assert shown(view) == {"a": 3}
        put(client, ("a", 4, None))
        assert shown(view) == {"a": 3}


def test_keys_that_are_fractions_are_compared_as_in_a_compaction(tmp_path):
    client = a_client(tmp_path, pa.schema([("k", pa.float64()), ("v", pa.int64())]))
    with client.producer("t") as producer, client.table_view("t") as view:
        producer.send_batch(pa.table({"k": [0.0, math.nan, 1.5], "v": [1, 2, 3]}))
        producer.send_batch(pa.table({"k": [-0.0, -math.nan], "v": [4, 5]}))
        assert view.wait_until_current(SOON)
        assert (len(view), view[-0.0]["v"], view[0]["v"], view[float("nan")]["v"], view[1.5]["v"]) == (3, 4, 4, 5, 3)
        producer.send_batch(pa.table({"k": [math.nan, -0.0], "v": pa.nulls(2, pa.int64())}))
        assert view.wait_until_current(SOON)
        assert list(view) == [1.5]


def test_what_is_seen_at_once_is_whole_commits_while_it_moves_on_I3(client):
    put(client, ("a", 0), ("b", 0))
    torn, ended = [], threading.Event()

    def look():
        while not ended.is_set():
            now = {key: row["v"] for key, row in view.items()}
            if now["a"] != now["b"]:
                torn.append(now)

    with client.table_view("t") as view:
        lookers = [threading.Thread(target=look) for _ in range(2)]
        for looker in lookers:
            looker.start()
        for number in range(1, 40):
            put(client, ("a", number), ("b", number))
        assert shown(view) == {"a": 39, "b": 39}
        ended.set()
        for looker in lookers:
            looker.join()
    assert torn == []


def test_a_view_that_retention_has_overtaken_reads_the_whole_state_again_I9(client, monkeypatch):
    put(client, ("a", 1), ("b", 1))
    put(client, ("z", 1))
    with client.table_view("t") as view:
        step, let_go = table_view.TableView._step, threading.Event()
        monkeypatch.setattr(table_view.TableView, "_step", lambda self: step(self) if let_go.wait(SOON) else 0.0)
        for number in range(20):
            put(client, ("a", number), ("b", None) if number == 3 else ("c", number))
        client.compact("t")
        assert retention.trim(namespace_of(client).log("t"), before="2:0:0").records > 0
        let_go.set()
        assert shown(view) == {"a": 19, "c": 19, "z": 1}


def test_a_deleted_topic_ends_it_with_an_error_that_says_what_to_do(client):
    put(client, ("a", 1))
    view = client.table_view("t")
    client.delete_topic("t")
    eventually(lambda: view._error is not None)
    for _ in range(2):
        with pytest.raises(NotFound, match=r"LEDGER_TOPIC_DELETED.*has ended at 0:1:0.*Make another one"):
            view["a"]
    view.close()


def test_one_whose_store_is_away_says_so_and_goes_on_by_itself(client, monkeypatch):
    monkeypatch.setattr(table_view, "_RETRY_S", 0.01)
    monkeypatch.setattr(table_view, "POLL_S", 0.0)
    put(client, ("a", 1))
    with client.table_view("t") as view:
        log = view._log
        with monkeypatch.context() as away:
            away.setattr(log, "view", lambda *_: (_ for _ in ()).throw(Unavailable("nobody answers")))
            eventually(lambda: view._error is not None)
            with pytest.raises(Unavailable):
                view.get("a")
        put(client, ("a", 2))
        eventually(lambda: view._error is None)
        assert shown(view) == {"a": 2}


def test_it_belongs_to_its_process_ends_when_nobody_has_it_and_is_closed_once(client):
    put(client, ("a", 1))
    view = client.table_view("t")
    child = os.fork()
    if not child:
        try:
            view.get("a")
        except LedgerError as error:
            view.close()
            os._exit(0 if error.code == "LEDGER_FORKED" else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    thread = view._thread
    view.close()
    view.close()
    assert not thread.is_alive()
    with pytest.raises(InvalidInput, match="LEDGER_CLOSED"):
        len(view)
    view = client.table_view("t")
    thread = view._thread
    del view
    garbage.collect()
    thread.join(SOON)
    assert not thread.is_alive()


def test_a_topic_without_a_key_has_none(client):
    client.create_topic("u", SCHEMA)
    with pytest.raises(InvalidInput, match="LEDGER_NOT_COMPACTABLE"):
        client.table_view("u")


def test_on_a_real_zookeeper_its_watch_tells_it_of_changes(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("t", SCHEMA, key="k")
        with client.table_view("t") as view:
            put(client, ("a", 1))
            eventually(lambda: view.get("a") is not None)
            put(client, ("a", None))
            eventually(lambda: "a" not in view)
