"""The pieces that a read consists of: rows of an entry of the log, or rows of a compacted file.

They are plain values that know no log: drivers plan with them, and executors read them.
"""

from __future__ import annotations

import builtins
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

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
    def file_start(self) -> int:
        """Where it begins in the file,"""
        return self.first_row + self.start

    @property
    def file_stop(self) -> int:
        """and where it ends."""
        return self.first_row + self.stop

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
class JoinedSlice(Slice):
    """Pieces of the log that come one after the other in a file that they share, to be read at once. Its rows are those
    of the file; what lies between two pieces is masked."""

    pieces: tuple[LogSlice, ...]
    ends: tuple[int, ...]  # for each piece, where it ends in the file

    @property
    def end(self) -> Position:
        """The next position to read."""
        return self.after(self.stop)

    def after(self, row: int) -> Position:
        """The position of the first record at or after a row, if the one before that row is a part of this."""
        piece = self.pieces[bisect_left(self.ends, row)]
        return piece.after(row - piece.first_row)

    def owners(self, start: int, stop: int) -> pa.Array:
        """For the rows [start, stop), the numbers of the pieces that they are in."""
        first, last = bisect_left(self.ends, start + 1), bisect_left(self.ends, stop)
        ends = [*(end - start for end in self.ends[first:last]), stop - start]
        runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.arange(first, last + 1))
        return pc.run_end_decode(runs)


@dataclass(frozen=True, slots=True)
class CompactedSlice(Slice):
    """A piece of a generation: rows of one of its files. Columns of the file say where each record was, and when and by
    whom it was published."""

    number: int  # of the file in its generation
    base: Position  # where the reader began: tombstones before it are left out, it never saw what they removed


def joined(pieces: Iterable[Slice], at_most: int | None = None) -> Iterator[Slice]:
    """The same, with pieces joined that can be read at once: many small ones of a file that was rewritten are then not
    slower than a large one. ``at_most``: not much more than so many rows in one."""
    run: list[LogSlice] = []
    rows = 0
    for piece in pieces:
        if run and (not _follows(run[-1], piece) or (at_most is not None and rows >= at_most)):
            yield _join(run)
            run, rows = [], 0
        if isinstance(piece, LogSlice) and piece.shared_rows:
            run.append(piece)
            rows += piece.width
        else:
            yield piece
    if run:
        yield _join(run)


def _follows(before: LogSlice, piece: Slice) -> bool:
    """Whether two can be read at once. They need not be neighbours in the file, but in its order, and in the log: what
    was left out between them may be damaged."""
    return (
        isinstance(piece, LogSlice)
        and piece.file.uid == before.file.uid
        and piece.entry <= before.entry + 1
        and piece.file_start >= before.file_stop
        and piece.sequence_column == before.sequence_column
        and piece.producer_column == before.producer_column
        and bool(piece.producer) == bool(before.producer)
        and piece.mints == before.mints
    )


def _join(run: Sequence[LogSlice]) -> Slice:
    first, last = run[0], run[-1]
    if len(run) == 1:
        return first
    ends = tuple([piece.file_stop for piece in run])
    return JoinedSlice(
        first.file, first.file_start, last.file_stop, first.shared_rows, _joined_mask(run), tuple(run), ends
    )


def _joined_mask(run: Sequence[LogSlice]) -> builtins.bytes:
    width = sum(piece.width for piece in run)
    if width == run[-1].file_stop - run[0].file_start and not any(piece.mask for piece in run):
        return b""
    parts, row = [], 0
    for piece in run:
        parts.append(pa.repeat(False, piece.file_start - row))
        row = piece.file_stop
        kept = mask.unpack(piece.mask, piece.all_rows) if piece.mask else pa.repeat(True, piece.all_rows)
        parts.append(kept.slice(piece.start, piece.width))
    parts.append(pa.repeat(False, run[-1].shared_rows - row))
    return mask.pack(pa.concat_arrays(parts))
