"""The old code runs, and leaves a namespace of format 1 that has some of everything: what other tests go on with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from pyspark_ledger.zk_metadata.session import split_connect_string
from tests.support.old_code import WHEEL, call_old, make_old_namespace, run_old


def home(word: str) -> list[str]:
    import pyspark_ledger.zk_metadata.store
    from pyspark_ledger.zk_metadata.codec import FORMAT

    return [pyspark_ledger.zk_metadata.store.__file__, str(FORMAT), word]


def test_the_old_code_is_that_of_the_wheel():
    assert call_old(home, "said") == [str(WHEEL / "pyspark_ledger" / "zk_metadata" / "store.py"), "1", "said"]


def test_what_goes_wrong_in_the_old_code_is_shown():
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_old("1 / 0")
    with pytest.raises(AssertionError, match=r"no JSON:\nhello"):
        run_old("print('hello')")


def test_the_old_code_makes_a_namespace_with_some_of_everything(namespace, storage_root):
    found = make_old_namespace(namespace, storage_root)
    topics = found["topics"]
    check_events(topics["events"])
    check_keyed(topics["accounts"], topics["sensors"])
    check_cursors(topics["events"]["cursors"])
    check_tokens(topics["orders"]["tokens"], topics["parcels"]["tokens"])
    check_outbox(found["outboxes"]["billing"])
    check_checkpoints(found["checkpoints"], topics)
    assert (Path(storage_root) / found["unnamed"]).is_file()
    assert list(ephemeral(namespace)) == []


def check_events(events: dict[str, Any]) -> None:
    commits = events["commits"]
    assert [commit["ledger"] for commit in commits] == [n // 4 for n in range(14)], "three are sealed, one is open"
    assert events["index_files"] == 1
    assert events["gc_epoch"] == 2
    assert list(events["columns"]) == ["id", "name", "extra"]
    assert events["policies"] == {"deduplication": True, "snapshot_commits": 4, "evict_producers_ms": 3_600_000}
    assert {state["name"]: state["sequence"] for state in events["producers"]} == {"app": 14, "job": 1, "retrier": 9}
    assert events["producers_in_a_file"]
    assert events["evicted_producers"] == 1
    assert sum(commit["dropped"] for commit in commits) == 2
    assert any(commit["entries_file"] for commit in commits)
    assert any(commit["forget"] for commit in commits)
    assert sum(commit["records"] for commit in commits) == len(events["records"]) == 27
    assert {record["value"]["extra"] for record in events["records"]} >= {None, "task 2", "open"}


def check_keyed(accounts: dict[str, Any], sensors: dict[str, Any]) -> None:
    assert [generation["number"] for generation in accounts["generations"]] == [2, 3, 4]
    assert {record["value"]["who"] for record in accounts["table"]} == {"new 3", "zoe", None}
    values = [record["value"] for record in accounts["compacted"]]
    assert {"who": "new 2", "balance": None, "note": None} in values, "a tombstone that is compacted"
    assert {"who": "ann", "balance": None, "note": None} in values, "and one that came later"
    assert accounts["generations"][-1]["horizon"] < accounts["end"]
    assert [generation["number"] for generation in sensors["generations"]] == [1]
    assert any(commit["highest_file"] for commit in sensors["commits"])
    assert {record["value"]["who"]: record["value"]["seq"] for record in sensors["table"]} == {"b": 2, "d": 1, "e": 1}


def check_cursors(cursors: dict[str, Any]) -> None:
    assert cursors.keys() == {"untouched", "gaps", "moved", "query"}
    assert (cursors["untouched"]["mark_delete"], cursors["untouched"]["revision"]) == ("0:0:0", 0)
    assert cursors["gaps"]["acks"] == [[7, 9], [11, 12]]
    assert cursors["gaps"]["properties"] == {"batch": 7, "lag": -3}
    assert cursors["gaps"]["epoch"] == 1
    assert (cursors["moved"]["revision"], cursors["moved"]["void_below"]) == (4, 2)
    assert (cursors["query"]["revision"], cursors["query"]["epoch"]) == (1, 2)
    assert {cursor["owner"] + cursor["reviser"] for cursor in cursors.values()} == {""}


def check_tokens(orders: dict[str, Any], parcels: dict[str, Any]) -> None:
    audit = orders["audit"]
    assert audit["kept"] == {"whole": [0], "inline": [3], "node": [1], "file": [2]}
    assert len(audit["present"]) == 600 - 128 - 64 - 64 - 5
    assert list(audit["outside"].values()) == [True, False, True, True, False, True] + [False] * 3 + [True] * 2
    assert audit["stats"]["blocks"] == 2
    assert len(orders["billing"]["present"]) == 598
    assert list(parcels["shipping"]["outside"].values()) == [True, True]


def check_outbox(billing: dict[str, Any]) -> None:
    assert billing["ann"] == {"state": {"orders": [1]}, "pending": {}, "in_a_file": False}
    assert billing["bob"]["state"] == {"orders": list(range(100))}
    assert billing["bob"]["pending"].keys() == {"order 3"}
    assert billing["bob"]["in_a_file"]


def check_checkpoints(checkpoints: dict[str, Any], topics: dict[str, Any]) -> None:
    following, compacted = checkpoints["following"], checkpoints["compacted"]
    ends = [batch["end"] for batch in following["batches"]]
    assert {(end["v"], end["topic"]) for end in ends} == {(1, topics["events"]["uuid"])}
    assert [end["rev"] for end in ends] == [0, 0, 1, 1]
    assert ["from" in end for end in ends] == [True, False, True, False]
    assert following["committed"] == 3
    assert topics["events"]["cursors"]["query"]["mark_delete"] == ends[2]["pos"]
    assert {len(batch["rows"]) for batch in following["batches"]} == {4}
    assert {batch["end"]["gen"] for batch in compacted["batches"]} == {4}
    assert any(batch["rows"] for batch in compacted["batches"])


def ephemeral(namespace: str) -> Iterator[str]:
    """Every node of a namespace that goes with its session."""
    servers, root = split_connect_string(namespace)
    client = KazooClient(servers)
    client.start()
    waiting, seen = [root], 0
    try:
        while waiting:
            path = waiting.pop()
            waiting += [f"{path}/{child}" for child in client.get_children(path)]
            seen += 1
            if client.get(path)[1].ephemeralOwner:
                yield path
    finally:
        client.stop()
        client.close()
    assert seen > 50, "this is not where the nodes are"
