"""What the driver of a Spark job tells Prometheus of its queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.metrics.families import QUERIES, Sample


class QueryCollector(Collector):
    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        families = {name: GaugeMetricFamily(name, each.help, labels=each.labels) for name, each in QUERIES.items()}
        for name, labels, value in self._samples():
            families[name].add_metric(labels, value)
        yield from families.values()


def export(
    samples: Callable[[], Iterable[Sample]], port: int | None, host: str, registry: CollectorRegistry | None
) -> tuple[str, Callable[[], None]]:
    """Adds the samples to the registry, or to one of their own, and serves it if there is a port. Returns the address,
    and a function that undoes it all."""
    collector, used = QueryCollector(samples), registry or CollectorRegistry()
    try:
        used.register(collector)
    except ValueError:
        raise InvalidInput("the registry has these metrics already, from another LagListener: one is enough") from None
    if port is None:
        return "", lambda: used.unregister(collector)
    try:
        server, _ = start_http_server(port, host, used)
    except (OSError, OverflowError) as error:  # the second: a port above 65535
        used.unregister(collector)
        raise InvalidInput(
            f"cannot listen on {host}:{port} ({error}): choose another port or host", "LEDGER_PORT_IN_USE"
        ) from None

    def close() -> None:
        server.shutdown()
        server.server_close()
        used.unregister(collector)

    return f"http://{host}:{server.server_port}/metrics", close
