"""Many processes write to one topic, one record per flush: commits per second, how long each takes, who gets how many.

``python -m benchmarks.writers`` runs it alone. Each process stops by itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import fmean, quantiles
from typing import Any

import pyarrow as pa

from benchmarks.data import Namespace

PROCESSES = (1, 4, 16, 32, 64)
SECONDS = 8.0
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
_WARM_UP = 20


def writers(space: Namespace, processes: Sequence[int] = PROCESSES, seconds: float = SECONDS) -> dict[str, Any]:
    return {str(count): _round(space, count, seconds) for count in processes}


def _round(space: Namespace, count: int, seconds: float) -> dict[str, float]:
    from pyspark_ledger import LedgerClient

    topic = f"writers-{count}"
    with LedgerClient(zookeeper=space.zookeeper, storage=space.storage) as client:
        client.create_topic(topic, SCHEMA)
    return together(["benchmarks.writers", "--write", topic, "--zookeeper", space.zookeeper], count, seconds)


def together(module: list[str], count: int, seconds: float) -> dict[str, float]:
    """So many processes of a module, which begin at once; each says when it is ready, and calls `write_for`."""
    command = [sys.executable, "-m", *module, "--seconds", str(seconds)]
    with ExitStack() as stack:
        running = [
            stack.enter_context(subprocess.Popen([*command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(count)
        ]
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()  # it is ready
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [json.loads(process.communicate()[0]) for process in running]
    times_ms = sorted(ms for result in results for ms in result["times_ms"])
    counts = [len(result["times_ms"]) for result in results]
    cut = quantiles(times_ms, n=100)
    found = {
        "commits_per_s": round(len(times_ms) / seconds, 1),
        "p50_ms": round(cut[49], 1),
        "p99_ms": round(cut[98], 1),
        "max_ms": round(times_ms[-1], 1),
        "slowest_of_mean": round(min(counts) / fmean(counts), 2),
        "cpu_ms": round(1000 * sum(result["cpu_s"] for result in results) / len(times_ms), 2),
    }
    print(f"  {count:3d} writers: {found}", flush=True)
    return found


def write_for(seconds: float, write: Callable[[int], None]) -> None:
    """One of the processes: writes one record after the other, each by a call that returns when it is stored."""
    for number in range(_WARM_UP // 10):
        write(number)
    print("ready", flush=True)
    sys.stdin.readline()
    times_ms: list[float] = []
    cpu, end = time.process_time(), time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        write(len(times_ms))
        times_ms.append(1000 * (time.monotonic() - began))
    print(json.dumps({"times_ms": times_ms, "cpu_s": time.process_time() - cpu}), flush=True)


def _write(topic: str, zookeeper: str, seconds: float) -> None:
    from pyspark_ledger import LedgerClient

    with LedgerClient(zookeeper=zookeeper) as client, client.producer(topic, linger_ms=None) as producer:

        def write(number: int) -> None:
            producer.send({"id": number, "text": "tiny"})
            producer.flush()

        write_for(seconds, write)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.writers", description=__doc__)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    parser.add_argument("--zookeeper", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each round [%(default)s]")
    parser.add_argument("--processes", default=",".join(map(str, PROCESSES)), help="[%(default)s]")
    asked = parser.parse_args()
    if asked.write:
        _write(asked.write, asked.zookeeper, asked.seconds)
        return
    from pyspark_ledger.local.zookeeper import LocalZooKeeper

    with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as storage:
        writers(Namespace(zookeeper.address, storage), [int(n) for n in asked.processes.split(",")], asked.seconds)


if __name__ == "__main__":
    main()
