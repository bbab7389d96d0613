"""The pieces that a read consists of: rows of an entry of the log, or rows of a compacted file.

They are plain values that know no log: drivers plan with them, and executors read them.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, replace
from typing import Self

from pyspark_ledger.base.position import Position
from pyspark_ledger.files import mask
from pyspark_ledger.metadata.records import FileRef


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [start, stop) of an entry, or of a compacted file. Those that are not masked are records."""

    file: FileRef
    start: int
    stop: int
    all_rows: int  # of the entry or the file, masked ones too
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
    def file_rows(self) -> int:
        """In the whole file."""
        return self.all_rows

    @property
    def bytes(self) -> int:
        return self.file.length * self.width // self.file_rows

    def first(self, rows: int) -> Self:
        """The part with the first ``rows`` records."""
        return self.until(mask.skip(self.mask, self.all_rows, self.start, rows))

    def until(self, index: int) -> Self:
        return replace(self, stop=min(self.stop, index))

    def since(self, index: int) -> Self:
        return replace(self, start=min(self.stop, index))


@dataclass(frozen=True, slots=True)
class LogSlice(Slice):
    """A piece of the log: rows of one entry. The entry may be a part of a file that holds many."""

    ledger: int
    entry: int
    publish_ms: int
    producer: str
    sequence: int | None
    sequence_column: str = ""  # set if every record has its own
    producer_column: str = ""
    mints: bool = False  # its records have tokens
    first_row: int = 0  # where in the file the entry begins,
    shared_rows: int = 0  # and how many rows the file has; 0: those of the entry

    @property
    def file_rows(self) -> int:
        return self.shared_rows or self.all_rows

    @property
    def begin(self) -> Position:
        return Position(self.ledger, self.entry, self.start)

    @property
    def end(self) -> Position:
        """The next position to read."""
        return self.after(self.stop)

    def after(self, index: int) -> Position:
        """The position of the first record at or after an index: after an entry's last one, the next entry's first."""
        index = mask.skip(self.mask, self.all_rows, index, 0) if index < self.all_rows else index
        if index >= self.all_rows:
            return Position(self.ledger, self.entry + 1, 0)
        return Position(self.ledger, self.entry, index)


@dataclass(frozen=True, slots=True)
class CompactedSlice(Slice):
    """A piece of a generation: rows of one of its files. Columns of the file say where each record was, and when and by
    whom it was published."""

    number: int  # of the file in its generation
    base: Position  # where the reader began: tombstones before it are left out, it never saw what they removed
