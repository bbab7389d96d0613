"""Rewriting: the entries of a sealed ledger, each in a small file of its own, become parts of a few large files.

Whoever writes a few records at a time leaves many small files, which take long to open and to list. Rewriting changes
nothing that a reader sees: records, positions, ids and tokens are the same. It can run beside everything else.

A new file belongs to one ledger, and carries it in its name: gc asks that ledger whether it needs the file (I12). One
transaction puts new leaves in the place of the old ones, by copying the nodes of the index on the way to them, from the
newest view. A ledger that somebody has given up or rewritten meanwhile is left out. What was replaced is kept for a
while, for batches that were planned before, for processes with an older head and for backups; gc deletes it. A run that
ends before it has published leaves files that nothing names, and gc finds them too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from pyspark_ledger.append.prepared import STAGED_TOO_LONG_AGO, check_epochs
from pyspark_ledger.errors import Conflict, CorruptData, InvalidInput
from pyspark_ledger.lifecycle import going
from pyspark_ledger.lifecycle.rewrite_copy import LedgerCopy, Report, Skipped, copies, copy
from pyspark_ledger.lifecycle.rewrite_plan import LedgerWork, in_groups, plan
from pyspark_ledger.log import folders
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.locks import only_one
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.trimmed import first_ledger
from pyspark_ledger.metadata.port import RewriterKey
from pyspark_ledger.metadata.records import FileRef, Going, Head

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]  # what is done, bytes that are read, and of how many
CopyGroup = Callable[[list[LedgerWork], int, Report], Iterable[LedgerCopy | Skipped]]  # under a gc epoch
_TRIES = 2  # of a group that took longer than the grace


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What ``client.rewrite`` did, or with ``dry_run`` would do.

    Attributes:
        ledgers: how many ledgers were rewritten.
        entries: how many entries of these were copied.
        files_before: in how many files those were before,
        files_after: and in how many they are now; of a dry run, at least.
        bytes_before: bytes of these files before,
        bytes_after: and now; of a dry run 0. The old files are deleted one to two days later, by gc.
        skipped: ledgers that were left as they are, and why.
    """

    ledgers: int = 0
    entries: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    skipped: tuple[str, ...] = ()

    def plus(self, copied: LedgerCopy) -> Rewritten:
        return Rewritten(
            self.ledgers + 1,
            self.entries + copied.entries,
            self.files_before + copied.files_before,
            self.files_after + copied.files_after,
            self.bytes_before + copied.bytes_before,
            self.bytes_after + copied.bytes_after,
            self.skipped,
        )


def rewrite(
    log: Log,
    *,
    below_bytes: int | None = None,
    dry_run: bool = False,
    everything: bool = False,
    progress: Progress = lambda *_: None,
    read_rate: float | None = None,
) -> Rewritten:
    """Rewrites the ledgers whose files have less than ``below_bytes`` on average; by default what the topic's policies
    say, or else 4 MiB. ``everything``: also looks at ledgers that were rewritten before, and at the oldest ones,
    however long nothing was to be done. ``read_rate`` is in bytes per second."""

    def in_process(group: list[LedgerWork], epoch: int, report: Report) -> Iterable[LedgerCopy | Skipped]:
        return copies(group, lambda work: copy(log.files, work, epoch, log.clock, report))

    _check_rate(read_rate)
    return rewrite_with(
        log, in_process, below_bytes, dry_run=dry_run, everything=everything, progress=progress, read_rate=read_rate
    )


def rewrite_with(
    log: Log,
    copy_group: CopyGroup,
    below_bytes: int | None,
    *,
    dry_run: bool = False,
    everything: bool = False,
    progress: Progress = lambda *_: None,
    read_rate: float | None = None,
) -> Rewritten:
    """The same, and ``copy_group`` says how ledgers are copied."""
    below = _below_bytes(log, below_bytes)
    if dry_run:
        return _would_be(_plan(log, below, everything=everything))
    with rewriting(log):
        folders.prepare(log)
        work = _plan(log, below, everything=everything)
        report = _Reporter(log, progress, sum(each.bytes for each in work), read_rate)
        done = Rewritten()
        for group in in_groups(work, log):
            published, skipped = _rewrite_group(log, group, copy_group, report)
            for copied in published:
                done = done.plus(copied)
            done = replace(done, skipped=(*done.skipped, *(f"ledger {each.ledger}: {each.why}" for each in skipped)))
    logger.info(
        "rewritten topic=%s ledgers=%d entries=%d files=%d to %d bytes=%d to %d skipped=%d", log.topic.name,
        done.ledgers, done.entries, done.files_before, done.files_after, done.bytes_before, done.bytes_after,
        len(done.skipped),
    )  # fmt: skip
    return done


def rewriting(log: Log) -> AbstractContextManager[Progress]:
    """A lock, so that no two do the same work."""
    return only_one(log, RewriterKey(log.topic.uuid), "rewritten", "LEDGER_REWRITING_RUNNING")


def _below_bytes(log: Log, asked: int | None) -> int:
    if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool) or asked <= 0):
        raise InvalidInput(f"below_bytes is {asked!r}: it must be a number of bytes above 0, or None for the default")
    return asked or log.policies().record.rewrite_below_bytes or log.limits.rewrite_below_bytes


def _check_rate(rate: float | None) -> None:
    if rate is not None and (not isinstance(rate, (int, float)) or not rate > 0):
        raise InvalidInput(f"read_rate is {rate!r}: it must be a number of bytes per second above 0, or None")


def _plan(log: Log, below_bytes: int, *, everything: bool) -> list[LedgerWork]:
    """Planned again if it took so long that gc has deleted what was still to be read."""
    for _ in range(log.limits.look_attempts):
        view = log.refresh(sync=True)
        try:
            return plan(log, view, below_bytes, everything=everything)
        except CorruptData:
            if log.refresh(sync=True).head.gc_epoch == view.head.gc_epoch:
                raise
    raise Conflict(
        f"topic '{log.topic.name}': gc is always faster than the planning of a rewriting; nothing was changed"
    )


def _would_be(work: list[LedgerWork]) -> Rewritten:
    entries = sum(each.entries for each in work)
    files, size = sum(each.files for each in work), sum(each.bytes for each in work)
    return Rewritten(len(work), entries, entries, files, size)


class _Reporter:
    """Reports progress, and waits where the work is ahead of its rate."""

    def __init__(self, log: Log, progress: Progress, total: int, rate: float | None) -> None:
        self._clock, self._progress, self._total, self._rate = log.clock, progress, total, rate
        self._started, self._done = log.clock.monotonic(), 0

    def __call__(self, more: int) -> None:
        self._done += more
        self._progress("rewriting", self._done, max(self._total, self._done))
        if self._rate is not None:
            self._clock.sleep(max(0.0, self._done / self._rate - (self._clock.monotonic() - self._started)))


def _rewrite_group(
    log: Log, group: list[LedgerWork], copy_group: CopyGroup, report: Report
) -> tuple[list[LedgerCopy], list[Skipped]]:
    for last_try in (number == _TRIES for number in range(1, _TRIES + 1)):
        found = list(copy_group(group, log.refresh(sync=True).head.gc_epoch, report))
        copied = [each for each in found if isinstance(each, LedgerCopy)]
        skipped = [each for each in found if isinstance(each, Skipped)]
        for each in skipped:
            logger.warning("topic=%s: ledger %d is not rewritten: %s", log.topic.name, each.ledger, each.why)
        try:
            published = publish(log, copied)
        except Conflict as conflict:
            if conflict.code != STAGED_TOO_LONG_AGO or last_try:
                raise
            logger.warning("topic=%s: rewriting %d ledgers begins again: %s", log.topic.name, len(group), conflict)
            continue
        overtaken = [each for each in copied if each not in published]
        return published, [*skipped, *(Skipped(each.before.ledger, _OVERTAKEN) for each in overtaken)]
    raise AssertionError("the last try has returned or raised")


_OVERTAKEN = "it was given up, or rewritten by somebody else, meanwhile"


def publish(log: Log, copied: Sequence[LedgerCopy]) -> list[LedgerCopy]:
    """Puts the new leaves into the index, and returns those for which that was done: of ledgers that are still there,
    and whose leaf is still the one that was copied."""
    published: list[LedgerCopy] = []
    staged: dict[object, tuple[tuple[FileRef, ...], FileRef | None]] = {}  # once, however often this is tried

    def edit(head: Head) -> Head | None:
        nonlocal published
        log.check_not_set_back(head)
        check_epochs(log, head, (each.after.file for each in copied))  # the others of a ledger are of the same epoch
        published = [each for each in copied if _is_current(log, head, each)]
        if not published:
            return None
        known = (head.index, head.going, head.gc_epoch, tuple(each.before.ledger for each in published))
        if known not in staged:
            staged[known] = _stage_index(log, head, published)
        index, list_of_going = staged[known]
        return replace(head, index=index, going=list_of_going)

    if copied:
        log.change_head(edit, "publishing rewritten ledgers")
    return published


def _is_current(log: Log, head: Head, copied: LedgerCopy) -> bool:
    leaf = Index(log.files, head.index, first_ledger(head)).leaf(copied.before.ledger)
    return leaf is not None and leaf.file == copied.before.file


def _stage_index(log: Log, head: Head, copied: list[LedgerCopy]) -> tuple[tuple[FileRef, ...], FileRef | None]:
    """The new spine, and the list of what it replaces: nodes, and old leaves, which lead to the files they name."""
    epoch = head.gc_epoch
    spine, nodes = Index(log.files, head.index).replaced({each.after.ledger: each.after for each in copied}, epoch)
    leaves = [Going(each.before.file, epoch, leaf_of=each.before.ledger) for each in copied]
    before = [each for each in going.fetch(log.files, head) if not going.is_done(each, head)]
    gone = [*before, *leaves, *(Going(node, epoch) for node in nodes)]
    return spine, going.stage(log.files, gone, epoch)
