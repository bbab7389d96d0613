"""Records for people: a page of them from any place, forwards or backwards, with a filter.

A filter is a column, an operator and a value, which become a comparison of Arrow arrays; nothing is evaluated. A look
is bounded by rows and by time, and says how far it came: a page that finds nothing may have more behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.compaction.fold import tombstones
from pyspark_ledger.errors import InvalidInput, NotFound
from pyspark_ledger.files.jsonrows import encoder
from pyspark_ledger.log import places, scan, trimmed
from pyspark_ledger.log.generations import newest
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.reader import projection
from pyspark_ledger.log.rows import CompactedRows, SliceRows, read_slice
from pyspark_ledger.log.sources import ReadSource

MASKED = "•••"
MOST_RECORDS = 500
_MOST_ROWS, _MOST_SECONDS = 2_000_000, 4.0  # that one look goes through
_WINDOW = 8_192  # records that a look backwards goes through at first
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_OF_TEXTS: dict[str, Callable[..., Any]] = {"contains": pc.match_substring, "starts with": pc.starts_with}
_OF_NULLS: dict[str, Callable[[Any], Any]] = {"is null": pc.is_null, "is not null": pc.is_valid}
OPERATORS = (*_COMPARISONS, *_OF_TEXTS, *_OF_NULLS)
Row = dict[str, Any]


class Filter:
    """One comparison, as an Arrow array of what fits."""

    def __init__(self, schema: pa.Schema, column: str, operator: str, value: str, topic: str) -> None:
        if operator not in OPERATORS:
            raise InvalidInput(
                f"'operator' is '{operator}': it must be one of {', '.join(OPERATORS)}", "LEDGER_INVALID_PARAMETER"
            )
        projection(schema, [column], topic)  # says which columns there are
        self._column, self._operator, kind = column, operator, schema.field(column).type
        if operator in _OF_TEXTS and not pat.is_string(kind):
            raise InvalidInput(f"'{operator}' is for texts, and column '{column}' is none", "LEDGER_INVALID_PARAMETER")
        self._value = (
            None if operator in _OF_NULLS else value if operator in _OF_TEXTS else value_of(kind, column, value)
        )

    def fits(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column(self._column)
        if self._operator in _OF_NULLS:
            return _OF_NULLS[self._operator](values)
        if self._operator in _OF_TEXTS:
            return pc.fill_null(_OF_TEXTS[self._operator](values, pattern=self._value), False)
        return pc.fill_null(_COMPARISONS[self._operator](values, self._value), False)


def value_of(kind: pa.DataType, column: str, text: str) -> pa.Scalar:
    """A text as a value of a column. Nested columns and bytes cannot be compared here."""
    if pat.is_nested(kind) or pat.is_binary(kind):
        raise InvalidInput(f"column '{column}' is of a type that cannot be compared", "LEDGER_INVALID_PARAMETER")
    try:
        if pat.is_timestamp(kind):
            moment = datetime.fromisoformat(text)
            if kind.tz is not None:
                moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            elif moment.tzinfo is not None:
                raise ValueError("this column has no time zone")
            return pa.scalar(moment, kind)
        if pat.is_time(kind):
            return pa.scalar(time.fromisoformat(text), kind)
        return pa.scalar(text, pa.string()).cast(kind)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        why = str(error).partition("\n")[0]
        raise InvalidInput(f"'{text}' is no value of column '{column}': {why}", "LEDGER_INVALID_PARAMETER") from None


@dataclass(frozen=True, slots=True)
class Found:
    """A page of records, oldest first. ``looked`` is how many records were looked at for it; ``complete`` is False if
    the look ended at its bounds, before the page was full and before the topic's end (or begin)."""

    records: list[Row]
    previous: Position | None  # what is before this position was not looked at
    next: Position | None
    looked: int
    complete: bool


class Page:
    """Looks into one topic, at one version of its head."""

    def __init__(self, log: Log, view: View, masked: frozenset[str], filter: Filter | None = None) -> None:
        self._log, self._view, self._masked, self._filter = log, view, masked, filter
        self._schema = log.schema(view.head.schema_id)
        self._encode = encoder(self._schema)
        self._looked = 0
        self._deadline = Deadline(log.clock, _MOST_SECONDS)

    def forwards(self, start: Position, limit: int) -> Found:
        """The first records from a position on."""
        begin = places.earliest(self._view)
        start = max(start, begin)
        found, at, over = self._look(start, self._view.head.end, limit)
        before = start if start > begin else None
        is_end = over and at >= self._view.head.end
        return Found(found, before, None if is_end else at, self._looked, over or len(found) >= limit)

    def backwards(self, end: Position, limit: int) -> Found:
        """The last records before a position."""
        log, view = self._log, self._view
        first = trimmed.records_before_begin(view.head)
        high, top = scan.records_before(log, view, end), end
        window = limit if self._filter is None else max(limit, _WINDOW)
        found: list[Row] = []
        while high > first and len(found) < limit and not self._is_spent:
            low = max(first, high - window)
            bottom = scan.position_at(log, view, low)
            some, _, over = self._look(bottom, top, window, bounded=False)
            if not over:
                break
            found, high, top, window = [*some, *found], low, bottom, window * 2
        kept = found[-limit:]
        before = Position.parse(kept[0]["position"]) if len(found) >= limit and kept else top
        has_more = high > first or len(found) > limit
        after = end if end < view.head.end else None
        return Found(kept, before if has_more else None, after, self._looked, len(found) >= limit or high <= first)

    def one(self, position: Position) -> Row:
        """The record at a position."""
        stop = min(Position(position.ledger, position.entry, position.index + 1), self._view.head.end)
        pieces = scan.slices(self._log, self._view, position, stop, around_lost=True) if position < stop else ()
        for piece in pieces:
            for rows in read_slice(self._log.storage, self._log.topic.uuid, piece, self._schema, with_ids=True):
                found = [row for row in self._rows(rows, None) if row["position"] == str(position)]
                if found:
                    return found[0]
        raise NotFound(
            f"topic '{self._log.topic.name}' has no record at {position}: it is past the end, was given up, or is a "
            "duplicate that was masked",
            "LEDGER_RECORD_NOT_FOUND",
        )

    @property
    def _is_spent(self) -> bool:
        return self._looked >= _MOST_ROWS or self._deadline.passed

    def _look(
        self, start: Position, end: Position, limit: int, *, bounded: bool = True
    ) -> tuple[list[Row], Position, bool]:
        """Rows, where to go on, and whether all was looked at."""
        found: list[Row] = []
        if start >= end:
            return found, end, True
        for piece in scan.slices(self._log, self._view, start, end, around_lost=True):
            if bounded and self._filter is None and piece.rows > limit - len(found):
                piece = piece.first(limit - len(found))
            for rows in read_slice(self._log.storage, self._log.topic.uuid, piece, self._schema, with_ids=True):
                self._looked += rows.batch.num_rows
                found += self._rows(rows, limit - len(found) if bounded else None)
                if bounded and len(found) >= limit:
                    return found, _after(found[-1]), False
                if self._is_spent:
                    return found, _last_of(rows), False
        return found, end, True

    def _rows(self, rows: SliceRows, limit: int | None) -> Iterator[Row]:
        chosen = pa.array(range(rows.batch.num_rows), pa.int64())
        if self._filter is not None:
            chosen = chosen.filter(self._filter.fits(rows.batch))
        yield from shown(rows, chosen.slice(0, limit), self._encode, self._masked)


def shown(
    rows: SliceRows, chosen: pa.Array, encode: Callable[[Mapping[str, Any]], Row], masked: frozenset[str]
) -> Iterator[Row]:
    """Some of the rows, as JSON can say them."""
    if not len(chosen):
        return
    columns = (*rows.positions(), rows.publish_times(), *rows.ids(), rows.ordinals(), rows.tokens())
    metadata = zip(*(column.take(chosen).to_pylist() for column in columns), strict=True)
    values = rows.batch.take(chosen).to_pylist() if rows.batch.schema.names else [{}] * len(chosen)
    for value, (ledger, entry, index, published, producer, sequence, ordinal, token) in zip(
        values, metadata, strict=True
    ):
        yield {
            "position": str(Position(ledger, entry, index)),
            "publish_time": datetime.fromtimestamp(published / 1000, UTC).isoformat(),
            "producer": producer or "",
            "sequence_id": sequence,
            "ordinal": ordinal,
            "token": token,
            "value": hidden(encode(value), masked),
        }


def hidden(value: Row, masked: frozenset[str]) -> Row:
    return {name: MASKED if name in masked and each is not None else each for name, each in value.items()}


def _after(row: Row) -> Position:
    position = Position.parse(row["position"])
    return Position(position.ledger, position.entry, position.index + 1)


def _last_of(rows: SliceRows) -> Position:
    """After the last of the rows."""
    ledger, entry, index = (column[-1].as_py() for column in rows.positions())
    return Position(ledger, entry, index + 1)


# -- the state of a key ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyState:
    """What is there for a key. ``record`` is its last record, or with a version column the one that counts; None if
    there is none, or it is deleted."""

    record: Row | None
    deleted: bool
    generation: int | None  # below its horizon, the compacted ledger was read
    looked: int
    complete: bool
    through: Position  # what comes after this was not looked at


@dataclass(slots=True)
class _Best:
    version: Any = None
    row: Row | None = None
    deleted: bool = False

    def take(self, version: Any, row: Row, deleted: bool) -> None:
        if deleted:  # it beats all before, and versions count anew after it
            self.version, self.row, self.deleted = None, None, True
        elif self.row is None or version is None or self.version is None or version >= self.version:
            self.version, self.row, self.deleted = version, row, False


def state_of(log: Log, view: View, key: str, masked: frozenset[str]) -> KeyState:
    """The state of one key: from the newest compacted generation, and the log after its horizon."""
    schema, name = log.schema(view.head.schema_id), log.topic.key
    wanted = value_of(schema.field(name).type, name, key)
    generation, end = newest(log, view), view.head.end
    start = EARLIEST if generation is not None else places.earliest(view)
    deadline, looked, best, encode = Deadline(log.clock, _MOST_SECONDS), 0, _Best(), encoder(schema)
    for piece in ReadSource(log, view, generation, around_lost=True).slices(start, end):
        for rows in read_slice(log.storage, log.topic.uuid, piece, schema, with_ids=True):
            looked += rows.batch.num_rows
            fits = _of_key(rows.batch.column(name), wanted)
            if fits.true_count:
                _judge(log, rows, pa.array(range(len(fits)), pa.int64()).filter(fits), best, encode, masked)
            if looked >= 10 * _MOST_ROWS or deadline.passed:
                return _key_state(best, generation, looked, False, _last_of(rows))
    return _key_state(best, generation, looked, True, end)


def _of_key(keys: pa.Array, wanted: pa.Scalar) -> pa.Array:
    """All NaNs are one key."""
    is_nan = pat.is_floating(keys.type) and bool(pc.is_nan(wanted).as_py())
    return pc.fill_null(pc.is_nan(keys) if is_nan else pc.equal(keys, wanted), False)


def _judge(
    log: Log, rows: SliceRows, chosen: pa.Array, best: _Best, encode: Callable[..., Row], masked: frozenset[str]
) -> None:
    key, version = log.topic.key, log.topic.version_column
    gone = rows.tombstones() if isinstance(rows, CompactedRows) else tombstones(rows.stored, key, version)
    versions = rows.batch.column(version).take(chosen).to_pylist() if version else [None] * len(chosen)
    found = shown(rows, chosen, encode, masked)
    for row, number, deleted in zip(found, versions, gone.take(chosen).to_pylist(), strict=True):
        best.take(number, row, deleted)


def _key_state(best: _Best, generation: Any, looked: int, complete: bool, through: Position) -> KeyState:
    number = None if generation is None else generation.number
    return KeyState(best.row, best.deleted, number, looked, complete, through)


__all__ = ["MASKED", "MOST_RECORDS", "OPERATORS", "Filter", "Found", "KeyState", "Page", "state_of"]
