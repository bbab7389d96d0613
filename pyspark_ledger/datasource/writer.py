"""``df.writeStream`` and ``df.write`` with ``format("ledger")``.

Tasks stage entry files; the driver appends them in one commit. Spark makes a new writer for every batch and another
for its commit, so what they share travels in the plan and in the tasks' messages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_ledger.append.append import Appended, Batch, append, check_allowed
from pyspark_ledger.append.producer import COMPRESSIONS, FRESH_S
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.client import LedgerClient, shared_client
from pyspark_ledger.datasource.checkpoint import Checkpoint
from pyspark_ledger.datasource.options import TokenOptions, WriteOptions
from pyspark_ledger.datasource.types import arrow_schema
from pyspark_ledger.dedup.producers import Claim
from pyspark_ledger.dedup.record_ids import IdColumns, Ranges, RecordIds
from pyspark_ledger.errors import Conflict, InvalidInput, NotFound
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import EntryWriter
from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.records import Entry, FileRef, ProducerState, Topic
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.ids import TokenRuns, check_column
from pyspark_ledger.tokens.spending import TokenClaims

logger = logging.getLogger(__name__)

_REMEMBERED_PRODUCERS = 64  # sent to tasks when the driver cannot know which query this is
_KNOWN_PRODUCERS = 10_000  # more last ids than these are not sent to tasks
_INLINE_TOLD = 256 << 10  # what is longer is kept out of Spark's task results


@dataclass(frozen=True, slots=True)
class Replay:
    """What the log already has from a producer. A task that brings it again writes no file."""

    sequence: int
    agrees: bool | None  # whether the offset log says it is the same batch; None: can't know, so count the rows


@dataclass(frozen=True)
class WritePlan:
    """What the driver tells the tasks: they touch storage only, never ZooKeeper."""

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
    token_column: str = ""


@dataclass
class Staged(WriterCommitMessage):
    """What one task did, and which query, run and batch it did it for: the driver's commit cannot ask."""

    entry: Entry | None
    rows: int
    skipped: bool
    query: str
    run: str
    told: bytes | FileRef = b""  # of the ids or the tokens of what it wrote; if that is long, in a file


class _Task:
    """Who runs this task, from Spark's local properties."""

    def __init__(self) -> None:
        context = TaskContext.get()
        self.query = (context and context.getLocalProperty("sql.streaming.queryId")) or ""
        self.run = ((context and context.getLocalProperty("spark.jobGroup.id")) or "") if self.query else ""
        batch = (context and context.getLocalProperty("streaming.sql.batchId")) or ""
        self.batch = int(batch) if batch else None


class LedgerStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, plan: WritePlan) -> None:
        self._options, self._plan = options, plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        task = _Task()
        return stage(self._plan, iterator, task, self._plan.producer or spark_producer(task.query), task.batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        claim = None
        if self._options.deduplicate and self._plan.ids is None:
            query, run = _who(staged)
            digest = Checkpoint(self._options.checkpoint, self._plan.storage).digest(batchId)
            claim = Claim(self._plan.producer or spark_producer(query), batchId, query, run, digest)
        commit(self._options, self._plan, staged, claim)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Deletes nothing: Spark also aborts after a commit whose outcome it does not know. gc cleans up."""


class LedgerBatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, plan: WritePlan) -> None:
        self._options, self._plan = options, plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(self._plan, iterator, _Task(), self._plan.producer, self._plan.sequence)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        claim = None
        if self._plan.sequence is not None and self._options.deduplicate:
            claim = Claim(self._plan.producer, self._plan.sequence, *_who(staged))
        elif self._plan.ids is None and not self._plan.token_column:
            logger.info(
                "topic=%s: a batch write without producerName and sequenceId, sequenceColumn or tokenColumn is not "
                "deduplicated",
                self._plan.uuid,
            )
        commit(self._options, self._plan, staged, claim)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes nothing, as in a stream."""


def spark_producer(query: str) -> str:
    return f"spark-{query}"


def _who(staged: list[Staged]) -> tuple[str, str]:
    """The query and the run that the tasks worked for; empty for a batch job."""
    return next(((message.query, message.run) for message in staged if message.query), ("", ""))


# -- on the driver, before the tasks ---------------------------------------------------------------------------


def plan_write(options: WriteOptions, schema: StructType, *, overwrite: bool, stream: bool) -> WritePlan:
    if overwrite:
        raise InvalidInput('a ledger is append only: use outputMode("append") or mode("append")', "LEDGER_APPEND_ONLY")
    if stream and options.sequence is not None:
        raise InvalidInput(
            "option 'sequenceId' is for batch writes; a stream's sequence ids are its batch ids, or its records bring "
            "their own: see 'sequenceColumn'",
            "LEDGER_INVALID_OPTION",
        )
    incoming = _stored(schemas.canonical(arrow_schema(schema)), options)
    if options.ids is not None:
        options.ids.check(incoming)
    log = writer_log(options, incoming)
    view = log.view()
    if options.ids is not None or options.sequence is not None or (stream and options.deduplicate):
        check_allowed(log, view)
    merged = schemas.merge(log.schema(view.head.schema_id), incoming, may_add=options.merge_schema)
    return WritePlan(
        storage=log.storage.uri,
        uuid=log.topic.uuid,
        epoch=view.head.gc_epoch,
        target=schemas.written(merged, incoming),
        compression=COMPRESSIONS[options.compression],
        producer=options.producer,
        sequence=options.sequence,
        replays=_replays(options, log) if options.deduplicate and options.ids is None else {},
        ids=options.ids,
        known=log.known_sequences(_KNOWN_PRODUCERS, options.ids.producer) if options.ids else None,
        token_column=options.tokens.column if options.tokens else "",
    )


def _stored(schema: pa.Schema, options: WriteOptions) -> pa.Schema:
    """A token is the right to write a record, and no part of it."""
    if options.tokens is None:
        return schema
    check_column(schema, options.tokens.column)
    if len(schema) == 1:
        raise InvalidInput("a record needs a column beside its token", "LEDGER_INVALID_SCHEMA")
    return schema.remove(schema.get_field_index(options.tokens.column))


def _replays(options: WriteOptions, log: Log) -> dict[str, Replay]:
    """The last batch of the producer that this write will turn out to be."""
    _, producers = log.producers()
    checkpoint = Checkpoint(options.checkpoint, log.storage.uri)
    name = options.producer
    if not name and (query := checkpoint.query_id()):
        name = spark_producer(query)
    if name:
        state = producers.get(name)
        return {name: _replay(state, checkpoint)} if state else {}
    recent = sorted(producers.owned(), key=lambda state: state.publish_ms)[-_REMEMBERED_PRODUCERS:]
    return {state.name: _replay(state, checkpoint) for state in recent}


def _replay(state: ProducerState, checkpoint: Checkpoint) -> Replay:
    digest = checkpoint.digest(state.sequence) if state.digest else b""
    return Replay(state.sequence, digest == state.digest if digest else None)


_logs: dict[tuple[int, int, str], Log] = {}


def writer_log(options: WriteOptions, schema: pa.Schema | None = None) -> Log:
    """The topic, made if it is not there and the schema is known. Cached: what the log remembers saves reading it
    all for every batch. A plan looks at the head first, or it might not know the last batch, which perhaps another
    process committed; a commit need not, the head's version tells when it is wrong."""
    connection = options.connection
    client = shared_client(connection.zookeeper, connection.storage, connection.password)
    key = (os.getpid(), id(client), options.topic)
    log = _logs.get(key)
    if log is not None:
        try:
            log.view(0 if schema is not None else FRESH_S)
        except NotFound:
            log = None  # deleted, and perhaps made again
    if log is None:
        if schema is not None:
            _ensure_topic(client, options, schema)
        log = _logs[key] = client.log(options.topic)
    _check_fixed_columns(log.topic, options)
    return log


def _ensure_topic(client: LedgerClient, options: WriteOptions, schema: pa.Schema) -> None:
    if topics.find_topic(client.metadata, options.topic) is None:
        try:
            client.create_topic(options.topic, schema, options.key_column, options.version_column)
        except Conflict as conflict:
            if conflict.code != "LEDGER_TOPIC_EXISTS":
                raise


def _check_fixed_columns(topic: Topic, options: WriteOptions) -> None:
    for option, asked, fixed in (
        ("keyColumn", options.key_column, topic.key),
        ("versionColumn", options.version_column, topic.version_column),
    ):
        if asked and asked != fixed:
            raise InvalidInput(
                f"option '{option}' is '{asked}', but topic '{topic.name}' was made with "
                f"{repr(fixed) if fixed else 'none'}; it is fixed for a topic's life",
                "LEDGER_INVALID_OPTION",
            )


# -- in a task ---------------------------------------------------------------------------------------------------


def stage(
    plan: WritePlan, batches: Iterator[pa.RecordBatch], task: _Task, producer: str, sequence: int | None
) -> Staged:
    """Streams a partition into one entry file; memory does not grow with it. A task without rows leaves nothing."""
    replay = plan.replays.get(producer)
    if replay is not None and sequence is not None and sequence <= replay.sequence:
        rows = 0 if replay.agrees else sum(batch.num_rows for batch in batches)
        return Staged(None, rows, True, task.query, task.run)
    writer = EntryWriter(open_storage(plan.storage), plan.uuid, plan.epoch, plan.target, plan.compression)
    ranges = Ranges(plan.ids, plan.known) if plan.ids is not None else None
    tokens = TokenRuns(f"tokenColumn '{plan.token_column}'") if plan.token_column else None
    rows = 0
    try:
        for batch in batches:
            if tokens is not None:
                tokens.add(batch.column(plan.token_column))
            conformed = schemas.conform(batch, plan.target)
            writer.write(conformed if ranges is None else ranges.add(conformed))
            rows += batch.num_rows
        entry = writer.close()
    except BaseException:
        writer.abandon()
        raise
    teller = ranges or tokens
    told = _tell(plan, teller.table()) if teller is not None and entry is not None else b""
    return Staged(entry, rows, False, task.query, task.run, told)


def _tell(plan: WritePlan, table: pa.Table) -> bytes | FileRef:
    if table.nbytes > _INLINE_TOLD:
        return TopicFiles(open_storage(plan.storage), plan.uuid, SYSTEM_CLOCK).stage_table(table, plan.epoch, "lz4")
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    return bytes(buffer.getvalue().to_pybytes())


# -- on the driver, after the tasks ----------------------------------------------------------------------------


def commit(options: WriteOptions, plan: WritePlan, staged: list[Staged], claim: Claim | None) -> Appended | None:
    entries = tuple(message.entry for message in staged if message.entry is not None)
    skipped = any(message.skipped for message in staged)
    dropped = sum(message.rows - (message.entry.records if message.entry else 0) for message in staged)
    if not entries and not skipped and not dropped:
        return None
    log = writer_log(options)
    if log.topic.uuid != plan.uuid:
        raise Conflict(
            f"topic '{options.topic}' was deleted and made again while the batch was written: run it again",
            "LEDGER_TOPIC_RECREATED",
        )
    batch = Batch(
        id=SYSTEM_CLOCK.new_id(),
        entries=entries,
        schema=plan.target,
        merge_schema=options.merge_schema,
        claim=claim,
        ids=_record_ids(log, plan.ids, staged) if plan.ids is not None else None,
        producer=plan.producer,
        expects_replay=skipped,
        counted=sum(message.rows for message in staged) if skipped else None,
        dropped=0 if skipped else dropped,
        known=plan.known,
        mints=options.mint_tokens,
        tokens=_token_claims(log, options.tokens, staged) if options.tokens is not None else None,
    )
    return append(log, batch)


_groups: dict[tuple[int, int, str], Groups] = {}


def _token_claims(log: Log, options: TokenOptions, staged: list[Staged]) -> TokenClaims:
    key = (os.getpid(), id(log), options.group)
    if key not in _groups:  # remembered: nothing is read again that nobody else has changed
        _groups[key] = Groups.in_namespace_of(log, options.group)
    wrote = [message for message in staged if message.entry is not None]
    entries = [message.entry for message in wrote if message.entry is not None]
    return TokenClaims(_groups[key], entries, [_told(log, message.told) for message in wrote], options.fan_out)


def _record_ids(log: Log, columns: IdColumns, staged: list[Staged]) -> RecordIds:
    wrote = [message for message in staged if message.entry is not None]
    entries = [message.entry for message in wrote if message.entry is not None]
    return RecordIds(columns, entries, [_told(log, message.told) for message in wrote], log.storage, log.topic.uuid)


def _told(log: Log, told: bytes | FileRef) -> pa.Table:
    return pa.ipc.open_stream(told).read_all() if isinstance(told, bytes) else log.files.fetch_table(told)
