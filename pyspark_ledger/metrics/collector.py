"""Reads the state of a namespace when Prometheus asks for it.

Of thousands of topics most are idle. So a scrape reads the small nodes of all topics and subscriptions in pages, and
looks closer only at topics whose head has changed since the last scrape. It does that for a limited time: what is not
reached keeps its last values, and comes first in the next scrape. A topic that cannot be read is counted as an error,
and the others are reported all the same.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.paging import pages
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.errors import LedgerError, NotFound
from pyspark_ledger.lifecycle.looking import Look, Seen
from pyspark_ledger.metadata.port import (
    CompactorKey,
    CondemnedKey,
    CondemnedsKey,
    Key,
    MaintainerKey,
    MemberKey,
    OwnerKey,
    PartKey,
    ReviserKey,
)
from pyspark_ledger.metadata.records import Holder
from pyspark_ledger.metrics.families import FAMILIES, Sample
from pyspark_ledger.metrics.topics import OTHERS, TopicMetrics

__all__ = ["OTHERS", "LedgerCollector"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
_DETAILS_S = 4.0  # of a scrape, for looking closer at topics: Prometheus gives it 10 s by default


class LedgerCollector(Collector):
    """May be used by several threads. ``max_producers`` limits the labels of one topic, because every run of a job may
    have a new producer name."""

    def __init__(self, client: LedgerClient, *, max_producers: int = 100, details_s: float = _DETAILS_S) -> None:
        self._namespace, self._max_producers, self._details_s = namespace_of(client), max_producers, details_s
        self._look = Look(self._namespace, all_cursors=True)
        self._topics: dict[str, TopicMetrics] = {}  # by UUID, those that were looked at longest ago first
        self._errors: Counter[str] = Counter()
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, family in FAMILIES.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            families[name] = kind(name, family.help, labels=family.labels)
        with self._lock:
            for name, labels, value in self._samples():
                families[name].add_metric(labels, value)
        yield from families.values()

    def _samples(self) -> Iterator[Sample]:
        try:
            seen = {each.uuid: each for each in self._look.all()}
            held = self._holders(list(seen.values()))
            with_groups = self._with_token_groups(list(seen))
            of_namespace = list(self._of_namespace())
        except LedgerError as error:
            logger.warning("scrape failed: %s", error)
            yield "ledger_up", (), False
            return
        yield "ledger_up", (), True
        yield from of_namespace
        self._count_unreadable(seen)
        self._topics = {uuid: topic for uuid, topic in self._topics.items() if uuid in seen}
        yield "ledger_scrape_late_topics", (), self._update(seen, with_groups)
        for uuid, each in seen.items():
            if uuid in self._topics:
                name = each.topic.name
                yield from self._attempt(name, partial(self._topics[uuid].samples, each, held))
                for cursor in each.cursors if self._topics[uuid].is_known else ():
                    yield from self._attempt(name, partial(self._topics[uuid].cursor, each, cursor, held))
        for name, count in self._errors.items():
            yield "ledger_scrape_errors_total", (name,), count

    def _of_namespace(self) -> Iterator[Sample]:
        metadata = self._namespace.metadata
        leader = metadata.read(MaintainerKey())
        if leader is not None:
            yield "ledger_maintainer", (leader.record.name,), 1
        condemned = [key for key in metadata.children(CondemnedsKey()) if isinstance(key, CondemnedKey)]
        yield "ledger_condemned_topics", (), len(condemned)

    def _holders(self, seen: Sequence[Seen]) -> dict[Key[Holder], Holder]:
        """Who compacts, and who follows or moves a subscription. Only one whose cursor names it can be there."""
        keys: list[Key[Holder]] = [CompactorKey(each.uuid) for each in seen]
        for each in seen:
            for cursor in each.cursors:
                name = cursor.record.name
                keys += [OwnerKey(each.uuid, name)] if cursor.record.owner else []
                keys += [ReviserKey(each.uuid, name)] if cursor.record.reviser else []
                keys += [MemberKey(each.uuid, name, member.id) for member in cursor.record.members]
        found: dict[Key[Holder], Holder] = {}
        for page in pages(keys, self._namespace.limits.topics_at_once):
            for key, node in zip(page, self._namespace.metadata.read_many(page), strict=True):
                if node is not None:
                    found[key] = node.record
        return found

    def _with_token_groups(self, uuids: Sequence[str]) -> set[str]:
        """The topics that have groups which consume tokens: these change without their head."""
        keys = [PartKey(uuid, "tokens") for uuid in uuids]
        found = self._namespace.metadata.children_many(keys)
        return {uuid for uuid, below in zip(uuids, found, strict=True) if below}

    def _update(self, seen: dict[str, Seen], with_groups: set[str]) -> int:
        """Looks closer at topics that have changed. Returns how many there was no time for."""
        deadline, late = Deadline(self._namespace.clock, self._details_s), 0
        new = [uuid for uuid in seen if uuid not in self._topics]
        for uuid in new:
            self._topics[uuid] = TopicMetrics(self._look.log(seen[uuid]), self._max_producers)
        for uuid in [*self._topics]:
            topic = self._topics[uuid]
            if topic.was_moved(seen[uuid]):
                topic.follow(self._look.log(seen[uuid]))
            if topic.is_current(seen[uuid]) and uuid not in with_groups:
                continue
            if deadline.passed:
                late += 1
                continue
            self._attempt(seen[uuid].topic.name, partial(topic.update, seen[uuid], has_groups=uuid in with_groups))
            if uuid in self._topics:
                self._topics[uuid] = self._topics.pop(uuid)
        return late

    def _count_unreadable(self, seen: dict[str, Seen]) -> None:
        for name, error in self._look.unreadable.items():
            self._failed(name, error)
        for key, error in self._look.damaged.items():
            self._failed(seen[key.uuid].topic.name if key.uuid in seen else key.uuid, error)

    def _attempt(self, topic: str, part: Callable[[], Iterable[T]]) -> list[T]:
        """All samples of a part; if it fails, none, and an error is counted."""
        try:
            return list(part())
        except NotFound as gone:  # deleted meanwhile; another one of that name is found by the next scrape
            if gone.code not in ("LEDGER_TOPIC_DELETED", "LEDGER_CURSOR_NOT_FOUND"):
                self._failed(topic, gone)
        except Exception as error:
            self._failed(topic, error)
        return []

    def _failed(self, topic: str, error: Exception) -> None:
        self._errors[topic] += 1
        logger.warning("scrape failed topic=%s: %s", topic, error)
