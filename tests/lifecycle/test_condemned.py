"""Of a topic that was deleted nothing stays for ever, whoever dies when, and nothing else is touched (I12, I16)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.client import LedgerClient, client_of, namespace_of
from pyspark_ledger.errors import NotFound, Unavailable
from pyspark_ledger.files.storage import LocalStorage, Storage
from pyspark_ledger.lifecycle import condemned
from pyspark_ledger.log import topics
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import CondemnedKey, CondemnedsKey, Create, Delete, HeadKey, RootKey
from pyspark_ledger.metadata.records import Deleted
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.disk import Disk, MemoryStorage
from pyspark_ledger.testing.memory import Crash, MemoryMetadata, MemoryServer
from tests.support.worlds import stage

SCHEMA = pa.schema([("n", pa.int64())])
GRACE_S = 100.0
LIMITS = replace(DEFAULT_LIMITS, gc_grace_ms=int(GRACE_S * 1000))


class Place:
    """One server and one root; each namespace that is opened is a process of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, SeededClock(1)
        self.server = MemoryServer(self.clock)

    def open(self, server: MemoryServer | None = None) -> OpenNamespace:
        metadata = MemoryMetadata(server or self.server, clock=self.clock)
        return OpenNamespace(metadata, str(self.root), limits=LIMITS, clock=self.clock)

    def delete(self, name: str = "t") -> None:
        client_of(self.open()).delete_topic(name)

    def finish(self, **how) -> list[condemned.Finished]:
        return condemned.finish(self.open(), **how)

    def condemned(self) -> list[str]:
        return [key.uuid for key in self.open().metadata.children(CondemnedsKey())]

    def folders(self) -> set[str]:
        return {path.name for path in self.root.iterdir() if path.is_dir()}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Place:
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    return Place(tmp_path / "root")


def make(namespace: OpenNamespace, name: str = "t") -> str:
    topic = namespace.create_topic(name, SCHEMA)
    write(namespace, name)
    return topic.uuid


def write(namespace: OpenNamespace, name: str) -> None:
    with Producer(namespace.log(name)) as producer:
        producer.send({"n": 1})


def files(storage: Storage, uuid: str) -> list[str]:
    return list(storage.list(uuid))


# -- what goes, and when --------------------------------------------------------------------------------------------


def test_a_deleted_topic_has_no_files_at_once_and_nothing_at_all_after_two_graces(place):
    uuid = make(place.open())
    place.delete()
    assert (files(place.open().storage, uuid), place.condemned()) == ([], [uuid])
    assert [(done.files, done.is_over) for done in place.finish()] == [(0, False)]
    place.clock.sleep(2 * GRACE_S)
    assert [(done.uuid, done.is_over) for done in place.finish()] == [(uuid, True)]
    assert (place.condemned(), place.folders(), place.finish()) == ([], set(), [])


def test_a_task_that_stages_a_file_late_does_so_in_vain_and_is_told_that_the_topic_was_deleted(place):
    """Executors ask nobody: the folder is there for them until their batch would be refused anyway."""
    uuid = make(place.open())
    late = place.open().log("t")
    late.view()
    place.delete()
    stage(late, 666)
    with pytest.raises(NotFound, match="LEDGER_TOPIC_DELETED"):
        late.refresh()
    assert len(files(late.storage, uuid)) == 1
    assert [done.files for done in place.finish()] == [1]
    stage(late, 667)
    place.clock.sleep(2 * GRACE_S)
    assert [(done.files, done.is_over) for done in place.finish()] == [(1, True)]
    assert place.folders() == set()


def test_bitmaps_of_tokens_and_files_that_are_not_ours_go_with_the_folder(place):
    uuid = make(place.open())
    for name in ("tokens/billing/0000000000/000000000001-ff", "notes.txt"):
        (place.root / uuid / name).parent.mkdir(parents=True, exist_ok=True)
        (place.root / uuid / name).touch()
    place.delete()
    assert files(place.open().storage, uuid) == []


def test_a_dry_run_says_what_would_go_and_changes_nothing(place):
    uuid = make(place.open())
    topics.delete_topic(place.open().metadata, "t")
    place.clock.sleep(2 * GRACE_S)
    before = files(place.open().storage, uuid)
    told = place.finish(dry_run=True)
    assert (files(place.open().storage, uuid), place.condemned()) == (before, [uuid])
    assert place.finish() == told
    assert [(done.files, done.is_over) for done in told] == [(1, True)]


def test_files_that_cannot_be_deleted_now_are_deleted_later_and_the_deletion_is_not_said_to_have_failed_I14(
    place, monkeypatch, caplog
):
    uuid = make(place.open())

    def fail(*_: object) -> None:
        raise Unavailable("the disk is broken", "LEDGER_STORAGE_UNAVAILABLE")

    with monkeypatch.context() as broken:
        broken.setattr(LocalStorage, "delete_folder", fail)
        place.delete()
        assert "not all of its files yet" in caplog.text
        place.clock.sleep(2 * GRACE_S)
        (done,) = place.finish()
        assert ("LEDGER_STORAGE_UNAVAILABLE" in done.error, done.is_over, place.condemned()) == (True, False, [uuid])
    assert [(done.files, done.is_over, done.error) for done in place.finish()] == [(1, True, "")]
    assert place.folders() == set()


# -- whoever dies when ----------------------------------------------------------------------------------------------


class DyingPlace:
    """A server and a disk in memory. A process dies before one of its calls, of either."""

    def __init__(self) -> None:
        self.clock, self.disk = SeededClock(1), Disk()
        self.server = MemoryServer(self.clock)

    def open(self, die_at: int = 0) -> OpenNamespace:
        left = die_at

        def count(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Crash("here")

        storage = MemoryStorage(self.disk)
        storage.on_call = count
        namespace = OpenNamespace(MemoryMetadata(self.server, None, self.clock, count), limits=LIMITS, clock=self.clock)
        namespace._storage = storage
        return namespace


def dies(place: DyingPlace, act: Callable[[OpenNamespace], object], step: int) -> bool:
    try:
        act(place.open(step))
    except Crash:
        return True
    return False


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("victim", ["deletion", "finish"])
def test_a_crash_at_any_step_is_harmless_and_completed_later_I16(victim, late):
    for step in range(1, 200):
        place = DyingPlace()
        place.open().storage.make_folder("")
        uuid, other = make(place.open()), make(place.open(), "other")
        kept = files(place.open().storage, other)
        act = {"deletion": lambda n: client_of(n).delete_topic("t"), "finish": condemned.finish}[victim]
        if victim == "finish":
            topics.delete_topic(place.open().metadata, "t")  # the one who did that has deleted no file
            if late:
                place.clock.sleep(2 * GRACE_S)
        died = dies(place, act, step)
        if topics.find_topic(place.open().metadata, "t") is not None:
            client_of(place.open()).delete_topic("t")  # it died before it had begun, and the user tries again
        if victim == "deletion" and late:
            place.open().storage.write(f"{uuid}/00000000/{'f' * 32}.arrow", b"late")
        condemned.finish(place.open())
        place.clock.sleep(2 * GRACE_S)
        condemned.finish(place.open())
        metadata = place.open().metadata
        assert metadata.children(CondemnedsKey()) == []
        assert metadata.read(RootKey(uuid)) is None
        assert (files(place.open().storage, uuid), files(place.open().storage, other)) == ([], kept)
        assert uuid not in place.disk.folders()
        if not died:
            break
    assert 5 < step < 199


# -- what is never touched ------------------------------------------------------------------------------------------


def test_a_topic_made_again_under_the_same_name_keeps_its_files_I12(place):
    make(place.open())
    place.delete()
    again = make(place.open())
    place.clock.sleep(2 * GRACE_S)
    place.finish()
    assert place.folders() == {again}
    assert [record["n"] for record in client_of(place.open()).reader("t", end="latest")] == [1]


def test_another_namespace_in_the_same_root_keeps_its_files_I12(place):
    theirs = MemoryServer(place.clock)
    uuid, other = make(place.open()), make(place.open(theirs))
    place.delete()
    place.clock.sleep(2 * GRACE_S)
    place.finish()
    assert (uuid in place.folders(), place.folders()) == (False, {other})
    assert [record["n"] for record in client_of(place.open(theirs)).reader("t", end="latest")] == [1]


def test_a_uuid_that_a_topic_has_is_left_alone_even_if_it_is_condemned_I12(place):
    uuid = make(place.open())
    place.open().metadata.transact([Create(CondemnedKey(uuid), Deleted(uuid, 0))])
    place.clock.sleep(2 * GRACE_S)
    assert place.finish() == []
    assert len(files(place.open().storage, uuid)) == 1


@pytest.mark.parametrize("name", ["..", "", "outboxes", "a/b"])
def test_a_condemned_node_whose_name_is_no_uuid_deletes_nothing(place, name):
    uuid = make(place.open())
    (place.root / "outboxes").mkdir()
    (place.root / "outboxes" / "entity").touch()
    place.open().metadata.transact([Create(CondemnedKey(name), Deleted(name, 0))])
    place.clock.sleep(2 * GRACE_S)
    assert place.finish() == []
    assert place.folders() == {uuid, "outboxes"}
    assert (place.root / "outboxes" / "entity").exists()


def test_nothing_is_deleted_in_a_root_without_its_marker_I12(place):
    uuid = make(place.open())
    topics.delete_topic(place.open().metadata, "t")
    place.open().storage.delete(place.open().storage.marker)
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        place.finish()
    assert place.folders() == {uuid}


def test_a_topic_of_which_only_nodes_are_left_is_purged(place):
    uuid = make(place.open())
    metadata = place.open().metadata
    metadata.transact([Create(CondemnedKey(uuid), Deleted(uuid, 0)), Delete(HeadKey(uuid))])
    place.clock.sleep(2 * GRACE_S)
    place.finish()
    assert metadata.read(RootKey(uuid)) is None


# -- real ones ------------------------------------------------------------------------------------------------------


def test_on_s3_and_zookeeper_too(namespace, s3_root):
    with LedgerClient(namespace, s3_root) as client:
        here = namespace_of(client)
        uuid, other = make(here), make(here, "other")
        kept = files(here.storage, other)
        late = here.log("t")
        late.view()
        client.delete_topic("t")
        assert files(here.storage, uuid) == []
        stage(late, 666)
        assert [(done.uuid, done.files, done.is_over) for done in condemned.finish(here)] == [(uuid, 1, False)]
        stage(late, 667)
        here.limits = replace(LIMITS, gc_grace_ms=0)
        assert [(done.files, done.is_over) for done in condemned.finish(here)] == [(1, True)]
        assert (condemned.finish(here), files(here.storage, uuid), files(here.storage, other)) == ([], [], kept)
        assert here.storage.folders("") == [other]
