"""The two phases of a compaction, which need storage only: they run in process, or on executors.

Phase one folds slices of a topic and finds the rows that count. Phase two copies those into files of a new generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.position import Position
from pyspark_ledger.compaction import fold
from pyspark_ledger.compaction.fold import Fold, Survivors
from pyspark_ledger.compaction.writer import CompactedWriter
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.storage import Root, Storage
from pyspark_ledger.log.generations import CompactedBatch
from pyspark_ledger.log.rows import CompactedRows, SliceReader, SliceRows, at_or_after, read_slice
from pyspark_ledger.log.slices import CompactedSlice, Slice

Progress = Callable[[str, int, int], None]  # phase, records done, of how many


@dataclass(frozen=True)
class KeyedSlices:
    """Pieces of a topic with a key, in order: what is to be folded."""

    storage: Root
    uuid: str
    schema: pa.Schema
    key: str
    version: str
    pieces: tuple[Slice, ...]


@dataclass(frozen=True)
class Work:
    """What one compaction folds and writes: a topic up to a fixed end."""

    input: KeyedSlices
    epoch: int
    horizon: Position
    read: int
    generation: int
    tombstones_from: Position
    started_ms: int

    @property
    def target(self) -> pa.Schema:
        """Of compacted files."""
        return pa.schema([*self.input.schema, *schemas.HIDDEN])


class RowNumbers:
    """Sorted row numbers, taken run by run."""

    def __init__(self, numbers: pa.Array) -> None:
        self._numbers, self._at = numbers, 0

    def take(self, start: int, stop: int) -> pa.Array:
        """Those in [start, stop), counted from ``start``."""
        run = self._numbers.slice(self._at, stop - start)
        run = run.filter(pc.less(run, stop))
        self._at += len(run)
        return pc.subtract(run, start)


# -- phase one --------------------------------------------------------------------------------------------------


def survivors_of(keyed: KeyedSlices, progress: Progress = lambda *_: None) -> Survivors:
    """Which rows count, numbered over all pieces in order."""
    folding, row, total = Fold(versioned=bool(keyed.version)), 0, sum(piece.rows for piece in keyed.pieces)
    for piece in keyed.pieces:
        for key, tombstone, version in keys_of(keyed, piece):
            folding.add(key, pa.arange(row, row + len(key)), tombstone, version)
            row += len(key)
            progress("reading", row, total)
    return folding.survivors()


def keys_of(keyed: KeyedSlices, piece: Slice) -> Iterator[tuple[pa.Array, pa.Array, pa.Array | None]]:
    """Keys, which rows are tombstones, and versions."""
    for rows, tombstone in with_tombstones(keyed, piece):
        version = fold.ranks(rows.batch.column(keyed.version)) if keyed.version else None
        yield rows.batch.column(keyed.key), tombstone, version


def with_tombstones(
    keyed: KeyedSlices, piece: Slice, columns: Sequence[str] = ()
) -> Iterator[tuple[SliceRows, pa.Array]]:
    """Rows with the key, the version and these columns, and which of them are tombstones. A tombstone is judged by the
    columns that its own entry has: one that the topic got later says nothing of it. Most pieces have none, and reading
    one column is enough to see that: only if it is null somewhere, the others are read."""
    storage = keyed.storage.open()
    opened = SliceReader(storage, keyed.uuid, piece)
    names = [name for name in (keyed.key, keyed.version) if name]
    values = [] if isinstance(piece, CompactedSlice) else _values(keyed, opened.columns)  # it says which are
    judged = values if set(values) <= set(columns) else values[:1]
    for rows in opened.rows(_fields(keyed, list(dict.fromkeys([*names, *judged, *columns])))):
        if isinstance(rows, CompactedRows):
            yield rows, rows.tombstones()
            continue
        suspects = fold.tombstones(rows.batch.select([*names, *judged]), keyed.key, keyed.version)
        if len(values) > len(judged) and suspects.true_count:
            again = replace(piece, start=rows.indexes[0].as_py(), stop=rows.indexes[-1].as_py() + 1)
            entry = _fields(keyed, [*names, *values])
            whole = pa.concat_batches([r.batch for r in read_slice(storage, keyed.uuid, again, entry)])
            suspects = fold.tombstones(whole, keyed.key, keyed.version)
        yield rows, suspects


def _values(keyed: KeyedSlices, columns: list[str]) -> list[str]:
    """Which columns of a file are values, the narrowest first."""
    values = [name for name in columns if name in keyed.schema.names and name not in (keyed.key, keyed.version)]
    return sorted(values, key=lambda name: _width(keyed.schema.field(name).type))


def _fields(keyed: KeyedSlices, names: list[str]) -> pa.Schema:
    return pa.schema([keyed.schema.field(name) for name in names])


def _width(kind: pa.DataType) -> int:
    return int(kind.bit_width) if pat.is_primitive(kind) else 1 << 20


# -- phase two --------------------------------------------------------------------------------------------------


def write(
    work: Work, survivors: Survivors, progress: Progress = lambda *_: None, clock: Clock = SYSTEM_CLOCK
) -> list[CompactedBatch]:
    """Copies survivors into compacted files."""
    storage = work.input.storage.open()
    writer = CompactedWriter(storage, work.input.uuid, work.epoch, work.target, clock)
    records, tombstones = RowNumbers(survivors.records), RowNumbers(survivors.tombstones)
    row, total = 0, len(survivors.records) + len(survivors.tombstones)
    try:
        for piece in work.input.pieces:
            kept, gone = records.take(row, row + piece.rows), tombstones.take(row, row + piece.rows)
            row += piece.rows
            if len(kept) or len(gone):
                for batch in _survivors_in(storage, work, piece, RowNumbers(kept), RowNumbers(gone)):
                    writer.write(batch)
                    progress("writing", writer.rows, total)
        return writer.close()
    except BaseException:
        writer.discard()
        raise


def _survivors_in(
    storage: Storage, work: Work, piece: Slice, records: RowNumbers, tombstones: RowNumbers
) -> Iterator[pa.RecordBatch]:
    row = 0
    for rows in read_slice(storage, work.input.uuid, piece, work.input.schema, with_ids=True):
        count = rows.batch.num_rows
        kept, gone = records.take(row, row + count), tombstones.take(row, row + count)
        row += count
        positions = rows.positions()
        if len(gone):
            gone = gone.filter(at_or_after(positions, work.tombstones_from).take(gone))
        chosen = pa.concat_arrays([kept, gone])
        order = pc.array_sort_indices(chosen)
        chosen = chosen.take(order)
        flags = pa.concat_arrays([pa.repeat(False, len(kept)), pa.repeat(True, len(gone))]).take(order)
        stored = (*rows.batch.columns, *positions, rows.publish_times(), *rows.ids())
        columns = [column.take(chosen) for column in stored]
        if len(chosen):
            ordinals = rows.ordinals().take(chosen)
            yield pa.RecordBatch.from_arrays([*columns, flags, ordinals], schema=work.target)
