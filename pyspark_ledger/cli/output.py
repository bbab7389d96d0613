"""What commands say. They never print: they hand values to an :class:`Output`, for people or for programs.

Units are in the names of values (``backlog_bytes``, ``age_seconds``): a program gets plain numbers, a person gets
``1.5 MB`` and ``2h 5m``.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from pyspark_ledger.cli import tables
from pyspark_ledger.describe.rows import Row

Progress = Callable[[str, int, int | None], None]  # phase, how much is done, of how much if that is known


class Output(ABC):
    @abstractmethod
    def rows(self, rows: Sequence[Row], empty: str) -> None:
        """A listing, or a word for an empty one."""

    @abstractmethod
    def facts(self, facts: Row) -> None:
        """One thing, described. A value may be a mapping, or a list of rows."""

    @abstractmethod
    def done(self, sentence: str, facts: Row) -> None:
        """What a command did."""

    @abstractmethod
    def record(self, place: str, value: Row) -> None:
        """One record of a topic, as soon as it is read."""

    def note(self, text: str) -> None:
        """A remark for people, on standard error: not part of the answer."""
        click.echo(printable(text), err=True)

    def progress(self) -> AbstractContextManager[Progress]:
        return _progress()


class JsonOutput(Output):
    """One document on one line for each answer."""

    def rows(self, rows: Sequence[Row], empty: str) -> None:
        self._print(list(rows))

    def facts(self, facts: Row) -> None:
        self._print(facts)

    def done(self, sentence: str, facts: Row) -> None:
        self._print(facts)

    def record(self, place: str, value: Row) -> None:
        self._print(value)

    def _print(self, document: Any) -> None:
        click.echo(json.dumps(document, ensure_ascii=False, default=plain))


def plain(value: Any) -> Any:
    """What JSON has no word for, as text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


class CsvOutput(Output):
    """Comma-separated values with a header: a row for each of a listing, for each record, and for one thing that is
    described. Values are as in JSON; one that consists of several is JSON."""

    def __init__(self) -> None:
        self._header: list[str] = []

    def rows(self, rows: Sequence[Row], empty: str) -> None:
        self._print(rows, list(dict.fromkeys(name for row in rows for name in row)))

    def facts(self, facts: Row) -> None:
        self._print([facts], list(facts))

    def done(self, sentence: str, facts: Row) -> None:
        self._print([facts], list(facts))

    def record(self, place: str, value: Row) -> None:
        self._print([value], list(value))

    def _print(self, rows: Sequence[Row], header: list[str]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if header and header != self._header:
            writer.writerow(header)
            self._header = header
        writer.writerows([_csv_cell(row.get(name)) for name in header] for row in rows)
        click.echo(text.getvalue(), nl=False)


def _csv_cell(value: Any) -> Any:
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    text = json.dumps(value, ensure_ascii=False, default=plain)
    return json.loads(text) if text.startswith('"') else text


class ConsoleOutput(Output):
    def rows(self, rows: Sequence[Row], empty: str) -> None:
        if rows:
            self._table(rows)
        else:
            click.echo(printable(empty))

    def facts(self, facts: Row) -> None:
        said = [(_title(name), _cell(name, value)) for name, value in facts.items() if not _is_listing(value)]
        _echo(tables.pairs(said, _width()))
        for name, value in facts.items():
            if _is_listing(value):
                click.echo("\n" + click.style(_title(name), bold=True))
                self._table(value)

    def done(self, sentence: str, facts: Row) -> None:
        click.echo(printable(sentence))

    def record(self, place: str, value: Row) -> None:
        click.echo(printable(f"{place}  {json.dumps(value, ensure_ascii=False)}"))

    def _table(self, rows: Sequence[Row]) -> None:
        names = list(dict.fromkeys(name for row in rows for name in row))
        numbers = [any(isinstance(row.get(name), int | float) for row in rows) for name in names]
        cells = [[_cell(name, row.get(name)) for name in names] for row in rows]
        _echo(tables.table([_title(name) for name in names], cells, numbers, _width()))


FORMATS: dict[str, Callable[[], Output]] = {"table": ConsoleOutput, "json": JsonOutput, "csv": CsvOutput}


def _width() -> int | None:
    """Of the terminal. What goes into a file or a pipe is not folded."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _echo(lines: Iterable[str]) -> None:
    click.echo("\n".join(lines))


def _is_listing(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


# -- for people -------------------------------------------------------------------------------------------------

_WORDS = {"bytes": "size", "seconds": "time"}
# Control characters of both sets, what turns the direction of text, and ends of lines that are none of ours.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_COUNTS = {"records", "commits", "duplicates", "acks", "producers", "ledgers", "topics", "before"}


def printable(text: str) -> str:
    """Names and records are others' text: what would move the cursor, hide or reorder what a terminal shows, or give
    it commands, is shown as JSON spells it. Line ends and tabs stay: a sentence may have several lines."""
    return _UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _title(name: str) -> str:
    words = name.split("_")
    return printable(" ".join(words if "per" in words else [_WORDS.get(word, word) for word in words]))


def _cell(name: str, value: Any) -> str:
    return printable(_spelled(name, value)).replace("\n", "\\n")


def _spelled(name: str, value: Any) -> str:
    words = name.split("_")
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, Mapping):
        return ", ".join(f"{_title(key)} {_cell(key, each)}" for key, each in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, int | float):
        if "bytes" in words:
            return size(value)
        if words[-1] == "seconds" and "per" not in words:
            return duration(value)
        return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if words[-1] in _COUNTS else str(value)
    return str(value)


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g}s"
    days, rest = divmod(round(seconds), 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [f"{number}{unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")) if number]
    return " ".join(parts[:2])


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on the terminal that standard error is, if it is one."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def report(phase: str, done: int, total: int | None) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total)
            bar.update(tasks[phase], completed=done)

        yield report
