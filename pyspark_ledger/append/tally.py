"""What this process's writers did while they shared topics with other writers: counted for metrics."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace


@dataclass(slots=True)
class Tally:
    """Of one topic, since the process began."""

    turns: int = 0  # commits that were made in turn, with or for others
    combined: int = 0  # commits of others that were taken along
    waits: int = 0  # appends that waited for their turn
    waited_s: float = 0.0  # all of them together


_lock = threading.Lock()
_tallies: dict[str, Tally] = {}


def add(topic: str, *, turns: int = 0, combined: int = 0, waited_s: float | None = None) -> None:
    """``waited_s``: how long an append has waited, if it did."""
    with _lock:
        tally = _tallies.setdefault(topic, Tally())
        tally.turns += turns
        tally.combined += combined
        if waited_s is not None:
            tally.waits += 1
            tally.waited_s += waited_s


def tallies() -> dict[str, Tally]:
    """By topic: those for which a writer of this process has waited, or committed in turn."""
    with _lock:
        return {topic: replace(tally) for topic, tally in _tallies.items()}


def _after_fork_in_child() -> None:
    """A child counts its own."""
    global _lock
    _lock = threading.Lock()
    _tallies.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
