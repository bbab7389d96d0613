"""What a maintainer tells Prometheus of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from pyspark_ledger.lifecycle.maintenance import Maintenance
from pyspark_ledger.metrics.families import MAINTENANCE, Sample

_BACKUP = "backup"


class MaintenanceCollector(Collector):
    def __init__(self, maintenance: Maintenance) -> None:
        self._maintenance = maintenance

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, family in MAINTENANCE.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            families[name] = kind(name, family.help, labels=family.labels)
        for name, labels, value in self._samples():
            families[name].add_metric(labels, value)
        yield from families.values()

    def _samples(self) -> Iterator[Sample]:
        health = self._maintenance.health
        yield "ledger_maintenance_leads", (), health.leads
        yield "ledger_maintenance_ready", (), health.ready
        if health.leads and _BACKUP in self._maintenance.stats:
            yield "ledger_backup_age_seconds", (), self._backup_age_s()
        for action, stats in self._maintenance.stats.items():
            yield "ledger_maintenance_runs_total", (action,), stats.runs
            yield "ledger_maintenance_failures_total", (action,), stats.failures
            yield "ledger_maintenance_failing_topics", (action,), stats.failing
            yield "ledger_maintenance_seconds_total", (action,), stats.seconds
            if stats.last_success_ms:
                yield "ledger_maintenance_last_success_timestamp_seconds", (action,), stats.last_success_ms / 1000
            for what, number in list(stats.done.items()):
                yield "ledger_maintenance_done_total", (action, what), number

    def _backup_age_s(self) -> float:
        """Who has just taken the lead knows it from storage, after its first round has begun."""
        last_ms = self._maintenance.stats[_BACKUP].last_success_ms
        return max(0.0, (self._maintenance.now_ms() - last_ms) / 1000) if last_ms else inf


def exposition(maintenance: Maintenance) -> Callable[[], tuple[int, str, bytes]]:
    registry = CollectorRegistry()
    registry.register(MaintenanceCollector(maintenance))
    return lambda: (200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry))
