"""The task of a write: it stages an entry file, and summarises the ids or the tokens of its rows for the driver.

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
from pyspark_ledger.files.storage import Root
from pyspark_ledger.metadata.records import Entry, FileRef
from pyspark_ledger.tokens.ids import TokenColumn

logger = logging.getLogger(__name__)

_INLINE_SUMMARY_BYTES = 256 << 10  # a longer summary goes into a file, to keep it out of Spark's task results


@dataclass(frozen=True, slots=True)
class Replay:
    """The last batch that the log has from a producer. A task that brings it again writes no file."""

    sequence: int
    agrees: bool | None  # whether the offset log says it is the same batch; None: not known, so count the rows


@dataclass(frozen=True, slots=True)
class Destination:
    """A topic that tasks stage files for."""

    name: str
    uuid: str
    epoch: int
    target: pa.Schema  # of an entry file


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What the driver knows and every task needs."""

    storage: Root
    compression: str | None
    producer: str
    sequence: int | None
    ids: IdColumns | None = None
    known: pa.Table | None = None  # ids at or below these are in the log: a task need not write them again
    tokens: TokenColumn | None = None
    dead_letters: Destination | None = None  # for rows that cannot be stored; None: they are refused
    logs: LogSettings = field(default_factory=LogSettings)

    def stage(
        self, batches: Iterator[pa.RecordBatch], origin: TaskOrigin, producer: str, sequence: int | None
    ) -> Staged:
        """What a task does."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class WritePlan(TaskPlan):
    """For a write to one topic."""

    topic: str = ""
    uuid: str
    epoch: int
    target: pa.Schema
    replays: Mapping[str, Replay] = field(default_factory=dict)

    def stage(
        self, batches: Iterator[pa.RecordBatch], origin: TaskOrigin, producer: str, sequence: int | None
    ) -> Staged:
        return stage(self, batches, origin, producer, sequence)


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one task has staged for one topic."""

    topic: str
    uuid: str  # in whose folder it is
    entry: Entry
    summary: bytes | FileRef = b""  # IdRanges, TokenRuns or NumberRuns as an Arrow stream; if that is long, in a file


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
    summary: bytes | FileRef = b""  # as of a part
    left_out: bytes | FileRef = b""  # the highest ids of records that it left out, likewise
    parts: tuple[StagedPart, ...] = ()  # for other topics: those that rows name, and dead letters


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
    sieve = make_sieve(plan, origin)
    replay = plan.replays.get(producer)
    if replay is not None and sequence is not None and sequence <= replay.sequence:
        rows = 0 if replay.agrees else sum(sieve.alive(batch, plan.target, plan.topic).num_rows for batch in batches)
        sieve.abandon()
        logger.info("replayed topic=%s producer=%s sequence=%d: nothing is staged", plan.uuid, producer, sequence)
        return Staged(None, rows, True, origin.query, origin.run, plan.uuid)
    stage = EntryStage(plan, plan.uuid, plan.epoch, plan.target)
    rows = 0
    try:
        for batch in batches:
            alive = sieve.alive(batch, plan.target, plan.topic)
            stage.add(alive)
            rows += alive.num_rows
        entry, dead = stage.close(), sieve.close()
    except BaseException:
        stage.abandon()
        sieve.abandon()
        raise
    logger.info(
        "staged topic=%s records=%d bytes=%d producer=%s sequence=%s",
        plan.uuid, rows, entry.bytes if entry is not None else 0, producer, sequence,
    )  # fmt: skip
    summary = stage.summary() if entry is not None else b""
    return Staged(entry, rows, False, origin.query, origin.run, plan.uuid, summary, stage.left_out(), dead)


class EntryStage:
    """One entry file while a task writes it, and the ids or the tokens of its rows."""

    def __init__(self, plan: TaskPlan, uuid: str, epoch: int, target: pa.Schema) -> None:
        self._plan, self.uuid, self._epoch, self.target = plan, uuid, epoch, target
        self._writer = EntryWriter(plan.storage.open(), uuid, epoch, target, plan.compression)
        self._ranges = IdRanges(plan.ids, plan.known) if plan.ids is not None else None
        self._tokens = plan.tokens.gatherer() if plan.tokens is not None else None

    def add(self, batch: pa.RecordBatch) -> None:
        if self._tokens is not None and self._plan.tokens is not None:
            self._tokens.add(batch.column(self._plan.tokens.name))
        conformed = schemas.conform(batch, self.target)
        self._writer.write(conformed if self._ranges is None else self._ranges.add(conformed))

    def end_batch(self) -> None:
        """Writes the rows that are still in memory."""
        self._writer.end_batch()

    def close(self) -> Entry | None:
        return self._writer.close()

    def abandon(self) -> None:
        self._writer.abandon()

    def summary(self) -> bytes | FileRef:
        gathered = self._ranges or self._tokens
        return b"" if gathered is None else self._packed(gathered.table())

    def left_out(self) -> bytes | FileRef:
        left_out = self._ranges.left_out() if self._ranges is not None else None
        return b"" if left_out is None else self._packed(left_out)

    def _packed(self, summary: pa.Table) -> bytes | FileRef:
        if summary.nbytes > _INLINE_SUMMARY_BYTES:
            from pyspark_ledger.base.clock import SYSTEM_CLOCK
            from pyspark_ledger.files.topicfiles import TopicFiles  # few tasks need it

            files = TopicFiles(self._plan.storage.open(), self.uuid, SYSTEM_CLOCK)
            return files.stage_table(summary, self._epoch, "lz4")
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, summary.schema) as writer:
            writer.write_table(summary)
        return bytes(buffer.getvalue().to_pybytes())


class Sieve:
    """Lets rows pass: what cannot be stored is refused where it is written."""

    def alive(self, rows: pa.RecordBatch, target: pa.Schema, topic: str) -> pa.RecordBatch:
        """Those that can be stored in a topic with entry files of this schema."""
        return rows

    def close(self) -> tuple[StagedPart, ...]:
        return ()

    def abandon(self) -> None: ...


def make_sieve(plan: TaskPlan, origin: TaskOrigin) -> Sieve:
    if plan.dead_letters is None:
        return Sieve()
    from pyspark_ledger.datasource.executor.dying import DeadLetters  # few plans need it

    return DeadLetters(plan, plan.dead_letters, origin)
