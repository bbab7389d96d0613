"""The disk in memory fails as disks do: what was told durable survives, and what was not may be found in any state."""

from __future__ import annotations

import random

import pytest

from pyspark_ledger.errors import CorruptData, Unavailable
from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.testing.disk import Disk, MemoryStorage, StorageFaults
from pyspark_ledger.testing.memory import Crash
from tests.support.worlds import World, append

LONG = bytes(range(1, 100))


@pytest.fixture
def disk() -> Disk:
    disk = Disk()
    storage = MemoryStorage(disk)
    for folder in ("", "topic"):
        storage.make_folder(folder)
    return disk


def found(disk: Disk, path: str) -> bytes | None:
    return disk.content(path) if path in disk.files() else None


def after_power_loss(happens, tries: int = 200) -> set[bytes | None]:
    """What may be left of topic/file."""
    left = set()
    for seed in range(tries):
        disk = Disk()
        storage = MemoryStorage(disk, StorageFaults(seed))
        storage.make_folder("")
        storage.make_folder("topic")
        happens(storage)
        disk.power_loss(random.Random(seed))
        left.add(found(disk, "topic/file"))
    return left


# -- power loss ----------------------------------------------------------------------------------------------------


def test_what_was_closed_survives_I1():
    assert after_power_loss(lambda storage: storage.write("topic/file", LONG)) == {LONG}


def test_what_was_not_closed_is_lost_cut_or_torn():
    def half_way(storage: MemoryStorage) -> None:
        storage.create("topic/file").write(LONG)

    left = after_power_loss(half_way)
    assert {None, b"", LONG} <= left
    assert any(data and LONG.startswith(data) and data != LONG for data in left)
    assert any(data and len(data) == len(LONG) and 0 in data for data in left)


def test_when_the_whole_disk_was_synced_it_stays_as_it_is():
    def synced(storage: MemoryStorage) -> None:
        storage.create("topic/file").write(LONG)
        storage._disk.sync()

    def deleted(storage: MemoryStorage) -> None:
        storage.write("topic/file", LONG)
        storage.delete("topic/file")
        storage._disk.sync()

    assert after_power_loss(synced) == {LONG}
    assert after_power_loss(deleted) == {None}


def test_what_another_file_of_the_folder_synced_is_a_name_and_no_content():
    def half_way(storage: MemoryStorage) -> None:
        storage.create("topic/file").write(LONG)
        storage.write("topic/other", b"x")

    left = after_power_loss(half_way)
    assert None not in left
    assert b"" in left


def test_a_close_that_failed_promises_nothing():
    def fails(storage: MemoryStorage) -> None:
        sink = storage.create("topic/file")
        sink.write(LONG)
        storage._faults.next("fails")
        with pytest.raises(Unavailable, match="Input/output error"):
            sink.close()

    assert {None, b"", LONG} <= after_power_loss(fails)


def test_a_replaced_file_is_the_old_or_the_new_one_I1():
    def replaced(storage: MemoryStorage) -> None:
        storage.replace("topic/file", b"old", "topic/temporary")
        storage._faults.next(None, None, None, "fails")  # create, write, close, replace
        with pytest.raises(Unavailable):
            storage.replace("topic/file", b"new", "topic/temporary")

    assert after_power_loss(replaced) == {b"old", b"new"}


def test_a_deleted_file_may_come_back():
    def deleted(storage: MemoryStorage) -> None:
        storage.write("topic/file", LONG)
        storage.delete("topic/file")

    def and_synced(storage: MemoryStorage) -> None:
        deleted(storage)
        storage.write("topic/other", b"x")

    assert after_power_loss(deleted) == {None, LONG}
    assert after_power_loss(and_synced) == {None}


def test_a_folder_that_was_not_made_durable_may_be_gone():
    left = set()
    for seed in range(100):
        disk, faults = Disk(), StorageFaults(seed)
        storage = MemoryStorage(disk, faults)
        storage.make_folder("")
        faults.next("fails")
        with pytest.raises(Unavailable):
            storage.make_folder("new")
        made = disk.has_folder("new")
        disk.power_loss(faults.random)
        left.add((made, disk.has_folder("new")))
    assert left == {(False, False), (True, False), (True, True)}


def test_processes_die_with_the_power(disk):
    storage = MemoryStorage(disk)
    sink = storage.create("topic/file")
    disk.power_loss(random.Random(1))
    for call in (lambda: sink.write(b"x"), sink.close, lambda: list(storage.list(""))):
        with pytest.raises(Crash):
            call()
    sink.abandon()
    assert MemoryStorage(disk).has_folder("topic")


# -- full and failing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["full", "fails"])
@pytest.mark.parametrize("at", range(3))
def test_each_step_of_a_write_can_fail_and_a_part_stays_behind_I16(disk, fault, at):
    faults = StorageFaults(seed=at)
    faults.next(*[None] * at, fault)
    storage = MemoryStorage(disk, faults)
    said = "No space left on device; make room" if fault == "full" else "Input/output error; see to the disk"
    with pytest.raises(Unavailable, match=rf"LEDGER_STORAGE_UNAVAILABLE.*topic/00000000/file: {said}"):
        storage.write("topic/00000000/file", LONG)
    assert LONG.startswith(found(disk, "topic/00000000/file") or b"")
    storage.write("topic/00000000/another", LONG)


@pytest.mark.parametrize("call", ["size", "map", "list", "delete"])
def test_what_only_looks_fails_too_but_is_never_full_I16(disk, call):
    faults = StorageFaults()
    storage = MemoryStorage(disk, faults)
    storage.write("topic/file", b"x")
    look = getattr(storage, call)
    faults.next("fails")
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_UNAVAILABLE"):
        list(look("topic")) if call == "list" else look("topic/file")
    faults.full_until_freed = True
    list(look("topic")) if call == "list" else look("topic/file")


def test_a_disk_stays_full_until_it_is_freed(disk):
    faults = StorageFaults()
    faults.full_until_freed = True
    storage = MemoryStorage(disk, faults)
    for number in range(3):
        with pytest.raises(Unavailable, match="make room there"):
            storage.write(f"topic/{number}", b"x")
    faults.full_until_freed = False
    storage.write("topic/3", b"x")


def test_the_same_seed_fails_in_the_same_way():
    def history(seed: int) -> tuple[list[str], list[str]]:
        disk = Disk()
        MemoryStorage(disk).make_folder("")
        storage = MemoryStorage(disk, StorageFaults(seed, full=0.2, fails=0.2, read_fails=0.2))
        told = []
        for number in range(50):
            try:
                storage.write(f"{number}", LONG)
                storage.size(f"{number}")
            except Unavailable as error:
                told.append(str(error))
        disk.power_loss(random.Random(seed))
        return told, [disk.content(path).hex() for path in disk.files()]

    assert history(7) == history(7) != history(8)
    assert {"No space", "Input/output"} == {
        said for text in history(7)[0] for said in ("No space", "Input/output") if said in text
    }


# -- who looks on ----------------------------------------------------------------------------------------------------


def test_every_operation_is_announced_before_it_happens(disk):
    storage, calls = MemoryStorage(disk), []
    storage.on_call = lambda call: calls.append((call, len(disk.files())))
    storage.write("topic/file", b"x")
    storage.read("topic/file", 0, 1)
    storage.delete("topic/file")
    assert calls == [("create", 0), ("write", 1), ("close", 1), ("read", 1), ("delete", 1)]


def test_a_process_that_died_does_nothing_more(disk):
    def dies(call: str) -> None:
        if call == "close":
            raise Crash("here")

    storage = MemoryStorage(disk)
    storage.on_call = dies
    with pytest.raises(Crash, match="here"):
        storage.write("topic/file", b"x")
    with pytest.raises(Crash, match="dead"):
        storage.delete("topic/file")
    assert not disk.is_durable("topic/file")
    assert MemoryStorage(disk).size("topic/file") == 1


def test_a_log_on_a_disk_in_memory_survives_a_power_cut_and_names_a_rotten_file_I1(disk):
    world = World(MemoryStorage(disk))
    log = world.log()
    for number in range(20):
        append(log, number)
    disk.power_loss(random.Random(1))
    world.storage = MemoryStorage(disk)
    assert world.read() == list(range(20))
    for path in disk.files():
        disk.tear(path, len(disk.content(path)) - 1)
    with pytest.raises(CorruptData, match=r"memory://disk/.*restore it from a copy"):
        world.read()


def test_tasks_open_it_by_its_uri_while_it_is_mounted(disk):
    storage = MemoryStorage(disk, uri="memory://here")
    with storage.mounted():
        assert open_storage("memory://here") is storage
