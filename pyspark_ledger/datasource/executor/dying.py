"""Rows that cannot be stored, in a task: they become dead letters, in a file of their own, and the others go on.

What can be wrong with a row is seen column by column. Only rows that die are turned into JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pyspark_ledger.base import compute as pc
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.datasource.executor.staging import (
    Destination,
    EntryStage,
    Sieve,
    StagedPart,
    TaskOrigin,
    TaskPlan,
)
from pyspark_ledger.files import dead_letters


class DeadLetters(Sieve):
    def __init__(self, plan: TaskPlan, destination: Destination, origin: TaskOrigin, unstored: str = "") -> None:
        """``unstored``: a column that says where a row goes, and is no part of it."""
        self._plan, self._destination, self._origin = plan, destination, origin
        token = plan.tokens.name if plan.tokens is not None else ""
        self._unstored = {name for name in (unstored, token) if name}
        plain = TaskPlan(storage=plan.storage, compression=plan.compression, producer="", sequence=None)
        self._stage = EntryStage(plain, destination.uuid, destination.epoch, destination.target)

    def alive(self, rows: pa.RecordBatch, target: pa.Schema, topic: str) -> pa.RecordBatch:
        for column, reason in self._needed(target):
            missing = rows.column(column)
            if missing.null_count:
                dead = pc.is_null(missing)
                self.bury(rows.filter(dead), reason, topic or None)
                rows = rows.filter(pc.invert(dead))
        return rows

    def _needed(self, target: pa.Schema) -> Iterator[tuple[str, str]]:
        """The columns that must not be null, and what to say of a row in which one is."""
        if self._plan.tokens is not None:
            yield self._plan.tokens.name, f"no token in column '{self._plan.tokens.name}'"
        if self._plan.ids is not None:
            yield self._plan.ids.sequence, f"no sequence id in column '{self._plan.ids.sequence}'"
            if self._plan.ids.producer_column:
                yield self._plan.ids.producer_column, f"no producer in column '{self._plan.ids.producer_column}'"
        for field in target:
            if not field.nullable:
                yield field.name, f"null in column '{field.name}', where the topic allows none"

    def bury(self, rows: pa.RecordBatch, reason: str, topic: str | None) -> None:
        stored = rows.drop_columns([name for name in rows.schema.names if name in self._unstored])
        origin = self._origin
        self._stage.add(dead_letters.letters(stored, reason, topic, origin.query, origin.batch, SYSTEM_CLOCK.now_ms()))

    def close(self) -> tuple[StagedPart, ...]:
        entry = self._stage.close()
        return () if entry is None else (StagedPart(self._destination.name, self._destination.uuid, entry),)

    def abandon(self) -> None:
        self._stage.abandon()
