"""The pieces that a read consists of: rows of an entry of the log, of many entries, or of a compacted file.

They are plain values that know no log: drivers plan with them, and executors read them.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import pyarrow as pa

from pyspark_ledger.base import compute as pc
from pyspark_ledger.base.position import Position
from pyspark_ledger.files import mask
from pyspark_ledger.metadata.records import FileRef


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [start, stop) of a file. Those that are not masked are records."""

    file: FileRef
    start: int
    stop: int
    all_rows: int  # of the file, masked ones too
    mask: builtins.bytes  # which of those are records; empty: all

    @property
    def width(self) -> int:
        """Rows, masked ones too."""
        return self.stop - self.start

    @property
    def rows(self) -> int:
        """Rows that are records."""
        return mask.count(self.mask, self.all_rows, self.start, self.stop)

    @property
    def bytes(self) -> int:
        return self.file.length * self.width // self.all_rows

    def first(self, rows: int) -> Self:
        """The part with the first ``rows`` records."""
        return self.until(mask.skip(self.mask, self.all_rows, self.start, rows))

    def until(self, row: int) -> Self:
        return self.part(self.start, row)

    def since(self, row: int) -> Self:
        return self.part(row, self.stop)

    def part(self, start: int, stop: int) -> Self:
        """What it has of the rows [start, stop)."""
        start = max(self.start, min(self.stop, start))
        stop = max(start, min(self.stop, stop))
        return self if (start, stop) == (self.start, self.stop) else replace(self, start=start, stop=stop)


@dataclass(frozen=True, slots=True)
class LogSlice(Slice, ABC):
    """A piece of the log: rows of one entry, or of some that follow one another, of one ledger."""

    ledger: int
    first_entry: int
    sequence_column: str  # set if every record has its own
    producer_column: str
    mints: bool  # its records have tokens
    first_ordinal: int  # records of the topic before its first entry,
    first_token: int  # and the number of that entry's first token, if it has tokens
    unchosen: builtins.bytes | None  # the mask before some of the records were chosen; None: all of them are read

    @property
    @abstractmethod
    def first_row(self) -> int:
        """Where its first entry begins in the file."""

    def records_before(self, row: int) -> int:
        """How many records lie between there and a row of it."""
        counted = self.mask if self.unchosen is None else self.unchosen
        return mask.count(counted, self.all_rows, self.first_row, row)

    def choose(self, chosen: pa.BooleanArray) -> Self:
        """Only those of its records that are in the rows which are chosen, of all rows of the file."""
        return replace(self, mask=mask.pack(chosen), unchosen=self.mask if self.unchosen is None else self.unchosen)

    @property
    @abstractmethod
    def has_producer(self) -> bool:
        """Whether it is known who wrote its records."""

    @property
    def begin(self) -> Position:
        return self._position(self.start)

    @property
    def end(self) -> Position:
        """The next position to read."""
        return self.after(self.stop)

    def between(self, start: Position, end: Position) -> Self:
        """The part that lies in [start, end)."""
        return self.part(self._row(start), self._row(end))

    @abstractmethod
    def after(self, row: int) -> Position:
        """The position of the first record at or after a row, if the one before that row is a part of this. After an
        entry's last record it is the next entry's first."""

    @abstractmethod
    def _position(self, row: int) -> Position:
        """Where a row is in the log,"""

    @abstractmethod
    def _row(self, position: Position) -> int:
        """and its first row that is not before a position."""


@dataclass(frozen=True, slots=True)
class EntrySlice(LogSlice):
    """Rows of one entry, which has a file of its own."""

    publish_ms: int
    producer: str
    sequence: int | None

    @property
    def first_row(self) -> int:
        return 0

    @property
    def has_producer(self) -> bool:
        return bool(self.producer or self.producer_column)

    def after(self, row: int) -> Position:
        row = mask.skip(self.mask, self.all_rows, row, 0) if row < self.all_rows else row
        return self._position(row) if row < self.all_rows else Position(self.ledger, self.first_entry + 1, 0)

    def _position(self, row: int) -> Position:
        return Position(self.ledger, self.first_entry, row)

    def _row(self, position: Position) -> int:
        own, asked = (self.ledger, self.first_entry), (position.ledger, position.entry)
        if own == asked:
            return position.index
        return self.start if own > asked else self.stop


# What the entries of a SharedSlice have, each in a row: where they begin and end in the file, and their metadata.
ENTRIES = pa.schema(
    [
        ("first_row", pa.int64()),
        ("end_row", pa.int64()),
        ("publish_ms", pa.int64()),
        ("producer", pa.string()),
        ("sequence", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class SharedSlice(LogSlice):
    """Rows of entries that share a file, to be read at once. What lies between two entries is masked.

    A rewritten ledger has a thousand entries in a file, and to make a record of Python for each would take longer than
    to read them. So they are columns, from the index to the task, and the numbers of the entries have no gap."""

    entries: pa.RecordBatch  # see ENTRIES; all of an entry, even if only some of its rows are in the slice

    @property
    def has_producer(self) -> bool:
        return bool(self.entries["producer"][0].as_py() or self.producer_column)  # as all of them

    @property
    def first_row(self) -> int:
        """Where its first entry begins,"""
        return self._first(0)

    @property
    def end_row(self) -> int:
        """and where its last one ends."""
        return self._end(len(self.entries) - 1)

    def after(self, row: int) -> Position:
        number = self._number(row - 1)
        row = mask.skip(self.mask, self.all_rows, row, 0)
        if row < self._end(number):
            return Position(self.ledger, self.first_entry + number, row - self._first(number))
        return Position(self.ledger, self.first_entry + number + 1, 0)

    def owners(self, start: int, stop: int) -> pa.Array:
        """For the rows [start, stop), the numbers of the entries in ``entries`` that they are in."""
        first, last = self._number(start), self._number(stop - 1)
        ends = pc.subtract(self.entries["end_row"].slice(first, last - first), start).cast(pa.int32())
        ends = pa.concat_arrays([ends, pa.array([stop - start], pa.int32())])
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.arange(first, last + 1)))

    def _position(self, row: int) -> Position:
        number = self._number(row)
        return Position(self.ledger, self.first_entry + number, max(0, row - self._first(number)))

    def _row(self, position: Position) -> int:
        number = position.entry - self.first_entry
        if position.ledger < self.ledger or (position.ledger == self.ledger and number < 0):
            return self.start
        if position.ledger > self.ledger or number >= len(self.entries):
            return self.stop
        first = self._first(number)
        return min(first + position.index, self._end(number)) if position.index else first

    def _number(self, row: int) -> int:
        """Of the entry that a row is in; of one between two entries, the later one."""
        return bisect_left(self.entries["end_row"], row + 1, key=_value)

    def _first(self, number: int) -> int:
        return int(self.entries["first_row"][number].as_py())

    def _end(self, number: int) -> int:
        return int(self.entries["end_row"][number].as_py())

    def __reduce__(self) -> tuple[Any, ...]:
        """With the entries that rows are of: Arrow would pickle a part of a column with all that it was cut from."""
        first, last = self._number(self.start), self._number(self.stop - 1)
        entries = self.entries.slice(first, last + 1 - first)
        before = self.records_before(self._first(first))
        cut = replace(
            self,
            first_entry=self.first_entry + first,
            first_ordinal=self.first_ordinal + before,
            first_token=self.first_token + before,
            entries=entries,
        )
        values = [getattr(cut, field.name) for field in fields(cut) if field.name != "entries"]
        return _unpickled, (*values, entries.serialize().to_pybytes())


def _value(scalar: pa.Scalar) -> Any:
    return scalar.as_py()


def _unpickled(*values: Any) -> SharedSlice:
    entries = pa.ipc.read_record_batch(pa.py_buffer(values[-1]), ENTRIES)
    return SharedSlice(*(*values[:-1], entries))


@dataclass(frozen=True, slots=True)
class CompactedSlice(Slice):
    """A piece of a generation: rows of one of its files. Columns of the file say where each record was, and when and by
    whom it was published."""

    number: int  # of the file in its generation
    base: Position  # where the reader began: tombstones before it are left out, it never saw what they removed


def joined(pieces: Iterable[Slice], at_most: int | None = None) -> Iterator[Slice]:
    """The same, with neighbours in one file joined, so that they are read at once: of commits with many entries, each
    gives a slice of its own. ``at_most``: not much more than so many rows in one."""
    run: list[SharedSlice] = []
    rows = 0
    for piece in pieces:
        if run and (not _follows(run[-1], piece) or (at_most is not None and rows >= at_most)):
            yield _join(run)
            run, rows = [], 0
        if isinstance(piece, SharedSlice):
            run.append(piece)
            rows += piece.width
        else:
            yield piece
    if run:
        yield _join(run)


def _follows(before: SharedSlice, piece: Slice) -> bool:
    """Whether two can be read at once: nothing was cut off between them, which may be damaged, and their records are of
    one kind."""
    return (
        isinstance(piece, SharedSlice)
        and piece.file.uid == before.file.uid
        and (piece.ledger, piece.first_entry) == (before.ledger, before.first_entry + len(before.entries))
        and before.stop == before.end_row <= piece.first_row == piece.start
        and piece.sequence_column == before.sequence_column
        and piece.producer_column == before.producer_column
        and piece.has_producer == before.has_producer
        and piece.mints == before.mints
        and piece.unchosen is before.unchosen is None
    )


def _join(run: Sequence[SharedSlice]) -> SharedSlice:
    if len(run) == 1:
        return run[0]
    parts = ((each.first_row, mask.kept(each.mask, each.all_rows, each.first_row, each.end_row)) for each in run)
    return replace(
        run[0],
        stop=run[-1].stop,
        mask=mask.joined(parts, run[0].all_rows),
        entries=pa.concat_batches([each.entries for each in run]),
    )
