"""The disk is full, or answers with an error, at any call of any operation: the caller is told so with the name of a
file, nothing is half done, and the same call works when the disk does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyspark_ledger.errors import Unavailable
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.metadata.port import CommitKey, DedupKey, HeadKey, Key, LedgerKey, TipKey
from pyspark_ledger.metadata.records import Head
from pyspark_ledger.testing.disk import StorageFault, StorageFaults
from tests.support.everything import CHANGING, OPERATIONS, READING, Everything


@pytest.fixture(scope="module")
def world() -> Everything:
    return Everything()


@pytest.fixture(autouse=True)
def as_it_was(world) -> None:
    world.restore()


@pytest.fixture(scope="module")
def calls(world) -> dict[str, tuple[object, int]]:
    """What every operation answers on a disk that works, and how many calls that takes."""
    found = {}
    for operation in OPERATIONS:
        world.restore()
        faults = StorageFaults()
        found[operation] = world.run(operation, faults), faults.calls
    return found


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
    right, steps = calls[operation]
    for step in range(steps):
        world.restore()
        nodes, (_, files) = world.nodes(), world.state()
        faults = StorageFaults(seed=step)
        faults.next(*[None] * step, fault)
        answer, said = told(world, operation, faults)
        if not said:
            assert answer == right, step  # it needed no space, or could do without
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
    right, steps = calls[operation]
    for step in range(0, steps, 1 + steps // 20):
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
    right, steps = calls[operation]
    for step in range(0, steps, 1 + steps // 20):
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
    for step in range(calls[operation][1]):
        world.restore()
        nodes = world.nodes()
        if fails(world, operation, step, fault) and world.nodes() == nodes:
            failing.append(step)
    world.restore()
    for step in failing:
        assert fails(world, operation, step, fault), step
    world.run(operation)
    assert (left_after_gc(world), len(world.disk.folders())) == (expected, folders)
