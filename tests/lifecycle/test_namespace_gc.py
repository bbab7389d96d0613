"""gc for a whole namespace: thousands of topics, most of which have nothing to do, and folders that nobody knows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.client import client_of
from pyspark_ledger.errors import Conflict, CorruptData, InvalidInput, NotFound, Unavailable
from pyspark_ledger.lifecycle import gc, namespace_gc
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import GcKey
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support.worlds import SCHEMA, stage

GRACE_S = 100.0
LIMITS = replace(DEFAULT_LIMITS, gc_grace_ms=int(GRACE_S * 1000), topics_at_once=3)


@pytest.fixture
def namespace(tmp_path, monkeypatch) -> OpenNamespace:
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    clock = SeededClock(1)
    return OpenNamespace(
        MemoryMetadata(MemoryServer(clock), clock=clock), str(tmp_path / "root"), limits=LIMITS, clock=clock
    )


def make(namespace: OpenNamespace, *names: str) -> None:
    for name in names:
        namespace.create_topic(name, SCHEMA)


def leave_garbage(namespace: OpenNamespace, name: str) -> None:
    stage(namespace.log(name), 666)


def collect(namespace: OpenNamespace, times: int = 1, **how) -> namespace_gc.NamespaceRun:
    for _ in range(times):
        namespace.clock.sleep(GRACE_S)
        done = namespace_gc.collect(namespace, **how)
    return done


def count_calls(metadata: MemoryMetadata, monkeypatch) -> Counter[str]:
    calls: Counter[str] = Counter()

    def counted(name, real):
        def call(*arguments, **options):
            calls[name] += 1
            return real(*arguments, **options)

        return call

    for name in ("read", "read_many", "children", "sync", "transact"):
        monkeypatch.setattr(metadata, name, counted(name, getattr(metadata, name)))
    return calls


def test_garbage_of_every_topic_goes_and_is_told_by_topic(namespace):
    make(namespace, *"abcdefgh")
    for name in "adh":
        leave_garbage(namespace, name)
    collect(namespace, 2)
    done = collect(namespace)
    assert (done.topics, done.files, done.errors) == (8, 3, 0)
    assert [(run.topic, run.deleted) for run in done.collected] == [("a", 1), ("d", 1), ("h", 1)]
    assert collect(namespace).collected == ()


def test_a_dry_run_says_the_same_and_changes_nothing(namespace):
    make(namespace, "a", "b")
    leave_garbage(namespace, "a")
    collect(namespace, 2)
    namespace.clock.sleep(GRACE_S)
    before = set(namespace.storage.list(""))
    told = namespace_gc.collect(namespace, dry_run=True)
    assert set(namespace.storage.list("")) == before
    assert namespace_gc.collect(namespace) == told
    assert told.files == 1


def test_topics_whose_epoch_is_young_need_no_request_of_their_own(namespace, monkeypatch):
    make(namespace, *(f"t{n}" for n in range(30)))
    monkeypatch.setattr(gc, "collect", None)  # nobody calls it
    namespace.limits = replace(LIMITS, topics_at_once=10)
    calls = count_calls(namespace.metadata, monkeypatch)
    assert namespace_gc.collect(namespace).topics == 30
    # three pages: topics and gc nodes; then once for each page of folders: heads and condemned ones
    assert (calls["read_many"], calls["children"], calls["transact"]) == (12, 2, 0)
    assert calls["sync"] <= 3


def test_an_epoch_that_seems_to_begin_in_the_future_is_mended_here_too(namespace):
    make(namespace, "a")
    uuid = namespace.log("a").topic.uuid
    node = namespace.metadata.read(GcKey(uuid))
    assert not gc.is_due(namespace.metadata, node, LIMITS)
    assert gc.is_due(namespace.metadata, replace(node, modified_ms=node.modified_ms + 10**9), LIMITS)


def test_an_error_with_one_topic_does_not_stop_the_others_I16(namespace, monkeypatch):
    make(namespace, *"abcdefg")
    for name in "ag":
        leave_garbage(namespace, name)
    collect(namespace, 2)
    real = gc.collect

    def sometimes(log, **how):
        if log.topic.name == "c":
            raise CorruptData("a file is missing")
        return real(log, **how)

    monkeypatch.setattr(gc, "collect", sometimes)
    broken = namespace.log("e").topic.uuid
    read_many = namespace.metadata.read_many

    def refuse(keys):
        if GcKey(broken) in keys:
            raise CorruptData("a node is damaged")
        return read_many(keys)

    monkeypatch.setattr(namespace.metadata, "read_many", refuse)
    done = collect(namespace)
    assert [(run.topic, run.deleted, bool(run.error)) for run in done.collected] == [
        ("a", 1, False),
        ("c", 0, True),
        ("e", 0, True),
        ("g", 1, False),
    ]
    assert done.errors == 2


def test_topics_that_were_deleted_are_finished(namespace):
    make(namespace, "a", "b")
    client_of(namespace).delete_topic("a")
    assert [each.is_over for each in collect(namespace).finished] == [False]
    assert [each.is_over for each in collect(namespace).finished] == [True]
    assert collect(namespace).finished == ()


def test_nothing_is_done_in_a_root_without_its_marker_I12(namespace):
    make(namespace, "a")
    namespace.storage.delete(namespace.storage.marker)
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        namespace_gc.collect(namespace)
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        namespace_gc.remove_folder(namespace, "00000000-0000-4000-8000-000000000000")


# -- folders that nobody knows --------------------------------------------------------------------------------------


@pytest.fixture
def stranger(namespace, tmp_path) -> str:
    """The folder of a topic of another namespace in the same root."""
    theirs = OpenNamespace(MemoryMetadata(MemoryServer()), str(tmp_path / "root"))
    theirs.create_topic("theirs", SCHEMA)
    stage(theirs.log("theirs"), 1, 2, 3)
    return theirs.log("theirs").topic.uuid


def test_unknown_folders_are_listed_and_left_alone_I12(namespace, stranger, tmp_path):
    make(namespace, "a", "b", "c", "d")
    client_of(namespace).delete_topic("b")
    for name in ("outboxes", "no-uuid", stranger.upper(), f"{stranger}-copy"):
        (tmp_path / "root" / name).mkdir()
    assert collect(namespace, 5).unknown == (stranger,)
    assert len(list(namespace.storage.list(stranger))) == 1


def test_an_unknown_folder_that_is_named_is_removed(namespace, stranger):
    found = namespace_gc.inspect_folder(namespace, stranger)
    (path,) = namespace.storage.list(stranger)
    assert (found.files, found.bytes) == (1, namespace.storage.size(path))
    namespace_gc.remove_folder(namespace, stranger)
    assert namespace.storage.folders("") == []
    with pytest.raises(NotFound, match="there is no folder"):
        namespace_gc.inspect_folder(namespace, stranger)


@pytest.mark.parametrize("act", [namespace_gc.inspect_folder, namespace_gc.remove_folder])
def test_a_folder_of_this_namespace_is_never_removed_by_hand_I12(namespace, act):
    make(namespace, "a", "b")
    deleted, live = namespace.log("a").topic.uuid, namespace.log("b").topic.uuid
    client_of(namespace).delete_topic("a")
    for uuid in (deleted, live):
        with pytest.raises(Conflict, match="LEDGER_FOLDER_IN_USE"):
            act(namespace, uuid)
    assert set(namespace.storage.folders("")) == {deleted, live}


@pytest.mark.parametrize("name", ["", "..", "outboxes", "/", "00000000-0000-4000-8000-000000000000/x"])
@pytest.mark.parametrize("act", [namespace_gc.inspect_folder, namespace_gc.remove_folder])
def test_what_is_no_topics_folder_is_refused(namespace, act, name):
    make(namespace, "a")
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_FOLDER"):
        act(namespace, name)
