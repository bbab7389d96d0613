"""Who changed what: a line before each change, and one with what became of it.

The first line is written, and synced, before anything happens: what cannot be noted is not done.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark_ledger.base.clock import Clock
from pyspark_ledger.errors import LedgerError, disk_errors

logger = logging.getLogger(__name__)


class AuditLog:
    """To a file, if there is one, and to the logger ``pyspark_ledger.console.audit``."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path, self._clock, self._lock = path, clock, threading.Lock()
        if path is not None:
            with disk_errors("write", path, otherwise="choose another file with --audit-log"):
                os.close(self._open())

    @contextmanager
    def change(self, who: str, what: str, about: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Around a change. What is put into the yielded dict is what became of it."""
        id, result = self._clock.new_id().hex(), dict[str, Any]()
        line = {"id": id, "who": who, "change": what, **about}
        self._note({**line, "outcome": "begins"})
        try:
            yield result
        except BaseException as error:
            code = error.code if isinstance(error, LedgerError) else type(error).__name__
            message = error.message if isinstance(error, LedgerError) else str(error)
            self._note({**line, "outcome": "failed", "code": code, "error": message})
            raise
        self._note({**line, "outcome": "done", **result})

    def _note(self, line: dict[str, Any]) -> None:
        moment = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        text = json.dumps({"time": moment, **line}, ensure_ascii=True, default=str)
        if self._path is not None:
            with self._lock, disk_errors("write", self._path, otherwise="the audit log must be writable"):
                file = self._open()
                try:
                    os.write(file, f"{text}\n".encode())
                    os.fsync(file)
                finally:
                    os.close(file)
        logger.info("audit %s", text)

    def _open(self) -> int:
        """Anew for each line: who rotates logs may move the file."""
        assert self._path is not None
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
