"""Topic compaction (PIP-14): the last record of every key, written to a ledger of its own.

Phase one folds everything up to a fixed end, the previous generation first and then the log since. Phase two writes the
survivors with their original positions. Then one transaction publishes the generation and its horizon, only if nobody
else has published one meanwhile. Whatever is cut off before that leaves files that nothing names, for gc.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from pyspark_ledger.append.append import check_epochs
from pyspark_ledger.base import names
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.compaction import fold, pins
from pyspark_ledger.compaction.fold import Fold, Survivors
from pyspark_ledger.compaction.generations import Bound, Compacted, CompactedWriter, stage_manifest
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.files import mask
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.storage import Storage, open_storage
from pyspark_ledger.log import scan
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.reader import Rows, not_before, read_slice
from pyspark_ledger.log.scan import Slice
from pyspark_ledger.metadata.ephemeral import Ephemeral
from pyspark_ledger.metadata.port import CompactorKey
from pyspark_ledger.metadata.records import FileRef, Generation, Head, Holder

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]  # phase, records done, of how many


def compact(
    log: Log,
    progress: Progress = lambda *_: None,
    read_rate: float | None = None,
    write_rate: float | None = None,
) -> Generation | None:
    """One run; None if nothing was written since the last one. Rates are records per second."""
    _check_rates(read_rate=read_rate, write_rate=write_rate)
    with compacting(log):
        work = begin(log)
        if work is None:
            return None
        survivors = survivors_of(work, _throttled(log, progress, read_rate))
        return publish(log, work, write(work, survivors, _throttled(log, progress, write_rate)))


@contextlib.contextmanager
def compacting(log: Log) -> Iterator[None]:
    """One compactor at a time, so that nobody works for nothing: a second one is refused at once. It is not this that
    keeps generations in order, but their publication: a lock can be lost without its holder knowing."""
    key = CompactorKey(log.topic.uuid)
    mine = Holder(log.clock.new_id(), names.this_process(), log.clock.now_ms())
    lock = Ephemeral(log.metadata, log.limits, log.clock, key, mine, f"topic '{log.topic.name}': the compactor's lock")
    other = lock.take()
    if other is not None:
        since = datetime.fromtimestamp(other.since_ms / 1000, UTC)
        raise Conflict(
            f"topic '{log.topic.name}' is being compacted by {other.name} since {since:%Y-%m-%d %H:%M:%S} UTC",
            "LEDGER_COMPACTION_RUNNING",
        )
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class Work:
    """What is to be folded: some pieces of a topic up to a fixed end. Needs no ZooKeeper, so it can go to executors."""

    storage: str
    uuid: str
    epoch: int
    schema: pa.Schema
    key: str
    version: str
    pieces: tuple[Slice, ...]
    horizon: Position
    read: int
    generation: int
    tombstones_from: Position
    started_ms: int

    @property
    def target(self) -> pa.Schema:
        """Of compacted files."""
        return pa.schema([*self.schema, *schemas.HIDDEN])


def begin(log: Log) -> Work | None:
    """Everything up to now; None if nothing was written since the last compaction."""
    view = log.refresh(sync=True)
    previous = newest(view)
    if view.head.records == (previous.read if previous else 0):
        return None
    return work_of(log, view, EARLIEST, view.head.end)


def work_of(log: Log, view: View, start: Position, end: Position) -> Work:
    check_compactable(log)
    previous = newest(view)
    return Work(
        log.storage.uri, log.topic.uuid, view.head.gc_epoch, log.schema(view.head.schema_id), log.topic.key,
        log.topic.version_column, tuple(sources(log, view, start, end, EARLIEST)), end, view.head.records,
        previous.number + 1 if previous else 1, pins.tombstones_from(log, view), log.clock.now_ms(),
    )  # fmt: skip


def _check_rates(**rates: float | None) -> None:
    for name, rate in rates.items():
        if rate is not None and (not isinstance(rate, (int, float)) or not rate > 0):
            raise InvalidInput(
                f"{name} is {rate!r}: it must be a number of records per second above 0, or None for no limit"
            )


def _throttled(log: Log, progress: Progress, rate: float | None) -> Progress:
    """Tells progress, and waits where the work is ahead of its rate."""
    started = log.clock.monotonic()

    def told(phase: str, done: int, total: int) -> None:
        progress(phase, done, total)
        if rate is not None:
            log.clock.sleep(max(0.0, done / rate - (log.clock.monotonic() - started)))

    return told


def publish(log: Log, work: Work, bounds: list[Bound]) -> Generation:
    """Names what was written in the head."""
    files = list(dict.fromkeys(bound.file for bound in bounds))
    generation = Generation(
        number=work.generation,
        horizon=work.horizon,
        manifest=stage_manifest(log.files, bounds, work.epoch),
        records=sum(bound.rows for bound in bounds),
        bytes=sum(file.length for file in files),
        read=work.read,
        finished_ms=log.clock.now_ms(),
        started_ms=work.started_ms,
        tombstones_from=work.tombstones_from,
    )
    _publish(log, generation, files)
    logger.info(
        "compacted topic=%s generation=%d horizon=%s records=%d of %d", log.topic.name, generation.number,
        generation.horizon, generation.records, generation.read,
    )  # fmt: skip
    return generation


def newest(view: View, end: Position | None = None) -> Generation | None:
    """The newest generation; for a read that stops at ``end``, the newest that goes no further: a later one has no
    longer what was true at the end."""
    usable = [generation for generation in view.head.generations if end is None or generation.horizon <= end]
    return usable[-1] if usable else None


def check_compactable(log: Log) -> None:
    topic = log.topic
    if not topic.key:
        raise InvalidInput(
            f"topic '{topic.name}' has no key, so every record would stay: a topic gets its key when it is made "
            "(option keyColumn)",
            "LEDGER_NOT_COMPACTABLE",
        )
    schemas.check_key(log.schema(log.view().head.schema_id).field(topic.key).type, topic.key, topic.name)


def read_through(
    log: Log, view: View, generation: Generation | None, start: Position, end: Position, base: Position
) -> Iterator[Slice]:
    """What a reader of a generation reads in [start, end): compacted records below the horizon, the log above it."""
    if generation is not None:
        yield from Compacted(log.files, generation).slices(start, end, base)
        start = max(start, generation.horizon)
    if start < end:
        yield from scan.slices(log, view, start, end)


def table(log: Log, view: View, start: Position, end: Position) -> list[Slice]:
    """The topic as a table, as of ``end``: every key once, and the records without one. Folds without writing."""
    work = work_of(log, view, start, end)
    records, row, kept = _Rows(survivors_of(work).records), 0, []
    for piece in work.pieces:
        chosen = records.take(row, row + piece.rows)
        row += piece.rows
        if len(chosen):
            kept.append(_only(piece, chosen))
    return kept


def _only(piece: Slice, rows: pa.Array) -> Slice:
    """The piece with some of its records, given by their numbers in it."""
    indexes = pa.arange(piece.start, piece.stop)
    if piece.mask:
        indexes = indexes.filter(mask.unpack(piece.mask, piece.records).slice(piece.start, piece.width))
    chosen = pc.is_in(pa.arange(0, piece.records), value_set=indexes.take(rows))
    return replace(piece, mask=mask.pack(chosen))


def sources(log: Log, view: View, start: Position, end: Position, base: Position) -> Iterator[Slice]:
    """What has to be read for the state at ``end``: a generation, and the log since."""
    return read_through(log, view, newest(view, end), start, end, base)


# -- phase one --------------------------------------------------------------------------------------------------


def survivors_of(work: Work, progress: Progress = lambda *_: None) -> Survivors:
    """Which rows count, numbered over all pieces in order."""
    folding, row, total = Fold(versioned=bool(work.version)), 0, sum(piece.rows for piece in work.pieces)
    for piece in work.pieces:
        for key, tombstone, version in keys_of(work, piece):
            folding.add(key, pa.arange(row, row + len(key)), tombstone, version)
            row += len(key)
            progress("reading", row, total)
    return folding.survivors()


def keys_of(work: Work, piece: Slice) -> Iterator[tuple[pa.Array, pa.Array, pa.Array | None]]:
    """Keys, which rows are tombstones, and versions."""
    for rows, tombstone in _with_tombstones(work, piece):
        version = fold.ranks(rows.batch.column(work.version)) if work.version else None
        yield rows.batch.column(work.key), tombstone, version


def _with_tombstones(work: Work, piece: Slice) -> Iterator[tuple[Rows, pa.Array]]:
    """Most pieces have no tombstone, and one column is enough to know."""
    storage, schema = open_storage(work.storage), work.schema
    names = [name for name in (work.key, work.version) if name]
    values = sorted((n for n in schema.names if n not in names), key=lambda name: _width(schema.field(name).type))
    wanted = pa.schema([schema.field(name) for name in (*names, *values[:1])])
    for rows in read_slice(storage, work.uuid, piece, wanted):
        if piece.base is not None:
            yield rows, rows.stored.column(schemas.TOMBSTONE)
            continue
        suspects = fold.tombstones(rows.batch, work.key, work.version)
        if len(values) > 1 and suspects.true_count:
            again = replace(piece, start=rows.indexes[0].as_py(), stop=rows.indexes[-1].as_py() + 1)
            whole = pa.concat_batches([r.batch for r in read_slice(storage, work.uuid, again, schema)])
            suspects = fold.tombstones(whole, work.key, work.version)
        yield rows, suspects


def _width(kind: pa.DataType) -> int:
    return int(kind.bit_width) if pat.is_primitive(kind) else 1 << 20


# -- phase two --------------------------------------------------------------------------------------------------


class _Rows:
    """Sorted row numbers, taken run by run."""

    def __init__(self, rows: pa.Array) -> None:
        self._rows, self._at = rows, 0

    def take(self, start: int, stop: int) -> pa.Array:
        """Those in [start, stop), counted from ``start``."""
        run = self._rows.slice(self._at, stop - start)
        run = run.filter(pc.less(run, stop))
        self._at += len(run)
        return pc.subtract(run, start)


def write(work: Work, survivors: Survivors, progress: Progress = lambda *_: None) -> list[Bound]:
    """Copies survivors into compacted files."""
    storage = open_storage(work.storage)
    writer = CompactedWriter(storage, work.uuid, work.epoch, work.target)
    records, tombstones = _Rows(survivors.records), _Rows(survivors.tombstones)
    row, total = 0, len(survivors.records) + len(survivors.tombstones)
    try:
        for piece in work.pieces:
            kept, gone = records.take(row, row + piece.rows), tombstones.take(row, row + piece.rows)
            row += piece.rows
            if len(kept) or len(gone):
                for batch in _survivors_in(storage, work, piece, _Rows(kept), _Rows(gone)):
                    writer.write(batch)
                    progress("writing", writer.rows, total)
        return writer.close()
    except BaseException:
        writer.discard()
        raise


def _survivors_in(
    storage: Storage, work: Work, piece: Slice, records: _Rows, tombstones: _Rows
) -> Iterator[pa.RecordBatch]:
    row = 0
    for rows in read_slice(storage, work.uuid, piece, work.schema, with_ids=True):
        count = rows.batch.num_rows
        kept, gone = records.take(row, row + count), tombstones.take(row, row + count)
        row += count
        if len(gone):
            gone = gone.filter(not_before(rows.places(), work.tombstones_from).take(gone))
        chosen = pa.concat_arrays([kept, gone])
        order = pc.array_sort_indices(chosen)
        chosen = chosen.take(order)
        flags = pa.concat_arrays([pa.repeat(False, len(kept)), pa.repeat(True, len(gone))]).take(order)
        columns = [column.take(chosen) for column in (*rows.batch.columns, *rows.places(), *rows.ids())]
        if len(chosen):
            yield pa.RecordBatch.from_arrays([*columns, flags], schema=work.target)


# -- publishing -------------------------------------------------------------------------------------------------


def _publish(log: Log, generation: Generation, files: list[FileRef]) -> None:
    """Forward only (I10): a compactor that was overtaken changes nothing (I6). A generation is known by its manifest,
    which nobody else has written: so after a lost answer the head tells whether it was us."""

    def edit(head: Head) -> Head | None:
        if generation in head.generations:
            return None  # an earlier sending did it
        last = head.generations[-1].number if head.generations else 0
        if last != generation.number - 1:
            raise Conflict(
                f"topic '{log.topic.name}' was compacted by another process meanwhile: nothing was changed",
                "LEDGER_COMPACTION_FENCED",
            )
        check_epochs(head, [*files, generation.manifest])
        return replace(head, generations=(*head.generations, generation)[-log.limits.kept_generations :])

    log.change_head(edit, "publishing a compaction")


@dataclass(frozen=True, slots=True)
class CompactionStats:
    """What is known of a topic's compaction."""

    generation: int  # 0: the first run has not finished
    horizon: Position
    records: int
    records_before: int
    bytes: int
    started_ms: int
    finished_ms: int
    backlog_records: int  # written since
    running_since_ms: int | None  # of a run that has not finished


def stats(log: Log) -> CompactionStats | None:
    """None if the topic was never compacted and is not being compacted."""
    view = log.refresh(sync=True)
    running = log.metadata.read(CompactorKey(log.topic.uuid))
    since = running.record.since_ms if running else None
    records, last = view.head.records, newest(view)
    if last is None:
        return CompactionStats(0, EARLIEST, 0, 0, 0, 0, 0, records, since) if running else None
    return CompactionStats(
        last.number, last.horizon, last.records, last.read, last.bytes, last.started_ms, last.finished_ms,
        records - last.read, since,
    )  # fmt: skip
