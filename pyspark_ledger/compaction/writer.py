"""Writes the files of a generation."""

from __future__ import annotations

import contextlib

import pyarrow as pa

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import Unavailable
from pyspark_ledger.files.entryfile import BATCH_BYTES, BATCH_ROWS, EntryWriter
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.log.generations import CompactedBatch, first_position
from pyspark_ledger.metadata.records import FileRef

FILE_ROWS = 8 << 20  # a generation of more is several files, readable in parallel


class CompactedWriter:
    """Writes a generation's files, in large batches, and keeps what the manifest says of each batch."""

    def __init__(self, storage: Storage, uuid: str, epoch: int, schema: pa.Schema, clock: Clock) -> None:
        self._storage, self._uuid, self._epoch, self._schema, self._clock = storage, uuid, epoch, schema, clock
        self.rows = 0
        self._batches: list[CompactedBatch] = []
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._open: EntryWriter | None = None
        self._open_batches: list[tuple[int, int, Position]] = []  # of the file being written

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
            self._open = EntryWriter(self._storage, self._uuid, self._epoch, self._schema, "zstd", self._clock)
        done = sum(rows for _, rows, _ in self._open_batches)
        self._open.write(batch)
        self._open.end_batch()
        self._open_batches.append((done, batch.num_rows, first_position(batch)))
        if done + batch.num_rows >= FILE_ROWS:
            self._end_file()

    def _end_file(self) -> None:
        if self._open is None:
            return
        entry = self._open.close()
        assert entry is not None
        self._batches += [CompactedBatch(entry.file, entry.records, *batch) for batch in self._open_batches]
        self._open, self._open_batches = None, []

    def discard(self) -> None:
        """Deletes the files. Nobody else knows of them, so this need not wait for gc; if the disk fails, gc does it."""
        files = [batch.file for batch in self._batches]
        if self._open is not None:
            self._open.abandon()
            files += [FileRef(self._epoch, self._open.uid, 0, 0, 0)]
        with contextlib.suppress(Unavailable):  # why they are discarded matters more
            for file in dict.fromkeys(files):
                self._storage.delete(names.staged_file(self._uuid, file.epoch, file.uid))

    def close(self) -> list[CompactedBatch]:
        if self._pending:
            self._end_batch()
        self._end_file()
        return self._batches
