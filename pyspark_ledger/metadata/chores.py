"""Work that a client does in the background, retried until it succeeds.

There are two kinds of such chores. A call that failed because ZooKeeper did not answer cannot clean up after itself at
that moment. And an ephemeral node that was deleted with a lost session has to be recreated while its holder does
something else.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark_ledger.base.clock import Clock
from pyspark_ledger.errors import LedgerError

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 5.0


@dataclass(eq=False)
class Chore:
    """``run`` does the work, perhaps on another thread than the one that added the chore. It returns the seconds until
    it should run again, or None if there is nothing left to do. ``wake`` runs it at once."""

    what: str
    run: Callable[[], float | None]
    chores: Chores
    due: float
    cleans_up: bool = False  # after a call that failed: worth a last try when the client closes
    failures: int = field(default=0)
    woken: bool = field(default=False)  # while it was running: what it has read may be outdated

    def wake(self) -> None:
        self.chores.wake(self)

    def cancel(self) -> None:
        self.chores.cancel(self)


class Chores:
    """The chores of one client. With ``background`` a thread does them; without, whoever calls :meth:`run_all`."""

    def __init__(self, clock: Clock, *, background: bool) -> None:
        self._clock, self._background = clock, background
        self.begin()
        if background:
            _all.add(self)

    def begin(self) -> None:
        """Starts with no chores."""
        self.leftovers: set[bytes] = set()  # ids of holders whose calls failed: their nodes do not count
        self._chores: list[Chore] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(
        self, what: str, run: Callable[[], float | None], after_s: float = 0.0, *, cleans_up: bool = False
    ) -> Chore:
        chore = Chore(what, run, self, self._clock.monotonic() + after_s, cleans_up)
        with self._changed:
            self._chores.append(chore)
            if self._background and not self._closed and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ledger-chores", daemon=True)
                self._thread.start()
            self._changed.notify()
        return chore

    def wake(self, chore: Chore) -> None:
        with self._changed:
            chore.due, chore.woken = self._clock.monotonic(), True
            self._changed.notify()

    def cancel(self, chore: Chore) -> None:
        with self._changed:
            if chore in self._chores:
                self._chores.remove(chore)

    def run_due(self) -> None:
        """Runs every chore whose time has come, once."""
        with self._changed:
            now = self._clock.monotonic()
            due = [chore for chore in self._chores if chore.due <= now]
        for chore in due:
            self._run(chore)

    def run_all(self) -> None:
        """Everything, whether its time has come or not: for tests, where no thread does it."""
        for chore in list(self._chores):
            self._run(chore)

    def _run(self, chore: Chore) -> None:
        chore.woken = False
        try:
            wait_s = chore.run()
            if chore.failures:
                logger.info("%s: done, after %d tries that failed", chore.what, chore.failures)
            chore.failures = 0
        except LedgerError as error:
            wait_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2**chore.failures)
            if not chore.failures:
                logger.warning("%s: not yet, retried in the background until it works: %s", chore.what, error)
            chore.failures += 1
        except Exception:
            logger.exception("%s: given up", chore.what)
            wait_s = None
        with self._changed:
            if wait_s is None:
                self.cancel(chore)
            else:
                chore.due = self._clock.monotonic() + (0.0 if chore.woken else wait_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._closed or not self._chores:
                    self._thread = None
                    return
                wait_s = min(chore.due for chore in self._chores) - self._clock.monotonic()
                if wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
            self.run_due()

    def close(self, *, connected: bool) -> None:
        """Tries once more to clean up, if ZooKeeper is connected. Nodes that are still left are deleted with the
        session."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            left = [chore for chore in self._chores if chore.cleans_up]
        for chore in left if connected else ():
            self._run(chore)


_all: weakref.WeakSet[Chores] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """The parent's session and its nodes are the parent's business, not the forked child's."""
    for chores in list(_all):
        chores.begin()


os.register_at_fork(after_in_child=_after_fork_in_child)
