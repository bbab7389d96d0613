"""Who may use a producer's log at this moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from pyspark_ledger.append.receipt import Receipt, tell


class Hold:
    """Who has it stores parts: only that thread uses the log. Those who wait for a receipt are told when it was
    given back, so that they may flush, or wait for another one, in what they do then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.told: list[Receipt] = []

    @contextmanager
    def within(self, timeout_s: float) -> Iterator[bool]:
        """Whether it was free in time."""
        if not self._lock.acquire(timeout=timeout_s):
            yield False
            return
        try:
            yield True
        finally:
            self.__exit__(None, None, None)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        told, self.told = self.told, []
        self._lock.release()
        tell(told)
