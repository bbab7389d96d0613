"""Copies the small entries of a ledger into files that hold many. Needs storage only: it runs in process, or on
executors.

Entries keep their order, their rows and their masks, and so their positions: only the file is another one, and the row
in it where an entry begins. Neighbours share a file if theirs have exactly the same columns, because what a record
means can depend on which columns its entry has. Everything is verified as it is read. Rows that are masked keep their
place; their values go, as far as a column may be null.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import Clock, LedgerClock
from pyspark_ledger.errors import CorruptData, Unavailable
from pyspark_ledger.files import mask
from pyspark_ledger.files.entryfile import BATCH_BYTES, EntryReader, EntryWriter
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.lifecycle.rewrite_plan import LedgerWork, small_runs
from pyspark_ledger.log.index import Index, IndexRow, stage_leaf
from pyspark_ledger.metadata.records import Commit, Entry, FileRef

_GATHERED = 256  # batches that are not copied yet: each may keep a file open

Report = Callable[[int], None]  # how many more bytes were read


@dataclass(frozen=True, slots=True)
class LedgerCopy:
    """A ledger whose new files are there, and are named by nothing yet. All are of one gc epoch."""

    before: IndexRow
    after: IndexRow
    entries: int  # that were copied
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


def copy(files: TopicFiles, work: LedgerWork, epoch: int, clock: Clock, report: Report = lambda _: None) -> LedgerCopy:
    """Stages the new files of a ledger, its leaf last."""
    commits = Index(files, ()).commits(work.leaf)
    lists = [files.fetch_entries(commit.entries_file) if commit.entries_file else commit.entries for commit in commits]
    entries = [entry for of_commit in lists for entry in of_commit]
    joiner = _Joiner(files, work, epoch, LedgerClock(clock, work.ledger), report)
    copied, files_before = 0, 0
    try:
        for run in list(small_runs(entries, work.ledger, work.below_bytes, work.lost)):
            files_before += len({entry.file for entry in entries[run.start : run.stop]})
            entries[run.start : run.stop] = joiner.join(entries[run.start : run.stop])
            copied += len(run)
        leaf = _stage_leaf(files.of_ledger(work.ledger), commits, lists, entries, epoch)
    except BaseException:
        joiner.discard()
        raise
    bytes_after = sum(file.length for file in joiner.staged)
    return LedgerCopy(work.leaf, leaf, copied, files_before, len(joiner.staged), joiner.bytes_read, bytes_after)


def _stage_leaf(
    files: TopicFiles, commits: list[Commit], lists: list[tuple[Entry, ...]], entries: list[Entry], epoch: int
) -> IndexRow:
    """The commits with other entries; those of each were ``lists``, and all of them in a row are now ``entries``."""
    changed, start = [], 0
    for commit, before in zip(commits, lists, strict=True):
        now = tuple(entries[start : start + len(before)])
        start += len(before)
        if now != before and commit.entries_file is not None:
            commit = replace(commit, entries_file=files.stage_entries(now, epoch))
        elif now != before:
            commit = replace(commit, entries=now)
        changed.append(commit)
    return stage_leaf(files, changed, epoch)


class _Joiner:
    """Writes the entries of one ledger to files that they share."""

    def __init__(self, files: TopicFiles, work: LedgerWork, epoch: int, clock: Clock, report: Report) -> None:
        self._storage, self._uuid, self._epoch, self._clock = files.storage, files.uuid, epoch, clock
        self._file_bytes, self._report = work.file_bytes, report
        self._writer: EntryWriter | None = None
        self._schema: pa.Schema | None = None
        self._rows = 0  # of the file that is being written,
        self._waiting: list[Entry] = []  # and the entries in it
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self.staged: list[FileRef] = []
        self.bytes_read = 0

    def join(self, entries: Sequence[Entry]) -> list[Entry]:
        """Neighbours, as they are in their new files."""
        moved: list[Entry] = []
        for ref, sharing in groupby(entries, attrgetter("file")):
            file = EntryReader(self._storage, self._uuid, ref)
            if self._writer is not None and not self._fits(self._writer, file.schema):
                moved += self._end_file()
            for entry in sharing:
                self._add(entry, file)
            self.bytes_read += ref.length
            self._report(ref.length)
        return moved + self._end_file()

    def _fits(self, writer: EntryWriter, schema: pa.Schema) -> bool:
        """Whether an entry can be added to the file that is being written."""
        is_full = writer.bytes + self._gathered_bytes >= self._file_bytes
        return not is_full and bool(schema.equals(self._schema, check_metadata=True))

    def _add(self, entry: Entry, file: EntryReader) -> None:
        if self._writer is None:
            self._schema, self._rows = file.schema, 0
            self._writer = EntryWriter(self._storage, self._uuid, self._epoch, file.schema, "zstd", self._clock)
        first = self._rows
        for row, batch in file.batches(entry.first_row, entry.first_row + entry.records):
            self._gather(_without_masked(entry, row - entry.first_row, batch))
        if self._rows - first != entry.records:
            path = self._storage.where(names.staged_file(self._uuid, entry.file.epoch, entry.file.uid))
            raise CorruptData(f"{path} has {self._rows - first} rows, its commit says {entry.records}")
        self._waiting.append(replace(entry, first_row=first))

    def _gather(self, batch: pa.RecordBatch) -> None:
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        self._rows += batch.num_rows
        if len(self._gathered) >= _GATHERED or self._gathered_bytes >= BATCH_BYTES:
            self._write()

    def _write(self) -> None:
        if self._gathered and self._writer is not None:
            self._writer.write(pa.concat_batches(self._gathered))
        self._gathered, self._gathered_bytes = [], 0

    def _end_file(self) -> list[Entry]:
        self._write()
        assert self._writer is not None
        whole = self._writer.close()
        assert whole is not None  # no entry is without rows
        self.staged.append(whole.file)
        moved = [replace(entry, file=whole.file, file_rows=whole.records) for entry in self._waiting]
        self._writer, self._waiting = None, []
        return moved

    def discard(self) -> None:
        """Deletes the files. Nobody else knows of them, so this need not wait for gc; if the disk fails, gc does it."""
        files = [(file.epoch, file.uid) for file in self.staged]
        if self._writer is not None:
            self._writer.abandon()
            files += [(self._epoch, self._writer.uid)] if self._writer.uid else []
        with contextlib.suppress(Unavailable):  # why they are discarded matters more
            self._storage.delete_many([names.staged_file(self._uuid, *file) for file in files])


def _without_masked(entry: Entry, row: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of an entry, of which those that are masked have no values."""
    if not entry.mask:
        return batch
    kept = mask.unpack(entry.mask, entry.records).slice(row, batch.num_rows)
    rows = pc.if_else(kept, pa.arange(0, batch.num_rows), pa.scalar(None, pa.int64()))
    fields = zip(batch.schema, batch.columns, strict=True)
    columns = [column.take(rows) if field.nullable else column for field, column in fields]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def copies(work: Sequence[LedgerWork], do: Callable[[LedgerWork], LedgerCopy]) -> Iterator[LedgerCopy | Skipped]:
    """Ledger by ledger. One with a damaged file is left as it is, and those after it are not held up by it."""
    for each in work:
        try:
            yield do(each)
        except CorruptData as error:
            yield Skipped(each.ledger, f"{error}")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A ledger that was left as it is."""

    ledger: int
    why: str
