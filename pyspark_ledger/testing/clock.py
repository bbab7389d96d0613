"""A clock for tests: any history replays from its seed."""

from __future__ import annotations

import random
import threading


class SeededClock:
    """A clock that moves only when told to, and ids that follow from a seed."""

    def __init__(self, seed: int = 0, start_ms: int = 1_700_000_000_000) -> None:
        self._random = random.Random(seed)
        self._ms = float(start_ms)

    def now_ms(self) -> int:
        return int(self._ms)

    def monotonic(self) -> float:
        return self._ms / 1000.0

    def sleep(self, seconds: float) -> None:
        self._ms += seconds * 1000.0

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Nobody else acts meanwhile."""
        if not event.is_set():
            self.sleep(seconds)

    def new_id(self) -> bytes:
        return self._random.randbytes(16)

    def jitter(self, seconds: float) -> float:
        return self._random.uniform(0.0, seconds)
