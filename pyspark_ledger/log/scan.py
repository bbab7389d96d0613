"""Planning reads: which rows of which entry files lie between two positions, and how to share them out."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark_ledger.base.position import Position
from pyspark_ledger.files import mask
from pyspark_ledger.files.entryfile import BATCH_ROWS
from pyspark_ledger.log import lost, trimmed
from pyspark_ledger.log.slices import LogSlice, Slice
from pyspark_ledger.metadata.records import Commit

if TYPE_CHECKING:  # only for types: options name places where there is no log
    from pyspark_ledger.log.log import Log, View


def slices(
    log: Log, view: View, start: Position, end: Position, *, planned: bool = False, around_lost: bool = False
) -> Iterator[LogSlice]:
    """What lies in [start, end) of the log, in order. Lazy: a limited read loads only the index files it needs.
    ``planned``: for a batch that was planned before some ledgers were given up. DataLoss if the start is gone, and at a
    damaged entry that was given up by name, unless the read goes ``around_lost`` ones."""
    log.check_readable(view.head)
    missing = lost.between(log.files, view.head, start, end)
    if not missing:
        yield from _slices(log, view, start, end, planned=planned)
    elif around_lost:
        for first, stop in lost.around(missing, start, end):
            yield from _slices(log, view, first, stop, planned=planned)
    else:
        yield from _slices(log, view, start, missing[0].first, planned=planned)
        raise missing[0].loss(view.head.name)


def _slices(log: Log, view: View, start: Position, end: Position, *, planned: bool) -> Iterator[LogSlice]:
    if start < end and trimmed.is_gone(view.head, start, planned=planned):
        raise trimmed.loss(view.head, start)
    for pieces in log.pieces(view, start, end, planned=planned):
        yield from _between(log, pieces, start, end)


def _between(log: Log, pieces: Sequence[LogSlice | Commit], start: Position, end: Position) -> Iterator[LogSlice]:
    """What lies in [start, end) of some pieces of a ledger: all of those in between, and a part of the outer ones."""
    first = max(0, bisect_right(pieces, _place(start), key=_begin) - 1)
    last = bisect_left(pieces, _place(end), key=_begin) - 1
    for number in range(first, last + 1):
        piece, is_whole = pieces[number], first < number < last
        if isinstance(piece, Commit):
            if is_whole:
                yield from log.slices_of(piece)
            elif _ends_after(piece, start):
                yield from _between(log, log.slices_of(piece), start, end)
        elif is_whole:
            yield piece
        elif (part := piece.between(start, end)).rows:
            yield part


def _place(position: Position) -> tuple[int, int, int]:
    return position.ledger, position.entry, position.index


def _begin(piece: LogSlice | Commit) -> tuple[int, int, int]:
    """The place of its first entry."""
    return piece.ledger, piece.first_entry, 0


def _ends_after(commit: Commit, position: Position) -> bool:
    return (commit.ledger, commit.first_entry + commit.entry_count) > (position.ledger, position.entry)


def count(log: Log, view: View, start: Position, end: Position) -> int:
    """Rows in [start, end), from the running totals: two look-ups, however long the log is."""
    return max(0, records_before(log, view, end) - records_before(log, view, start))


def records_before(log: Log, view: View, position: Position) -> int:
    """Of a position that is gone: the records before the one where the log begins."""
    if position >= view.head.end:
        return view.head.records
    commit = next(log.commits_from(view, position), None)
    if commit is None:
        return view.head.records
    before = commit.records_before
    for number, entry in enumerate(log.entries(commit), commit.first_entry):
        if (commit.ledger, number) < (position.ledger, position.entry):
            before += entry.kept
        elif (commit.ledger, number) == (position.ledger, position.entry):
            before += mask.count(entry.mask, entry.records, 0, min(position.index, entry.records))
    return before


def last_commit_before(log: Log, view: View, records: int) -> Commit | None:
    """The commit that the last of the topic's first ``records`` records came with; None if there is none, or if it was
    trimmed. From memory for the open ledger, otherwise a look-up in the index."""
    trimmed = view.head.trim.records if view.head.trim is not None else 0
    return log.commit_at_ordinal(view, records - 1) if records > trimmed else None


def position_at(log: Log, view: View, ordinal: int) -> Position:
    """The position of the record that has ``ordinal`` records before it; the end if there is none. The inverse of
    records_before. Of a record that is gone: where the log begins."""
    ordinal = max(ordinal, trimmed.records_before_begin(view.head))
    if ordinal >= view.head.records:
        return view.head.end
    commit = log.commit_at_ordinal(view, ordinal)
    before = commit.records_before
    for number, entry in enumerate(log.entries(commit), commit.first_entry):
        if ordinal < before + entry.kept:
            return Position(commit.ledger, number, mask.skip(entry.mask, entry.records, 0, ordinal - before))
        before += entry.kept
    raise AssertionError(f"commit {commit.number} does not have record {ordinal}")


def bytes_before(log: Log, view: View, position: Position) -> int:
    """Stored bytes before a position; inside an entry by its share of rows."""
    commit = next(log.commits_from(view, position), None) if position < view.head.end else None
    if commit is None:
        return view.head.bytes
    before = commit.bytes_before
    for number, entry in enumerate(log.entries(commit), commit.first_entry):
        if (commit.ledger, number) < (position.ledger, position.entry):
            before += entry.bytes
        elif (commit.ledger, number) == (position.ledger, position.entry):
            before += entry.bytes * min(position.index, entry.records) // entry.records
    return before


def share(pieces: Sequence[Slice], target_bytes: int, min_partitions: int) -> list[list[Slice]]:
    """Cuts a read into partitions: contiguous, in order, of about the same number of bytes. Large entries are cut
    between their record batches; inside them only if there would otherwise be fewer partitions than asked for."""
    total = sum(piece.bytes for piece in pieces)
    rows = sum(piece.width for piece in pieces)
    wanted = min(rows, max(-(-total // target_bytes), min_partitions))
    parts = _cut_evenly(pieces, total, wanted, BATCH_ROWS)
    return parts if len(parts) >= min_partitions else _cut_evenly(pieces, rows, wanted, 1)


def _cut_evenly(pieces: Sequence[Slice], total: int, wanted: int, grain: int) -> list[list[Slice]]:
    """``wanted`` parts of equal size at most, cut only at rows that are a multiple of ``grain``. With a grain of one
    row sizes are counted in rows, so that even rows of a few bytes can be told apart."""
    parts: list[list[Slice]] = [[]]
    done, cut = 0, 1
    for piece in pieces:
        size = piece.width if grain == 1 else piece.bytes
        rest = piece
        while cut < wanted and total * cut // wanted <= done + size:
            row = piece.start + round((total * cut // wanted - done) * piece.width / max(size, 1))
            row = max(rest.start, min(-(-row // grain) * grain if row < piece.stop else row, piece.stop))
            if row > rest.start:
                parts[-1].append(rest.until(row))
                rest = rest.since(row)
            if parts[-1]:
                parts.append([])
            cut += 1
        if rest.width:
            parts[-1].append(rest)
        done += size
    return parts if parts[-1] else parts[:-1]
