"""Garbage collection: the only code that deletes files of a living topic which anybody else may know of (I12). A
compaction that is cut off takes back what it has written and never named, and a topic that is deleted takes all along.

First raise the gc epoch in the head, then read every reference, then delete unnamed files of epochs older than the
last but one. A commit that would name such a file is refused from the moment the epoch is raised, so whatever is
unnamed then stays unnamed. Files of one epoch can be named only by commits made in it or in the next, so gc reads
the commits since the oldest epoch it has not finished, not the whole log.

A seal supersedes a few files: the open node of the index, the dedup snapshot. So does a compaction: the manifest of
the oldest generation that was kept, and with it the files that only the manifest names. Whoever looks at an older head
still reads those, so they go only when gc has run once more since they were superseded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark_ledger.base import names
from pyspark_ledger.errors import CorruptData, DataLoss
from pyspark_ledger.log import generations as compacted
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import DedupKey
from pyspark_ledger.metadata.records import Commit, FileRef, Head

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Collected:
    """What ``client.gc`` deleted, or with ``dry_run`` would delete.

    Attributes:
        epoch: the topic's gc epoch, which every run raises.
        files: paths of the files, below the storage root.
    """

    epoch: int
    files: tuple[str, ...]


def collect(log: Log, *, dry_run: bool = False) -> Collected:
    """Two runs after a file was left behind, it is gone: writers get a whole epoch to name what they staged."""
    view = log.refresh(sync=True)
    _check_not_rolled_back(log, view.head)  # before anything is changed, or a refused run would wear the guard off
    doomed = _superseded(log, view) if _is_finished(view.head) else []
    if not dry_run and _is_finished(view.head):
        _delete(log, doomed)
        view = _raise_epoch(log)
    limit = view.head.gc_epoch - 1  # files of this epoch and newer can still be named
    candidates = dict(_staged(log, view.head.gc_floor, limit))
    named = {ref.uid for ref in _references(log, view)}
    unnamed = [path for uid, path in sorted(candidates.items()) if uid not in named]
    if not dry_run:
        _delete(log, unnamed)
        _raise_floor(log, limit)
        logger.info("gc topic=%s epoch=%d deleted=%d", view.head.name, view.head.gc_epoch, len(doomed) + len(unnamed))
    return Collected(view.head.gc_epoch, tuple(sorted({*doomed, *unnamed})))


def _is_finished(head: Head) -> bool:
    """Whether the run that raised the epoch has also deleted what it found. If not, this run finishes that one and
    raises nothing: a gc that keeps failing adds nothing to the head (I13)."""
    return head.gc_floor >= head.gc_epoch - 1


def _check_not_rolled_back(log: Log, head: Head) -> None:
    for path in log.storage.list(names.topic_folder(log.topic.uuid)):
        parsed = names.parse_staged_file(log.topic.uuid, path)
        if parsed is not None and parsed[0] > head.gc_epoch:
            raise DataLoss(
                f"{log.storage.where(path)} is of gc epoch {parsed[0]}, but ZooKeeper says {head.gc_epoch}: it was "
                "rolled back to an older state. gc stops until it is repaired; nothing was changed",
                "LEDGER_SET_BACK",
            )


def _superseded(log: Log, view: View) -> list[str]:
    """What was replaced before gc last ran."""
    alive = {*view.head.gc_kept, *_replaceable(log, view.head)}
    gone = [ref for ref in view.head.gc_kept_before if ref not in alive]
    return [names.staged_file(log.topic.uuid, ref.epoch, ref.uid) for ref in gone for ref in _with_content(log, ref)]


def _with_content(log: Log, ref: FileRef) -> list[FileRef]:
    """What goes with a file that was replaced. A compaction's manifest takes its files along, and goes last, so that
    a run which is cut off can be repeated. A node of the index that is full was not replaced: it became a row of the
    level above."""
    try:
        table = log.files.fetch_table(ref)
    except CorruptData:
        return []  # gone already: an earlier run was cut off
    if compacted.is_manifest(table):
        return [*compacted.files_of(log.files, ref), ref]
    is_full = "level" in table.column_names and table.num_rows >= log.limits.index_fanout
    return [] if is_full else [ref]


def _replaceable(log: Log, head: Head) -> tuple[FileRef, ...]:
    dedup = log.metadata.read(DedupKey(head.uuid))
    files = (dedup.record.producers_file, dedup.record.evicted_file) if dedup else ()
    manifests = (generation.manifest for generation in head.generations)
    return (*head.index, *(file for file in files if file is not None), *manifests)


def _delete(log: Log, paths: list[str]) -> None:
    for path in paths:
        log.storage.delete(path)


def _staged(log: Log, floor: int, limit: int) -> Iterator[tuple[bytes, str]]:
    for path in log.storage.list(names.topic_folder(log.topic.uuid)):
        parsed = names.parse_staged_file(log.topic.uuid, path)
        if parsed is not None and floor <= parsed[0] < limit:
            yield parsed[1], path


def _references(log: Log, view: View) -> Iterator[FileRef]:
    """Every file that a commit since the floor, the index or the dedup snapshot names."""
    # A seal names a ledger whose last commit may be the one before the epoch began: start one earlier.
    first = max(0, view.head.gc_marks[0] - 1)
    for commit in _commits_since(log, view, first):
        yield from (file for file in (commit.entries_file, commit.highest_file) if file is not None)
        yield from (entry.file for entry in log.entries(commit))
    yield from Index(log.files, view.head.index).references(first)
    for ref in {*_replaceable(log, view.head), *view.head.gc_kept, *view.head.gc_kept_before}:
        yield ref
        yield from _named_by(log, ref)


def _named_by(log: Log, ref: FileRef) -> list[FileRef]:
    """The files of a compaction, if this is its manifest."""
    try:
        return compacted.files_of(log.files, ref) if compacted.is_manifest(log.files.fetch_table(ref)) else []
    except CorruptData:
        return []  # superseded, and gone since


def _commits_since(log: Log, view: View, number: int) -> Iterator[Commit]:
    index = Index(log.files, view.head.index)
    if number < view.head.ledger_first_commit:
        for leaf in index.leaves(lambda row: row.first_commit, number):
            yield from index.commits(leaf)
    yield from view.open_commits


def _raise_epoch(log: Log) -> View:
    def raised(head: Head) -> Head:
        return replace(
            head,
            gc_epoch=head.gc_epoch + 1,
            gc_marks=(*head.gc_marks, head.next_commit),
            gc_kept=_replaceable(log, head),
            gc_kept_before=head.gc_kept,
        )

    return log.change_head(raised, "raising the gc epoch")  # twice is harmless: the older one is only finished sooner


def _raise_floor(log: Log, floor: int) -> None:
    def raised(head: Head) -> Head | None:
        done = max(0, floor - head.gc_floor)
        return None if not done else replace(head, gc_floor=head.gc_floor + done, gc_marks=head.gc_marks[done:])

    log.change_head(raised, "raising the gc floor")
