"""Compacted ledgers: their files, where a position is in them, and which rows a read takes.

A generation is one or more files whose records keep their original positions, in order. Its manifest has a row for
every record batch with the position of its first record, so a position is found without reading the ledger.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pyspark_ledger.base import names
from pyspark_ledger.base.position import Position
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import BATCH_BYTES, BATCH_ROWS, EntryReader, EntryWriter
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.files.topicfiles import FILE_TYPE, TopicFiles, file_from_row, file_row
from pyspark_ledger.log.reader import at_or_after
from pyspark_ledger.log.scan import Slice
from pyspark_ledger.metadata.records import FileRef, Generation

_PLACE = [schemas.LEDGER, schemas.ENTRY, schemas.INDEX]
FILE_ROWS = 8 << 20  # a generation of more is several files, readable in parallel

_BOUNDS = pa.schema(
    [
        pa.field("file", FILE_TYPE),
        pa.field("records", pa.int64()),
        pa.field("start", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("ledger", pa.int64()),
        pa.field("entry", pa.int64()),
        pa.field("index", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Bound:
    """One record batch of a compacted file: which rows, and where the first of them was."""

    file: FileRef
    records: int  # in the whole file
    start: int
    rows: int
    first: Position


def stage_manifest(files: TopicFiles, bounds: list[Bound], epoch: int) -> FileRef:
    rows = [
        {
            "file": file_row(bound.file),
            "records": bound.records,
            "start": bound.start,
            "rows": bound.rows,
            "ledger": bound.first.ledger,
            "entry": bound.first.entry,
            "index": bound.first.index,
        }
        for bound in bounds
    ]
    return files.stage(rows, _BOUNDS, epoch)


def is_manifest(table: pa.Table) -> bool:
    return bool(table.schema.names == _BOUNDS.names)


def files_of(files: TopicFiles, manifest: FileRef) -> list[FileRef]:
    return list(dict.fromkeys(file_from_row(row["file"]) for row in files.fetch(manifest)))


class Compacted:
    def __init__(self, files: TopicFiles, generation: Generation) -> None:
        self._files = files
        self._generation = generation
        self._bounds = [
            Bound(
                file_from_row(row["file"]),
                row["records"],
                row["start"],
                row["rows"],
                Position(row["ledger"], row["entry"], row["index"]),
            )
            for row in files.fetch(generation.manifest)
        ]

    def slices(self, start: Position, end: Position, base: Position) -> Iterator[Slice]:
        """The rows with positions in [start, end), in order, one slice for each file."""
        first, last = self._find(start), self._find(min(end, self._generation.horizon))
        for number, (file, records) in enumerate(dict.fromkeys((b.file, b.records) for b in self._bounds)):
            low = first[1] if first[0] == number else 0
            high = last[1] if last[0] == number else records
            if first[0] <= number <= last[0] and low < high:
                yield Slice(
                    file,
                    -1,
                    number,
                    low,
                    high,
                    records,
                    b"",
                    0,
                    "",
                    None,
                    schemas.SEQUENCE,
                    schemas.PRODUCER,
                    base=base,
                )

    def position(self, piece: Slice, row: int) -> Position:
        """Where the record in a row of a slice's file was; past the last one, where the next file begins."""
        if row >= piece.records:
            following = [b.first for b in self._bounds if b.start == 0][piece.entry + 1 :]
            return following[0] if following else self._generation.horizon
        return _first_position(self._read(piece.file, row, row + 1))

    def _find(self, position: Position) -> tuple[int, int]:
        """File number and row of the first record at or after a position."""
        at = bisect_right(self._bounds, position, key=lambda bound: bound.first) - 1
        if at < 0:
            return 0, 0
        bound = self._bounds[at]
        stored = self._read(bound.file, bound.start, bound.start + bound.rows)
        before = stored.num_rows - at_or_after(stored, position).true_count
        number = sum(b.start == 0 for b in self._bounds[: at + 1]) - 1
        return number, bound.start + before

    def _read(self, file: FileRef, start: int, stop: int) -> pa.RecordBatch:
        reader = EntryReader(self._files.storage, self._files.uuid, file, _PLACE)
        return pa.concat_batches([batch for _, batch in reader.batches(start, stop)])


class CompactedWriter:
    """Writes a generation's files, in large batches, and keeps what the manifest says of each batch."""

    def __init__(self, storage: Storage, uuid: str, epoch: int, schema: pa.Schema) -> None:
        self._storage, self._uuid, self._epoch, self._schema = storage, uuid, epoch, schema
        self.rows = 0
        self._bounds: list[Bound] = []
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._open: EntryWriter | None = None
        self._open_bounds: list[tuple[int, int, Position]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self.rows += batch.num_rows
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= BATCH_ROWS or self._pending_bytes >= BATCH_BYTES:
            self._end_batch()

    def _end_batch(self) -> None:
        whole = pa.concat_batches(self._pending)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        for start in range(0, whole.num_rows, BATCH_ROWS):
            self._write_batch(whole.slice(start, BATCH_ROWS))

    def _write_batch(self, batch: pa.RecordBatch) -> None:
        if self._open is None:
            self._open = EntryWriter(self._storage, self._uuid, self._epoch, self._schema, "zstd")
        done = sum(rows for _, rows, _ in self._open_bounds)
        self._open.write(batch)
        self._open.end_batch()
        self._open_bounds.append((done, batch.num_rows, _first_position(batch)))
        if done + batch.num_rows >= FILE_ROWS:
            self._end_file()

    def _end_file(self) -> None:
        if self._open is None:
            return
        entry = self._open.close()
        assert entry is not None
        self._bounds += [Bound(entry.file, entry.records, *bound) for bound in self._open_bounds]
        self._open, self._open_bounds = None, []

    def discard(self) -> None:
        """Leaves nothing behind. Nobody else has ever heard of these files, so this need not wait for gc."""
        files = [bound.file for bound in self._bounds]
        if self._open is not None:
            self._open.abandon()
            files += [FileRef(self._epoch, self._open.uid, 0, 0, 0)]
        for file in dict.fromkeys(files):
            self._storage.delete(names.staged_file(self._uuid, file.epoch, file.uid))

    def close(self) -> list[Bound]:
        if self._pending:
            self._end_batch()
        self._end_file()
        return self._bounds


def _first_position(batch: pa.RecordBatch) -> Position:
    return Position(*(batch.column(name)[0].as_py() for name in _PLACE))
