"""Where a read finds its records: the one place that decides between the log and a compacted generation."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.log import lost, scan, trimmed
from pyspark_ledger.log.generations import CompactedLedger
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.lost import LostEntry
from pyspark_ledger.log.slices import CompactedSlice, LogSlice, Slice
from pyspark_ledger.metadata.records import Generation

_UNLIMITED = 1 << 62


class ReadSource:
    """What a read reads: the log; with a generation, its records below its horizon and the log from there on.

    ``base`` is where the reader began: tombstones of the generation before it are left out, because the reader never
    saw what they removed. ``planned``: a batch that was planned before some ledgers were given up may still read them.
    ``around_lost``: damaged entries that were given up by name are left out; otherwise a read that meets one raises.
    """

    def __init__(
        self,
        log: Log,
        view: View,
        generation: Generation | None = None,
        base: Position = EARLIEST,
        *,
        planned: bool = False,
        around_lost: bool = False,
    ) -> None:
        self._log, self._view, self._generation, self._base = log, view, generation, base
        self._planned, self._around_lost = planned, around_lost
        self._loaded: CompactedLedger | None = None

    def slices(self, start: Position, end: Position) -> Iterator[Slice]:
        """What lies in [start, end), in order. Lazy: a limited read loads only the index files it needs."""
        if self._generation is not None and start < self._generation.horizon:
            yield from self._compacted.slices(start, end, self._base)
            start = self._generation.horizon
        if start < end:
            yield from scan.slices(
                self._log, self._view, start, end, planned=self._planned, around_lost=self._around_lost
            )

    def gone_from(self, start: Position, end: Position) -> Position | None:
        """From where on a read of [start, end) would miss records that were given up; None if it misses none."""
        in_log = start if self._generation is None else max(start, self._generation.horizon)
        is_gone = in_log < end and trimmed.is_gone(self._view.head, in_log, planned=self._planned)
        return in_log if is_gone else None

    def lost(self, start: Position, end: Position) -> list[LostEntry]:
        """The damaged entries that were given up, and that a read of [start, end) meets in the log."""
        in_log = start if self._generation is None else max(start, self._generation.horizon)
        return lost.between(self._log.files, self._view.head, in_log, end) if in_log < end else []

    def advance(
        self,
        start: Position,
        end: Position,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        *,
        must: bool = True,
    ) -> tuple[Position, int]:
        """How far a read from ``start`` may go under its limits, and how many rows that is. ``must``: it has a row also
        if that alone is larger than the limit, which would stop a stream for ever."""
        if max_rows is None and max_bytes is None and (self._generation is None or start >= self._generation.horizon):
            return end, scan.count(self._log, self._view, start, end)
        rows_left = _UNLIMITED if max_rows is None else max_rows
        bytes_left = _UNLIMITED if max_bytes is None else max_bytes
        position, rows = start, 0
        for piece in self.slices(start, end):
            take = _rows_that_fit(piece, rows_left, bytes_left, at_least=1 if must and not rows else 0)
            if take == 0:
                return position, rows
            taken = piece.first(take)
            position, rows = min(self._end_of(taken), end), rows + take
            rows_left -= take
            bytes_left -= taken.bytes
            if take < piece.rows or rows_left <= 0 or bytes_left <= 0:
                return position, rows
        return end if rows else position, rows

    def _end_of(self, piece: Slice) -> Position:
        """The next position to read after a piece."""
        if isinstance(piece, LogSlice):
            return piece.end
        assert isinstance(piece, CompactedSlice)
        return self._compacted.position(piece, piece.stop)

    @property
    def _compacted(self) -> CompactedLedger:
        # No cached_property: Python 3.11 computes those of all objects under one lock, and this reads from storage.
        assert self._generation is not None
        if self._loaded is None:
            self._loaded = CompactedLedger(self._log.files, self._generation)
        return self._loaded


def _rows_that_fit(piece: Slice, rows_left: int, bytes_left: int, *, at_least: int) -> int:
    """How many rows of a piece fit; large pieces are split."""
    rows = min(piece.rows, rows_left)
    if piece.bytes > bytes_left:
        fitting = piece.until(piece.start + bytes_left * piece.all_rows // piece.file.length).rows
        rows = min(rows, max(fitting, at_least))
    return rows
