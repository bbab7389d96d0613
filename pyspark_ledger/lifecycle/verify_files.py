"""Looks at files: whether they are there with their length, and whether they are what was written. Several at a time,
because in an object store most of the time is spent waiting."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa
import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import EntryReader
from pyspark_ledger.lifecycle.findings import NO_RECORDS, Finding, Span, finding, from_error
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.records import FileRef

T = TypeVar("T")
_ALL = 1 << 62
_HASHES = 1 << 64


class Files:
    """The files of one topic. ``sample``: the share of the files with records whose bytes are read; of the others only
    the length is checked."""

    def __init__(self, log: Log, sample: float) -> None:
        self._log, self._sample, self._salt = log, sample, log.clock.new_id()
        self.looked_at = self.read = self.bytes_read = 0
        self._counting = threading.Lock()
        self.named = Named()
        self.is_blind = False  # a file that names others cannot be read: what those are is not known

    def _count(self, file: FileRef, *, read: bool) -> None:
        with self._counting:
            self.looked_at += 1
            self.read += read
            self.bytes_read += file.length if read else 0

    def where(self, file: FileRef) -> str:
        return self._log.storage.where(names.staged_file(self._log.topic.uuid, file.epoch, file.uid))

    def in_parallel(self, look: Callable[[T], list[Finding]], things: Sequence[T]) -> Iterator[Finding]:
        threads = self._log.limits.verify_threads
        if threads <= 1 or len(things) <= 1:
            for thing in things:
                yield from look(thing)
            return
        with ThreadPoolExecutor(min(threads, len(things)), "ledger-verify") as pool:
            for found in pool.map(look, things):
                yield from found

    def table(self, file: FileRef, of: str, load: Callable[[FileRef], T], span: Span = NO_RECORDS) -> T | Finding:
        """A file that is read whole, as what ``load`` makes of it."""
        self.named.add(file)
        self._count(file, read=True)
        try:
            return load(file)
        except CorruptData as error:
            self.is_blind = True
            return from_error(error, span, self.where(file), of)

    def is_chosen(self, file: FileRef) -> bool:
        return xxhash.xxh3_64_intdigest(self._salt + file.uid) < self._sample * _HASHES

    def with_rows(
        self, file: FileRef, rows: int, schema: pa.Schema | None, of: str, span: Span, first: int | None = None
    ) -> list[Finding]:
        """A file with records: an entry's, one that many entries share, or a compacted one; or so many rows of it, from
        the ``first`` one on."""
        self.named.add(file)
        is_chosen = self.is_chosen(file)
        self._count(file, read=is_chosen)
        try:
            if not is_chosen:
                self._check_length(file)
                return []
            reader = EntryReader(self._log.storage, self._log.topic.uuid, file)
            start, stop = (0, _ALL) if first is None else (first, first + rows)
            found = sum(batch.num_rows for _, batch in reader.batches(start, stop))
        except (CorruptData, InvalidInput) as error:
            return [from_error(error, span, self.where(file), of)]
        wrong = [f"it has {found} rows, and should have {rows}"] if found != rows else []
        wrong += [] if schema is None else _unfit(reader.schema, schema)
        return [finding("inconsistent", f"{of}: {self.where(file)}: {each}", span, self.where(file)) for each in wrong]

    def check_there(self, file: FileRef, of: str, span: Span = NO_RECORDS) -> list[Finding]:
        """Only whether it is there with its length."""
        self.named.add(file)
        self._count(file, read=False)
        try:
            self._check_length(file)
        except CorruptData as error:
            return [from_error(error, span, self.where(file), of)]
        return []

    def _check_length(self, file: FileRef) -> None:
        size = self._log.storage.size(names.staged_file(self._log.topic.uuid, file.epoch, file.uid))
        if size != file.length:
            raise CorruptData(f"{self.where(file)} has {size} bytes, and {file.length} were written")


def _unfit(stored: pa.Schema, topic: pa.Schema) -> Iterator[str]:
    """Columns of a file that the topic does not have, or has with another type."""
    for field in stored:
        if field.name in schemas.HIDDEN.names:
            continue
        if field.name not in topic.names:
            yield f"it has a column '{field.name}', and its topic has none"
        elif not schemas.fits(topic.field(field.name).type, field.type):
            yield f"its column '{field.name}' is {field.type}, and in its topic {topic.field(field.name).type}"


class Named:
    """Which files are named: eight bytes of each, so that a million need little memory."""

    def __init__(self) -> None:
        self._ids = array("Q")

    def add(self, file: FileRef) -> None:
        self._ids.append(_short(file.uid))

    def sorted(self) -> array[int]:
        ids = pa.array(self._ids, pa.uint64()).sort() if len(self._ids) else None
        return array("Q") if ids is None else array("Q", ids.buffers()[1].slice(0, 8 * len(ids)).to_pybytes())


def _short(uid: bytes) -> int:
    return int.from_bytes(uid[:8])


def is_in(ids: array[int], uid: bytes) -> bool:
    """Whether a file is among those of :meth:`Named.sorted`."""
    short = _short(uid)
    at = bisect_left(ids, short)
    return at < len(ids) and ids[at] == short
