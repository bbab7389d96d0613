"""Bulk write, then catch-up read of what was written: both by one query under Trigger.AvailableNow."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from benchmarks import data
from benchmarks.contestants import Progress, Results, throughput
from benchmarks.peers.stage import CEILING, Stage
from benchmarks.peers.systems import System
from benchmarks.peers.work.base import Column, Figures, Plot, Versus, Workload, compared
from benchmarks.session import drain


class Bulk(Workload):
    """Narrow or wide records; the ceiling is a Python source that reads nothing and a Python sink that keeps
    nothing."""

    payload_bytes: ClassVar[int]

    def rows(self, stage: Stage) -> int:
        raise NotImplementedError

    def contestants(self, stage: Stage) -> tuple[str, ...]:
        return (CEILING, *stage.names)

    def prepare(self, stage: Stage) -> None:
        data.write_parquet(stage.bench.spark, self._input(stage), self.rows(stage), self.payload_bytes)

    def clean(self, stage: Stage) -> None:
        shutil.rmtree(self._input(stage), ignore_errors=True)

    def _input(self, stage: Stage) -> Path:
        return stage.bench.work / f"input-{self.name}"

    def run(self, stage: Stage, name: str) -> Figures:
        if name == CEILING:
            return self._timed(stage, partial(self._drop, stage), partial(self._invent, stage), dict)
        with stage.fresh(name) as system:
            write, read = partial(self._write, stage, system), partial(self._read, stage, system)
            return self._timed(stage, write, read, system.size)

    def _timed(self, stage: Stage, write: Any, read: Any, size: Any) -> Figures:
        rows = self.rows(stage)
        bench = replace(stage.bench, rows=rows)
        figures: Figures = {}
        for what, run in (("write", write), ("read", read)):
            once = throughput(bench, run)
            figures |= {
                f"{what}_wall_s": once["wall_s"],
                f"{what}_batch_s": once["batch_s"],
                f"{what}_start_s": round(once["wall_s"] - once["batch_s"], 3),
                f"{what}_mrows": round(rows / once["wall_s"] / 1e6, 4),
                f"{what}_batch_mrows": round(rows / once["batch_s"] / 1e6, 4),
                f"{what}_cpu_s": once["cpu_s"],
            }
            if what == "write":
                figures |= size()
        return figures

    def _drop(self, stage: Stage, folder: Path) -> Progress:
        return drain(data.parquet_stream(stage.bench.spark, self._input(stage)), "ceiling", folder / "checkpoint")

    def _invent(self, stage: Stage, folder: Path) -> Progress:
        rows = self.rows(stage)
        options = {"rows": rows, "partitions": data.file_count(rows), "payloadBytes": self.payload_bytes}
        frame = stage.bench.spark.readStream.format("ceiling").options(**options).load()
        return drain(frame, "noop", folder / "checkpoint")

    def _write(self, stage: Stage, system: System, folder: Path) -> Progress:
        frame = system.packed(data.parquet_stream(stage.bench.spark, self._input(stage)))
        return drain(frame, system.format, folder / "checkpoint", system.sink)

    def _read(self, stage: Stage, system: System, folder: Path) -> Progress:
        return drain(system.stream(stage.bench.spark), "noop", folder / "checkpoint")

    def columns(self, runs: Results) -> Sequence[Column]:
        return [*self._columns("write"), *self._columns("read")]

    def _columns(self, what: str) -> list[Column]:
        size = [Column("disk_mb", "on disk MB", 0), Column("files", "files", 0)] if what == "write" else []
        return [
            Column(f"{what}_mrows", "M rows/s", spread=True),
            Column(f"{what}_batch_mrows", "in batch"),
            Column(f"{what}_start_s", "start-up s"),
            Column(f"{what}_cpu_s", "CPU s", 1),
            *size,
        ]

    def table(self, runs: Results) -> str:
        """One for each direction."""
        return "\n\n".join(
            compared(
                f"{word}, {self.title}",
                runs,
                self._columns(what),
                (Versus(f"{what}_mrows", "ledger's speed of this"), Versus(f"{what}_batch_mrows", "in batch")),
            )
            for what, word in (("write", "Bulk write"), ("read", "Catch-up read"))
        )


class Narrow(Bulk):
    name = "narrow"
    title = "records of 128 bytes"
    payload_bytes = 100
    plots = (
        Plot("write_mrows", "Bulk write of 128-byte records: million rows a second"),
        Plot("read_mrows", "Catch-up read of 128-byte records: million rows a second"),
    )

    def rows(self, stage: Stage) -> int:
        return stage.sizes.rows


class Wide(Bulk):
    name = "wide"
    title = "records of 1 kB"
    payload_bytes = 996

    def rows(self, stage: Stage) -> int:
        return stage.sizes.wide_rows
