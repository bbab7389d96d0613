"""Ephemeral nodes have an owner in memory: recreated after a lost session, never left standing by a failed call."""

from __future__ import annotations

import os
import threading

import pytest

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import OutcomeUnknown, Unavailable
from pyspark_ledger.metadata.chores import Chores
from pyspark_ledger.metadata.ephemeral import Ephemeral
from pyspark_ledger.metadata.port import CompactorKey, Create, Delete, PartKey, PinKey, RootKey
from pyspark_ledger.metadata.records import Holder, Marker, Pin
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults, MemoryMetadata, MemoryServer
from tests.support.flaky import Behind, Flaky
from tests.support.said import said

KEY = CompactorKey("topic")


@pytest.fixture
def server() -> MemoryServer:
    server = MemoryServer()
    MemoryMetadata(server).transact(
        [Create(key, Marker()) for key in (RootKey("topic"), PartKey("topic", "locks"), PartKey("topic", "pins"))]
    )
    return server


def lock(metadata: MemoryMetadata, name: str = "a", clock: SeededClock | None = None) -> Ephemeral[Holder]:
    holder = Holder(name.encode() * 16, name, 0)
    return Ephemeral(metadata, Limits(change_deadline_s=2.0), clock or SeededClock(), KEY, holder, "the lock")


def holder(server: MemoryServer) -> str | None:
    found = MemoryMetadata(server).read(KEY)
    return None if found is None else found.record.name


def test_one_holds_it_and_the_others_are_told_who(server):
    first, second = lock(MemoryMetadata(server), "a"), lock(MemoryMetadata(server), "b")
    assert first.take() is None
    assert second.take().name == "a"
    first.release()
    assert second.take() is None
    assert holder(server) == "b"


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed"])
def test_a_create_whose_answer_was_lost_is_found_out_I14(server, fault):
    faults = Faults()
    faults.next_transact(fault)
    assert lock(MemoryMetadata(server, faults), "a").take() is None
    assert holder(server) == "a"
    assert lock(MemoryMetadata(server), "b").take().name == "a"


def test_after_a_lost_session_it_is_made_again_while_its_holder_is_busy_elsewhere(server):
    metadata = MemoryMetadata(server)
    lock(metadata).take()
    metadata.chores.run_all()
    metadata.expire()
    assert holder(server) is None
    metadata.chores.run_all()
    assert holder(server) == "a"
    metadata.chores.run_all()
    metadata.expire()  # and again: the new node is watched too
    metadata.chores.run_all()
    assert holder(server) == "a"


def test_after_a_lost_session_it_is_not_taken_back_from_a_successor_I6(server):
    metadata = MemoryMetadata(server)
    lock(metadata, "a").take()
    metadata.expire()
    assert lock(MemoryMetadata(server), "b").take() is None
    metadata.chores.run_all()
    assert holder(server) == "b"


def test_a_node_of_an_old_session_of_ours_is_not_trusted_because_it_goes_with_that(server):
    old, new = MemoryMetadata(server), MemoryMetadata(server)
    lock(old).take()
    mine = lock(new)
    mine.keep()  # the same holder, in a client that replaced the old one
    new.chores.run_all()
    old.close()
    assert holder(server) == "a"


def test_a_removal_that_fails_is_retried_until_it_works_I16(server):
    clock = SeededClock()
    metadata = Flaky(server, clock=clock)
    held = lock(metadata, clock=clock)
    held.take()
    metadata.down = True
    held.release()
    clock.sleep(60)
    metadata.chores.run_all()
    assert holder(server) == "a"
    metadata.down = False
    clock.sleep(60)
    metadata.chores.run_all()
    assert holder(server) is None


def test_what_a_failed_call_of_the_same_process_left_is_taken_over_at_once_I16(server):
    metadata = Flaky(server)
    first = lock(metadata, "a")
    first.take()
    metadata.down = True
    first.release()
    metadata.down = False
    assert lock(metadata, "b").take() is None
    assert holder(server) == "b"


def test_a_create_that_arrives_after_its_call_has_given_up_is_removed_I16(server):
    clock = SeededClock()
    faults = Faults(max_delay=10_000)
    metadata = Flaky(server, faults, clock)
    faults.next_transact("delayed")
    metadata.down_after = lambda _: True
    with pytest.raises(OutcomeUnknown):
        lock(metadata, clock=clock).take()
    metadata.down = False
    metadata.chores.run_all()
    server.deliver_delayed()
    assert holder(server) == "a"
    clock.sleep(2)
    metadata.chores.run_all()
    assert holder(server) is None


def refused_late(server, clock, on_read) -> tuple[MemoryMetadata, Ephemeral[Holder], Ephemeral[Holder]]:
    """B has it. A's first sending hangs. It looks and finds B. Then it reads who has it: ``on_read`` is just before."""
    other = lock(MemoryMetadata(server), "b")
    other.take()
    faults = Faults(max_delay=10_000)
    metadata = MemoryMetadata(server, faults, clock)
    read, reads = metadata.read, []

    def watched(key, hint=None):
        reads.append(key)
        if len(reads) == 2:
            on_read(other)
        return read(key, hint)

    metadata.read = watched
    faults.next_transact("delayed")
    return metadata, lock(metadata, "a", clock), other


def test_a_create_that_arrives_while_who_had_it_leaves_is_ones_own_I14(server):
    """Otherwise its holder would be refused because of itself, and nobody would ever remove it."""

    def leaves(other) -> None:
        other.release()
        server.deliver_delayed()

    _, late, _ = refused_late(server, SeededClock(), leaves)
    assert late.take() is None
    assert holder(server) == "a"
    late.release()
    assert holder(server) is None


def test_a_create_that_arrives_after_its_call_was_refused_is_removed_I16(server):
    clock = SeededClock()
    metadata, late, other = refused_late(server, clock, lambda _: None)
    assert late.take().name == "b"
    other.release()
    server.deliver_delayed()
    assert holder(server) == "a"
    clock.sleep(2)
    metadata.chores.run_due()
    assert holder(server) is None


def test_a_create_that_arrives_after_its_call_could_not_look_who_has_it_is_removed_I16(server):
    def does_not_answer(_) -> None:
        raise Unavailable("no answer")

    clock = SeededClock()
    metadata, late, other = refused_late(server, clock, does_not_answer)
    with pytest.raises(Unavailable):
        late.take()
    other.release()
    server.deliver_delayed()
    clock.sleep(2)
    metadata.chores.run_due()
    assert holder(server) is None


def left_late(server, clock) -> MemoryMetadata:
    """The first sending hangs, the second is applied, the holder works and leaves; then the first one arrives."""
    faults = Faults(max_delay=10_000)
    metadata = MemoryMetadata(server, faults, clock)
    faults.next_transact("delayed")
    held = lock(metadata, "a", clock)
    assert held.take() is None
    held.release()
    assert holder(server) is None
    server.deliver_delayed()
    assert holder(server) == "a"
    return metadata


def test_a_create_that_arrives_after_its_holder_has_left_is_removed_in_the_background_I16(server):
    clock = SeededClock()
    metadata = left_late(server, clock)
    clock.sleep(2)
    metadata.chores.run_due()
    assert holder(server) is None
    clock.sleep(Limits().leftover_s)
    metadata.chores.run_due()
    assert metadata.chores.leftovers == set()  # and then nobody looks for it any more


def test_a_create_that_arrives_after_its_holder_has_left_is_in_nobodys_way_in_the_same_process_I16(server):
    clock = SeededClock()
    metadata = left_late(server, clock)
    assert lock(metadata, "b", clock).take() is None
    clock.sleep(2)
    metadata.chores.run_due()
    assert holder(server) == "b"


def test_a_pin_is_moved_and_made_again_where_it_was_moved_to(server):
    metadata, key = MemoryMetadata(server), PinKey("topic", "p")
    pin = Ephemeral(metadata, Limits(), SeededClock(), key, Pin(Position(0, 0, 0)), "a pin")
    pin.take()
    pin.put(Pin(Position(0, 5, 0)))
    metadata.chores.run_all()
    metadata.expire()
    metadata.chores.run_all()
    assert MemoryMetadata(server).read(key).record.position == Position(0, 5, 0)


def test_chores_are_done_in_the_background_and_those_that_fail_again(caplog):
    chores, done, tries = Chores(SYSTEM_CLOCK, background=True), threading.Event(), []

    def run() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OutcomeUnknown("not yet")
        done.set()

    with caplog.at_level("WARNING", "pyspark_ledger"):
        chores.add("the washing-up", run)
        assert done.wait(10)
    assert [line.partition(":")[0] for line in said(caplog)] == ["the washing-up"]  # once
    chores.close(connected=False)


def test_a_forked_child_leaves_its_parents_chores_alone_and_can_have_its_own():
    chores = Chores(SYSTEM_CLOCK, background=True)
    chores.add("the parent's", lambda: 60.0)
    child = os.fork()
    if child == 0:
        done = threading.Event()
        chores.add("the child's", done.set)
        os._exit(0 if len(chores._chores) <= 1 and done.wait(5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    chores.close(connected=False)


def test_a_client_that_closes_takes_back_what_its_failed_calls_left_also_if_nobody_has_tried_yet_I16(server):
    """Clients of one process share a session, so closing one of them does not end what it held."""
    metadata = Flaky(server)
    held = lock(metadata)
    held.take()
    metadata.down = True
    held.release()
    metadata.down = False
    metadata.chores.close(connected=True)
    assert holder(server) is None


# -- what comes between the look and the transaction ---------------------------------------------------------------


def test_after_a_lost_answer_the_node_of_another_is_not_taken_for_ones_own_I14(server):
    faults = Faults()
    metadata = MemoryMetadata(server, faults)
    faults.next_transact("lost_before")
    sync = metadata.sync

    def overtaken() -> None:
        metadata.sync = sync
        assert lock(MemoryMetadata(server), "b").take() is None
        sync()

    metadata.sync = overtaken
    assert lock(metadata, "a").take().name == "b"


def test_after_a_lost_answer_a_server_that_is_behind_does_not_hide_what_was_made_I14(server):
    faults = Behind(3)
    metadata = MemoryMetadata(server, faults)
    metadata.read(KEY)
    faults.next_transact("applied_then_lost")
    faults.next_read("stale")
    assert lock(metadata, "a").take() is None
    assert faults.transacts == 1, "it is found, and not asked for again"


def test_who_is_refused_is_told_by_whom_at_once_also_by_a_server_that_is_behind_I14(server):
    assert lock(MemoryMetadata(server), "a").take() is None
    faults = Behind(3)
    assert lock(MemoryMetadata(server, faults), "b").take().name == "a"
    assert faults.transacts == 1


def test_who_leaves_late_does_not_delete_the_node_of_its_successor_I6(server):
    metadata = MemoryMetadata(server)
    first = lock(metadata, "a")
    first.take()
    metadata.expire()
    assert lock(MemoryMetadata(server), "b").take() is None
    first.release()
    assert holder(server) == "b"


def test_what_was_released_does_not_come_back_I16(server):
    clock = SeededClock()
    metadata = MemoryMetadata(server, clock=clock)
    held = lock(metadata, clock=clock)
    held.take()
    held.release()
    clock.sleep(60)
    metadata.chores.run_all()
    assert holder(server) is None


def test_a_pin_that_stands_in_an_old_session_is_moved_into_the_new_one_I9(server):
    metadata, old, key = MemoryMetadata(server), MemoryMetadata(server), PinKey("topic", "reader")
    pin = Ephemeral(metadata, Limits(), SeededClock(), key, Pin(Position(0, 0, 0)), "the pin")
    old.transact([Create(key, Pin(Position(0, 0, 0)), ephemeral=True)])
    pin.put(Pin(Position(0, 1, 0)))
    metadata.chores.run_all()
    old.close()
    assert metadata.read(key).record.position == Position(0, 1, 0)


def test_who_leaves_takes_its_node_along_also_from_a_server_that_is_behind_I16(server):
    faults = Behind(1)
    metadata = MemoryMetadata(server, faults)
    held = lock(metadata)
    metadata.transact(held.create_ops())
    faults.next_read("stale")
    assert held.remove_ops() == [Delete(KEY)]
