"""Records that could not be handled: when each of them is delivered again."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_ledger.base.given import is_number
from pyspark_ledger.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a record that was refused stays away: the first time, and at most. Each time it is twice as long. One
    that was delivered more than ``last`` times does not stay away: it becomes a dead letter."""

    first_s: float = 1.0
    longest_s: float = 60.0
    last: int | None = None

    def __post_init__(self) -> None:
        numbers = is_number(self.first_s) and is_number(self.longest_s)
        if not numbers or not 0 <= self.first_s <= self.longest_s:
            raise InvalidInput(
                f"redelivery_delay_s={self.first_s!r}, max_redelivery_delay_s={self.longest_s!r}: they are seconds, "
                "and the first must not be negative, nor longer than the second",
                "LEDGER_INVALID_OPTION",
            )

    def delay_s(self, deliveries: int) -> float:
        if self.last is not None and deliveries > self.last:
            return 0.0
        doublings = min(deliveries - 1, 60)  # more would not fit a float
        return float(min(self.longest_s, self.first_s * 2**doublings))


DEFAULT_BACKOFF = Backoff()


class Refused:
    """The records that were refused, by ordinal. Taking note of one costs the same however many there are."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._queue: list[tuple[float, int]] = []  # a heap of (when it is due, ordinal)
        self._queued: set[int] = set()

    def add(self, ordinal: int, deliveries: int, now_s: float) -> None:
        self._put(ordinal, now_s + self._backoff.delay_s(deliveries))

    def put_back(self, runs: Iterable[tuple[int, int]]) -> None:
        """They were due, and could not be delivered."""
        for start, stop in runs:
            for ordinal in range(start, stop):
                self._put(ordinal, 0.0)

    def _put(self, ordinal: int, due_s: float) -> None:
        if ordinal not in self._queued:
            self._queued.add(ordinal)
            heapq.heappush(self._queue, (due_s, ordinal))

    def take_due(self, now_s: float, at_most: int) -> list[int]:
        """Those whose time has come."""
        ordinals: list[int] = []
        while self._queue and self._queue[0][0] <= now_s and len(ordinals) < at_most:
            ordinals.append(heapq.heappop(self._queue)[1])
        self._queued.difference_update(ordinals)
        return ordinals

    def clear(self) -> None:
        self._queue, self._queued = [], set()
