"""Reads the rows of a slice, verified: of the log or of a generation. Needs storage only, so executors read with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa

from pyspark_ledger.base import compute as pc
from pyspark_ledger.base.position import Position
from pyspark_ledger.base.token_prefix import TokenPrefix, first_number
from pyspark_ledger.files import mask
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import EntryReader
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.log.slices import CompactedSlice, EntrySlice, LogSlice, SharedSlice, Slice

# Position, value, publish time, producer, sequence id, token, ordinal, token number.
RecordFields = tuple[Position, Mapping[str, Any], datetime, str, int | None, str | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class SliceRows(ABC):
    """Some records of a slice: the columns that were asked for, and each record's position, producer and so on."""

    uuid: str
    indexes: pa.Array  # of the rows in their file
    batch: pa.RecordBatch
    stored: pa.RecordBatch  # with the columns that ids and positions are read from

    @abstractmethod
    def positions(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Ledger, entry and index of each record."""

    @abstractmethod
    def publish_times(self) -> pa.Array:
        """In milliseconds."""

    @abstractmethod
    def ids(self) -> tuple[pa.Array, pa.Array]:
        """Producer and sequence id of each record."""

    @property
    @abstractmethod
    def has_producer(self) -> bool:
        """Whether it is known who wrote them."""

    @abstractmethod
    def tokens(self) -> pa.Array:
        """The tokens of the records; null if they have none."""

    @abstractmethod
    def token_numbers(self) -> pa.Array:
        """The same as numbers."""

    @abstractmethod
    def ordinals(self) -> pa.Array:
        """How many records of the topic are before each; null if that is not known."""

    @abstractmethod
    def records(self) -> Iterator[RecordFields]:
        """The records one by one."""

    def _values(self) -> list[dict[str, Any]]:
        return self.batch.to_pylist() if self.batch.schema.names else [{}] * self.batch.num_rows


@dataclass(frozen=True, slots=True)
class EntryRows(SliceRows):
    """Records of one entry: most of their metadata is the same for all."""

    piece: EntrySlice

    def positions(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        return self._repeated(self.piece.ledger), self._repeated(self.piece.first_entry), self.indexes

    def publish_times(self) -> pa.Array:
        return self._repeated(self.piece.publish_ms)

    def ids(self) -> tuple[pa.Array, pa.Array]:
        piece = self.piece
        producer = pa.repeat(pa.scalar(piece.producer, pa.string()), self.batch.num_rows)
        sequence = self._repeated(piece.sequence)
        if piece.sequence_column:
            sequence = self.stored.column(piece.sequence_column).cast(pa.int64())
        if piece.producer_column:
            producer = self.stored.column(piece.producer_column).cast(pa.string())
        return producer, sequence

    @property
    def has_producer(self) -> bool:
        return self.piece.has_producer

    def tokens(self) -> pa.Array:
        piece = self.piece
        if not piece.mints:
            return pa.nulls(self.batch.num_rows, pa.string())
        return TokenPrefix(self.uuid, piece.ledger, piece.first_entry).tokens(self.indexes)

    def token_numbers(self) -> pa.Array:
        return _token_numbers(self)

    def ordinals(self) -> pa.Array:
        return _counted(self, self.piece.first_ordinal)

    def records(self) -> Iterator[RecordFields]:
        piece = self.piece
        published = _moment(piece.publish_ms)
        of_record = (self.indexes, *self.ids(), self.tokens(), self.ordinals(), self.token_numbers())
        columns = (column.to_pylist() for column in of_record)
        for value, index, *ids in zip(self._values(), *columns, strict=True):
            yield Position(piece.ledger, piece.first_entry, index), value, published, *ids

    def _repeated(self, number: int | None) -> pa.Array:
        return pa.repeat(pa.scalar(number, pa.int64()), self.batch.num_rows)


@dataclass(frozen=True, slots=True)
class SharedRows(SliceRows):
    """Records of many entries that share a file."""

    piece: SharedSlice
    owners: pa.Array  # for each record, the number of its entry in the piece

    def positions(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        ledgers = pa.repeat(pa.scalar(self.piece.ledger, pa.int64()), self.batch.num_rows)
        return ledgers, self._entries(), self._indexes()

    def publish_times(self) -> pa.Array:
        return self._of_entry("publish_ms")

    def ids(self) -> tuple[pa.Array, pa.Array]:
        piece = self.piece
        if piece.sequence_column:
            sequence = self.stored.column(piece.sequence_column).cast(pa.int64())
        else:
            sequence = self._of_entry("sequence")
        if piece.producer_column:
            producer = self.stored.column(piece.producer_column).cast(pa.string())
        else:
            producer = self._of_entry("producer")
        return producer, sequence

    @property
    def has_producer(self) -> bool:
        return self.piece.has_producer

    def tokens(self) -> pa.Array:
        if not self.piece.mints:
            return pa.nulls(self.batch.num_rows, pa.string())
        parts = (part.cast(pa.string()) for part in (self._entries(), self._indexes()))
        return pc.binary_join_element_wise(f"{self.uuid}:{self.piece.ledger}", *parts, ":")

    def token_numbers(self) -> pa.Array:
        return _token_numbers(self)

    def ordinals(self) -> pa.Array:
        return _counted(self, self.piece.first_ordinal)

    def records(self) -> Iterator[RecordFields]:
        ids = (*self.ids(), self.tokens(), self.ordinals(), self.token_numbers())
        columns = (*self.positions(), self.publish_times(), *ids)
        rows = zip(self._values(), *(column.to_pylist() for column in columns), strict=True)
        for value, ledger, entry, index, published, *others in rows:
            yield Position(ledger, entry, index), value, _moment(published), *others

    def _entries(self) -> pa.Array:
        """For each record the number of its entry in the ledger,"""
        return pc.add(self.owners, self.piece.first_entry)

    def _indexes(self) -> pa.Array:
        """and of the row in its entry."""
        return pc.subtract(self.indexes, self._of_entry("first_row"))

    def _of_entry(self, name: str) -> pa.Array:
        """For each record what its entry has."""
        return self.piece.entries[name].take(self.owners)


@dataclass(frozen=True, slots=True)
class CompactedRows(SliceRows):
    """Records of a compacted file, which came from many entries."""

    def positions(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        return _positions(self.stored)

    def publish_times(self) -> pa.Array:
        return self.stored.column(schemas.PUBLISHED)

    def ids(self) -> tuple[pa.Array, pa.Array]:
        return self.stored.column(schemas.PRODUCER), self.stored.column(schemas.SEQUENCE)

    @property
    def has_producer(self) -> bool:
        return True

    def tokens(self) -> pa.Array:
        return pa.nulls(self.batch.num_rows, pa.string())

    def token_numbers(self) -> pa.Array:
        return pa.nulls(self.batch.num_rows, pa.int64())

    def ordinals(self) -> pa.Array:
        if schemas.ORDINAL not in self.stored.schema.names:  # compacted before it was noted
            return pa.nulls(self.batch.num_rows, pa.int64())
        return self.stored.column(schemas.ORDINAL)

    def tombstones(self) -> pa.Array:
        """Which of them are tombstones."""
        return self.stored.column(schemas.TOMBSTONE)

    def records(self) -> Iterator[RecordFields]:
        columns = (*self.positions(), self.publish_times(), *self.ids(), self.ordinals())
        rows = zip(self._values(), *(column.to_pylist() for column in columns), strict=True)
        for value, ledger, entry, index, published, producer, sequence, ordinal in rows:
            yield Position(ledger, entry, index), value, _moment(published), producer, sequence, None, ordinal, None


def _counted(rows: EntryRows | SharedRows, first: int) -> pa.Array:
    """Numbers of records, counted from the first one of the first entry. Masked rows are not counted, and are left out
    of ``rows``: so there are no gaps, unless only some of the records are read."""
    piece, indexes = rows.piece, rows.indexes
    row = indexes[0].as_py()
    first += piece.records_before(row)
    if piece.unchosen is None:
        return pa.arange(first, first + len(indexes))
    counted = mask.kept(piece.unchosen, piece.all_rows, row, indexes[-1].as_py() + 1)
    return pc.add(pc.cumulative_sum(counted.cast(pa.int64())), first - 1).take(pc.subtract(indexes, row))


def _token_numbers(rows: EntryRows | SharedRows) -> pa.Array:
    if not rows.piece.mints:
        return pa.nulls(rows.batch.num_rows, pa.int64())
    return _counted(rows, first_number(rows.uuid) + rows.piece.first_token)


def read_slice(
    storage: Storage, uuid: str, piece: Slice, schema: pa.Schema, *, with_ids: bool = False
) -> Iterator[SliceRows]:
    """The records of a slice in a schema, verified as they are read; masked rows are left out."""
    yield from SliceReader(storage, uuid, piece).rows(schema, with_ids=with_ids)


def read_slices(
    storage: Storage, uuid: str, pieces: Iterable[Slice], schema: pa.Schema, *, with_ids: bool = False
) -> Iterator[SliceRows]:
    """The same of several, one after the other; the files of some are opened before they are needed, if the storage is
    far away."""
    for reader in storage.ahead(partial(SliceReader, storage, uuid, piece) for piece in pieces):
        yield from reader.rows(schema, with_ids=with_ids)


class SliceReader:
    """A slice whose file is open: what the file has can decide what is read of it."""

    def __init__(self, storage: Storage, uuid: str, piece: Slice) -> None:
        self._uuid, self._piece = uuid, piece
        self._file = EntryReader(storage, uuid, piece.file)

    @property
    def columns(self) -> list[str]:
        """Of the file; a topic may have got more since."""
        return self._file.columns

    def rows(self, schema: pa.Schema, *, with_ids: bool = False) -> Iterator[SliceRows]:
        piece = self._piece
        kept = mask.unpack(piece.mask, piece.all_rows) if piece.mask else None
        self._file.choose([*schema.names, *_extra_columns(piece, with_ids)])
        for row, stored in self._file.batches(piece.start, piece.stop):
            indexes = pa.arange(row, row + stored.num_rows)
            if kept is not None:
                wanted = kept.slice(row, stored.num_rows)
                stored, indexes = stored.filter(wanted), indexes.filter(wanted)
            if isinstance(piece, CompactedSlice):
                wanted = _seen_from(stored, piece.base)
                stored, indexes = stored.filter(wanted), indexes.filter(wanted)
            if stored.num_rows:
                yield self._found(indexes, schemas.project(stored, schema), stored)

    def _found(self, indexes: pa.Array, batch: pa.RecordBatch, stored: pa.RecordBatch) -> SliceRows:
        piece = self._piece
        if isinstance(piece, EntrySlice):
            return EntryRows(self._uuid, indexes, batch, stored, piece)
        if isinstance(piece, SharedSlice):
            first = indexes[0].as_py()
            owners = piece.owners(first, indexes[-1].as_py() + 1)
            return SharedRows(self._uuid, indexes, batch, stored, piece, owners.take(pc.subtract(indexes, first)))
        return CompactedRows(self._uuid, indexes, batch, stored)


def _extra_columns(piece: Slice, with_ids: bool) -> list[str]:
    """Columns that have to be read in addition to those that were asked for."""
    if isinstance(piece, LogSlice):
        return [name for name in (piece.sequence_column, piece.producer_column) if name] if with_ids else []
    return list(schemas.HIDDEN.names)


def _seen_from(stored: pa.RecordBatch, base: Position) -> pa.Array:
    """Everything except tombstones before the position where a reader began: it never saw what they removed."""
    tombstone = stored.column(schemas.TOMBSTONE)
    if not tombstone.true_count:
        return pa.repeat(True, stored.num_rows)
    return pc.or_(pc.invert(tombstone), stored_at_or_after(stored, base))


def stored_at_or_after(stored: pa.RecordBatch, position: Position) -> pa.Array:
    """Which rows of a compacted file lie at or after a position."""
    return at_or_after(_positions(stored), position)


def at_or_after(positions: Sequence[pa.Array], position: Position) -> pa.Array:
    """Which of some positions, given as ledgers, entries and indexes, lie at or after one."""
    ledger, entry, index = positions
    same_ledger, same_entry = pc.equal(ledger, position.ledger), pc.equal(entry, position.entry)
    later_index = pc.and_(same_entry, pc.greater_equal(index, position.index))
    later_entry = pc.or_(pc.greater(entry, position.entry), later_index)
    return pc.or_(pc.greater(ledger, position.ledger), pc.and_(same_ledger, later_entry))


def _positions(stored: pa.RecordBatch) -> tuple[pa.Array, pa.Array, pa.Array]:
    return stored.column(schemas.LEDGER), stored.column(schemas.ENTRY), stored.column(schemas.INDEX)


def _moment(publish_ms: int) -> datetime:
    return datetime.fromtimestamp(publish_ms / 1000, UTC)
