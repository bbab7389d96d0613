"""Many processes that write to one topic, one record per flush, beside Kafka's: `acks=all`, no linger, idempotent.

Kafka answers when the record is in the broker's memory, the ledger when it is on the disk. So Kafka is there twice:
as it comes, and with a topic that is synced for every message, which is the ledger's promise. Delta and Parquet have
no writer without Spark.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.contestants import Results
from benchmarks.data import Namespace
from benchmarks.peers.stage import Stage
from benchmarks.peers.systems import KAFKA, LEDGER
from benchmarks.peers.work.base import Column, Figures, Plot, Workload, by_step
from benchmarks.writers import together, write_for, writers

SYNCED = "kafka, synced"
_KEYS = {"commits_per_s": "records/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms", "slowest_of_mean": "slowest of the mean"}


class Writers(Workload):
    name = "writers"
    title = "Many processes write to one topic, one record per flush"
    warm_up = False  # every process is new
    plots = (Plot("commits_per_s@16", "Sixteen processes, one record per flush: records a second"),)

    def contestants(self, stage: Stage) -> tuple[str, ...]:
        every = {LEDGER: (LEDGER,), KAFKA: (KAFKA, SYNCED)}
        return tuple(name for kind in stage.names for name in every.get(kind, ()))

    def run(self, stage: Stage, name: str) -> Figures:
        figures: Figures = {}
        for count in stage.sizes.writers:
            found = self._ledger(stage, count) if name == LEDGER else self._kafka(stage, count, name == SYNCED)
            figures |= {f"{key}@{count}": found[key] for key in _KEYS}
        return figures

    def _ledger(self, stage: Stage, count: int) -> dict[str, float]:
        with stage.fresh(LEDGER) as system:
            system.data.mkdir()
            return writers(Namespace(system.place.zookeeper, str(system.data)), [count], stage.sizes.writing_s)[
                str(count)
            ]

    def _kafka(self, stage: Stage, count: int, synced: bool) -> dict[str, float]:
        with stage.fresh(KAFKA, partitions=1, settings={"flush.messages": "1"} if synced else None) as system:
            module = ["benchmarks.peers.work.writers", "--kafka", system.place.kafka, "--topic", system.place.topic]
            return together(module, count, stage.sizes.writing_s)

    def columns(self, runs: Results) -> Sequence[Column]:
        return [Column(key, heading, 2 if "slowest" in key else 1) for key, heading in _KEYS.items()]

    def table(self, runs: Results) -> str:
        return by_step(self.title, "processes", runs, self.columns(runs))


def _write(kafka: str, topic: str, seconds: float) -> None:
    """One of the processes."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka, "acks": "all", "linger.ms": 0, "enable.idempotence": True})

    def stored(error: object | None, _message: Any) -> None:
        if error is not None:
            raise SystemExit(f"Kafka did not take a record: {error}")

    def write(number: int) -> None:
        producer.produce(topic, key=b"tiny", value=number.to_bytes(8, "big"), on_delivery=stored)
        if producer.flush(30):
            raise SystemExit("Kafka did not take a record in 30 s")

    write_for(seconds, write)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.work.writers")
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    asked = parser.parse_args()
    _write(asked.kafka, asked.topic, asked.seconds)


if __name__ == "__main__":
    main()
