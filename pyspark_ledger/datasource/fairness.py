"""Limits that several topics share."""

from __future__ import annotations

from collections.abc import Sequence


def fair_shares(limit: int, wanted: Sequence[int]) -> list[int]:
    """Each gets as much as the others, but no more than it wants, and what one does not want goes to the rest. What
    cannot be divided goes to the first ones.

    >>> fair_shares(10, [2, 100, 100])
    [2, 4, 4]
    >>> fair_shares(2, [100, 100, 100])
    [1, 1, 0]
    """
    shares = [0] * len(wanted)
    hungry = [number for number, wants in enumerate(wanted) if wants > 0]
    while limit > 0 and hungry:
        each = limit // len(hungry) or 1
        for number in hungry[:limit]:
            take = min(each, wanted[number] - shares[number])
            shares[number] += take
            limit -= take
        hungry = [number for number in hungry if shares[number] < wanted[number]]
    return shares
