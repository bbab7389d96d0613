"""A write whose rows say which topic they go to (option ``topicColumn``), on the driver, after its tasks: one
transaction over all topics that the rows name, with the batch's claim or the tokens of its records."""

from __future__ import annotations

import functools
import os

import pyarrow as pa

from pyspark_ledger.append.admission import ADMIT_ALL, Admission, ByRecordIds, StagedBatch
from pyspark_ledger.append.claim import BatchClaim
from pyspark_ledger.append.pooled_tokens import FromPool, TokenPool
from pyspark_ledger.append.several import Beside, Part, Together, check_number
from pyspark_ledger.base.names import spark_producer
from pyspark_ledger.datasource.dead_letters import dead_part
from pyspark_ledger.datasource.executor.routing import RoutedPlan
from pyspark_ledger.datasource.executor.staging import Staged, StagedPart
from pyspark_ledger.datasource.logs import fencing_told
from pyspark_ledger.datasource.options import WriteOptions
from pyspark_ledger.datasource.routed_arrivals import Arrivals, MayNotMake
from pyspark_ledger.datasource.write_commit import deletion_told, replay_told, unpacked
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.dedup.record_ids import RecordIds
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.sinks import job_key
from pyspark_ledger.metadata.port import SinkKey
from pyspark_ledger.metadata.records import ProducerState
from pyspark_ledger.tokens.groups import Groups


def commit_routed(
    namespace: OpenNamespace, options: WriteOptions, plan: RoutedPlan, staged: list[Staged], id: BatchId | None
) -> None:
    """``id``: Spark's batch id, or the one that a batch job has given; None if it has none."""
    rows, skipped = sum(message.rows for message in staged), any(message.skipped for message in staged)
    if not rows and not skipped:
        return
    producer, claim = options.producer, None
    if id is not None and options.deduplicate and plan.ids is None:
        producer = producer or spark_producer(id.query)
        key = job_key(options.producer) if options.sequence is not None else SinkKey(id.query)
        claim = claim_of(namespace, key, producer, id, rows, skipped=skipped)
        claim.refresh()
        if not claim.begin():  # before anything is made or copied for it: the rows may name other topics now
            replay_told("its topics", producer, id, rows)
            return
    _commit(namespace, options, plan, staged, id, producer, claim)


def claim_of(
    namespace: OpenNamespace, key: SinkKey, producer: str, id: BatchId, rows: int, *, skipped: bool
) -> BatchClaim:
    @functools.cache
    def earlier() -> ProducerState | None:
        """What the query has written last when it wrote to one topic, on the same checkpoint."""
        names = namespace.sinks.topics_of(id.query) if id.query else []
        there = [topic for name in names if (topic := topics.find_topic(namespace.metadata, name)) is not None]
        found = [namespace.log_of(topic).producers()[1].get(producer) for topic in there]
        states = [state for state in found if state is not None and not state.per_record]
        return max(states, key=lambda state: state.sequence, default=None)

    metadata, limits, clock = namespace.metadata, namespace.limits, namespace.clock
    return BatchClaim(metadata, limits, clock, key, producer, id, rows, skipped=skipped, earlier=earlier)


def _commit(
    namespace: OpenNamespace,
    options: WriteOptions,
    plan: RoutedPlan,
    staged: list[Staged],
    id: BatchId | None,
    producer: str,
    claim: BatchClaim | None,
) -> None:
    by_topic: dict[str, list[StagedPart]] = {}
    for message in staged:
        for part in message.parts:
            by_topic.setdefault(part.topic, []).append(part)
    dead = by_topic.pop(options.dead_letters, [])
    check_number(len(by_topic) + bool(dead), namespace.limits)
    query = id.query if id is not None else _query(staged)
    pool = None if options.tokens is None else TokenPool(_groups_of(namespace, options.tokens.group))
    beside: list[Beside] = [each for each in (claim, pool) if each is not None]
    arrivals = Arrivals(namespace, options, plan, query, id.sequence if id is not None and query else None)
    parts = []
    for name, its in by_topic.items():
        try:
            parts.append(_part(arrivals, options, plan, producer, name, its, pool))
        except MayNotMake as refusal:
            if not options.dead_letters:
                raise
            dead += arrivals.buried(its, refusal)
    if dead:
        by_records = plan.ids is not None or pool is not None
        parts.append(dead_part(namespace, options.dead_letters, dead, id if by_records else None))
    with deletion_told(namespace, query, [*by_topic]), fencing_told():
        Together(namespace.metadata, namespace.limits, namespace.clock, parts, beside, what="a batch").append()


def _part(
    arrivals: Arrivals,
    options: WriteOptions,
    plan: RoutedPlan,
    producer: str,
    name: str,
    staged: list[StagedPart],
    pool: TokenPool | None,
) -> Part:
    log = arrivals.log(name, {part.uuid for part in staged})
    target = arrivals.target(log)
    batch = StagedBatch(
        id=log.clock.new_id(),
        entries=tuple(arrivals.brought(log, part, target) for part in staged),
        schema=target,
        merge_schema=options.merge_schema,
        producer=producer,
        mints=options.mint_tokens,
        admission=_admission(arrivals, log, options, plan, staged, pool),
    )
    return Part(log, batch)


def _admission(
    arrivals: Arrivals,
    log: Log,
    options: WriteOptions,
    plan: RoutedPlan,
    staged: list[StagedPart],
    pool: TokenPool | None,
) -> Admission:
    def summaries() -> list[pa.Table]:
        return [unpacked(arrivals.files(part), part.summary) for part in staged]

    if plan.ids is not None:
        return ByRecordIds(RecordIds(plan.ids, summaries(), log.storage, log.topic.uuid))
    if pool is not None and options.tokens is not None:
        return FromPool(pool, summaries(), options.tokens.fan_out)
    return ADMIT_ALL


def _query(staged: list[Staged]) -> str:
    return next((message.query for message in staged if message.query), "")


_groups: dict[tuple[int, int, str], Groups] = {}


def _groups_of(namespace: OpenNamespace, name: str) -> Groups:
    key = (os.getpid(), id(namespace), name)
    if key not in _groups:  # kept, so that nothing is read again unless somebody else has changed it

        def open_log(uuid: str) -> Log | None:
            return Log.by_uuid(namespace.metadata, namespace.storage, uuid, namespace.limits, namespace.clock)

        _groups[key] = Groups(namespace.metadata, name, open_log)
    return _groups[key]
