"""``topics export``: a topic's records as a file of Parquet, CSV or JSON lines."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.cli.arguments import place
from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.cli.formats import KINDS, kind_of
from pyspark_ledger.cli.reading import COLUMNS
from pyspark_ledger.errors import disk_errors

if TYPE_CHECKING:
    from pyspark_ledger.base.position import Position
    from pyspark_ledger.log.log import Log
    from pyspark_ledger.log.places import Place

_NOT_WRITTEN = "LEDGER_EXPORT_NOT_WRITTEN"
_STDOUT = "-"


@click.command(cls=Command)
@click.argument("topic")
@click.argument("file", default=_STDOUT)
@click.option("--format", "kind", type=click.Choice(KINDS), help="Default: what FILE's name ends with, else jsonl.")
@click.option("--start", default="earliest", show_default=True, callback=place, metavar="PLACE",
              help="earliest, latest, a position as 3:17:0, or a publish time in ISO 8601.")  # fmt: skip
@click.option("--end", default="latest", show_default=True, callback=place, metavar="PLACE", help="Where to stop.")
@click.option("--compacted", is_flag=True, help="The last record of every key.")
@COLUMNS
@click.option("--metadata", is_flag=True, help="Add _metadata: where a record is and where it came from.")
@click.option("--overwrite", is_flag=True, help="Replace a FILE that is there.")
@click.pass_obj
def export(
    session: Session,
    topic: str,
    file: str,
    kind: str | None,
    start: Place,
    end: Place,
    compacted: bool,
    columns: list[str] | None,
    metadata: bool,
    overwrite: bool,
) -> None:
    """Write the records of TOPIC to FILE, or to standard output. 'topics import' takes it back.

    FILE has its name only when it is complete. Memory stays small, however long the topic is."""
    from pyspark_ledger.cli.formats import writer
    from pyspark_ledger.lifecycle.backup_file import check_place
    from pyspark_ledger.log.reader import METADATA_FIELD

    kind = kind or kind_of(file) or "jsonl"
    if file == _STDOUT and kind == "parquet" and sys.stdout.isatty():
        raise click.UsageError("Parquet is no text: give a FILE, or send standard output somewhere")
    if file != _STDOUT:
        check_place(Path(file), overwrite, _NOT_WRITTEN)
    with session.client() as client, session.output.progress() as progress:
        reader = client.reader(topic, start, end, columns=columns, compacted=compacted)
        total = None if compacted else _count(session.namespace(client).log(topic), reader.position, end)
        schema = reader.schema.append(METADATA_FIELD) if metadata else reader.schema
        rows = 0
        with _opened(file) as out, writer(kind, out, schema) as written:
            for batch in reader.batches(metadata):
                written.write(batch)
                rows += batch.num_rows
                progress("exporting", rows, total)
    if written.remark:
        session.output.note(written.remark)
    sentence = f"{topic}: {rows:,} records"
    if file == _STDOUT:
        session.output.note(sentence)
    else:
        facts = {"topic": topic, "file": file, "format": kind, "records": rows, "bytes": Path(file).stat().st_size}
        session.output.done(f"{sentence} in {file}", facts)


def _count(log: Log, start: Position, end: Place) -> int:
    from pyspark_ledger.log import places, scan

    view = log.refresh(sync=True)
    return scan.count(log, view, start, places.resolve(log, view, end))


@contextlib.contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    """Nobody ever sees a part of a file under its name."""
    if file == _STDOUT:
        yield sys.stdout.buffer
        return
    path = Path(file).absolute()
    temporary = path.with_name(f".{path.name}.{SYSTEM_CLOCK.new_id().hex()}")
    try:
        with disk_errors("write", file, _NOT_WRITTEN):
            with open(temporary, "xb") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
