"""Reads the state of a namespace when Prometheus asks for it.

Heads and the open ledgers' commits are kept between scrapes, so that only what is new is read. A topic that cannot be
read is counted as an error, and the others are reported all the same.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.errors import LedgerError, NotFound
from pyspark_ledger.log.generations import newest
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import CompactorKey, CursorKey, PartKey
from pyspark_ledger.metadata.records import Commit, ProducerState
from pyspark_ledger.metrics.families import FAMILIES
from pyspark_ledger.tokens.tokens import Tokens

logger = logging.getLogger(__name__)

T = TypeVar("T")
OTHERS = "(others)"
Sample = tuple[str, tuple[str, ...], float]  # name of the family, labels, value


class LedgerCollector(Collector):
    """May be used by several threads. ``max_producers`` limits the labels of one topic, because every run of a job may
    have a new producer name."""

    def __init__(self, client: LedgerClient, *, max_producers: int = 100) -> None:
        self._client, self._max_producers = client, max_producers
        self._topics: dict[str, _Topic] = {}
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
            names = self._client.topics()
        except LedgerError as error:
            logger.warning("scrape failed: %s", error)
            names = None
        yield "ledger_up", (), names is not None
        self._topics = {name: topic for name, topic in self._topics.items() if name in (names or ())}
        for name in names or ():
            for topic in self._attempt(name, partial(self._opened, name)):
                yield from self._attempt(name, topic.samples)
                for subscription in self._attempt(name, topic.subscriptions):
                    yield from self._attempt(name, partial(topic.cursor, subscription))
        for name, count in self._errors.items():
            yield "ledger_scrape_errors_total", (name,), count

    def _opened(self, name: str) -> list[_Topic]:
        if name not in self._topics:
            self._topics[name] = _Topic(namespace_of(self._client).log(name), self._max_producers)
        return [self._topics[name]]

    def _attempt(self, topic: str, part: Callable[[], Iterable[T]]) -> list[T]:
        """All samples of a part; if it fails, none, and an error is counted."""
        try:
            return list(part())
        except NotFound as gone:  # deleted meanwhile; another one of that name is found by the next scrape
            if gone.code == "LEDGER_TOPIC_DELETED":
                self._topics.pop(topic, None)
        except Exception as error:
            self._errors[topic] += 1
            logger.warning("scrape failed topic=%s: %s", topic, error)
        return []


class _Topic:
    """One topic, and what its commits added up to since it was first seen."""

    def __init__(self, log: Log, max_producers: int) -> None:
        self._log, self._max_producers = log, max_producers
        self._name = log.topic.name
        self._counted: Position | None = None
        self._dropped = 0
        self._records: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def samples(self) -> Iterator[Sample]:
        view = self._log.refresh()
        self._count(view)
        yield from self._of_head(view)
        yield from self._of_compaction(view)
        yield from self._of_producers()
        yield from self._of_tokens(view)

    def _count(self, view: View) -> None:
        new = view.open_commits if self._counted is None else self._log.commits_from(view, self._counted)
        for commit in list(new):
            self._add(commit)
        self._counted = view.head.end

    def _add(self, commit: Commit) -> None:
        known = commit.producer in self._records or len(self._records) < self._max_producers
        producer = commit.producer if commit.producer and known else OTHERS
        self._records[producer] += commit.records
        self._bytes[producer] += commit.bytes
        self._dropped += commit.dropped

    def _of_head(self, view: View) -> Iterator[Sample]:
        head, labels = view.head, (self._name,)
        yield "ledger_topic_records_total", labels, head.records
        yield "ledger_topic_bytes_total", labels, head.bytes
        yield "ledger_topic_commits_total", labels, head.next_commit
        yield "ledger_topic_end_ledger", labels, head.ledger
        yield "ledger_topic_end_entry", labels, head.next_entry
        yield "ledger_topic_dropped_duplicates_total", labels, self._dropped
        if head.last_publish_ms:
            yield "ledger_topic_last_publish_timestamp_seconds", labels, head.last_publish_ms / 1000

    def _of_compaction(self, view: View) -> Iterator[Sample]:
        last, labels = newest(self._log, view), (self._name,)
        running = self._log.metadata.read(CompactorKey(self._log.topic.uuid))
        since_ms = self._log.clock.now_ms() - running.record.since_ms if running else 0
        yield "ledger_compaction_running", labels, running is not None
        yield "ledger_compaction_running_seconds", labels, max(0, since_ms) / 1000
        if last is not None:
            yield "ledger_compaction_generation", labels, last.number
            yield "ledger_compaction_horizon_ledger", labels, last.horizon.ledger
            yield "ledger_compaction_horizon_entry", labels, last.horizon.entry
            yield "ledger_compaction_records", labels, last.records
            yield "ledger_compaction_bytes", labels, last.bytes
            yield "ledger_compaction_ratio", labels, last.records / last.read
            yield "ledger_compaction_backlog_records", labels, view.head.records - last.read
            yield "ledger_compaction_finished_timestamp_seconds", labels, last.finished_ms / 1000
            yield "ledger_compaction_duration_seconds", labels, (last.finished_ms - last.started_ms) / 1000

    def _of_producers(self) -> Iterator[Sample]:
        _, states = self._log.producers()
        yield "ledger_topic_producers", (self._name,), len(states)
        yield "ledger_topic_evicted_producers", (self._name,), states.evicted
        for producer in self._records:
            yield "ledger_producer_records_total", (self._name, producer), self._records[producer]
            yield "ledger_producer_bytes_total", (self._name, producer), self._bytes[producer]
        known = {state.name: state for state in states.owned()}
        known |= {name: state for name in self._records if (state := states.get(name)) is not None}
        for state in sorted(known.values(), key=_age)[: self._max_producers]:
            labels = (self._name, state.name)
            yield "ledger_producer_sequence_id", labels, state.sequence
            yield "ledger_producer_last_publish_timestamp_seconds", labels, state.publish_ms / 1000
            yield "ledger_producer_fenced_runs", labels, len(state.past_runs)

    def _of_tokens(self, view: View) -> Iterator[Sample]:
        yield "ledger_topic_tokens_total", (self._name,), view.head.tokens
        for stats in Tokens(self._log, self._name).stats():
            labels = (self._name, stats.group)
            yield "ledger_tokens_in_flight", labels, stats.in_flight
            yield "ledger_tokens_consumed_total", labels, stats.consumed
            yield "ledger_tokens_nodes", labels, stats.nodes
            yield "ledger_tokens_bytes", labels, stats.bytes

    def subscriptions(self) -> list[str]:
        keys = self._log.metadata.children(PartKey(self._log.topic.uuid, "subscriptions"))
        return [key.name for key in keys if isinstance(key, CursorKey)]

    def cursor(self, name: str) -> Iterator[Sample]:
        stats, labels = CursorHandle(self._log, name).stats(), (self._name, name)
        yield "ledger_cursor_backlog_records", labels, stats.backlog_records
        yield "ledger_cursor_backlog_bytes", labels, stats.backlog_bytes
        yield "ledger_cursor_backlog_seconds", labels, stats.backlog_seconds
        yield "ledger_cursor_position_ledger", labels, stats.mark_delete.ledger
        yield "ledger_cursor_position_entry", labels, stats.mark_delete.entry
        yield "ledger_cursor_individual_acks", labels, stats.individual_acks
        yield "ledger_cursor_attached", labels, bool(stats.owner)
        yield "ledger_cursor_epochs_total", labels, stats.epoch
        yield "ledger_cursor_revisions_total", labels, stats.revision
        yield "ledger_cursor_revision_running", labels, stats.revising_seconds is not None


def _age(state: ProducerState) -> int:
    """The most recent first."""
    return -state.publish_ms
