"""Consumers that share a subscription: each record goes to one of them, and what a dead one had comes to others."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from pyspark_ledger.base.position import Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors import shares
from pyspark_ledger.cursors.attachment import Attachment
from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.membership import Membership
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import Conflict, Fenced, InvalidInput, OutcomeUnknown, Unavailable
from pyspark_ledger.metadata.records import Member
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults
from tests.support.sharing import cursor, die, go_away, handle, key_shared, keyed_world, numbers, shared, take
from tests.support.worlds import SMALL, World, append


@pytest.fixture
def world(tmp_path):
    return a_world(tmp_path)


def a_world(folder, **limits):
    """Ten entries of three records each."""
    world = World(folder, replace(SMALL, **limits), SeededClock())
    log = world.log()
    for number in range(0, 30, 3):
        append(log, number, number + 1, number + 2)
    return world


def test_each_record_goes_to_one_of_those_who_share(world):
    consumers = [shared(world) for _ in range(3)]
    got = [[] for _ in consumers]
    for _ in range(40):
        for consumer, mine in zip(consumers, got, strict=True):
            mine += take(consumer, 1)
    assert all(got)
    assert sorted(n for mine in got for n in numbers(mine)) == list(range(30))
    append(world.log(), 30)
    assert numbers(take(consumers[1])) == [30]


def test_threads_share_one_of_them(world):
    consumer, other = shared(world, prefetch=4), shared(world, prefetch=4)
    got, lock = [], threading.Lock()

    def work(one):
        while (message := one.receive(0.0)) is not None:
            with lock:
                got.append(message["n"])
            assert one.acknowledge(message)

    threads = [threading.Thread(target=work, args=(one,)) for one in (consumer, consumer, consumer, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(30))
    consumer.close()
    other.close()
    assert cursor(world).ordinal == 30


def test_nobody_waits_for_a_record_that_another_is_not_busy_with(world):
    """With prefetch=1 a worker has only what it works on."""
    first, second = shared(world, prefetch=1), shared(world, prefetch=1)
    assert numbers(take(first, 1)) == [0]
    assert numbers(take(second, 29)) == list(range(1, 30))


def test_what_a_dead_one_had_comes_to_others_first_and_what_it_acknowledged_does_not_I16(world):
    first, second = shared(world, prefetch=8), shared(world, prefetch=8)
    held = take(first, 6)
    for message in held[:2]:
        assert first.acknowledge(message)
    first.flush()
    die(first)
    again = take(second)
    assert numbers(again) == [n for n in range(30) if n not in numbers(held[:2])]
    assert {m["n"]: m.delivery_count for m in again if m["n"] in numbers(held)} == dict.fromkeys(numbers(held[2:]), 2)


def test_one_that_leaves_gives_back_at_once_and_says_what_it_has_delivered(world):
    first, second = shared(world, prefetch=8), shared(world)
    held = take(first, 3)
    first.acknowledge(held[1])
    first.close()
    assert [each.name for each in handle(world).stats().members if each.is_alive] == [second._follower._name]
    again = take(second)
    assert numbers(again) == [0, *range(2, 30)]
    assert [message.delivery_count for message in again] == [2, 2, *[1] * 27]


def test_one_that_was_away_is_told_and_joins_again_I6(world):
    first, second = shared(world, prefetch=8), shared(world)
    held = take(first, 5)
    assert first.acknowledge(held[0])
    go_away(world, first)
    assert 0 in numbers(take(second))  # the acknowledgement was not written
    assert not first.acknowledge(held[1])
    first.flush()
    assert cursor(world).ordinal == 0
    append(world.log(), 30, 31)
    assert set(numbers([*take(first), *take(second)])) == {30, 31}
    assert len(cursor(world).members) == 2


@pytest.mark.parametrize("make", [shared, key_shared])
def test_one_that_joins_again_while_zookeeper_does_not_answer_tells_of_no_rollback_I14(tmp_path, make):
    """Wherever that happens on the way. What it had in hand when it was removed does not count, also if nobody has told
    it that it has joined."""
    for answered in range(12):
        faults, world = Faults(), keyed_world(tmp_path / str(answered), 30, keys=30)
        first, second = make(world, faults, prefetch=8), make(world)
        held = take(first, 5)
        assert held
        go_away(world, first)
        theirs = take(second)
        faults.next_read(*[None] * answered, "unavailable")
        for call in (lambda: first.acknowledge(held[0]), first.flush, first.flush):  # noqa: B023 - called at once
            with suppress(Unavailable, OutcomeUnknown):
                assert call() in (None, False)
        assert cursor(world).ordinal == 0
        faults.stop()
        world.clock.sleep(11)
        for _ in range(3):
            for consumer in (second, first):
                for message in [*theirs, *take(consumer)]:
                    consumer.acknowledge(message)
                consumer.flush()
                theirs = []
        assert cursor(world).ordinal == 30


def test_one_that_lost_its_session_unnoticed_goes_on_I16(world):
    first = shared(world, prefetch=8)
    held = take(first, 5)
    go_away(world, first)
    assert all(first.acknowledge(message) for message in held)
    first.flush()
    assert cursor(world).ordinal == 5
    assert handle(world).stats().followers


def test_what_was_acknowledged_and_written_is_never_delivered_again_also_if_the_answer_was_lost_I14(world):
    faults = Faults()
    first, second = shared(world, faults, prefetch=8), shared(world)
    held = take(first, 8)
    for message in held:
        first.acknowledge(message)
    faults.next_transact("applied_then_lost")
    first.flush()
    assert cursor(world).ordinal == 8
    die(first)
    assert numbers(take(second)) == list(range(8, 30))


def test_a_claim_whose_answer_was_lost_is_no_loss_I1_I14(world):
    """It does not know what it claims, so it claims again."""
    faults = Faults()
    consumer = shared(world, faults, prefetch=8)
    faults.next_transact("delayed")
    assert numbers(take(consumer, 8)) == list(range(8))
    world.server.deliver_delayed()
    assert numbers(take(consumer)) == list(range(8, 30))


def test_a_record_that_kills_its_consumers_is_soon_known_from_its_neighbours(world):
    poison, counts, innocent = 7, [], 0
    for _ in range(6):
        consumer = shared(world)
        while (message := consumer.receive(0.0)) is not None:
            if message["n"] == poison:
                counts.append(message.delivery_count)
                die(consumer)
                break
            innocent = max(innocent, message.delivery_count)
            consumer.acknowledge(message)
    assert counts == [1, 2, 3, 4, 5, 6]
    assert innocent <= 3
    last = shared(world)
    again = {message["n"]: message.delivery_count for message in take(last)}
    assert again[poison] == 7
    assert max(count for n, count in again.items() if n != poison) <= 3


def test_refused_records_come_again_and_others_know_how_often_they_came(world):
    first = shared(world, prefetch=4)
    held = take(first, 2)
    for expected in (2, 3):
        first.negative_acknowledge(held[0])
        assert 0 not in numbers(take(first, 1))
        world.clock.sleep(5)
        again = next(message for message in take(first) if message["n"] == 0)
        assert again.delivery_count == expected
        held[0] = again
    first.negative_acknowledge(held[0])
    world.clock.sleep(2)
    assert first.acknowledge(held[1])  # writes what is due
    die(first)
    assert {message["n"]: message.delivery_count for message in take(shared(world))}[0] == 4


def test_what_is_neither_acknowledged_nor_refused_comes_again_after_the_time_out(world):
    consumer = shared(world, prefetch=4, ack_timeout_s=10.0)
    [first] = take(consumer, 1)
    world.clock.sleep(11)
    take(consumer)
    world.clock.sleep(2)
    [again] = [message for message in take(consumer) if message["n"] == 0]
    assert again.delivery_count == 2
    assert consumer.acknowledge(first)  # the same consumer still has it
    consumer.flush()
    assert cursor(world).ordinal == 1


def test_a_record_that_was_to_come_again_and_is_acknowledged_does_not_come_I8(world):
    consumer = shared(world, prefetch=4)
    _, second = take(consumer, 2)
    consumer.negative_acknowledge(second)
    assert consumer.acknowledge(second)
    assert consumer.acknowledge(second)
    consumer.flush()
    assert consumer.acknowledge(second)
    world.clock.sleep(5)
    assert 1 not in numbers(take(consumer))


def test_an_idle_one_writes_nothing(world):
    consumers = [shared(world) for _ in range(3)]
    for consumer in consumers:
        for message in take(consumer):
            consumer.acknowledge(message)
        consumer.flush()
    for consumer in consumers:
        take(consumer)
    before = world.server.time
    for _ in range(20):
        world.clock.sleep(1)
        for consumer in consumers:
            assert consumer.receive(0.0) is None
    assert world.server.time == before


def test_about_one_write_for_as_many_records_as_are_claimed_together(world):
    consumer = shared(world, prefetch=10)
    before = world.server.time
    while (message := consumer.receive(0.0)) is not None:
        consumer.acknowledge(message)
    assert world.server.time - before <= 4


def test_cumulative_acknowledgement_is_refused_by_name(world):
    consumer = shared(world)
    with pytest.raises(InvalidInput, match="LEDGER_NOT_CUMULATIVE"):
        consumer.acknowledge_cumulative(take(consumer, 1)[0])


def test_what_is_no_message_or_no_time_is_refused_by_name(world):
    for subscriber in (Consumer(world.log(), "alone"), shared(world)):
        for act in (subscriber.acknowledge, subscriber.negative_acknowledge):
            with pytest.raises(InvalidInput, match="'3:17:0' is no message of a consumer"):
                act("3:17:0")
        with pytest.raises(InvalidInput, match="timeout_s is '5', and must be a number of seconds"):
            subscriber.receive("5")
        assert subscriber.acknowledge(take(subscriber, 1)[0])


def test_the_record_stays_small_however_far_some_are_behind_I13(tmp_path):
    """Gaps make it grow; so nobody goes further ahead than a limit."""
    world = a_world(tmp_path, shared_acks_bytes=100)
    append(world.log(), *range(30, 2_000))
    consumer = shared(world, prefetch=50)
    held = []
    while (message := consumer.receive(0.0)) is not None:
        consumer.acknowledge(message) if message["n"] % 2 else held.append(message)
    assert 100 < len(cursor(world).acks) < 300
    assert len(held) < 200
    for message in held:
        consumer.acknowledge(message)
    assert len(take(consumer)) == 2_000 - 2 * len(held)


# -- together with others ----------------------------------------------------------------------------------------------


def test_types_are_not_mixed_while_somebody_is_alive(tmp_path):
    world = keyed_world(tmp_path, 10)
    sharing = shared(world)
    for kind in ("exclusive", "failover"):
        with pytest.raises(
            Conflict, match=r"LEDGER_SUBSCRIPTION_BUSY.* is shared by 1 living consumers of type 'shared'"
        ):
            Consumer(world.log(), "s", kind)
    with pytest.raises(Conflict, match=r"LEDGER_SUBSCRIPTION_BUSY.*'shared'"):
        key_shared(world)
    sharing.close()
    owner = Consumer(world.log(), "s")
    with pytest.raises(Conflict, match=r"LEDGER_SUBSCRIPTION_BUSY.*belongs to"):
        shared(world)
    owner.close()
    by_key = key_shared(world)
    die(by_key)
    assert numbers(take(shared(world))) == list(range(10))


def test_an_owner_takes_the_place_of_those_who_are_dead_and_they_must_stop_I6(world):
    sharing = shared(world, prefetch=4)
    held = take(sharing, 2)
    go_away(world, sharing)
    owner = Consumer(world.log(watch=True), "s")
    assert numbers(take(owner)) == list(range(30))
    for call in (lambda: sharing.receive(0.0), lambda: sharing.acknowledge(held[0])):
        with pytest.raises(Fenced, match=r"LEDGER_SUBSCRIPTION_FENCED.*no longer shared"):
            call()
    assert cursor(world).members == ()


def test_an_owner_does_not_push_out_one_that_has_just_joined_I6(world):
    """One has died, and whoever joins has not noticed that: for the epoch nothing has changed."""
    die(shared(world))
    seen = cursor(world)
    node = CursorNode(world.log(), "s")
    joined = shares.joined(seen, "shared", Member(b"n" * 16, "new", 0))
    node.update(lambda _: joined)
    Attachment(node)._take(seen, [])
    assert cursor(world) == joined


def test_one_that_joins_does_not_push_out_an_owner_that_was_faster_I6(world):
    node = CursorNode(world.log(), "s")
    seen = node.ensure("earliest")
    owner = Attachment(CursorNode(world.log(), "s")).attach()
    node.refresh(sync=True)
    Membership(node, "shared", "a newcomer")._take(seen, [])
    assert cursor(world) == owner


def test_one_that_joins_while_the_cursor_is_being_moved_comes_after_that_I7(world):
    node = CursorNode(world.log(), "s")
    seen = node.ensure("earliest")
    controller = RevisionController(CursorNode(world.log(), "s"))
    controller.start_revision()
    node.refresh(sync=True)
    Membership(node, "shared", "a newcomer")._take(seen, [])
    assert cursor(world).members == ()


def test_one_that_lives_does_not_look_dead_in_a_stale_answer_I6(world):
    faults = Faults()
    looks = shared(world, faults)
    shared(world)
    faults.next_read("missing")
    assert looks._follower.dead(cursor(world)) == []


def test_a_subscription_that_is_shared_is_not_deleted_and_one_of_the_dead_is(world):
    sharing = shared(world)
    with pytest.raises(Conflict, match="LEDGER_CURSOR_IN_USE"):
        handle(world).delete()
    die(sharing)
    handle(world).delete()


def test_there_are_only_so_many_I13(tmp_path):
    world = a_world(tmp_path, members=2)
    members = [shared(world), shared(world)]
    with pytest.raises(Conflict, match="LEDGER_TOO_MANY_MEMBERS"):
        shared(world)
    die(members[0])
    shared(world)


def test_stats_show_who_shares_it_and_what_each_has(world):
    first, second = shared(world, prefetch=6), shared(world)
    take(first, 2)
    die(second)
    stats = handle(world).stats()
    assert (stats.sharing, stats.backlog_records, stats.owner) == ("shared", 30, "")
    assert [(each.is_alive, each.records, each.slots) for each in stats.members] == [(True, 6, 0), (False, 0, 0)]
    assert stats.followers == [first._follower._name]


# -- resets, redeliveries: PIP-269, PIP-84 -----------------------------------------------------------------------------


def test_a_replay_read_in_flight_when_the_cursor_is_reset_is_dropped_pip_269_scenario_1(world):
    consumer = shared(world, prefetch=10)
    held = take(consumer, 10)
    for message in held[5:7]:
        consumer.negative_acknowledge(message)
    world.clock.sleep(1)
    read = consumer._begin_read()
    fetched = consumer._fetch(read)
    assert numbers(fetched.messages) == [5, 6]
    handle(world).reset("earliest")
    consumer._follow()
    assert not consumer._complete_read(read, fetched)
    assert numbers(take(consumer)) == list(range(30))


def test_a_read_in_flight_when_the_cursor_is_reset_is_dropped_by_each_pip_269_scenario_2(world):
    consumers = [shared(world, prefetch=5) for _ in range(2)]
    reads = []
    for consumer in consumers:
        read = consumer._begin_read()
        reads.append((consumer, read, consumer._fetch(read)))
    handle(world).reset("0:1:0")
    for consumer, read, fetched in reads:
        consumer._follow()
        assert not consumer._complete_read(read, fetched)
    got = [take(consumer, 1) + take(consumer) for consumer in consumers]
    assert sorted(n for mine in got for n in numbers(mine)) == list(range(3, 30))


def test_what_waits_in_a_queue_when_the_cursor_is_reset_is_dropped_half_in_flight_pip_269(world):
    first, second = shared(world, prefetch=10), shared(world, prefetch=10)
    [held], [other] = take(first, 1), take(second, 1)
    handle(world).reset("latest")
    assert take(first) == take(second) == []
    assert not first.acknowledge(held)
    assert not second.acknowledge(other)
    assert cursor(world).ordinal == 30


def test_a_read_that_comes_back_while_the_cursor_is_being_moved_is_dropped(world):
    consumer = shared(world, prefetch=5)
    read = consumer._begin_read()
    fetched = consumer._fetch(read)
    controller = RevisionController(CursorNode(world.log(), "s"))
    controller.start_revision()
    consumer._follow()
    assert consumer._begin_read() is None
    assert not consumer._complete_read(read, fetched)
    assert take(consumer) == []
    controller.give_up()
    assert numbers(take(consumer)) == list(range(30))


def test_a_reset_clears_what_everybody_has_together_with_the_position_I7(world):
    """Else the records that somebody had before the reset would be nobody's until it asks for more."""
    first, second = shared(world, prefetch=10), shared(world)
    take(first, 3)
    first.negative_acknowledge(take(first, 1)[0])
    first.flush()
    handle(world).rewind()
    assert [shares.claims(each) for each in cursor(world).members] == [Runs(), Runs()]
    assert cursor(world).deliveries == ()
    assert numbers(take(second)) == list(range(30))


def test_a_redelivery_by_one_acts_on_all_pip_84(world):
    first, second = shared(world, prefetch=5), shared(world, prefetch=5)
    mine, other = take(first, 3), take(second, 3)
    first.acknowledge(mine[0])
    read = second._begin_read()
    second.redeliver_unacknowledged()
    assert read is None or not second._complete_read(read, second._fetch(read))
    assert not second.acknowledge(other[0])  # it comes again, to anybody
    assert not first.acknowledge(mine[1])
    again = [*take(first, 4), *take(second)]
    again += take(first)
    assert sorted(numbers(again)) == list(range(30))  # what was acknowledged was not written
    assert {message.epoch for message in again} == {2}
    assert {m.delivery_count for m in again if m["n"] in numbers(mine + other)} == {2}


def test_what_was_delivered_before_a_redelivery_is_not_acknowledged_in_place_of_what_came_after_pip_84(world):
    consumer = shared(world, prefetch=5)
    [before] = take(consumer, 1)
    consumer.redeliver_unacknowledged()
    [after] = take(consumer, 1)
    assert (before.ordinal, before.epoch + 1) == (after.ordinal, after.epoch)
    assert not consumer.acknowledge(before)
    assert consumer.acknowledge(after)


@pytest.mark.parametrize("act", ["rewind", "redeliver"])
def test_an_acknowledgement_that_was_not_written_is_cancelled_by_a_reset_I7(world, act):
    consumer = shared(world, prefetch=5)
    [message] = take(consumer, 1)
    assert consumer.acknowledge(message)
    getattr(handle(world), act)()
    consumer.flush()
    assert cursor(world).ordinal == 0
    assert numbers(take(consumer)) == list(range(30))


def test_redelivery_keeps_what_the_one_who_asks_has_acknowledged(world):
    first = shared(world, prefetch=5)
    mine = take(first, 3)
    first.acknowledge(mine[1])
    first.redeliver_unacknowledged()
    assert numbers(take(first)) == [0, *range(2, 30)]


def test_what_is_acknowledged_from_outside_does_not_come_any_more_I8(world):
    consumer = shared(world, prefetch=10)
    take(consumer, 1)
    handle(world).mark_delete(Position(0, 2, 0))
    assert numbers(take(consumer)) == list(range(6, 30))


def test_a_crash_of_the_one_who_resets_blocks_nobody_I16(world):
    consumer = shared(world, prefetch=5)
    take(consumer, 1)
    resetter = CursorNode(world.log(), "s")
    RevisionController(resetter).start_revision()
    assert consumer.receive(0.0) is not None  # it has that in its queue
    resetter.log.metadata.close()
    assert numbers(take(consumer)) == list(range(2, 30))


def test_an_unknown_outcome_is_told_and_costs_nothing_I14(tmp_path):
    """What it has claimed without knowing is not nobody's for ever."""
    world, faults = a_world(tmp_path, change_deadline_s=0.0), Faults()
    consumer = shared(world, faults, prefetch=5)
    consumer._log.view(60.0)
    faults.next_transact("applied_then_lost")
    faults.next_read("unavailable")
    with pytest.raises(OutcomeUnknown):
        consumer.receive(0.0)
    [mine] = cursor(world).members
    assert len(shares.claims(mine)) == 5
    assert numbers(take(consumer)) == list(range(30))
