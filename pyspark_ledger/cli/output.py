"""What commands say. They never print: they hand values to an :class:`Output`, for people or for programs.

Units are in the names of values (``backlog_bytes``, ``age_seconds``): a program gets plain numbers, a person gets
``1.5 MB`` and ``2h 5m``.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]
Progress = Callable[[str, int, int | None], None]  # phase, how much is done, of how much if that is known
_FOLDED_ROWS = 500  # a longer table is not made to fit the terminal


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
        click.echo(text, err=True)

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


class ConsoleOutput(Output):
    def rows(self, rows: Sequence[Row], empty: str) -> None:
        if rows:
            self._table(self._console(), rows)
        else:
            click.echo(empty)

    def facts(self, facts: Row) -> None:
        from rich.table import Table
        from rich.text import Text

        console = self._console()
        grid = Table.grid(padding=(0, 2))
        for name, value in facts.items():
            if not _is_listing(value):
                grid.add_row(Text(_title(name), style="bold"), Text(_cell(name, value)))
        console.print(grid)
        for name, value in facts.items():
            if _is_listing(value):
                console.print(Text(f"\n{_title(name)}", style="bold"))
                self._table(console, value)

    def done(self, sentence: str, facts: Row) -> None:
        click.echo(sentence)

    def record(self, place: str, value: Row) -> None:
        click.echo(f"{place}  {json.dumps(value, ensure_ascii=False)}")

    def _console(self) -> Console:
        from rich.console import Console

        # Not wrapped when it goes into a file or a pipe; nothing in a name or a message is markup.
        return Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 1_000)

    def _table(self, console: Console, rows: Sequence[Row]) -> None:
        from rich.table import Table
        from rich.text import Text

        names = list(dict.fromkeys(name for row in rows for name in row))
        numbers = [any(isinstance(row.get(name), int | float) for row in rows) for name in names]
        if len(rows) > _FOLDED_ROWS:
            click.echo("\n".join(_aligned(rows, names, numbers)))
            return
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for name, right in zip(names, numbers, strict=True):
            table.add_column(Text(_title(name)), justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(_cell(name, row.get(name))) for name in names))
        console.print(table)


def _aligned(rows: Sequence[Row], names: Sequence[str], right: Sequence[bool]) -> Iterator[str]:
    """The lines of a table that is too long to be made to fit a terminal: rich takes a second for 1,500 rows."""
    from rich.cells import cell_len
    from rich.control import strip_control_codes

    lines = [[_title(name) for name in names]]
    lines += [[strip_control_codes(_cell(name, row.get(name))) for name in names] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        spaces = [" " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        cells = zip(line, spaces, right, strict=True)
        yield "  ".join(space + cell if is_right else cell + space for cell, space, is_right in cells)


def _is_listing(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


# -- for people -------------------------------------------------------------------------------------------------

_WORDS = {"bytes": "size", "seconds": "time"}
_COUNTS = {"records", "commits", "duplicates", "acks", "producers", "ledgers", "topics", "before"}


def _title(name: str) -> str:
    words = name.split("_")
    return " ".join(words if "per" in words else [_WORDS.get(word, word) for word in words])


def _cell(name: str, value: Any) -> str:
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
