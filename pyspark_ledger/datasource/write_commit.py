"""A write on the driver, after its tasks: one commit of what they staged."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

import pyarrow as pa

from pyspark_ledger.append.admission import ADMIT_ALL, Admission, ByBatchId, ByRecordIds, ByTokens, StagedBatch
from pyspark_ledger.append.append import append
from pyspark_ledger.base.names import spark_producer
from pyspark_ledger.datasource.checkpoint import Checkpoint
from pyspark_ledger.datasource.executor.staging import Staged, WritePlan
from pyspark_ledger.datasource.logs import fencing_told
from pyspark_ledger.datasource.options import WriteOptions
from pyspark_ledger.datasource.write_plan import writer_log, writer_namespace
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.dedup.record_ids import RecordIds
from pyspark_ledger.errors import NotFound
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.sinks import gone_meanwhile
from pyspark_ledger.metadata.records import FileRef
from pyspark_ledger.tokens.groups import Groups

logger = logging.getLogger(__name__)


def commit_stream(options: WriteOptions, plan: WritePlan, staged: list[Staged], number: int) -> None:
    """Commits a micro-batch. Its sequence id is Spark's batch id, unless its records bring ids or tokens."""
    producer, batch_id = plan.producer, None
    if options.deduplicate and plan.ids is None:
        query, run = _query_and_run(staged)
        producer = producer or spark_producer(query)
        batch_id = BatchId(number, query, run, Checkpoint(options.checkpoint, plan.storage).digest(number))
    _commit(options, plan, staged, producer, batch_id)


def commit_batch(options: WriteOptions, plan: WritePlan, staged: list[Staged]) -> None:
    """Commits a batch write. It has a sequence id if it was given one."""
    batch_id = None
    if plan.sequence is not None and options.deduplicate:
        batch_id = BatchId(plan.sequence, *_query_and_run(staged))
    elif plan.ids is None and plan.tokens is None:
        logger.info(
            "topic=%s: a batch write without producerName and sequenceId, sequenceColumn or tokenColumn is not "
            "deduplicated",
            plan.uuid,
        )
    _commit(options, plan, staged, plan.producer, batch_id)


def _query_and_run(staged: list[Staged]) -> tuple[str, str]:
    """The query and the run that the tasks worked for; empty for a batch job."""
    return next(((message.query, message.run) for message in staged if message.query), ("", ""))


def _commit(
    options: WriteOptions, plan: WritePlan, staged: list[Staged], producer: str, batch_id: BatchId | None
) -> None:
    log = _log_to_append_to(options, plan, staged)
    if log is None:
        return
    batch = StagedBatch(
        id=log.clock.new_id(),
        entries=tuple(message.entry for message in staged if message.entry is not None),
        schema=plan.target,
        merge_schema=options.merge_schema,
        producer=producer,
        mints=options.mint_tokens,
        admission=_admission(log, options, plan, staged, batch_id),
    )
    with _deletion_told(options, staged), fencing_told():
        appended = append(log, batch)
    if batch_id is None or not appended.duplicate or appended.records:
        return  # new; or it was this very commit that was there, when its answer had been lost
    if batch_id.digest:
        logger.warning(
            "topic '%s': batch %d of %s is a replay, as after a restart: the topic has it, and nothing is added",
            options.topic, batch_id.sequence, producer,
        )  # fmt: skip
    elif any(message.rows for message in staged):
        # Nothing but the id and the number of rows says that this is the same batch: a person who has reused an id by
        # mistake must see it, and warnings are all that Spark's Python processes show unless told otherwise.
        logger.warning(
            "topic '%s': producer '%s' has written sequence id %d before, with as many rows; this write is taken for "
            "a retry of it and adds nothing. The rows are not compared: new data needs a new sequenceId",
            options.topic, producer, batch_id.sequence,
        )  # fmt: skip


def _log_to_append_to(options: WriteOptions, plan: WritePlan, staged: list[Staged]) -> Log | None:
    """The log, if there is something to append, and it is that of the topic which the tasks have staged for. Before
    that the query's first commit to the topic notes which one it is, also if the batch is empty."""
    query, _ = _query_and_run(staged)
    uuid = next((message.uuid for message in staged), plan.uuid)
    sinks = writer_namespace(options, planned=True).sinks
    is_empty = not any(message.rows or message.skipped for message in staged)
    if is_empty and (not query or sinks.remembers(query, options.topic, uuid)):
        return None
    with _deletion_told(options, staged):
        log = writer_log(options, uuid, plan.storage)
        sinks.check(query, options.topic, log.topic)
        if log.topic.uuid != uuid:
            raise gone_meanwhile(options.topic, recreated=True)
        if query:
            sinks.remember(query, log.topic)
    return None if is_empty else log


@contextlib.contextmanager
def _deletion_told(options: WriteOptions, staged: list[Staged]) -> Iterator[None]:
    """Says to a query whose topic was deleted how it can go on."""
    try:
        yield
    except NotFound as error:
        if error.code not in ("LEDGER_TOPIC_DELETED", "LEDGER_TOPIC_NOT_FOUND"):
            raise
        namespace = writer_namespace(options, planned=True)
        query, _ = _query_and_run(staged)
        namespace.sinks.check(query, options.topic, topics.find_topic(namespace.metadata, options.topic))
        raise gone_meanwhile(options.topic, recreated=False) from error


def _admission(
    log: Log, options: WriteOptions, plan: WritePlan, staged: list[Staged], batch_id: BatchId | None
) -> Admission:
    rows = sum(message.rows for message in staged)
    if batch_id is not None:
        return ByBatchId(batch_id, rows if any(message.skipped for message in staged) else None)
    if plan.ids is not None:
        left_out = rows - sum(message.entry.records for message in staged if message.entry is not None)
        ids = RecordIds(plan.ids, _summaries(log, staged), log.storage, log.topic.uuid)
        return ByRecordIds(ids, left_out, _left_out(log, staged))
    if options.tokens is not None:
        groups = _token_groups(log, options.tokens.group)
        return ByTokens(groups, _summaries(log, staged), fan_out=options.tokens.fan_out)
    return ADMIT_ALL


_groups: dict[tuple[int, int, str], Groups] = {}


def _token_groups(log: Log, name: str) -> Groups:
    key = (os.getpid(), id(log), name)
    if key not in _groups:  # kept, so that nothing is read again unless somebody else has changed it
        _groups[key] = Groups.in_namespace_of(log, name)
    return _groups[key]


def _summaries(log: Log, staged: list[Staged]) -> list[pa.Table]:
    """What each task sent about the ids or the tokens of its entry."""
    return [_unpacked(log, message.summary) for message in staged if message.entry is not None]


def _left_out(log: Log, staged: list[Staged]) -> pa.Table | None:
    """The ids that tasks have relied on to be in the log. They say it themselves: this process has planned the batch
    anew, perhaps after a producer was forgotten."""
    found = [_unpacked(log, message.left_out) for message in staged if message.left_out]
    return pa.concat_tables(found) if found else None


def _unpacked(log: Log, packed: bytes | FileRef) -> pa.Table:
    return pa.ipc.open_stream(packed).read_all() if isinstance(packed, bytes) else log.files.fetch_table(packed)
