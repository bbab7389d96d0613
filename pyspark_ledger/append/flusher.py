"""A thread that does something when its time has come, and is not there when nothing has to be done."""

from __future__ import annotations

import threading
from collections.abc import Callable

IDLE_S = 5.0  # a thread that nobody has needed for so long ends, and lets go of its producer


class Flusher:
    """``due``, called under the lock, says in how many seconds there is something to do; None: nothing waits. ``work``
    does it, and raises nothing. ``wake`` is called under the lock too, when ``due`` may have an earlier answer."""

    def __init__(
        self, name: str, lock: threading.Lock, due: Callable[[], float | None], work: Callable[[], None]
    ) -> None:
        self._name, self._lock, self._due, self._work = name, lock, due, work
        self._woken = threading.Condition(lock)
        self.thread: threading.Thread | None = None

    @property
    def is_me(self) -> bool:
        """Whether this is called by the thread itself."""
        return self.thread is threading.current_thread()

    def start(self) -> None:
        if self.thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()  # it waits for the lock, which the caller has
            self.thread = thread

    def wake(self) -> None:
        self.start()
        self._woken.notify()

    def _run(self) -> None:
        try:
            while self._wait():
                self._work()
        except BaseException:
            self.thread = None  # what still waits is found by the next one
            raise

    def _wait(self) -> bool:
        """Returns when there is something to do; False if there has been nothing for a while."""
        with self._lock:
            while True:
                wait_s = self._due()
                if wait_s is None:
                    if not self._woken.wait(IDLE_S) and self._due() is None:
                        self.thread = None  # under the lock: whoever comes next starts another one
                        return False
                elif wait_s <= 0:
                    return True
                else:
                    self._woken.wait(wait_s)
