"""Whoever begins to need old records sets the retention guard in the same transaction, at the version that was read
before the head: so it cannot miss that old ledgers were given up meanwhile (I15)."""

from __future__ import annotations

import pytest

from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import RetentionKey
from tests.support.worlds import World, append


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path)
    append(world.log(), 1, 2, 3)
    return world


def version(world: World) -> int:
    return world.metadata().read(RetentionKey(world.topic.uuid)).version


def rival_before_transaction(log: Log, number: int, rival) -> None:
    """Calls somebody else right before a transaction, counted from 1."""
    transact, count = log.metadata.transact, 0

    def later(ops):
        nonlocal count
        count += 1
        if count == number:
            rival()
        transact(ops)

    log.metadata.transact = later


def give_up_ledgers(world: World):
    """What trimming does to the guard."""
    log = world.log()
    return lambda: log.metadata.transact([log.retention_guard()])


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_new_subscription_sets_the_guard(world, start):
    CursorNode(world.log(), "s").ensure(start)
    assert version(world) == 1


def test_a_reset_sets_the_guard_and_what_only_moves_forward_does_not(world):
    CursorNode(world.log(), "s").ensure("earliest")
    CursorHandle(world.log(), "s").skip(2)
    assert version(world) == 1
    CursorHandle(world.log(), "s").reset("earliest")
    assert version(world) == 2


def test_a_new_subscription_looks_again_if_ledgers_were_given_up_meanwhile(world):
    log = world.log()
    log.ensure_part("subscriptions")
    looks = []
    refresh = log.refresh
    log.refresh = lambda **how: looks.append(how) or refresh(**how)
    CursorNode(log, "s").ensure("earliest")
    once = len(looks)
    CursorHandle(world.log(), "s").delete()
    looks.clear()
    rival_before_transaction(log, 1, give_up_ledgers(world))
    CursorNode(log, "s").ensure("earliest")
    assert len(looks) == once + 1
    assert version(world) == 3


def test_a_reset_looks_again_if_ledgers_were_given_up_meanwhile(world):
    log = world.log()
    CursorNode(log, "s").ensure("earliest")
    rival_before_transaction(log, 2, give_up_ledgers(world))  # the first one flags the cursor
    assert str(CursorHandle(log, "s").reset("latest").position) == "0:1:0"
    assert version(world) == 3


def given_up_before_the_guard_is_read(world: World, log: Log) -> None:
    """A record comes, and old ledgers go: who has read the head before the guard has not seen it."""
    read = log.metadata.read

    def looked(key, *more):
        if isinstance(key, RetentionKey):
            log.metadata.read = read
            append(world.log(), 4)
            give_up_ledgers(world)()
        return read(key, *more)

    log.metadata.read = looked


def test_a_new_subscription_reads_the_guard_before_the_head_I15(world):
    log = world.log()
    given_up_before_the_guard_is_read(world, log)
    assert CursorNode(log, "s").ensure("latest").mark_delete == world.log().view().head.end


def test_a_reset_reads_the_guard_before_the_head_I15(world):
    log = world.log()
    CursorNode(log, "s").ensure("earliest")
    given_up_before_the_guard_is_read(world, log)
    assert CursorHandle(log, "s").reset("latest").position == world.log().view().head.end
