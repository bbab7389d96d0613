"""The ceiling: a Python source that reads nothing and a Python sink that keeps nothing.

What these two reach is what Spark's Python data sources can reach at best. Spark pickles the
classes by reference: workers import this module, so the repository must be on PYTHONPATH.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

BATCH_ROWS = 65_536
PREPARED_BATCHES = 4  # 34 MB: more than most caches hold, so that memory is really read
TEXT_BYTES, PAYLOAD_BYTES = 20, 100


def _fixed_width(rows: int, width: int, data: bytes, kind: pa.DataType) -> pa.Array:
    offsets = pa.py_buffer(array("i", range(0, rows * width + 1, width)))
    return pa.Array.from_buffers(kind, rows, [None, offsets, pa.py_buffer(data)])


def _batch(rows: int, payload_bytes: int, seed: int) -> pa.RecordBatch:
    noise = random.Random(seed)
    columns = {
        "id": pa.array(array("q", range(rows)), pa.int64()),
        "text": _fixed_width(rows, TEXT_BYTES, noise.randbytes(rows * 10).hex().encode(), pa.string()),
        "payload": _fixed_width(rows, payload_bytes, noise.randbytes(rows * payload_bytes), pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


@cache
def prepared_batches(rows: int, payload_bytes: int) -> list[pa.RecordBatch]:
    """Made once per worker process; every later read yields the same ones."""
    return [_batch(rows, payload_bytes, seed) for seed in range(PREPARED_BATCHES)]


@dataclass
class Rows(InputPartition):
    count: int


class CeilingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Options: rows, partitions, rowsPerTrigger (0 = all at once), restSeconds (sleep in each read), payloadBytes."""

    def __init__(self, options: dict[str, str]) -> None:
        self.rows = int(options["rows"])
        self.parts = int(options.get("partitions", 2))
        self.rows_per_trigger = int(options.get("rowsPerTrigger", 0))
        self.rest_seconds = float(options.get("restSeconds", 0))
        self.payload_bytes = int(options.get("payloadBytes", PAYLOAD_BYTES))

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.rows_per_trigger) if self.rows_per_trigger else ReadAllAvailable()

    def initialOffset(self) -> dict:
        return {"row": 0}

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        step = limit.max_rows if isinstance(limit, ReadMaxRows) else self.rows
        return {"row": min(start["row"] + step, self.rows)}

    def partitions(self, start: dict, end: dict) -> list[Rows]:
        each, rest = divmod(end["row"] - start["row"], self.parts)
        return [Rows(each + (part < rest)) for part in range(self.parts)]

    def read(self, partition: Rows) -> Iterator[pa.RecordBatch]:
        time.sleep(self.rest_seconds)
        most = BATCH_ROWS * PAYLOAD_BYTES // self.payload_bytes  # as many bytes, whatever a row has
        batches = prepared_batches(min(most, max(partition.count, 1)), self.payload_bytes)
        left, turn = partition.count, 0
        while left > 0:
            batch = batches[turn % PREPARED_BATCHES]
            yield batch if len(batch) <= left else batch.slice(0, left)
            left, turn = left - len(batch), turn + 1


class CeilingWriter(DataSourceStreamArrowWriter):
    """Takes every Arrow batch and drops it."""

    def __init__(self, options: dict[str, str]) -> None:
        self.rest_seconds = float(options.get("restSeconds", 0))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        time.sleep(self.rest_seconds)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class Ceiling(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return "id long, text string, payload binary"

    def streamReader(self, schema: object) -> CeilingReader:
        return CeilingReader(self.options)

    def streamWriter(self, schema: object, overwrite: bool) -> CeilingWriter:
        return CeilingWriter(self.options)
