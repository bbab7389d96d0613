"""Reads records from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log import places, scan
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.places import PlaceLike
from pyspark_ledger.log.rows import SliceRows, read_slice
from pyspark_ledger.log.slices import LogSlice, Slice

POLL_S = 2.0  # how long a lost watch can go unnoticed
WAIT_S = 0.005

StateSlices = Callable[[Log, View, Position, Position], Iterable[Slice]]  # the last record of every key in [start, end)


@dataclass(frozen=True, slots=True)
class Record:
    """One record with where it is and where it came from."""

    position: Position
    value: Mapping[str, Any]
    publish_time: datetime
    producer: str
    sequence_id: int | None
    token: str | None  # the right to process it once; None if it was written without mintTokens

    def __getitem__(self, column: str) -> Any:
        return self.value[column]


class Reader:
    """Iterates over records in order. Without an end it waits for more; :meth:`stop` ends it from another thread.

    With ``state_slices`` it gives first the state of every key up to the end, or up to now, and then what follows."""

    def __init__(
        self,
        log: Log,
        start: PlaceLike,
        end: PlaceLike | None,
        columns: list[str] | None = None,
        state_slices: StateSlices | None = None,
    ) -> None:
        self._log = log
        view = log.refresh(sync=True)
        self._schema = projection(log.schema(view.head.schema_id), columns, log.topic.name)
        self._start = places.resolve(log, view, start)
        self._last: tuple[Slice, int] | None = None  # the record that was read last: its piece and index
        self._end = None if end is None else places.resolve(log, view, end)
        self._state_slices = state_slices  # None as soon as the state has been read
        self._stopped = False

    @property
    def position(self) -> Position:
        """The next position to read. Half a state is of no use: until all of it has been read, this is the start."""
        if self._last is None or self._state_slices is not None:
            return self._start
        piece, index = self._last
        assert isinstance(piece, LogSlice)
        return piece.after(index + 1)

    def stop(self) -> None:
        self._stopped = True

    def __iter__(self) -> Iterator[Record]:
        for piece, rows in self._rows():
            for fields in rows.records():
                record = Record(*fields)
                self._last = piece, record.position.index
                yield record

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The same, as Arrow record batches."""
        for piece, rows in self._rows():
            self._last = piece, rows.indexes[-1].as_py()
            yield rows.batch

    def _rows(self) -> Iterator[tuple[Slice, SliceRows]]:
        while not self._stopped:
            view = self._log.view(POLL_S)
            end = view.head.end if self._end is None else self._end
            for piece in self._slices(view, end):
                for rows in read_slice(self._log.storage, self._log.topic.uuid, piece, self._schema, with_ids=True):
                    yield piece, rows
                    if self._stopped:
                        return
            if self._state_slices is not None:
                self._start, self._last, self._state_slices = end, None, None
            if self._end is not None:
                return
            self._log.clock.sleep(WAIT_S)

    def _slices(self, view: View, end: Position) -> Iterable[Slice]:
        if self._state_slices is not None:
            return self._state_slices(self._log, view, self._start, end)
        return scan.slices(self._log, view, self.position, end)


def projection(schema: pa.Schema, columns: list[str] | None, topic: str) -> pa.Schema:
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise InvalidInput(
                f"topic '{topic}' has no column '{name}': {', '.join(schema.names)}", "LEDGER_COLUMN_NOT_FOUND"
            )
    return pa.schema([schema.field(name) for name in columns])
