"""Peak private memory (RssAnon: mapped files do not count) of a Python worker with a large partition.

The session runs with spark.python.worker.reuse=false: every measured worker is fresh, so that
nothing that an earlier task left behind is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks import data
from benchmarks.contestants import Bench, Contestants, Progress, describe
from benchmarks.cpu import tree
from benchmarks.session import drain

SESSION = {"spark.python.worker.reuse": "false"}
INTERVAL_S = 0.05
RUNS = 2  # of each; the larger peak counts
IDLE = {"rows": "10", "partitions": "1", "restSeconds": "1"}
IDLE_SOURCE, IDLE_SINK = "idle source", "idle sink"
_WORKER = b"pyspark.daemon\0pyspark.worker\0"


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def anonymous_bytes(pid: int) -> int:
    with suppress(OSError):  # it ended while it was looked at
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def executor_workers() -> Iterator[int]:
    """Forks of the executor's Python daemon; they keep its command line."""
    processes = tree()
    daemons_and_workers = {pid for pid in processes if _WORKER in _command(pid)}
    return (pid for pid in daemons_and_workers if int(processes[pid][1]) in daemons_and_workers)


class PeakSampler(threading.Thread):
    """`with PeakSampler() as sampler: …`, then `sampler.peak_bytes` is that of the largest worker."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = self.samples = 0
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            for pid in executor_workers():
                self.peak_bytes = max(self.peak_bytes, anonymous_bytes(pid))
                self.samples += 1

    def __enter__(self) -> PeakSampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def contestants(bench: Bench, parquet: Path) -> Contestants:
    """Idle workers, the ceiling (what Spark itself needs) and the ledger, each with one partition."""
    large = {"rows": str(bench.rows), "partitions": "1"}

    def ceiling(options: dict[str, str]) -> DataFrame:
        return bench.spark.readStream.format("ceiling").options(**options).load()

    def one_partition() -> DataFrame:
        return data.parquet_stream(bench.spark, parquet).coalesce(1)

    def idle_sink(folder: Path) -> Progress:
        idle = bench.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        return drain(idle.coalesce(1), "ceiling", folder / "checkpoint", IDLE)

    plain: Contestants = {
        IDLE_SOURCE: lambda folder: drain(ceiling(IDLE), "noop", folder / "checkpoint"),
        IDLE_SINK: idle_sink,
        "ceiling reads": lambda folder: drain(ceiling(large), "noop", folder / "checkpoint"),
        "ceiling writes": lambda folder: drain(one_partition(), "ceiling", folder / "checkpoint"),
    }
    return plain | _ledger_contestants(bench, parquet, one_partition) if bench.zookeeper else plain


def _ledger_contestants(bench: Bench, parquet: Path, rows: Callable[[], DataFrame]) -> Contestants:
    space = bench.namespace(bench.work / "memory-topic")
    drain(rows(), "ledger", bench.work / "checkpoint-memory", space.options, "rows")

    def reads(folder: Path) -> Progress:
        return drain(data.topic_stream(bench.spark, space, "rows").coalesce(1), "noop", folder / "checkpoint")

    def writes(folder: Path) -> Progress:
        options = bench.namespace(folder / "storage").options
        return drain(rows(), "ledger", folder / "checkpoint", options, "rows")

    return {"ledger reads": reads, "ledger writes": writes}


def peaks(bench: Bench, parquet: Path) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    for name, run in contestants(bench, parquet).items():
        measured = [_peak(bench, run) for _ in range(RUNS)]
        results[name] = max(measured, key=lambda result: result["peak_mb"])
        print(f"  {name}: {describe(results[name])}", flush=True)
    for name, result in results.items():
        idle = results[IDLE_SINK if "write" in name or name == IDLE_SINK else IDLE_SOURCE]
        result["above_idle_mb"] = round(result["peak_mb"] - idle["peak_mb"], 1)
    return results


def _peak(bench: Bench, run: Callable[[Path], Progress]) -> dict[str, Any]:
    with bench.scratch() as folder, PeakSampler() as sampler:
        run(folder)
    if not sampler.samples:
        raise SystemExit("no Python worker was seen: has the daemon's command line changed?")
    return {"peak_mb": round(sampler.peak_bytes / 1e6, 1), "samples": sampler.samples}
