"""The bytes of an entry file: mapped where they are local, fetched by ranges where they are not."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from pyspark_ledger.base.limits import MOST_TAIL_BYTES
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files.storage import Opened, Storage
from pyspark_ledger.metadata.records import FileRef

Part = tuple[int, int]  # of a file: offset and length

FETCH_BYTES = 8 << 20  # how much to ask an object store for at once
AHEAD = 4  # and how many such requests go out before their answers are needed
_GAP = 1 << 19  # bytes that nobody wants are fetched too, where that takes less than another request


def open_source(storage: Storage, path: str, file: FileRef) -> MappedSource | FetchedSource:
    opened = storage.open(path)
    _check_length(storage, path, file, opened.length)
    mapped = storage.map(path)
    if mapped is None and file.length <= storage.whole_bytes:
        mapped = opened.read(0, file.length)
    return FetchedSource(storage, opened, file) if mapped is None else MappedSource(mapped)


class MappedSource:
    """A file that is in memory as a whole. A local one is mapped: pages are read as they are verified, and nothing is
    copied."""

    def __init__(self, mapped: pa.Buffer) -> None:
        self._mapped = mapped
        self._view = memoryview(mapped)

    def expect(self, parts: Iterable[Part]) -> None:
        pass

    def fetch(self, parts: Sequence[Part]) -> None:
        pass

    def view(self, offset: int, length: int) -> memoryview:
        return self._view[offset : offset + length]

    def arrow_file(self) -> Any:
        return pa.BufferReader(self._mapped)


class FetchedSource:
    """An object: the parts that are wanted are fetched once, some at a time and some ahead, verified, and handed to
    Arrow from memory."""

    def __init__(self, storage: Storage, opened: Opened, file: FileRef) -> None:
        self._storage, self._opened, self._file = storage, opened, file
        start = file.length - file.tail_length
        self._tail = (start, memoryview(opened.read(start, file.tail_length)))
        self._ranges = [self._tail]  # what was fetched and is wanted now
        self._plan: list[Part] = []  # what will be asked for, in the order of the file
        self._starts: list[int] = []
        self._begun: dict[int, Callable[[], pa.Buffer]] = {}  # by number in the plan: requests that are under way,
        self._here: dict[int, memoryview] = {}  # and their answers

    def expect(self, parts: Iterable[Part]) -> None:
        """All that will be wanted from now on. Requests for the first of it go out."""
        self._plan = list(_coalesce(parts))
        self._starts = [start for start, _ in self._plan]
        self._begun, self._here = {}, {}
        self._begin(0)

    def fetch(self, parts: Sequence[Part]) -> None:
        """These are wanted now, and of what was fetched before only what they share with them."""
        needed = self._needed(parts)
        if needed is None:  # nobody said so before
            self.expect(parts)
            needed = self._needed(parts) or []
        self._here = {number: self._here[number] for number in needed if number in self._here}
        if needed:
            self._begin(needed[-1] + 1)
        for number in needed:
            if number not in self._here:
                wait = self._begun.pop(number, None) or self._request(number)
                self._here[number] = memoryview(wait())
        self._ranges = [self._tail, *((self._starts[number], data) for number, data in self._here.items())]

    def _begin(self, first: int) -> None:
        for number in range(first, min(first + AHEAD, len(self._plan))):
            if number not in self._begun and number not in self._here:
                self._begun[number] = self._request(number)

    def _request(self, number: int) -> Callable[[], pa.Buffer]:
        start, length = self._plan[number]
        return self._storage.begin(lambda: self._opened.read(start, length))

    def _needed(self, parts: Sequence[Part]) -> list[int] | None:
        """The numbers of what is planned that has these parts, in order; None if some are not planned."""
        numbers = set()
        for offset, length in parts:
            if length:
                number = bisect_right(self._starts, offset) - 1
                if number < 0 or offset + length > sum(self._plan[number]):
                    return None
                numbers.add(number)
        return sorted(numbers)

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


def _coalesce(parts: Iterable[Part]) -> Iterator[Part]:
    """Fewer, larger requests. Each part is in one of them as a whole."""
    start = stop = -1
    for offset, length in sorted(part for part in parts if part[1]):
        if start >= 0 and offset <= stop + _GAP and offset + length - start <= FETCH_BYTES:
            stop = max(stop, offset + length)
            continue
        if start >= 0:
            yield start, stop - start
        start, stop = offset, offset + length
    if start >= 0:
        yield start, stop - start


def _check_length(storage: Storage, path: str, file: FileRef, size: int) -> None:
    """Checked before a file is mapped: touching a page past the end of a shortened file would kill the process."""
    if size != file.length:
        raise CorruptData(
            f"{storage.where(path)} has {size} bytes, its commit says {file.length}; restore it from a copy"
        )
    if not 0 < file.tail_length <= file.length:
        raise CorruptData(
            f"the commit of {storage.where(path)} says that {file.tail_length} of {file.length} bytes are its tail: "
            "restore the commit from a copy"
        )
    if file.tail_length > MOST_TAIL_BYTES:
        raise CorruptData(
            f"the commit of {storage.where(path)} says that its tail has {file.tail_length} bytes, and none has more "
            f"than {MOST_TAIL_BYTES}: restore the commit from a copy"
        )
