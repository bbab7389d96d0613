"""What the console knows of all topics at one moment, as plain values; and what is wrong then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyspark_ledger.base.runs import Runs
from pyspark_ledger.lifecycle.looking import Seen
from pyspark_ledger.metadata.records import Cursor, Head, Holder, Policies

_LAG_MS = 3_600_000  # from here on a subscription that is behind is an alarm, as in examples/alerts.yml
_REVISION_MS = 300_000
_GC_MS = 3 * 86_400_000
_BACKUP_MS, _IDLE_BACKUP_MS, _ROUNDS_MS = 900_000, 2 * 3_600_000, 180_000


@dataclass(frozen=True, slots=True)
class Subscription:
    cursor: Cursor
    behind: int  # records that are not acknowledged
    followers: tuple[str, ...]
    revising_since_ms: int | None

    @property
    def name(self) -> str:
        return self.cursor.name


@dataclass(frozen=True, slots=True)
class Details:
    """What takes a closer look at a topic; from an earlier look if there was no time for it."""

    records_by_time: tuple[int, ...] = ()  # of the last hour
    records_per_second: float | None = None  # in the last five minutes
    bytes_per_second: float | None = None
    oldest_ms: Mapping[str, int] = field(default_factory=dict)  # subscription -> when its oldest record was published
    bytes_behind: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicState:
    seen: Seen
    subscriptions: tuple[Subscription, ...]
    compacting_since_ms: int | None = None
    details: Details | None = None

    @property
    def name(self) -> str:
        return self.seen.topic.name

    @property
    def head(self) -> Head:
        return self.seen.head.record

    @property
    def policies(self) -> Policies:
        return self.seen.policies.record

    @property
    def kept(self) -> tuple[int, int]:
        """Records and bytes that can be read."""
        trim = self.head.trim
        return self.head.records - (trim.records if trim else 0), self.head.bytes - (trim.bytes if trim else 0)

    @property
    def has_rates(self) -> bool:
        return self.details is not None and self.details.records_per_second is not None

    @property
    def slowest(self) -> Subscription | None:
        return max(self.subscriptions, key=lambda each: each.behind, default=None)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that is wrong now. ``topic`` and ``subscription`` say where, if it is there."""

    severity: str  # critical or warning
    code: str
    text: str
    topic: str = ""
    subscription: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """Of ZooKeeper or storage: how long an answer took, or why there was none."""

    milliseconds: float | None = None
    error: str = ""

    @property
    def is_well(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True)
class Snapshot:
    number: int
    taken_ms: int
    seconds: float  # that the look took
    topics: Mapping[str, TopicState]  # by name, in order
    leader: Holder | None
    zookeeper: Health
    storage: Health
    backup_ms: int | None
    condemned: int  # deleted topics of which files are left
    unreadable: Mapping[str, str]  # topic -> why
    unsaved_since_ms: int | None = None  # since when something was seen to be written that no backup has
    alarms: tuple[Alarm, ...] = ()


def alarms(snapshot: Snapshot) -> tuple[Alarm, ...]:
    """The worst first."""
    found = [*_of_namespace(snapshot)]
    for topic in snapshot.topics.values():
        found += _of_topic(topic, snapshot.taken_ms)
    return tuple(sorted(found, key=lambda alarm: (alarm.severity != "critical", alarm.topic, alarm.subscription)))


def _of_namespace(now: Snapshot) -> Iterator[Alarm]:
    if not now.zookeeper.is_well:
        yield Alarm("critical", "ZooKeeperAway", f"ZooKeeper does not answer: {now.zookeeper.error}")
    if not now.storage.is_well:
        yield Alarm("critical", "StorageAway", f"the storage does not answer: {now.storage.error}")
    if now.topics and now.leader is None and now.zookeeper.is_well:
        yield Alarm("warning", "MaintenanceNotLeading", "nobody leads maintenance: start 'pyspark-ledger maintain'")
    if now.leader is not None and _is_backup_late(now, now.leader):
        yield Alarm("critical", "BackupTooOld", "maintenance runs, and the newest backup is old: see its log")
    for name, why in now.unreadable.items():
        yield Alarm("critical", "TopicUnreadable", why, name)


def _is_backup_late(now: Snapshot, leader: Holder) -> bool:
    """A namespace in which nothing changes is backed up every hour only, so an old backup is not wrong before what was
    written since has waited for a few rounds."""
    age_ms = now.taken_ms - (leader.since_ms if now.backup_ms is None else now.backup_ms)
    unsaved_ms = 0 if now.unsaved_since_ms is None else now.taken_ms - now.unsaved_since_ms
    return age_ms > _IDLE_BACKUP_MS or (age_ms > _BACKUP_MS and unsaved_ms > _ROUNDS_MS)


def _of_topic(topic: TopicState, now_ms: int) -> Iterator[Alarm]:
    head, name = topic.head, topic.name
    if head.set_back is not None:
        text = f"ZooKeeper was rolled back ({head.set_back.why}): 'pyspark-ledger topics repair {name}' shows the ways"
        yield Alarm("critical", "SetBack", text, name)
    if head.gc_epoch and now_ms - topic.seen.gc.modified_ms > _GC_MS and now_ms - head.last_publish_ms < _GC_MS:
        yield Alarm("warning", "GcNotRunning", "gc has not run for more than three days", name)
    for subscription in topic.subscriptions:
        yield from _of_subscription(topic, subscription, now_ms)


def _of_subscription(topic: TopicState, subscription: Subscription, now_ms: int) -> Iterator[Alarm]:
    where, details, policies = (topic.name, subscription.name), topic.details or Details(), topic.policies
    oldest = details.oldest_ms.get(subscription.name) if subscription.behind else None
    age_ms = 0 if oldest is None else now_ms - oldest
    if subscription.cursor.evicted:
        text = f"a backlog quota took {subscription.cursor.evicted:,} records from it, and nobody was told yet"
        yield Alarm("warning", "RecordsEvicted", text, *where)
    stored = details.bytes_behind.get(subscription.name, 0)
    if (policies.backlog_bytes and stored > policies.backlog_bytes) or (
        policies.backlog_ms and age_ms > policies.backlog_ms
    ):
        yield Alarm("warning", "BacklogQuota", "it holds back more than the topic's backlog quota", *where)
    if age_ms > _LAG_MS:
        followed = "" if subscription.followers else ", and nobody follows it"
        text = f"its oldest record has waited for {age_ms // 3_600_000} h{followed}"
        yield Alarm("warning", "Lag", text, *where)
    since = subscription.revising_since_ms
    if since is not None and now_ms - since > _REVISION_MS:
        yield Alarm("warning", "RevisionRunsLong", "a reset of it has been running for more than five minutes", *where)


def behind(head: Head, cursor: Cursor) -> int:
    """Records that are not acknowledged."""
    return max(0, head.records - cursor.ordinal - len(Runs.unpack(cursor.acks, cursor.ordinal)))
