"""Entry files: Arrow IPC files whose last message has the checksums of everything before it.

An entry file is an ordinary Arrow IPC file that any Arrow tool reads. Its last record batch has no rows; its custom
metadata say where each batch and each of its columns is, and what it hashes to. That message and the footer after it
are the *tail*, and the commit has the tail's length and hash. So a reader that wants one column of one batch verifies
the tail and that column, and reads nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any

import pyarrow as pa
import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import MOST_FOOTER_BYTES, MOST_TAIL_BYTES
from pyspark_ledger.errors import CorruptData, InvalidInput, damage
from pyspark_ledger.files import bounds
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entrysource import open_source
from pyspark_ledger.files.ipc_layout import BatchLayout, RecordBatchMessage, buffer_count, hash_chunks
from pyspark_ledger.files.storage import Sink, Storage
from pyspark_ledger.metadata.records import Entry, FileRef

FORMAT = 1
TAIL_KEY = b"ledger.tail"
BATCH_ROWS = 65_536  # what Spark reads fastest
BATCH_BYTES = 16 << 20  # bounds a worker's memory when rows are wide
_SMALL_BYTES = 1 << 17  # of a file: even zstd cannot make more than MOST_TABLE_BYTES of so few


class EntryWriter:
    """Streams record batches into a new entry file. The file is created with the first row."""

    def __init__(
        self,
        storage: Storage,
        uuid: str,
        epoch: int,
        schema: pa.Schema,
        compression: str | None = "lz4",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._storage, self._uuid, self._epoch, self._clock = storage, uuid, epoch, clock
        self._schema = schema
        self._buffers_of = [buffer_count(field.type, field.name) for field in schema]
        self._options = pa.ipc.IpcWriteOptions(compression=_codec(compression), use_threads=False)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._batches: list[BatchLayout] = []
        self._rows = 0
        self._recorder: _Recorder | None = None
        self._writer: Any = None
        self.uid = b""

    def write(self, batch: pa.RecordBatch) -> None:
        """Small batches are gathered and large ones cut, so that readers get batches of a good size."""
        start = 0
        while start < batch.num_rows:
            piece = batch.slice(start, BATCH_ROWS - self._pending_rows)
            start += piece.num_rows
            self._pending.append(piece)
            self._pending_rows += piece.num_rows
            self._pending_bytes += piece.nbytes
            if self._pending_rows >= BATCH_ROWS or self._pending_bytes >= BATCH_BYTES:
                self._flush()

    @property
    def bytes(self) -> int:
        """About how long the file would be now: what is not written yet is counted as it is in memory."""
        return self._pending_bytes + (self._recorder.position if self._recorder is not None else 0)

    def end_batch(self) -> None:
        """Ends a record batch: rows that are written later go to the next one."""
        if self._pending:
            self._flush()

    def close(self) -> Entry | None:
        """Makes the file durable. None if there was no row, and then there is no file."""
        self.end_batch()
        if self._recorder is None:
            return None
        tail_start = self._recorder.position
        tail = json.dumps({"format": FORMAT, "batches": [_pack(b) for b in self._batches]}, separators=(",", ":"))
        self._recorder.take()
        if len(tail) > MOST_TAIL_BYTES:
            raise InvalidInput(
                f"the entry has {self._rows} rows in {len(self._batches)} batches, more than one file can describe: "
                "give the write more partitions",
                "LEDGER_TOO_MANY_ROWS",
            )
        self._writer.write_batch(_no_rows(self._schema), custom_metadata={TAIL_KEY: tail.encode()})
        self._writer.close()
        tail_hash = hash_chunks(self._recorder.take())
        self._recorder.sink.close()
        length = self._recorder.position
        ref = FileRef(self._epoch, self.uid, length, length - tail_start, tail_hash)
        return Entry(ref, self._rows)

    def abandon(self) -> None:
        if self._recorder is not None:
            self._recorder.sink.abandon()

    def _flush(self) -> None:
        batch = pa.concat_batches(self._pending) if len(self._pending) > 1 else self._pending[0]
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        recorder = self._open() if self._recorder is None else self._recorder
        self._writer.write_batch(batch)
        message = RecordBatchMessage(recorder.position, recorder.take())
        self._batches.append(message.describe(batch.num_rows, self._buffers_of))
        self._rows += batch.num_rows

    def _open(self) -> _Recorder:
        self.uid = self._clock.new_id()
        recorder = _Recorder(self._storage.create(names.staged_file(self._uuid, self._epoch, self.uid)))
        target = pa.PythonFile(recorder, mode="w")
        self._writer = pa.ipc.new_file(target, self._schema, options=self._options)
        self._recorder = recorder
        return recorder


class EntryReader:
    """Reads rows of an entry file, verifying what it reads and no more."""

    def __init__(self, storage: Storage, uuid: str, file: FileRef, columns: Sequence[str] | None = None) -> None:
        self._storage = storage
        self._path = names.staged_file(uuid, file.epoch, file.uid)
        self._file = file
        self._source = open_source(storage, self._path, file)
        self._verify_tail()
        self._is_large = file.length > _SMALL_BYTES
        self._chosen: list[int] | None = None  # numbers of the buffers that are read
        with self._damage():
            if file.tail_length > MOST_FOOTER_BYTES:
                bounds.check_footer(self._tail())
            self._reader = self._arrow()
            self._batches = self._read_tail()
            self.schema: pa.Schema = self._reader.schema  # all that the file has
            self.columns: list[str] = self.schema.names
        self.choose(self.columns if columns is None else columns)

    def choose(self, columns: Sequence[str]) -> None:
        """Reads these columns from now on, as far as the file has them."""
        self._fields = [i for i, name in enumerate(self.columns) if name in columns]
        self._chosen = None

    def batches(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows [start, stop) as (index of the first row, batch), in order."""
        # Named fields also make Arrow read column by column, and so nothing that was not fetched.
        with self._damage():
            self._reader = self._arrow(self._fields)
        wanted = list(self._wanted(start, stop))
        self._source.expect(part for number, *_ in wanted for part in self._parts(self._batches[number]))
        for number, first, low, high in wanted:
            described = self._batches[number]
            self._verify(number, described)
            batch = self._decode(number)
            yield first + low, batch if high - low == described.rows else batch.slice(low, high - low)

    def _wanted(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """The batches that have some of the rows [start, stop): the number of each, its first row in the file, and
        which of its rows."""
        first = 0
        for number, described in enumerate(self._batches):
            low, high = max(start - first, 0), min(stop - first, described.rows)
            if low < high:
                yield number, first, low, high
            first += described.rows

    def _verify_tail(self) -> None:
        if xxhash.xxh3_64_intdigest(self._tail()) != self._file.tail_hash:
            raise self._corrupt("its tail does not match the checksum in its commit")

    def _tail(self) -> memoryview:
        return self._source.view(self._file.length - self._file.tail_length, self._file.tail_length)

    def _read_tail(self) -> list[BatchLayout]:
        _, metadata = self._reader.get_batch_with_custom_metadata(self._reader.num_record_batches - 1)
        tail = json.loads(metadata[TAIL_KEY])
        if tail["format"] > FORMAT:
            raise InvalidInput(
                f"{self._storage.where(self._path)} has entry format {tail['format']}, this version knows {FORMAT}: "
                "upgrade pyspark-ledger",
                "LEDGER_NEWER_FORMAT",
            )
        batches = [_unpack(row) for row in tail["batches"]]
        if len(batches) != self._reader.num_record_batches - 1:
            raise ValueError(f"its tail describes {len(batches)} of {self._reader.num_record_batches - 1} batches")
        for batch in batches:
            batch.check(len(self._reader.schema), self._file.length)
        if self._is_large and bounds.batch_blocks(self._tail())[:-1] != [
            (batch.offset, batch.header) for batch in batches
        ]:
            raise ValueError("its tail says that batches are elsewhere than its footer does")
        return batches

    def _verify(self, number: int, batch: BatchLayout) -> None:
        parts = self._fetch(batch)
        hashes = (batch.hashes[0], *(batch.hashes[i + 1] for i in self._fields))
        for (offset, length), expected in zip(parts, hashes, strict=True):
            if xxhash.xxh3_64_intdigest(self._source.view(offset, length)) != expected:
                raise self._corrupt(f"batch {number} (bytes {offset} to {offset + length}) fails its checksum")

    def _fetch(self, batch: BatchLayout) -> list[tuple[int, int]]:
        parts = self._parts(batch)
        self._source.fetch(parts)
        return parts

    def _parts(self, batch: BatchLayout) -> list[tuple[int, int]]:
        """Its header, and the columns that are read."""
        return [(batch.offset, batch.header), *(batch.columns[i] for i in self._fields)]

    def _decode(self, number: int) -> pa.RecordBatch:
        if not self._fields:  # a count needs no column, but Arrow takes an empty list for "all"
            return schemas.no_columns(self._batches[number].rows)
        with self._damage():
            if self._is_large:
                self._check_size(self._batches[number])
            batch, said = self._get(number), self._batches[number].rows
            batch.validate()
            if batch.num_rows != said:
                raise ValueError(f"batch {number} has {batch.num_rows} rows, its tail says {said}")
        return batch

    def _get(self, number: int) -> pa.RecordBatch:
        try:
            return self._reader.get_batch(number)
        except MemoryError:
            self._check_size(self._batches[number])  # which says so if it asked for too much
            raise

    def _check_size(self, batch: BatchLayout) -> None:
        """Before Arrow takes the memory that the batch asks for. Of a long one no page is touched that is not read."""
        if self._chosen is None:
            self._chosen = self._chosen_buffers()
        header = bytes(self._source.view(batch.offset + 8, batch.header - 8))
        bounds.check_batch(header, batch.offset + batch.header, self._source.view, self._chosen)

    def _chosen_buffers(self) -> list[int]:
        counts = [buffer_count(field.type, field.name) for field in self.schema]
        firsts = [0, *accumulate(counts)]
        return [number for i in self._fields for number in range(firsts[i], firsts[i + 1])]

    def _arrow(self, fields: list[int] | None = None) -> Any:
        options = pa.ipc.IpcReadOptions(included_fields=fields or None, use_threads=False)
        return pa.ipc.open_file(self._source.arrow_file(), options=options)

    def _damage(self) -> AbstractContextManager[None]:
        return damage(self._storage.where(self._path))

    def _corrupt(self, what: str) -> CorruptData:
        return CorruptData(f"{self._storage.where(self._path)} is damaged: {what}; restore it from a copy")


class _Recorder:
    """A sink that keeps the chunks of the message being written, so that they can be hashed without a copy."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.position = 0
        self._chunks: list[memoryview] = []

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.sink.write(view)
        self._chunks.append(view)
        self.position += len(view)
        return len(view)

    def take(self) -> list[memoryview]:
        chunks, self._chunks = self._chunks, []
        return chunks

    def writable(self) -> bool:
        return True

    def flush(self) -> None: ...

    def close(self) -> None: ...


def stage_entry(
    storage: Storage, uuid: str, epoch: int, batches: Sequence[pa.RecordBatch], compression: str | None, clock: Clock
) -> Entry:
    """Batches, with at least one row among them, as one entry file."""
    return stage_rows(storage, uuid, epoch, batches[0].schema, batches, compression, clock)


def stage_rows(
    storage: Storage,
    uuid: str,
    epoch: int,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    compression: str | None,
    clock: Clock,
) -> Entry:
    """The same, of batches that come one by one."""
    writer = EntryWriter(storage, uuid, epoch, schema, compression, clock)
    try:
        for batch in batches:
            writer.write(batch)
        entry = writer.close()
    except BaseException:
        writer.abandon()
        raise
    assert entry is not None
    return entry


def _codec(compression: str | None) -> Any:
    """lz4 at a faster level than its default: in our measurements a quarter less work for the same size."""
    return pa.Codec("lz4", compression_level=-1) if compression == "lz4" else compression


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    # Not pa.array([]), which would import pandas: a quarter of a second of CPU in each of Spark's Python processes.
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _pack(batch: BatchLayout) -> list[Any]:
    offsets_and_lengths = [number for column in batch.columns for number in column]
    return [batch.offset, batch.header, batch.rows, offsets_and_lengths, "".join(f"{h:016x}" for h in batch.hashes)]


def _unpack(row: list[Any]) -> BatchLayout:
    offset, header, rows, offsets_and_lengths, hashes = row
    columns = tuple(zip(offsets_and_lengths[::2], offsets_and_lengths[1::2], strict=True))
    return BatchLayout(
        offset, header, rows, columns, tuple(int(hashes[i : i + 16], 16) for i in range(0, len(hashes), 16))
    )
