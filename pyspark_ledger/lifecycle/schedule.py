"""When maintenance does what: at intervals, not all at once, and less and less often what fails."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from pyspark_ledger.base.clock import Clock

_JITTER = 0.2  # of an interval: so that two actions, and two namespaces on one ensemble, drift apart


class Interval:
    """Comes round again and again; for the first time at once."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self.seconds = clock, seconds
        self._next = clock.monotonic()

    @property
    def remaining(self) -> float:
        return max(0.0, self._next - self._clock.monotonic())

    def done(self) -> None:
        """Counted from the end of the work, so that work that takes long leaves time for other work."""
        self._next = self._clock.monotonic() + self.seconds + self._clock.jitter(_JITTER * self.seconds)


@dataclass
class _Failure:
    what: str
    times: int
    again: float


class Failures:
    """What has failed, and when it is tried again: each time after twice as long, up to ``longest_s``."""

    def __init__(self, clock: Clock, longest_s: float) -> None:
        self._clock, self._longest_s = clock, longest_s
        self._found: dict[tuple[str, str], _Failure] = {}

    def failed(self, action: str, topic: str, what: str, first_s: float) -> bool:
        """Whether this says something that was not known."""
        before = self._found.get((action, topic))
        times = before.times + 1 if before is not None else 1
        wait_s = min(self._longest_s, first_s * 2.0 ** min(times, 30))
        again = self._clock.monotonic() + wait_s + self._clock.jitter(_JITTER * wait_s)
        self._found[action, topic] = _Failure(what, times, again)
        return before is None or before.what != what

    def succeeded(self, action: str, topic: str) -> bool:
        """Whether it had failed before."""
        return self._found.pop((action, topic), None) is not None

    def is_waiting(self, action: str, topic: str) -> bool:
        found = self._found.get((action, topic))
        return found is not None and self._clock.monotonic() < found.again

    def count(self, action: str) -> int:
        """How many topics fail."""
        return len(self.of(action))

    def of(self, action: str) -> list[str]:
        """The topics that fail."""
        return [topic for failing, topic in self._found if failing == action]

    def forget_all_but(self, topics: set[str], actions: Container[str]) -> None:
        """Those that were deleted fail no more, whatever was done with them by these actions."""
        self._found = {key: found for key, found in self._found.items() if key[1] in topics or key[0] not in actions}
