"""What belongs to one process only: a forked child has a copy of it, and must not use it."""

from __future__ import annotations

import os

from pyspark_ledger.errors import InvalidInput


class OneProcess:
    """Made where the thing is made; :meth:`check` is called before anything is done with it, and before its lock is
    taken: in a child, the thread that would release it is not there."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_another(self) -> bool:
        return os.getpid() != self._pid

    def check(self, what: str) -> None:
        """``what``: as in "this consumer"."""
        if self.is_another:
            raise InvalidInput(
                f"{what} belongs to process {self._pid}, from which this one was forked, and is used there: make "
                "another one in this process",
                "LEDGER_FORKED",
            )
