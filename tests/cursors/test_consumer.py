"""The Python consumer: reads in flight, redeliveries and resets never deliver out of order (PIP-84, PIP-269)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.base.position import Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors import consumer as consumers
from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import Fenced, InvalidInput
from pyspark_ledger.log import scan
from pyspark_ledger.testing.clock import SeededClock
from tests.support import examples
from tests.support.worlds import IDS, World, append, append_ids


@pytest.fixture
def world(tmp_path):
    """Ten entries of three records each."""
    world = World(tmp_path, clock=SeededClock())
    log = world.log()
    for number in range(0, 30, 3):
        append(log, number, number + 1, number + 2)
    return world


@pytest.fixture(autouse=True)
def small_reads(monkeypatch):
    monkeypatch.setattr(consumers, "READ_RECORDS", 5)


def consumer(world, **options):
    return Consumer(world.log(watch=True), "s", **options)


def handle(world):
    return CursorHandle(world.log(), "s")


def take(subscriber, count=None):
    """The numbers that come, up to ``count``, or until nothing does."""
    taken = []
    while count is None or len(taken) < count:
        message = subscriber.receive(0.0)
        if message is None:
            break
        taken.append(message)
    return taken


def numbers(messages):
    return [message["n"] for message in messages]


def test_records_come_in_order_with_where_and_when_they_were_read(world):
    subscriber = consumer(world)
    messages = take(subscriber)
    assert numbers(messages) == list(range(30))
    assert messages[4].position == Position(0, 1, 1)
    assert {(m.epoch, m.revision) for m in messages} == {(1, 0)}
    assert subscriber.receive(0.5) is None
    append(world.log(), 30)
    assert subscriber.receive(5)["n"] == 30
    subscriber.close()
    with pytest.raises(InvalidInput, match="LEDGER_CLOSED"):
        subscriber.receive(0)


def test_a_start_that_is_no_place_is_refused_also_where_the_subscription_exists(world):
    for _ in range(2):
        with pytest.raises(InvalidInput, match="'nowhere' is no place in a topic"):
            consumer(world, start="nowhere")
        consumer(world, start="latest").close()


def test_individual_acknowledgements_survive_a_restart_and_the_rest_comes_again(world):
    first = consumer(world)
    messages = take(first)
    for number in (0, 1, 2, 5, 7, 8, 20):
        assert first.acknowledge(messages[number])
    first.close()
    stats = handle(world).stats()
    assert (stats.mark_delete, stats.individual_acks, stats.backlog_records) == (Position(0, 1, 0), 4, 23)
    second = consumer(world)
    assert numbers(take(second)) == [n for n in range(30) if n not in (0, 1, 2, 5, 7, 8, 20)]
    second.close()


def test_a_crash_loses_at_most_the_acknowledgements_of_the_last_second(world):
    first = consumer(world)
    messages = take(first, 10)
    for message in messages[:4]:
        first.acknowledge(message)
    world.clock.sleep(2)
    first.receive(0)  # writes what is due
    first.acknowledge(messages[4])
    first._log.metadata.close()  # dies
    second = consumer(world)
    assert numbers(take(second, 3)) == [4, 5, 6]
    second.close()


def test_an_acknowledgement_costs_the_same_however_many_gaps_there_are(world, monkeypatch):
    subscriber = consumer(world)
    messages = take(subscriber)
    merged = []
    merge = Runs.__or__
    monkeypatch.setattr(Runs, "__or__", lambda runs, other: merged.append(runs) or merge(runs, other))
    for message in messages[::2]:
        subscriber.acknowledge(message)
    subscriber.acknowledge_cumulative(messages[4])
    assert merged == []  # until they are written
    subscriber.negative_acknowledge(messages[8])  # done already
    subscriber.negative_acknowledge(messages[3])  # so is this
    assert take(subscriber) == []
    subscriber.flush()
    stats = handle(world).stats()
    assert (stats.mark_delete, stats.individual_acks) == (Position(0, 1, 2), 12)
    subscriber.close()


def test_cumulative_acknowledgement_moves_the_mark(world):
    subscriber = consumer(world)
    messages = take(subscriber, 12)
    subscriber.acknowledge(messages[11])
    subscriber.acknowledge_cumulative(messages[7])
    subscriber.flush()
    assert (handle(world).stats().mark_delete, handle(world).stats().individual_acks) == (Position(0, 2, 2), 1)
    subscriber.close()


def test_a_record_that_is_refused_comes_again_and_nothing_else_does(world):
    subscriber = consumer(world)
    messages = take(subscriber, 6)
    subscriber.negative_acknowledge(messages[2])
    subscriber.negative_acknowledge(messages[4])
    world.clock.sleep(1)
    rest = take(subscriber)
    assert sorted(numbers(rest)) == sorted([2, 4, *range(6, 30)])
    assert [n for n in numbers(rest) if n >= 6] == list(range(6, 30))
    subscriber.close()


def test_redelivery_brings_everything_unacknowledged_in_order_before_anything_new(world):
    subscriber = consumer(world)
    messages = take(subscriber, 12)
    subscriber.acknowledge(messages[0])
    subscriber.acknowledge(messages[5])
    subscriber.redeliver_unacknowledged()
    again = take(subscriber)
    assert numbers(again) == [n for n in range(30) if n not in (0, 5)]
    assert {message.epoch for message in again} == {2}
    subscriber.close()


# -- reads in flight ---------------------------------------------------------------------------------------------------


def test_a_read_in_flight_when_redelivery_was_asked_for_is_dropped_pip_84(world):
    """Without the epoch the consumer would get 5 to 9 first, acknowledge them cumulatively, and lose 0 to 4."""
    subscriber = consumer(world)
    take(subscriber, 5)
    read = subscriber._begin_read()
    fetched = subscriber._fetch(read)
    assert numbers(fetched.messages) == [5, 6, 7, 8, 9]
    subscriber.redeliver_unacknowledged()
    assert not subscriber._complete_read(read, fetched)
    assert numbers(take(subscriber, 3)) == [0, 1, 2]
    subscriber.close()


def test_a_replay_read_in_flight_when_the_cursor_is_reset_is_dropped_pip_269_scenario_1(world):
    subscriber = consumer(world)
    messages = take(subscriber, 10)
    for number in (5, 6):
        subscriber.negative_acknowledge(messages[number])
    world.clock.sleep(1)
    read = subscriber._begin_read()
    fetched = subscriber._fetch(read)
    assert numbers(fetched.messages) == [5, 6]
    handle(world).reset("earliest")
    subscriber._follow()
    assert not subscriber._complete_read(read, fetched)
    assert numbers(take(subscriber)) == list(range(30))
    subscriber.close()


def test_a_sequential_read_in_flight_when_the_cursor_is_reset_is_dropped_pip_269_scenario_2(world):
    """Without the revision it would also move the read position on, and 0 to 9 would never come."""
    subscriber = consumer(world)
    take(subscriber, 5)
    read = subscriber._begin_read()
    fetched = subscriber._fetch(read)
    handle(world).reset("earliest")
    subscriber._follow()
    assert not subscriber._complete_read(read, fetched)
    assert numbers(take(subscriber)) == list(range(30))
    subscriber.close()


def test_a_read_that_comes_back_while_the_cursor_is_being_moved_is_dropped(world):
    subscriber = consumer(world)
    take(subscriber, 5)
    read = subscriber._begin_read()
    fetched = subscriber._fetch(read)
    controller = RevisionController(CursorNode(world.log(), "s"))
    controller.start_revision()
    subscriber._follow()
    assert not subscriber._complete_read(read, fetched)
    assert subscriber._begin_read() is None
    controller.give_up()
    assert numbers(take(subscriber)) == list(range(5, 30))
    subscriber.close()


def test_what_was_read_before_a_reset_and_waits_in_the_queue_is_dropped(world):
    subscriber = consumer(world)
    first = subscriber.receive(0)
    assert len(subscriber._queue) == 4
    handle(world).reset(Position(0, 3, 0))
    assert numbers(take(subscriber, 2)) == [9, 10]
    assert subscriber.acknowledge(first) is False  # I7: an old acknowledgement moves nothing
    subscriber.flush()
    assert handle(world).stats().mark_delete == Position(0, 3, 0)
    subscriber.close()


def test_skipping_and_clearing_from_outside_are_followed(world):
    subscriber = consumer(world)
    take(subscriber, 2)
    handle(world).skip(20)
    assert numbers(take(subscriber, 2)) == [20, 21]
    handle(world).clear_backlog()
    assert take(subscriber) == []
    subscriber.close()


def test_a_consumer_that_was_away_is_fenced_and_its_acknowledgements_change_nothing_I6(world):
    old = consumer(world)
    messages = take(old, 10)
    for message in messages:
        old.acknowledge(message)
    old._log.metadata.expire()
    new = consumer(world, kind="failover")
    for act in (lambda: old.receive(0), old.flush):
        with pytest.raises(Fenced, match="LEDGER_SUBSCRIPTION_FENCED"):
            act()
    assert numbers(take(new, 3)) == [0, 1, 2]
    new.close()


def test_a_lost_session_that_nobody_noticed_keeps_acknowledgements_and_the_epoch(world):
    subscriber = consumer(world)
    messages = take(subscriber, 4)
    for message in messages:
        subscriber.acknowledge(message)
    subscriber._log.metadata.expire()
    world.clock.sleep(60)
    rest = take(subscriber)
    assert numbers(rest) == list(range(4, 30))
    assert {message.epoch for message in rest} == {1}  # nobody else was attached in between
    subscriber.close()
    assert handle(world).stats().mark_delete == Position(0, 1, 1)


def test_masked_records_are_neither_delivered_nor_in_the_way_of_the_mark(tmp_path):
    world = World(tmp_path, clock=SeededClock(), schema=IDS)
    log = world.log()
    append_ids(log, [[("a", 1)]])
    append_ids(log, [[("a", 1), ("a", 2), ("a", 1), ("a", 3), ("a", 2)]])
    append_ids(log, [[("a", 4)]])
    subscriber = consumer(world)
    messages = take(subscriber)
    assert [message["seq"] for message in messages] == [1, 2, 3, 4]
    subscriber.negative_acknowledge(messages[2])
    world.clock.sleep(1)
    assert take(subscriber)[0].position == messages[2].position == Position(0, 1, 3)
    for message in messages[:3]:
        subscriber.acknowledge(message)
    subscriber.close()
    assert handle(world).stats().mark_delete == Position(0, 2, 0)


def test_an_acknowledgement_after_a_reset_that_was_not_noticed_yet_does_not_count(world):
    subscriber = consumer(world)
    message = subscriber.receive(0)
    handle(world).reset("earliest")
    assert subscriber.acknowledge(message) is False
    assert subscriber.acknowledge_cumulative(message) is False
    assert numbers(take(subscriber)) == list(range(30))
    subscriber.close()


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), st.integers(1, 8)),
        st.tuples(st.just("ack"), st.integers(0, 30)),
        st.tuples(st.just("cumulative"), st.integers(0, 30)),
        st.tuples(st.just("nack"), st.integers(0, 30)),
        st.tuples(st.just("redeliver"), st.just(0)),
        st.tuples(st.just("reset"), st.integers(0, 30)),
        st.tuples(st.just("skip"), st.integers(0, 5)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("flush"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=examples(120), deadline=None)
@given(ACTS)
def test_whatever_is_done_everything_unacknowledged_comes_in_the_end_I1_I7_I8(tmp_path_factory, acts):
    """The model is a set of numbers that are done. At the end all others must come, and no others."""
    world = World(tmp_path_factory.mktemp("w"), clock=SeededClock())
    log = world.log()
    for number in range(0, 30, 3):
        append(log, number, number + 1, number + 2)
    subscriber = consumer(world)
    done: set[int] = set()
    held: list = []
    for act, value in acts:
        if act == "receive":
            held += take(subscriber, value)
        elif act in ("ack", "cumulative") and value < len(held):
            message = held[value]
            counted = (subscriber.acknowledge if act == "ack" else subscriber.acknowledge_cumulative)(message)
            if counted:
                done |= {message["n"]} if act == "ack" else set(range(message["n"] + 1))
        elif act == "nack" and value < len(held):
            subscriber.negative_acknowledge(held[value])
        elif act == "redeliver":
            subscriber.redeliver_unacknowledged()
        elif act == "reset":
            subscriber.flush()
            handle(world).reset(world_position(log, value))
            done = set(range(value))
        elif act == "skip":
            subscriber.flush()
            handle(world).skip(value)
            done |= set([n for n in range(30) if n not in done][:value])
        elif act == "restart":
            subscriber.close()
            subscriber = consumer(world)
        elif act == "flush":
            subscriber.flush()
    subscriber.close()
    last = consumer(world)
    assert numbers(take(last)) == [n for n in range(30) if n not in done]
    last.close()
    assert handle(world).stats().backlog_records == 30 - len(done)


def world_position(log, ordinal):
    return scan.position_at(log, log.refresh(sync=True), ordinal)
