"""Copies files from one storage to another, many at a time, and reads every copy back.

Files are never changed and have unique names: so a file that is there with the same content is done, whoever copied it,
and a run that was interrupted is simply begun again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import xxhash

from pyspark_ledger.errors import CorruptData, Unavailable
from pyspark_ledger.files.storage import LocalStorage, Storage

_PART_BYTES = 8 << 20  # in memory, for each file that is being copied
_AT_ONCE = 256  # files that are handed to the threads together
_OBJECT_THREADS = 16  # where most of the time is spent waiting
_LOCAL_THREADS = 4

Copied = Callable[[int], None]  # told how many files are done


class Copies:
    """What has been copied so far, by one run.

    Attributes:
        done: paths of the files that are in both storages, and the same.
        copied: how many of them this run has copied.
        copied_bytes: and how long those are.
        vanished: files that were deleted while they were copied, as garbage is.
    """

    def __init__(
        self, source: Storage, target: Storage, *, trust_existing: bool = False, told: Copied = lambda _: None
    ) -> None:
        self._source, self._target, self._trust, self._told = source, target, trust_existing, told
        self._lock = threading.Lock()
        self.done: set[str] = set()
        self.copied = self.copied_bytes = self.vanished = 0

    def folder(self, folder: str) -> None:
        """Copies what is below a folder and not copied yet."""
        there = dict(self._target.sizes(folder))
        new = ((path, size) for path, size in self._source.sizes(folder) if path not in self.done)
        self._all((path, size, there.get(path)) for path, size in new)

    def files(self, paths: Iterable[str]) -> None:
        """Copies single files, which a listing may not have shown yet."""
        self._all((path, size, self._size_of_copy(path)) for path, size in self._found(paths))

    def _found(self, paths: Iterable[str]) -> Iterator[tuple[str, int]]:
        for path in paths:
            if path not in self.done:
                with contextlib.suppress(CorruptData):
                    yield path, self._source.size(path)

    def _size_of_copy(self, path: str) -> int | None:
        try:
            return self._target.size(path)
        except CorruptData:
            return None

    def _all(self, files: Iterator[tuple[str, int, int | None]]) -> None:
        is_local = isinstance(self._source, LocalStorage) and isinstance(self._target, LocalStorage)
        with ThreadPoolExecutor(_LOCAL_THREADS if is_local else _OBJECT_THREADS) as pool:
            while some := list(islice(files, _AT_ONCE)):  # a million at once would take a lot of memory
                for _ in pool.map(self._one, some):
                    pass
                self._told(len(self.done))

    def _one(self, file: tuple[str, int, int | None]) -> None:
        path, size, there = file
        try:
            if there != size or not (self._trust or self._is_same(path)):
                if there is not None:
                    self._target.delete(path)
                self._copy(path, size)
                with self._lock:
                    self.copied, self.copied_bytes = self.copied + 1, self.copied_bytes + size
        except _Vanished:
            with self._lock:
                self.vanished += 1
            return
        with self._lock:
            self.done.add(path)

    def _is_same(self, path: str) -> bool:
        return _digest(self._parts_of_source(path)) == _digest(_parts(self._target, path))

    def _copy(self, path: str, size: int) -> None:
        sink, digest, length = self._target.create(path), xxhash.xxh3_128(), 0
        try:
            for part in self._parts_of_source(path):
                sink.write(part)
                digest.update(part)
                length += len(part)
        except BaseException:
            sink.abandon()
            with contextlib.suppress(Unavailable):
                self._target.delete(path)
            raise
        sink.close()
        if length != size or _digest(_parts(self._target, path)) != digest.digest():
            raise Unavailable(
                f"{self._target.where(path)} was copied and read back, and is not the same as "
                f"{self._source.where(path)}: run it again, or use another storage",
                "LEDGER_STORAGE_UNAVAILABLE",
            )

    def _parts_of_source(self, path: str) -> Iterator[bytes]:
        try:
            yield from _parts(self._source, path)
        except CorruptData as error:
            if error.code != "LEDGER_FILE_MISSING":
                raise
            raise _Vanished from None


class _Vanished(Exception):
    """A file was deleted while it was copied."""


def _parts(storage: Storage, path: str) -> Iterator[bytes]:
    offset = 0
    while True:
        part = storage.read(path, offset, _PART_BYTES).to_pybytes()
        yield part
        offset += len(part)
        if len(part) < _PART_BYTES:
            return


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return bytes(digest.digest())
