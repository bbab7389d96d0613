"""One machine with a wrong clock spoils nothing for the others: ZooKeeper's clock sets the bounds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.log import policies, seal, topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import MemoryMetadata
from tests.support.worlds import SCHEMA, SMALL, World, append

DAY_MS = 24 * 3600 * 1000
YEAR_MS = 365 * DAY_MS
OFF = pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS], ids=["ahead", "behind"])


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, SMALL, SeededClock(1))
    policies.change(world.log(), policies.Changes(evict_producers_after=timedelta(days=7)))
    return world


def wrong_log(world: World, off_ms: int) -> Log:
    clock = SeededClock(int.from_bytes(world.clock.new_id()), world.clock.now_ms() + off_ms)
    metadata = MemoryMetadata(world.server, None, clock)
    return Log(metadata, world.storage, world.topic, limits=world.limits, clock=clock)


def batch(world: World, number: int, who: str, sequence: int) -> None:
    append(world.log(), number, producer=who, batch_id=BatchId(sequence, who, "run", b""))


@OFF
def test_publish_times_stay_within_a_minute_of_zookeepers(world, off_ms):
    for number in range(6):
        done = append(wrong_log(world, off_ms) if number % 2 else world.log(), number)
        assert abs(done.publish_ms - world.clock.now_ms()) <= 60_000
        world.clock.sleep(1)


@OFF
def test_nobody_is_evicted_because_of_it(world, off_ms):
    batch(world, 1, "a", 1)
    batch(world, 2, "b", 1)
    append(wrong_log(world, off_ms), 3)
    world.clock.sleep(1)
    for number in range(4, 10):  # two seals
        append(world.log(), number)
    batch(world, 10, "a", 2)
    batch(world, 11, "b", 2)
    assert world.log().producers()[1].evicted == 0


def test_nobody_is_evicted_either_after_a_time_that_was_believed_once(world):
    """By an earlier version: publish times go on from there, because they never go back."""
    batch(world, 1, "a", 1)
    poisoned = world.clock.now_ms() + YEAR_MS
    world.log().change_head(lambda head: replace(head, last_publish_ms=poisoned), "as a wrong clock did")
    for number in range(2, 10):
        assert append(world.log(), number).publish_ms == poisoned
    batch(world, 10, "a", 2)
    assert world.log().producers()[1].evicted == 0
    world.clock.sleep(YEAR_MS / 1000 + 1)
    assert append(world.log(), 11).publish_ms == world.clock.now_ms()


def test_who_is_silent_is_still_evicted(world):
    batch(world, 1, "a", 1)
    world.clock.sleep(8 * DAY_MS / 1000)
    for number in range(2, 8):
        append(world.log(), number)
    assert world.log().producers()[1].evicted == 1


@OFF
def test_a_ledger_is_sealed_at_its_age_and_not_at_every_commit(world, off_ms):
    for number in range(3):
        append(wrong_log(world, off_ms), number)
    log = wrong_log(world, off_ms)
    assert log.view().head.ledger == 0
    assert not seal.is_full(log, log.view())
    world.clock.sleep(SMALL.ledger_age_ms / 1000 + 120)
    log = wrong_log(world, off_ms)
    assert seal.is_full(log, log.view())
    opened = seal.seal(log).head
    assert opened.ledger == 1
    assert abs(opened.ledger_opened_ms - world.clock.now_ms()) <= 60_000


@OFF
def test_nor_is_the_age_of_a_topic_s_first_ledger_wrong(world, off_ms):
    clock = SeededClock(3, world.clock.now_ms() + off_ms)
    topic = topics.create_topic(world.metadata(), "other", SCHEMA, clock=clock, storage=world.storage)
    log = Log(world.metadata(), world.storage, topic, limits=world.limits, clock=world.clock)
    assert abs(log.view().head.ledger_opened_ms - world.clock.now_ms()) <= 60_000
