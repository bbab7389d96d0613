"""A backlog quota takes records from a subscription: its owner is told until a person has reset it, or the loss is
counted (I14, I15)."""

from __future__ import annotations

import pytest

from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.eviction import evict
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import CursorUnderRevision, DataLoss
from pyspark_ledger.lifecycle import retention
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults
from tests.support.worlds import SMALL, World, append


@pytest.fixture
def world(tmp_path) -> World:
    """Eighteen records, four in a ledger, and a subscription that has read none."""
    world = World(tmp_path, SMALL, SeededClock(1))
    for number in range(18):
        append(world.log(), number)
    CursorNode(world.log(), "s").ensure("earliest")
    return world


def node(world: World) -> CursorNode:
    return CursorNode(world.log(), "s")


def stats(world: World):
    return CursorHandle(world.log(), "s").stats()


def take(world: World, ordinal: int = 8) -> int:
    return evict(node(world), ordinal, lambda _: True)


def received(consumer: Consumer) -> list[int]:
    """Everything that comes, acknowledged."""
    numbers = []
    while (message := consumer.receive(timeout_s=0)) is not None:
        numbers.append(message["n"])
        consumer.acknowledge(message)
    return numbers


# -- moving it ------------------------------------------------------------------------------------------------------


def test_it_is_a_revision_that_moves_the_cursor_forward_and_says_how_many_records_were_taken(world):
    assert take(world) == 8
    now = stats(world)
    assert (str(now.mark_delete), now.revision, now.evicted, now.lost) == ("2:0:0", 1, 8, 0)
    assert retention.trim(world.log(), before="2:0:0").records == 8


def test_records_that_were_acknowledged_out_of_order_are_not_counted(world):
    with Consumer(world.log(), "s") as consumer:
        messages = [consumer.receive(timeout_s=0) for _ in range(10)]
        for message in (messages[1], messages[2], messages[8], messages[9]):
            consumer.acknowledge(message)
    assert take(world) == 6
    assert str(stats(world).mark_delete) == "2:2:0"  # what was acknowledged after it still counts
    assert stats(world).individual_acks == 0


def test_it_never_moves_a_cursor_back_and_asks_again_whether_it_has_to_be_I8(world):
    CursorHandle(world.log(), "s").skip(10)
    assert take(world) == 0
    assert evict(node(world), 12, lambda cursor: cursor.ordinal < 5) == 0
    assert (stats(world).revision, stats(world).evicted) == (1, 0)


def test_one_who_has_acknowledged_enough_just_before_keeps_everything_I15(world):
    log = world.log()
    transact, owner = log.metadata.transact, Consumer(world.log(), "s")

    def later(ops):
        log.metadata.transact = transact
        owner.acknowledge_cumulative([owner.receive(timeout_s=0) for _ in range(9)][-1])
        owner.flush()
        transact(ops)

    log.metadata.transact = later
    assert evict(CursorNode(log, "s"), 8, lambda _: True) == 0
    assert (stats(world).evicted, str(stats(world).mark_delete)) == (0, "2:1:0")
    assert stats(world).revising_seconds is None


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired"])
@pytest.mark.parametrize("transaction", [1, 2])
def test_a_lost_answer_takes_records_once_I14(world, fault, transaction):
    faults = Faults()
    log = world.log(faults)
    transact, calls = log.metadata.transact, 0

    def counted(ops):
        nonlocal calls
        calls += 1
        if calls == transaction:
            faults.next_transact(fault)
        transact(ops)

    log.metadata.transact = counted
    assert evict(CursorNode(log, "s"), 8, lambda _: True) == 8
    world.server.deliver_delayed()
    assert (stats(world).evicted, stats(world).revision) == (8, 1)


def test_it_does_not_interfere_with_a_reset_that_is_under_way(world):
    controller = RevisionController(node(world))
    controller.start_revision()
    with pytest.raises(CursorUnderRevision):
        take(world)
    controller.give_up()
    assert take(world) == 8


# -- who is told ----------------------------------------------------------------------------------------------------


def test_a_consumer_is_told_until_a_person_resets_the_subscription(world):
    consumer = Consumer(world.log(), "s")
    first = consumer.receive(timeout_s=0)
    take(world)
    for _ in range(2):
        with pytest.raises(DataLoss, match=r"LEDGER_EVICTED.*8 records.*backlog quota.*2:0:0.*fail_on_data_loss=False"):
            consumer.receive(timeout_s=0)
    assert not consumer.acknowledge(first)  # of an older revision: it moves nothing
    consumer.close()
    with pytest.raises(DataLoss, match="LEDGER_EVICTED"):
        Consumer(world.log(), "s").receive(timeout_s=0)  # whoever comes next
    CursorHandle(world.log(), "s").reset("earliest")
    assert stats(world).evicted == 0


@pytest.mark.parametrize("move", ["skip", "clear_backlog", "rewind", "redeliver"])
def test_nothing_but_a_reset_clears_the_mark(world, move):
    take(world)
    handle = CursorHandle(world.log(), "s")
    handle.skip(1) if move == "skip" else getattr(handle, move)()
    assert stats(world).evicted == 8


def test_after_a_reset_to_earliest_what_was_not_given_up_yet_comes_after_all(world):
    take(world)
    CursorHandle(world.log(), "s").reset("earliest")
    with Consumer(world.log(), "s") as consumer:
        assert received(consumer) == list(range(18))


def test_a_consumer_that_goes_on_without_them_counts_them_once_and_says_so(world, caplog):
    take(world)
    with Consumer(world.log(), "s", fail_on_data_loss=False) as consumer:
        assert received(consumer) == list(range(8, 18))
    assert (stats(world).evicted, stats(world).lost) == (0, 8)
    assert caplog.text.count("8 records are lost to the backlog quota") == 1
    with Consumer(world.log(), "s") as consumer:
        assert received(consumer) == []
    assert stats(world).lost == 8


def test_two_evictions_before_anybody_looks_add_up(world):
    take(world, 4)
    take(world, 8)
    with Consumer(world.log(), "s", fail_on_data_loss=False) as consumer:
        assert received(consumer) == list(range(8, 18))
    assert stats(world).lost == 8


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired"])
def test_a_loss_whose_answer_is_lost_is_counted_once_I14(world, fault):
    take(world)
    faults = Faults()
    consumer = Consumer(world.log(faults), "s", fail_on_data_loss=False)
    faults.next_transact(fault)
    assert consumer.receive(timeout_s=0)["n"] == 8
    world.server.deliver_delayed()
    assert (stats(world).evicted, stats(world).lost) == (0, 8)


# -- a consumer where the log does not reach any more ---------------------------------------------------------------


def before_the_begin(world: World) -> None:
    """As left by a reader of compacted ledgers, or by a ZooKeeper that was rolled back: nothing holds the records."""
    CursorHandle(world.log(), "s").delete()
    retention.trim(world.log(), before="2:0:0")
    log = world.log()
    new = CursorNode(log, "s")
    made = new.ensure("earliest")
    back = new.moved(made, 3, position=type(made.mark_delete)(0, 3, 0))
    new.update(lambda _: back)


def test_a_consumer_whose_position_was_given_up_is_told_by_name_and_does_not_loop_I14(world):
    before_the_begin(world)
    consumer = Consumer(world.log(), "s")
    for _ in range(2):
        with pytest.raises(
            DataLoss, match=r"LEDGER_TRIMMED.*5 records from 0:3:0 up to 2:0:0.*fail_on_data_loss=False"
        ):
            consumer.receive(timeout_s=0)
    CursorHandle(world.log(), "s").reset("earliest")
    assert received(consumer) == list(range(8, 18))


def test_or_it_goes_on_from_where_the_log_begins_and_counts_what_is_lost(world):
    before_the_begin(world)
    with Consumer(world.log(), "s", fail_on_data_loss=False) as consumer:
        assert received(consumer) == list(range(8, 18))
    assert stats(world).lost == 5
