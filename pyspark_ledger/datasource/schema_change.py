"""A topic that gets a column while a stream runs: the stream's columns were fixed when it was loaded, and rows that it
copied without the new one would lack it for good."""

from __future__ import annotations

from bisect import bisect_left

import pyarrow as pa

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import Conflict
from pyspark_ledger.files.schema import fits
from pyspark_ledger.log.log import Log, View


class SchemaWatch:
    """Finds the first commit with columns that a stream does not know. Costs nothing until the topic gets a column."""

    def __init__(self, log: Log, columns: pa.Schema) -> None:
        self._log, self._columns = log, {field.name: field for field in columns}
        self._known = -1  # all schemas up to this one have only columns that the stream knows
        self._found: tuple[Position, Position] | None = None  # searched from, and what was found

    def first_change(self, view: View, begin: Position) -> Position | None:
        """Where the first commit begins that ends after ``begin`` and has such columns; None: there is none."""
        while self._known < view.head.schema_id and not self._new_columns(self._known + 1):
            self._known += 1
        if self._known >= view.head.schema_id:
            return None
        if self._found is None or begin < self._found[0]:
            first = next(self._log.commits_from(view, begin), None)
            if first is None:
                return None  # a ledger was sealed, and the next one has no commit yet
            self._found = begin, self._search(view, first.number)
        return self._found[1]

    def _search(self, view: View, first: int) -> Position:
        """The schemas of commits only ever grow, so this is a binary search."""
        numbers = range(first, view.head.next_commit)
        at = bisect_left(numbers, self._known + 1, key=lambda number: self._schema_of(view, number))
        commit = self._log.commit(view, numbers[at])
        assert commit is not None  # the topic's present schema came with a commit
        return Position(commit.ledger, commit.first_entry, 0)

    def _schema_of(self, view: View, number: int) -> int:
        commit = self._log.commit(view, number)
        return view.head.schema_id if commit is None else commit.schema_id

    def _new_columns(self, schema_id: int) -> list[str]:
        return [field.name for field in self._log.schema(schema_id) if not self._has(field)]

    def _has(self, field: pa.Field) -> bool:
        """If the stream reads several topics, another one may have a column of that name and of another type."""
        known = self._columns.get(field.name)
        return known is not None and fits(known.type, field.type)

    def changed(self, change: Position) -> Conflict:
        new = ", ".join(f"'{name}'" for name in self._new_columns(self._known + 1))
        return Conflict(
            f"topic '{self._log.topic.name}' got columns that this stream does not have: {new}, from {change} on. All "
            "records before that have been read. Load the stream again (spark.readStream) and start its query again: "
            "it goes on there, with the new columns. To go on without them, set onSchemaChange=ignore",
            "LEDGER_SCHEMA_CHANGED",
        )
