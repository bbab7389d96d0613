"""A write on the driver, after its tasks: one commit of what they staged."""

from __future__ import annotations

import logging
import os

import pyarrow as pa

from pyspark_ledger.append.admission import ADMIT_ALL, Admission, ByBatchId, ByRecordIds, ByTokens, StagedBatch
from pyspark_ledger.append.append import append
from pyspark_ledger.datasource.checkpoint import Checkpoint
from pyspark_ledger.datasource.executor.staging import Staged, WritePlan, spark_producer
from pyspark_ledger.datasource.options import WriteOptions
from pyspark_ledger.datasource.write_plan import writer_log
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.dedup.record_ids import RecordIds
from pyspark_ledger.errors import Conflict
from pyspark_ledger.log.log import Log
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
    elif plan.ids is None and not plan.token_column:
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
    if not any(message.rows or message.skipped for message in staged):
        return
    log = writer_log(options, planned=True)
    if log.topic.uuid != plan.uuid:
        raise Conflict(
            f"topic '{options.topic}' was deleted and recreated while the batch was written: run it again",
            "LEDGER_TOPIC_RECREATED",
        )
    batch = StagedBatch(
        id=log.clock.new_id(),
        entries=tuple(message.entry for message in staged if message.entry is not None),
        schema=plan.target,
        merge_schema=options.merge_schema,
        producer=producer,
        mints=options.mint_tokens,
        admission=_admission(log, options, plan, staged, batch_id),
    )
    appended = append(log, batch)
    has_rows = any(message.rows for message in staged)
    if appended.duplicate and has_rows and batch_id is not None and not batch_id.digest:
        # Nothing but the id and the number of rows says that this is the same batch: a person who has reused an id by
        # mistake must see it, and warnings are all that Spark's Python processes show unless told otherwise.
        logger.warning(
            "topic '%s': producer '%s' has written sequence id %d before, with as many rows; this write is taken for "
            "a retry of it and adds nothing. The rows are not compared: new data needs a new sequenceId",
            options.topic, producer, batch_id.sequence,
        )  # fmt: skip


def _admission(
    log: Log, options: WriteOptions, plan: WritePlan, staged: list[Staged], batch_id: BatchId | None
) -> Admission:
    rows = sum(message.rows for message in staged)
    if batch_id is not None:
        return ByBatchId(batch_id, rows if any(message.skipped for message in staged) else None)
    if plan.ids is not None:
        left_out = rows - sum(message.entry.records for message in staged if message.entry is not None)
        ids = RecordIds(plan.ids, _summaries(log, staged), log.storage, log.topic.uuid)
        return ByRecordIds(ids, left_out, plan.known)
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
    packed = [message.summary for message in staged if message.entry is not None]
    return [
        pa.ipc.open_stream(summary).read_all() if isinstance(summary, bytes) else log.files.fetch_table(summary)
        for summary in packed
    ]
