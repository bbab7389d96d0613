"""Garbage collection: deletes files of a topic that nothing names any more. Nothing else deletes files that others may
know of (I12): a compaction that fails deletes only its own new files, and deleting a topic deletes all of them.

A file carries the gc epoch in which it was staged. A commit, a seal, a compaction or a rewriting may name only files of
the present epoch or the one before; anything older is refused. So a file of an earlier epoch that is unnamed stays
unnamed, however late it was written.

An epoch is raised only when it has lasted for the *grace*, however often gc runs: a batch that takes less time is never
refused. ZooKeeper's clock counts, because it is the same for everybody: the raise also sets a node, whose time is the
epoch's birth. Only a run that raises the epoch deletes, right before it raises it. A run that fails half way has raised
nothing, so the next one does the same again.

What is deleted, in a run that ends epoch E:

- Files of epoch E-2 that nothing names. Only commits, seals and the like of that epoch and the next one can have named
  them, so only those are read: a run costs the same however long the log is.
- What was replaced before epoch E began (``going``), and generations and ledgers that were given up before epoch E-1
  began. Processes with an older head may have read them until then, and batches that were planned before.

A file that was staged long after its epoch had ended is not found in this way. So every 30 epochs a *thorough* run
compares all files with all references.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from pyspark_ledger.base import names
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import Conflict, CorruptData, OutcomeUnknown
from pyspark_ledger.lifecycle import going
from pyspark_ledger.log import generations as compacted
from pyspark_ledger.log import snapshots
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.trimmed import is_readable
from pyspark_ledger.metadata.port import DedupKey, GcKey, Metadata, Put, TransactionLost, Versioned
from pyspark_ledger.metadata.records import Commit, DedupSnapshot, EpochBirth, FileRef, GcEpoch, Head

logger = logging.getLogger(__name__)

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is done, how much of it, and of how much as far as is known
_SHOWN_FILES = 10_000
_Files = dict[bytes, int]  # id -> gc epoch: all that is kept in memory of each file


@dataclass(frozen=True, slots=True)
class Collected:
    """What ``client.gc`` deleted, or with ``dry_run`` would delete.

    Attributes:
        epoch: the topic's gc epoch after the run. A run raises it if it has lasted for a day; others delete nothing.
        files: paths of the files, below the storage root; of very many only the first 10,000.
        deleted: how many files that were.
        age_s: for how long the epoch that the run has found had lasted.
        is_due: whether that was long enough for it to delete what it could.
    """

    epoch: int
    files: tuple[str, ...]
    deleted: int = 0
    age_s: float = 0.0
    is_due: bool = True


def collect(
    log: Log, *, dry_run: bool = False, thorough: bool | None = None, progress: Progress = lambda *_: None
) -> Collected:
    """One run of gc. It deletes something only if it can raise the epoch: once in a grace, however often it is called.
    A file that was left behind is deleted by the third such run. ``thorough`` compares all files with all references;
    by default every 30th run does."""
    head = log.refresh(sync=True).head
    log.check_root(head)
    log.storage.check_marked()  # in the wrong place nothing can be found, and so nothing be judged
    log.check_not_set_back(head)
    there = snapshots.listed(log.storage, log.topic.uuid)
    snapshots.check_not_behind(log, log.refresh(sync=True), there, note=not dry_run)
    epochs = epochs_with_files(log)
    check_not_rolled_back(log, epochs, dry_run=dry_run)  # before anything changes, or a refused run would wear it off
    view = log.view()
    node = _epoch_node(log, mend=not dry_run)
    age_s = (log.metadata.now_ms() - node.modified_ms) / 1000
    if not _is_old_enough(log, node):
        return Collected(view.head.gc_epoch, (), age_s=age_s, is_due=False)
    if not dry_run:
        snapshots.leave(log, there)  # before anything is deleted that the newest one may name
    deletion = _Deletion(log, dry_run, progress)
    judged = _Judged.of(log, view.head, node.record, thorough)
    next_epoch = _NextEpoch(log)
    try:
        next_epoch.head_after(view.head)  # reads what it needs: a disk that fails then has changed nothing yet
        _delete_replaced(log, view, deletion)
        _delete_old_generations(log, view.head, deletion)
        _delete_given_up(log, view.head, deletion)
        # Last: a leaf or a manifest that nothing names any more leads to other files, which go before it.
        _delete_unnamed(log, view, judged, epochs, deletion)
    except CorruptData:
        _check_not_overtaken(log, view)
        raise
    if not dry_run:
        _remove_empty_folders(log, epochs, judged, view.head)
        view = _raise_epoch(log, view.head.gc_epoch, next_epoch)
        logger.info("gc topic=%s epoch=%d deleted=%d", view.head.name, view.head.gc_epoch, deletion.count)
    return Collected(view.head.gc_epoch, tuple(deletion.shown), deletion.count, age_s)


class _Deletion:
    """Deletes files, many at a time, and counts them."""

    def __init__(self, log: Log, dry_run: bool, progress: Progress) -> None:
        self._log, self._dry_run, self._progress = log, dry_run, progress
        self.count = 0
        self.shown: list[str] = []
        self._told: set[str] = set()  # in a dry run, in which files are found again

    def of(self, files: Iterable[FileRef]) -> None:
        """All of them are deleted when this returns."""
        self.paths([names.staged_file(self._log.topic.uuid, file.epoch, file.uid) for file in files])

    def paths(self, paths: list[str]) -> None:
        if self._dry_run:
            paths = [path for path in dict.fromkeys(paths) if path not in self._told]
            self._told.update(paths)
        size = self._log.limits.deletes_at_once
        for start in range(0, len(paths), size):
            some = paths[start : start + size]
            if not self._dry_run:
                self._log.storage.delete_many(some)
            self.count += len(some)
            self.shown += some[: max(0, _SHOWN_FILES - len(self.shown))]
            self._progress("deleting", self.count, 0)


# -- epochs ---------------------------------------------------------------------------------------------------------


def epochs_with_files(log: Log) -> list[int]:
    """The epochs that have a folder, in order."""
    found = map(names.parse_epoch_folder, log.storage.folders(names.topic_folder(log.topic.uuid)))
    return sorted(epoch for epoch in found if epoch is not None)


def _files_of(log: Log, epoch: int) -> Iterator[tuple[bytes, str]]:
    """Id and path of each file that was staged in an epoch."""
    for path in log.storage.list(names.epoch_folder(log.topic.uuid, epoch)):
        parsed = names.parse_staged_file(log.topic.uuid, path)
        if parsed is not None:
            yield parsed[1], path


def check_not_rolled_back(log: Log, epochs: list[int], *, dry_run: bool) -> None:
    later = [epoch for epoch in epochs if epoch > log.view().head.gc_epoch]
    if not later:
        return
    head = log.refresh(sync=True).head  # perhaps the epoch was raised, and the file staged, while we listed the folders
    for epoch in reversed(later):
        found = next(_files_of(log, epoch), None) if epoch > head.gc_epoch else None
        if found is not None:
            raise log.later_epoch(log.storage.where(found[1]), epoch, head, note=not dry_run)


def is_due(metadata: Metadata, node: Versioned[GcEpoch], limits: Limits) -> bool:
    """Whether a run would do anything for a topic with this node: the epoch is old enough, or seems to begin in the
    future, which a run mends. Needs no request, so that thousands of topics can be looked at."""
    return not 0 <= metadata.now_ms() - node.modified_ms < limits.gc_grace_ms


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


def _raise_epoch(log: Log, epoch: int, next_epoch: _NextEpoch) -> View:
    """Raises the epoch, unless somebody else has. In every try the node's age is judged anew, at the version that the
    same transaction replaces. Nothing is staged: gc works on a full disk too."""
    node = _read_epoch_node(log)
    first_commit = 0

    def raised(head: Head) -> Head | None:
        nonlocal node, first_commit
        node = _read_epoch_node(log)
        if head.gc_epoch != epoch or not _is_old_enough(log, node):
            return None
        log.check_not_set_back(head)
        first_commit = head.ledger_first_commit
        return next_epoch.head_after(head)

    def born() -> list[Put]:
        return [Put(GcKey(log.topic.uuid), _born(node.record, epoch, first_commit), node.version)]

    return log.change_head(raised, "raising the gc epoch", born)


def _born(before: GcEpoch, epoch: int, first_commit: int) -> GcEpoch:
    """The epoch after this one. Everything before the last but one is judged by now."""
    floor = epoch - 1
    births = [*before.births, EpochBirth(epoch + 1, first_commit)]
    while len(births) > 1 and births[1].epoch <= floor:
        births.pop(0)
    return GcEpoch(epoch + 1, max(0, floor), tuple(births))


def replaceable_now(log: Log, head: Head) -> tuple[FileRef, ...]:
    """The files that are named now, and may be replaced by others. Only a seal changes the dedup snapshot, together
    with the head: so if this is another snapshot than the head's, raising the epoch is refused."""
    dedup = log.metadata.read(DedupKey(head.uuid))
    return replaceable(head, dedup.record if dedup is not None else None)


def replaceable(head: Head, dedup: DedupSnapshot | None) -> tuple[FileRef, ...]:
    """The files that a head and a dedup snapshot name, and may be replaced by others."""
    files = (dedup.producers_file, dedup.evicted_file) if dedup is not None else ()
    return (*head.index, *(file for file in (*files, head.replaced, head.going, head.lost) if file is not None))


class _NextEpoch:
    """The head when the epoch ends."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._gone: dict[tuple[FileRef, ...], tuple[FileRef, ...]] = {}  # by what is named then

    def head_after(self, head: Head) -> Head:
        """A list of what is kept for a while goes when all in it is gone; who adds to it leaves out what is gone."""
        files = self._log.files
        generations, replaced = compacted.fetch_replaced(files, head.replaced), going.fetch(files, head)
        after = replace(
            head,
            gc_epoch=head.gc_epoch + 1,
            pending=tuple(pending for pending in head.pending if is_readable(pending, head)),
            replaced=head.replaced if any(compacted.is_readable(each, head) for each in generations) else None,
            going=head.going if any(not going.is_due(each, head) for each in replaced) else None,
        )
        kept = replaceable_now(self._log, after)
        if kept not in self._gone:
            gone = (file for file in head.gc_kept if file not in kept and not self._is_full_node(head, file))
            self._gone[kept] = tuple(gone)
        return replace(after, gc_kept=kept, gc_gone=self._gone[kept])

    def _is_full_node(self, head: Head, file: FileRef) -> bool:
        """Whether a file that was on the right edge of the index is inside it now: a node that is full."""
        index = Index(self._log.files, head.index)
        first = index.first_ledger_in(file)
        return first is not None and file in index.path(first)


# -- what nothing names ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Judged:
    """Which files are judged: those of epochs from ``floor`` on that cannot be named any more. No commit before
    ``first_commit`` can have named one of them."""

    floor: int
    first_commit: int

    @classmethod
    def of(cls, log: Log, head: Head, node: GcEpoch, thorough: bool | None) -> _Judged:
        if thorough is None:
            turn = int(head.uuid[:8], 16) if head.uuid else 0  # not all topics on the same day
            thorough = (head.gc_epoch + turn) % log.limits.gc_thorough_epochs == 0
        known = [birth.commit for birth in node.births if birth.epoch <= node.floor]
        return cls(0, 0) if thorough or not known else cls(node.floor, known[-1])

    def covers(self, epoch: int, head: Head) -> bool:
        return self.floor <= epoch < head.gc_epoch - 1


def _delete_unnamed(log: Log, view: View, judged: _Judged, epochs: list[int], deletion: _Deletion) -> None:
    """Files that cannot be named any more, and were not when the epoch began."""
    left: _Files = {}
    for epoch in epochs:
        if judged.covers(epoch, view.head):
            left |= {uid: epoch for uid, _ in _files_of(log, epoch)}
    if left:
        for file in references(log, view, judged.floor, judged.first_commit):
            left.pop(file.uid, None)
        for ledger in {names.ledger_in_id(uid) for uid in left}:
            for file in _named_by_ledger(log, view, ledger):
                left.pop(file.uid, None)
    deletion.paths(sorted(names.staged_file(log.topic.uuid, epoch, uid) for uid, epoch in left.items()))


def _remove_empty_folders(log: Log, epochs: list[int], judged: _Judged, head: Head) -> None:
    """Of epochs in which nobody stages any more; one that has files stays."""
    given_up = any(not is_readable(pending, head) for pending in head.pending)
    for epoch in epochs:
        if judged.covers(epoch, head) or (given_up and epoch < head.gc_epoch - 1):
            log.storage.remove_folder(names.epoch_folder(log.topic.uuid, epoch))


def _check_not_overtaken(log: Log, view: View) -> None:
    """Raises if a file is missing because others deleted it: the topic is gone, or this run has been paused so long
    that its view is older than the grace."""
    now = log.refresh(sync=True).head.gc_epoch
    if now > view.head.gc_epoch:
        raise Conflict(
            f"topic '{log.topic.name}': another gc has raised the gc epoch from {view.head.gc_epoch} to {now} "
            "meanwhile, and deleted what this one was still reading. This one has deleted nothing that is needed: run "
            "it again"
        )


def references(log: Log, view: View, floor: int = 0, first_commit: int = 0) -> Iterator[FileRef]:
    """Every file that is named, or was when the epoch began; of those that were staged in epochs from ``floor`` on, and
    are named by commits from ``first_commit`` on. Of rewritten ledgers before that, only what is going."""
    yield from _named_by_the_log(log, view, floor, first_commit)
    yield from (*replaceable_now(log, view.head), *view.head.gc_kept)
    for each in going.fetch(log.files, view.head):
        yield each.file
        if each.leaf_of is not None:
            yield from _named_by_leaf(log, each.file)
    generations = [view.head.generation] if view.head.generation is not None else []
    generations += [each.generation for each in compacted.fetch_replaced(log.files, view.head.replaced)]
    for generation in generations:
        if generation.manifest.epoch >= floor:
            yield generation.manifest
            yield from _if_there(compacted.files_of, log.files, generation.manifest)


def _named_by_the_log(log: Log, view: View, floor: int, first_commit: int) -> Iterator[FileRef]:
    index = log.index(view, planned=True)
    yield from index.references(floor)
    if first_commit < view.head.ledger_first_commit:
        for leaf in index.leaves(lambda row: row.first_commit, first_commit):
            for commit in index.commits(leaf):
                yield from named_by(log, commit)
    for commit in view.open_commits:
        yield from named_by(log, commit)


def named_by(log: Log, commit: Commit) -> Iterator[FileRef]:
    """A list of entries comes last: without it nobody would find what it names."""
    files = (*(entry.file for entry in log.entries(commit)), commit.highest_file, commit.entries_file)
    yield from (file for file in dict.fromkeys(files) if file is not None)


def _named_by_leaf(log: Log, leaf: FileRef) -> list[FileRef]:
    """The files that the commits of a leaf name; none if the leaf is gone already, and so they are too."""
    commits = _if_there(Index(log.files, ()).commits_in, leaf)
    return list(dict.fromkeys(file for commit in commits for file in _if_there(named_by, log, commit)))


def _named_by_ledger(log: Log, view: View, ledger: int) -> list[FileRef]:
    """The files that a sealed ledger consists of now, and those on the way to it. A node of the index carries one of
    the ledgers below it, and is needed as long as any of them is: so the way counts even if the ledger is given up."""
    if ledger >= view.head.ledger:
        return []
    index = log.index(view, planned=True)
    leaf = index.leaf(ledger)
    return [*index.path(ledger), *(_named_by_leaf(log, leaf.file) if leaf is not None else ())]


# -- what was named -------------------------------------------------------------------------------------------------


def _delete_replaced(log: Log, view: View, deletion: _Deletion) -> None:
    """What was replaced before the epoch began. A leaf goes after the files that its ledger does not need any more."""
    deletion.of(view.head.gc_gone)
    due, later = [], defaultdict(list)  # the later ones by ledger
    for each in going.fetch(log.files, view.head):
        if going.is_due(each, view.head):
            due.append(each)
        else:
            later[each.leaf_of].append(each.file)
    for each in due:
        if each.leaf_of is not None:
            needed = _named_by_ledger(log, view, each.leaf_of)
            needed += [file for leaf in later[each.leaf_of] for file in _named_by_leaf(log, leaf)]
            _delete_with_leaf(log, each.file, {file.uid for file in needed}, deletion)
        else:
            deletion.of([each.file])


def _delete_with_leaf(log: Log, leaf: FileRef, needed: Container[bytes], deletion: _Deletion) -> None:
    """A leaf, and before it what it names, except for files with an id that is still needed: first the files of
    entries, then the lists that name them. If this ends half way, the next run finds what is left."""
    commits = _if_there(Index(log.files, ()).commits_in, leaf)
    lists = {commit.entries_file for commit in commits}
    named = [file for file in _named_by_leaf(log, leaf) if file.uid not in needed]
    deletion.of(file for file in named if file not in lists)
    deletion.of(file for file in named if file in lists)
    deletion.of([leaf])


def _delete_old_generations(log: Log, head: Head, deletion: _Deletion) -> None:
    for each in compacted.fetch_replaced(log.files, head.replaced):
        if not compacted.is_readable(each, head):
            manifest = each.generation.manifest
            deletion.of(_if_there(compacted.files_of, log.files, manifest))
            deletion.of([manifest])


def _delete_given_up(log: Log, head: Head, deletion: _Deletion) -> None:
    """Ledger by ledger, and a node of the index after the ledgers below it."""
    for pending in head.pending:
        if not is_readable(pending, head):
            for row in Index(log.files, head.index).given_up(pending.first, pending.end):
                if row.level == 0:
                    _delete_with_leaf(log, row.file, (), deletion)
                else:
                    deletion.of([row.file])


def _if_there(fetch: Callable[..., Iterable[T]], *of: object) -> list[T]:
    """Nothing if a file is missing: within what is being deleted that means that it is done."""
    try:
        return list(fetch(*of))
    except CorruptData as error:
        if error.code != "LEDGER_FILE_MISSING":
            raise
        return []
