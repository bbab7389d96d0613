"""Consumers that share a subscription, in one process with as many connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.key_shared_consumer import KeySharedConsumer
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.receiving import Message
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.metadata.records import Cursor
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults
from tests.support.worlds import World

KEYED = pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64())])


def keyed_world(folder: Path, records: int = 0, keys: int = 1, seed: int = 0) -> World:
    """A topic with a key; its records have so many keys, by turns."""
    world = World(folder, clock=SeededClock(seed), schema=KEYED, key="k")
    send(world, *((f"key {n % keys}", n) for n in range(records)))
    return world


def send(world: World, *records: tuple[str | None, int]) -> None:
    with Producer(world.log()) as producer:
        for key, n in records:
            producer.send({"k": key, "n": n})


def shared(world: World, faults: Faults | None = None, **options: Any) -> SharedConsumer:
    return SharedConsumer(world.log(faults, watch=True), "s", **options)


def key_shared(world: World, faults: Faults | None = None, **options: Any) -> KeySharedConsumer:
    return KeySharedConsumer(world.log(faults, watch=True), "s", **options)


def handle(world: World) -> CursorHandle:
    return CursorHandle(world.log(), "s")


def cursor(world: World) -> Cursor:
    return CursorNode(world.log(), "s").refresh(sync=True)


def die(consumer: SharedConsumer) -> None:
    """As after kill -9, when its session has ended."""
    consumer._log.metadata.close()


def go_away(world: World, consumer: SharedConsumer) -> None:
    """It is paused for longer than its session."""
    world.clock.sleep(11)
    consumer._log.metadata.expire()


def take(consumer: SharedConsumer, count: int | None = None) -> list[Message]:
    """What comes, up to ``count``, or until nothing does."""
    taken: list[Message] = []
    while count is None or len(taken) < count:
        message = consumer.receive(0.0)
        if message is None:
            break
        taken.append(message)
    return taken


def numbers(messages: list[Message]) -> list[int]:
    return [message["n"] for message in messages]
