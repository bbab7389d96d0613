"""A topic's head and its open ledger, also if some of its commits cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.lifecycle.findings import Finding, Span, finding, from_error
from pyspark_ledger.log import rollback, scan
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.trimmed import begin, first_ledger, records_before_begin
from pyspark_ledger.metadata.port import CommitKey, HeadKey
from pyspark_ledger.metadata.records import Commit, Head


@dataclass(frozen=True, slots=True)
class Look:
    """A view, and what is wrong with the commits that the head names."""

    view: View
    findings: tuple[Finding, ...] = ()


def look(log: Log) -> Look:
    """As the topic is now.

    :raises CorruptData: the head itself cannot be read.
    """
    for _ in range(log.limits.look_attempts):
        try:
            return Look(log.refresh(sync=True))
        except CorruptData:
            found = _as_far_as_it_can_be_read(log)
            if found is not None:
                return found
    return Look(log.refresh(sync=True))


def _as_far_as_it_can_be_read(log: Log) -> Look | None:
    """None if the head has changed meanwhile: then what is missing may have been sealed."""
    log.metadata.sync()
    before = log.metadata.read(HeadKey(log.topic.uuid))
    if before is None:
        raise log.gone()
    head = before.record
    commits = [_read(log, head, number) for number in range(head.ledger_first_commit, head.next_commit)]
    there = tuple(commit for commit in commits if isinstance(commit, Commit))
    findings = list(_holes(log, head, commits))
    if there and not findings and not rollback.is_chain(there, head):
        findings.append(finding("inconsistent", "the commits of the open ledger do not follow each other"))
    log.metadata.sync()
    after = log.metadata.read(HeadKey(log.topic.uuid))
    is_same = after is not None and after.record.ledger == head.ledger
    return Look(View(head, before.version, there), tuple(findings)) if is_same else None


def _read(log: Log, head: Head, number: int) -> Commit | Finding:
    try:
        found = log.metadata.read(CommitKey(head.uuid, head.ledger, number))
    except CorruptData as error:
        return from_error(error, of=f"commit {number}")
    return finding("loss", f"commit {number} is not in ZooKeeper") if found is None else found.record


def _holes(log: Log, head: Head, commits: Sequence[Commit | Finding]) -> Iterator[Finding]:
    """Each commit that cannot be read, with the positions that it must have had."""
    for number, commit in enumerate(commits):
        if isinstance(commit, Finding):
            before = next((each for each in reversed(commits[:number]) if isinstance(each, Commit)), None)
            after = next((each for each in commits[number:] if isinstance(each, Commit)), None)
            first = before.first_entry + before.entry_count if before is not None else 0
            end = after.first_entry if after is not None else head.next_entry
            begun = before.records_before + before.records if before is not None else _sealed_records(log, head)
            ended = after.records_before if after is not None else head.records
            span = Span(Position(head.ledger, first, 0), Position(head.ledger, end, 0), ended - begun)
            yield finding(commit.kind, commit.what, span)


def _sealed_records(log: Log, head: Head) -> int:
    """The records before the open ledger."""
    try:
        index = Index(log.files, head.index, first_ledger(head))
        leaf = next(index.newest_first(), None)
        if leaf is None:
            return records_before_begin(head)
        last = index.commits(leaf)[-1]
        return last.records_before + last.records
    except CorruptData:
        return head.records  # nobody knows how many


def records_before(log: Log, view: View, position: Position) -> int | None:
    """None if that cannot be told: the position is not in the log, or something there is damaged, which is told where
    the log is looked at."""
    is_there = begin(view.head) <= position <= view.head.end
    is_whole = len(view.open_commits) == view.head.next_commit - view.head.ledger_first_commit
    if not is_there or not is_whole:
        return None
    try:
        return scan.records_before(log, view, position)
    except CorruptData:
        return None
