"""What maintenance sees of all topics: their small nodes, read in pages, so that most topics cost nothing more.

Of ten thousand topics most are idle. A round reads the head and the policies of each, hundreds in one request, and
keeps what does not change: a topic's name, and when its gc epoch began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark_ledger.base.paging import by_halves, pages
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import (
    CursorKey,
    GcKey,
    HeadKey,
    PartKey,
    PoliciesKey,
    TopicKey,
    Versioned,
)
from pyspark_ledger.metadata.records import Cursor, GcEpoch, Head, Policies, Topic


@dataclass(frozen=True, slots=True)
class Seen:
    """A topic as it was seen: enough to tell that nothing has to be done."""

    topic: Topic
    head: Versioned[Head]
    policies: Versioned[Policies]
    gc: Versioned[GcEpoch]
    cursors: tuple[Versioned[Cursor], ...] = ()  # read only for topics whose policies concern them

    @property
    def uuid(self) -> str:
        return self.topic.uuid


class Look:
    """Looks at all topics again and again."""

    def __init__(self, namespace: OpenNamespace, *, all_cursors: bool = False) -> None:
        """``all_cursors``: the subscriptions of all topics are read, and not only where policies concern them."""
        self._namespace, self._metadata, self._all_cursors = namespace, namespace.metadata, all_cursors
        self._topics: dict[str, Topic] = {}  # by name
        self._epochs: dict[str, Versioned[GcEpoch]] = {}  # by UUID
        self._connection = 0  # over which these were read
        self.unreadable: dict[str, LedgerError] = {}  # topics whose nodes are damaged, or of a newer format,
        self.damaged: dict[CursorKey, LedgerError] = {}  # and subscriptions

    @property
    def uuids(self) -> set[str]:
        """Of the topics that there were when they were last looked at."""
        return {topic.uuid for topic in self._topics.values()}

    def log(self, seen: Seen) -> Log:
        """The topic, to work on it."""
        space = self._namespace
        return Log(self._metadata, space.storage, seen.topic, limits=space.limits, clock=space.clock)

    def all(self) -> Iterator[Seen]:
        """All topics, as they are now."""
        self._metadata.sync()
        if self._connection != self._metadata.connections:  # perhaps ZooKeeper was rolled back
            self._connection, self._topics, self._epochs = self._metadata.connections, {}, {}
        names = topics.list_topics(self._metadata)
        self._topics = {name: topic for name in names if (topic := self._topics.get(name)) is not None}
        there = set()
        self.unreadable, self.damaged = {}, {}
        for page in pages(names, self._namespace.limits.topics_at_once):
            for seen in by_halves(page, self._page, self._failed):
                there.add(seen.uuid)
                yield seen
        self._epochs = {uuid: epoch for uuid, epoch in self._epochs.items() if uuid in there}

    def again(self, seen: Seen) -> Seen | None:
        """A topic after something was done; None if it is gone."""
        self._epochs.pop(seen.uuid, None)
        return next(iter(by_halves([seen.topic.name], self._page, self._failed)), None)

    def _failed(self, name: str, error: LedgerError) -> list[Seen]:
        self.unreadable[name] = error
        return []

    def _page(self, names: Sequence[str]) -> list[Seen]:
        found = self._known(names)
        heads = self._metadata.read_many([HeadKey(topic.uuid) for topic in found])
        policies = self._metadata.read_many([PoliciesKey(topic.uuid) for topic in found])
        for topic, head in zip(found, heads, strict=True):
            if head is None:  # deleted, and perhaps made again under the same name
                self._topics.pop(topic.name, None)
        there = [
            (topic, head, policy)
            for topic, head, policy in zip(found, heads, policies, strict=True)
            if head is not None and policy is not None
        ]
        epochs = self._gc_epochs([head.record for _, head, _ in there])
        page = [Seen(topic, head, policy, epochs[topic.uuid]) for topic, head, policy in there if topic.uuid in epochs]
        return self._with_cursors(page)

    def _known(self, names: Sequence[str]) -> list[Topic]:
        new = [name for name in names if name not in self._topics]
        for name, topic in zip(new, self._metadata.read_many([TopicKey(name) for name in new]), strict=True):
            if topic is not None:
                self._topics[name] = topic.record
        return [self._topics[name] for name in names if name in self._topics]

    def _gc_epochs(self, heads: Sequence[Head]) -> dict[str, Versioned[GcEpoch]]:
        """Read anew only where the epoch is another one."""
        new = [head.uuid for head in heads if not self._knows_epoch(head)]
        for uuid, epoch in zip(new, self._metadata.read_many([GcKey(uuid) for uuid in new]), strict=True):
            if epoch is not None:
                self._epochs[uuid] = epoch
        return {head.uuid: self._epochs[head.uuid] for head in heads if head.uuid in self._epochs}

    def _knows_epoch(self, head: Head) -> bool:
        known = self._epochs.get(head.uuid)
        return known is not None and known.record.epoch == head.gc_epoch

    def _with_cursors(self, page: list[Seen]) -> list[Seen]:
        asked = [seen for seen in page if self._all_cursors or _concerns_cursors(seen.policies.record)]
        below = self._metadata.children_many([PartKey(seen.uuid, "subscriptions") for seen in asked])
        keys = [key for some in below for key in some if isinstance(key, CursorKey)]
        found = by_halves(keys, self._cursors, self._damaged) if keys else []
        cursors: dict[str, list[Versioned[Cursor]]] = defaultdict(list)
        for key, cursor in zip(keys, found, strict=True):
            if cursor is not None:
                cursors[key.uuid].append(cursor)
        return [replace(seen, cursors=tuple(cursors[seen.uuid])) for seen in page]

    def _cursors(self, keys: Sequence[CursorKey]) -> list[Versioned[Cursor] | None]:
        return self._metadata.read_many(keys)

    def _damaged(self, key: CursorKey, error: LedgerError) -> list[Versioned[Cursor] | None]:
        self.damaged[key] = error
        return [None]


def _concerns_cursors(policies: Policies) -> bool:
    return bool(policies.backlog_bytes or policies.backlog_ms or policies.expire_subscriptions_ms)
