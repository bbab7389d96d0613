"""`python -m benchmarks.run`: all measurements, or some of them, and a table of the results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyspark

from benchmarks import commits, compaction, data, memory, producer, record_ids, small_files, tiny, tokens, writers
from benchmarks.contestants import (
    Bench,
    race,
    sink_contestants,
    source_contestants,
    subscription_contestants,
    throughput,
)
from benchmarks.report import table
from benchmarks.session import CONF, session

SPARK_PARTS = ("source", "sink", "ids", "tokens", "subscription", "tiny")
PARTS = (*SPARK_PARTS, "memory", "commits", "writers", "compaction", "small")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--rows", type=int, default=15_000_000, help="of source and sink [%(default)s]")
    parser.add_argument("--rounds", type=int, default=6, help="that count, after a warm-up [%(default)s]")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas [%(default)s]")
    parser.add_argument("--commits", type=int, default=20_000, help="of the part commits [%(default)s]")
    parser.add_argument("--small-commits", type=int, default=10_000, help="of the part small [%(default)s]")
    parser.add_argument("--memory-mb", type=int, default=1_000, help="the partition in Arrow [%(default)s]")
    parser.add_argument("--out", type=Path, help="JSON file for all raw results")
    parser.add_argument("--work", type=Path, help="folder for a temporary folder [the system's]")
    parser.add_argument("--without-ledger", action="store_true", help="only the ceiling and Parquet")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


@contextmanager
def work_folder(parent: Path | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ledger-bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start_zookeeper(stack: ExitStack, without_ledger: bool) -> str | None:
    if without_ledger:
        print("ledger: skipped, as --without-ledger says", flush=True)
        return None
    from pyspark_ledger.local.zookeeper import LocalZooKeeper

    return stack.enter_context(LocalZooKeeper()).address


def run_session_parts(options: argparse.Namespace, work: Path, zookeeper: str | None) -> dict[str, Any]:
    """Source, sink, ids, subscription and tiny batches: all contestants in one session."""
    results: dict[str, Any] = {}
    with session(work) as spark:
        bench = Bench(spark, work, options.rows, options.rounds, zookeeper)
        if {"source", "sink", "ids", "tokens", "subscription"} & set(options.only):
            results |= run_throughput(bench, options.only)
        if "tiny" in options.only:
            print("tiny", flush=True)
            results["tiny"] = race(bench, tiny.contestants(bench), tiny.latency)
    return results


def run_throughput(bench: Bench, only: list[str]) -> dict[str, Any]:
    parquet = data.write_parquet(bench.spark, bench.work / "parquet", bench.rows)
    files, megabytes = data.file_count(bench.rows), round(data.size_megabytes(parquet), 1)
    print(f"{bench.rows} rows in {files} Parquet files, {megabytes} MB", flush=True)
    results: dict[str, Any] = {"files": files, "parquet_mb": megabytes}
    if "source" in only:
        print("source", flush=True)
        results["source"] = race(bench, source_contestants(bench, parquet), throughput)
        shutil.rmtree(bench.work / "source-topic", ignore_errors=True)
    if "sink" in only:
        print("sink", flush=True)
        results["sink"] = race(bench, sink_contestants(bench, parquet), throughput)
    if "ids" in only and bench.zookeeper:
        for producers in record_ids.PRODUCERS:
            print(f"ids, {producers} producers", flush=True)
            contestants = record_ids.contestants(bench, parquet, producers)
            results.setdefault("ids", {})[producers] = race(bench, contestants, throughput)
    if "tokens" in only and bench.zookeeper:
        print("tokens", flush=True)
        results["tokens"] = race(bench, tokens.contestants(bench, parquet), throughput)
        shutil.rmtree(bench.work / "token-topic", ignore_errors=True)
    if "subscription" in only and bench.zookeeper:
        print("subscription", flush=True)
        results["subscription"] = race(bench, subscription_contestants(bench, parquet), throughput)
        shutil.rmtree(bench.work / "subscription-topic", ignore_errors=True)
    shutil.rmtree(parquet)
    return results


def run_memory(options: argparse.Namespace, work: Path, zookeeper: str | None) -> dict[str, Any]:
    """In a session of its own, whose workers are never reused."""
    print("memory", flush=True)
    rows = options.memory_mb * 1_000_000 // data.ROW_BYTES
    with session(work, **memory.SESSION) as spark:
        bench = Bench(spark, work, rows, options.rounds, zookeeper)
        parquet = data.write_parquet(spark, work / "memory-parquet", rows)
        results = memory.peaks(bench, parquet)
    for folder in ("memory-parquet", "memory-topic"):
        shutil.rmtree(work / folder, ignore_errors=True)
    return {"memory": results}


def run_commits(options: argparse.Namespace, work: Path, zookeeper: str | None) -> dict[str, Any]:
    if not zookeeper:
        return {}
    print("commits", flush=True)
    storage = work / "commits"
    storage.mkdir()
    space = data.Namespace(f"{zookeeper}/commits", str(storage))
    return {"commits": commits.grow(space, options.commits)}


def run_writers(work: Path, zookeeper: str | None) -> dict[str, Any]:
    if not zookeeper:
        return {}
    print("writers", flush=True)
    storage = work / "writers"
    storage.mkdir()
    space = data.Namespace(f"{zookeeper}/writers", str(storage))
    return {"writers": writers.writers(space), "producer": producer.measure(space, 500_000, 3)}


def run_compaction(work: Path, zookeeper: str | None) -> dict[str, Any]:
    if not zookeeper:
        return {}
    print("compaction", flush=True)
    space = data.Namespace(f"{zookeeper}/compaction", str(work / "compaction"))
    return {"compaction": compaction.measure(space, 10_000_000, 100_000)}


def run_small_files(options: argparse.Namespace, work: Path, zookeeper: str | None) -> dict[str, Any]:
    if not zookeeper:
        return {}
    print("small files", flush=True)
    space = data.Namespace(f"{zookeeper}/small", str(work / "small"))
    with session(work) as spark:
        return {"small": small_files.measure(space, options.small_commits, spark)}


def environment(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "rows": options.rows,
        "rounds": options.rounds,
        "memory_mb": options.memory_mb,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "conf": CONF,
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"environment": environment(options)}
    with work_folder(options.work) as work, ExitStack() as stack:
        zookeeper = start_zookeeper(stack, options.without_ledger)
        if set(SPARK_PARTS) & set(options.only):
            results |= run_session_parts(options, work, zookeeper)
        if "memory" in options.only:
            results |= run_memory(options, work, zookeeper)
        if "commits" in options.only:
            results |= run_commits(options, work, zookeeper)
        if "writers" in options.only:
            results |= run_writers(work, zookeeper)
        if "compaction" in options.only:
            results |= run_compaction(work, zookeeper)
        if "small" in options.only:
            results |= run_small_files(options, work, zookeeper)
    return results


def main() -> None:
    options = arguments()
    results = run(options)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    print("\n" + table(results))


if __name__ == "__main__":
    main()
