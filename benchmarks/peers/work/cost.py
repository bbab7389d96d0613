"""What a million rows cost: CPU seconds and peak memory of writing and of reading them, by a Spark job in a process
of its own, and what lies on the disk then. The broker's and ZooKeeper's share is part of it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks import data
from benchmarks.contestants import Results
from benchmarks.peers.driver import driver
from benchmarks.peers.stage import Stage
from benchmarks.peers.systems import System
from benchmarks.peers.watch import Watch
from benchmarks.peers.work.base import Column, Figures, Workload

PATIENCE_S = 1_800.0


class Cost(Workload):
    name = "cost"
    title = "What it costs, by a job in a process of its own"
    one_round = True

    def _input(self, stage: Stage) -> Path:
        return stage.bench.work / "input-cost"

    def prepare(self, stage: Stage) -> None:
        data.write_parquet(stage.bench.spark, self._input(stage), stage.sizes.rows)

    def clean(self, stage: Stage) -> None:
        shutil.rmtree(self._input(stage), ignore_errors=True)

    def run(self, stage: Stage, name: str) -> Figures:
        with stage.bench.scratch() as folder, stage.fresh(name) as system:
            write = self._job(stage, system, folder, "write")
            size = system.size()
            return write | size | self._job(stage, system, folder, "read")

    def _job(self, stage: Stage, system: System, folder: Path, what: str) -> Figures:
        """Its start is part of it: of Spark, and of Python."""
        job = driver(
            folder / "job.log",
            job=what, place=system.place.words(), work=str(folder), jars=[str(jar) for jar in stage.jars],
            input=str(self._input(stage)),
        )  # fmt: skip
        with Watch(job.process.pid, stage.servers(system.place.system)) as watch:
            job.finish(PATIENCE_S)
        millions = stage.sizes.rows / 1e6
        return {f"{what}_cpu_s": round(watch.cpu_s / millions, 3), f"{what}_peak_mb": round(watch.peak_mb)}

    def columns(self, runs: Results) -> Sequence[Column]:
        return [
            Column("write_cpu_s", "write: CPU s per M rows", 1),
            Column("write_peak_mb", "peak MB", 0),
            Column("read_cpu_s", "read: CPU s per M rows", 1),
            Column("read_peak_mb", "peak MB", 0),
            Column("disk_mb", "on disk MB", 0),
            Column("files", "files", 0),
        ]
