"""``pyspark-ledger console``: a namespace in a browser."""

from __future__ import annotations

import importlib.util
import os
from contextlib import closing, suppress
from pathlib import Path

import click

from pyspark_ledger.cli.base import Command, Session, log_to_stderr
from pyspark_ledger.errors import InvalidInput

_TIMEOUT_S = 5.0  # of one request to ZooKeeper: somebody waits for the page
_NEEDED = ("starlette", "uvicorn", "jinja2")


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


@click.command(cls=Command)
@click.option("--port", type=click.IntRange(0, 65_535), default=9467, show_default=True, help="0: any that is free.")
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0 shows it to everybody.")
@click.option("--host-name", "host_names", multiple=True, metavar="NAME",
              help="A name by which it is reached, as behind a reverse proxy. More than one may be given.")  # fmt: skip
@click.option("--allow-changes", is_flag=True, help="Let those who sign in move subscriptions and set policies.")
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False),
              help="Its first line is the token to sign in with [else LEDGER_CONSOLE_TOKEN].")  # fmt: skip
@click.option("--user-header", default="", metavar="NAME",
              help="A reverse proxy says in this header who somebody is, as in X-Forwarded-User.")  # fmt: skip
@click.option("--allow-test-records", is_flag=True, help="With --allow-changes: let them write a record, too.")
@click.option("--audit-log", type=click.Path(path_type=Path, dir_okay=False),
              help="A JSON line for every change goes to this file.")  # fmt: skip
@click.option("--mask", callback=_names, metavar="A,B", help="Columns whose values nobody is shown.")
@click.option("--no-records", is_flag=True, help="Show no records at all.")
@click.option("--checkpoints", multiple=True, type=click.Path(path_type=Path), metavar="FOLDER",
              help="A query's checkpoint, or a folder of such, to show what Spark's offsets say.")  # fmt: skip
@click.pass_obj
def console(
    session: Session,
    port: int,
    host: str,
    host_names: tuple[str, ...],
    allow_changes: bool,
    token_file: Path | None,
    user_header: str,
    allow_test_records: bool,
    audit_log: Path | None,
    mask: list[str],
    no_records: bool,
    checkpoints: tuple[Path, ...],
) -> None:
    """Show the namespace in a browser, until Ctrl-C: health, topics, records, subscriptions and alarms, live.

    It changes nothing, unless it is allowed to. docs/console.md says how to let others see it."""
    _check_installed()
    from pyspark_ledger.console.server import ConsoleServer
    from pyspark_ledger.console.settings import Settings, read_token
    from pyspark_ledger.log.namespace import OpenNamespace

    token = read_token(token_file) if token_file else os.environ.get("LEDGER_CONSOLE_TOKEN", "").strip()
    settings = Settings(
        host=host, port=port, host_names=host_names, allow_changes=allow_changes, token=token, user_header=user_header,
        allow_test_records=allow_test_records, audit_log=audit_log, masked=frozenset(mask),
        show_records=not no_records, checkpoints=checkpoints,
    )  # fmt: skip
    settings.check()
    log_to_stderr()
    opened = OpenNamespace(session.metadata(_TIMEOUT_S), address=session.address)
    with closing(opened) as namespace, suppress(KeyboardInterrupt):
        server = ConsoleServer(namespace, settings)
        server.run(lambda: session.output.done(f"the console is at {server.url}", {"url": server.url}))


def _check_installed() -> None:
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise InvalidInput(
            "this needs the extra 'console': pip install 'pyspark-ledger[console]'", "LEDGER_NOT_INSTALLED"
        )
