"""Where each column is in an Arrow record batch message, and its hash.

pyarrow does not say where, so this reads it from two flatbuffer tables. Their layout is fixed by the Arrow format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat
import xxhash

from pyspark_ledger.base.limits import MOST_BATCH_ROWS
from pyspark_ledger.errors import CorruptData, InvalidInput


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where one record batch lies in the file, and the hashes of its header and of each column."""

    offset: int
    header: int
    rows: int
    columns: tuple[tuple[int, int], ...]  # (offset, length) from the start of the file
    hashes: tuple[int, ...]  # the header's, then each column's

    def check(self, columns: int, file_length: int) -> None:
        """ValueError if it is no batch of a file of this length, with so many columns."""
        if len(self.columns) != columns or len(self.hashes) != columns + 1:
            raise ValueError(f"its tail describes a batch of {len(self.columns)} columns, and it has {columns}")
        if type(self.rows) is not int or not 0 <= self.rows <= MOST_BATCH_ROWS:
            raise ValueError(f"its tail describes a batch of {self.rows} rows")
        for offset, length in ((self.offset, self.header), *self.columns):
            if not (type(offset) is int and type(length) is int):
                raise ValueError(f"its tail names the bytes {offset} to {length}, which are no whole numbers")
            if not 0 <= offset <= offset + length <= file_length:
                raise ValueError(f"its tail names the bytes {offset} to {offset + length}, and it has {file_length}")


class RecordBatchMessage:
    """A record batch message as it went to the file: finds each column's bytes and hashes them."""

    def __init__(self, end: int, chunks: list[memoryview]) -> None:
        self._chunks = chunks
        self._start = end - sum(map(len, chunks))  # of the chunks, in the file
        self._skip = 0  # from there to the message
        with _understood():
            if self._peek(0, 6) == b"ARROW1":  # the first message brings the magic and the schema along
                self._skip = 8 + self._header_length(8)
            self._header = self._header_length(self._skip)

    def describe(self, rows: int, buffers_of: list[int]) -> BatchLayout:
        header = self._peek(self._skip, self._header)
        with _understood():
            buffers = _body_buffers(header[8:])
            if sum(buffers_of) != len(buffers):
                raise ValueError(f"it has {len(buffers)} buffers, its schema says {sum(buffers_of)}")
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
            hashes.append(hash_chunks(self._range(body + start, length)))
        return BatchLayout(self._start + self._skip, self._header, rows, tuple(columns), tuple(hashes))

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


@contextmanager
def _understood() -> Iterator[None]:
    """A batch that was written and is not understood must not be committed: nobody could verify it."""
    try:
        yield
    except (struct.error, ValueError) as error:
        raise CorruptData(f"pyarrow has written a record batch that is not as Arrow's format says: {error}") from None


def hash_chunks(chunks: Iterable[memoryview]) -> int:
    hashed = xxhash.xxh3_64()
    for chunk in chunks:
        hashed.update(chunk)
    return hashed.intdigest()


def _body_buffers(message: bytes) -> list[tuple[int, int]]:
    """(offset, length) of the buffers in a record batch message's body.

    Two flatbuffer tables say where: field 2 of Message is the header, a RecordBatch, whose field 2 are the buffers.
    """
    return buffers_of(message, header_of(message))


def header_of(message: bytes) -> int:
    return table_field(message, struct.unpack_from("<I", message, 0)[0], 2)


def buffers_of(message: bytes, record_batch: int) -> list[tuple[int, int]]:
    vector = table_field(message, record_batch, 2)
    count = struct.unpack_from("<I", message, vector)[0]
    numbers = struct.unpack_from(f"<{2 * count}q", message, vector + 4)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def is_compressed(message: bytes) -> bool:
    """Whether the buffers of a record batch message are: its field 3 says how."""
    return slot_of(message, header_of(message), 3) > 0


def table_field(data: bytes, table: int, field: int) -> int:
    """Where the object that a flatbuffer table's field points to begins."""
    slot = slot_of(data, table, field)
    return table + slot + int(struct.unpack_from("<I", data, table + slot)[0])


def slot_of(data: bytes, table: int, field: int) -> int:
    """Where a field is in a flatbuffer table; 0 if the table does not have it."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, vtable)
    return int(struct.unpack_from("<H", data, vtable + 4 + 2 * field)[0]) if 4 + 2 * field < size else 0


def buffer_count(kind: pa.DataType, path: str) -> int:
    """How many buffers a column of a canonical type has in a record batch message."""
    if pat.is_null(kind):
        return 0
    if pat.is_string(kind) or pat.is_binary(kind):
        return 3
    if pat.is_map(kind):
        return 3 + buffer_count(kind.key_type, path) + buffer_count(kind.item_type, path)
    if pat.is_list(kind):
        return 2 + buffer_count(kind.value_type, path)
    if pat.is_struct(kind):
        return 1 + sum(buffer_count(child.type, path) for child in kind)
    if pat.is_nested(kind) or pat.is_dictionary(kind):
        raise InvalidInput(f"column '{path}' has the type {kind}, which entry files do not hold")
    return 2
