"""Latency of tiny micro-batches: what a trigger costs when there is almost nothing to carry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks import data
from benchmarks.contestants import CEILING, LEDGER, Bench, Contestants, Progress
from benchmarks.session import drain

WARM_UP_BATCHES, BATCHES = 10, 60
ROWS_PER_BATCH, PARTITIONS = 10, 2


def contestants(bench: Bench) -> Contestants:
    """A Python source into a Python sink: the empty pair, and ledger to ledger."""
    batches = WARM_UP_BATCHES + BATCHES
    options = {
        "rows": str(batches * ROWS_PER_BATCH),
        "rowsPerTrigger": str(ROWS_PER_BATCH),
        "partitions": str(PARTITIONS),
    }
    limits = {"maxRowsPerTrigger": str(ROWS_PER_BATCH), "minPartitions": str(PARTITIONS)}

    def ceiling(folder: Path) -> Progress:
        frame = bench.spark.readStream.format("ceiling").options(**options).load()
        return drain(frame, "ceiling", folder / "checkpoint")

    def ledger(folder: Path) -> Progress:
        space = bench.namespace(folder / "storage")
        data.fill_topic(space, "input", batches, ROWS_PER_BATCH)
        frame = data.topic_stream(bench.spark, space, "input", **limits)
        return drain(frame, "ledger", folder / "checkpoint", space.options, "output")

    pair: Contestants = {CEILING: ceiling}
    return pair | {LEDGER: ledger} if bench.zookeeper else pair


def latency(bench: Bench, run: Callable[[Path], Progress]) -> dict[str, Any]:
    """Trigger times of one run's batches, those after its warm-up."""
    with bench.scratch() as folder:
        progress = run(folder)
    if [batch["numInputRows"] for batch in progress] != [ROWS_PER_BATCH] * (WARM_UP_BATCHES + BATCHES):
        raise SystemExit(f"not {WARM_UP_BATCHES + BATCHES} batches of {ROWS_PER_BATCH} rows each")
    times_ms = [batch["durationMs"]["triggerExecution"] for batch in progress[WARM_UP_BATCHES:]]
    p50, p90 = percentiles(times_ms)
    return {"p50_ms": p50, "p90_ms": p90, "times_ms": times_ms}


def percentiles(values: list[float]) -> tuple[float, float]:
    """p50 and p90."""
    tenths = quantiles(values, n=10, method="inclusive")
    return round(tenths[4], 1), round(tenths[8], 1)
