"""Garbage collection: deletes files of a topic that nothing names any more. Nothing else deletes files that others may
know of (I12): a compaction that fails deletes only its own new files, and deleting a topic deletes all of them.

A file carries the gc epoch in which it was staged. A commit, a seal or a compaction may name only files of the present
epoch or the one before; anything older is refused. So a file of an earlier epoch that is unnamed stays unnamed, however
late it was written.

An epoch is raised only when it has lasted for the *grace*, however often gc runs: a batch that takes less time is never
refused. ZooKeeper's clock counts, because it is the same for everybody: the raise also sets a node, whose time is the
epoch's birth.

Files also become unnamed. Sealing a ledger replaces the open node of the index and the dedup snapshot; a compaction
replaces a generation, which leaves the list of those that can be read two epochs later. Processes with an older head
still read such files, and so would a ZooKeeper that is restored from a backup. So nothing is deleted that a head of the
last grace named, or would have let somebody name: gc deletes only when the epoch has lasted for the grace, right before
it raises it, and only what was unnamed already when the epoch began. ``Head.gc_kept`` says what was named then and may
have been replaced since.

This reads all references of the topic, once in an epoch. A run that fails half way has raised nothing, so the next one
does the same again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark_ledger.base import names
from pyspark_ledger.errors import Conflict, CorruptData, OutcomeUnknown
from pyspark_ledger.log import generations as compacted
from pyspark_ledger.log.index import Index, IndexRow
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import DedupKey, GcKey, Put, TransactionLost, Versioned
from pyspark_ledger.metadata.records import Commit, DedupSnapshot, FileRef, GcEpoch, Head

logger = logging.getLogger(__name__)

_Files = dict[bytes, int]  # id -> gc epoch: all that is kept in memory of each file


@dataclass(frozen=True, slots=True)
class Collected:
    """What ``client.gc`` deleted, or with ``dry_run`` would delete.

    Attributes:
        epoch: the topic's gc epoch after the run. A run raises it if it has lasted for a day; others delete nothing.
        files: paths of the files, below the storage root.
    """

    epoch: int
    files: tuple[str, ...]


def collect(log: Log, *, dry_run: bool = False) -> Collected:
    """One run of gc. It deletes something only if it can raise the epoch: once in a grace, however often it is called.
    A file that was left behind is deleted by the third such run."""
    log.storage.check_marked()  # in the wrong place nothing can be found, and so nothing be judged
    log.check_not_set_back(log.refresh(sync=True).head)
    files = _staged_files(log)
    _check_not_rolled_back(log, files, dry_run=dry_run)  # before anything changes, or a refused run would wear it off
    view = log.view()
    if not _is_old_enough(log, _epoch_node(log, mend=not dry_run)):
        return Collected(view.head.gc_epoch, ())
    doomed = _unnamed(log, view, files)
    if not dry_run:
        for path in doomed:
            log.storage.delete(path)
        view = _raise_epoch(log, view.head.gc_epoch)
        logger.info("gc topic=%s epoch=%d deleted=%d", view.head.name, view.head.gc_epoch, len(doomed))
    return Collected(view.head.gc_epoch, tuple(doomed))


def _staged_files(log: Log) -> _Files:
    paths = log.storage.list(names.topic_folder(log.topic.uuid))
    found = (names.parse_staged_file(log.topic.uuid, path) for path in paths)
    return {file[1]: file[0] for file in found if file is not None}


def _check_not_rolled_back(log: Log, files: _Files, *, dry_run: bool) -> None:
    uid = max(files, key=files.__getitem__, default=b"")
    if not uid or files[uid] <= log.view().head.gc_epoch:
        return
    head = log.refresh(sync=True).head  # perhaps the epoch was raised, and the file staged, while we listed the files
    if files[uid] > head.gc_epoch:
        where = log.storage.where(names.staged_file(head.uuid, files[uid], uid))
        raise log.later_epoch(where, files[uid], head, note=not dry_run)


# -- epochs ---------------------------------------------------------------------------------------------------------


def _is_old_enough(log: Log, node: Versioned[GcEpoch]) -> bool:
    return log.metadata.now_ms() - node.modified_ms >= log.limits.gc_grace_ms


def _epoch_node(log: Log, *, mend: bool) -> Versioned[GcEpoch]:
    """The node, and ZooKeeper is asked for its time. If the epoch seems to begin in the future, ZooKeeper's clock was
    ahead and has been set right since: ``mend`` then lets the epoch begin now, or gc would wait for that future."""
    node = _read_epoch_node(log)
    if log.metadata.now_ms(exact=True) < node.modified_ms and mend:
        with suppress(TransactionLost, OutcomeUnknown):  # somebody else has done it, or the next run will
            log.metadata.transact([Put(GcKey(log.topic.uuid), node.record, node.version)])
    return node


def _read_epoch_node(log: Log) -> Versioned[GcEpoch]:
    found = log.metadata.read(GcKey(log.topic.uuid))
    if found is None:
        log.refresh(sync=True)  # raises if the topic is gone
        raise CorruptData(f"topic '{log.topic.name}': the node of its gc epoch is missing")
    return found


def _raise_epoch(log: Log, epoch: int) -> View:
    """Raises the epoch, unless somebody else has. In every try the node's age is judged anew, at the version that the
    same transaction replaces."""
    node = _read_epoch_node(log)
    lists: dict[FileRef | None, FileRef | None] = {}  # each is staged once, however often the raise is tried

    def raised(head: Head) -> Head | None:
        nonlocal node
        node = _read_epoch_node(log)
        if head.gc_epoch != epoch or not _is_old_enough(log, node):
            return None
        log.check_not_set_back(head)
        if head.replaced not in lists:
            lists[head.replaced] = _without_old_generations(log, head)
        after = replace(head, gc_epoch=epoch + 1, replaced=lists[head.replaced])
        return replace(after, gc_kept=_replaceable(log, after))

    def born() -> list[Put]:
        return [Put(GcKey(log.topic.uuid), GcEpoch(epoch + 1), node.version)]

    return log.change_head(raised, "raising the gc epoch", born)


def _replaceable(log: Log, head: Head) -> tuple[FileRef, ...]:
    """The files that are named now, and may be replaced by others. Only a seal changes the dedup snapshot, together
    with the head: so if this is another snapshot than the head's, raising the epoch is refused."""
    dedup = log.metadata.read(DedupKey(head.uuid))
    return replaceable(head, dedup.record if dedup is not None else None)


def replaceable(head: Head, dedup: DedupSnapshot | None) -> tuple[FileRef, ...]:
    """The files that a head and a dedup snapshot name, and may be replaced by others."""
    files = (dedup.producers_file, dedup.evicted_file) if dedup is not None else ()
    return (*head.index, *(file for file in (*files, head.replaced) if file is not None))


def _without_old_generations(log: Log, head: Head) -> FileRef | None:
    """The list without the generations that were replaced before the present epoch, which now ends."""
    replaced = compacted.fetch_replaced(log.files, head.replaced)
    kept = [each for each in replaced if each.epoch >= head.gc_epoch]
    return head.replaced if kept == replaced else compacted.stage_replaced(log.files, kept, head.gc_epoch)


# -- what nothing names ---------------------------------------------------------------------------------------------


def _unnamed(log: Log, view: View, files: _Files) -> list[str]:
    """The paths of all files that cannot be named any more, and were not when the epoch began."""
    left = {uid: epoch for uid, epoch in files.items() if epoch < view.head.gc_epoch - 1}
    if left:
        try:
            for file in _references(log, view):
                left.pop(file.uid, None)
        except CorruptData:
            _check_not_overtaken(log, view)
            raise
    return sorted(names.staged_file(log.topic.uuid, epoch, uid) for uid, epoch in left.items())


def _check_not_overtaken(log: Log, view: View) -> None:
    """Raises if a file is missing because others deleted it: the topic is gone, or this run has been paused so long
    that its view is older than the grace."""
    now = log.refresh(sync=True).head.gc_epoch
    if now > view.head.gc_epoch:
        raise Conflict(
            f"topic '{log.topic.name}': another gc has raised the gc epoch from {view.head.gc_epoch} to {now} "
            "meanwhile, and deleted what this one was still reading. This one has deleted nothing: run it again"
        )


def _references(log: Log, view: View) -> Iterator[FileRef]:
    """Every file that is named, or was when the epoch began."""
    yield from _named_by_the_log(log, view)
    yield from (*_replaceable(log, view.head), *view.head.gc_kept)
    for generation in compacted.kept(log.files, view.head):
        yield generation.manifest
        yield from compacted.files_of(log.files, generation.manifest)


def _named_by_the_log(log: Log, view: View) -> Iterator[FileRef]:
    index = Index(log.files, view.head.index)
    first = _first_needed(index, view.head)
    yield from index.references(first)
    if first < view.head.ledger_first_commit:
        for leaf in index.leaves(lambda row: row.first_commit, first):
            for commit in _commits_of(index, leaf, view.head):
                yield from _named_by(log, commit)
    for commit in view.open_commits:
        yield from _named_by(log, commit)


def _named_by(log: Log, commit: Commit) -> Iterator[FileRef]:
    yield from (file for file in (commit.entries_file, commit.highest_file) if file is not None)
    yield from (entry.file for entry in log.entries(commit))


def _first_needed(index: Index, head: Head) -> int:
    """The first commit whose files are needed. Ledgers that were given up need theirs as long as they are pending, for
    batches that were planned before."""
    if head.trim is None:
        return 0
    ledger = min((pending.first for pending in head.pending), default=head.trim.position.ledger)
    leaf = next((leaf for leaf in index.leaves(lambda row: row.ledger, ledger) if leaf.ledger >= ledger), None)
    return head.ledger_first_commit if leaf is None else leaf.first_commit


def _commits_of(index: Index, leaf: IndexRow, head: Head) -> list[Commit]:
    try:
        return index.commits(leaf)
    except CorruptData:
        if head.trim is None or leaf.ledger >= head.trim.position.ledger:
            raise
        return []  # its ledger was given up, and its files are deleted already, the leaf last
