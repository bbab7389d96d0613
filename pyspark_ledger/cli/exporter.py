"""``pyspark-ledger exporter``: metrics for Prometheus."""

from __future__ import annotations

import click

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.errors import InvalidInput

_TIMEOUT_S = 5.0  # of one request: Prometheus gives a scrape 10 s by default


@click.command(cls=Command)
@click.option("--port", type=click.IntRange(0, 65_535), default=9464, show_default=True, help="0: any that is free.")
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0 shows them to everybody.")
@click.option("--max-producers", type=click.IntRange(1), default=100, show_default=True,
              help="Producers of one topic that get a label of their own.")  # fmt: skip
@click.pass_obj
def exporter(session: Session, port: int, host: str, max_producers: int) -> None:
    """Serve metrics of all topics, subscriptions and producers to Prometheus, until Ctrl-C."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise InvalidInput(
            "this needs the extra 'metrics': pip install 'pyspark-ledger[metrics]'", "LEDGER_NOT_INSTALLED"
        ) from None
    from pyspark_ledger.client import client_of
    from pyspark_ledger.log.namespace import OpenNamespace
    from pyspark_ledger.metrics.collector import LedgerCollector
    from pyspark_ledger.metrics.requests import TimedMetadata

    registry, settings = CollectorRegistry(), session.settings
    metadata = TimedMetadata(session.metadata(_TIMEOUT_S), registry)
    with client_of(OpenNamespace(metadata, settings.storage, address=settings.zookeeper, settings=settings)) as client:
        registry.register(LedgerCollector(client, max_producers=max_producers))
        try:
            server, _ = start_http_server(port, host, registry)
        except OSError as error:
            raise InvalidInput(
                f"cannot listen on {host}:{port} ({error}): choose another --port or --host", "LEDGER_PORT_IN_USE"
            ) from None
        url = f"http://{host}:{server.server_port}/metrics"
        session.output.done(f"metrics at {url}", {"url": url})
        try:
            while True:
                SYSTEM_CLOCK.sleep(3600)
        except KeyboardInterrupt:
            server.shutdown()
