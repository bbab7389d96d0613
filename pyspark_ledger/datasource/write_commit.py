"""A write on the driver, after its tasks: one commit of what they staged."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from pyspark_ledger.append.admission import ADMIT_ALL, Admission, ByBatchId, ByRecordIds, ByTokens, StagedBatch
from pyspark_ledger.append.append import append
from pyspark_ledger.append.prepared import AppendResult
from pyspark_ledger.append.several import Part, Together
from pyspark_ledger.base.names import spark_producer
from pyspark_ledger.datasource.checkpoint import Checkpoint
from pyspark_ledger.datasource.executor.staging import Staged, TaskPlan, WritePlan
from pyspark_ledger.datasource.logs import fencing_told
from pyspark_ledger.datasource.options import WriteOptions
from pyspark_ledger.datasource.write_plan import writer_log, writer_namespace
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.dedup.record_ids import RecordIds
from pyspark_ledger.errors import NotFound
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.sinks import gone_meanwhile
from pyspark_ledger.metadata.port import SinkKey
from pyspark_ledger.metadata.records import FileRef
from pyspark_ledger.tokens.groups import Groups

logger = logging.getLogger(__name__)


def commit_stream(options: WriteOptions, plan: TaskPlan, staged: list[Staged], number: int) -> None:
    """Commits a micro-batch. Its sequence id is Spark's batch id, unless its records bring ids or tokens."""
    query, run = _query_and_run(staged)
    by_batches = options.deduplicate and plan.ids is None
    is_numbered = by_batches or any(message.parts for message in staged)  # dead letters bring no ids of their own
    digest = Checkpoint(options.checkpoint, plan.storage).digest(number) if is_numbered else b""
    id = BatchId(number, query, run, digest)
    if not isinstance(plan, WritePlan):
        _commit_routed(options, plan, staged, id)
    elif by_batches:
        _commit(options, plan, staged, plan.producer or spark_producer(query), id)
    else:
        _commit(options, plan, staged, plan.producer, None, id if plan.ids or plan.tokens else None)


def commit_batch(options: WriteOptions, plan: TaskPlan, staged: list[Staged]) -> None:
    """Commits a batch write. It has a sequence id if it was given one."""
    batch_id = None
    if plan.sequence is not None and options.deduplicate:
        batch_id = BatchId(plan.sequence, *_query_and_run(staged))
    elif plan.ids is None and plan.tokens is None:
        logger.info(
            "topic=%s: a batch write without producerName and sequenceId, sequenceColumn or tokenColumn is not "
            "deduplicated",
            plan.uuid if isinstance(plan, WritePlan) else f"in {options.topic_column}",
        )
    if isinstance(plan, WritePlan):
        _commit(options, plan, staged, plan.producer, batch_id)
    else:
        _commit_routed(options, plan, staged, batch_id)


def _commit_routed(options: WriteOptions, plan: TaskPlan, staged: list[Staged], id: BatchId | None) -> None:
    from pyspark_ledger.datasource.executor.routing import RoutedPlan
    from pyspark_ledger.datasource.routed_commit import commit_routed  # few writes need it

    assert isinstance(plan, RoutedPlan)
    commit_routed(writer_namespace(options, planned=True), options, plan, staged, id)


def _query_and_run(staged: list[Staged]) -> tuple[str, str]:
    """The query and the run that the tasks worked for; empty for a batch job."""
    return next(((message.query, message.run) for message in staged if message.query), ("", ""))


def _commit(
    options: WriteOptions,
    plan: WritePlan,
    staged: list[Staged],
    producer: str,
    batch_id: BatchId | None,
    spark_id: BatchId | None = None,
) -> None:
    """``spark_id``: Spark's batch id, where it is not the batch's sequence id."""
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
    namespace, (query, run) = writer_namespace(options, planned=True), _query_and_run(staged)
    with deletion_told(namespace, query, [options.topic]), fencing_told():
        if batch_id is not None and namespace.sinks.writes_claims(query, run):
            appended: AppendResult | None = _append_claimed(namespace, log, batch, batch_id, staged)
        elif any(message.parts for message in staged):
            appended = _append_with_dead(namespace, options, log, batch, staged, batch_id, spark_id)
        else:
            appended = append(log, batch)
    if batch_id is not None and appended is not None and appended.duplicate and not appended.records:
        # It is not this very commit that was there, when its answer had been lost.
        replay_told(f"topic '{options.topic}'", producer, batch_id, sum(message.rows for message in staged))


def _append_claimed(
    namespace: OpenNamespace, log: Log, batch: StagedBatch, id: BatchId, staged: list[Staged]
) -> AppendResult:
    """For a query that has written to several topics before, on the same checkpoint: its batches are claimed in its
    node, and so are those that it writes to one topic now."""
    from pyspark_ledger.datasource.routed_commit import claim_of

    rows, skipped = sum(message.rows for message in staged), any(message.skipped for message in staged)
    claim = claim_of(namespace, SinkKey(id.query), batch.producer, id, rows, skipped=skipped)
    parts = [Part(log, replace(batch, admission=ADMIT_ALL))] if batch.entries else []
    parts += _dead(namespace, staged, None)
    results = Together(namespace.metadata, namespace.limits, namespace.clock, parts, [claim], what="a batch").append()
    head = log.view().head
    return AppendResult(head.end, 0, results is None, head.last_publish_ms) if not results else results[0]


def _append_with_dead(
    namespace: OpenNamespace,
    options: WriteOptions,
    log: Log,
    batch: StagedBatch,
    staged: list[Staged],
    batch_id: BatchId | None,
    spark_id: BatchId | None,
) -> AppendResult | None:
    """Some rows could not be stored: they go to another topic in the same transaction. If the batch has an id, it is
    kept where it always is, with the topic that the others go to, also if all rows have died: then that gets a commit
    without records. So the option may come and go, and nothing is doubled or lost."""
    parts = [Part(log, batch, leads=batch_id is not None)] if batch.entries or batch_id is not None else []
    parts += _dead(namespace, staged, spark_id)
    results = Together(namespace.metadata, namespace.limits, namespace.clock, parts, what="a batch").append()
    if results is None:
        head = log.view().head
        return AppendResult(head.end, 0, True, head.last_publish_ms)
    return None


def _dead(namespace: OpenNamespace, staged: list[Staged], id: BatchId | None) -> list[Part]:
    from pyspark_ledger.datasource.dead_letters import dead_part

    dead = [part for message in staged for part in message.parts]
    return [dead_part(namespace, dead[0].topic, dead, id)] if dead else []


def replay_told(where: str, producer: str, id: BatchId, rows: int) -> None:
    """That a batch was there already, and adds nothing: who has not expected that must see it."""
    if id.digest:
        logger.warning(
            "%s: batch %d of %s is a replay, as after a restart: the topic has it, and nothing is added",
            where, id.sequence, producer,
        )  # fmt: skip
    elif rows:
        # Nothing but the id and the number of rows says that this is the same batch: a person who has reused an id by
        # mistake must see it, and warnings are all that Spark's Python processes show unless told otherwise.
        logger.warning(
            "%s: producer '%s' has written sequence id %d before, with as many rows; this write is taken for "
            "a retry of it and adds nothing. The rows are not compared: new data needs a new sequenceId",
            where, producer, id.sequence,
        )  # fmt: skip


def _log_to_append_to(options: WriteOptions, plan: WritePlan, staged: list[Staged]) -> Log | None:
    """The log, if there is something to append, and it is that of the topic which the tasks have staged for. Before
    that the query's first commit to the topic notes which one it is, also if the batch is empty."""
    query, _ = _query_and_run(staged)
    uuid = next((message.uuid for message in staged), plan.uuid)
    sinks = writer_namespace(options, planned=True).sinks
    is_empty = not any(message.rows or message.skipped or message.parts for message in staged)
    if is_empty and (not query or sinks.remembers(query, options.topic, uuid)):
        return None
    with deletion_told(writer_namespace(options, planned=True), query, [options.topic]):
        log = writer_log(options, uuid, plan.storage.uri)
        sinks.check(query, options.topic, log.topic)
        if log.topic.uuid != uuid:
            raise gone_meanwhile(options.topic, recreated=True)
        if query:
            sinks.remember(query, log.topic)
    return None if is_empty else log


@contextlib.contextmanager
def deletion_told(namespace: OpenNamespace, query: str, names: Sequence[str]) -> Iterator[None]:
    """Says to a query of which a topic was deleted how it can go on."""
    try:
        yield
    except NotFound as error:
        if error.code not in ("LEDGER_TOPIC_DELETED", "LEDGER_TOPIC_NOT_FOUND"):
            raise
        found = {name: topics.find_topic(namespace.metadata, name) for name in names}
        for name, topic in found.items():
            namespace.sinks.check(query, name, topic)
        if len(names) != 1:
            raise  # it names the topic
        raise gone_meanwhile(names[0], recreated=False) from error


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
    return [unpacked(log.files, message.summary) for message in staged if message.entry is not None]


def _left_out(log: Log, staged: list[Staged]) -> pa.Table | None:
    """The ids that tasks have relied on to be in the log. They say it themselves: this process has planned the batch
    anew, perhaps after a producer was forgotten."""
    found = [unpacked(log.files, message.left_out) for message in staged if message.left_out]
    return pa.concat_tables(found) if found else None


def unpacked(files: TopicFiles, packed: bytes | FileRef) -> pa.Table:
    return pa.ipc.open_stream(packed).read_all() if isinstance(packed, bytes) else files.fetch_table(packed)
