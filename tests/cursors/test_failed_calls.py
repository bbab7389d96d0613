"""What calls that fail leave behind: nothing that lasts, and nobody is told what is not true (I14, I16)."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from pyspark_ledger.cursors.attachment import Attachment
from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import CorruptData, CursorUnderRevision, Fenced, InvalidInput, LedgerError
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import OwnerKey, ReviserKey
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults
from tests.support.flaky import Flaky, creates
from tests.support.said import said
from tests.support.worlds import SMALL, World, append


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path, clock=SeededClock())
    for number in range(5):
        append(world.log(), number)
    CursorNode(world.log(), "s").ensure("earliest")
    return world


def process(world: World, metadata) -> Log:
    return Log(metadata, world.storage, world.topic, limits=world.limits, clock=world.clock)


def outside(world: World) -> CursorHandle:
    return CursorHandle(world.log(), "s")


# -- a reset that never happened -----------------------------------------------------------------------------------


@pytest.mark.parametrize("has_finished", [True, False], ids=["a usurper that has finished", "one that has not"])
def test_a_resetter_that_was_thought_dead_is_told_that_its_reset_was_not_made_I6_I14(world, has_finished):
    metadata = world.metadata()
    paused = process(world, metadata)
    controller = RevisionController(CursorNode(paused, "s"))
    controller.start_revision()

    def edit(cursor):
        metadata.expire()  # a pause for longer than the session, in the middle of the revision
        if has_finished:
            outside(world).reset("latest")
        else:
            RevisionController(CursorNode(world.log(), "s")).start_revision()
        return cursor

    with pytest.raises(Fenced, match=r"taken over by another.*nothing was changed"):
        controller.end_revision(edit)
    if has_finished:
        assert outside(world).stats().mark_delete == world.log().view().head.end
        assert outside(world).stats().revision == 1


def test_a_reset_is_told_what_it_did_even_if_another_one_came_right_after_it_I14(world):
    faults = Faults()
    metadata, rival = world.metadata(faults), outside(world)
    faults.next_transact(None, "applied_then_lost")  # flagged; then moved, and nobody is told
    sync = metadata.sync

    def come_first() -> None:
        if not rival.stats().revising_seconds and rival.stats().revision == 1:
            rival.reset("earliest")
        sync()

    metadata.sync = come_first
    moved = CursorHandle(process(world, metadata), "s").reset("latest")
    assert (moved.position, moved.revision) == (world.log().view().head.end, 1)
    assert (rival.stats().mark_delete.entry, rival.stats().revision) == (0, 2)


# -- flags that nobody clears --------------------------------------------------------------------------------------


def fail_in_the_middle(world: World) -> tuple[Flaky, CursorHandle]:
    """ZooKeeper does not answer from the moment on at which the flag is set; the session lives."""
    metadata = Flaky(world.server, clock=world.clock)
    metadata.down_after = creates(ReviserKey)
    handle = CursorHandle(process(world, metadata), "s")
    with pytest.raises(LedgerError):
        handle.reset("latest")
    assert outside(world).stats().revising_seconds is not None
    metadata.down = False
    return metadata, handle


def test_a_reset_that_failed_can_be_repeated_at_once_by_the_same_process_I16(world):
    _, handle = fail_in_the_middle(world)
    assert handle.reset("latest").revision == 1


def test_the_flag_of_a_reset_that_failed_is_cleared_in_the_background_I16(world):
    metadata, _ = fail_in_the_middle(world)
    with pytest.raises(CursorUnderRevision):
        outside(world).reset("latest")
    metadata.chores.run_all()
    assert outside(world).stats().revising_seconds is None
    assert outside(world).reset("latest").revision == 1


def test_the_flag_of_a_reset_that_never_learned_of_it_is_cleared_in_the_background_I16(world):
    faults = Faults()
    zookeeper = Flaky(world.server, faults, world.clock)
    zookeeper.down_after = creates(ReviserKey)
    faults.next_transact("applied_then_lost")
    with pytest.raises(LedgerError):
        CursorHandle(process(world, zookeeper), "s").reset("latest")
    assert outside(world).stats().revising_seconds is not None
    zookeeper.down = False
    zookeeper.chores.run_all()
    assert outside(world).stats().revising_seconds is None
    assert outside(world).reset("latest").revision == 1


def test_an_owner_that_could_not_say_goodbye_does_so_in_the_background_I16(world):
    metadata = Flaky(world.server, clock=world.clock)
    owner = Attachment(CursorNode(process(world, metadata), "s"))
    owner.attach()
    metadata.down = True
    owner.detach()
    assert outside(world).stats().owner
    metadata.down = False
    metadata.chores.run_all()
    assert outside(world).stats().owner == ""


def test_an_attachment_that_failed_leaves_no_owner_I16(world):
    metadata = Flaky(world.server, clock=world.clock)
    metadata.down_after = creates(OwnerKey)
    with pytest.raises(LedgerError):
        Attachment(CursorNode(process(world, metadata), "s")).attach()
    metadata.down = False
    metadata.chores.run_all()
    assert outside(world).stats().owner == ""


def test_a_consumer_whose_last_acknowledgements_cannot_be_written_lets_the_subscription_go_I16(tmp_path):
    world = World(tmp_path, limits=dataclasses.replace(SMALL, commits_per_ledger=1000, acks_bytes=20))
    append(world.log(), *range(100))
    with pytest.raises(InvalidInput, match="bytes of gaps"), Consumer(world.log(watch=True), "s") as consumer:
        for number in range(100):
            message = consumer.receive(1)
            if number % 2:
                consumer.acknowledge(message)
    assert outside(world).stats().owner == ""


def test_a_consumer_that_is_closed_while_zookeeper_is_away_lets_the_subscription_go_later_I16(world):
    metadata = Flaky(world.server, clock=world.clock)
    consumer = Consumer(process(world, metadata), "s")
    consumer.acknowledge(consumer.receive(0))
    metadata.down = True
    with pytest.raises(LedgerError):
        consumer.close()
    consumer.close()  # nothing is left to do
    metadata.down = False
    metadata.chores.run_due()
    assert outside(world).stats().owner == ""


def test_a_consumer_that_could_not_be_made_leaves_no_owner_I16(world, monkeypatch):
    def fails(self, cursor):
        raise CorruptData("a file cannot be read")

    monkeypatch.setattr(CursorNode, "acks", fails)
    with pytest.raises(CorruptData):
        Consumer(world.log(), "s")
    assert world.log().metadata.read(OwnerKey(world.topic.uuid, "s")) is None


# -- waiting -------------------------------------------------------------------------------------------------------


def test_whoever_attaches_to_a_cursor_whose_reset_does_not_end_is_told_by_whom_I16(world):
    RevisionController(CursorNode(world.log(), "s"), "a stuck resetter").start_revision()
    for kind in ("exclusive", "failover"):
        with pytest.raises(CursorUnderRevision, match="being reset by a stuck resetter"):
            Attachment(CursorNode(world.log(), "s"), kind).attach()


def test_a_stand_by_says_now_and_then_for_whom_it_waits(world, caplog):
    owner = Attachment(CursorNode(world.log(), "s"), name="the first query")
    owner.attach()
    sleep, slept = world.clock.sleep, []

    def pass_the_time(seconds: float) -> None:
        slept.append(seconds)
        sleep(seconds)
        if sum(slept) > 100:
            owner.detach()

    world.clock.sleep = pass_the_time
    with caplog.at_level(logging.WARNING, "pyspark_ledger"):
        Attachment(CursorNode(world.log(), "s"), "failover").attach()
    words = said(caplog)
    assert len(words) == 3
    assert "waiting to attach to subscription 's' of topic 't': it belongs to the first query" in words[0]
