"""The task of a write whose rows say which topic they go to: one entry file for each of these topics.

Tasks ask nobody, and so know only the topics that the driver has told them of. Rows for another topic, which may not
exist yet, are staged in the folder of a topic that is there for that, and brought to their place by the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pyspark_ledger.base import compute as pc
from pyspark_ledger.base.names import STAGING_TOPIC, check_topic_name
from pyspark_ledger.datasource.executor.dying import DeadLetters
from pyspark_ledger.datasource.executor.staging import (
    Destination,
    EntryStage,
    Replay,
    Sieve,
    Staged,
    StagedPart,
    TaskOrigin,
    TaskPlan,
)
from pyspark_ledger.errors import InvalidInput

logger = logging.getLogger(__name__)

_WAITING_BYTES = 32 << 20  # of rows that are in memory, over all topics


@dataclass(frozen=True, kw_only=True)
class RoutedPlan(TaskPlan):
    """For a write whose rows go to the topics that they name."""

    column: str  # the name is in this one
    staging: Destination  # for rows of topics that are not listed
    topics: Mapping[str, Destination] = field(default_factory=dict)
    misfits: Mapping[str, str] = field(default_factory=dict)  # topics that cannot take these rows, and why
    at_most: int  # topics
    replay: Replay | None = None

    def stage(
        self, batches: Iterator[pa.RecordBatch], origin: TaskOrigin, producer: str, sequence: int | None
    ) -> Staged:
        return stage_routed(self, batches, origin, sequence)


def stage_routed(
    plan: RoutedPlan, batches: Iterator[pa.RecordBatch], origin: TaskOrigin, sequence: int | None
) -> Staged:
    """Streams a partition into one entry file for each topic; the order of a topic's rows stays."""
    plan.logs.apply()
    replay, rows = plan.replay, 0
    if replay is not None and sequence is not None and sequence <= replay.sequence:
        rows = 0 if replay.agrees else sum(batch.num_rows for batch in batches)
        logger.info("replayed sequence=%d: nothing is staged", sequence)
        return Staged(None, rows, True, origin.query, origin.run, "")
    router = _Router(plan, origin)
    try:
        for batch in batches:
            router.add(batch)
            rows += batch.num_rows
        parts = router.close()
    except BaseException:
        router.abandon()
        raise
    logger.info("staged topics=%d records=%d sequence=%s", len(parts), rows, sequence)
    return Staged(None, rows, False, origin.query, origin.run, "", parts=parts)


class _Router:
    def __init__(self, plan: RoutedPlan, origin: TaskOrigin) -> None:
        self._plan = plan
        dead = plan.dead_letters
        self._letters = DeadLetters(plan, dead, origin, plan.column) if dead is not None else None
        self._sieve: Sieve = self._letters or Sieve()
        self._stages: dict[str, EntryStage] = {}
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        for topic, rows in split(batch, self._plan.column):
            self._route(topic, rows)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _WAITING_BYTES:  # of each topic there may be few, and all keep the batch in memory
            for stage in self._stages.values():
                stage.end_batch()
            self._waiting_bytes = 0

    def _route(self, topic: str | None, rows: pa.RecordBatch) -> None:
        problem = self._problem(topic)
        if problem is not None:
            if self._letters is None:
                raise InvalidInput(
                    f"option 'topicColumn': {rows.num_rows} rows cannot be stored: {problem.message}. Leave them out, "
                    "or name a topic for them with option 'deadLetterTopic'",
                    problem.code,
                )
            self._letters.bury(rows, problem.message, topic)
            return
        assert topic is not None
        stage = self._stages.get(topic) or self._open(topic)
        stage.add(self._sieve.alive(rows, stage.target, topic))

    def _problem(self, topic: str | None) -> InvalidInput | None:
        """Why rows cannot go where they say; None if nothing is wrong with that."""
        if topic in self._stages:
            return None
        if topic is None:
            return InvalidInput(f"no topic in column '{self._plan.column}'", "LEDGER_NO_TOPIC")
        try:
            check_topic_name(topic)
        except InvalidInput as wrong:
            return wrong
        letters = self._plan.dead_letters
        if topic == STAGING_TOPIC or (letters is not None and topic == letters.name):
            return InvalidInput(f"topic '{topic}' is there for something else", "LEDGER_INVALID_TOPIC_NAME")
        return None

    def _open(self, topic: str) -> EntryStage:
        plan = self._plan
        if topic in plan.misfits:
            raise InvalidInput(f"topic '{topic}': {plan.misfits[topic]}", "LEDGER_SCHEMA_MISMATCH")
        if len(self._stages) >= plan.at_most:
            raise InvalidInput(
                f"option 'topicColumn': the rows of one batch go to more than {plan.at_most} topics, which is the most "
                "that one transaction appends to: make batches smaller (maxRowsPerTrigger of the source), or split "
                "the stream into several queries. A batch that Spark has begun is repeated as it is: for that one, let "
                "the query's code name fewer topics",
                "LEDGER_TOO_MANY_TOPICS",
            )
        to = plan.topics.get(topic, plan.staging)
        stage = self._stages[topic] = EntryStage(plan, to.uuid, to.epoch, to.target)
        return stage

    def close(self) -> tuple[StagedPart, ...]:
        parts = []
        for topic, stage in self._stages.items():
            entry = stage.close()
            if entry is not None:
                parts.append(StagedPart(topic, stage.uuid, entry, stage.summary()))
        return (*parts, *self._sieve.close())

    def abandon(self) -> None:
        for stage in self._stages.values():
            stage.abandon()
        self._sieve.abandon()


def split(batch: pa.RecordBatch, column: str) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """The rows of each topic, in their order; those without one come last."""
    if not batch.num_rows:
        return
    encoded = batch.column(column).cast(pa.string()).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) + bool(encoded.null_count) == 1:
        yield (names or [None])[0], batch
        return
    rows = batch.take(pc.array_sort_indices(encoded.indices))  # stable, with nulls at the end
    counts = {each["values"]: each["counts"] for each in encoded.indices.value_counts().to_pylist()}
    start = 0
    for code, name in (*enumerate(names), (None, None)):
        count = counts.get(code, 0)
        if count:
            yield name, rows.slice(start, count)
        start += count
