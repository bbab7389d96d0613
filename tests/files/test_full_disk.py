"""The disk is full, or answers with an error, at any call of any operation: the caller is told so with the name of a
file, nothing is half done, and the same call works when the disk does."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import Any

import pytest

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.errors import CorruptData, Unavailable
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log import root
from pyspark_ledger.metadata.port import CommitKey, DedupKey, HeadKey, Key, LedgerKey, TipKey
from pyspark_ledger.metadata.records import Head
from pyspark_ledger.testing.disk import FILLING, Disk, MemoryStorage, StorageFault, StorageFaults
from pyspark_ledger.testing.disk import READING as READING_CALLS
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support.everything import CHANGING, OPERATIONS, READING, ROOMY, Everything


@pytest.fixture(scope="module")
def world() -> Everything:
    return Everything()


@pytest.fixture(autouse=True)
def as_it_was(world) -> None:
    world.restore()


class Recorded(StorageFaults):
    """No faults; and which calls there were."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def of_call(self, call: str) -> StorageFault | None:
        self.names.append(call)
        return super().of_call(call)


@pytest.fixture(scope="module")
def calls(world) -> dict[str, tuple[object, list[str]]]:
    """What every operation answers on a disk that works, and which calls that takes."""
    found = {}
    for operation in OPERATIONS:
        world.restore()
        faults = Recorded()
        found[operation] = world.run(operation, faults), faults.names
    return found


def steps(names: list[str], fault: StorageFault) -> list[int]:
    """Of these calls, those that can fail so; of those that only read, which are many, some."""
    if fault == "full":
        return [step for step, name in enumerate(names) if name in FILLING]
    return [step for step, name in enumerate(names) if name not in READING_CALLS or step % 7 == 0]


def told(world: Everything, operation: str, faults: StorageFaults) -> tuple[object, str]:
    """What it returned, or what it said."""
    try:
        return world.run(operation, faults), ""
    except Unavailable as error:
        return None, str(error)


def unsealed(nodes: dict[Key[Any], Any]) -> dict[Key[Any], Any]:
    """Without what a seal changes: whoever finds a full ledger seals it, and only then does what was asked."""
    (head,) = (record for record in nodes.values() if isinstance(record, Head) and record.name == "t")
    kinds = (LedgerKey, CommitKey, DedupKey, TipKey)
    return {key: record for key, record in nodes.items() if not isinstance(key, kinds) and record is not head} | {
        HeadKey(head.uuid): replace(
            head, ledger=0, ledger_first_commit=0, ledger_opened_ms=0, ledger_bytes=0, next_entry=0, index=(),
            last_change=b"",
        )
    }  # fmt: skip


@pytest.mark.parametrize("fault", ["full", "fails"])
@pytest.mark.parametrize("operation", CHANGING)
def test_a_call_that_fails_changes_nothing_and_works_the_next_time_I14_I16(world, calls, operation, fault):
    right, names = calls[operation]
    for step in steps(names, fault):
        world.restore()
        nodes, (_, files) = world.nodes(), world.state()
        faults = StorageFaults(seed=step)
        faults.next(*[None] * step, fault)
        answer, said = told(world, operation, faults)
        if not said:
            assert answer == right, step  # it could do without
            continue
        assert said.startswith("[LEDGER_STORAGE_UNAVAILABLE] cannot "), step
        assert "memory://disk/" in said
        assert unsealed(world.nodes()) == unsealed(nodes), (step, said)
        if operation != "collect":  # which has deleted some of what nothing names
            assert files.items() <= world.state()[1].items(), (step, said)
        assert world.run(operation) == right, (step, said)


@pytest.mark.parametrize("operation", CHANGING)
def test_a_disk_that_dies_half_way_changes_nothing_however_much_fails_after_that_I14_I16(world, calls, operation):
    """Nothing works any more from some call on, not even what cleans up."""
    right, names = calls[operation]
    for step in range(0, len(names), 1 + len(names) // 20):
        world.restore()
        nodes = world.nodes()
        faults = StorageFaults(step, fails=1.0, read_fails=1.0)
        faults.next(*[None] * step)
        answer, said = told(world, operation, faults)
        assert said.startswith("[LEDGER_STORAGE_UNAVAILABLE] cannot ") or answer == right, step
        if said:
            assert unsealed(world.nodes()) == unsealed(nodes), (step, said)
            assert world.run(operation) == right, (step, said)


@pytest.mark.parametrize("operation", READING)
def test_a_read_that_fails_says_so_and_works_the_next_time_I16(world, calls, operation):
    right, names = calls[operation]
    for step in range(0, len(names), 1 + len(names) // 20):
        faults = StorageFaults()
        faults.next(*[None] * step, "fails")
        _, said = told(world, operation, faults)
        assert said.startswith("[LEDGER_STORAGE_UNAVAILABLE] cannot read memory://disk/"), step
        assert world.run(operation, faults) == right


@pytest.mark.parametrize("operation", OPERATIONS)
def test_on_a_disk_that_stays_full_what_needs_no_space_works_and_the_rest_when_it_is_freed_I16(world, calls, operation):
    faults = StorageFaults()
    faults.full_until_freed = True
    answer, said = told(world, operation, faults)
    if operation in (*READING, "collect", "subscribe", "acknowledge", "reset"):
        assert answer == calls[operation][0]
        return
    assert "No space left on device; make room there, then try again" in said
    faults.full_until_freed = False
    assert world.run(operation, faults) == calls[operation][0]


def left_after_gc(world: Everything) -> int:
    """How many files there are when gc has found nothing more to delete."""
    with world.process() as log:
        while gc.collect(log).files or gc.collect(log).files or gc.collect(log).files:
            pass
    return len(world.disk.files())


def fails(world: Everything, operation: str, step: int, fault: StorageFault) -> bool:
    faults = StorageFaults(seed=step)
    faults.next(*[None] * step, fault)
    return bool(told(world, operation, faults)[1])


@pytest.mark.parametrize("fault", ["full", "fails"])
@pytest.mark.parametrize("operation", CHANGING)
def test_what_failed_calls_leave_behind_goes_I12(world, calls, operation, fault):
    """As many files and folders are left as where nothing failed."""
    world.run(operation)
    expected, folders = left_after_gc(world), len(world.disk.folders())
    failing = []
    for step in steps(calls[operation][1], fault):
        world.restore()
        nodes = world.nodes()
        if fails(world, operation, step, fault) and world.nodes() == nodes:
            failing.append(step)
    world.restore()
    for step in failing:
        assert fails(world, operation, step, fault), step
    world.run(operation)
    assert (left_after_gc(world), len(world.disk.folders())) == (expected, folders)


# -- who goes on after that ----------------------------------------------------------------------------------------


class FullOnce(StorageFaults):
    """The disk is full once, after so many calls more that need space."""

    room = -1  # it has all that it wants

    def of_call(self, call: str) -> StorageFault | None:
        fault = super().of_call(call)
        if call not in FILLING or self.room < 0:
            return fault
        self.room -= 1
        return fault if self.room >= 0 else "full"


def test_a_producer_keeps_what_waits_and_writes_it_once_when_there_is_room_I1_I5(world):
    faults = FullOnce()
    with world.process(ROOMY, faults) as log:  # who does not seal writes nothing but its own file
        producer = Producer(log, name="web")
        receipts = [producer.send({"who": "web", "seq": number, "note": "produced"}) for number in range(3)]
        for room in range(3):  # create, and two writes
            faults.room = room
            with pytest.raises(Unavailable, match="make room there"):
                producer.flush()
            assert not receipts[0].done()
        producer.close()
    seen = [value["seq"] for _, value, _ in world.run("read") if value["note"] == "produced"]
    assert seen == [0, 1, 2]


def test_a_consumer_whose_read_fails_leaves_nothing_out_I7(world):
    got = []
    faults = StorageFaults()
    with world.process(faults=faults) as log:
        consumer = Consumer(log, "new")
        for step in range(0, 150, 10):
            faults.next(*[None] * step, "fails")
            with pytest.raises(Unavailable, match="cannot read"):
                consumer.receive(timeout_s=0)
        while (message := consumer.receive(timeout_s=0)) is not None:
            got.append(str(message.position))
            consumer.acknowledge(message)
    assert got == [position for position, _, _ in world.run("read")]


def test_damage_is_told_and_not_that_cleaning_up_failed_too_I14(world, monkeypatch):
    """A compaction that has begun to write meets a damaged entry, and its own files cannot be deleted."""
    monkeypatch.setattr("pyspark_ledger.compaction.writer.BATCH_ROWS", 1)
    path = world.kinds()["entry"][-1]
    damaged = world.disk.content(path).replace(b"n23", b"n24", 1)  # in a column that only copying reads
    world.disk.put(path, damaged)
    seen = Recorded()
    with pytest.raises(CorruptData, match=path):
        world.run("compact", seen)
    faults = StorageFaults(fails=1.0)
    faults.next(*[None] * seen.names.index("delete"))
    with pytest.raises(CorruptData, match=path):
        world.run("compact", faults)


def test_a_namespace_is_made_on_a_disk_that_fails_at_any_call_and_leaves_nothing_else_I16(monkeypatch):
    for step, fault in itertools.product(range(15), ("full", "fails")):
        disk, metadata, faults = Disk(), MemoryMetadata(MemoryServer()), StorageFaults(step)
        storage = MemoryStorage(disk, faults)
        monkeypatch.setattr(root, "open_storage", lambda *_, storage=storage: storage)
        faults.next(*[None] * step, fault)
        with contextlib.suppress(Unavailable):
            root.open_root(metadata, "memory://disk")
        root.open_root(metadata, "memory://disk")
        assert [path.startswith("ledger-namespace-") for path in disk.files()] == [True], (step, fault)
