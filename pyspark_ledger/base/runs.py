"""Sets of whole numbers that mostly follow one another, such as the records that are acknowledged out of order.

The size depends on the number of gaps: a consumer that acknowledges in order has an empty set, one that skips a few
records has a few runs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain

from pyspark_ledger.base.limits import MOST_NUMBERS
from pyspark_ledger.errors import CorruptData, damage

_BITS = 63  # of a number, at most


class Runs:
    """An immutable set, as disjoint runs [start, stop) that do not touch, in order."""

    __slots__ = ("_starts", "_stops")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in sorted(run for run in runs if run[0] < run[1]):
            if self._stops and start <= self._stops[-1]:
                self._stops[-1] = max(self._stops[-1], stop)
            else:
                self._starts.append(start)
                self._stops.append(stop)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Runs:
        return cls((number, number + 1) for number in numbers)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._stops[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and (self._starts, self._stops) == (other._starts, other._stops)

    def __hash__(self) -> int:
        return hash((tuple(self._starts), tuple(self._stops)))

    def __repr__(self) -> str:
        return f"Runs({list(iter(self))})"

    def __len__(self) -> int:
        """How many numbers. So a list of the runs is ``list(iter(runs))``: ``list(runs)`` would make room for this many
        before it begins."""
        return sum(self._stops) - sum(self._starts)

    def __or__(self, other: Iterable[tuple[int, int]]) -> Runs:
        return Runs(chain(self, other))

    def __sub__(self, other: Iterable[tuple[int, int]]) -> Runs:
        """Without the numbers of another set."""
        return Runs(self._cut(Runs(other)))

    def _cut(self, other: Runs) -> Iterator[tuple[int, int]]:
        for start, stop in self:
            at = bisect_right(other._stops, start)
            while at < len(other._starts) and other._starts[at] < stop:
                yield start, other._starts[at]
                start = other._stops[at]
                at += 1
            yield start, stop

    def __and__(self, other: Iterable[tuple[int, int]]) -> Runs:
        """The numbers that are in both."""
        return self - (self - other)

    def first(self, numbers: int, runs: int) -> Runs:
        """So many of the lowest numbers, in so many runs, at most."""
        taken: list[tuple[int, int]] = []
        for start, stop in self:
            stop = min(stop, start + numbers)
            if start == stop or len(taken) == runs:
                break
            taken.append((start, stop))
            numbers -= stop - start
        return Runs(taken)

    def numbers(self) -> Iterator[int]:
        """One by one.

        :raises CorruptData: they are more than anybody has in hand. A few bytes can be a set of any size.
        """
        if len(self) > MOST_NUMBERS:
            raise CorruptData(
                f"a set in a node has {len(self)} numbers, and at most {MOST_NUMBERS} are taken one by one: the node "
                "is damaged, or somebody has changed it"
            )
        return chain.from_iterable(range(start, stop) for start, stop in self)

    def without(self, number: int) -> Runs:
        return self - ((number, number + 1),)

    def since(self, number: int) -> Runs:
        """Without everything below a number."""
        first = bisect_left(self._stops, number + 1)
        left = zip(self._starts[first:], self._stops[first:], strict=True)
        return Runs((max(start, number), stop) for start, stop in left)

    def next_missing(self, number: int) -> int:
        """The first number at or after this one that is not in the set."""
        at = bisect_right(self._starts, number) - 1
        return max(number, self._stops[at]) if at >= 0 else number

    # -- as bytes: distances as varints

    def pack(self, base: int) -> bytes:
        packed = bytearray()
        last = base
        for start, stop in self:
            for number in (start - last, stop - start):
                _put_varint(packed, number)
            last = stop
        return bytes(packed)

    @classmethod
    def unpack(cls, packed: bytes, base: int) -> Runs:
        with damage("a set of numbers in a node"):
            numbers = list(_varints(packed))
            runs, last = [], base
            for skip, length in zip(numbers[::2], numbers[1::2], strict=True):
                runs.append((last + skip, last + skip + length))
                last += skip + length
            if last >> _BITS:
                raise ValueError("its numbers are too large")
            return cls(runs)


def _put_varint(packed: bytearray, number: int) -> None:
    while number > 0x7F:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)


def _varints(packed: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in packed:
        if shift >= _BITS:
            raise ValueError("a number does not end")
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("its last number is cut off")
