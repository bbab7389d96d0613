"""Between a query's source and its sink: records what every batch has read, and what is about to be written.

It runs in Spark's Python workers. A batch is read by one task, and its rows leave here only when they are in the
history; so whatever the sink commits was recorded before, and whatever is read again is recorded again.
"""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.testing.history import Acknowledge, Poll, Row, Send
from pyspark_ledger.testing.recorder import Recorder
from tests.soak.world import BILLING, World, after, fan_of, name_of

_recorders: dict[tuple[int, str], Recorder] = {}


@dataclass(frozen=True)
class Tap:
    """One for each query."""

    world: World
    query: str  # with its checkpoint: one that begins anew has another name
    source: str
    sink: str
    subscription: str = ""
    compacted: bool = False
    takes_tokens: bool = False
    is_first: bool = True  # it has not begun anew
    fans_out: bool = False  # to topics that the rows name

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        recorder = self._recorder()
        task = TaskContext.get()
        assert task is not None
        batch = int(task.getLocalProperty("streaming.sql.batchId") or "")
        with recorder.asking(self._poll(batch)) as call:
            records = [record for each in batches for record in each.to_pylist()]
            rows = tuple(map(_row, records))
            meta = records[0]["_metadata"] if records else {"revision": 0, "epoch": 0}
            call.ok(rows=rows, revision=meta["revision"], epoch=meta["epoch"])
        if not records:
            return
        out = [self._out(row, record["_metadata"]) for row, record in zip(rows, records, strict=True)]
        with ExitStack() as stack:
            for event in self._sends(batch, rows, out):
                stack.enter_context(recorder.asking(event))
            # whether it was committed is known by Spark's checkpoint, in the end
        if self.subscription:
            self._may_acknowledge(recorder, rows, meta["revision"])
        columns: dict[str, list[Any]] = {"v": [row.value for row in out]}
        if self.fans_out:
            columns["topic"] = [fan_of(row.value) for row in rows]
        if self.takes_tokens:
            columns["token"] = [row.token for row in out]
        yield pa.RecordBatch.from_pydict(columns, schema=pa.schema([(name, pa.string()) for name in columns]))

    @property
    def schema(self) -> str:
        return "v string" + ", topic string" * self.fans_out + ", token string" * self.takes_tokens

    def _recorder(self) -> Recorder:
        """One for each worker process, which may live for many tasks."""
        key = os.getpid(), self.query
        if key not in _recorders:
            _recorders[key] = self.world.recorder(f"{self.query}.{os.getpid()}-{uuid.uuid4().hex[:8]}")
        return _recorders[key]

    def _poll(self, batch: int) -> Poll:
        # There are records before a query starts. For one that begins anew the topic may begin later; what is compacted
        # never does.
        is_whole = not self.subscription and (self.is_first or self.compacted)
        start = EARLIEST if batch == 0 and is_whole else None
        return Poll(
            topic=self.source, reader=self.query, batch=batch, subscription=self.subscription,
            compacted=self.compacted, start=start,
        )  # fmt: skip

    def _sends(self, batch: int, rows: tuple[Row, ...], out: list[Row]) -> Iterator[Send]:
        """One for each topic; those of a batch are one transaction."""
        group = BILLING if self.takes_tokens else ""
        by_topic: dict[str, list[Row]] = defaultdict(list)
        for row, written in zip(rows, out, strict=True):
            by_topic[fan_of(row.value) if self.fans_out else self.sink].append(written)
        together = f"{self.query}/{batch}" if self.fans_out else ""
        for topic, some in by_topic.items():
            common = {"producer": self.query, "sequence": batch, "group": group, "together": together}
            yield Send(topic=topic, rows=tuple(some), **common)

    def _may_acknowledge(self, recorder: Recorder, rows: tuple[Row, ...], revision: int) -> None:
        """From now on the query may acknowledge the batch at any time, and nobody hears of it."""
        last = rows[-1].position
        assert last is not None
        event = Acknowledge(topic=self.source, subscription=self.subscription, revision=revision, upto=after(last))
        with recorder.asking(event):
            pass

    def _out(self, row: Row, meta: dict[str, Any]) -> Row:
        """What is written. Its value is unique in the sink's topic: a record comes again after a reset, and to a
        query that begins anew."""
        if self.subscription:
            return Row(f"r{meta['revision']}-{row.value}")
        return Row(f"{self.query}-{row.value}", token=meta["token"] if self.takes_tokens else None)


def _row(record: dict[str, Any]) -> Row:
    meta = record["_metadata"]
    value = name_of(record["v"], meta["producer"], meta["sequenceId"])
    position = Position(meta["ledgerId"], meta["entryId"], meta["index"])
    return Row(value, position, record.get("k"), record["v"] is None)
