"""Tiny micro-batches from a topic to another one of the same kind: what a trigger costs when there is little to
carry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.contestants import Progress, Results
from benchmarks.data import numbered
from benchmarks.peers.stage import CEILING, Stage
from benchmarks.peers.work.base import Column, Figures, Plot, Versus, Workload, percentile
from benchmarks.session import drain

ROWS = 100
WARM_UP = 10


class TinyBatches(Workload):
    name = "tiny"
    title = "Micro-batches of 100 rows, from topic to topic: time of a trigger"
    versus = (Versus("p50_ms", "ledger's speed of this", less_is_better=True),)
    plots = (Plot("p50_ms", "A micro-batch of 100 rows, median: milliseconds (less is better)"),)

    def contestants(self, stage: Stage) -> tuple[str, ...]:
        return (CEILING, *stage.names)

    def run(self, stage: Stage, name: str) -> Figures:
        batches = WARM_UP + stage.sizes.tiny_batches
        with stage.bench.scratch() as folder:
            progress = (
                self._floor(stage, folder, batches) if name == CEILING else self._copy(stage, name, folder, batches)
            )
        if [batch["numInputRows"] for batch in progress] != [ROWS] * batches:
            raise SystemExit(f"{name}: not {batches} batches of {ROWS} rows each")
        times_ms = [batch["durationMs"]["triggerExecution"] for batch in progress[WARM_UP:]]
        return {"p50_ms": percentile(times_ms, 0.5), "p99_ms": percentile(times_ms, 0.99), "batches": batches}

    def _floor(self, stage: Stage, folder: Path, batches: int) -> Progress:
        """A Python source that reads nothing into a Python sink that keeps nothing."""
        options = {"rows": batches * ROWS, "rowsPerTrigger": ROWS, "partitions": 1}
        frame = stage.bench.spark.readStream.format("ceiling").options(**options).load()
        return drain(frame, "ceiling", folder / "checkpoint")

    def _copy(self, stage: Stage, name: str, folder: Path, batches: int) -> Progress:
        """One task per batch for each: a topic of one partition, one file per batch."""
        spark = stage.bench.spark
        with stage.fresh(name, partitions=1) as source, stage.fresh(name, partitions=1) as target:
            source.append(numbered(spark, batches * ROWS, batches))
            target.create(spark)
            frame = target.packed(source.unpacked(source.stream(spark, ROWS), "id", "text", "payload"))
            return drain(frame, target.format, folder / "checkpoint", target.sink)

    def columns(self, runs: Results) -> Sequence[Column]:
        return [Column("p50_ms", "p50 ms", 0, spread=True), Column("p99_ms", "p99 ms", 0, spread=True)]
