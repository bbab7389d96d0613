"""Which ids of a topic have become visible since the last look: without Spark, which would be slow to start and to
ask."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from benchmarks.peers.systems import DELTA, KAFKA, KAFKA_PARTITIONS, LEDGER, Ledger, System

Look = Callable[[], list[int]]


def follow(system: System, stack: ExitStack) -> Look:
    """A function that gives the ids which have come since it was last called, as often as each is there."""
    if system.place.system == LEDGER:
        assert isinstance(system, Ledger)
        return _of_ledger(system, stack)
    if system.place.system == KAFKA:
        return _of_kafka(system, stack)
    added = _delta_files if system.place.system == DELTA else _parquet_files
    seen: set[Path] = set()

    def look() -> list[int]:
        new = [file for file in dict.fromkeys(added(system.data)) if file not in seen]
        seen.update(new)
        return [number for file in new for number in pq.ParquetFile(file).read(["id"]).column("id").to_pylist()]

    return look


def _of_ledger(system: Ledger, stack: ExitStack) -> Look:
    client: Any = stack.enter_context(system.client())
    topic, seen = system.place.topic, "earliest"

    def look() -> list[int]:
        nonlocal seen
        end = client.end(topic)
        batches = client.reader(topic, start=seen, end=end, columns=["id"]).batches()
        ids = [number for batch in batches for number in batch.column("id").to_pylist()]
        seen = end
        return ids

    return look


def _of_kafka(system: System, stack: ExitStack) -> Look:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": system.place.kafka,
            "group.id": f"follow-{system.place.topic}",
            "enable.auto.commit": False,
        }
    )
    stack.callback(consumer.close)
    consumer.assign([TopicPartition(system.place.topic, part, 0) for part in range(KAFKA_PARTITIONS)])

    def look() -> list[int]:
        ids: list[int] = []
        while messages := consumer.consume(10_000, timeout=0.05):
            ids += [int.from_bytes(message.value()[:8], "big") for message in messages if not message.error()]
        return ids

    return look


def _delta_files(table: Path) -> Iterator[Path]:
    """Those that the commits add, in their order. This table has no other changes."""
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            if added := json.loads(line).get("add"):
                yield table / unquote(added["path"])


def _parquet_files(table: Path) -> Iterator[Path]:
    """Those that the sink's log names; others are of batches that were not finished. A number is a batch, and one with
    `.compact` has all before it too."""
    log = table / "_spark_metadata"
    for batch in sorted(log.glob("[0-9]*"), key=lambda file: int(file.name.partition(".")[0])):
        for line in batch.read_text().splitlines()[1:]:
            yield Path(unquote(urlparse(json.loads(line)["path"]).path))
