"""Garbage collection: deletes files of a topic that nothing names any more. Nothing else deletes files that others may
know of (I12): a compaction that fails deletes only its own new files, and deleting a topic deletes all of them.

gc first raises the gc epoch in the head, then reads every reference, then deletes the files of epochs before the last
but one that nothing names. As soon as the epoch is raised, a commit that would name such a file is refused: so a file
that is unnamed then stays unnamed. Files of one epoch can be named only by commits made in that epoch or the next. So
gc reads only the commits since the oldest epoch that it has not finished, not the whole log.

Sealing a ledger replaces a few files: the open node of the index, and the dedup snapshot. A compaction replaces the
manifest of the oldest generation, and with it the files that only that manifest names. Processes with an older head
still read them, so they are deleted only when gc has run once more since they were replaced.
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
    """One run of gc. A file that was left behind is deleted by the second run after that, so that writers have a whole
    epoch to commit what they staged."""
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
    """Files that were replaced before gc last ran."""
    alive = {*view.head.gc_kept, *_replaceable(log, view.head)}
    gone = [ref for ref in view.head.gc_kept_before if ref not in alive]
    return [names.staged_file(log.topic.uuid, ref.epoch, ref.uid) for ref in gone for ref in _with_content(log, ref)]


def _with_content(log: Log, ref: FileRef) -> list[FileRef]:
    """A file that was replaced, and the files that are deleted with it. With a compaction's manifest its files are
    deleted, and the manifest last, so that a run that fails can be repeated. A full node of the index is not deleted:
    it was not replaced, the level above names it now."""
    try:
        table = log.files.fetch_table(ref)
    except CorruptData:
        return []  # deleted already, by a run that did not finish
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
        return []  # replaced, and deleted since


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

    # Raising it twice is harmless: it only finishes the older epoch sooner.
    return log.change_head(raised, "raising the gc epoch")


def _raise_floor(log: Log, floor: int) -> None:
    def raised(head: Head) -> Head | None:
        done = max(0, floor - head.gc_floor)
        return None if not done else replace(head, gc_floor=head.gc_floor + done, gc_marks=head.gc_marks[done:])

    log.change_head(raised, "raising the gc floor")
