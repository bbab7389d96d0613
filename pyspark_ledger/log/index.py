"""The tree of immutable index files over sealed ledgers.

A *leaf* lists the commits of one sealed ledger. A *node* of level 1 lists up to a thousand leaves, of level
2 up to a thousand nodes of level 1, and so on. The head names the right edge of the tree, the *spine*: the
node of each level that still has room. Sealing a ledger writes one leaf and, almost always, one node.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from pyspark_ledger.files.topicfiles import RowCodec, TopicFiles
from pyspark_ledger.metadata.records import Commit, FileRef


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A row of an index file: one leaf (level 0) or node, and the first commit below it."""

    level: int
    ledger: int
    first_commit: int
    publish_ms: int
    records_before: int
    file: FileRef


# Made when they are first needed: tasks import this module and never read an index.
@cache
def _commit_rows() -> RowCodec[Commit]:
    return RowCodec(Commit)


@cache
def _index_rows() -> RowCodec[IndexRow]:
    return RowCodec(IndexRow)


class Index:
    """The sealed part of a topic, as of one head."""

    def __init__(self, files: TopicFiles, spine: tuple[FileRef, ...]) -> None:
        self._files = files
        self._spine = spine

    def leaves(self, key: Callable[[IndexRow], int], value: int) -> Iterator[IndexRow]:
        """From the last leaf whose ``key`` is <= value (or the first leaf) to the end, in order."""
        rows = [row for ref in reversed(self._spine) for row in self._rows(ref)]
        yield from self._walk(rows, key, value)

    def commits(self, leaf: IndexRow) -> list[Commit]:
        return self._files.fetch_records(leaf.file, _commit_rows())

    def references(self, first_commit: int) -> Iterator[FileRef]:
        """Every file of the tree that is on the way to this commit or a later one."""
        yield from self._spine
        rows = [row for ref in reversed(self._spine) for row in self._rows(ref)]
        yield from self._references(rows, first_commit)

    def _references(self, rows: list[IndexRow], first_commit: int) -> Iterator[FileRef]:
        for row in rows[max(0, bisect_right(rows, first_commit, key=lambda row: row.first_commit) - 1) :]:
            yield row.file
            if row.level > 0:
                yield from self._references(self._rows(row.file), first_commit)

    def _walk(self, rows: list[IndexRow], key: Callable[[IndexRow], int], value: int) -> Iterator[IndexRow]:
        first = max(0, bisect_right(rows, value, key=key) - 1)
        for row in rows[first:]:
            if row.level == 0:
                yield row
            else:
                yield from self._walk(self._rows(row.file), key, value)

    def _rows(self, ref: FileRef) -> list[IndexRow]:
        return self._files.fetch_records(ref, _index_rows())

    def extended(self, leaf: IndexRow, epoch: int, fanout: int) -> tuple[FileRef, ...]:
        """Stages the files of a tree that has one more leaf, and returns its spine. This tree is not changed."""
        return self._extend(self._spine, 0, leaf, epoch, fanout)

    def _extend(
        self, spine: tuple[FileRef, ...], level: int, row: IndexRow, epoch: int, fanout: int
    ) -> tuple[FileRef, ...]:
        if level == len(spine):
            return (*spine, self._stage([row], epoch))
        rows = self._rows(spine[level])
        if len(rows) < fanout:
            return (*spine[:level], self._stage([*rows, row], epoch), *spine[level + 1 :])
        first = rows[0]
        full = IndexRow(
            level + 1, first.ledger, first.first_commit, first.publish_ms, first.records_before, spine[level]
        )
        taller = self._extend(spine, level + 1, full, epoch, fanout)
        return (*taller[:level], self._stage([row], epoch), *taller[level + 1 :])

    def _stage(self, rows: list[IndexRow], epoch: int) -> FileRef:
        stored = _index_rows()
        return self._files.stage([stored.dump(row) for row in rows], stored.schema, epoch)


def stage_leaf(files: TopicFiles, commits: list[Commit], epoch: int) -> IndexRow:
    first, rows = commits[0], _commit_rows()
    file = files.stage([rows.dump(commit) for commit in commits], rows.schema, epoch)
    return IndexRow(0, first.ledger, first.number, first.publish_ms, first.records_before, file)
