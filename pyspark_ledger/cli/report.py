"""A report of what a command did, in a file: for commands that repair, move or restore something.

The file is written before the first change, and again with each step. So a command that was interrupted leaves a report
that says how far it came, and an operator can show later what was done, by whom, and what it cost.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

import pyspark_ledger
from pyspark_ledger.base.names import this_process
from pyspark_ledger.cli.base import Session
from pyspark_ledger.cli.output import plain
from pyspark_ledger.describe.rows import Row
from pyspark_ledger.errors import InvalidInput, disk_errors

_USER_IN_URI = re.compile(r"(?<=://)[^/?#@]*@")  # s3://key:secret@bucket
_CODE = "LEDGER_REPORT_UNAVAILABLE"
UNDER_WAY = "under way"  # stays there if the command is killed


def report_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--report``, for a command that works inside :func:`reporting`."""
    return click.option(
        "--report",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Where the report of what was done goes [pyspark-ledger-<command>-<time>.json in this folder].",
    )(command)


class Report:
    """What one run of a command has found, done and lost so far. Each call writes it to the file."""

    def __init__(self, path: Path, about: Row) -> None:
        self.path = path
        self._content: dict[str, Any] = {
            **about,
            "begun": _now(),
            "ended": None,
            "outcome": UNDER_WAY,
            "error": None,
            "found": {},
            "done": {},
            "lost": {},
        }

    def found(self, facts: Row) -> None:
        """What the command has found, before it changes anything."""
        self._add("found", facts)

    def done(self, facts: Row) -> None:
        """What it has changed. A value that is said again replaces the one before."""
        self._add("done", facts)

    def lost(self, facts: Row) -> None:
        """What cannot be brought back, and what was given up."""
        self._add("lost", facts)

    def begin(self) -> None:
        """Makes the file; it must be a new one, because it may be all that is known of an earlier run."""
        with disk_errors("write the report", self.path, _CODE, "name another file with --report"):
            self.path.touch(exist_ok=False)
            self._write()

    def end(self, outcome: str, error: str | None = None) -> None:
        self._content |= {"ended": _now(), "outcome": outcome, "error": error}
        with suppress(OSError):  # what was done is done, and what went wrong is told by the command itself
            self._write()

    def _add(self, part: str, facts: Row) -> None:
        self._content[part] |= without_secrets(facts)
        with suppress(OSError):
            self._write()

    def _write(self) -> None:
        """Nobody ever finds half of a report."""
        text = json.dumps(self._content, indent=2, ensure_ascii=False, default=plain) + "\n"
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.path)


@contextmanager
def reporting(session: Session, asked: str | None) -> Iterator[Report]:
    """Around what a command changes: the report is begun before, and says at the end how it went. ``asked`` is the
    value of ``--report``."""
    context = click.get_current_context()
    command = context.command_path.partition(" ")[2]
    about = {
        "command": command,
        "arguments": without_secrets({name: value for name, value in context.params.items() if value is not None}),
        "namespace": session.address,
        "by": this_process(),
        "version": pyspark_ledger.__version__,
    }
    report = Report(_path(asked, command), about)
    report.begin()
    try:
        yield report
    except BaseException as error:
        is_interrupted = isinstance(error, KeyboardInterrupt | click.Abort)
        report.end("interrupted" if is_interrupted else "failed", str(error) or type(error).__name__)
        raise
    else:
        report.end("done")
    finally:
        session.output.note(f"report: {report.path}")


def _path(asked: str | None, command: str) -> Path:
    """The file that was asked for; else one in this folder, whose name says what was done and when."""
    if asked is not None:
        path = Path(asked)
        if path.exists():
            raise InvalidInput(
                f"--report {asked}: there is such a file, and it may be the report of an earlier run: name another one",
                "LEDGER_REPORT_EXISTS",
            )
        return path
    stem = f"pyspark-ledger-{command.rpartition(' ')[2]}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    names = (f"{stem}{number}.json" for number in ("", *(f"-{again}" for again in range(2, 1000))))
    return next(path for name in names if not (path := Path(name)).exists())


def without_secrets(value: Any) -> Any:
    """The same, without users and passwords in URIs."""
    if isinstance(value, str):
        return _USER_IN_URI.sub("***@", value)
    if isinstance(value, dict):
        return {name: without_secrets(each) for name, each in value.items()}
    return [without_secrets(each) for each in value] if isinstance(value, list | tuple) else value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
