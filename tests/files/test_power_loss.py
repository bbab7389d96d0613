"""The power is cut at any moment: what a caller was told is durable is there, whole; a replaced file is the old or the
new one. LocalStorage runs as it is; the file systems that it runs on are all that POSIX allows. Then the same for every
operation of the log, on the disk in memory: whatever ZooKeeper names is there."""

from __future__ import annotations

import os
from random import Random

import pytest

from pyspark_ledger.files import storage as module
from pyspark_ledger.files.storage import LocalStorage
from pyspark_ledger.testing.disk import Disk
from pyspark_ledger.testing.memory import Crash
from tests.support.everything import CHANGING, READING, Everything
from tests.support.powercut import PowerCut

LONG = bytes(range(1, 101))


@pytest.fixture
def power(tmp_path, monkeypatch) -> PowerCut:
    return PowerCut(tmp_path, monkeypatch)


def opened(tmp_path) -> LocalStorage:
    """As a process opens it that has just been started."""
    return LocalStorage((tmp_path / "root").as_uri(), "marker")


def write(storage: LocalStorage, power: PowerCut, path: str, *parts: bytes) -> None:
    sink = storage.create(path)
    for part in parts:
        sink.write(part)
    sink.close()
    power.promise(f"root/{path}", b"".join(parts))


def replace(storage: LocalStorage, power: PowerCut, path: str, old: bytes | None, new: bytes) -> None:
    power.promise(f"root/{path}", old, new)
    storage.replace(path, new, f"{path}-temporary")
    power.promise(f"root/{path}", new)


def begin(storage: LocalStorage, power: PowerCut) -> None:
    storage.make_folder("")
    power.promise_folder("root")
    replace(storage, power, "marker", None, b"")
    storage.make_folder("topic")
    power.promise_folder("root/topic")


def test_a_file_is_durable_when_it_is_closed_I1(tmp_path, power):
    storage = opened(tmp_path)
    begin(storage, power)
    write(storage, power, "topic/00000000/first", LONG, b"more")
    write(storage, power, "topic/00000000/second", LONG)
    write(storage, power, "topic/tokens/group/0000000001/third", b"x")
    assert power.broken() == []


def test_two_files_that_are_written_side_by_side_do_not_hide_each_other_I1(tmp_path, power):
    storage = opened(tmp_path)
    begin(storage, power)
    first = storage.create("topic/00000000/first")
    first.write(LONG)
    write(storage, power, "topic/00000000/second", LONG)  # syncs the folder, and so the name of the first
    first.write(LONG)
    first.close()
    power.promise("root/topic/00000000/first", LONG + LONG)
    assert power.broken() == []


def test_a_long_file_is_durable_when_it_is_closed_I1(tmp_path, power, monkeypatch):
    monkeypatch.setattr(module._LocalSink, "SYNC_EVERY_BYTES", 100)
    storage = opened(tmp_path)
    begin(storage, power)
    write(storage, power, "topic/00000000/long", *[LONG] * 6)
    assert power.broken() == []


def test_a_replaced_file_is_the_old_or_the_new_one_I1(tmp_path, power):
    storage = opened(tmp_path)
    begin(storage, power)
    replace(storage, power, "topic/state", None, LONG)
    replace(storage, power, "topic/state", LONG, b"new")
    assert power.broken() == []


def test_a_deleted_file_is_gone_or_whole_and_its_neighbours_are_there_I12(tmp_path, power):
    storage = opened(tmp_path)
    begin(storage, power)
    for name in ("first", "second"):
        write(storage, power, f"topic/00000000/{name}", LONG)
    power.promise("root/topic/00000000/first", LONG, None)
    storage.delete("topic/00000000/first")
    write(storage, power, "topic/00000000/third", LONG)
    power.promise("root/topic/00000000/first", None)  # the folder was synced since
    assert power.broken() == []


@pytest.mark.parametrize("made", ["root", "root/topic", "root/topic/00000000"])
def test_folders_that_another_process_made_and_did_not_sync_are_synced_I1(tmp_path, power, made):
    """It died between making one and syncing it."""
    folder = tmp_path
    for name in made.split("/"):
        folder = folder / name
        os.mkdir(folder)
    storage = opened(tmp_path)
    begin(storage, power)
    write(storage, power, "topic/00000000/file", LONG)
    assert power.broken() == []


def test_a_file_is_durable_in_a_process_that_only_found_its_folders_I1(tmp_path, power):
    begin(opened(tmp_path), power)
    os.mkdir(tmp_path / "root/topic/00000000")
    for name in ("first", "second"):
        write(opened(tmp_path), power, f"topic/00000000/{name}", LONG)
    assert power.broken() == []


# -- what would be found if something were left out ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("left_out", "lost"),
    [
        ("_make_durable", "root/topic/00000000/file"),  # of files, and of folders
        ("_make_folder_durable", "root/topic"),
    ],
)
def test_a_sync_that_is_left_out_would_be_found(tmp_path, power, monkeypatch, left_out, lost):
    monkeypatch.setattr(module, left_out, lambda _: None)
    storage = opened(tmp_path)
    begin(storage, power)
    write(storage, power, "topic/00000000/file", LONG)
    assert [broken for broken in power.broken() if f"{lost} is" in broken]


def test_a_rename_before_the_content_is_durable_would_be_found(tmp_path, power, monkeypatch):
    """The new name with a part of the content: what syncing first is for."""
    storage = opened(tmp_path)
    begin(storage, power)
    replace(storage, power, "topic/state", None, LONG)
    monkeypatch.setattr(module._LocalSink, "close", module._LocalSink.abandon)
    replace(storage, power, "topic/state", LONG, b"new content")
    assert [broken for broken in power.broken() if "root/topic/state is b'new c'" in broken]


# -- every operation of the log ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world() -> Everything:
    return Everything()


class PowerGoes:
    """At one call of an operation, and with it the process."""

    def __init__(self, disk: Disk, at: int, seed: int = 0) -> None:
        self._disk, self._at, self._random = disk, at, Random(seed)
        self.calls = 0

    def __call__(self, _: str) -> None:
        self.calls += 1
        if self.calls == self._at:
            self._disk.power_loss(self._random)
            raise Crash("the power is gone")


@pytest.mark.parametrize("operation", CHANGING)
def test_after_a_power_cut_an_operation_is_done_or_not_and_all_that_is_named_is_there_I1_I12(world, operation):
    world.restore()
    before = readings(world)
    counted = PowerGoes(world.disk, at=0)
    right = world.run(operation, on_call=counted)
    told = readings(world)
    world.disk.power_loss(Random(operation))  # it has returned: nothing of it may be lost
    after = readings(world)
    assert after == told
    for step in range(1, counted.calls + 1, 1 + counted.calls // 10):
        world.restore()
        with pytest.raises(Crash):
            world.run(operation, on_call=PowerGoes(world.disk, step, seed=step))
        found = readings(world)
        assert found in (before, after), step
        if found != after:
            assert world.run(operation) == right, step


def readings(world: Everything) -> dict[str, object]:
    """Whatever can be read; and that all files that are named are there."""
    assert {path for paths in world.kinds().values() for path in paths} <= set(world.disk.files())
    return {operation: world.run(operation) for operation in READING}
