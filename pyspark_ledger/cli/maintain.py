"""``pyspark-ledger maintain``: looks after a namespace."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyspark_ledger.base.sizes import parse_size
from pyspark_ledger.cli.base import Command, Session, log_to_stderr
from pyspark_ledger.cli.health import Answer, HealthServer, Page, text

if TYPE_CHECKING:
    from pyspark_ledger.lifecycle.actions import Action
    from pyspark_ledger.lifecycle.maintenance import Maintenance

_PATIENCE_S = 5.0  # for a step that does not end: leaving it in the middle is harmless too


def _rate(_context: click.Context, _option: click.Parameter, given: str | None) -> int | None:
    if given is None:
        return None
    size = parse_size(given)
    if size is None:
        raise click.BadParameter(f"'{given}' is no number of bytes per second: write 100MB")
    return size


def _chosen(_context: click.Context, _option: click.Parameter, given: str | None) -> list[Action]:
    from pyspark_ledger.lifecycle.actions import ACTIONS

    known = {action.name: action for action in ACTIONS}
    names = list(known) if given is None else [name.strip() for name in given.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.BadParameter(f"there is no action '{unknown[0]}': there are {', '.join(known)}")
    return [known[name] for name in known if name in names]


@click.command(cls=Command)
@click.option(
    "--once", is_flag=True, help="Do everything that is due, once, and end. Exit status 1 if something failed."
)
@click.option("--actions", metavar="NAMES", callback=_chosen,
              help="Only these, as in trim,gc.  [default: all]")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65_535), default=9465, show_default=True,
              help="For /health/live, /health/ready and /metrics; 0: any that is free.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0 answers everybody.")
@click.option("--read-rate", metavar="SIZE", callback=_rate, help="Bytes to read in a second, as 100MB, at most.")
@click.option("--write-rate", metavar="SIZE", callback=_rate, help="Bytes to write in a second, at most.")
@click.option("--pid-file", type=click.Path(path_type=Path), hidden=True)
@click.pass_obj
def maintain(
    session: Session,
    once: bool,
    actions: list[Action],
    port: int,
    host: str,
    read_rate: int | None,
    write_rate: int | None,
    pid_file: Path | None,
) -> None:
    """Look after all topics: seal idle ledgers, give up old ones, delete files, compact, and so on, as the topics'
    policies say.

    One process is enough for a namespace; of several one leads, and the others stand by. It may be stopped at any
    time."""
    from pyspark_ledger.lifecycle.maintenance import Maintenance
    from pyspark_ledger.local.pidfile import held

    with closing(session.open_namespace()) as namespace, held(pid_file):
        maintenance = Maintenance(namespace, actions=actions, read_rate=read_rate, write_rate=write_rate)
        log_to_stderr()
        with _stopped_by_signals(maintenance, status=int(once)):  # --once has not done everything then
            if once:
                _run_once(session, maintenance)
            else:
                _run(session, maintenance, host, port)


def _run_once(session: Session, maintenance: Maintenance) -> None:
    from pyspark_ledger.lifecycle.rounds import Stopped

    try:
        well = maintenance.once()
    except Stopped:
        session.output.note("stopped: what was not done is left to the next run")
        raise click.exceptions.Exit(1) from None
    rows = [
        {"action": name, "failed": stats.failures, "seconds": round(stats.seconds, 3), "did": _did(stats.done)}
        for name, stats in maintenance.stats.items()
        if name != "look" or stats.failures
    ]
    session.output.rows(rows, "nothing")
    if not well:
        raise click.exceptions.Exit(1)


def _did(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {what.replace('_', ' ')}" for what, number in numbers.items() if number)


def _run(session: Session, maintenance: Maintenance, host: str, port: int) -> None:
    with closing(HealthServer(host, port, _pages(maintenance))) as server:
        session.output.done(f"maintenance runs, its health is at {server.url}/health/ready", {"url": server.url})
        maintenance.run()


def _pages(maintenance: Maintenance) -> dict[str, Page]:
    def live() -> Answer:
        alive = maintenance.health.alive
        return text(alive, "alive" if alive else "no step was made for a long time")

    def ready() -> Answer:
        health = maintenance.health
        role = "leads" if health.leads else f"stands by: {health.leader} leads"
        return text(health.ready, role if health.ready else health.error)

    pages: dict[str, Page] = {"/health/live": live, "/health/ready": ready}
    if importlib.util.find_spec("prometheus_client") is not None:
        from pyspark_ledger.metrics.maintaining import exposition

        pages["/metrics"] = exposition(maintenance)
    return pages


@contextlib.contextmanager
def _stopped_by_signals(maintenance: Maintenance, status: int) -> Iterator[None]:
    """It ends between two steps; if a step takes long, in the middle of it."""

    def stop(_signal: int, _frame: object) -> None:
        maintenance.stop()
        patience = threading.Timer(_PATIENCE_S, os._exit, [status])
        patience.daemon = True
        patience.start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
