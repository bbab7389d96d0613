"""What a topic of format 1 becomes in format 2: its head, its policies and its dedup snapshot.

The open ledger is sealed on the way, as ``log.seal`` does it: so no commit moves from one node to another, and the
first commit of format 2 begins a new ledger. Producers that have been silent for long are evicted by a later seal, not
by this one: an upgrade changes the form, not the meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import Position
from pyspark_ledger.dedup.producers import Producers
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.log import generations
from pyspark_ledger.log.index import Index, stage_leaf
from pyspark_ledger.log.topics import nodes_of
from pyspark_ledger.metadata.port import Op
from pyspark_ledger.metadata.records import Commit, DedupSnapshot, FileRef, Head, Policies, Replaced
from pyspark_ledger.zk_metadata.format1 import OldHead


@dataclass(frozen=True, slots=True)
class OldTopic:
    """All of a topic that its new head depends on, read and found to be whole."""

    head: OldHead
    commits: Sequence[Commit]  # of the open ledger
    dedup: DedupSnapshot
    files: TopicFiles
    producers: Producers
    last_commit: bytes  # its id

    @classmethod
    def read(
        cls,
        head: OldHead,
        commits: Sequence[Commit],
        dedup: DedupSnapshot,
        storage: Storage,
        limits: Limits,
        clock: Clock,
    ) -> OldTopic:
        """Raises CorruptData or Unavailable if a file that is needed cannot be read."""
        files = TopicFiles(storage, head.uuid, clock)
        producers = Producers.load(dedup, files, limits)
        for commit in commits[producers.next_commit - head.ledger_first_commit :]:
            producers.apply(commit, files)
        if producers.next_commit != head.next_commit:
            raise CorruptData(f"topic '{head.name}': its dedup snapshot does not belong to its head")
        for generation in head.generations:
            generations.fetch_manifest(files, generation.manifest)
        return cls(head, commits, dedup, files, producers, _last_commit(files, head, commits))

    def new_nodes(self, limits: Limits, clock: Clock) -> list[Op]:
        """Stages the files that the new nodes name. They are of the old head's gc epoch: so if this is not carried out
        after all, a later gc deletes them."""
        old = self.head
        index, dedup = old.index, self.dedup
        if self.commits:
            leaf = stage_leaf(self.files, list(self.commits), old.gc_epoch)
            index = Index(self.files, index).extended(leaf, old.gc_epoch, limits.index_fanout)
            dedup = self.producers.snapshot(self.files, Position(old.ledger, old.next_entry, 0), old.gc_epoch)
        return nodes_of(self._new_head(index, clock), Policies(**asdict(old.policies)), dedup)

    def _new_head(self, index: tuple[FileRef, ...], clock: Clock) -> Head:
        old, is_sealed = self.head, bool(self.commits)
        *before, newest = old.generations or (None,)
        replaced = [Replaced(generation, old.gc_epoch) for generation in before if generation is not None]
        return Head(
            uuid=old.uuid,
            name=old.name,
            schema_id=old.schema_id,
            ledger=old.ledger + is_sealed,
            ledger_first_commit=old.next_commit,
            ledger_opened_ms=clock.now_ms() if is_sealed else old.ledger_opened_ms,
            ledger_bytes=0,
            next_commit=old.next_commit,
            next_entry=0,
            last_publish_ms=old.last_publish_ms,
            records=old.records,
            bytes=old.bytes,
            gc_epoch=old.gc_epoch,
            last_change=clock.new_id(),
            last_commit=self.last_commit,
            index=index,
            gc_kept=self._without_manifests((*old.gc_kept, *old.gc_kept_before)),
            generation=newest,
            replaced=generations.stage_replaced(self.files, replaced, old.gc_epoch),
            tokens=old.tokens,
        )

    def _without_manifests(self, kept: tuple[FileRef, ...]) -> tuple[FileRef, ...]:
        """Format 1 kept the manifests of generations among the files that can be replaced. Generations have a list of
        their own now: gc would delete a manifest that is still in that list. One that is not is named by nothing."""
        return tuple(ref for ref in kept if not self._is_manifest(ref))

    def _is_manifest(self, ref: FileRef) -> bool:
        try:
            return generations.is_manifest(self.files.fetch_table(ref))
        except CorruptData:
            return False  # replaced, and deleted since


def _last_commit(files: TopicFiles, head: OldHead, commits: Sequence[Commit]) -> bytes:
    if not commits and head.index:
        index = Index(files, head.index)
        *_, leaf = index.leaves(lambda row: row.first_commit, head.next_commit)
        commits = index.commits(leaf)
    return commits[-1].id if commits else b""
