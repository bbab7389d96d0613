"""What a process tells Prometheus of its own writers: how long they waited, and for how many others they committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from pyspark_ledger.append.tally import Tally, tallies
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.metrics.families import WRITERS

_VALUES = {
    "ledger_writer_turns_total": lambda tally: tally.turns,
    "ledger_writer_combined_total": lambda tally: tally.combined,
    "ledger_writer_waits_total": lambda tally: tally.waits,
    "ledger_writer_waited_seconds_total": lambda tally: tally.waited_s,
}


class WriterCollector(Collector):
    """Counters of this process's producers, for each topic that they share with other writers."""

    def describe(self) -> Iterator[Metric]:
        """By their names a registry knows that it has them."""
        return self._metrics({})

    def collect(self) -> Iterator[Metric]:
        return self._metrics(tallies())

    def _metrics(self, found: Mapping[str, Tally]) -> Iterator[Metric]:
        for name, family in WRITERS.items():
            metric = CounterMetricFamily(name, family.help, labels=family.labels)
            for topic, tally in sorted(found.items()):
                metric.add_metric((topic,), _VALUES[name](tally))
            yield metric


def export_writers(registry: CollectorRegistry = REGISTRY) -> None:
    """Adds the counters to the registry that the process serves; by default prometheus-client's own.

    :raises InvalidInput: the registry has them already.
    """
    try:
        registry.register(WriterCollector())
    except ValueError:
        raise InvalidInput("the registry has the metrics of writers already: once is enough") from None
