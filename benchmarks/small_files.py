"""Many small commits: what planning and reading cost before and after rewriting, against the same rows at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.data import Namespace

ROWS, ROUNDS = 10, 7
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def measure(space: Namespace, commits: int, spark: Any = None) -> dict[str, Any]:
    """Seconds for each, medians."""
    from pyspark_ledger import LedgerClient

    with LedgerClient(**space.options) as client:
        _fill(client, "small", commits)
        client.create_topic("at-once", SCHEMA)
        with client.producer("at-once") as producer:
            producer.send_batch(pa.Table.from_batches([_rows(0, commits * ROWS)]))
        before = _costs(client, space, "small", spark)
        start = time.perf_counter()
        done = client.rewrite("small")
        took = time.perf_counter() - start
        after = _costs(client, space, "small", spark)
        at_once = _costs(client, space, "at-once", spark)
    sizes = {"files_before": done.files_before, "files_after": done.files_after, "rewrite_s": round(took, 3)}
    return {"commits": commits, "rows": ROWS, "before": before, "after": after, "at_once": at_once, **sizes}


def _fill(client: Any, topic: str, commits: int) -> None:
    client.create_topic(topic, SCHEMA)
    with client.producer(topic) as producer:
        for number in range(commits):
            producer.send_batch(pa.Table.from_batches([_rows(number * ROWS, ROWS)]))
            producer.flush()
        # A full ledger is sealed by who writes next.
        producer.send_batch(pa.Table.from_batches([_rows(commits * ROWS, 1)]))


def _rows(first: int, count: int) -> pa.RecordBatch:
    ids = pa.arange(first, first + count)
    return pa.RecordBatch.from_arrays([ids, ids.cast(pa.string())], schema=SCHEMA)


def _costs(client: Any, space: Namespace, topic: str, spark: Any) -> dict[str, float]:
    costs = {
        "plan_s": _time(lambda: _plan(client, topic)),
        "read_s": _time(lambda: sum(batch.num_rows for batch in client.reader(topic, end="latest").batches())),
    }
    if spark is not None:
        frame = spark.read.format("ledger").options(**space.options).load(topic)
        costs["spark_s"] = _time(lambda: frame.write.format("noop").mode("overwrite").save())
    return costs


def _plan(client: Any, topic: str) -> int:
    """What a read of everything consists of, by a process that has read nothing yet."""
    from pyspark_ledger.client import namespace_of
    from pyspark_ledger.log import places, scan

    log = namespace_of(client).log(topic)
    view = log.refresh(sync=True)
    return sum(1 for _ in scan.slices(log, view, places.earliest(view), view.head.end))


def _time(act: Callable[[], Any]) -> float:
    act()  # what is only slow once
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return round(median(times), 4)
