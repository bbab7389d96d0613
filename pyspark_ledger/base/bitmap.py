"""A set of numbers below a fixed size, as bits: many numbers can be added at once, and it is stored in few bytes.

Compressed, a bitmap costs about 25 bytes when it is one run, and a bit for each number at most.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base.limits import MOST_BITMAP_NUMBERS
from pyspark_ledger.errors import damage

_FEW = 1_000  # up to this many numbers are added one by one


class Bitmap:
    __slots__ = ("_bits", "size")

    def __init__(self, size: int, packed: bytes = b"") -> None:
        self.size = size
        length = (size + 7) // 8
        with damage("a bitmap of tokens"):
            if size > MOST_BITMAP_NUMBERS:
                raise ValueError(f"it would have {size} numbers, and none has more than {MOST_BITMAP_NUMBERS}")
            bits = pa.decompress(packed, decompressed_size=length, codec="zstd", asbytes=True) if packed else length
        self._bits = bytearray(bits)

    def copy(self) -> Bitmap:
        twin = Bitmap.__new__(Bitmap)
        twin.size, twin._bits = self.size, bytearray(self._bits)
        return twin

    def pack(self) -> bytes:
        return bytes(pa.compress(bytes(self._bits), "zstd", asbytes=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bitmap) and (self.size, self._bits) == (other.size, other._bits)

    __hash__ = None  # type: ignore[assignment]

    @property
    def count(self) -> int:
        return int(self._view.true_count)

    @property
    def is_full(self) -> bool:
        return self.count == self.size

    def has(self, numbers: pa.Array) -> pa.BooleanArray:
        return self._view.take(numbers)

    def has_none(self, start: int, stop: int) -> bool:
        return int(self._view.slice(start, stop - start).true_count) == 0

    def has_all(self, start: int, stop: int) -> bool:
        return int(self._view.slice(start, stop - start).true_count) == stop - start

    def fill(self, start: int, stop: int) -> None:
        while start < stop and start & 7:
            self._bits[start >> 3] |= 1 << (start & 7)
            start += 1
        while start < stop and stop & 7:
            stop -= 1
            self._bits[stop >> 3] |= 1 << (stop & 7)
        self._bits[start >> 3 : stop >> 3] = b"\xff" * ((stop - start) >> 3)

    def add(self, numbers: pa.Array) -> None:
        if len(numbers) <= _FEW:
            for number in numbers.to_pylist():
                self._bits[number >> 3] |= 1 << (number & 7)
            return
        new = pc.is_in(pa.arange(0, self.size), value_set=numbers)
        merged = pc.or_(self._view, new).buffers()[1]
        self._bits = bytearray(merged.slice(0, len(self._bits)).to_pybytes())
        self._clear_padding()

    def _clear_padding(self) -> None:
        if self.size & 7:
            self._bits[-1] &= (1 << (self.size & 7)) - 1

    @property
    def _view(self) -> pa.BooleanArray:
        return pa.BooleanArray.from_buffers(pa.bool_(), self.size, [None, pa.py_buffer(self._bits)], null_count=0)
