"""Many things, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pyspark_ledger.errors import CorruptData, InvalidInput, LedgerError

T = TypeVar("T")
R = TypeVar("R")


def pages(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(things), size):
        yield things[start : start + size]


def by_halves(
    things: Sequence[T], look: Callable[[Sequence[T]], list[R]], failed: Callable[[T, LedgerError], list[R]]
) -> list[R]:
    """What ``look`` finds for many things together. If one of them is damaged, it is found by halves and given to
    ``failed``, and the others are looked at all the same."""
    try:
        return look(things)
    except (CorruptData, InvalidInput) as error:
        if len(things) == 1:
            return failed(things[0], error)
        half = (len(things) + 1) // 2
        return [*by_halves(things[:half], look, failed), *by_halves(things[half:], look, failed)]
