"""How much maintenance reads and writes in a second, so that it leaves the storage to others."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_ledger.base.clock import Clock

Wait = Callable[[float], None]  # so many seconds; raises if there is no time to wait
Progress = Callable[[str, int, int], None]  # phase, how much is done, of how much

_BURST_S = 1.0  # what was not used for so long may be used at once


class Bucket:
    """A token bucket: who takes more than there is waits until it would have been there."""

    def __init__(self, clock: Clock, per_second: float | None, wait: Wait) -> None:
        self._clock, self._rate, self._wait = clock, per_second, wait
        self._left = 0.0
        self._at = clock.monotonic()

    def take(self, amount: float) -> None:
        if self._rate is None:
            return
        now = self._clock.monotonic()
        self._left = min(self._rate * _BURST_S, self._left + (now - self._at) * self._rate) - amount
        self._at = now
        if self._left < 0:
            self._wait(-self._left / self._rate)


class Pace:
    """Limits on bytes that are read and written. ``wait`` is also called with 0: it is the place to stop."""

    def __init__(self, clock: Clock, wait: Wait, read_rate: float | None = None, write_rate: float | None = None):
        self._wait = wait
        self._reading, self._writing = Bucket(clock, read_rate, wait), Bucket(clock, write_rate, wait)

    def step(self, *_: object) -> None:
        """Between two steps of some work: as a progress callback of work that is not paced."""
        self._wait(0.0)

    def of_bytes(self) -> Progress:
        """Progress of work that counts bytes that it reads, and writes about as many."""
        done = 0

        def report(_phase: str, read: int, _total: int) -> None:
            nonlocal done
            new, done = max(0, read - done), read
            self._reading.take(new)
            self._writing.take(new)
            self._wait(0.0)

        return report

    def of_rows(self, bytes_per_row: float) -> Progress:
        """Progress of work that counts rows: of each phase what is new since the last call is reckoned in bytes."""
        done: dict[str, int] = {}

        def report(phase: str, rows: int, _total: int) -> None:
            new = max(0, rows - done.get(phase, 0))
            done[phase] = rows
            (self._writing if phase == "writing" else self._reading).take(new * bytes_per_row)
            self._wait(0.0)

        return report
