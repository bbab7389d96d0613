"""What becomes of producers when their process forks, and when it ends."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Protocol

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Deadline

EXIT_S = 10.0  # how long a process that ends waits at most, for all of its producers


class Leaving(Protocol):
    def forked(self) -> None:
        """Called in the child of the producer's process. Locks may be held by threads that are not here."""
        ...

    def process_ends(self, deadline: Deadline) -> None:
        """Stores what waits, or says what is lost."""
        ...


class _Known:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._producers: weakref.WeakSet[Leaving] = weakref.WeakSet()

    def add(self, producer: Leaving) -> None:
        with self._lock:
            self._producers.add(producer)

    def all(self) -> list[Leaving]:
        with self._lock:
            return list(self._producers)

    def forked(self) -> None:
        self._lock = threading.Lock()
        for producer in self.all():
            producer.forked()


_known = _Known()


def remember(producer: Leaving) -> None:
    """To be called for every producer."""
    _known.add(producer)


def is_needed_at_exit() -> None:
    """To be called when a producer begins to store records in the background. What is registered last is called first:
    the connection to ZooKeeper, which was made before, is closed after this."""
    atexit.unregister(_process_ends)
    atexit.register(_process_ends)


def _process_ends() -> None:
    deadline = Deadline(SYSTEM_CLOCK, EXIT_S)
    for producer in _known.all():
        producer.process_ends(deadline)


atexit.register(_process_ends)
os.register_at_fork(after_in_child=_known.forked)
