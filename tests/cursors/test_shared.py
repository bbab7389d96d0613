"""Consumers that share a subscription: each record goes to one of them, and what a dead one had comes to others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.key_shared_consumer import KeySharedConsumer
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.testing.clock import SeededClock
from tests.support.worlds import World, append

KEYED = pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64())])


@pytest.fixture
def world(tmp_path):
    """Ten entries of three records each."""
    world = World(tmp_path, clock=SeededClock())
    log = world.log()
    for number in range(0, 30, 3):
        append(log, number, number + 1, number + 2)
    return world


@pytest.fixture
def keyed(tmp_path):
    """Thirty records of ten keys, by turns."""
    world = World(tmp_path, clock=SeededClock(), schema=KEYED, key="k")
    with Producer(world.log()) as producer:
        for n in range(30):
            producer.send({"k": f"key {n % 10}", "n": n})
    return world


def shared(world, faults=None, **options):
    return SharedConsumer(world.log(faults, watch=True), "s", **options)


def key_shared(world, faults=None, **options):
    return KeySharedConsumer(world.log(faults, watch=True), "s", **options)


def handle(world):
    return CursorHandle(world.log(), "s")


def take(consumer, count=None):
    """What comes, up to ``count``, or until nothing does."""
    taken = []
    while count is None or len(taken) < count:
        message = consumer.receive(0.0)
        if message is None:
            break
        taken.append(message)
    return taken


def numbers(messages):
    return [message["n"] for message in messages]


def test_each_record_goes_to_one_of_those_who_share(world):
    consumers = [shared(world) for _ in range(3)]
    got = [[] for _ in consumers]
    for _ in range(40):
        for consumer, mine in zip(consumers, got, strict=True):
            mine += take(consumer, 1)
    assert all(got)
    assert sorted(n for mine in got for n in numbers(mine)) == list(range(30))


def test_keys(keyed):
    consumers = [key_shared(keyed) for _ in range(3)]
    got = [[] for _ in consumers]
    for _ in range(40):
        for consumer, mine in zip(consumers, got, strict=True):
            mine += take(consumer, 1)
            for m in mine:
                consumer.acknowledge(m)
    assert sorted(n for mine in got for n in numbers(mine)) == list(range(30))
    print([numbers(mine) for mine in got])
    assert all(got)
