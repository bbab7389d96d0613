"""The tree of immutable index files over sealed ledgers.

A *leaf* lists the commits of one sealed ledger. A *node* of level 1 lists up to a thousand leaves, of level
2 up to a thousand nodes of level 1, and so on. The head names the right edge of the tree, the *spine*: the
node of each level that still has room. Sealing a ledger writes one leaf and, almost always, one node.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files.topicfiles import RowCodec, TopicFiles
from pyspark_ledger.log.pieces import pieces_of_leaf
from pyspark_ledger.log.slices import LogSlice
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
    bytes_before: int = -1  # -1: of a file from before this was noted
    tokens_before: int = -1  # the same


_NO_LEDGER = 1 << 62  # comes after all that there are


# Made when they are first needed: tasks import this module and never read an index.
@cache
def _commit_rows() -> RowCodec[Commit]:
    return RowCodec(Commit)


@cache
def _index_rows() -> RowCodec[IndexRow]:
    return RowCodec(IndexRow)


class Index:
    """The sealed part of a topic, as of one head. Ledgers before ``first`` were given up: no walk touches what is left
    of them, because their files may be gone."""

    def __init__(self, files: TopicFiles, spine: tuple[FileRef, ...], first: int = 0) -> None:
        self._files = files
        self._spine = spine
        self._first = first

    @property
    def _top(self) -> list[IndexRow]:
        return [row for ref in reversed(self._spine) for row in self._rows(ref)]

    def leaves(self, key: Callable[[IndexRow], int], value: int) -> Iterator[IndexRow]:
        """From the last leaf whose ``key`` is <= value (or the first leaf) to the end, in order."""
        for leaf in self._walk(self._top, key, value):
            if leaf.ledger >= self._first:
                yield leaf

    def newest_first(self) -> Iterator[IndexRow]:
        """All leaves, the last one first. Lazy: reads a node only when its leaves are wanted."""
        yield from self._backwards(self._top)

    def _backwards(self, rows: list[IndexRow]) -> Iterator[IndexRow]:
        for row in reversed(self._from(rows, lambda row: row.ledger, self._first)):
            if row.level > 0:
                yield from self._backwards(self._rows(row.file))
            elif row.ledger >= self._first:
                yield row

    def leaf(self, ledger: int) -> IndexRow | None:
        """The leaf of one ledger; None if the ledger is not sealed, or was given up."""
        found = next(self.leaves(lambda row: row.ledger, ledger), None)
        return found if found is not None and found.ledger == ledger else None

    def path(self, ledger: int) -> list[FileRef]:
        """The files on the way to a ledger, its leaf last; of one that was given up, as far as they are there."""
        files, rows = [], self._top
        while rows:
            row = rows[max(0, bisect_right(rows, ledger, key=lambda row: row.ledger) - 1)]
            files.append(row.file)
            rows = self._rows_if_there(row.file) if row.level else []
        return [*self._spine, *files]

    def first_ledger_in(self, node: FileRef) -> int | None:
        """The first ledger below a node; None if the file is none."""
        row = next(iter(self._files.fetch(node)), {})
        return row["ledger"] if "level" in row else None

    def bytes_before(self, row: IndexRow) -> int:
        """Bytes of the topic before a leaf or node. In files from before it was noted there, from the first commit."""
        while row.bytes_before < 0 and row.level:
            row = self._rows(row.file)[0]
        return row.bytes_before if row.bytes_before >= 0 else self.commits(row)[0].bytes_before

    def tokens_before(self, row: IndexRow) -> int:
        """The number of the first token in a leaf or node, likewise. Where the log began earlier nothing is read."""
        while row.tokens_before < 0 and row.level and row.ledger >= self._first:
            row = self._rows(row.file)[0]
        if row.tokens_before >= 0 or row.ledger < self._first:
            return row.tokens_before
        return self.commits(row)[0].tokens_before

    def commits(self, leaf: IndexRow) -> list[Commit]:
        return self.commits_in(leaf.file)

    def commit(self, leaf: IndexRow, at: int) -> Commit | None:
        """The leaf's commit at a place, without those before and after it; None if there are fewer."""
        return self._files.fetch_record(leaf.file, _commit_rows(), at)

    def commits_in(self, leaf: FileRef) -> list[Commit]:
        return self._files.fetch_records(leaf, _commit_rows())

    def pieces(self, leaf: IndexRow) -> list[LogSlice | Commit]:
        """What a read of a ledger consists of; see :func:`pieces_of_leaf`."""
        return self._files.fetch_kept(leaf.file, LogSlice, lambda table: pieces_of_leaf(_commit_rows(), table))

    def references(self, epoch: int) -> Iterator[FileRef]:
        """Every file of the tree that was staged in this gc epoch or a later one. What is below a node was staged
        before it, or with it: so nodes of earlier epochs are not read."""
        yield from self._spine
        yield from self._references(self._top, epoch)

    def _references(self, rows: list[IndexRow], epoch: int) -> Iterator[FileRef]:
        for row in self._from(rows, lambda row: row.ledger, self._first):
            if row.file.epoch < epoch:
                continue
            if row.level > 0:
                yield row.file
                yield from self._references(self._rows(row.file), epoch)
            elif row.ledger >= self._first:
                yield row.file

    def given_up(self, first: int, end: int) -> Iterator[IndexRow]:
        """The leaves of the ledgers in [first, end), and each node right after the last leaf in it, if that is among
        them: what remains of ledgers that were given up. What is gone already is left out."""
        yield from self._given_up(self._top, first, end, _NO_LEDGER)

    def _given_up(self, rows: list[IndexRow], first: int, end: int, after: int) -> Iterator[IndexRow]:
        """``after`` is the ledger that comes after those in ``rows``."""
        for row, following in zip(rows, _following(rows, after), strict=True):
            if first < following and row.ledger < end:
                if row.level > 0:
                    yield from self._given_up(self._rows_if_there(row.file), first, end, following)
                if first <= row.ledger if row.level == 0 else following <= end:
                    yield row

    def _rows_if_there(self, file: FileRef) -> list[IndexRow]:
        try:
            return self._rows(file)
        except CorruptData as error:
            if error.code != "LEDGER_FILE_MISSING":
                raise
            return []

    def _walk(self, rows: list[IndexRow], key: Callable[[IndexRow], int], value: int) -> Iterator[IndexRow]:
        for row in self._from(rows, key, value):
            if row.level == 0:
                yield row
            else:
                yield from self._walk(self._rows(row.file), key, value)

    def _from(self, rows: list[IndexRow], key: Callable[[IndexRow], int], value: int) -> list[IndexRow]:
        """From the last row whose ``key`` is <= value, and not before the first ledger that is there."""
        asked, there = bisect_right(rows, value, key=key), bisect_right(rows, self._first, key=lambda row: row.ledger)
        return rows[max(0, asked - 1, there - 1) :]

    def _rows(self, ref: FileRef) -> list[IndexRow]:
        return node_rows(self._files, ref)

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
        full = replace(rows[0], level=level + 1, file=spine[level])
        taller = self._extend(spine, level + 1, full, epoch, fanout)
        return (*taller[:level], self._stage([row], epoch), *taller[level + 1 :])

    def replaced(self, leaves: Mapping[int, IndexRow], epoch: int) -> tuple[tuple[FileRef, ...], list[FileRef]]:
        """Stages the nodes of a tree that has other leaves for some ledgers. Returns its spine, and the nodes of this
        tree that it does not have any more. Each new node carries one of these ledgers, which it is on the way to: who
        finds the node asks for that way whether it is still needed."""
        gone: list[FileRef] = []
        spine: list[FileRef] = []
        after = _NO_LEDGER
        for ref in self._spine:
            spine.append(self._replaced(ref, leaves, after, epoch, gone))
            after = self._rows(ref)[0].ledger
        return tuple(spine), gone

    def _replaced(
        self, ref: FileRef, leaves: Mapping[int, IndexRow], after: int, epoch: int, gone: list[FileRef]
    ) -> FileRef:
        """The node with these leaves below it; the same one if none of them is."""
        rows = self._rows(ref)
        below = [ledger for ledger in leaves if rows[0].ledger <= ledger < after]
        if not below:
            return ref
        changed = []
        for row, following in zip(rows, _following(rows, after), strict=True):
            if row.level == 0:
                row = leaves.get(row.ledger, row)
            elif any(row.ledger <= ledger < following for ledger in below):
                row = replace(row, file=self._replaced(row.file, leaves, following, epoch, gone))
            changed.append(row)
        gone.append(ref)
        return _stage_rows(self._files.of_ledger(below[0]), changed, epoch)

    def _stage(self, rows: list[IndexRow], epoch: int) -> FileRef:
        return _stage_rows(self._files, rows, epoch)


def node_rows(files: TopicFiles, node: FileRef) -> list[IndexRow]:
    """What a node lists: leaves, or nodes of the level below."""
    return files.fetch_records(node, _index_rows())


def _stage_rows(files: TopicFiles, rows: list[IndexRow], epoch: int) -> FileRef:
    stored = _index_rows()
    return files.stage([stored.dump(row) for row in rows], stored.schema, epoch)


def _following(rows: list[IndexRow], after: int) -> list[int]:
    """For each row, the first ledger of the next one."""
    return [*(row.ledger for row in rows), after][1:] if rows else []


def stage_leaf(files: TopicFiles, commits: list[Commit], epoch: int) -> IndexRow:
    first, rows = commits[0], _commit_rows()
    file = files.stage([rows.dump(commit) for commit in commits], rows.schema, epoch)
    before = (first.publish_ms, first.records_before, file, first.bytes_before, first.tokens_before)
    return IndexRow(0, first.ledger, first.number, *before)
