"""``topics read`` and ``topics peek``: records, one line each."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from pyspark_ledger.cli.arguments import place
from pyspark_ledger.cli.base import Command, Session

if TYPE_CHECKING:
    from pyspark_ledger.log.log import Log
    from pyspark_ledger.log.places import Place
    from pyspark_ledger.log.reader import Record


def _columns(_context: click.Context, _option: click.Parameter, text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


COLUMNS = click.option("--columns", callback=_columns, metavar="A,B", help="Only these.")
_METADATA = click.option(
    "--metadata",
    is_flag=True,
    help="With --json: add _metadata, where a record is and where it came from.",
)


@click.command(cls=Command)
@click.argument("topic")
@click.option("--from", "start", default="earliest", show_default=True, callback=place, metavar="PLACE",
              help="earliest, latest, a position as 3:17:0, or a publish time in ISO 8601.")  # fmt: skip
@click.option("-n", "count", type=click.IntRange(0), help="So many records at most.")
@click.option("--follow", is_flag=True, help="Wait for more, until Ctrl-C.")
@click.option("--compacted", is_flag=True, help="The last record of every key; with --follow, then every change.")
@COLUMNS
@_METADATA
@click.pass_obj
def read(
    session: Session,
    topic: str,
    start: Place,
    count: int | None,
    follow: bool,
    compacted: bool,
    columns: list[str] | None,
    metadata: bool,
) -> None:
    """Records of TOPIC, oldest first. With --json, lines that 'topics write' takes back."""
    with session.client() as client:
        end = None if follow else "latest"
        records = client.reader(topic, start, end, columns=columns, compacted=compacted)
        try:
            _show(session, session.namespace(client).log(topic), islice(records, count), metadata)
        except KeyboardInterrupt:
            if not follow:
                raise


@click.command(cls=Command)
@click.argument("topic")
@click.option("-n", "count", type=click.IntRange(0), default=10, show_default=True, help="How many.")
@COLUMNS
@_METADATA
@click.pass_obj
def peek(session: Session, topic: str, count: int, columns: list[str] | None, metadata: bool) -> None:
    """The newest records of TOPIC."""
    from pyspark_ledger.log import scan
    from pyspark_ledger.log.trimmed import records_before_begin

    with session.client() as client:
        log = session.namespace(client).log(topic)
        view = log.refresh(sync=True)
        start = scan.position_at(log, view, max(records_before_begin(view.head), view.head.records - count))
        records = client.reader(topic, start, "latest", columns=columns)
        _show(session, log, islice(records, count), metadata)


def _show(session: Session, log: Log, records: Iterable[Record], metadata: bool) -> None:
    from pyspark_ledger.files.jsonrows import encoder

    output = session.output
    encode = encoder(log.schema(log.view().head.schema_id))
    for record in records:
        value = encode(record.value)
        if metadata:
            value["_metadata"] = _metadata(record)
        output.record(f"{record.position}  {record.publish_time:%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z", value)


def _metadata(record: Record) -> dict[str, Any]:
    return {
        "position": str(record.position),
        "publish_time": record.publish_time.isoformat(),
        "producer": record.producer,
        "sequence_id": record.sequence_id,
        "token": record.token,
    }
