"""The newest record of every key, of which 1 % of the records are: a compacted read beside Kafka's compacted topic,
folded, and a Delta table into which every batch was merged. Parquet has nothing of the kind: it is read in full and
folded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contestants import Results
from benchmarks.data import numbered
from benchmarks.peers.stage import Stage
from benchmarks.peers.systems import DELTA, KAFKA, KAFKA_PARTITIONS, LEDGER, Ledger, System
from benchmarks.peers.work.base import Column, Figures, Plot, Versus, Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCHES = 5
LIVE = 100  # records per key
FULL = "ledger, read in full"
CLEANED_S = 120.0
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "500",
}


class Newest(Workload):
    name = "newest"
    title = "The newest record of every key (1 % of the records)"
    versus = (Versus("read_s", "ledger's speed of this", less_is_better=True),)
    plots = (Plot("read_s", "The newest record of every key: seconds to read it (less is better)"),)

    def contestants(self, stage: Stage) -> tuple[str, ...]:
        return (*stage.names, FULL) if LEDGER in stage.names else stage.names

    def run(self, stage: Stage, name: str) -> Figures:
        kind = LEDGER if name == FULL else name
        rows = stage.sizes.keyed_rows // (BATCHES * LIVE) * BATCHES * LIVE
        with stage.bench.scratch(), stage.fresh(kind, settings=_COMPACTED if kind == KAFKA else None) as system:
            write_s = self._timed(lambda: self._write(stage, system, rows))
            tidy_s = self._timed(lambda: self._tidy(system, name))
            found: list[tuple[int, int]] = []
            read_s = self._timed(lambda: found.append(self._read(stage, system, name)))
        keys = rows // LIVE
        if found != [(keys, sum(range(rows - keys, rows)))]:
            raise SystemExit(f"{name}: {keys} keys and the sum of their newest ids were wanted, found {found}")
        return {"write_s": write_s, "tidy_s": tidy_s, "read_s": read_s, "records": rows, "keys": keys}

    def _timed(self, act: Callable[[], None]) -> float:
        began = time.perf_counter()
        act()
        return round(time.perf_counter() - began, 3)

    def _write(self, stage: Stage, system: System, rows: int) -> None:
        """In some batches, each of which has every key many times."""
        spark, each, keys = stage.bench.spark, rows // BATCHES, rows // LIVE
        for batch in range(BATCHES):
            frame = numbered(spark, each, 2).selectExpr(
                f"id + {batch * each} AS id",
                f"lpad(string((id + {batch * each}) % {keys}), 20, '0') AS text",
                "payload",
            )
            if system.place.system == LEDGER:
                frame.write.format("ledger").options(**system.sink, keyColumn="text").mode("append").save()
            elif system.place.system == DELTA:
                self._merge(system.data, frame, first=batch == 0)
            elif system.place.system == KAFKA:
                # Its order is that of arrival, and tasks write at once: all records of a key must be in one task.
                system.append(frame.repartition(KAFKA_PARTITIONS, "text").sortWithinPartitions("id"))
            else:
                system.append(frame)

    def _merge(self, table: Path, frame: DataFrame, first: bool) -> None:
        """Delta refuses a merge in which two rows of the source meet one of the table: a batch is folded before."""
        newest = frame.groupBy("text").agg({"id": "max"}).withColumnRenamed("max(id)", "id")
        newest = newest.join(frame, ["id", "text"]).select("id", "text", "payload")
        if first:
            newest.write.format("delta").save(str(table))
            return
        newest.createOrReplaceTempView("changes")
        frame.sparkSession.sql(
            f"MERGE INTO delta.`{table}` t USING changes c ON t.text = c.text "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def _tidy(self, system: System, name: str) -> None:
        if name == LEDGER:
            assert isinstance(system, Ledger)
            with system.client() as client:
                client.compact(system.place.topic)
        elif name == KAFKA:
            self._await_cleaner(system)

    def _await_cleaner(self, system: System) -> None:
        """Kafka compacts when it thinks fit. Until the size has not changed for 5 seconds, or for two minutes."""
        deadline, since, before = time.monotonic() + CLEANED_S, time.monotonic(), -1.0
        while time.monotonic() < min(deadline, since + 5):
            size = sum(file.stat().st_size for folder in system.folders() for file in folder.glob("*.log"))
            if size != before:
                since, before = time.monotonic(), size
            time.sleep(0.2)

    def _read(self, stage: Stage, system: System, name: str) -> tuple[int, int]:
        """How many keys, and the sum of their newest ids. Whoever still has older records folds them by the order that
        the system gives: of the ledger and Kafka the offset, of Parquet the id."""
        spark = stage.bench.spark
        if name == LEDGER:
            frame = spark.read.format("ledger").options(**system.source, readCompacted=True).load()
        elif name == DELTA:
            frame = system.read(spark)
        elif name == KAFKA:
            frame = system.read(spark).selectExpr("key", "struct(offset, value) AS newest")
            frame = frame.groupBy("key").agg({"newest": "max"}).selectExpr("key", "`max(newest)`.value AS value")
            frame = system.unpacked(frame, "id", "text", "payload")
        else:
            frame = system.read(spark).selectExpr("text", "struct(id, payload) AS newest")
            frame = frame.groupBy("text").agg({"newest": "max"}).selectExpr("`max(newest)`.id AS id", "text")
        found = frame.selectExpr("count(*)", "sum(id)").first()
        assert found is not None
        return int(found[0]), int(found[1] or 0)

    def columns(self, runs: Results) -> Sequence[Column]:
        return [
            Column("read_s", "read s", 2, spread=True),
            Column("tidy_s", "compaction s"),
            Column("write_s", "write s"),
            Column("records", "records", 0),
            Column("keys", "keys", 0),
        ]
