"""One topic as one process sees it.

A :class:`Log` keeps the head and the open ledger's commits in memory. Writers use them even if they may be outdated: a
commit that was decided from an outdated head is refused, because it checks the head's version. Readers keep them
current with a watch, and by polling in case the watch is lost.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS, Limits
from pyspark_ledger.base.position import Position
from pyspark_ledger.dedup import producers as dedup
from pyspark_ledger.errors import CorruptData, DataLoss, NotFound
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.log.index import Index
from pyspark_ledger.metadata.port import (
    CommitKey,
    DedupKey,
    HeadKey,
    Key,
    Metadata,
    NamespaceKey,
    R,
    SchemaKey,
    Versioned,
)
from pyspark_ledger.metadata.records import Commit, Entry, Head, Topic
from pyspark_ledger.metadata.transactions import Transactions

logger = logging.getLogger(__name__)

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

    @property
    def transactions(self) -> Transactions:
        return Transactions(self.metadata, self.limits, self.clock)

    def change_head(self, edit: Callable[[Head], Head | None], what: str) -> View:
        """Any change of the head that is not an append. Commits that were decided from the old head are refused,
        because the head has another version then."""
        self.transactions.change(_HeadNode(self), edit, f"topic '{self.topic.name}': {what}")
        return self.view()

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
            self._hinted = False
            found = self.metadata.read(HeadKey(self.topic.uuid), self._hint if self._watch else None)
            if found is None or (self._view is not None and found.version < self._view.version):
                if not fresh:
                    continue  # the server of a new session may lag behind
                raise self._gone() if found is None else self._rolled_back()
            commits = self._open_commits(found.record)
            if commits is not None:
                self._seen_at = self.clock.monotonic()
                return self._install(found, commits)
        raise CorruptData(
            f"topic '{self.topic.name}' ({self.topic.uuid}): commits that its head names are not in ZooKeeper"
        )

    def committed(self, head: Head, version: int, commit: Commit, highest: pa.Table | None = None) -> View:
        """Adds a commit that this process has just made to the view, without reading it."""
        assert self._view is not None
        assert version == self._view.version + 1
        if self._producers is not None and self._producers.next_commit == commit.number:
            self._producers.apply(commit, self.files, highest)
        return self._install(Versioned(head, version), (*self._view.open_commits, commit))

    def head_changed(self, now: Versioned[Head]) -> None:
        """Takes over a head that this process has just written, without a new commit."""
        if self._view is not None and now.version == self._view.version + 1:
            self._install(now, self._view.open_commits)

    def _install(self, head: Versioned[Head], commits: tuple[Commit, ...]) -> View:
        self._view = View(head.record, head.version, commits)
        return self._view

    def _open_commits(self, head: Head) -> tuple[Commit, ...] | None:
        """None if the ledger was sealed and its nodes were deleted while we read them."""
        known: tuple[Commit, ...] = ()
        if self._view is not None and self._view.head.ledger == head.ledger:
            known = self._view.open_commits
        numbers = range(head.ledger_first_commit + len(known), head.next_commit)
        found = self.metadata.read_many([CommitKey(head.uuid, head.ledger, n) for n in numbers])
        new = tuple(node.record for node in found if node is not None)
        return (*known, *new) if len(new) == len(found) else None

    def _read(self, key: Key[R]) -> R:
        """A record that every topic has. If it seems to be missing it is read again after a sync, because the server
        may lag behind."""
        found = self.metadata.read(key)
        if found is None:
            self.metadata.sync()
            found = self.metadata.read(key)
        if found is None:
            raise self._gone()
        return found.record

    def _hint(self) -> None:
        self._hinted = True

    def _gone(self) -> NotFound:
        return NotFound(
            f"topic '{self.topic.name}' ({self.topic.uuid}) was deleted; a topic made since under the same name is "
            "another topic",
            "LEDGER_TOPIC_DELETED",
        )

    def _rolled_back(self) -> DataLoss:
        return DataLoss(
            f"topic '{self.topic.name}': its head is older than it was before: ZooKeeper was rolled back to an older "
            "state, and commits were lost. Writers stop until it is repaired",
            "LEDGER_SET_BACK",
        )

    # -- commits -------------------------------------------------------------------------------------------

    def commit(self, view: View, number: int) -> Commit:
        """A commit by number, from the open ledger or the index."""
        if number >= view.head.ledger_first_commit:
            return view.open_commits[number - view.head.ledger_first_commit]
        index = Index(self.files, view.head.index)
        leaf = next(index.leaves(lambda row: row.first_commit, number))
        return index.commits(leaf)[number - leaf.first_commit]

    def commits_from(self, view: View, position: Position) -> Iterator[Commit]:
        """Every commit that ends after a position, in order."""
        self.check_not_past_end(view, position)
        if position.ledger < view.head.ledger:
            index = Index(self.files, view.head.index)
            for leaf in index.leaves(lambda row: row.ledger, position.ledger):
                yield from _ending_after(index.commits(leaf), position)
        yield from _ending_after(view.open_commits, position)

    def commit_at_ordinal(self, view: View, ordinal: int) -> Commit:
        """The commit of the record that has ``ordinal`` records before it."""
        commits: Sequence[Commit] = view.open_commits
        if not commits or ordinal < commits[0].records_before:
            index = Index(self.files, view.head.index)
            commits = index.commits(next(index.leaves(lambda row: row.records_before, ordinal)))
        return commits[bisect_right(commits, ordinal, key=lambda commit: commit.records_before) - 1]

    def commit_at_time(self, view: View, publish_ms: int) -> Commit | None:
        """The first commit published at or after a time. Publish times never go back, so this is a search."""
        commits: Iterator[Commit] = iter(view.open_commits)
        if not view.open_commits or view.open_commits[0].publish_ms >= publish_ms:
            commits = self._commits_around_time(view, publish_ms)
        return next((commit for commit in commits if commit.publish_ms >= publish_ms and commit.entry_count), None)

    def _commits_around_time(self, view: View, publish_ms: int) -> Iterator[Commit]:
        index = Index(self.files, view.head.index)
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
            record = self._read(SchemaKey(self.topic.uuid, schema_id))
            self._schemas[schema_id] = schemas.from_bytes(record.arrow)
        return self._schemas[schema_id]

    def producers(self) -> tuple[View, dedup.Producers]:
        """A view, and the producers' states at that view: from memory or from the snapshot, and the commits since."""
        view = self.view()
        for _ in range(self.limits.look_attempts):
            states = self._producers
            if states is None or not self._can_follow(states, view.head):
                states = dedup.Producers.load(self._read(DedupKey(self.topic.uuid)), self.files, self.limits)
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
            file = self._read(DedupKey(self.topic.uuid)).producers_file
            self._snapshot = (view.head.ledger, file.length if file is not None else 0)
        if not name and max(largest, self._snapshot[1]) > at_most * _PRODUCER_BYTES:
            return None
        return self.producers()[1].known_sequences(at_most, name)

    def _can_follow(self, states: dedup.Producers, head: Head) -> bool:
        """Whether the state can be derived from what is in memory and the open ledger's commits. If a topic evicts
        producers, it does so when a ledger is sealed: then only the new snapshot is right."""
        if head.policies.evict_producers_ms and states.first_commit != head.ledger_first_commit:
            return False
        return head.ledger_first_commit <= states.next_commit <= head.next_commit

    def deduplicates(self, view: View) -> bool:
        """Whether sequence ids are checked: the topic's policy, or else its namespace's."""
        policy = view.head.policies.deduplication
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


def _head(view: View) -> Versioned[Head]:
    return Versioned(view.head, view.version)


def _ending_after(commits: list[Commit] | tuple[Commit, ...], position: Position) -> Iterator[Commit]:
    first = bisect_left(
        commits,
        (position.ledger, position.entry),
        key=lambda commit: (commit.ledger, commit.first_entry + commit.entry_count - 1),
    )
    yield from commits[first:]
