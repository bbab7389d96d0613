"""A consumer that reads compacted: the last record of every key, then every change, and no deletion is missed (I9)."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from pyspark_ledger.compaction.run import compact
from pyspark_ledger.cursors import compacted_consumer
from pyspark_ledger.cursors.compacted_consumer import CompactedConsumer
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.errors import DataLoss
from pyspark_ledger.lifecycle import gc, retention
from pyspark_ledger.log import policies
from pyspark_ledger.testing.clock import SeededClock
from tests.support import histories
from tests.support.sharing import KEYED, send, take
from tests.support.worlds import SMALL, World


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, replace(SMALL, gc_grace_ms=0), SeededClock(), KEYED, key="k")


@pytest.fixture(autouse=True)
def small_reads(monkeypatch):
    monkeypatch.setattr(compacted_consumer, "READ_RECORDS", 3)


def consumer(world, **options):
    return CompactedConsumer(world.log(watch=True), "s", **options)


def handle(world):
    return CursorHandle(world.log(), "s")


def pairs(messages):
    return [(message["k"], message["n"]) for message in messages]


def give_up_what_may_be(world):
    """Retention keeps nothing, and gc runs often enough to delete the files."""
    policies.change(world.log(), policies.Changes(retention_age=timedelta(milliseconds=1)))
    world.clock.sleep(1)
    retention.trim(world.log())
    for _ in range(4):
        world.clock.sleep(1)
        gc.collect(world.log())


def test_the_last_record_of_every_key_comes_and_then_every_change(world):
    send(world, ("a", 1), ("b", 2), ("a", 3), ("c", 4), ("c", None), ("d", 5))
    compact(world.log())
    one = consumer(world)
    assert pairs(take(one)) == [("b", 2), ("a", 3), ("d", 5)]
    send(world, ("a", 6), ("a", 7), ("b", None))
    assert pairs(take(one)) == [("a", 6), ("a", 7), ("b", None)]


def test_a_successor_goes_on_at_the_first_record_that_is_not_done(world):
    send(world, *((f"key {n % 7}", n) for n in range(20)))
    compact(world.log())
    send(world, ("x", 20), ("x", 21))
    first = consumer(world)
    messages = take(first)
    assert pairs(messages) == [*((f"key {n % 7}", n) for n in range(13, 20)), ("x", 20), ("x", 21)]
    for number in (0, 1, 3):
        assert first.acknowledge(messages[number])
    first.close()
    assert handle(world).stats().mark_delete == messages[2].position
    second = consumer(world)
    again = take(second)
    assert again[0].position == messages[2].position
    assert second.acknowledge_cumulative(again[-1])
    second.close()
    assert handle(world).stats().backlog_records == 0


def test_a_deletion_of_what_was_delivered_is_not_missed_over_a_restart_I9(world):
    send(world, ("a", 1), ("b", 2), ("c", 3))
    first = consumer(world)
    [message] = take(first, 1)
    first.acknowledge(message)
    first.close()
    send(world, ("a", None), ("d", 4))
    compact(world.log())
    compact(world.log())
    assert pairs(take(consumer(world))) == [("b", 2), ("c", 3), ("a", None), ("d", 4)]


def test_what_the_log_has_given_up_comes_from_the_generation_I9(world):
    for n in range(12):
        send(world, (f"key {n % 5}", n))
    compact(world.log())
    for n in range(12, 20):
        send(world, ("later", n))
    give_up_what_may_be(world)
    one = consumer(world)
    messages = take(one)
    assert pairs(messages)[:5] == [(f"key {n % 5}", n) for n in range(7, 12)]
    one.acknowledge(messages[0])
    one.close()
    assert handle(world).stats().mark_delete == messages[1].position  # before where the log begins
    assert pairs(take(consumer(world))) == pairs(messages)[1:]


def test_a_refused_record_comes_again_and_holds_the_subscription(world):
    send(world, ("a", 1), ("b", 2), ("a", 3))
    compact(world.log())
    one = consumer(world)
    first, second = take(one)
    one.negative_acknowledge(first)
    one.acknowledge(second)
    one.flush()
    assert handle(world).stats().mark_delete == first.position
    world.clock.sleep(1)
    [again] = take(one)
    assert (again.position, again.delivery_count) == (first.position, 2)
    one.acknowledge(again)
    one.flush()
    assert handle(world).stats().backlog_records == 0


def test_a_reset_acts_at_once_and_cancels_acknowledgements_I7(world):
    send(world, *((f"key {n}", n) for n in range(10)))
    compact(world.log())
    one = consumer(world)
    messages = take(one, 4)
    handle(world).reset("latest")
    assert not one.acknowledge(messages[0])
    assert take(one) == []
    handle(world).reset("earliest")
    assert len(take(one)) == 10
    one.redeliver_unacknowledged()
    again = take(one)
    assert len(again) == 10
    assert {message.delivery_count for message in again} == {2}


def test_what_is_in_no_generation_and_was_given_up_is_told(world, monkeypatch):
    for n in range(12):
        send(world, (f"key {n}", n))
    strict, careless = (CompactedConsumer(world.log(watch=True), f"s{n}", fail_on_data_loss=n == 0) for n in range(2))
    monkeypatch.setattr(retention, "subscriptions", lambda _: [])  # as if nobody held anything
    give_up_what_may_be(world)
    for _ in range(2):
        with pytest.raises(DataLoss, match="LEDGER_TRIMMED"):
            strict.receive(0.0)
    assert pairs(take(careless)) == [(f"key {n}", n) for n in range(8, 12)]
    assert CursorHandle(world.log(), "s1").stats().lost == 8


@pytest.mark.parametrize("seed", histories(6))
def test_whatever_happens_the_state_is_that_of_the_log_I9(world, seed):
    """Its consumers restart, acknowledge a part, and keep the state that they have built from what came."""
    chance = random.Random(seed)
    log, state, one = {}, {}, consumer(world)
    for number in range(120):
        act = chance.choice(["write", "write", "take", "take", "take", "compact", "restart", "trim"])
        if act == "write":
            records = [(f"key {chance.randrange(6)}", chance.choice([None, number])) for _ in range(3)]
            send(world, *records)
            log |= dict(records)
        elif act == "take":
            messages = take(one, chance.randrange(1, 6))
            state |= dict(pairs(messages))
            for message in chance.sample(messages, chance.randrange(len(messages) + 1)):
                one.acknowledge(message)
        elif act == "compact":
            compact(world.log())
        elif act == "trim":
            give_up_what_may_be(world)
        else:
            one.close() if chance.random() < 0.5 else one._log.metadata.close()
            one = consumer(world)
    state |= dict(pairs(take(one)))
    left = {key: n for key, n in log.items() if n is not None}
    assert {key: n for key, n in state.items() if n is not None} == left
