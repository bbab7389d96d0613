"""One topic as one process sees it.

A :class:`Log` keeps the head and the open ledger's commits in memory. Writers use them even if they may be outdated: a
commit that was decided from an outdated head is refused, because it checks the head's version. Readers keep them
current with a watch, and by polling in case the watch is lost.

What is in memory may also be of a history that has ended, because ZooKeeper was rolled back: see ``rollback``.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS, Limits
from pyspark_ledger.base.names import this_process
from pyspark_ledger.base.position import Position
from pyspark_ledger.dedup import producers as dedup
from pyspark_ledger.errors import CorruptData, DataLoss, LedgerError, NotFound
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.log import rollback, root
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.pieces import slices_of_commit, slices_of_list
from pyspark_ledger.log.queue import WriteQueue
from pyspark_ledger.log.slices import LogSlice
from pyspark_ledger.log.trimmed import first_ledger
from pyspark_ledger.metadata.port import (
    Check,
    CommitKey,
    Create,
    DedupKey,
    Delete,
    HeadKey,
    Key,
    Metadata,
    NamespaceKey,
    Op,
    Part,
    PartKey,
    PoliciesKey,
    Put,
    R,
    RetentionKey,
    SchemaKey,
    TipKey,
    TransactionLost,
    Versioned,
)
from pyspark_ledger.metadata.records import Commit, Entry, Head, Marker, Policies, Topic
from pyspark_ledger.metadata.transactions import RolledBack, Transactions
from pyspark_ledger.metadata.wallclock import believable_ms

logger = logging.getLogger(__name__)

FRESH_S = 5.0  # how old what is known of the head may be when a file is staged under its gc epoch
_NOTE = "a note that ZooKeeper was rolled back"
_NAMESPACE_S = 10.0  # how long a change of the namespace's policy may take to be noticed
_PRODUCER_BYTES = 100  # of one producer in a file, at most, for a name that anybody would choose


@dataclass(frozen=True, slots=True)
class View:
    """The topic at one version of its head. It is consistent, and never changes."""

    head: Head
    version: int
    open_commits: tuple[Commit, ...]  # every commit of the open ledger, in order


class Log:
    """One topic: its head, commits, schemas and producers, as far as they were read."""

    def __init__(
        self,
        metadata: Metadata,
        storage: Storage,
        topic: Topic,
        *,
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
        watch: bool = False,
    ) -> None:
        self.metadata, self.storage, self.topic, self.limits, self.clock = (
            metadata,
            storage,
            topic,
            limits,
            clock,
        )
        self.files = TopicFiles(storage, topic.uuid, clock)
        self._watch = watch
        self._view: View | None = None
        self._seen_at = 0.0
        self._hinted = False
        self._schemas: dict[int, pa.Schema] = {}
        self._producers: dedup.Producers | None = None
        self._snapshot: tuple[int, int] | None = None  # the open ledger, and the size of the snapshot before it
        self._namespace: tuple[float, bool] | None = None  # when it was read, and whether it deduplicates
        self._policies: tuple[int, Versioned[Policies]] | None = None  # over which connection they were read
        self._parts: set[tuple[int, Part]] = set()  # that are there, as was seen over a connection
        self._noting = False  # that ZooKeeper was rolled back
        self._epoch_seen: tuple[int, float] | None = None  # the gc epoch, and when it was that
        self.queue = WriteQueue(self)
        self.histories = 1  # that this process has seen: positions of an earlier one are of no use in this one

    def now_ms(self) -> int:
        """The time for what is written into the log: a wrong clock of this machine does no harm."""
        return believable_ms(self.metadata, self.clock, self.limits)

    @property
    def transactions(self) -> Transactions:
        return Transactions(self.metadata, self.limits, self.clock, self.refused)

    def change_head(
        self,
        edit: Callable[[Head], Head | None],
        what: str,
        also: Callable[[], Iterable[Op]] = lambda: (),
        *,
        in_any_root: bool = False,
    ) -> View:
        """Any change of the head that is not an append. Commits that were decided from the old head are refused,
        because the head has another version then. ``also`` gives operations of the same transaction. ``in_any_root``
        is for a change that names no new file."""
        operation, before = self.clock.new_id(), b""

        def changed(head: Head) -> Head | None:
            nonlocal before
            if not in_any_root:
                self.check_root(head)
            edited = edit(head)
            before = head.last_change
            return None if edited is None else replace(edited, last_change=operation)

        def with_tip(after: Head) -> Iterable[Op]:
            return (*_next_tip(after.uuid, before, operation), *also())

        what = f"topic '{self.topic.name}': {what}"
        self.transactions.change(_HeadNode(self), changed, what, operation=operation, also=with_tip)
        return self.view()

    def ensure_part(self, part: Part) -> None:
        """Makes the parent of nodes of one kind, which a topic gets with the first of them."""
        if (self.metadata.connections, part) not in self._parts:
            self.make_part(part)

    def make_part(self, part: Part) -> Versioned[Marker]:
        """The same, and what is there now. Raises if the topic is gone."""
        made = (self.metadata.connections, part)
        what = f"topic '{self.topic.name}': its {part}"
        found = self.transactions.make(PartKey(self.topic.uuid, part), Marker(), what, lambda: self.refresh(sync=True))
        self._parts.add(made)
        return found

    def retention_guard(self) -> Op:
        """For a transaction by which somebody begins to need old records: it orders that against those who give up old
        ledgers. Call it before reading the head from which the transaction is decided."""
        key = RetentionKey(self.topic.uuid)
        return Put(key, Marker(), self._read(key).version)

    def admins_guard(self) -> Op:
        """For a change of the head that only an admin may make, where the namespace has roles: a writer may write the
        head too, but not this node."""
        self.ensure_part("locks")
        return Put(PartKey(self.topic.uuid, "locks"), Marker(), None)

    def refused(self, refusal: TransactionLost) -> None:
        """Called when a transaction was refused: some reasons say more than that somebody else was faster."""
        match refusal.op:
            case Check(PoliciesKey(uuid), _) if uuid == self.topic.uuid:
                self._policies = None
            case Check(PartKey(uuid, "queue"), _) if uuid == self.topic.uuid:
                self.queue.changed()
            case Delete(TipKey(uuid, _), _) if uuid == self.topic.uuid and not self._noting:
                # The head had the right version, or that would have been the reason. If the topic was repaired since,
                # and all that this process knows is there, it has only been too slow.
                before = self._view
                if before is None or self.refresh(sync=True).head.last_change == before.head.last_change:
                    raise self._rolled_back("its head has the version that it had before, and is another one")

    @classmethod
    def by_uuid(cls, metadata: Metadata, storage: Storage, uuid: str, limits: Limits, clock: Clock) -> Log | None:
        """The topic with this UUID; None if there is none."""
        head = metadata.read(HeadKey(uuid))
        if head is None:
            metadata.sync()
            head = metadata.read(HeadKey(uuid))
        if head is None:
            return None
        return cls(metadata, storage, Topic(head.record.name, uuid, "", "", 0), limits=limits, clock=clock)

    def sibling(self, uuid: str) -> Log | None:
        """Another topic of the namespace."""
        return Log.by_uuid(self.metadata, self.storage, uuid, self.limits, self.clock)

    # -- the view ------------------------------------------------------------------------------------------

    def view(self, max_age_s: float | None = None) -> View:
        """The view in memory; read again if the watch fired or it is older than ``max_age_s``."""
        stale = self._hinted or (max_age_s is not None and self.clock.monotonic() - self._seen_at > max_age_s)
        return self.refresh() if self._view is None or stale else self._view

    def refresh(self, *, sync: bool = False) -> View:
        """Reads the head, and the commits that are new since the last look."""
        for attempt in range(self.limits.look_attempts):
            fresh = sync or attempt > 0
            if fresh:
                self.metadata.sync()
                self._policies = None  # a rejection counts only if nothing that it is based on is outdated
            self._hinted = False
            before = self._view  # another thread may change it while this one reads, and is then not to be compared
            found = self.metadata.read(HeadKey(self.topic.uuid), self._hint if self._watch else None)
            is_older = found is not None and before is not None and found.version < before.version
            if (found is None or is_older) and not fresh:
                continue  # the server of a new session may lag behind
            if found is None:
                raise self.gone()
            commits = self._open_commits(before, found.record)
            if commits is not None:
                now = View(found.record, found.version, commits)
                self._check_follows(before, now)
                if self._view is before or self._view is None or self._view.version <= now.version:
                    self._seen_at = self.clock.monotonic()
                    self._view = now
                    self.saw_epoch(now.head.gc_epoch)
                return now
        raise CorruptData(
            f"topic '{self.topic.name}' ({self.topic.uuid}): commits that its head names are not in ZooKeeper, or do "
            "not follow each other"
        )

    def committed(self, head: Head, version: int, commits: Sequence[Commit], highest: pa.Table | None = None) -> View:
        """Adds commits that this process has just made, in one transaction, to the view, without reading them.
        ``highest`` are the highest ids of the only one, if there is one."""
        assert self._view is not None
        assert version == self._view.version + 1
        for commit in commits:
            if self._producers is not None and self._producers.next_commit == commit.number:
                self._producers.apply(commit, self.files, highest if len(commits) == 1 else None)
        self._view = View(head, version, (*self._view.open_commits, *commits))
        return self._view

    def gc_epoch(self, max_age_s: float) -> int:
        """For files that are about to be staged: the topic's gc epoch, not older than so many seconds. Whoever only
        stages, because others commit for it, need not read their commits for that."""
        if self._epoch_seen is None:
            self.view()
        if self._epoch_seen is None or self.clock.monotonic() - self._epoch_seen[1] > max_age_s:
            found = self.metadata.read(HeadKey(self.topic.uuid))
            if found is not None:
                self.queue.saw_next(found.record.next_commit)
            self.saw_epoch(self.refresh(sync=True).head.gc_epoch if found is None else found.record.gc_epoch)
        assert self._epoch_seen is not None
        return self._epoch_seen[0]

    def saw_epoch(self, epoch: int) -> None:
        """Somebody says that this is the gc epoch now."""
        self._epoch_seen = epoch, self.clock.monotonic()

    def head_changed(self, now: Versioned[Head]) -> None:
        """Takes over a head that this process has just written, without a new commit. If it has another open ledger,
        as after a repair, that is empty."""
        if self._view is not None and now.version == self._view.version + 1:
            is_same = now.record.ledger == self._view.head.ledger
            self._view = View(now.record, now.version, self._view.open_commits if is_same else ())

    def _open_commits(self, before: View | None, head: Head) -> tuple[Commit, ...] | None:
        """None if the ledger was sealed and its nodes were deleted while we read them, or ZooKeeper was rolled back
        after we had read the head. ``before`` is the view that was in memory."""
        known: tuple[Commit, ...] = ()
        if before is not None and before.head.ledger == head.ledger and before.head.next_commit <= head.next_commit:
            known = before.open_commits
        commits = self._with_new_commits(head, known)
        if commits is not None and known and not rollback.is_chain(commits[len(known) - 1 :], head):
            commits = self._with_new_commits(head, ())  # what is in memory is of a history that has ended
        return None if commits and not rollback.is_chain(commits, head) else commits

    def _with_new_commits(self, head: Head, known: tuple[Commit, ...]) -> tuple[Commit, ...] | None:
        numbers = range(head.ledger_first_commit + len(known), head.next_commit)
        found = self.metadata.read_many([CommitKey(head.uuid, head.ledger, n) for n in numbers])
        new = tuple(node.record for node in found if node is not None)
        return (*known, *new) if len(new) == len(found) else None

    def _read(self, key: Key[R]) -> Versioned[R]:
        """A record that every topic has. If it seems to be missing it is read again after a sync, because the server
        may lag behind."""
        found = self.metadata.read(key)
        if found is None:
            self.metadata.sync()
            found = self.metadata.read(key)
        if found is None:
            self.refresh(sync=True)  # raises if the topic is gone, or was rolled back to before the record was made
            raise CorruptData(f"topic '{self.topic.name}' ({self.topic.uuid}): {key} is not in ZooKeeper")
        return found

    def _hint(self) -> None:
        self._hinted = True

    def gone(self) -> NotFound:
        return NotFound(
            f"topic '{self.topic.name}' ({self.topic.uuid}) was deleted (or ZooKeeper was rolled back to before it "
            "was made); a topic made since under the same name is another topic",
            "LEDGER_TOPIC_DELETED",
        )

    # -- rollbacks -----------------------------------------------------------------------------------------

    def _check_follows(self, before: View | None, now: View) -> None:
        """Raises if what was just read does not come after the view that was in memory."""
        if before is None or (now.version, now.head.last_change) == (before.version, before.head.last_change):
            return
        number = before.head.next_commit - 1
        is_lost = not self.has_commit(now, number, before.head.last_commit)
        why = f"its commit {number} is another one now" if is_lost else rollback.what_went_back(before, now)
        # After a repair versions and the like have begun anew: then it matters only whether a commit is lost.
        if why and (is_lost or before.head.repaired >= now.head.repaired):
            raise self._rolled_back(why)

    def has_commit(self, view: View, number: int, id: bytes) -> bool:
        """Whether the last commit up to this number has an id that starts so, as far as can be known. (Where a repair
        has left a gap in the numbers, that is the last one before the gap.)"""
        if number < 0 or not id or (view.head.trim is not None and number < view.head.trim.commit):
            return True
        if number >= view.head.next_commit:
            return False  # even if the last one has this id: it was lost, and has been sent again since
        after = self.commit(view, number + 1)
        known = view.head.last_commit if after is None else after.previous
        if known:
            return known.startswith(id)
        found = self.commit(view, number)  # what comes after it is of format 1
        return found is not None and found.id.startswith(id)

    def check_has_commit(self, view: View, number: int, id: bytes) -> None:
        """Raises DataLoss if a commit that somebody has seen is not in the log: its number, and how its id starts."""
        if not self.has_commit(view, number, id):
            raise self._rolled_back(f"it had a commit {number} that it does not have now", number)

    def check_not_set_back(self, head: Head) -> None:
        """Raises DataLoss if a rollback was noticed, and nobody has decided yet how to go on."""
        if head.set_back is not None:
            raise rollback.loss(self.topic.name, head.set_back.why)

    def check_root(self, head: Head) -> None:
        """Before a file in this process's storage root is named by a change of this head.

        :raises Unavailable: the namespace's storage is being moved.
        :raises Conflict: it was moved, and this process has the former root open.
        """
        if head.moves != self.storage.moves:
            raise root.refusal(self.metadata, self.storage, self.topic.name)

    def check_readable(self, head: Head) -> None:
        """Raises Conflict if the storage was moved: new files are elsewhere. While it is being moved all is here."""
        if head.moves != self.storage.moves:
            root.check_not_left(self.metadata, self.storage)

    def _rolled_back(self, why: str, number: int | None = None) -> RolledBack:
        """What to raise if a rollback was noticed, after it was written into the head for everybody else. ``number`` is
        of a commit that is lost; the default is the last one that is in memory."""
        known = self._view.head if self._view is not None else None
        repaired_before = known.repaired if known is not None and number is None else 0
        if number is None:
            number = known.next_commit - 1 if known is not None else -1
        self._view = self._producers = self._policies = self._snapshot = None  # of a history that has ended
        self._schemas = {}
        self.histories += 1
        found = rollback.note(self.clock.now_ms(), this_process(), why, number, known)
        repaired = False

        def note(head: Head) -> Head | None:
            nonlocal repaired
            repaired = found.next_commit <= head.repaired and repaired_before < head.repaired
            noted = rollback.with_largest(head.set_back, found)
            return None if repaired or noted == head.set_back else replace(head, set_back=noted)

        self._noting = True  # if that is refused too, there is nothing more to say
        try:
            with contextlib.suppress(LedgerError):  # the next one who notices writes it
                self.change_head(note, _NOTE, in_any_root=True)
        finally:
            self._noting = False
        return rollback.noticed(self.topic.name, why, repaired=repaired)

    def later_epoch(self, where: str, epoch: int, head: Head, *, note: bool = True) -> DataLoss:
        """What to raise if a file is of a later gc epoch than the head's; ``note``: after that was written into it."""
        why = f"{where} is of gc epoch {epoch}, and that is {head.gc_epoch} now"

        def noted(head: Head) -> Head | None:
            if epoch <= head.gc_epoch:
                return None  # only the head in memory was older
            found = rollback.note(self.clock.now_ms(), this_process(), why, head.next_commit - 1, head)
            found = rollback.with_largest(head.set_back, replace(found, gc_epoch=epoch))
            return None if found == head.set_back else replace(head, set_back=found)

        if note:
            with contextlib.suppress(LedgerError):  # the next one who notices writes it
                self.change_head(noted, _NOTE, in_any_root=True)
        return rollback.loss(self.topic.name, why)

    # -- commits -------------------------------------------------------------------------------------------

    def commit(self, view: View, number: int) -> Commit | None:
        """A commit by number, from the open ledger or the index. Where a repair has left a gap in the numbers, the
        first one after it; None if there is none yet."""
        head = view.head
        if number < head.ledger_first_commit:
            index = self.index(view)
            for leaf in index.leaves(lambda row: row.first_commit, number):
                found = index.commit(leaf, max(0, number - leaf.first_commit))
                if found is not None:
                    return found
        at = max(0, number - head.ledger_first_commit)
        return view.open_commits[at] if at < len(view.open_commits) else None

    def commits_since(self, view: View, number: int) -> Iterator[Commit]:
        """Every commit from a number on that is still there, in order."""
        if number < view.head.ledger_first_commit:
            index = self.index(view)
            for leaf in index.leaves(lambda row: row.first_commit, number):
                yield from (commit for commit in index.commits(leaf) if commit.number >= number)
        yield from view.open_commits[max(0, number - view.head.ledger_first_commit) :]

    def index(self, view: View, *, planned: bool = False) -> Index:
        """The sealed ledgers of the log. ``planned``: also those that were given up not long ago, for a batch that was
        planned before."""
        return Index(self.files, view.head.index, first_ledger(view.head, planned=planned))

    def commits_from(self, view: View, position: Position, *, planned: bool = False) -> Iterator[Commit]:
        """Every commit that ends after a position and is still there, in order; ``planned`` as for :meth:`index`."""
        self.check_not_past_end(view, position)
        if position.ledger < view.head.ledger:
            index = self.index(view, planned=planned)
            for leaf in index.leaves(lambda row: row.ledger, position.ledger):
                yield from _ending_after(index.commits(leaf), position)
        yield from _ending_after(view.open_commits, position)

    def pieces(
        self, view: View, start: Position, end: Position, *, planned: bool = False
    ) -> Iterator[Sequence[LogSlice | Commit]]:
        """What the ledgers consist of that have a part of [start, end), one after the other: slices, and commits whose
        slices are made when they are wanted. ``planned`` as for :meth:`index`."""
        self.check_not_past_end(view, start)
        if start.ledger < view.head.ledger:
            index = self.index(view, planned=planned)
            for leaf in index.leaves(lambda row: row.ledger, start.ledger):
                if Position(leaf.ledger, 0, 0) >= end:
                    return
                yield index.pieces(leaf)
        yield view.open_commits

    def slices_of(self, commit: Commit) -> list[LogSlice]:
        """All of a commit."""
        if commit.entries_file is None:
            return slices_of_commit(commit)
        return self.files.fetch_kept(commit.entries_file, LogSlice, lambda table: slices_of_list(commit, table))

    def commit_at_ordinal(self, view: View, ordinal: int) -> Commit:
        """The commit of the record that has ``ordinal`` records before it; the first one if that is gone."""
        commits: Sequence[Commit] = view.open_commits
        if not commits or ordinal < commits[0].records_before:
            index = self.index(view)
            commits = index.commits(next(index.leaves(lambda row: row.records_before, ordinal)))
        return commits[max(0, bisect_right(commits, ordinal, key=lambda commit: commit.records_before) - 1)]

    def commit_at_token(self, view: View, number: int) -> Commit | None:
        """The commit whose records have a token with this number; None if none does, or if it is gone, and longer than
        batches that were planned before can be read."""
        commits: Sequence[Commit] = view.open_commits
        if not commits or number < commits[0].tokens_before:
            index = self.index(view, planned=True)
            leaf = next(index.leaves(index.tokens_before, number), None)
            commits = [] if leaf is None else index.commits(leaf)
        at = bisect_right(commits, number, key=lambda commit: commit.tokens_before) - 1
        found = commits[at] if at >= 0 else None
        there = found is not None and found.mints and number < found.tokens_before + found.records
        return found if there else None

    def commit_at_time(self, view: View, publish_ms: int) -> Commit | None:
        """The first commit published at or after a time. Publish times never go back, so this is a search."""
        commits: Iterator[Commit] = iter(view.open_commits)
        if not view.open_commits or view.open_commits[0].publish_ms >= publish_ms:
            commits = self._commits_around_time(view, publish_ms)
        return next((commit for commit in commits if commit.publish_ms >= publish_ms and commit.entry_count), None)

    def _commits_around_time(self, view: View, publish_ms: int) -> Iterator[Commit]:
        index = self.index(view)
        # Commits of one millisecond may be in several ledgers: begin with the last ledger that starts earlier.
        for leaf in index.leaves(lambda row: row.publish_ms, publish_ms - 1):
            yield from index.commits(leaf)
        yield from view.open_commits

    def entries(self, commit: Commit) -> tuple[Entry, ...]:
        return self.files.fetch_entries(commit.entries_file) if commit.entries_file else commit.entries

    def check_not_past_end(self, view: View, position: Position) -> None:
        if position > view.head.end and position.ledger >= view.head.ledger:
            raise DataLoss(
                f"position {position} is past the end {view.head.end} of topic '{self.topic.name}': ZooKeeper was "
                "rolled back to an older state, and commits were lost",
                "LEDGER_POSITION_PAST_END",
            )

    # -- what belongs to a version of the head -------------------------------------------------------------

    def schema(self, schema_id: int) -> pa.Schema:
        if schema_id not in self._schemas:
            record = self._read(SchemaKey(self.topic.uuid, schema_id)).record
            self._schemas[schema_id] = schemas.from_bytes(record.arrow)
        return self._schemas[schema_id]

    def producers(self) -> tuple[View, dedup.Producers]:
        """A view, and the producers' states at that view: from memory or from the snapshot, and the commits since."""
        view = self.view()
        for _ in range(self.limits.look_attempts):
            states = self._producers
            if states is None or not self._can_follow(states, view.head):
                states = dedup.Producers.load(self._read(DedupKey(self.topic.uuid)).record, self.files, self.limits)
            if states.next_commit >= view.head.ledger_first_commit:
                for commit in view.open_commits[states.next_commit - view.head.ledger_first_commit :]:
                    states.apply(commit, self.files)
                self._producers = states
                if states.next_commit == view.head.next_commit:
                    return view, states
            self._producers = None
            view = self.refresh(sync=True)  # a ledger was sealed between the two reads
        raise CorruptData(f"topic '{self.topic.name}': its dedup snapshot does not belong to its head")

    def known_sequences(self, at_most: int, name: str = "") -> pa.Table | None:
        """(producer, sequence) of the producers whose records bring ids, or of one of them; None if there are more than
        ``at_most``. If the sizes of its files show that there are, it is not even loaded."""
        view = self.view()
        largest = max((c.highest_file.length for c in view.open_commits if c.highest_file is not None), default=0)
        if self._snapshot is None or self._snapshot[0] != view.head.ledger:
            file = self._read(DedupKey(self.topic.uuid)).record.producers_file
            self._snapshot = (view.head.ledger, file.length if file is not None else 0)
        if not name and max(largest, self._snapshot[1]) > at_most * _PRODUCER_BYTES:
            return None
        return self.producers()[1].known_sequences(at_most, name)

    def _can_follow(self, states: dedup.Producers, head: Head) -> bool:
        """Whether the state can be derived from what is in memory and the open ledger's commits. If a topic evicts
        producers, it does so when a ledger is sealed: then only the new snapshot is right."""
        if self.policies().record.evict_producers_ms and states.first_commit != head.ledger_first_commit:
            return False
        return head.ledger_first_commit <= states.next_commit <= head.next_commit

    def policies(self) -> Versioned[Policies]:
        """From memory. Whoever decides by them checks their version in the same transaction."""
        connection = self.metadata.connections
        if self._policies is None or self._policies[0] != connection:
            self._policies = connection, self._read(PoliciesKey(self.topic.uuid))
        return self._policies[1]

    def deduplicates(self) -> bool:
        """Whether sequence ids are checked: the topic's policy, or else its namespace's."""
        policy = self.policies().record.deduplication
        return self._namespace_deduplicates() if policy is None else policy

    def _namespace_deduplicates(self) -> bool:
        if self._namespace is None or self.clock.monotonic() - self._namespace[0] > _NAMESPACE_S:
            found = self.metadata.read(NamespaceKey())
            self._namespace = (self.clock.monotonic(), found is None or found.record.deduplication)
        return self._namespace[1]


class _HeadNode:
    """The head as a node for :meth:`Transactions.change`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.key = HeadKey(log.topic.uuid)

    def known(self) -> Versioned[Head]:
        return _head(self._log.view())

    def newest(self) -> Versioned[Head]:
        return _head(self._log.refresh(sync=True))

    def changed(self, now: Versioned[Head]) -> None:
        self._log.head_changed(now)


def head_ops(view: View, after: Head) -> tuple[Op, ...]:
    """Sets the head, decided from a view, and moves the tip along. The head's version comes first: if it is another
    one, that is why the transaction is refused."""
    uuid = after.uuid
    return Put(HeadKey(uuid), after, view.version), *_next_tip(uuid, view.head.last_change, after.last_change)


def _next_tip(uuid: str, before: bytes, after: bytes) -> tuple[Op, ...]:
    return Delete(TipKey(uuid, before)), Create(TipKey(uuid, after), Marker())


def _head(view: View) -> Versioned[Head]:
    return Versioned(view.head, view.version)


def _ending_after(commits: list[Commit] | tuple[Commit, ...], position: Position) -> Iterator[Commit]:
    first = bisect_left(
        commits,
        (position.ledger, position.entry),
        key=lambda commit: (commit.ledger, commit.first_entry + commit.entry_count - 1),
    )
    yield from commits[first:]
