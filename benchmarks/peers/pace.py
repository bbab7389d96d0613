"""A source that makes rows at a fixed rate, whatever becomes of those before: an open loop, in which a slow system
cannot slow down who measures it. Row `id` is created at `startedAt + id / rate`; `text` is that moment in
microseconds."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from benchmarks.data import ARROW_SCHEMA, SCHEMA

PAYLOAD_BYTES = 100
BATCH_ROWS = 10_000


@cache
def _payloads() -> pa.Array:
    noise = random.Random(1)
    return pa.array([noise.randbytes(PAYLOAD_BYTES) for _ in range(BATCH_ROWS)], pa.binary())


def paced_rows(first: int, last: int, started_at: float, rate: float) -> pa.RecordBatch:
    """The rows from `first` up to `last`, which is not among them; at most BATCH_ROWS."""
    ids = pa.array(range(first, last), pa.int64())
    created = pc.add(
        int(started_at * 1e6), pc.cast(pc.multiply(ids.cast(pa.float64()), 1e6 / rate), pa.int64(), safe=False)
    )
    text = pc.utf8_lpad(created.cast(pa.string()), 20, "0")
    return pa.RecordBatch.from_arrays([ids, text, _payloads().slice(0, last - first)], schema=ARROW_SCHEMA)


@dataclass
class Span(InputPartition):
    first: int
    last: int


class PaceReader(DataSourceStreamReader):
    """Options: rate (rows per second), startedAt (seconds since 1970), rows (after which it ends), partitions."""

    def __init__(self, options: dict[str, str]) -> None:
        self.rate = float(options["rate"])
        self.started_at = float(options["startedAt"])
        self.rows = int(options["rows"])
        self.parts = int(options.get("partitions", 2))

    def initialOffset(self) -> dict:
        return {"row": 0}

    def latestOffset(self) -> dict:
        return {"row": max(0, min(self.rows, int((time.time() - self.started_at) * self.rate)))}

    def partitions(self, start: dict, end: dict) -> list[Span]:
        first, rows = start["row"], end["row"] - start["row"]
        cuts = [first + rows * part // self.parts for part in range(self.parts + 1)]
        return [Span(low, high) for low, high in pairwise(cuts)]

    def read(self, partition: Span) -> Iterator[pa.RecordBatch]:
        for first in range(partition.first, partition.last, BATCH_ROWS):
            yield paced_rows(first, min(first + BATCH_ROWS, partition.last), self.started_at, self.rate)


class Pace(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pace"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: object) -> PaceReader:
        return PaceReader(self.options)
