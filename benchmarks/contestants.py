"""Who runs in the throughput parts, and how one run is measured.

A contestant is a function of a scratch folder (checkpoint and output, removed afterwards) that
runs one stream to its end and returns the progress of its batches.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, permutations
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import data
from benchmarks.cpu import machine_cpu_seconds, own_cpu_seconds
from benchmarks.session import drain, rows_of

CEILING, PARQUET, LEDGER = "ceiling", "parquet", "ledger"
WITHOUT, WITH_CURSOR = "no subscription", "subscription"
Progress = list[dict[str, Any]]
Contestants = dict[str, Callable[[Path], Progress]]
Results = dict[str, list[dict[str, Any]]]
_chroots = count()


@dataclass(frozen=True)
class Bench:
    """What the parts share. Without a ZooKeeper the ledger does not take part."""

    spark: SparkSession
    work: Path
    rows: int
    rounds: int
    zookeeper: str | None

    def namespace(self, storage: Path) -> data.Namespace:
        """A fresh one: its files go with the folder, and nothing has to be deleted by the product."""
        storage.mkdir(parents=True)
        return data.Namespace(f"{self.zookeeper}/bench{next(_chroots)}", str(storage))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for one run. Nobody pays for the dirty pages or the garbage of the run before."""
        folder = self.work / "scratch"
        folder.mkdir()
        os.sync()
        self.spark._jvm.System.gc()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def orders(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Every order of three or fewer. Of more, as many as there are names, twice: each name is at each place once, with
    the same ones before it, and then with these after it."""
    first = tuple(names)
    if len(first) <= 3:
        return list(permutations(first))
    rotated = [first[turn:] + first[:turn] for turn in range(len(first))]
    return rotated + [order[::-1] for order in rotated]


def race(
    bench: Bench, contestants: dict[str, Any], measure: Callable[..., dict[str, Any]], *, warm_up: bool = True
) -> Results:
    """One warm-up round that does not count, then the rounds, each in another order. Six rounds of three see every
    order once: what a contestant leaves behind (compiled code, page cache) then harms the others alike."""
    turns = orders(contestants)
    results: Results = {name: [] for name in contestants}
    for turn in range(0 if warm_up else 1, bench.rounds + 1):
        for name in turns[turn % len(turns)]:
            result = measure(bench, contestants[name])
            print(f"  {'warm-up' if turn == 0 else f'round {turn}'} {name}: {describe(result)}", flush=True)
            if turn:
                results[name].append(result)
    return results


def describe(result: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in result.items() if not isinstance(value, list))


def throughput(bench: Bench, run: Callable[[Path], Progress]) -> dict[str, Any]:
    """Wall time and CPU of one run, from the start of the query to its end."""
    with bench.scratch() as folder:
        load, cpu, own, wall = os.getloadavg()[0], machine_cpu_seconds(), own_cpu_seconds(), time.perf_counter()
        progress = run(folder)
        wall, own, cpu = time.perf_counter() - wall, own_cpu_seconds() - own, machine_cpu_seconds() - cpu
    if rows_of(progress) != bench.rows:
        raise SystemExit(f"the stream carried {rows_of(progress)} rows instead of {bench.rows}")
    return {
        "wall_s": round(wall, 3),
        "cpu_s": round(cpu, 2),
        "own_cpu_s": round(own, 2),
        "batch_s": sum(batch["durationMs"]["addBatch"] for batch in progress) / 1e3,
        "batches": len(progress),
        "load_before": round(load, 2),
    }


def source_contestants(bench: Bench, parquet: Path) -> Contestants:
    """Each source into Spark's noop sink."""
    spark = bench.spark
    options = {"rows": str(bench.rows), "partitions": str(data.file_count(bench.rows))}

    def ceiling(folder: Path) -> Progress:
        frame = spark.readStream.format("ceiling").options(**options).load()
        return drain(frame, "noop", folder / "checkpoint")

    def parquet_source(folder: Path) -> Progress:
        return drain(data.parquet_stream(spark, parquet), "noop", folder / "checkpoint")

    def ledger(folder: Path) -> Progress:
        return drain(data.topic_stream(spark, space, "rows"), "noop", folder / "checkpoint")

    contestants: Contestants = {CEILING: ceiling, PARQUET: parquet_source}
    if bench.zookeeper:
        space = bench.namespace(bench.work / "source-topic")
        data.write_topic(spark, parquet, space, "rows", bench.work)
        contestants[LEDGER] = ledger
    return contestants


def subscription_contestants(bench: Bench, parquet: Path) -> Contestants:
    """The ledger as a source, with and without a durable cursor."""
    space = bench.namespace(bench.work / "subscription-topic")
    data.write_topic(bench.spark, parquet, space, "rows", bench.work)
    names = count()

    def read(folder: Path, **options: str) -> Progress:
        stream = data.topic_stream(bench.spark, space, "rows", maxBytesPerTrigger="256m", **options)
        return drain(stream, "noop", folder / "checkpoint")

    return {
        WITHOUT: lambda folder: read(folder),
        WITH_CURSOR: lambda folder: read(folder, subscription=f"s{next(names)}"),
    }


def sink_contestants(bench: Bench, parquet: Path) -> Contestants:
    """The same Parquet stream into each sink."""

    def into(sink: str, folder: Path, options: dict[str, str] | None = None, target: str = "") -> Progress:
        return drain(data.parquet_stream(bench.spark, parquet), sink, folder / "checkpoint", options, target)

    def ceiling(folder: Path) -> Progress:
        return into("ceiling", folder)

    def parquet_sink(folder: Path) -> Progress:
        return into("parquet", folder, target=str(folder / "output"))

    def ledger(folder: Path) -> Progress:
        return into("ledger", folder, bench.namespace(folder / "storage").options, "rows")

    contestants: Contestants = {CEILING: ceiling, PARQUET: parquet_sink}
    return contestants | {LEDGER: ledger} if bench.zookeeper else contestants
