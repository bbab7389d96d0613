"""Entry files: Arrow IPC files whose last message vouches for everything before it.

An entry file is an ordinary Arrow IPC file that any Arrow tool reads. Its last record batch has no rows and
carries, as custom metadata, where each batch and each of its columns lies and what it hashes to. That
message and the footer behind it are the *tail*; the commit holds the tail's length and hash. So a reader
that wants one column of one batch verifies the tail and that column, and reads nothing else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
import xxhash

from pyspark_ledger import names
from pyspark_ledger.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.records import Entry, FileRef
from pyspark_ledger.storage import Sink, Storage

FORMAT = 1
TAIL_KEY = b"ledger.tail"
BATCH_ROWS = 65_536  # what Spark reads fastest
BATCH_BYTES = 16 << 20  # bounds a worker's memory when rows are wide
FETCH_BYTES = 16 << 20  # how much to ask an object store for at once


@dataclass(frozen=True, slots=True)
class _Batch:
    """Where one record batch lies in the file, and the hashes of its header and of each column."""

    offset: int
    header: int
    rows: int
    columns: tuple[tuple[int, int], ...]  # (offset, length) from the start of the file
    hashes: tuple[int, ...]  # the header's, then each column's

    @property
    def end(self) -> int:
        return max([self.offset + self.header, *(at + length for at, length in self.columns)])


class EntryWriter:
    """Streams record batches into a new entry file; nothing is made before the first row."""

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
        self._buffers_of = [_buffer_count(field.type, field.name) for field in schema]
        self._options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._batches: list[_Batch] = []
        self._rows = 0
        self._recorder: _Recorder | None = None
        self._writer: Any = None
        self._uid = b""

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

    def close(self) -> Entry | None:
        """Makes the file durable. None if there was no row, and then there is no file."""
        if self._pending:
            self._flush()
        if self._recorder is None:
            return None
        tail_start = self._recorder.position
        tail = json.dumps({"format": FORMAT, "batches": [_pack(b) for b in self._batches]}, separators=(",", ":"))
        self._recorder.take()
        self._writer.write_batch(_no_rows(self._schema), custom_metadata={TAIL_KEY: tail.encode()})
        self._writer.close()
        tail_hash = _hash(self._recorder.take())
        self._recorder.sink.close()
        length = self._recorder.position
        ref = FileRef(self._epoch, self._uid, length, length - tail_start, tail_hash)
        return Entry(ref, self._rows)

    def abandon(self) -> None:
        if self._recorder is not None:
            self._recorder.sink.abandon()

    def _flush(self) -> None:
        batch = pa.concat_batches(self._pending) if len(self._pending) > 1 else self._pending[0]
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        recorder = self._open() if self._recorder is None else self._recorder
        self._writer.write_batch(batch)
        message = _Message(recorder.position, recorder.take())
        self._batches.append(message.describe(batch.num_rows, self._buffers_of))
        self._rows += batch.num_rows

    def _open(self) -> _Recorder:
        self._uid = self._clock.new_id()
        recorder = _Recorder(self._storage.create(names.staged_file(self._uuid, self._epoch, self._uid)))
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
        self._source = _MappedSource.open(storage, self._path, file) or _FetchedSource(storage, self._path, file)
        self._verify_tail()
        self._reader = self._arrow()
        self._batches = self._read_tail()
        stored = self._reader.schema.names
        self._fields = [i for i, name in enumerate(stored) if columns is None or name in columns]
        # Named fields also make Arrow read column by column, and so nothing that was not fetched.
        self._reader = self._arrow(self._fields)

    def batches(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows [start, stop) as (index of the first row, batch), in order."""
        first = 0
        for number, described in enumerate(self._batches):
            low, high = max(start - first, 0), min(stop - first, described.rows)
            if low < high:
                self._verify(number, described)
                batch = self._decode(number)
                yield first + low, batch if high - low == described.rows else batch.slice(low, high - low)
            first += described.rows

    def _verify_tail(self) -> None:
        start = self._file.length - self._file.tail_length
        if xxhash.xxh3_64_intdigest(self._source.view(start, self._file.tail_length)) != self._file.tail_hash:
            raise self._corrupt("its tail does not match the checksum in its commit")

    def _read_tail(self) -> list[_Batch]:
        _, metadata = self._reader.get_batch_with_custom_metadata(self._reader.num_record_batches - 1)
        tail = json.loads(metadata[TAIL_KEY])
        if tail["format"] > FORMAT:
            raise InvalidInput(
                f"{self._storage.where(self._path)} has entry format {tail['format']}, this version knows {FORMAT}: "
                "upgrade pyspark-ledger",
                "LEDGER_NEWER_FORMAT",
            )
        return [_unpack(row) for row in tail["batches"]]

    def _verify(self, number: int, batch: _Batch) -> None:
        parts = [(batch.offset, batch.header), *(batch.columns[i] for i in self._fields)]
        self._source.fetch(parts)
        hashes = (batch.hashes[0], *(batch.hashes[i + 1] for i in self._fields))
        for (offset, length), expected in zip(parts, hashes, strict=True):
            if xxhash.xxh3_64_intdigest(self._source.view(offset, length)) != expected:
                raise self._corrupt(f"batch {number} (bytes {offset} to {offset + length}) fails its checksum")

    def _decode(self, number: int) -> pa.RecordBatch:
        if not self._fields:  # a count needs no column, but Arrow takes an empty list for "all"
            return pa.RecordBatch.from_struct_array(pa.nulls(self._batches[number].rows, pa.struct([])))
        return self._reader.get_batch(number)

    def _arrow(self, fields: list[int] | None = None) -> Any:
        options = pa.ipc.IpcReadOptions(included_fields=fields or None, use_threads=False)
        return pa.ipc.open_file(self._source.arrow_file(), options=options)

    def _corrupt(self, what: str) -> CorruptData:
        return CorruptData(f"{self._storage.where(self._path)} is damaged: {what}; restore it from a copy")


class _MappedSource:
    """A local file, mapped: pages are read as they are verified, and nothing is copied."""

    def __init__(self, mapped: pa.Buffer) -> None:
        self._mapped = mapped
        self._view = memoryview(mapped)

    @classmethod
    def open(cls, storage: Storage, path: str, file: FileRef) -> _MappedSource | None:
        _check_length(storage, path, file)
        mapped = storage.map(path)
        return None if mapped is None else cls(mapped)

    def fetch(self, parts: list[tuple[int, int]]) -> None:
        pass

    def view(self, offset: int, length: int) -> memoryview:
        return self._view[offset : offset + length]

    def arrow_file(self) -> Any:
        return pa.BufferReader(self._mapped)


class _FetchedSource:
    """An object: the ranges that are wanted are fetched once, verified, and handed to Arrow from memory."""

    def __init__(self, storage: Storage, path: str, file: FileRef) -> None:
        self._storage, self._path, self._file = storage, path, file
        start = file.length - file.tail_length
        self._tail = (start, memoryview(storage.read(path, start, file.tail_length)))
        self._ranges = [self._tail]

    def fetch(self, parts: list[tuple[int, int]]) -> None:
        self._ranges = [self._tail]
        for offset, length in _coalesce(parts):
            self._ranges.append((offset, memoryview(self._storage.read(self._path, offset, length))))

    def view(self, offset: int, length: int) -> memoryview:
        for start, data in self._ranges:
            if start <= offset and offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        if length == 0:
            return memoryview(b"")
        return memoryview(b"")[:0]  # not there: its checksum will say so

    def arrow_file(self) -> Any:
        return pa.PythonFile(_SparseFile(self), mode="r")

    @property
    def length(self) -> int:
        return self._file.length


class _SparseFile:
    """The fetched ranges of an object, as the file that Arrow wants to see."""

    closed = False

    def __init__(self, source: _FetchedSource) -> None:
        self._source = source
        self._position = 0

    def read(self, size: int = -1) -> memoryview:
        stop = self._source.length if size < 0 else min(self._position + size, self._source.length)
        data = self._source.view(self._position, stop - self._position)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._source.length)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None: ...


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


class _Message:
    """A record batch message as it went to the file: finds each column's bytes and hashes them."""

    def __init__(self, end: int, chunks: list[memoryview]) -> None:
        self._chunks = chunks
        self._start = end - sum(map(len, chunks))  # of the chunks, in the file
        self._skip = 0  # from there to the message
        if self._peek(0, 6) == b"ARROW1":  # the first message brings the magic and the schema along
            self._skip = 8 + self._header_length(8)
        self._header = self._header_length(self._skip)

    def describe(self, rows: int, buffers_of: list[int]) -> _Batch:
        header = self._peek(self._skip, self._header)
        buffers = _body_buffers(header[8:])
        if sum(buffers_of) != len(buffers):
            raise AssertionError(f"the message has {len(buffers)} buffers, its schema says {sum(buffers_of)}")
        body = self._skip + self._header
        columns: list[tuple[int, int]] = []
        hashes = [xxhash.xxh3_64_intdigest(header)]
        taken = 0
        for count in buffers_of:
            mine = [buffer for buffer in buffers[taken : taken + count] if buffer[1]]
            taken += count
            start = mine[0][0] if mine else 0
            length = mine[-1][0] + mine[-1][1] - start if mine else 0
            columns.append((self._start + body + start, length))
            hashes.append(_hash(self._range(body + start, length)))
        return _Batch(self._start + self._skip, self._header, rows, tuple(columns), tuple(hashes))

    def _header_length(self, at: int) -> int:
        return 8 + int(struct.unpack("<i", self._peek(at + 4, 4))[0])

    def _peek(self, at: int, length: int) -> bytes:
        return b"".join(self._range(at, length))

    def _range(self, start: int, length: int) -> Iterator[memoryview]:
        at, stop = 0, start + length
        for chunk in self._chunks:
            if at >= stop:
                return
            if at + len(chunk) > start:
                yield chunk[max(0, start - at) : stop - at]
            at += len(chunk)


def _hash(chunks: Iterable[memoryview]) -> int:
    hashed = xxhash.xxh3_64()
    for chunk in chunks:
        hashed.update(chunk)
    return hashed.intdigest()


def _body_buffers(message: bytes) -> list[tuple[int, int]]:
    """(offset, length) of the buffers in a record batch message's body.

    pyarrow does not tell, so this reads the two flatbuffer tables that do: Message.header is its field 2,
    RecordBatch.buffers its field 2 as well; both layouts are frozen by the Arrow format.
    """
    record_batch = _table_field(message, struct.unpack_from("<I", message, 0)[0], 2)
    vector = _table_field(message, record_batch, 2)
    count = struct.unpack_from("<I", message, vector)[0]
    flat = struct.unpack_from(f"<{2 * count}q", message, vector + 4)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _table_field(data: bytes, table: int, field: int) -> int:
    """Where the object that a flatbuffer table's field points to begins."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    slot = struct.unpack_from("<H", data, vtable + 4 + 2 * field)[0]
    return table + int(slot) + int(struct.unpack_from("<I", data, table + slot)[0])


def _buffer_count(kind: pa.DataType, path: str) -> int:
    """How many buffers a column of a canonical type has in a record batch message."""
    if pat.is_null(kind):
        return 0
    if pat.is_string(kind) or pat.is_binary(kind):
        return 3
    if pat.is_map(kind):
        return 3 + _buffer_count(kind.key_type, path) + _buffer_count(kind.item_type, path)
    if pat.is_list(kind):
        return 2 + _buffer_count(kind.value_type, path)
    if pat.is_struct(kind):
        return 1 + sum(_buffer_count(child.type, path) for child in kind)
    if pat.is_nested(kind) or pat.is_dictionary(kind):
        raise InvalidInput(f"column '{path}' has the type {kind}, which entry files do not hold")
    return 2


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _pack(batch: _Batch) -> list[Any]:
    flat = [number for column in batch.columns for number in column]
    return [batch.offset, batch.header, batch.rows, flat, "".join(f"{h:016x}" for h in batch.hashes)]


def _unpack(row: list[Any]) -> _Batch:
    offset, header, rows, flat, hashes = row
    columns = tuple(zip(flat[::2], flat[1::2], strict=True))
    return _Batch(offset, header, rows, columns, tuple(int(hashes[i : i + 16], 16) for i in range(0, len(hashes), 16)))


def _coalesce(parts: list[tuple[int, int]], gap: int = 1 << 16) -> Iterator[tuple[int, int]]:
    """Fewer, larger requests: an object store charges more for a request than for 64 kB."""
    start = stop = -1
    for offset, length in sorted(part for part in parts if part[1]):
        if start >= 0 and offset <= stop + gap and offset + length - start <= FETCH_BYTES:
            stop = max(stop, offset + length)
            continue
        if start >= 0:
            yield start, stop - start
        start, stop = offset, offset + length
    if start >= 0:
        yield start, stop - start


def _check_length(storage: Storage, path: str, file: FileRef) -> None:
    """Before mapping: touching a page past the end of a cut file would kill the process."""
    size = storage.size(path)
    if size != file.length:
        raise CorruptData(
            f"{storage.where(path)} has {size} bytes, its commit says {file.length}; restore it from a copy"
        )
