"""Whether compacted generations are there, in order, and what a fold of the log gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.compaction.work import KeyedSlices, RowNumbers, survivors_of
from pyspark_ledger.errors import CorruptData, DataLoss
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import EntryReader
from pyspark_ledger.lifecycle.findings import Finding, Span, finding
from pyspark_ledger.lifecycle.verify_files import Files
from pyspark_ledger.lifecycle.verify_view import records_before
from pyspark_ledger.log import generations, scan, trimmed
from pyspark_ledger.log.generations import CompactedBatch, CompactedLedger
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.rows import SliceRows, at_or_after, read_slice
from pyspark_ledger.log.slices import Slice, joined
from pyspark_ledger.metadata.records import Generation

_PLACE = (schemas.LEDGER, schemas.ENTRY, schemas.INDEX)


class Generations:
    def __init__(self, log: Log, files: Files, *, deep: bool) -> None:
        self._log, self._files, self._deep = log, files, deep
        self.count = 0

    def look(self, view: View) -> Iterator[Finding]:
        head, files = view.head, self._log.files
        if head.replaced is not None:
            listed = self._files.table(
                head.replaced, "the list of replaced generations", lambda ref: generations.fetch_replaced(files, ref)
            )
            if isinstance(listed, Finding):
                yield listed
        there = self._there(view)
        self.count = len(there)
        for older, newer in pairwise(there):
            if older.number >= newer.number or older.horizon > newer.horizon:
                yield finding("inconsistent", f"generation {newer.number} comes after {older.number}, {older.horizon}")
        for generation in there:
            found = list(self._generation(view, generation))
            yield from found
            if self._deep and not found and self._log.topic.key:
                yield from self._compared(view, generation)

    def _there(self, view: View) -> list[Generation]:
        try:
            return generations.kept(self._log.files, view.head)
        except CorruptData:  # told already
            return [view.head.generation] if view.head.generation is not None else []

    def _generation(self, view: View, generation: Generation) -> Iterator[Finding]:
        what, span = f"generation {generation.number}", Span(EARLIEST, generation.horizon, generation.records)
        files = self._log.files
        batches = self._files.table(
            generation.manifest, f"the manifest of {what}", lambda ref: generations.fetch_manifest(files, ref), span
        )
        if isinstance(batches, Finding):
            yield batches
            return
        for wrong in self._wrong_numbers(view, generation, batches):
            yield finding("inconsistent", f"{what}: {wrong}", span)
        sizes = {batch.file: batch.file_rows for batch in batches}
        schema = self._schema(view)
        for number, (file, rows) in enumerate(sizes.items()):
            of_file = _span(batches, number, generation)
            damaged = self._files.with_rows(file, rows, schema, what, of_file)
            yield from damaged
            if not damaged and self._files.is_chosen(file):
                for wrong in self._wrong_places([each for each in batches if each.file == file], generation):
                    yield finding("inconsistent", f"{what}: {wrong}", of_file, self._files.where(file))

    def _schema(self, view: View) -> pa.Schema | None:
        try:
            return self._log.schema(view.head.schema_id)
        except CorruptData:
            return None  # told where the nodes are looked at

    def _wrong_numbers(self, view: View, generation: Generation, batches: Sequence[CompactedBatch]) -> Iterator[str]:
        if (rows := sum(batch.rows for batch in batches)) != generation.records:
            yield f"its manifest lists {rows} records, and it says {generation.records}"
        if (size := sum(file.length for file in {batch.file for batch in batches})) != generation.bytes:
            yield f"its files have {size} bytes, and it says {generation.bytes}"
        for before, batch in pairwise(batches):
            follows = before.start + before.rows if before.file == batch.file else 0
            if batch.start != follows or not before.first < batch.first:
                yield f"what begins at {batch.first} does not follow what begins at {before.first}"
        read = records_before(self._log, view, generation.horizon)
        if read not in (None, generation.read):
            yield f"{read} records are before its horizon {generation.horizon}, and it says {generation.read}"

    def _wrong_places(self, batches: Sequence[CompactedBatch], generation: Generation) -> Iterator[str]:
        """The positions in a file, batch by batch."""
        reader = EntryReader(self._log.storage, self._log.topic.uuid, batches[0].file, _PLACE)
        last = Position(-1, 0, 0)
        for batch in batches:
            for _, stored in reader.batches(batch.start, batch.start + batch.rows):
                places = [stored.column(name) for name in _PLACE]
                if _at(places, 0) <= last or not _rise(places):
                    yield f"its records from {batch.first} on are not in the order of the log"
                if last < batch.first != _at(places, 0) and stored.num_rows == batch.rows:
                    yield f"its manifest says that a batch begins at {batch.first}, and that is {_at(places, 0)}"
                last = _at(places, -1)
        if last >= generation.horizon:
            yield f"it has the record at {last}, which is not before its horizon {generation.horizon}"

    # -- compared with the log -------------------------------------------------------------------------------------

    def _compared(self, view: View, generation: Generation) -> Iterator[Finding]:
        """Folds what is left of the log up to the horizon, after what the generation has from before that: the result
        must be the generation."""
        span = Span(EARLIEST, generation.horizon, generation.records)
        try:
            wrong = self._first_difference(view, generation)
        except (CorruptData, DataLoss):
            return  # told where the log is looked at; or ledgers were given up meanwhile
        if wrong is not None:
            what = f"generation {generation.number} is not what the log gives: they differ at {wrong}"
            yield finding("inconsistent", what, span, advice="compact the topic anew after restoring it from a copy")

    def _first_difference(self, view: View, generation: Generation) -> Position | None:
        log, begin = self._log, min(trimmed.begin(view.head), generation.horizon)
        before = CompactedLedger(log.files, generation).slices(EARLIEST, begin, EARLIEST)
        since = joined(scan.slices(log, view, begin, generation.horizon))
        keyed = KeyedSlices(
            log.storage.root, log.topic.uuid, log.schema(view.head.schema_id), log.topic.key, log.topic.version_column,
            (*before, *since),
        )  # fmt: skip
        expected = self._folded(keyed, generation)
        there = CompactedLedger(log.files, generation).slices(EARLIEST, generation.horizon, EARLIEST)
        found = (row for piece in there for rows in self._rows(piece, keyed.schema) for row in _flat(rows))
        return _difference(expected, found)

    def _folded(self, keyed: KeyedSlices, generation: Generation) -> Iterator[_Row]:
        """What the generation should have, in order."""
        survivors = survivors_of(keyed)
        records, tombstones = RowNumbers(survivors.records), RowNumbers(survivors.tombstones)
        row = 0
        for piece in keyed.pieces:
            for rows in self._rows(piece, keyed.schema):
                count = rows.batch.num_rows
                kept, gone = records.take(row, row + count), tombstones.take(row, row + count)
                row += count
                late = at_or_after(rows.positions(), generation.tombstones_from)
                chosen = pa.concat_arrays([kept, gone.filter(late.take(gone))])
                yield from _flat(rows, chosen.take(pc.array_sort_indices(chosen)))

    def _rows(self, piece: Slice, schema: pa.Schema) -> Iterator[SliceRows]:
        return read_slice(self._log.storage, self._log.topic.uuid, piece, schema, with_ids=True)


_Row = tuple[Position, str]  # where it was, and what it is


def _flat(rows: SliceRows, chosen: pa.Array | None = None) -> Iterator[_Row]:
    """Row by row, as text: two values that are no numbers are equal then."""
    chosen = pa.arange(0, rows.batch.num_rows) if chosen is None else chosen
    if not len(chosen):
        return
    places = zip(*(column.take(chosen).to_pylist() for column in rows.positions()), strict=True)
    ids = zip(*(column.take(chosen).to_pylist() for column in (rows.publish_times(), *rows.ids())), strict=True)
    for place, value, known in zip(places, rows.batch.take(chosen).to_pylist(), ids, strict=True):
        yield Position(*place), f"{value} {known}"


def _difference(expected: Iterator[_Row], found: Iterator[_Row]) -> Position | None:
    """The first position at which they differ."""
    while True:
        a, b = next(expected, None), next(found, None)
        if a != b:
            return min(row[0] for row in (a, b) if row is not None)
        if a is None:
            return None


def _span(batches: Sequence[CompactedBatch], number: int, generation: Generation) -> Span:
    """Of one file of a generation."""
    starts = [batch for batch in batches if batch.start == 0]
    end = starts[number + 1].first if number + 1 < len(starts) else generation.horizon
    if number >= len(starts):
        return Span(EARLIEST, generation.horizon, generation.records)
    return Span(starts[number].first, end, starts[number].file_rows)


def _at(places: Sequence[pa.Array], row: int) -> Position:
    return Position(*(column[row].as_py() for column in places))


def _rise(places: Sequence[pa.Array]) -> bool:
    """Whether positions are in order, each there once."""
    count = len(places[0])
    if count < 2:
        return True
    earlier, later = ([column.slice(start, count - 1) for column in places] for start in (0, 1))
    rises = pc.greater(later[2], earlier[2])
    for number in (1, 0):
        same = pc.equal(later[number], earlier[number])
        rises = pc.or_(pc.greater(later[number], earlier[number]), pc.and_(same, rises))
    return bool(pc.all(rises).as_py())
