"""``topics import``: the records of a file of Parquet, CSV or JSON lines."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.cli.formats import KINDS, kind_of
from pyspark_ledger.cli.writing import say_written, write_lines
from pyspark_ledger.errors import InvalidInput, LedgerError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pyspark_ledger.append.producer import Producer

_BATCH_ROWS = 1 << 16
_METADATA = "_metadata"


@click.command("import", cls=Command)
@click.argument("topic")
@click.argument("file", type=click.File("rb"))
@click.option("--format", "kind", type=click.Choice(KINDS), help="Default: what FILE's name ends with, else jsonl.")
@click.option("--producer", "name", help="Number the records by their rows, under this name: the same FILE imported "
              "again adds nothing twice. One name for each file.")  # fmt: skip
@click.pass_obj
def import_(session: Session, topic: str, file: IO[bytes], kind: str | None, name: str | None) -> None:
    """Append the records of FILE to TOPIC: what 'topics export' writes, or a file of another tool.

    All columns of FILE must be TOPIC's, in any order; those that it does not have are null, and _metadata is passed
    over. With --producer an import that was interrupted is completed by the same command."""
    kind = kind or kind_of(getattr(file, "name", "")) or "jsonl"
    if kind == "parquet":
        _import_parquet(session, topic, file, name)
    else:
        write_lines(session, topic, file, "csv" if kind == "csv" else "json", name, without=(_METADATA,))


def _import_parquet(session: Session, topic: str, file: IO[bytes], name: str | None) -> None:
    parquet = _opened(file, file.name)
    with session.client() as client, session.output.progress() as progress:
        log = session.namespace(client).log(topic)
        target = log.schema(log.view().head.schema_id)
        fitting = _Fitting(parquet.schema_arrow, target)
        with client.producer(topic, name, linger_ms=None) as producer:
            there = 0 if producer.last_sequence_id is None else producer.last_sequence_id + 1
            written = 0
            for first, batch in _batches(parquet, fitting, there):
                written += _send(producer, batch, first, name is not None)
                progress("importing", first + batch.num_rows, parquet.metadata.num_rows)
        end = log.refresh(sync=True).head.end
    say_written(session, topic, name, written, min(there, parquet.metadata.num_rows), end)


def _opened(file: IO[bytes], name: str) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.ParquetFile(file)
        _ = found.schema_arrow  # read here, because that may fail, too
        return found
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(f"{name}: this is no file of Parquet: {error}", "LEDGER_INVALID_VALUE") from None


def _batches(parquet: pq.ParquetFile, fitting: _Fitting, there: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows that are not in the log yet, and the number of the first one of each batch."""

    import pyarrow as pa

    row = first = 0
    try:
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=fitting.names):
            first, row = row, row + batch.num_rows
            if row > there and batch.num_rows:
                new = batch.slice(max(0, there - first))
                first += batch.num_rows - new.num_rows
                yield first, fitting.fit(new, first)
    except (pa.ArrowException, OSError, ValueError) as error:  # also a name that is no UTF-8
        raise InvalidInput(
            f"after row {row:,} this cannot be read: {error}. {_how_far(row)}", "LEDGER_INVALID_VALUE"
        ) from None
    except InvalidInput as error:
        raise InvalidInput(f"{error.message}. {_how_far(first)}", error.code) from None


def _send(producer: Producer, batch: pa.RecordBatch, first: int, numbered: bool) -> int:
    import pyarrow as pa

    ids = pa.arange(first, first + batch.num_rows) if numbered else None
    try:
        return producer.send_batch(batch, ids).records
    except LedgerError as error:
        said = error.message if error.message[-1:] in ".?!" else f"{error.message}."
        again = " The same command again adds what is missing" if numbered else ""
        raise type(error)(f"{said} {_how_far(first)}.{again}", error.code) from None


def _how_far(row: int) -> str:
    return f"Before row {row:,}, counted from 0, everything is in the log" if row else "Nothing was written"


class _Fitting:
    """Columns of a file as a topic has them. What does not fit is told before anything is written, if its type shows
    it, with the column's name."""

    def __init__(self, given: pa.Schema, target: pa.Schema) -> None:
        self.names = [name for name in given.names if name != _METADATA or name in target.names]
        self._target = target
        for name in self.names:
            if name not in target.names:
                near = difflib.get_close_matches(name, target.names, 1)
                hint = f" (did you mean '{near[0]}'?)" if near else ""
                raise InvalidInput(
                    f"the topic has no column '{name}'{hint}: {', '.join(target.names)}", "LEDGER_SCHEMA_MISMATCH"
                )
            _check_type(given.field(name), target.field(name))
        for field in target:
            if not field.nullable and field.name not in self.names:
                raise InvalidInput(
                    f"column '{field.name}' is missing, and the topic does not allow null there",
                    "LEDGER_SCHEMA_MISMATCH",
                )

    def fit(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        import pyarrow as pa

        columns: list[Any] = []
        fields = [self._target.field(name) for name in batch.schema.names]
        for field, column in zip(fields, batch.columns, strict=True):
            where = f"rows {first:,} to {first + batch.num_rows - 1:,}: column '{field.name}'"
            try:
                fitted = column.cast(field.type)
            except pa.ArrowException as error:
                raise InvalidInput(f"{where} does not fit: {error}", "LEDGER_INVALID_VALUE") from None
            if fitted.null_count and not field.nullable:
                raise InvalidInput(f"{where} has a null, and the topic allows none there", "LEDGER_NULL_NOT_ALLOWED")
            columns.append(fitted)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _check_type(given: pa.Field, wanted: pa.Field) -> None:
    """Numbers may be of another width, if their values fit; everything else must be of the same type."""
    import pyarrow.types as pat

    from pyspark_ledger.describe.ddl import type_name
    from pyspark_ledger.files import schema as schemas

    kind = schemas.canonical_type(given.type, given.name)

    def is_number(each: pa.DataType) -> bool:
        return bool(pat.is_integer(each) or pat.is_floating(each) or pat.is_decimal(each))

    if (
        not schemas.fits(wanted.type, kind)
        and not (is_number(kind) and is_number(wanted.type))
        and not pat.is_null(kind)
    ):
        raise InvalidInput(
            f"column '{given.name}' of the file is {type_name(kind)}, and the topic has {type_name(wanted.type)}",
            "LEDGER_SCHEMA_MISMATCH",
        )
