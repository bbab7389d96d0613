"""Snapshots of a log in storage: who seals leaves one, gc leaves one before it deletes, and they show a rollback."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.base import names
from pyspark_ledger.errors import CorruptData, DataLoss, Unavailable
from pyspark_ledger.files.storage import Storage, open_storage
from pyspark_ledger.lifecycle import gc, repair, rewriting
from pyspark_ledger.log import snapshots
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import DedupKey
from pyspark_ledger.metadata.records import FileRef
from tests.support.rollback import restore, snapshot
from tests.support.worlds import EAGER, World, append

set_back = pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*rolled back")


def marked(folder: Path) -> Storage:
    """A root with the marker of a namespace."""
    marker = names.marker_file(b"n" * 16)
    (folder / marker).touch()
    return open_storage(str(folder), marker)


@pytest.fixture
def world(tmp_path) -> World:
    return World(marked(tmp_path), EAGER)


def fill(log: Log, *numbers: int) -> None:
    for number in numbers:
        append(log, number)


def newest(world: World) -> snapshots.LogSnapshot:
    return snapshots.read(world.storage, snapshots.listed(world.storage, world.topic.uuid)[-1])


def test_a_seal_leaves_the_log_as_it_is_then(world):
    log = world.log()
    fill(log, *range(5))  # four commits are a ledger
    left, view = newest(world), log.refresh(sync=True)
    assert left.topic == world.topic
    assert (left.head.ledger, left.head.next_commit, left.commits) == (1, 4, ())
    assert left.head.index == view.head.index
    assert left.dedup.next_commit == 4
    assert [schema.id for schema in left.schemas] == [0]


def test_open_commits_and_all_schemas_are_in_it(world):
    log = world.log()
    fill(log, *range(6))
    taken = snapshots.take(world.log())
    found = snapshots.read(world.storage, snapshots.write(world.storage, taken, world.clock))
    assert found == taken
    assert found.commits == log.refresh(sync=True).open_commits
    assert [commit.number for commit in found.commits] == [4, 5]


def test_a_seal_while_it_is_taken_does_not_mix_two_states_I5(world):
    """The ledger is sealed after the head was read, and before the producers are."""
    log, rival = world.log(), world.log()
    fill(rival, *range(4))
    read_many, once = log.metadata.read_many, iter([True])

    def after_a_seal(keys):
        if any(isinstance(key, DedupKey) for key in keys) and next(once, False):
            append(rival, 4)
        return read_many(keys)

    log.metadata.read_many = after_a_seal
    taken = snapshots.take(log)
    assert (taken.dedup.next_commit, taken.head.next_commit) == (4, 5)


def test_only_the_newest_are_kept(world):
    fill(world.log(), *range(4 * 10 + 1))
    there = snapshots.listed(world.storage, world.topic.uuid)
    assert [each.next_commit for each in there] == [28, 32, 36, 40]


def test_what_the_newest_one_names_is_never_deleted_I12(world):
    """Rewriting replaces leaves and nodes; after two epochs gc deletes the old ones."""
    log = world.log()
    fill(log, *range(13))
    rewriting.rewrite(log, below_bytes=1 << 30)
    before = world.files()
    for _ in range(4):
        gc.collect(log)
    assert before - world.files(), "gc had nothing to delete"
    head = newest(world).head
    assert head.index == log.refresh(sync=True).head.index
    assert {_path(world, file) for file in head.index} <= world.files()


def _path(world: World, file: FileRef) -> str:
    return names.staged_file(world.topic.uuid, file.epoch, file.uid)


def test_a_dry_run_of_gc_leaves_nothing(world):
    log = world.log()
    fill(log, *range(5))
    there = snapshots.listed(world.storage, world.topic.uuid)
    gc.collect(log, dry_run=True)
    assert snapshots.listed(world.storage, world.topic.uuid) == there


def lose_a_ledger(world: World) -> None:
    """Two processes have gone when ZooKeeper is rolled back, so nobody remembers what was lost."""
    log = world.log()
    append(log, 0)
    backup = snapshot(world.server)
    fill(log, *range(1, 6))
    restore(world.server, backup)


def test_gc_notices_a_rollback_that_no_process_has_survived_I18(world):
    lose_a_ledger(world)
    files = world.files()
    with set_back:
        gc.collect(world.log())
    with set_back:
        append(world.log(), 7)
    assert world.files() >= files


def test_a_dry_run_of_gc_notices_it_and_changes_nothing_I18(world):
    lose_a_ledger(world)
    with set_back:
        gc.collect(world.log(), dry_run=True)
    assert world.log().view().head.set_back is None


def test_a_writer_notices_it_with_the_next_seal_I18(world):
    """Until then it cannot know. What the lost history has left in storage stays."""
    lose_a_ledger(world)
    there = snapshots.listed(world.storage, world.topic.uuid)
    with set_back:
        fill(world.log(), *range(10, 20))
    assert snapshots.listed(world.storage, world.topic.uuid) == there


def test_after_a_repair_what_was_lost_is_no_reason_to_refuse_I16(world):
    lose_a_ledger(world)
    with set_back:
        gc.collect(world.log())
    repair.accept_loss(world.log())
    log = world.log()
    fill(log, *range(10, 20))
    gc.collect(log)
    assert world.read() == [0, *range(10, 20)]
    assert newest(world).head.next_commit > 1_000


def test_after_a_repair_that_could_leave_none_what_was_lost_is_no_reason_to_refuse_either_I16(world, monkeypatch):
    """Then the newest one is still from before, and has the commits that were given up."""

    def no_room(*_: object) -> None:
        raise Unavailable("the disk is full", "LEDGER_STORAGE_UNAVAILABLE")

    lose_a_ledger(world)
    with set_back:
        gc.collect(world.log())
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "write", no_room)
        repair.accept_loss(world.log())
    gc.collect(world.log())
    append(world.log(), 10)
    assert world.read() == [0, 10]


def test_a_damaged_one_is_recognised(world):
    fill(world.log(), *range(9))
    there = snapshots.listed(world.storage, world.topic.uuid)
    file = Path(world.storage.where(there[-1].path).removeprefix("file://"))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CorruptData, match=f"{file.name} is damaged"):
        snapshots.read(world.storage, there[-1])
    assert snapshots.read(world.storage, there[-2]).head.next_commit == 4


def test_a_disk_without_room_for_it_stops_no_writer_I14(world, monkeypatch, caplog):
    def no_room(*_: object) -> None:
        raise Unavailable("the disk is full", "LEDGER_STORAGE_UNAVAILABLE")

    monkeypatch.setattr(snapshots, "write", no_room)
    fill(world.log(), *range(9))
    assert world.read() == list(range(9))
    assert "no snapshot of its log was left in storage" in caplog.text
