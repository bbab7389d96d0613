"""What the workloads share: a session with every peer's jars, a ZooKeeper, a broker, and how much there is to do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from benchmarks.contestants import Bench
from benchmarks.peers.broker import Broker
from benchmarks.peers.systems import KAFKA, KAFKA_PARTITIONS, LEDGER, NAMES, Place, System, system_at

CEILING = "ceiling"
CATALOG = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # as many as cores; its 50 are for large tables
}


def settings(jars: list[Path]) -> dict[str, str]:
    """Of a session that knows all peers."""
    return CATALOG | {"spark.jars": ",".join(map(str, jars)), "spark.sql.shuffle.partitions": "2"}


@dataclass(frozen=True)
class Sizes:
    """How much of everything. The rest follows from the number of rows."""

    rows: int = 10_000_000
    wide_rows: int = 2_000_000
    tiny_batches: int = 100
    rate: int = 20_000
    seconds: int = 60
    ages: tuple[int, ...] = (10, 1_000, 2_000)
    later_ages: tuple[int, ...] = (10_000, 100_000)
    kills: int = 3
    keyed_rows: int = 5_000_000
    writers: tuple[int, ...] = (1, 4, 16, 64)
    writing_s: float = 8.0
    s3_rows: int = 1_000_000

    @classmethod
    def of(cls, rows: int | None, long: bool, small: bool) -> Sizes:
        if small:
            return cls(
                rows or 50_000, 10_000, 12, 2_000, 6, (3, 12, 24), (100, 300), 1, 20_000, (1, 2), 1.0, 20_000
            )  # fmt: skip
        whole = cls()
        later = (*whole.later_ages, 1_000_000) if long else whole.later_ages
        if rows is None or rows == whole.rows:
            return cls(later_ages=later)
        return cls(rows, rows // 5, keyed_rows=rows // 2, s3_rows=rows // 10, later_ages=later)


@dataclass(frozen=True)
class Stage:
    bench: Bench
    broker: Broker | None
    sizes: Sizes
    jars: list[Path]
    names: tuple[str, ...] = NAMES
    zookeeper_pids: tuple[int, ...] = ()
    _topics: Iterator[int] = field(default_factory=count)

    def servers(self, name: str) -> list[int]:
        """The processes that serve a system."""
        if name == KAFKA and self.broker is not None:
            return [self.broker.pid]
        return list(self.zookeeper_pids) if name == LEDGER else []

    @contextmanager
    def fresh(
        self, name: str, *, partitions: int = KAFKA_PARTITIONS, settings: dict[str, str] | None = None
    ) -> Iterator[System]:
        """A system that has nothing yet; whatever it stores is removed at the end."""
        number = next(self._topics)
        folder = self.bench.work / f"peer{number}"
        folder.mkdir()
        try:
            with self._place(name, str(folder), number, partitions, settings or {}) as place:
                yield system_at(place)
        finally:
            shutil.rmtree(folder)

    @contextmanager
    def _place(self, name: str, folder: str, number: int, partitions: int, settings: dict[str, str]) -> Iterator[Place]:
        topic = f"bench{number}"
        if name == LEDGER:
            yield Place(name, folder, topic, zookeeper=f"{self.bench.zookeeper}/peers{number}")
        elif name == KAFKA:
            assert self.broker is not None
            Path(folder, "broker").symlink_to(self.broker.logs)
            self.broker.create(topic, partitions, settings)
            try:
                yield Place(name, folder, topic, kafka=self.broker.address)
            finally:
                self.broker.delete(topic)
        else:
            yield Place(name, folder, topic)
