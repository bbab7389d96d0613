"""Pid files of processes in the background."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Deadline
from pyspark_ledger.errors import InvalidInput, disk_errors

_NOT_STARTED = "LEDGER_ZOOKEEPER_NOT_STARTED"


@contextlib.contextmanager
def held(path: str | Path | None) -> Iterator[None]:
    """Holds this process's id, and is locked while the process lives: a pid alone may belong to another process by
    now."""
    if path is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        with disk_errors("write", path, _NOT_STARTED):
            file = stack.enter_context(open(path, "a+"))
        deadline = Deadline(SYSTEM_CLOCK, 1.0)  # somebody may be looking at this moment
        while not lock(file, fcntl.LOCK_EX):
            if deadline.passed:
                raise InvalidInput(f"another process holds {path}", "LEDGER_FOLDER_IN_USE")
            SYSTEM_CLOCK.sleep(0.02)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def running_pid(path: Path) -> int | None:
    """The process that a pid file names, if it lives."""
    if not path.exists():
        return None
    with path.open() as file:
        return None if lock(file, fcntl.LOCK_SH) else int(file.read() or 0) or None


def lock(file: IO[Any], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
