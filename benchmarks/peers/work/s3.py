"""Storage on S3 (a moto server, every request waits 20 ms): bulk write, catch-up read, and a read of one row by a
process that has nothing in memory yet. Kafka has no such storage. `download` fetches the ledger's bytes, many ranges
at once, and does nothing with them: no reader of these bytes can be faster."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import urllib3

from benchmarks import data
from benchmarks.contestants import Progress, Results, throughput
from benchmarks.peers.s3_server import BUCKET, S3
from benchmarks.peers.stage import Stage
from benchmarks.peers.systems import KAFKA, LEDGER, Place, System, system_at
from benchmarks.peers.work.base import Column, Figures, Versus, Workload
from benchmarks.session import drain

DOWNLOAD = "download"
LATENCY_MS = 20
RANGE_BYTES, AT_ONCE = 8 << 20, 16


class OnS3(Workload):
    name = "s3"
    title = "On S3 with 20 ms per request"
    versus = (Versus("read_s", "ledger's read of this", less_is_better=True),)

    def __init__(self) -> None:
        self._s3: S3 | None = None

    def contestants(self, stage: Stage) -> tuple[str, ...]:
        kept = tuple(name for name in stage.names if name != KAFKA)
        return (*kept, DOWNLOAD) if LEDGER in kept else kept

    def _input(self, stage: Stage) -> Path:
        return stage.bench.work / "input-s3"

    def prepare(self, stage: Stage) -> None:
        data.write_parquet(stage.bench.spark, self._input(stage), stage.sizes.s3_rows)
        self._s3 = S3(LATENCY_MS)
        self._s3.filesystem().create_dir(BUCKET)
        hadoop = stage.bench.spark._jsc.hadoopConfiguration()
        for key, value in {
            "endpoint": f"http://{self._s3.address}", "endpoint.region": "us-east-1", "path.style.access": "true",
            "access.key": "test", "secret.key": "test", "connection.ssl.enabled": "false",
        }.items():  # fmt: skip
            hadoop.set(f"fs.s3a.{key}", value)

    def clean(self, stage: Stage) -> None:
        shutil.rmtree(self._input(stage), ignore_errors=True)
        if self._s3 is not None:
            self._s3.__exit__()
            self._s3 = None

    def run(self, stage: Stage, name: str) -> Figures:
        assert self._s3 is not None
        kind = LEDGER if name == DOWNLOAD else name
        bench = replace(stage.bench, rows=stage.sizes.s3_rows)
        with stage.fresh(kind) as local:
            system = self._moved(local)
            figures: Figures = {}
            self._s3.requests()
            write = throughput(bench, partial(self._write, stage, system))
            if name == DOWNLOAD:
                figures |= self._download(local.place.topic)
            else:
                figures |= {"write_s": write["wall_s"], "write_requests": sum(self._s3.requests().values())}
                read = throughput(bench, partial(self._read, stage, system))
                figures |= {"read_s": read["wall_s"], "read_batch_s": read["batch_s"]}
                figures["read_requests"] = sum(self._s3.requests().values())
                began = time.perf_counter()
                assert len(system.read(stage.bench.spark).limit(1).collect()) == 1
                figures["open_s"] = round(time.perf_counter() - began, 3)
            self._remove(local.place.topic)
        if figures.get("read_s"):
            figures["read_mrows"] = round(stage.sizes.s3_rows / figures["read_s"] / 1e6, 4)
        return figures

    def _moved(self, local: System) -> System:
        """The same system with its storage on S3."""
        assert self._s3 is not None
        place: Place = local.place
        scheme = self._s3.root(place.topic) if place.system == LEDGER else f"s3a://{BUCKET}/{place.topic}"
        return system_at(replace(place, storage=scheme))

    def _write(self, stage: Stage, system: System, folder: Path) -> Progress:
        frame = data.parquet_stream(stage.bench.spark, self._input(stage))
        return drain(frame, system.format, folder / "checkpoint", system.sink)

    def _read(self, stage: Stage, system: System, folder: Path) -> Progress:
        return drain(system.stream(stage.bench.spark), "noop", folder / "checkpoint")

    def _download(self, name: str) -> Figures:
        """All bytes of the ledger's data files, in ranges, many at once."""
        import pyarrow.fs

        assert self._s3 is not None
        selector = pyarrow.fs.FileSelector(f"{BUCKET}/{name}", recursive=True)
        found = [file for file in self._s3.filesystem().get_file_info(selector) if file.is_file]
        ranges = [(file.path, at, file.size) for file in found for at in range(0, file.size, RANGE_BYTES)]
        address = self._s3.address

        with urllib3.PoolManager(maxsize=AT_ONCE) as pool, ThreadPoolExecutor(AT_ONCE) as threads:

            def fetch(path: str, at: int, size: int) -> int:
                last = min(at + RANGE_BYTES, size) - 1
                answer = pool.request("GET", f"http://{address}/{path}", headers={"Range": f"bytes={at}-{last}"})
                assert len(answer.data) == last + 1 - at, answer.status
                return len(answer.data)

            began = time.perf_counter()
            fetched = sum(threads.map(lambda piece: fetch(*piece), ranges))
        seconds = round(time.perf_counter() - began, 3)
        return {"read_s": seconds, "read_batch_s": seconds, "megabytes": round(fetched / 1e6, 1)}

    def _remove(self, name: str) -> None:
        assert self._s3 is not None
        self._s3.filesystem().delete_dir(f"{BUCKET}/{name}")

    def columns(self, runs: Results) -> Sequence[Column]:
        return [
            Column("read_s", "catch-up read s", 2, spread=True),
            Column("read_batch_s", "in batch s"),
            Column("read_requests", "requests", 0),
            Column("write_s", "write s", 2, spread=True),
            Column("write_requests", "requests", 0),
            Column("open_s", "first row s"),
        ]
