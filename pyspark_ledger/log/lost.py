"""Damaged entries that somebody has given up by name: readers say exactly what is missing, or go around it.

A damaged entry is not taken out of the log: positions, ordinals and totals stay as they are. The head names a list of
such entries; most topics have none, and then nothing is asked. If a copy of the file turns up, the entry can be taken
off the list again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import DataLoss
from pyspark_ledger.files.topicfiles import RowCodec, TopicFiles
from pyspark_ledger.metadata.records import FileRef, Head


@dataclass(frozen=True, slots=True)
class LostEntry:
    """An entry whose records cannot be read any more."""

    ledger: int
    entry: int
    ordinal: int  # records of the topic before it,
    records: int  # and in it
    file: str  # below the storage root
    since_ms: int  # when it was given up,
    reason: str = ""  # and why, in the words of who did it

    @property
    def first(self) -> Position:
        return Position(self.ledger, self.entry, 0)

    @property
    def end(self) -> Position:
        return Position(self.ledger, self.entry + 1, 0)

    def loss(self, topic: str) -> DataLoss:
        """What to tell who would read it."""
        why = f" ({self.reason})" if self.reason else ""
        return DataLoss(
            f"topic '{topic}': {self.records:,} records from {self.first} up to {self.end} are lost: their file "
            f"{self.file} is damaged, and somebody has given them up{why}",
            "LEDGER_ENTRY_LOST",
        )


@cache  # made when it is first needed: tasks import this module, and have no list
def _rows() -> RowCodec[LostEntry]:
    return RowCodec(LostEntry)


def fetch(files: TopicFiles, head: Head) -> list[LostEntry]:
    """All of them, in order."""
    return files.fetch_records(head.lost, _rows()) if head.lost is not None else []


def stage(files: TopicFiles, lost: Iterable[LostEntry], epoch: int) -> FileRef | None:
    rows = [_rows().dump(each) for each in sorted(lost, key=lambda each: each.first)]
    return files.stage(rows, _rows().schema, epoch) if rows else None


def between(files: TopicFiles, head: Head, start: Position, end: Position) -> list[LostEntry]:
    """Those that a read of [start, end) would meet."""
    return [each for each in fetch(files, head) if each.first < end and start < each.end]


def around(lost: Sequence[LostEntry], start: Position, end: Position) -> Iterator[tuple[Position, Position]]:
    """[start, end) without these, as the parts that are left."""
    for each in lost:
        if start < each.first:
            yield start, each.first
        start = max(start, each.end)
    if start < end:
        yield start, end


def count(lost: Iterable[LostEntry], first: int, stop: int) -> int:
    """How many of the records with ordinals in [first, stop) are lost."""
    overlaps = (min(stop, each.ordinal + each.records) - max(first, each.ordinal) for each in lost)
    return sum(overlap for overlap in overlaps if overlap > 0)


def parts(lost: Iterable[LostEntry], first: int, stop: int) -> Iterator[tuple[int, int]]:
    """The ordinals in [first, stop) without those that are lost."""
    for each in lost:
        if first < min(stop, each.ordinal):
            yield first, min(stop, each.ordinal)
        first = max(first, each.ordinal + each.records)
    if first < stop:
        yield first, stop
