"""Cost of commits as a topic grows: time per commit, ZooKeeper's size, reads to open the topic."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from kazoo.client import KazooClient

from benchmarks.data import Namespace

WINDOW = 2_000
SAMPLES = 13  # of ZooKeeper's size: not at round numbers of commits, where ledgers are sealed
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def grow(space: Namespace, commits: int) -> dict[str, Any]:
    """Appends one tiny record per commit, then a new client opens the topic for a read."""
    from pyspark_ledger import LedgerClient

    with LedgerClient(zookeeper=space.zookeeper, storage=space.storage) as client:
        client.create_topic("commits", SCHEMA)
        times_s, sizes = _append(client, space, commits)
    with counted_requests() as requests, LedgerClient(zookeeper=space.zookeeper) as newcomer:
        next(iter(newcomer.reader("commits", start="earliest", end="latest")))
    window = min(WINDOW, commits // 2)
    return {
        "commits": commits,
        "first_ms": _cost_ms(times_s[:window]),
        "last_ms": _cost_ms(times_s[-window:]),
        "window": window,
        "sizes": sizes,
        "open_requests": dict(requests),
    }


def _cost_ms(times_s: list[float]) -> dict[str, float]:
    """The mean holds what sealing costs, the median leaves out what a busy disk adds."""
    return {"mean": round(fmean(times_s) * 1e3, 3), "median": round(median(times_s) * 1e3, 3)}


def _append(client: Any, space: Namespace, commits: int) -> tuple[list[float], list[dict[str, int]]]:
    step = commits // SAMPLES + 1
    times_s, sizes = [], []
    with client.producer("commits", linger_ms=None) as producer:
        for number in range(1, commits + 1):
            start = time.perf_counter()
            producer.send({"id": number, "text": "tiny"})
            producer.flush()
            times_s.append(time.perf_counter() - start)
            if number % step == 0 or number == commits:
                sizes.append({"commits": number, **zookeeper_size(space.zookeeper)})
                print(f"  {sizes[-1]}, mean of the last {step} commits", end=" ")
                print(f"{fmean(times_s[-step:]) * 1e3:.2f} ms", flush=True)
    return times_s, sizes


def zookeeper_size(address: str) -> dict[str, int]:
    """Nodes below the chroot and the bytes of their data."""
    client = KazooClient(hosts=address)
    client.start()
    try:
        nodes = data_bytes = 0
        queue = ["/"]
        while queue:
            parent = queue.pop()
            value, stat = client.get(parent)
            nodes, data_bytes = nodes + 1, data_bytes + len(value)
            if stat.numChildren:
                queue += [f"{parent.rstrip('/')}/{child}" for child in client.get_children(parent)]
        return {"nodes": nodes, "bytes": data_bytes}
    finally:
        client.stop()
        client.close()


@contextmanager
def counted_requests() -> Iterator[Counter[str]]:
    """Counts what this process asks ZooKeeper, by kind of request."""
    requests: Counter[str] = Counter()
    send = KazooClient._call

    def counting(self: KazooClient, request: Any, async_object: Any) -> Any:
        requests[type(request).__name__] += 1
        return send(self, request, async_object)

    with patch.object(KazooClient, "_call", counting):
        yield requests
