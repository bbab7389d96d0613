"""The command ``pyspark-ledger``. Needs the extra ``cli``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

try:
    import click
except ImportError:
    raise SystemExit("pyspark-ledger needs the extra 'cli': pip install 'pyspark-ledger[cli]'") from None

from pyspark_ledger.clock import SYSTEM_CLOCK
from pyspark_ledger.errors import Conflict, LedgerError

if TYPE_CHECKING:
    from pyspark_ledger.compaction import CompactionStats, Progress


class Commands(click.Group):
    """Errors of the package are one line and exit status 1; ``--verbose`` shows where they came from."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except LedgerError as error:
            if context.params.get("verbose"):
                raise
            raise click.ClickException(str(error)) from None


def _duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)", text)
    if match is None:
        raise click.BadParameter(f"'{text}' is no duration: write 30s, 10m or 1h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


_RATE = click.FloatRange(min=0, min_open=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--zookeeper", help="Connect string [LEDGER_ZOOKEEPER, else 127.0.0.1:2181].")
@click.option("--verbose", is_flag=True, help="Show tracebacks.")
@click.pass_context
def main(context: click.Context, zookeeper: str | None, verbose: bool) -> None:
    """Ledgers for Spark: a durable, totally ordered, exactly-once log with no brokers."""
    context.obj = zookeeper


@main.group()
def topics() -> None:
    """Look after topics."""


@topics.command()
@click.argument("topic")
@click.option("--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True,
              help="In this process, or as a Spark job.")  # fmt: skip
@click.option("--read-rate", type=_RATE, help="Records per second to read at most (local).")
@click.option("--write-rate", type=_RATE, help="Records per second to write at most (local).")
@click.option("--every", callback=_duration, help="Do it again and again, as in 10m, until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def compact(
    zookeeper: str | None,
    topic: str,
    engine: str,
    read_rate: float | None,
    write_rate: float | None,
    every: float | None,
    as_json: bool,
) -> None:
    """Write the last record of every key of TOPIC to a compacted ledger, for readers with readCompacted."""
    while True:
        before = SYSTEM_CLOCK.monotonic()
        try:
            click.echo(_told(topic, _compact(zookeeper, topic, engine, read_rate, write_rate), as_json))
        except Conflict as conflict:  # somebody else is at it: for a daemon that is as good
            if every is None:
                raise
            click.echo(str(conflict), err=True)
        if every is None:
            return
        SYSTEM_CLOCK.sleep(max(0.0, every - (SYSTEM_CLOCK.monotonic() - before)))


def _compact(
    zookeeper: str | None, topic: str, engine: str, read_rate: float | None, write_rate: float | None
) -> CompactionStats | None:
    if engine == "spark":
        from pyspark.sql import SparkSession

        from pyspark_ledger.datasource.compaction import compact

        return compact(SparkSession.builder.getOrCreate(), topic, zookeeper=zookeeper)
    from pyspark_ledger.client import LedgerClient

    with LedgerClient(zookeeper) as client, _progress_bar() as progress:
        return client.compact(topic, progress, read_rate=read_rate, write_rate=write_rate)


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """On the terminal that standard error is, if it is one."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def told(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total)
            bar.update(tasks[phase], completed=done)

        yield told


def _told(topic: str, stats: CompactionStats | None, as_json: bool) -> str:
    if as_json:
        return json.dumps(None if stats is None else asdict(stats) | {"horizon": str(stats.horizon)})
    if stats is None or not stats.generation:
        return f"{topic}: nothing to compact"
    share = f"{stats.records:,} of {stats.records_before:,} records"
    return f"{topic}: generation {stats.generation}, {share}, {stats.bytes:,} bytes, horizon {stats.horizon}"


if __name__ == "__main__":
    main()
