"""From the creation of a record to the end of the batch of a second query that has it: rows come at a fixed rate, one
query writes them, another reads them, in one session."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.contestants import Results
from benchmarks.peers.stage import Stage
from benchmarks.peers.systems import System
from benchmarks.peers.work.base import Column, Figures, Plot, Versus, Workload, percentile

START_S = 10.0  # both queries are running by then
SETTLE_SHARE = 0.2  # of the rows, which are not counted


class Arrivals:
    """How late each record was."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._lock = threading.Lock()
        self._delays: list[pa.Array] = []
        self.seen = 0
        self.all_seen = threading.Event()

    def take(self, batch: DataFrame, _number: int) -> None:
        created = pc.cast(batch.toArrow().column("text"), pa.int64())
        with self._lock:
            self._delays.append(pc.divide(pc.subtract(int(time.time() * 1e6), created), 1000.0).combine_chunks())
            self.seen += len(created)
            if self.seen >= self._rows:
                self.all_seen.set()

    def delays_ms(self) -> list[float]:
        """In the order of arrival."""
        with self._lock:
            return [delay for array in self._delays for delay in array.to_pylist()]


class EndToEnd(Workload):
    name = "end-to-end"
    title = "From creation to visible in a second query, at a fixed rate"
    warm_up = False  # the first fifth of each run, which is not counted, is that
    versus = (Versus("p50_ms", "ledger's speed of this", less_is_better=True),)
    plots = (Plot("p50_ms", "From creation to a second query, median: milliseconds (less is better)"),)

    def run(self, stage: Stage, name: str) -> Figures:
        rows = stage.sizes.rate * stage.sizes.seconds
        arrivals = Arrivals(rows)
        with stage.bench.scratch() as folder, stage.fresh(name) as system:
            system.create(stage.bench.spark)
            queries = [self._writes(stage, system, folder), self._reads(stage, system, folder, arrivals)]
            try:
                self._wait(queries, arrivals, START_S + 3 * stage.sizes.seconds + 30)
            finally:
                for query in queries:
                    query.stop()
        counted = arrivals.delays_ms()[int(rows * SETTLE_SHARE) :]
        if not counted:
            raise SystemExit(f"{name}: the second query saw {arrivals.seen} of {rows} records")
        return {
            "p50_ms": round(percentile(counted, 0.5), 1),
            "p99_ms": round(percentile(counted, 0.99), 1),
            "seen_percent": round(100 * arrivals.seen / rows, 2),
            "rate": stage.sizes.rate,
            "seconds": stage.sizes.seconds,
        }

    def _writes(self, stage: Stage, system: System, folder: Path) -> StreamingQuery:
        options = {"rate": stage.sizes.rate, "rows": stage.sizes.rate * stage.sizes.seconds}
        frame = stage.bench.spark.readStream.format("pace").options(**options, startedAt=time.time() + START_S).load()
        sink = system.packed(frame).writeStream.format(system.format).options(**system.sink)
        return sink.option("checkpointLocation", str(folder / "writes")).start()

    def _reads(self, stage: Stage, system: System, folder: Path, arrivals: Arrivals) -> StreamingQuery:
        sink = system.unpacked(system.stream(stage.bench.spark), "text").writeStream.foreachBatch(arrivals.take)
        return sink.option("checkpointLocation", str(folder / "reads")).start()

    def _wait(self, queries: list[StreamingQuery], arrivals: Arrivals, seconds: float) -> None:
        """Until all was seen, or for so long: who cannot keep up is late, and says how much was seen."""
        deadline = time.monotonic() + seconds
        while not arrivals.all_seen.wait(0.2) and time.monotonic() < deadline:
            for query in queries:
                if (error := query.exception()) is not None:
                    raise error

    def columns(self, runs: Results) -> Sequence[Column]:
        return [
            Column("p50_ms", "p50 ms", 0, spread=True),
            Column("p99_ms", "p99 ms", 0, spread=True),
            Column("seen_percent", "seen %", 1),
        ]
