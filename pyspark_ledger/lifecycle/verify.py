"""Verifying a topic: whether everything that ZooKeeper names is there, is what was written, and adds up.

It changes nothing and can run beside everything else. A topic changes while it is looked at: ledgers are sealed,
rewritten and given up, and gc deletes what was replaced. So whatever looks wrong is looked at once more from a fresh
view. It is told only if it is still wrong there: a file that was missing, and that a later view still names, was
missing while it was named.

Ledger after ledger is looked at, so that memory does not depend on the length of the log. One damaged thing does not
hide the next: what is wrong is collected, and what comes after it is looked at all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.lifecycle.findings import Finding, Findings, Span, Verified, finding, from_error
from pyspark_ledger.lifecycle.verify_commits import (
    Chain,
    span_of,
    span_of_entry,
    wrong_inside,
    wrong_with,
    wrong_with_entry,
    wrong_with_head,
    wrong_with_trim,
)
from pyspark_ledger.lifecycle.verify_files import Files
from pyspark_ledger.lifecycle.verify_generations import Generations
from pyspark_ledger.lifecycle.verify_index import Broken, Leaf, Mark, Node, walk
from pyspark_ledger.lifecycle.verify_nodes import Nodes
from pyspark_ledger.lifecycle.verify_orphans import Orphans, later_files, of_snapshots, orphans
from pyspark_ledger.lifecycle.verify_tokens import TokenGroups
from pyspark_ledger.lifecycle.verify_view import Look, look
from pyspark_ledger.lifecycle.verify_walk import Seen, Walk
from pyspark_ledger.log import lost
from pyspark_ledger.log.index import Index, IndexRow
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.lost import LostEntry
from pyspark_ledger.metadata.records import Commit, Entry, FileRef

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]  # what is done, how much of it, and of how much
_LOOKS = 3  # at what is not a part of the log, before it is told


def verify(
    log: Log, *, deep: bool = False, sample: float | None = None, progress: Progress = lambda *_: None
) -> Verified:
    """Looks at all of a topic. ``sample``: the share of files with records, chosen anew in every run, of which all
    bytes are read; of the others, whether they are there with their length. ``deep``: generations are also compared
    with what a fold of the log gives."""
    _check(deep, sample)
    log.storage.check_marked()
    fresh = Log(log.metadata, log.storage, log.topic, limits=log.limits, clock=log.clock)  # nothing from memory
    return _Verification(fresh, 1.0 if sample is None else sample, deep, progress).run()


def _check(deep: bool, sample: float | None) -> None:
    is_share = isinstance(sample, (int, float)) and not isinstance(sample, bool) and 0 < sample <= 1
    if sample is not None and not is_share:
        raise InvalidInput(
            f"sample is {sample!r}: it must be a share, above 0 and not above 1", "LEDGER_INVALID_OPTION"
        )
    if deep and sample is not None:
        raise InvalidInput("deep reads everything, and sample only a part: give one of them", "LEDGER_INVALID_OPTION")


@dataclass(slots=True)
class _File:
    """A file with records that a ledger names, and which entries are in it: one, or many that share it."""

    file: FileRef
    rows: int
    schema_id: int = 0
    entries: list[tuple[Entry, Span]] = field(default_factory=list)
    is_damaged: bool = False  # an entry in it is known to be lost

    @property
    def what(self) -> str:
        names = [_entry_name(span) for _, span in (self.entries[0], self.entries[-1])]
        return f"entry {names[0]}" if len(self.entries) == 1 else f"entries {names[0]} to {names[1]}"

    @property
    def span(self) -> Span:
        spans = [span for _, span in self.entries]
        return Span(spans[0].first, spans[-1].end, sum(span.records for span in spans))


class _Verification:
    def __init__(self, log: Log, sample: float, deep: bool, progress: Progress) -> None:
        self._log, self._progress = log, progress
        self._files = Files(log, sample)
        self._nodes = Nodes(log, self._files)
        self._tokens = TokenGroups(log)
        self._generations = Generations(log, self._files, deep=deep)
        self._findings, self._left = Findings(), Orphans()
        self._lost: dict[Position | None, LostEntry] = {}
        self._ledgers = self._commits = self._entries = self._records = 0

    def run(self) -> Verified:
        try:
            begun = look(self._log)
        except CorruptData as error:  # without its head nothing of a topic can be found
            self._findings.add([from_error(error, of="the head")])
            return self._verified(Position(0, 0, 0))
        self._now = begun
        self._twice(self._nodes.of_head)
        self._log_itself()
        for check in (self._nodes.of_dedup, self._nodes.of_replaced, self._generations.look):
            self._twice(check)
        self._twice(self._nodes.of_cursors)
        self._twice(self._tokens.look)
        self._twice(lambda view: later_files(self._log, view.head))
        self._twice(lambda _: of_snapshots(self._log, lambda: self._fresh().view))
        if not (self._files.is_blind or self._now.findings):
            self._left = orphans(self._log, begun.view.head, self._files.named.sorted())
            self._findings.add(self._left.findings())
        return self._verified(self._now.view.head.end)

    def _fresh(self) -> Look:
        self._now = look(self._log)
        return self._now

    def _twice(self, check: Callable[[View], Iterable[Finding]]) -> None:
        """Only what is found again and again, from later views, is told."""
        found = _looked(check, self._now.view)
        for _ in range(_LOOKS - 1):
            if found:
                again = set(_looked(check, self._fresh().view))
                found = [each for each in found if each in again]
        self._findings.add(found)

    # -- the log ---------------------------------------------------------------------------------------------------

    def _log_itself(self) -> None:
        way = Walk(self._now.view)
        while not self._follow(way, self._now):
            way.goes_on(self._fresh().view)

    def _follow(self, way: Walk, now: Look) -> bool:
        """Goes on over one view, to the end. False: something looks wrong, and a later view has to confirm it."""
        for place in walk(self._log.files, now.view, way.mark.ledger):
            is_clear = self._sealed_ledger(way, now.view, place) if isinstance(place, Leaf) else self._node(way, place)
            if not is_clear:
                return False
        return self._open_ledger(way, now)

    def _node(self, way: Walk, node: Node | Broken) -> bool:
        self._files.named.add(node.file)
        if way.is_told(node.file) or (isinstance(node, Node) and not node.wrong):
            return True
        if not way.is_confirmed(node.file):
            return False
        way.tell(node.file)
        span, where = _between(node.begin or way.mark, node.after), self._files.where(node.file)
        if isinstance(node, Broken):
            self._findings.add([from_error(node.error, span, where, "a node of the index")])
            way.lost(node.after)
            self._files.is_blind = True
        else:
            self._findings.add([finding("inconsistent", f"a node of the index: {where}: {node.wrong}", span, where)])
        return True

    def _sealed_ledger(self, way: Walk, view: View, leaf: Leaf) -> bool:
        seen = way.suspected(leaf.row.file)
        if seen is None:
            seen = self._look_into(way, view, leaf)
            if seen.findings:
                way.suspect(leaf.row.file, seen)
                return False
        self._count(seen)
        way.passed(leaf.row.ledger, seen, leaf.after)
        self._progress("verifying", leaf.after.records, max(leaf.after.records, view.head.records))
        return True

    def _look_into(self, way: Walk, view: View, leaf: Leaf) -> Seen:
        file, where = leaf.row.file, self._files.where(leaf.row.file)
        span = _between(Mark(leaf.row.ledger, leaf.row.records_before), leaf.after)
        index = Index(self._log.files, ())
        commits = self._files.table(file, f"the leaf of ledger {leaf.row.ledger}", index.commits_in, span)
        if isinstance(commits, Finding):
            return Seen((commits,), None)
        wrong = _wrong_leaf(leaf.row, commits)
        seen = self._ledger(view, way.chain, commits)
        own = [finding("inconsistent", f"the leaf of a ledger: {where}: {wrong}", span, where)] if wrong else []
        return replace(seen, findings=(*own, *seen.findings))

    def _open_ledger(self, way: Walk, now: Look) -> bool:
        view = now.view
        seen = self._ledger(view, way.chain, view.open_commits, holes=bool(now.findings))
        found = [*now.findings, *seen.findings]
        if seen.after is not None and not now.findings:
            open_bytes = sum(commit.bytes for commit in view.open_commits)
            wrong = wrong_with_head(view.head, seen.after, open_bytes)
            found += [finding("inconsistent", f"the head: {what}") for what in wrong]
        confirmed = way.confirmed(view.head.ledger, found) if found else []
        if confirmed is None:
            return False
        self._count(replace(seen, findings=tuple(confirmed)))
        self._progress("verifying", view.head.records, view.head.records)
        return True

    def _count(self, seen: Seen) -> None:
        self._findings.add(seen.findings)
        self._ledgers += bool(seen.commits)
        self._commits += seen.commits
        self._entries += seen.entries
        self._records += seen.records

    # -- commits and their entries ---------------------------------------------------------------------------------

    def _ledger(self, view: View, chain: Chain | None, commits: Sequence[Commit], *, holes: bool = False) -> Seen:
        """``holes``: some of them cannot be read, so one need not follow the one before."""
        found: list[Finding] = []
        files: dict[FileRef, _File] = {}
        entries_seen = 0
        self._lost = self._lost_in(view)
        for commit in commits:
            wrong = [*wrong_with(commit, None if holes else chain, view.head), *wrong_with_trim(commit, view.head)]
            entries = self._entries_of(commit)
            if isinstance(entries, Finding):
                found.append(entries)
            else:
                wrong += wrong_inside(commit, entries)
                found += self._of_entries(commit, entries, files)
                entries_seen += len(entries)
            found += [finding("inconsistent", f"commit {commit.number}: {what}", span_of(commit)) for what in wrong]
            found += self._of_highest(commit)
            chain = Chain.after(commit, chain)
        found += self._files.in_parallel(self._look_at, list(files.values()))
        return Seen(tuple(found), chain, len(commits), entries_seen, sum(commit.records for commit in commits))

    def _lost_in(self, view: View) -> dict[Position | None, LostEntry]:
        try:
            return {each.first: each for each in lost.fetch(self._log.files, view.head)}
        except CorruptData:
            return {}  # told where the nodes are looked at

    def _entries_of(self, commit: Commit) -> tuple[Entry, ...] | Finding:
        if commit.entries_file is None:
            return commit.entries
        what = f"the entries of commit {commit.number}"
        return self._files.table(commit.entries_file, what, lambda _: self._log.entries(commit), span_of(commit))

    def _of_highest(self, commit: Commit) -> list[Finding]:
        if commit.highest_file is None:
            return []
        what = f"the highest ids of commit {commit.number}"
        found = self._files.table(commit.highest_file, what, self._log.files.fetch_table, span_of(commit))
        return [found] if isinstance(found, Finding) else []

    def _of_entries(self, commit: Commit, entries: Sequence[Entry], files: dict[FileRef, _File]) -> Iterator[Finding]:
        """Adds their files to those that have to be looked at, each once."""
        for number, entry in enumerate(entries, commit.first_entry):
            span = span_of_entry(commit, number, entry)
            if wrong := wrong_with_entry(entry):
                yield finding(
                    "inconsistent", f"entry {_entry_name(span)}: {wrong}", span, self._files.where(entry.file)
                )
            rows = entry.file_rows or entry.records
            file = files.setdefault(entry.file, _File(entry.file, rows))
            file.schema_id = max(file.schema_id, commit.schema_id)
            given_up = self._lost.get(span.first)
            if given_up is None:
                file.entries.append((entry, span))
            else:
                file.is_damaged = True
                self._files.named.add(entry.file)
                yield _given_up(given_up, span, self._files.where(entry.file))

    def _look_at(self, of: _File) -> list[Finding]:
        if not of.entries:
            return []
        try:
            schema = self._log.schema(of.schema_id)
        except CorruptData:
            schema = None  # told once, where the nodes are looked at
        whole = [] if of.is_damaged else self._files.with_rows(of.file, of.rows, schema, of.what, of.span)
        if not of.is_damaged and (not whole or len(of.entries) == 1):
            return whole
        # Which of the entries that share a damaged file can be read?
        single = [
            self._files.with_rows(of.file, entry.records, schema, f"entry {_entry_name(span)}", span, entry.first_row)
            for entry, span in of.entries
        ]
        return whole if whole and all(single) else [found for each in single for found in each]

    # -- what is told ----------------------------------------------------------------------------------------------

    def _verified(self, end: Position) -> Verified:
        done = Verified(
            topic=self._log.topic.name,
            end=end,
            ledgers=self._ledgers,
            commits=self._commits,
            entries=self._entries,
            records=self._records,
            files=self._files.looked_at,
            files_read=self._files.read,
            bytes_read=self._files.bytes_read,
            generations=self._generations.count,
            subscriptions=self._nodes.cursors,
            token_groups=self._tokens.count,
            orphans=self._left.files,
            orphan_bytes=self._left.bytes,
            findings=tuple(self._findings.all),
            more_findings=self._findings.more,
        )
        logger.info(
            "verified topic=%s ledgers=%d files=%d bytes=%d findings=%d", done.topic, done.ledgers, done.files,
            done.bytes_read, len(done.findings) + done.more_findings,
        )  # fmt: skip
        return done


def _looked(check: Callable[[View], Iterable[Finding]], view: View) -> list[Finding]:
    """What was found; also what was met where nobody had expected it."""
    found: list[Finding] = []
    try:
        for each in check(view):
            found.append(each)
    except CorruptData as error:
        found.append(from_error(error))
    return found


def _given_up(entry: LostEntry, span: Span, file: str) -> Finding:
    since = datetime.fromtimestamp(entry.since_ms / 1000, UTC)
    why = f": {entry.reason}" if entry.reason else ""
    return finding("given up", f"entry {entry.ledger}:{entry.entry} was given up {since:%Y-%m-%d}{why}", span, file)


def _entry_name(span: Span) -> str:
    assert span.first is not None
    return f"{span.first.ledger}:{span.first.entry}"


def _between(begin: Mark, after: Mark) -> Span:
    """Everything from one ledger up to another."""
    return Span(Position(begin.ledger, 0, 0), Position(after.ledger, 0, 0), max(0, after.records - begin.records))


def _wrong_leaf(row: IndexRow, commits: Sequence[Commit]) -> str:
    if not commits or any(commit.ledger != row.ledger for commit in commits):
        return f"its commits are not those of ledger {row.ledger}"
    first = commits[0]
    said = (row.first_commit, row.publish_ms, row.records_before)
    if said != (first.number, first.publish_ms, first.records_before):
        return f"commit {first.number} is its first one, and the index says other numbers"
    if row.bytes_before not in (-1, first.bytes_before):
        return f"{first.bytes_before} bytes are before it, and the index says {row.bytes_before}"
    return ""
