"""Compaction of a topic with few keys: its time against a plain scan, and what it saves a reader."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.data import Namespace

BATCH = 250_000
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("payload", pa.binary())])


def measure(space: Namespace, records: int, keys: int) -> dict[str, Any]:
    from pyspark_ledger import LedgerClient

    with LedgerClient(**space.options) as client:
        client.create_topic("keyed", SCHEMA, key="key")
        _fill(client, 0, records, keys)
        scan = _time(lambda: sum(b.num_rows for b in client.reader("keyed", end="latest").batches()))
        state = _time(lambda: _full_state(client))
        first = _time(lambda: client.compact("keyed"))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        table = _time(lambda: _compacted_state(client))
        _fill(client, records, records // 100, keys)
        again = _time(lambda: client.compact("keyed"))
        assert _full_state(client) == _compacted_state(client)
    return {
        "records": records,
        "keys": keys,
        "scan_s": scan,
        "full_state_s": state,
        "compact_s": first,
        "compacted_state_s": table,
        "incremental_s": again,
        "peak_rss_mb": round(peak),
    }


def _time(act: Callable[[], Any]) -> float:
    start = time.perf_counter()
    act()
    return round(time.perf_counter() - start, 3)


def _fill(client: Any, first: int, records: int, keys: int) -> None:
    with client.producer("keyed") as producer:
        for start in range(first, first + records, BATCH):
            rows = pa.arange(start, min(start + BATCH, first + records))
            number = pc.multiply(rows, 7919)
            number = pc.subtract(number, pc.multiply(pc.divide(number, keys), keys))
            key = pc.binary_join_element_wise("key-", number.cast(pa.string()), "")
            payload = pa.repeat(pa.scalar(b"x" * 60), len(rows))
            producer.send_batch(pa.table([key, rows, payload], schema=SCHEMA))


def _full_state(client: Any) -> int:
    """The map as a full read gives it, folded with Arrow; its size and the sum of its values."""
    tables = [pa.Table.from_batches([batch]) for batch in client.reader("keyed", end="latest").batches()]
    last = pa.concat_tables(tables).group_by("key").aggregate([("value", "max")])
    return int(last.num_rows + pc.sum(last["value_max"]).as_py())


def _compacted_state(client: Any) -> int:
    whole = pa.Table.from_batches(client.reader("keyed", end="latest", compacted=True).batches())
    return int(whole.num_rows + pc.sum(whole["value"]).as_py())
