"""Reads records from Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base.position import Position
from pyspark_ledger.base.token_prefix import TokenPrefix
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.files import mask
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import EntryReader
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.log import places, scan
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.places import PlaceLike

POLL_S = 2.0  # how long a lost watch can go unnoticed
WAIT_S = 0.005
Fields = tuple[Position, Mapping[str, Any], datetime, str, int | None, str | None]  # of a Record


@dataclass(frozen=True, slots=True)
class Record:
    """One record with where it is and where it came from."""

    position: Position
    value: Mapping[str, Any]
    publish_time: datetime
    producer: str
    sequence_id: int | None
    token: str | None  # the right to process it once; None if it was written without mintTokens

    def __getitem__(self, column: str) -> Any:
        return self.value[column]


class Reader:
    """Iterates over records in order. Without an end it waits for more; :meth:`stop` ends it from another thread."""

    def __init__(self, log: Log, start: PlaceLike, end: PlaceLike | None, columns: list[str] | None = None) -> None:
        self._log = log
        view = log.refresh(sync=True)
        self._schema = projection(log.schema(view.head.schema_id), columns, log.topic.name)
        self._start = places.resolve(log, view, start)
        self._last: tuple[scan.Slice, int] | None = None  # the record that was read last: its piece and index
        self._end = None if end is None else places.resolve(log, view, end)
        self._stopped = False

    @property
    def position(self) -> Position:
        """The next position to read."""
        last = self._last
        return self._start if last is None else last[0].after(last[1] + 1)

    def stop(self) -> None:
        self._stopped = True

    def __iter__(self) -> Iterator[Record]:
        for rows in self._rows():
            for fields in rows.records():
                record = Record(*fields)
                self._last = rows.piece, record.position.index
                yield record

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The same, as Arrow record batches."""
        for rows in self._rows():
            self._last = rows.piece, rows.indexes[-1].as_py()
            yield rows.batch

    def _rows(self) -> Iterator[Rows]:
        while not self._stopped:
            view = self._log.view(POLL_S)
            end = view.head.end if self._end is None else self._end
            for piece in scan.slices(self._log, view, self.position, end):
                for rows in read_slice(self._log.storage, self._log.topic.uuid, piece, self._schema, with_ids=True):
                    yield rows
                    if self._stopped:
                        return
            if self._end is not None:
                return
            self._log.clock.sleep(WAIT_S)


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of one entry or of a compacted file: their indexes, their columns, and where their ids are."""

    uuid: str
    piece: scan.Slice
    indexes: pa.Array
    batch: pa.RecordBatch
    stored: pa.RecordBatch  # with the columns that hold ids, asked for or not

    def places(self) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """Ledger, entry, index and publish time of each record."""
        piece, count = self.piece, self.batch.num_rows
        if piece.base is not None:
            return tuple(
                self.stored.column(n) for n in (schemas.LEDGER, schemas.ENTRY, schemas.INDEX, schemas.PUBLISHED)
            )
        ledger, entry, published = (
            pa.repeat(pa.scalar(number, pa.int64()), count) for number in (piece.ledger, piece.entry, piece.publish_ms)
        )
        return ledger, entry, self.indexes, published

    def ids(self) -> tuple[pa.Array, pa.Array]:
        """Producer and sequence id of each record."""
        piece, count = self.piece, self.batch.num_rows
        producer = pa.repeat(pa.scalar(piece.producer, pa.string()), count)
        sequence = pa.repeat(pa.scalar(piece.sequence, pa.int64()), count)
        if piece.sequence_column:
            sequence = self.stored.column(piece.sequence_column).cast(pa.int64())
        if piece.producer_column:
            producer = self.stored.column(piece.producer_column).cast(pa.string())
        return producer, sequence

    def tokens(self) -> pa.Array:
        """The tokens of the records; null if they have none."""
        piece = self.piece
        if not piece.mints:
            return pa.nulls(self.batch.num_rows, pa.string())
        return TokenPrefix(self.uuid, piece.ledger, piece.entry).tokens(self.indexes)

    def records(self) -> Iterator[Fields]:
        """The records of an entry one by one."""
        piece = self.piece
        assert piece.base is None, "a compacted file has records of many entries"
        published = datetime.fromtimestamp(piece.publish_ms / 1000, UTC)
        values = self.batch.to_pylist() if self.batch.schema.names else [{}] * self.batch.num_rows
        columns = (column.to_pylist() for column in (self.indexes, *self.ids(), self.tokens()))
        for value, index, *ids in zip(values, *columns, strict=True):
            yield Position(piece.ledger, piece.entry, index), value, published, *ids


def read_slice(
    storage: Storage, uuid: str, piece: scan.Slice, schema: pa.Schema, *, with_ids: bool = False
) -> Iterator[Rows]:
    """The records of a slice in a schema, verified as they are read; masked rows are left out."""
    columns = list(schema.names)
    if with_ids:
        columns += [name for name in (piece.sequence_column, piece.producer_column) if name]
    if piece.base is not None:
        columns += [name for name in schemas.HIDDEN.names if name not in columns]
    kept = mask.unpack(piece.mask, piece.records) if piece.mask else None
    for first, stored in EntryReader(storage, uuid, piece.file, columns).batches(piece.start, piece.stop):
        indexes = pa.arange(first, first + stored.num_rows)
        if kept is not None:
            wanted = kept.slice(first, stored.num_rows)
            stored, indexes = stored.filter(wanted), indexes.filter(wanted)
        if piece.base is not None:
            wanted = _after_base(stored, piece.base)
            stored, indexes = stored.filter(wanted), indexes.filter(wanted)
        if stored.num_rows:
            yield Rows(uuid, piece, indexes, schemas.project(stored, schema), stored)


def _after_base(stored: pa.RecordBatch, base: Position) -> pa.Array:
    """Everything but tombstones that lie before a reader's first look: it never saw what they removed."""
    tombstone = stored.column(schemas.TOMBSTONE)
    if not tombstone.true_count:
        return pa.repeat(True, stored.num_rows)
    return pc.or_(pc.invert(tombstone), at_or_after(stored, base))


def at_or_after(stored: pa.RecordBatch, position: Position) -> pa.Array:
    """Which rows of a compacted file lie at or after a position."""
    return not_before([stored.column(name) for name in (schemas.LEDGER, schemas.ENTRY, schemas.INDEX)], position)


def not_before(places: Sequence[pa.Array], position: Position) -> pa.Array:
    """Which of some places, given as ledgers, entries and indexes, lie at or after a position."""
    ledger, entry, index = places[:3]
    same_ledger, same_entry = pc.equal(ledger, position.ledger), pc.equal(entry, position.entry)
    later_index = pc.and_(same_entry, pc.greater_equal(index, position.index))
    later_entry = pc.or_(pc.greater(entry, position.entry), later_index)
    return pc.or_(pc.greater(ledger, position.ledger), pc.and_(same_ledger, later_entry))


def projection(schema: pa.Schema, columns: list[str] | None, topic: str) -> pa.Schema:
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise InvalidInput(
                f"topic '{topic}' has no column '{name}': {', '.join(schema.names)}", "LEDGER_COLUMN_NOT_FOUND"
            )
    return pa.schema([schema.field(name) for name in columns])
