"""Compacted generations: which there are, their manifests, and where a position is in their files.

A generation is one or more files whose records keep their original positions, in order. Its manifest has a row for
every record batch with the position of its first record, so a position is found without reading the files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import DataLoss
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import EntryReader
from pyspark_ledger.files.topicfiles import RowCodec, TopicFiles
from pyspark_ledger.log.rows import stored_at_or_after
from pyspark_ledger.log.slices import CompactedSlice
from pyspark_ledger.metadata.records import FileRef, Generation, Head, Replaced

if TYPE_CHECKING:  # only for types: executors that compact have no log
    from pyspark_ledger.log.log import Log, View

_POSITION_COLUMNS = [schemas.LEDGER, schemas.ENTRY, schemas.INDEX]


@dataclass(frozen=True, slots=True)
class _ManifestRow:
    """As it is stored: CompactedBatch, with the position's parts one by one."""

    file: FileRef
    records: int
    start: int
    rows: int
    ledger: int
    entry: int
    index: int


# Made when they are first needed: executors that compact import this module and read no list.
@cache
def _manifest_rows() -> RowCodec[_ManifestRow]:
    return RowCodec(_ManifestRow)


@cache
def _replaced_rows() -> RowCodec[Replaced]:
    return RowCodec(Replaced)


def newest(log: Log, view: View, end: Position | None = None) -> Generation | None:
    """The newest generation. For a read that stops at ``end``, the newest whose horizon is not after it: a later one
    has dropped records that were the last of their key at ``end``."""
    last = view.head.generation
    if last is None or end is None or last.horizon <= end:
        return last
    usable = [generation for generation in kept(log.files, view.head) if generation.horizon <= end]
    return usable[-1] if usable else None


def numbered(log: Log, view: View, number: int) -> Generation:
    """The generation with this number, which a batch was planned on. What a stale server has not seen yet is not
    gone."""
    last = view.head.generation
    if last is None or last.number < number:
        view = log.refresh(sync=True)
        last = view.head.generation
    if last is not None and last.number == number:
        return last
    there = kept(log.files, view.head)
    for generation in there:
        if generation.number == number:
            return generation
    raise DataLoss(
        f"the batch was planned on generation {number} of the compacted topic, which has been collected since "
        f"(there are {', '.join(str(generation.number) for generation in there)}): start with a new checkpoint",
        "LEDGER_GENERATION_GONE",
    )


def last_number(head: Head) -> int:
    """The largest number that a generation has had, or may have had in a history that was lost; 0 if there is none."""
    return max(head.last_generation, head.generation.number if head.generation is not None else 0)


def kept(files: TopicFiles, head: Head) -> list[Generation]:
    """All generations that can be read, oldest first."""
    before = [each.generation for each in fetch_replaced(files, head.replaced) if is_readable(each, head)]
    return before if head.generation is None else [*before, head.generation]


def is_readable(replaced: Replaced, head: Head) -> bool:
    """Whether the files of a generation that was replaced are surely there: in the gc epoch in which that was, and in
    the next one, which lasts for the grace."""
    return replaced.epoch >= head.gc_epoch - 1


def is_collected(replaced: Replaced, head: Head) -> bool:
    """Whether gc has deleted its files by now."""
    return replaced.epoch < head.gc_epoch - 2


def fetch_replaced(files: TopicFiles, list_file: FileRef | None) -> list[Replaced]:
    return files.fetch_records(list_file, _replaced_rows()) if list_file is not None else []


def stage_replaced(files: TopicFiles, replaced: list[Replaced], epoch: int) -> FileRef | None:
    rows = _replaced_rows()
    return files.stage([rows.dump(each) for each in replaced], rows.schema, epoch) if replaced else None


# -- manifests ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactedBatch:
    """One record batch of a compacted file, as the manifest has it: which rows, and where the first of them was."""

    file: FileRef
    file_rows: int
    start: int
    rows: int
    first: Position


def stage_manifest(files: TopicFiles, batches: list[CompactedBatch], epoch: int) -> FileRef:
    codec = _manifest_rows()
    rows = [_ManifestRow(each.file, each.file_rows, each.start, each.rows, *astuple(each.first)) for each in batches]
    return files.stage([codec.dump(row) for row in rows], codec.schema, epoch)


def fetch_manifest(files: TopicFiles, manifest: FileRef) -> list[CompactedBatch]:
    return [
        CompactedBatch(row.file, row.records, row.start, row.rows, Position(row.ledger, row.entry, row.index))
        for row in files.fetch_records(manifest, _manifest_rows())
    ]


def is_manifest(table: pa.Table) -> bool:
    return bool(table.schema.names == _manifest_rows().schema.names)


def files_of(files: TopicFiles, manifest: FileRef) -> list[FileRef]:
    return list(dict.fromkeys(row.file for row in files.fetch_records(manifest, _manifest_rows())))


# -- positions ----------------------------------------------------------------------------------------------------


class CompactedLedger:
    """The files of one generation, and which rows of them a read takes."""

    def __init__(self, files: TopicFiles, generation: Generation) -> None:
        self._files = files
        self._generation = generation
        self._batches = fetch_manifest(files, generation.manifest)

    def slices(self, start: Position, end: Position, base: Position) -> Iterator[CompactedSlice]:
        """The rows with positions in [start, end), in order, one slice for each file."""
        first, last = self._find(start), self._find(end)
        for number, (file, rows) in enumerate(dict.fromkeys((b.file, b.file_rows) for b in self._batches)):
            low = first[1] if first[0] == number else 0
            high = last[1] if last[0] == number else rows
            if first[0] <= number <= last[0] and low < high:
                yield CompactedSlice(file, low, high, rows, b"", number, base)

    def position(self, piece: CompactedSlice, row: int) -> Position:
        """Where the record in a row of a slice's file was; past the last one, where the next file begins."""
        if row >= piece.all_rows:
            following = [b.first for b in self._batches if b.start == 0][piece.number + 1 :]
            return following[0] if following else self._generation.horizon
        return first_position(self._read(piece.file, row, row + 1))

    def _find(self, position: Position) -> tuple[int, int]:
        """File number and row of the first record at or after a position."""
        at = bisect_right(self._batches, position, key=lambda batch: batch.first) - 1
        if at < 0:
            return 0, 0
        batch = self._batches[at]
        stored = self._read(batch.file, batch.start, batch.start + batch.rows)
        before = stored.num_rows - stored_at_or_after(stored, position).true_count
        number = sum(b.start == 0 for b in self._batches[: at + 1]) - 1
        return number, batch.start + before

    def _read(self, file: FileRef, start: int, stop: int) -> pa.RecordBatch:
        reader = EntryReader(self._files.storage, self._files.uuid, file, _POSITION_COLUMNS)
        return pa.concat_batches([batch for _, batch in reader.batches(start, stop)])


def first_position(batch: pa.RecordBatch) -> Position:
    """Where the first record of a batch of a compacted file was."""
    return Position(*(batch.column(name)[0].as_py() for name in _POSITION_COLUMNS))
