"""How much memory an Arrow file asks for, looked at before any of it is taken.

A few bytes can ask for any amount: each compressed buffer says how long it becomes, and a batch how many rows it has.
Checksums are no help against who makes a file and its checksum. So what a file says is compared with what none of ours
needs. It is read from the same flatbuffer tables as in ``ipc_layout``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pyspark_ledger.base.limits import MOST_FOOTER_BYTES, MOST_TABLE_BYTES, MOST_TABLE_ROWS
from pyspark_ledger.files.ipc_layout import buffers_of, header_of, slot_of, table_field

View = Callable[[int, int], memoryview]  # of so many bytes from an offset on
_END = 10  # bytes after the footer: its length, and the magic


class _Block(NamedTuple):
    """Where the footer says that a message is."""

    is_dictionary: bool
    offset: int
    header: int  # its length


def check_file(file: memoryview) -> None:
    """ValueError if the tables of an Arrow file would need more than MOST_TABLE_BYTES, or more rows than
    MOST_TABLE_ROWS."""
    check_footer(file)
    bytes_needed = rows = headers = 0
    for block in _blocks(file):
        headers += block.header
        if not block.header > 0 or headers > len(file):
            raise ValueError("its footer names messages that overlap")
        message = bytes(file[block.offset + 8 : block.offset + block.header])
        record_batch = header_of(message)
        if block.is_dictionary:  # which has its values in a RecordBatch too, its field 1
            record_batch = table_field(message, record_batch, 1)
        rows += _rows(message, record_batch)
        if rows > MOST_TABLE_ROWS:
            raise ValueError(f"it would have {rows} rows, and at most {MOST_TABLE_ROWS} are taken")
        bytes_needed += _unpacked(message, record_batch, file[block.offset + block.header :])
        _check_bytes(bytes_needed)


def check_footer(end: memoryview) -> None:
    """ValueError if the footer of an Arrow file is so long that its schema could need gigabytes: each of its fields may
    take a hundred times as much in memory. ``end`` is the file, or what is at its end."""
    length = _footer_length(end)
    if not 0 < length <= min(MOST_FOOTER_BYTES, len(end) - _END):
        raise ValueError(f"its footer would have {length} bytes, and at most {MOST_FOOTER_BYTES} are taken")


def check_batch(message: bytes, body: int, view: View, chosen: Iterable[int]) -> None:
    """ValueError if a compressed record batch would need more than MOST_TABLE_BYTES. ``body`` is where the message's
    body begins in the file; ``chosen`` are the numbers of the buffers that are read: others are not touched."""
    record_batch = header_of(message)
    if not slot_of(message, record_batch, 3):
        return  # it is as long as it is
    buffers, needed = buffers_of(message, record_batch), 0
    for start, length in (buffers[number] for number in chosen):
        if length:
            needed += max(length, int.from_bytes(view(body + start, 8), "little", signed=True))
    _check_bytes(needed)


def batch_blocks(end: memoryview) -> list[tuple[int, int]]:
    """Where the footer says that the record batches are, as (offset, length of the header): Arrow reads them there."""
    return [(block.offset, block.header) for block in _blocks(end) if not block.is_dictionary]


def _check_bytes(needed: int) -> None:
    if needed > MOST_TABLE_BYTES:
        raise ValueError(f"it would need {needed} bytes of memory, and at most {MOST_TABLE_BYTES} are taken")


def _footer_length(end: memoryview) -> int:
    return int(struct.unpack_from("<i", end, len(end) - _END)[0])


def _blocks(file: memoryview) -> Iterator[_Block]:
    """Fields 2 and 3 of the footer are lists of dictionaries and of record batches."""
    stop = len(file) - _END
    footer = bytes(file[stop - _footer_length(file) : stop])
    root = struct.unpack_from("<I", footer, 0)[0]
    for field in (2, 3):
        if slot_of(footer, root, field):
            blocks = table_field(footer, root, field)
            (count,) = struct.unpack_from("<I", footer, blocks)
            listed = footer[blocks + 4 : blocks + 4 + 24 * count]
            for offset, header, _ in struct.iter_unpack("<qi4xq", listed):
                yield _Block(field == 2, offset, header)


def _rows(message: bytes, record_batch: int) -> int:
    """Field 0 of a batch is how many it has; a field that is not there is zero."""
    slot = slot_of(message, record_batch, 0)
    rows = int(struct.unpack_from("<q", message, record_batch + slot)[0]) if slot else 0
    if rows < 0:
        raise ValueError(f"a batch has {rows} rows")
    return rows


def _unpacked(message: bytes, record_batch: int, body: memoryview) -> int:
    """How many bytes the buffers of a batch become. Field 3 says how they are compressed, if they are: then before the
    bytes of each stands how many they become; -1: they are as they are."""
    buffers, compressed = buffers_of(message, record_batch), slot_of(message, record_batch, 3) > 0
    return sum(
        max(length, struct.unpack_from("<q", body, start)[0] if compressed and length else 0)
        for start, length in buffers
    )
