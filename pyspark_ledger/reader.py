"""Reads records from Python, and resolves where a read starts and ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pyspark_ledger import scan
from pyspark_ledger import schema as schemas
from pyspark_ledger.entryfile import EntryReader
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log import Log, View
from pyspark_ledger.position import Position

Bound = str | Position | datetime
POLL_S = 2.0  # how long a lost watch can go unnoticed
WAIT_S = 0.005


@dataclass(frozen=True, slots=True)
class Record:
    """One record with where it is and where it came from."""

    position: Position
    value: Mapping[str, Any]
    publish_time: datetime
    producer: str
    sequence_id: int | None

    def __getitem__(self, column: str) -> Any:
        return self.value[column]


class Reader:
    """Iterates over records in order. Without an end it waits for more; :meth:`stop` ends it from another thread."""

    def __init__(self, log: Log, start: Bound, end: Bound | None, columns: list[str] | None = None) -> None:
        self._log = log
        view = log.refresh(sync=True)
        self._schema = projection(log.schema(view.head.schema_id), columns, log.topic.name)
        self._position = resolve(log, view, start)
        self._end = None if end is None else resolve(log, view, end)
        self._stopped = False

    @property
    def position(self) -> Position:
        """The next position to read."""
        return self._position

    def stop(self) -> None:
        self._stopped = True

    def __iter__(self) -> Iterator[Record]:
        for piece, first, batch in self._batches():
            published = datetime.fromtimestamp(piece.publish_ms / 1000, UTC)
            for index, value in enumerate(batch.to_pylist(), first):
                position = Position(piece.ledger, piece.entry, index)
                self._position = _after(piece, index)
                yield Record(position, value, published, piece.producer, piece.sequence)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The same, as Arrow record batches."""
        for piece, first, batch in self._batches():
            self._position = _after(piece, first + batch.num_rows - 1)
            yield batch

    def _batches(self) -> Iterator[tuple[scan.Slice, int, pa.RecordBatch]]:
        while not self._stopped:
            view = self._log.view(POLL_S)
            end = view.head.end if self._end is None else self._end
            for piece in scan.slices(self._log, view, self._position, end):
                file = EntryReader(self._log.storage, self._log.topic.uuid, piece.file, self._schema.names)
                for first, batch in file.batches(piece.start, piece.stop):
                    yield piece, first, schemas.project(batch, self._schema)
                    if self._stopped:
                        return
            if self._end is not None:
                return
            self._log.clock.sleep(WAIT_S)


def _after(piece: scan.Slice, index: int) -> Position:
    if index + 1 == piece.records:
        return Position(piece.ledger, piece.entry + 1, 0)
    return Position(piece.ledger, piece.entry, index + 1)


def projection(schema: pa.Schema, columns: list[str] | None, topic: str) -> pa.Schema:
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise InvalidInput(
                f"topic '{topic}' has no column '{name}': {', '.join(schema.names)}", "LEDGER_COLUMN_NOT_FOUND"
            )
    return pa.schema([schema.field(name) for name in columns])


def resolve(log: Log, view: View, bound: Bound) -> Position:
    """Where a read starts or ends. A time resolves to the first record published at or after it."""
    if isinstance(bound, Position):
        log.check_not_past_end(view, bound)
        return bound
    if isinstance(bound, datetime):
        moment = bound if bound.tzinfo else bound.replace(tzinfo=UTC)
        return scan.position_at_time(log, view, int(moment.timestamp() * 1000))
    if bound == "earliest":
        return scan.earliest(view)
    if bound == "latest":
        return view.head.end
    return resolve(log, view, Position.parse(bound))
