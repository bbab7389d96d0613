"""Walks the tree of index files as verifying needs it: what is damaged is told, and what comes after it is found all
the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.log.index import IndexRow, node_rows
from pyspark_ledger.log.log import View
from pyspark_ledger.metadata.records import FileRef


class Mark(NamedTuple):
    """Where a part of the log begins: its first ledger, and the records before it."""

    ledger: int
    records: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """The leaf of one ledger, and where the next ledger begins."""

    row: IndexRow
    after: Mark


@dataclass(frozen=True, slots=True)
class Node:
    """A node that was read, and is right if ``wrong`` is empty."""

    file: FileRef
    wrong: str
    begin: Mark
    after: Mark


@dataclass(frozen=True, slots=True)
class Broken:
    """A node that cannot be read: what is below it cannot be found."""

    file: FileRef
    error: CorruptData
    begin: Mark | None  # None: only the node itself would have told
    after: Mark


def walk(files: TopicFiles, view: View, first: int) -> Iterator[Leaf | Node | Broken]:
    """All leaves of ledgers from ``first`` on, in order, each node before what is below it. What lies wholly before
    ``first`` was given up, and is not touched."""
    head, after = view.head, begin_of_open(view)
    edge: list[tuple[FileRef, list[IndexRow] | CorruptData, int, Mark]] = []
    for level, file in enumerate(head.index):
        rows = _fetch(files, file)
        edge.append((file, rows, level, after))
        after = _mark(rows[0]) if isinstance(rows, list) and rows else after
    for file, rows, level, following in reversed(edge):
        if isinstance(rows, CorruptData):
            yield Broken(file, rows, None, following)
        else:
            yield from _below(files, file, rows, level, first, None, following)


def begin_of_open(view: View) -> Mark:
    """Where the open ledger begins."""
    commits = view.open_commits
    return Mark(view.head.ledger, commits[0].records_before if commits else view.head.records)


def _below(
    files: TopicFiles, node: FileRef, rows: list[IndexRow], level: int, first: int, said: IndexRow | None, after: Mark
) -> Iterator[Leaf | Node | Broken]:
    """``said`` is what the node above says of this one."""
    begin = _mark(rows[0]) if rows else after
    yield Node(node, _wrong(rows, level, said), begin, after)
    for row, following in zip(rows, [*map(_mark, rows), after][1:], strict=True):
        if following.ledger <= first:
            continue
        if level == 0:
            if row.ledger >= first:
                yield Leaf(row, following)
            continue
        found = _fetch(files, row.file)
        if isinstance(found, CorruptData):
            yield Broken(row.file, found, _mark(row), following)
        else:
            yield from _below(files, row.file, found, level - 1, first, row, following)


def _wrong(rows: list[IndexRow], level: int, said: IndexRow | None) -> str:
    if not rows:
        return "it lists nothing"
    if any(row.level != level for row in rows):
        return f"it lists something of another level than {level}"
    if any(not _follows(a, b) for a, b in pairwise(rows)):
        return "what it lists is not in the order of the log"
    if said is not None and _numbers(rows[0]) != _numbers(said):
        return "it begins with another ledger, or other totals, than the node above it says"
    return ""


def _follows(a: IndexRow, b: IndexRow) -> bool:
    """Ledgers and commits are each there once; times and totals do not go back."""
    counted = a.publish_ms <= b.publish_ms and a.records_before <= b.records_before
    known = a.bytes_before < 0 or b.bytes_before < 0 or a.bytes_before <= b.bytes_before
    return a.ledger < b.ledger and a.first_commit < b.first_commit and counted and known


def _numbers(row: IndexRow) -> tuple[int, ...]:
    return row.ledger, row.first_commit, row.publish_ms, row.records_before


def _mark(row: IndexRow) -> Mark:
    return Mark(row.ledger, row.records_before)


def _fetch(files: TopicFiles, node: FileRef) -> list[IndexRow] | CorruptData:
    try:
        return node_rows(files, node)
    except CorruptData as error:
        return error
