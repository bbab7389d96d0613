"""Files that are only held in memory: for parsers, which are given the bytes of a file and need no disk."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pyspark_ledger.errors import disk_errors
from pyspark_ledger.files.storage import Sink, Storage


class HeldStorage(Storage):
    """Every path has the same bytes. ``mapped``: as in a local folder; otherwise as in an object store."""

    def __init__(self, data: bytes, *, mapped: bool) -> None:
        super().__init__("memory://held")
        self._data, self._mapped = data, mapped

    def size(self, path: str) -> int:
        return len(self._data)

    def read(self, path: str, offset: int, length: int) -> pa.Buffer:
        """As an object store answers: what there is of the range, and an error for one that begins nowhere."""
        with disk_errors("read", path):
            if offset < 0 or length < 0:
                raise OSError("no such range")
        return pa.py_buffer(self._data[offset : offset + length])

    def map(self, path: str) -> pa.Buffer | None:
        return pa.py_buffer(self._data) if self._mapped else None

    def _is_marked(self) -> bool:
        return True

    def create(self, path: str) -> Sink:
        raise NotImplementedError

    def list(self, folder: str) -> Iterator[str]:
        return iter(())

    def delete(self, path: str) -> None:
        raise NotImplementedError
