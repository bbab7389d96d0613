"""The task of a write: it stages one entry file, and summarises the ids or the tokens of its rows for the driver.

The plan has what a task needs, and its commit message says what it did.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_ledger.datasource.logs import LogSettings
from pyspark_ledger.dedup.id_ranges import IdColumns, IdRanges
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import EntryWriter
from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.metadata.records import Entry, FileRef
from pyspark_ledger.tokens.ids import TokenColumn

logger = logging.getLogger(__name__)

_INLINE_SUMMARY_BYTES = 256 << 10  # a longer summary goes into a file, to keep it out of Spark's task results


@dataclass(frozen=True, slots=True)
class Replay:
    """The last batch that the log has from a producer. A task that brings it again writes no file."""

    sequence: int
    agrees: bool | None  # whether the offset log says it is the same batch; None: not known, so count the rows


@dataclass(frozen=True)
class WritePlan:
    """What the driver knows and the tasks need."""

    storage: str
    uuid: str
    epoch: int
    target: pa.Schema
    compression: str | None
    producer: str
    sequence: int | None
    replays: Mapping[str, Replay] = field(default_factory=dict)
    ids: IdColumns | None = None
    known: pa.Table | None = None  # ids at or below these are in the log: a task need not write them again
    tokens: TokenColumn | None = None
    logs: LogSettings = field(default_factory=LogSettings)


@dataclass
class Staged(WriterCommitMessage):
    """What one task did, for which query and run, and for which topic: the driver's commit cannot ask Spark, and may be
    in a process that has not planned the batch."""

    entry: Entry | None
    rows: int
    skipped: bool  # the batch was taken for a replay, and nothing was written
    query: str
    run: str
    uuid: str
    summary: bytes | FileRef = b""  # IdRanges, TokenRuns or NumberRuns as an Arrow stream; if that is long, in a file
    left_out: bytes | FileRef = b""  # the highest ids of records that it left out, likewise


@dataclass(frozen=True, slots=True)
class TaskOrigin:
    """The query, the run and the batch that a task works for; empty in a batch job."""

    query: str = ""
    run: str = ""
    batch: int | None = None

    @classmethod
    def current(cls) -> TaskOrigin:
        """From Spark's local properties."""
        context = TaskContext.get()
        query = (context and context.getLocalProperty("sql.streaming.queryId")) or ""
        run = ((context and context.getLocalProperty("spark.jobGroup.id")) or "") if query else ""
        batch = (context and context.getLocalProperty("streaming.sql.batchId")) or ""
        return cls(query, run, int(batch) if batch else None)


def stage(
    plan: WritePlan, batches: Iterator[pa.RecordBatch], origin: TaskOrigin, producer: str, sequence: int | None
) -> Staged:
    """Streams a partition into one entry file; memory does not grow with it. A task without rows leaves nothing."""
    plan.logs.apply()
    replay = plan.replays.get(producer)
    if replay is not None and sequence is not None and sequence <= replay.sequence:
        rows = 0 if replay.agrees else sum(batch.num_rows for batch in batches)
        logger.info("replayed topic=%s producer=%s sequence=%d: nothing is staged", plan.uuid, producer, sequence)
        return Staged(None, rows, True, origin.query, origin.run, plan.uuid)
    writer = EntryWriter(open_storage(plan.storage), plan.uuid, plan.epoch, plan.target, plan.compression)
    ranges = IdRanges(plan.ids, plan.known) if plan.ids is not None else None
    tokens = plan.tokens.gatherer() if plan.tokens is not None else None
    rows = 0
    try:
        for batch in batches:
            if tokens is not None and plan.tokens is not None:
                tokens.add(batch.column(plan.tokens.name))
            conformed = schemas.conform(batch, plan.target)
            writer.write(conformed if ranges is None else ranges.add(conformed))
            rows += batch.num_rows
        entry = writer.close()
    except BaseException:
        writer.abandon()
        raise
    logger.info(
        "staged topic=%s records=%d bytes=%d producer=%s sequence=%s",
        plan.uuid, rows, entry.bytes if entry is not None else 0, producer, sequence,
    )  # fmt: skip
    gathered = ranges or tokens
    summary = _packed(plan, gathered.table()) if gathered is not None and entry is not None else b""
    left_out = ranges.left_out() if ranges is not None else None
    left = b"" if left_out is None else _packed(plan, left_out)
    return Staged(entry, rows, False, origin.query, origin.run, plan.uuid, summary, left)


def _packed(plan: WritePlan, summary: pa.Table) -> bytes | FileRef:
    if summary.nbytes > _INLINE_SUMMARY_BYTES:
        from pyspark_ledger.base.clock import SYSTEM_CLOCK
        from pyspark_ledger.files.topicfiles import TopicFiles  # few tasks need it

        return TopicFiles(open_storage(plan.storage), plan.uuid, SYSTEM_CLOCK).stage_table(summary, plan.epoch, "lz4")
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, summary.schema) as writer:
        writer.write_table(summary)
    return bytes(buffer.getvalue().to_pybytes())
