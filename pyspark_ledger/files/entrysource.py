"""The bytes of an entry file: mapped where they are local, fetched by ranges where they are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.metadata.records import FileRef

FETCH_BYTES = 16 << 20  # how much to ask an object store for at once


def open_source(storage: Storage, path: str, file: FileRef) -> MappedSource | FetchedSource:
    return MappedSource.open(storage, path, file) or FetchedSource(storage, path, file)


class MappedSource:
    """A local file, mapped: pages are read as they are verified, and nothing is copied."""

    def __init__(self, mapped: pa.Buffer) -> None:
        self._mapped = mapped
        self._view = memoryview(mapped)

    @classmethod
    def open(cls, storage: Storage, path: str, file: FileRef) -> MappedSource | None:
        _check_length(storage, path, file)
        mapped = storage.map(path)
        return None if mapped is None else cls(mapped)

    def fetch(self, parts: list[tuple[int, int]]) -> None:
        pass

    def view(self, offset: int, length: int) -> memoryview:
        return self._view[offset : offset + length]

    def arrow_file(self) -> Any:
        return pa.BufferReader(self._mapped)


class FetchedSource:
    """An object: the ranges that are wanted are fetched once, verified, and handed to Arrow from memory."""

    def __init__(self, storage: Storage, path: str, file: FileRef) -> None:
        self._storage, self._path, self._file = storage, path, file
        start = file.length - file.tail_length
        self._tail = (start, memoryview(storage.read(path, start, file.tail_length)))
        self._ranges = [self._tail]

    def fetch(self, parts: list[tuple[int, int]]) -> None:
        self._ranges = [self._tail]
        for offset, length in _coalesce(parts):
            self._ranges.append((offset, memoryview(self._storage.read(self._path, offset, length))))

    def view(self, offset: int, length: int) -> memoryview:
        for start, data in self._ranges:
            if start <= offset and offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        return memoryview(b"")  # missing: its checksum will not match

    def arrow_file(self) -> Any:
        return pa.PythonFile(_SparseFile(self), mode="r")

    @property
    def length(self) -> int:
        return self._file.length


class _SparseFile:
    """The fetched ranges of an object, as the file that Arrow wants to see."""

    closed = False

    def __init__(self, source: FetchedSource) -> None:
        self._source = source
        self._position = 0

    def read(self, size: int = -1) -> memoryview:
        stop = self._source.length if size < 0 else min(self._position + size, self._source.length)
        data = self._source.view(self._position, stop - self._position)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._source.length)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None: ...


def _coalesce(parts: list[tuple[int, int]], gap: int = 1 << 16) -> Iterator[tuple[int, int]]:
    """Fewer, larger requests: an object store charges more for a request than for 64 kB."""
    start = stop = -1
    for offset, length in sorted(part for part in parts if part[1]):
        if start >= 0 and offset <= stop + gap and offset + length - start <= FETCH_BYTES:
            stop = max(stop, offset + length)
            continue
        if start >= 0:
            yield start, stop - start
        start, stop = offset, offset + length
    if start >= 0:
        yield start, stop - start


def _check_length(storage: Storage, path: str, file: FileRef) -> None:
    """Checked before a file is mapped: touching a page past the end of a shortened file would kill the process."""
    size = storage.size(path)
    if size != file.length:
        raise CorruptData(
            f"{storage.where(path)} has {size} bytes, its commit says {file.length}; restore it from a copy"
        )
    if not 0 < file.tail_length <= file.length:
        raise CorruptData(
            f"the commit of {storage.where(path)} says that {file.tail_length} of {file.length} bytes are its tail: "
            "restore the commit from a copy"
        )
