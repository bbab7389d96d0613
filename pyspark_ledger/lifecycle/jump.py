"""How a log goes on after a part of its history was lost: with numbers that nothing of the lost part can have used.

Processes, offsets and files may still speak of what was lost. So the next ledger, commit, gc epoch, generation and
token come well after the largest that is known. Positions and tokens of lost records then name nothing, and a writer, a
reader or a gc of the lost history is recognised for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.dedup.producers import Producers
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log import generations
from pyspark_ledger.log.index import Index, stage_leaf
from pyspark_ledger.log.trimmed import is_readable
from pyspark_ledger.metadata.records import Commit, DedupSnapshot, FileRef, Head, PendingRange, SetBack


@dataclass(frozen=True, slots=True)
class Known:
    """How far a history has come, as far as anything shows it."""

    next_commit: int = 0
    ledger: int = 0
    gc_epoch: int = 0
    next_token: int = 0
    generation: int = 0

    @classmethod
    def by(cls, head: Head) -> Known:
        """By a head, and by the note in it about a history that was lost before."""
        noted = head.set_back or SetBack(0, "", "")
        return cls(
            max(head.next_commit, noted.next_commit),
            max(head.ledger, noted.ledger),
            max(head.gc_epoch, noted.gc_epoch),
            max(head.token_base + head.tokens, noted.next_token),
            generations.last_number(head),
        )

    def __or__(self, other: Known) -> Known:
        return Known(
            max(self.next_commit, other.next_commit),
            max(self.ledger, other.ledger),
            max(self.gc_epoch, other.gc_epoch),
            max(self.next_token, other.next_token),
            max(self.generation, other.generation),
        )


def beyond(head: Head, known: Known, limits: Limits, now_ms: int) -> Head:
    """The head with a new open ledger, far beyond what is known; its index has to be seen to."""
    known |= Known.by(head)
    next_commit = known.next_commit + limits.repair_jump
    return replace(
        head,
        ledger=known.ledger + limits.repair_jump,
        ledger_first_commit=next_commit,
        ledger_opened_ms=now_ms,
        ledger_bytes=0,
        next_commit=next_commit,
        next_entry=0,
        gc_epoch=known.gc_epoch + limits.repair_jump,
        token_base=known.next_token + limits.repair_token_jump - head.tokens,
        last_generation=known.generation + limits.repair_jump,
        set_back=None,
        repaired=next_commit,
    )


@dataclass(frozen=True, slots=True)
class GoneOn:
    """What to write to ZooKeeper so that a log goes on."""

    head: Head
    dedup: DedupSnapshot


class Jump:
    """Lets one log go on. New files are staged in the gc epoch ``staged_in``; None: in the one that begins then.

    ``intact``: all files are there that the head says are kept for a while. If so, what was given up can be read for as
    long as it could have been otherwise; if not, gc deletes what is left of it."""

    def __init__(
        self, files: TopicFiles, limits: Limits, now_ms: int, *, staged_in: int | None = None, intact: bool = False
    ) -> None:
        self._files, self._limits, self._now_ms = files, limits, now_ms
        self._staged_in, self._intact = staged_in, intact

    def of(self, head: Head, commits: Sequence[Commit], dedup: DedupSnapshot, known: Known) -> GoneOn:
        """``commits`` are those of the open ledger, which is sealed; ``dedup`` is the snapshot before them."""
        after = beyond(head, known, self._limits, self._now_ms)
        epoch = after.gc_epoch if self._staged_in is None else self._staged_in
        pending = _still_readable(head, after) if self._intact else ()
        after = replace(after, index=self._sealed(head, commits, epoch), pending=tuple(pending))
        if self._intact:
            after = replace(after, replaced=self._replaced(head, after, epoch))
        producers = Producers.load(dedup, self._files, self._limits)
        for commit in commits:
            producers.apply(commit, self._files)
        snapshot = replace(producers.snapshot(self._files, after.end, epoch), next_commit=after.next_commit)
        return GoneOn(replace(after, gc_kept=gc.replaceable(after, snapshot)), snapshot)

    def _sealed(self, head: Head, commits: Sequence[Commit], epoch: int) -> tuple[FileRef, ...]:
        """The index with the commits of the open ledger."""
        if not commits:
            return head.index
        leaf = stage_leaf(self._files, list(commits), epoch)
        return Index(self._files, head.index).extended(leaf, epoch, self._limits.index_fanout)

    def _replaced(self, head: Head, after: Head, epoch: int) -> FileRef | None:
        """The older generations that are kept, as if the epochs had gone on one by one."""
        kept = [
            replace(each, epoch=after.gc_epoch - (head.gc_epoch - each.epoch))
            for each in generations.fetch_replaced(self._files, head.replaced)
            if generations.is_readable(each, head)
        ]
        return generations.stage_replaced(self._files, kept, epoch)


def _still_readable(head: Head, after: Head) -> Iterable[PendingRange]:
    """Ledgers that were given up not long ago. Of the others nothing is named any more: after a jump gc compares all
    files with all references, and deletes what is left of them."""
    for each in head.pending:
        if is_readable(each, head):
            yield replace(each, epoch=after.gc_epoch - (head.gc_epoch - each.epoch))
