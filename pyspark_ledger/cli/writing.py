"""``topics write``: JSON lines or CSV become records."""

from __future__ import annotations

import csv
import os
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import click

from pyspark_ledger.base.limits import MOST_LINE_BYTES
from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.errors import InvalidInput, LedgerError, OutcomeUnknown

if TYPE_CHECKING:
    from pyspark_ledger.append.producer import Producer, Receipt
    from pyspark_ledger.base.position import Position
    from pyspark_ledger.describe.jsonlines import Decoder

Numbered = tuple[int, dict[str, Any]]  # the line it is on, and the record
_PROGRESS_RECORDS = 1_000  # how often progress is shown
_PIPE_LINGER_MS = 1_000.0  # what comes slowly through a pipe is to be seen all the same


@click.command(cls=Command)
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--format", "kind", type=click.Choice(["json", "csv"]), help="Default: csv for a FILE.csv, else json.")
@click.option("--producer", "name", help="Number the records by their lines, under this name: the same FILE written "
              "again adds nothing twice. One name for each file.")  # fmt: skip
@click.pass_obj
def write(session: Session, topic: str, file: IO[bytes], kind: str | None, name: str | None) -> None:
    """Append the records of FILE, or of standard input, to TOPIC.

    JSON lines have one object each, column -> value. CSV has its columns' names in its first line; an empty cell is
    null. Columns that are left out are null, unknown ones are errors. What comes through a pipe is in the log after a
    second at the latest."""
    write_lines(session, topic, file, kind, name)


def write_lines(
    session: Session, topic: str, file: IO[bytes], kind: str | None, name: str | None, without: Collection[str] = ()
) -> None:
    """``without``: columns that are passed over."""
    from pyspark_ledger.describe.jsonlines import Decoder

    source = _Source(file)
    kind = kind or ("csv" if source.name.endswith(".csv") else "json")
    with session.client() as client, session.output.progress() as progress:
        log = session.namespace(client).log(topic)
        decoder = Decoder(log.schema(log.view().head.schema_id), without=without)
        rows = (_csv if kind == "csv" else _json)(source, decoder)
        linger_ms = None if source.is_file else _PIPE_LINGER_MS
        written = _Written(client.producer(topic, name, linger_ms=linger_ms), name is not None)
        written.take(_numbered(source, rows), lambda: progress(source.name, source.bytes, source.size))
        end = log.refresh(sync=True).head.end
    say_written(session, topic, name, written.records, written.duplicates, end)


def say_written(session: Session, topic: str, name: str | None, records: int, duplicates: int, end: Position) -> None:
    facts = {"topic": topic, "records": records, "duplicates": duplicates, "end": end}
    there = f", {duplicates:,} were there already" if name else ""
    session.output.done(f"{topic}: {records:,} records written{there}; end {end}", facts)


class _Source:
    """Lines of a file as text, counted."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.name = os.path.basename(getattr(file, "name", "-"))
        self.line = self.bytes = 0

    @property
    def is_file(self) -> bool:
        """Which is all there, and not a pipe that something may come through later."""
        status = self._status()
        return status is None or stat.S_ISREG(status.st_mode)

    @property
    def size(self) -> int | None:
        """None if nobody knows: a pipe."""
        status = self._status()
        return (status.st_size or None) if status else None

    def _status(self) -> os.stat_result | None:
        try:
            return os.fstat(self._file.fileno())
        except OSError:  # something in memory
            return None

    def __iter__(self) -> Iterator[str]:
        while raw := self._file.readline(MOST_LINE_BYTES + 1):
            self.line += 1
            if len(raw) > MOST_LINE_BYTES:
                raise InvalidInput(f"it has more than {MOST_LINE_BYTES} bytes", "LEDGER_INVALID_VALUE")
            self.bytes += len(raw)
            yield raw.decode("utf-8-sig" if self.line == 1 else "utf-8")


def _json(source: _Source, decoder: Decoder) -> Iterator[dict[str, Any] | None]:
    for text in source:
        yield decoder.line(text) if text.strip() else None


def _csv(source: _Source, decoder: Decoder) -> Iterator[dict[str, Any] | None]:
    csv.field_size_limit(MOST_LINE_BYTES)
    rows = csv.reader(source, strict=True)
    names = decoder.header(next(rows, []))
    yield None
    for cells in rows:
        yield decoder.cells(names, cells) if cells else None


def _numbered(source: _Source, rows: Iterator[dict[str, Any] | None]) -> Iterator[Numbered]:
    """Records with their line numbers, also in errors. A record of several lines (in CSV) has its first line's."""
    while True:
        line = source.line + 1
        try:
            record = next(rows)
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError, OSError) as error:
            raise InvalidInput(f"line {line}: this cannot be read: {error}", "LEDGER_INVALID_VALUE") from None
        except InvalidInput as error:
            raise InvalidInput(f"line {line}: {error.message}", error.code) from None
        if record is not None:
            yield line, record


@dataclass
class _Written:
    """What of a source is in the log."""

    producer: Producer
    numbered: bool
    records: int = 0
    duplicates: int = 0
    line: int = 0  # everything up to this line is in the log
    _waiting: deque[tuple[int, Receipt]] = field(default_factory=deque)

    def take(self, rows: Iterator[Numbered], show_progress: Callable[[], None]) -> None:
        """Writes all rows. If an error stops it, the message says how far it came."""
        try:
            with self.producer:
                for number, (line, record) in enumerate(rows):
                    self._waiting.append((line, self.producer.send(record, line if self.numbered else None)))
                    if number % _PROGRESS_RECORDS == 0:
                        self._settle()
                        show_progress()
                self.producer.close()
            self._settle()
        except KeyboardInterrupt:
            raise LedgerError(f"interrupted. {self._how_far()}", "LEDGER_INTERRUPTED") from None
        except LedgerError as error:
            said = error.message if error.message[-1:] in ".?!" else f"{error.message}."
            raise LedgerError(f"{said} {self._how_far()}", error.code) from None

    def _settle(self) -> None:
        while self._waiting and self._waiting[0][1].done():
            line, receipt = self._waiting[0]
            if receipt.exception() is not None:
                return
            self._waiting.popleft()
            self.line = line
            if receipt.result().duplicate:
                self.duplicates += 1
            else:
                self.records += 1

    def _how_far(self) -> str:
        """The producer was left with an error: what was under way then may still become known, nothing else is sent."""
        certain = not any(isinstance(receipt.exception(), OutcomeUnknown) for _, receipt in self._waiting)
        self._settle()
        rest = "nothing" if certain else "perhaps something"
        if not self.line:
            return "Nothing was written" if certain else "Perhaps something was written"
        again = "; the same command again adds what is missing" if self.numbered else ""
        return f"What is on lines 1 to {self.line} is in the log, and {rest} after them{again}"
