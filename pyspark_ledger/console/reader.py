"""The one reader of the namespace, for all who look at pages.

It looks every few seconds while somebody does, and not at all when nobody does. A look reads the small nodes of all
topics in pages. Of topics on pages that are open, and of those with subscriptions that are behind, it finds out more,
for a limited time: what is not reached keeps what was known of it, and comes first in the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.paging import pages
from pyspark_ledger.console import history
from pyspark_ledger.console.state import Details, Health, Snapshot, Subscription, TopicState, alarms, behind
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.lifecycle import saved_files
from pyspark_ledger.lifecycle.looking import Look, Seen
from pyspark_ledger.log import scan, topics
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import (
    CompactorKey,
    CondemnedsKey,
    Key,
    MaintainerKey,
    MemberKey,
    OwnerKey,
    ReviserKey,
)
from pyspark_ledger.metadata.records import Cursor, Holder

logger = logging.getLogger(__name__)

T = TypeVar("T")
_WATCHED_S = 20.0  # so long after somebody has asked the last time it goes on looking
_OLD_S = 10.0  # a page that is asked for then gets a new look
_DETAILS_S, _GLANCE_S = 1.0, 0.3  # of a look, and when a page is asked for
_PATIENCE_S = 3.0  # with a look that somebody else has begun
_STORAGE_EVERY_S, _BACKUP_EVERY_S = 15.0, 60.0
_LOGS = 256  # topics of which commits are kept in memory
RATE_MS = 300_000  # over which a rate is told
_SPARKS, _SPARK_MS = 40, 3_600_000


class NamespaceReader:
    """May be used by several threads."""

    def __init__(self, namespace: OpenNamespace, every_s: float) -> None:
        self._namespace, self._clock, self._every_s = namespace, namespace.clock, every_s
        self._look = Look(namespace, all_cursors=True)
        self._snapshot: Snapshot | None = None
        self._seen_at = self._asked_at = self._storage_at = self._backup_at = -1e9
        self._storage, self._backup_ms = Health(), cast("int | None", None)
        self._unsaved_since_ms: int | None = None
        self._looking, self._memory = threading.Lock(), threading.Lock()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._logs: OrderedDict[str, tuple[Log, threading.RLock]] = OrderedDict()  # by UUID
        self._details: dict[str, tuple[object, Details]] = {}  # by UUID, those looked at longest ago first
        self._wanted: dict[str, float] = {}  # topics on open pages, and when they were asked for
        self._kept: dict[object, tuple[int, Any]] = {}  # what was made of a snapshot, by what it is
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._thread = threading.Thread(target=self._run, name="ledger-console-reader", daemon=True)
        self._thread.start()

    # -- for pages -----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """As it was a few seconds ago at most; while ZooKeeper does not answer, as it was then."""
        self._asked_at = now = self._clock.monotonic()
        before = self._snapshot
        self._wake.set()
        if before is None or (before.zookeeper.is_well and now - self._seen_at > max(_OLD_S, 8 * before.seconds)):
            return self.look_again(since=now)
        return before

    def look_again(self, *, since: float | None = None) -> Snapshot:
        """After a change: as it is now. ``since``: unless somebody has looked since then. While a look takes very long,
        because nobody answers, it is as it was."""
        patience_s = -1.0 if self._snapshot is None else _PATIENCE_S
        if self._looking.acquire(timeout=patience_s):
            try:
                if since is None or self._snapshot is None or self._seen_at < since:
                    self._take()
            finally:
                self._looking.release()
        assert self._snapshot is not None
        return self._snapshot

    def want(self, names: Sequence[str]) -> Snapshot:
        """These topics are on a page that is open. Those of which little is known are looked at now, for a moment."""
        now, snapshot = self._clock.monotonic(), self.snapshot()
        with self._memory:
            self._wanted.update(dict.fromkeys(names, now))
        new = [topic for name in names if (topic := snapshot.topics.get(name)) is not None and not topic.has_rates]
        if not new or not snapshot.zookeeper.is_well:
            return snapshot
        if not self._looking.acquire(timeout=_GLANCE_S):
            return snapshot  # with the next look
        try:
            self._look_closer(new, _GLANCE_S)
            snapshot = self._snapshot or snapshot
            found = {topic.name: replace(topic, details=self._details_of(topic)) for topic in new}
            there = {name: found.get(name, topic) for name, topic in snapshot.topics.items()}
            self._snapshot = snapshot = replace(snapshot, topics=there)
            return snapshot
        finally:
            self._looking.release()

    def topic(self, name: str) -> TopicState | None:
        return self.snapshot().topics.get(name)

    def log(self, topic: str) -> tuple[Log, threading.RLock]:
        """A topic, and the lock to hold while using it. Raises NotFound if there is none."""
        known = self._snapshot.topics.get(topic) if self._snapshot is not None else None
        found = known.seen.topic if known is not None else topics.get_topic(self._namespace.metadata, topic)
        return self._log(found.uuid, lambda: self._namespace.log_of(found))

    def once(self, what: object, make: Callable[[], T]) -> T:
        """What was made of the present snapshot, for everybody who asks before the next one."""
        number = self.snapshot().number
        with self._memory:
            found = self._kept.get(what)
        if found is not None and found[0] == number:
            return cast(T, found[1])
        made = make()
        with self._memory:
            self._kept = {key: value for key, value in self._kept.items() if value[0] == number}
            self._kept[what] = number, made
        return made

    async def next_after(self, number: int, seconds: float) -> Snapshot | None:
        """The snapshot after the one with this number; None if there is none for so long. It counts as asking."""
        self._asked_at = self._clock.monotonic()
        self._wake.set()
        listener = asyncio.get_running_loop(), asyncio.Event()
        with self._memory:
            self._listeners.add(listener)
        try:
            if self._snapshot is None or self._snapshot.number <= number:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(listener[1].wait(), seconds)
        finally:
            with self._memory:
                self._listeners.discard(listener)
        found = self._snapshot
        return found if found is not None and found.number > number else None

    @property
    def is_closed(self) -> bool:
        return self._ended.is_set()

    def close(self) -> None:
        self._ended.set()
        self._wake.set()
        self._thread.join(10.0)

    # -- looking -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.wait()
            self._wake.clear()
            while not self._ended.is_set() and self._clock.monotonic() - self._asked_at < _WATCHED_S:
                pause = self._pause_s()
                self._clock.wait(self._ended, pause)
                if not self._ended.is_set():
                    self.look_again(since=self._clock.monotonic() - pause / 2)

    def _pause_s(self) -> float:
        """Of a namespace with thousands of topics a look takes long: then a fifth of the time is spent on looking."""
        now = self._snapshot
        return max(self._every_s, 4 * now.seconds) if now is not None and now.zookeeper.is_well else self._every_s

    def _take(self) -> None:
        before, started = self._snapshot, self._clock.monotonic()
        try:
            found = self._found(started)
        except LedgerError as error:
            logger.warning("console: a look at the namespace failed: %s", error)
            away = Health(error=str(error))
            empty = Snapshot(0, self._clock.now_ms(), 0.0, {}, None, away, self._storage, None, 0, {})
            found = replace(before or empty, zookeeper=away, leader=None)
        except Exception as error:  # pages go on with what was known, and say so
            logger.exception("console: a look at the namespace failed")
            if before is None:
                raise
            found = replace(before, zookeeper=Health(error=f"{type(error).__name__}: {error}"))
        number = 1 + (before.number if before is not None else 0)
        found = replace(found, number=number, taken_ms=self._clock.now_ms(), seconds=self._clock.monotonic() - started)
        self._snapshot, self._seen_at = replace(found, alarms=alarms(found)), started
        with self._memory:
            listeners = list(self._listeners)
        for loop, event in listeners:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(event.set)

    def _found(self, started: float) -> Snapshot:
        metadata = self._namespace.metadata
        metadata.sync()
        milliseconds = (self._clock.monotonic() - started) * 1000
        seen = sorted(self._look.all(), key=lambda each: each.topic.name)
        holders = self._holders(seen)
        leader = metadata.read(MaintainerKey())
        condemned = len(metadata.children(CondemnedsKey()))
        states = [self._state(each, holders) for each in seen]
        uuids = {each.seen.uuid for each in states}
        self._details = {uuid: details for uuid, details in self._details.items() if uuid in uuids}
        self._look_closer(states, _DETAILS_S)
        with_details = [replace(each, details=self._details_of(each)) for each in states]
        unreadable = {name: str(error) for name, error in self._look.unreadable.items()}
        unreadable |= {self._name(key.uuid, seen): str(error) for key, error in self._look.damaged.items()}
        self._look_at_storage()
        written_ms = max((each.head.last_publish_ms for each in states), default=0)
        return Snapshot(
            0, 0, 0.0, {each.name: each for each in with_details}, leader.record if leader else None,
            Health(milliseconds), self._storage, self._backup_ms, condemned, unreadable,
            unsaved_since_ms=self._unsaved_since(written_ms),
        )  # fmt: skip

    def _name(self, uuid: str, seen: Sequence[Seen]) -> str:
        return next((each.topic.name for each in seen if each.uuid == uuid), uuid)

    def _holders(self, seen: Sequence[Seen]) -> dict[Key[Holder], Holder]:
        keys: list[Key[Holder]] = []
        for each in seen:
            if each.head.record.generation is not None or each.topic.key:
                keys.append(CompactorKey(each.uuid))
            for cursor in each.cursors:
                keys += holder_keys(each.uuid, cursor.record)
        found: dict[Key[Holder], Holder] = {}
        for page in pages(keys, self._namespace.limits.topics_at_once):
            for key, node in zip(page, self._namespace.metadata.read_many(page), strict=True):
                if node is not None:
                    found[key] = node.record
        return found

    def _state(self, seen: Seen, holders: dict[Key[Holder], Holder]) -> TopicState:
        running = holders.get(CompactorKey(seen.uuid))
        ordered = sorted(seen.cursors, key=lambda each: each.record.name)
        return TopicState(
            seen,
            tuple(_subscription(seen, cursor.record, holders) for cursor in ordered),
            running.since_ms if running is not None else None,
        )

    def _look_at_storage(self) -> None:
        """Asked seldom: each time costs requests to an object store."""
        started, storage = self._clock.monotonic(), self._namespace.storage
        if started - self._storage_at <= _STORAGE_EVERY_S:
            return
        self._storage_at = started
        try:
            storage.check_marked()
            self._storage = Health((self._clock.monotonic() - started) * 1000)
            if started - self._backup_at > _BACKUP_EVERY_S:
                self._backup_ms, self._backup_at = saved_files.SavedFiles.list(storage).newest_ms, started
        except LedgerError as error:
            self._storage = Health(error=str(error))

    def _unsaved_since(self, written_ms: int) -> int | None:
        """Since when there has been something, as far as was seen here, that no backup has."""
        saved_ms = self._backup_ms or 0
        if written_ms <= saved_ms:
            self._unsaved_since_ms = None
        else:
            self._unsaved_since_ms = max(saved_ms, self._unsaved_since_ms or self._clock.now_ms())
        return self._unsaved_since_ms

    # -- details -------------------------------------------------------------------------------------------

    def _details_of(self, topic: TopicState) -> Details | None:
        found = self._details.get(topic.seen.uuid)
        return found[1] if found is not None else None

    def _look_closer(self, states: Sequence[TopicState], seconds: float) -> None:
        now = self._clock.monotonic()
        with self._memory:
            self._wanted = {name: at for name, at in self._wanted.items() if now - at < _WATCHED_S}
            wanted = set(self._wanted)
        order = {uuid: at for at, uuid in enumerate(self._details, 1)}
        chosen = [each for each in states if each.name in wanted or any(sub.behind for sub in each.subscriptions)]
        chosen.sort(key=lambda each: (each.name not in wanted, order.get(each.seen.uuid, 0)))
        deadline = Deadline(self._clock, seconds)
        for topic in chosen:
            if deadline.passed:
                return
            with contextlib.suppress(LedgerError):  # it is told when its own page is asked for
                self._update(topic, topic.name in wanted)

    def _update(self, topic: TopicState, with_rates: bool) -> None:
        uuid, now_ms = topic.seen.uuid, self._clock.now_ms()
        positions = tuple((each.name, each.cursor.mark_delete) for each in topic.subscriptions)
        part = now_ms * _SPARKS // _SPARK_MS if with_rates else None
        state = topic.seen.head.version, topic.seen.head.record.last_change, positions, part
        before = self._details.pop(uuid, None)
        if before is not None and before[0] == state:
            self._details[uuid] = before
            return
        if topic.head.last_publish_ms <= now_ms - _SPARK_MS and not any(each.behind for each in topic.subscriptions):
            self._details[uuid] = state, Details((0,) * _SPARKS, 0.0, 0.0)  # and nothing has to be read for it
            return
        log, lock = self._log(uuid, lambda: self._look.log(topic.seen))
        with lock:
            view = log.refresh()
            details = _rates(log, view, now_ms) if with_rates else before[1] if before else Details()
            oldest, stored = _lags(log, view, topic.subscriptions)
            self._details[uuid] = state, replace(details, oldest_ms=oldest, bytes_behind=stored)

    def _log(self, uuid: str, make: Callable[[], Log]) -> tuple[Log, threading.RLock]:
        with self._memory:
            found = self._logs.get(uuid)
            if found is None or found[0].storage.is_left:
                found = make(), threading.RLock()
            self._logs[uuid] = found
            self._logs.move_to_end(uuid)
            while len(self._logs) > _LOGS:
                self._logs.popitem(last=False)
            return found


def holder_keys(uuid: str, cursor: Cursor) -> list[Key[Holder]]:
    """Who may follow or move a subscription. Only one whom the cursor names can be there."""
    keys: list[Key[Holder]] = [OwnerKey(uuid, cursor.name)] if cursor.owner else []
    keys += [ReviserKey(uuid, cursor.name)] if cursor.reviser else []
    return keys + [MemberKey(uuid, cursor.name, member.id) for member in cursor.members]


def _subscription(seen: Seen, cursor: Cursor, holders: dict[Key[Holder], Holder]) -> Subscription:
    owner, reviser = (holders.get(kind(seen.uuid, cursor.name)) for kind in (OwnerKey, ReviserKey))
    names = [owner.name] if owner is not None and owner.id == cursor.owner else []
    names += [each.name for each in cursor.members if MemberKey(seen.uuid, cursor.name, each.id) in holders]
    is_revised = reviser is not None and reviser.id == cursor.reviser
    since = cursor.revising_since_ms if is_revised else None
    return Subscription(cursor, behind(seen.head.record, cursor), tuple(names), since)


def _rates(log: Log, view: View, now_ms: int) -> Details:
    if view.head.last_publish_ms < now_ms - _SPARK_MS:
        return Details((0,) * _SPARKS, 0.0, 0.0)
    parts = history.buckets(log, view, now_ms - _SPARK_MS, now_ms, _SPARKS)
    (last,) = history.buckets(log, view, now_ms - RATE_MS, now_ms, 1)
    seconds = RATE_MS / 1000
    return Details(tuple(part.records for part in parts), last.records / seconds, last.bytes / seconds)


def _lags(log: Log, view: View, subscriptions: Sequence[Subscription]) -> tuple[dict[str, int], dict[str, int]]:
    """Of those that are behind: when their oldest record was published, and how many bytes are left."""
    oldest, stored = {}, {}
    for each in subscriptions:
        if each.behind and each.cursor.ordinal < view.head.records:
            oldest[each.name] = log.commit_at_ordinal(view, each.cursor.ordinal).publish_ms
            stored[each.name] = view.head.bytes - scan.bytes_before(log, view, each.cursor.mark_delete)
    return oldest, stored
