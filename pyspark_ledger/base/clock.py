"""The only module that reads the clock, sleeps, or draws random numbers.

Everything else takes a :class:`Clock`, so that a test can replay any history from a seed.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from typing import Protocol

from pyspark_ledger.base import names


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch: for publish times."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: for deadlines."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Until the event is set, but not longer than ``seconds``."""
        ...

    def new_id(self) -> bytes:
        """16 bytes that nobody else draws."""
        ...

    def jitter(self, seconds: float) -> float:
        """A random share of ``seconds``."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> None:
        event.wait(seconds)

    def new_id(self) -> bytes:
        return uuid.uuid4().bytes

    def jitter(self, seconds: float) -> float:
        return random.uniform(0.0, seconds)


class LedgerClock:
    """A clock whose ids carry a ledger: for the files that a rewritten ledger consists of."""

    def __init__(self, clock: Clock, ledger: int) -> None:
        self._ledger = ledger
        self._clock = clock
        self.now_ms, self.monotonic = clock.now_ms, clock.monotonic
        self.sleep, self.wait, self.jitter = clock.sleep, clock.wait, clock.jitter

    def new_id(self) -> bytes:
        return names.id_with_ledger(self._clock.new_id(), self._ledger)


class Deadline:
    """A point in time after which waiting ends."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.monotonic() + seconds

    @property
    def remaining(self) -> float:
        return max(0.0, self._end - self._clock.monotonic())

    @property
    def passed(self) -> bool:
        return self.remaining <= 0.0


SYSTEM_CLOCK = SystemClock()
