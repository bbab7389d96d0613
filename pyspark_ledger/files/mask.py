"""Masks: which rows of an entry are not part of the log.

If a duplicate is found after its file was written, it is masked, because files never change and positions count every
row. A mask is a compressed bitmap with a one for every row that is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa

from pyspark_ledger.base import compute as pc
from pyspark_ledger.base.limits import MOST_MASKED_ROWS
from pyspark_ledger.errors import InvalidInput, damage
from pyspark_ledger.metadata.records import Entry

_WINDOW = 1 << 14  # rows that are looked at together
_LONG = 1 << 24  # rows of an entry whose mask takes more than 2 MB


def pack(kept: pa.BooleanArray) -> bytes:
    """The mask of an entry whose row i is kept if ``kept[i]``."""
    if len(kept) > MOST_MASKED_ROWS:
        raise InvalidInput(
            f"a task has written {len(kept)} rows, and some are duplicates: of more than {MOST_MASKED_ROWS} rows none "
            "can be left out. Give the write more partitions",
            "LEDGER_TOO_MANY_ROWS",
        )
    bitmap = pa.concat_arrays([kept, kept.slice(0, 0)]).buffers()[1]  # a copy begins at bit 0
    size = _size(len(kept))
    return bytes(pa.compress(bitmap.slice(0, size), "zstd", asbytes=True))


def unpack(mask: bytes, rows: int) -> pa.BooleanArray:
    return _unpack_long(mask, rows) if rows > _LONG else _unpack(mask, rows)


def _unpacked(mask: bytes, rows: int) -> pa.BooleanArray:
    with damage("the mask of an entry"):
        if rows > MOST_MASKED_ROWS:
            raise ValueError(f"it would have {rows} rows, and none has more than {MOST_MASKED_ROWS}")
        bitmap = pa.decompress(mask, decompressed_size=_size(rows), codec="zstd")
    return pa.BooleanArray.from_buffers(pa.bool_(), rows, [None, bitmap], null_count=0)


# One entry is looked at by planning, reading and counting. Of the longest masks not many are kept: each has 128 MB.
_unpack = lru_cache(maxsize=64)(_unpacked)
_unpack_long = lru_cache(maxsize=2)(_unpacked)


def cut(entry: Entry, kept: pa.BooleanArray) -> Entry | None:
    """The entry without the rows that are not kept; None if there are no others."""
    count = kept.true_count
    if count == 0:
        return None
    return entry if count == entry.records else replace(entry, masked=entry.records - count, mask=pack(kept))


def kept(mask: bytes, rows: int, start: int, stop: int) -> pa.BooleanArray:
    """Which of the rows [start, stop) are kept."""
    return unpack(mask, rows).slice(start, stop - start) if mask else pa.repeat(True, stop - start)


def joined(parts: Iterable[tuple[int, pa.BooleanArray]], rows: int) -> bytes:
    """The mask of a file of so many rows, given which are kept from some row on, part by part and in order. What lies
    between the parts is masked. Empty if from the first one to the end of the last one every row is kept."""
    bits, first, end = [], None, 0
    for row, part in parts:
        first = row if first is None else first
        bits += [pa.repeat(False, row - end), part]
        end = row + len(part)
    whole = pa.concat_arrays([*bits, pa.repeat(False, rows - end)])
    return b"" if whole.true_count == end - (first or 0) else pack(whole)


def count(mask: bytes, rows: int, start: int, stop: int) -> int:
    """How many of the rows [start, stop) are kept."""
    return int(unpack(mask, rows).slice(start, stop - start).true_count) if mask else stop - start


def skip(mask: bytes, rows: int, start: int, kept: int) -> int:
    """The index of the next kept row after ``kept`` of them, counted from ``start``; ``rows`` if there is none. Looks
    only at the part of a mask that it needs: a stream with a limit asks for every batch, and masks can be long."""
    if not mask:
        return min(rows, start + kept)
    bits = unpack(mask, rows)
    while start < rows:
        window = bits.slice(start, _WINDOW)
        found = window.true_count
        if kept < found:
            return start + int(pc.indices_nonzero(window)[kept].as_py())
        kept -= found
        start += _WINDOW
    return rows


def _size(rows: int) -> int:
    return (rows + 7) // 8
