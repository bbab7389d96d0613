"""Records that could not be handled come again, later and later, and say how often they came; threads that share a
consumer share its records."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter

import pytest

from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors.backoff import Backoff
from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.testing.clock import SeededClock
from tests.support.worlds import SMALL, World, append


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, clock=SeededClock())
    append(world.log(), *range(5))
    return world


@pytest.fixture
def subscriber(world):
    with Consumer(world.log(watch=True), "s") as consumer:
        yield consumer


def delays(world, subscriber, rounds):
    """How long the first record stays away each time it is refused; all others are done."""
    poison, *others = [subscriber.receive(0) for _ in range(5)]
    for message in others:
        subscriber.acknowledge(message)
    waited = []
    for count in range(1, rounds + 1):
        assert poison.delivery_count == count
        subscriber.negative_acknowledge(poison)
        refused_at = world.clock.monotonic()
        poison = subscriber.receive(1000)
        waited.append(round(world.clock.monotonic() - refused_at))
    return waited


def test_a_record_that_is_refused_again_and_again_stays_away_twice_as_long_each_time(world, subscriber):
    assert delays(world, subscriber, 8) == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_delays_can_be_set(world):
    with Consumer(world.log(watch=True), "s", backoff=Backoff(10, 25)) as subscriber:
        assert delays(world, subscriber, 3) == [10, 20, 25]
    for wrong in ((-1, 60), (61, 60)):
        with pytest.raises(InvalidInput, match=r"redelivery_delay_s=.*max_redelivery_delay_s="):
            Backoff(*wrong)


def test_others_go_on_coming_while_a_record_stays_away(world, subscriber):
    subscriber.negative_acknowledge(subscriber.receive(0))
    assert [subscriber.receive(0)["n"] for _ in range(4)] == [1, 2, 3, 4]
    assert subscriber.receive(0.5) is None
    assert subscriber.receive(1)["n"] == 0


def test_a_record_that_was_handled_in_the_meantime_does_not_come_again(world, subscriber):
    messages = [subscriber.receive(0) for _ in range(5)]
    for message in messages:
        subscriber.negative_acknowledge(message)
        subscriber.negative_acknowledge(message)  # twice is once
    subscriber.acknowledge(messages[3])
    assert [subscriber.receive(2)["n"] for _ in range(4)] == [0, 1, 2, 4]
    assert subscriber.receive(100) is None


def test_every_way_of_coming_again_is_counted_until_the_cursor_is_reset(world, subscriber):
    first = subscriber.receive(0)
    subscriber.negative_acknowledge(first)
    subscriber.redeliver_unacknowledged()
    again = [subscriber.receive(0) for _ in range(5)]
    assert [message.delivery_count for message in again] == [2, 1, 1, 1, 1]
    assert subscriber.receive(10) is None  # the refused one came with everything else
    subscriber.negative_acknowledge(first)  # of an earlier epoch: it came again already
    assert subscriber.receive(10) is None
    CursorHandle(world.log(), "s").reset("earliest")
    assert subscriber.receive(3).delivery_count == 1


def test_what_could_not_be_read_again_is_not_forgotten_I1(world, subscriber, monkeypatch):
    subscriber.negative_acknowledge([subscriber.receive(0) for _ in range(5)][2])
    fetch = subscriber._fetch

    def fails(read):
        monkeypatch.setattr(subscriber, "_fetch", fetch)
        raise CorruptData("a file cannot be read")

    monkeypatch.setattr(subscriber, "_fetch", fails)
    with pytest.raises(CorruptData):
        subscriber.receive(2)
    assert subscriber.receive(2)["n"] == 2


def test_what_was_read_again_while_a_reset_began_is_not_forgotten_if_the_reset_fails_I1(world, subscriber, monkeypatch):
    subscriber.negative_acknowledge([subscriber.receive(0) for _ in range(5)][2])
    reset, fetch = RevisionController(CursorNode(world.log(), "s")), subscriber._fetch

    def overtaken(read):
        monkeypatch.undo()
        reset.start_revision()
        return fetch(read)

    monkeypatch.setattr(subscriber, "_fetch", overtaken)
    assert subscriber.receive(2) is None
    reset.give_up()
    assert subscriber.receive(2)["n"] == 2


def test_an_acknowledgement_that_was_not_written_is_cancelled_by_a_reset_I7(world, subscriber):
    for _ in range(3):
        subscriber.acknowledge(subscriber.receive(0))
    CursorHandle(world.log(), "s").reset("earliest")
    subscriber.flush()
    assert CursorHandle(world.log(), "s").stats().backlog_records == 5


def test_an_acknowledgement_that_could_not_be_written_during_a_reset_still_counts_if_that_fails_I8(world, subscriber):
    first = subscriber.receive(0)
    subscriber.acknowledge(first)
    reset, flush = RevisionController(CursorNode(world.log(), "s")), subscriber.flush
    reset.start_revision()

    def during_the_reset() -> None:
        flush()
        reset.give_up()

    subscriber.flush = during_the_reset
    subscriber.redeliver_unacknowledged()
    assert subscriber.receive(0)["n"] == 1


def test_an_acknowledgement_that_could_not_be_written_is_written_later_without_being_asked_I8(world, subscriber):
    subscriber.acknowledge(subscriber.receive(0))
    reset = RevisionController(CursorNode(world.log(), "s"))
    reset.start_revision()
    subscriber.flush()
    reset.give_up()
    world.clock.sleep(5)
    subscriber.receive(0)
    assert CursorHandle(world.log(), "s").stats().backlog_records == 4


def test_refusing_costs_the_same_however_many_were_refused(world, subscriber, monkeypatch):
    messages = [subscriber.receive(0) for _ in range(5)]
    monkeypatch.setattr(Runs, "__init__", lambda *_: pytest.fail("the runs are built anew"))
    for message in messages:
        subscriber.negative_acknowledge(message)


# -- threads -------------------------------------------------------------------------------------------------------


def test_threads_that_share_a_consumer_get_different_records_and_all_of_them(tmp_path):
    world = World(tmp_path, limits=dataclasses.replace(SMALL, commits_per_ledger=1000))
    for number in range(0, 2000, 500):
        append(world.log(), *range(number, number + 500))
    with Consumer(world.log(watch=True), "s") as consumer:
        fetch, got = consumer._fetch, []

        def slow(read):
            time.sleep(0.02)
            return fetch(read)

        consumer._fetch = slow

        def work():
            while (message := consumer.receive(timeout_s=0.3)) is not None:
                got.append(message)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for message in got:
            consumer.acknowledge(message)
    assert Counter(message["n"] for message in got) == Counter(range(2000))
    assert CursorHandle(world.log(), "s").stats().backlog_records == 0


def test_a_consumer_may_be_closed_while_another_thread_waits_for_a_record(tmp_path):
    world = World(tmp_path)
    consumer = Consumer(world.log(watch=True), "s")
    raised = []

    def wait():
        try:
            consumer.receive()
        except InvalidInput as error:
            raised.append(error.code)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    consumer.close()
    thread.join(10)
    assert raised == ["LEDGER_CLOSED"]
