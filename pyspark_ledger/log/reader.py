"""Reading from Python."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.log import lost, places, scan, trimmed
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.places import PlaceLike
from pyspark_ledger.log.rows import SliceRows, read_slice
from pyspark_ledger.log.slices import LogSlice, Slice, joined
from pyspark_ledger.metadata.transactions import RolledBack

logger = logging.getLogger(__name__)

POLL_S = 2.0  # how long a lost watch can go unnoticed
WAIT_S = 0.005

METADATA = "_metadata"
METADATA_FIELD = pa.field(
    METADATA,
    pa.struct(
        [
            pa.field("position", pa.string(), False),
            pa.field("publish_time", pa.timestamp("us", "UTC"), False),
            ("producer", pa.string()),
            ("sequence_id", pa.int64()),
            ("token", pa.string()),
        ]
    ),
    nullable=False,
)

# The last record of every key in [start, end); whether damaged entries that were given up are left out.
StateSlices = Callable[[Log, View, Position, Position, bool], Iterable[Slice]]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic. ``record["amount"]`` is the value of a column.

    Attributes:
        position: where the record is.
        value: the record, as column -> value.
        publish_time: when it was committed, in UTC.
        producer: who wrote it; empty if that has no name.
        sequence_id: its number, if its producer numbers records or batches.
        token: the right to process it once; None if it was written without tokens.
        ordinal: how many records of the topic are before it; None if it was compacted before that was noted.
        token_number: the token as a number.
    """

    position: Position
    value: Mapping[str, Any]
    publish_time: datetime
    producer: str
    sequence_id: int | None
    token: str | None
    ordinal: int | None
    token_number: int | None

    def __getitem__(self, column: str) -> Any:
        return self.value[column]


class Reader:
    """Iterates over the records of a topic, in order. Made by ``client.reader(topic, start, end)``. For one thread at a
    time, except for :meth:`stop`.

    Without an end the iteration waits for more records, until :meth:`stop`. With ``compacted=True`` it first gives the
    last record of every key.

    >>> for record in client.reader("orders", end="latest"):
    ...     print(record.position, record["order_id"], record["amount"])
    0:0:0 1 9.5
    0:0:1 2 20.0
    0:0:2 3 5.25

    Iterating raises CorruptData if a file is damaged or missing, Unavailable if ZooKeeper or the storage does not
    answer, NotFound (LEDGER_TOPIC_DELETED) if the topic is deleted meanwhile, and DataLoss if retention has given up
    records that it has not read (LEDGER_TRIMMED: a reader holds nothing back, a subscription does), or at a damaged
    entry that somebody has given up by name (LEDGER_ENTRY_LOST), unless ``fail_on_data_loss`` is False.
    """

    def __init__(
        self,
        log: Log,
        start: PlaceLike,
        end: PlaceLike | None,
        columns: list[str] | None = None,
        state_slices: StateSlices | None = None,
        *,
        fail_on_data_loss: bool = True,
    ) -> None:
        self._log, self._fail_on_data_loss = log, fail_on_data_loss
        self._told: set[Position] = set()  # damaged entries that it has gone around
        view = log.refresh(sync=True)
        self._schema = projection(log.schema(view.head.schema_id), columns, log.topic.name)
        self._start = places.resolve(log, view, start, compacted=state_slices is not None)
        self._last: tuple[Slice, int] | None = None  # the record that was read last: its slice and the row in it
        self._end = None if end is None else places.resolve(log, view, end)
        self._state_slices = state_slices  # None as soon as the state has been read
        self._history = log.histories
        self._stopped = False

    @property
    def position(self) -> Position:
        """The next position to read. Keep it, and start there another time. While a compacted reader has not read the
        whole state yet, this is its start, because half a state is of no use.

        >>> reader = client.reader("orders", end="latest")
        >>> record = next(iter(reader))
        >>> str(reader.position)
        '0:0:1'
        """
        if self._last is None or self._state_slices is not None:
            return self._start
        piece, row = self._last
        assert isinstance(piece, LogSlice)
        return piece.after(row + 1)

    def stop(self) -> None:
        """Ends the iteration, also from another thread, and also while it waits for more."""
        self._stopped = True

    def __iter__(self) -> Iterator[Record]:
        for piece, rows in self._rows():
            for row, fields in zip(rows.indexes.to_pylist(), rows.records(), strict=True):
                self._last = piece, row
                yield Record(*fields)

    def batches(self, metadata: bool = False) -> Iterator[pa.RecordBatch]:
        """Iterates over the same records as Arrow record batches, which is much faster. They have the topic's columns;
        with ``metadata`` also a column ``_metadata``: position, publish time, producer, sequence id and token.

        >>> pa.Table.from_batches(client.reader("orders", end="latest").batches()).num_rows
        3
        """
        if metadata and METADATA in self._schema.names:
            raise InvalidInput(
                f"topic '{self._log.topic.name}' has a column '{METADATA}' of its own: read it without metadata, or "
                "name the columns that you want"
            )
        for piece, rows in self._rows():
            self._last = piece, rows.indexes[-1].as_py()
            yield rows.batch if not metadata else rows.batch.append_column(METADATA_FIELD, metadata_of(rows))

    @property
    def schema(self) -> pa.Schema:
        """Of the batches: the topic's columns as of when the reader was made, or those that were asked for."""
        return self._schema

    def to_arrow(self) -> pa.Table:
        """What is left to read, as one table in memory. For more than fits there, take :meth:`batches`, or
        ``pa.RecordBatchReader.from_stream(reader)``. The reader needs an end.

        >>> client.reader("orders", end="latest", columns=["amount"]).to_arrow().column("amount").to_pylist()
        [9.5, 20.0, 5.25]
        """
        self._check_ends()
        return pa.Table.from_batches(self.batches(), self._schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """For whoever takes Arrow streams: ``polars.DataFrame(reader)``, ``duckdb.sql("from reader")``. Each stream
        reads for itself from where the reader is, which stays there: who joins it with itself asks for two."""
        self._check_ends()
        mine = copy(self)
        return pa.RecordBatchReader.from_batches(self._schema, mine.batches()).__arrow_c_stream__(requested_schema)

    def _check_ends(self) -> None:
        if self._end is None:
            raise InvalidInput(
                f"this reader of topic '{self._log.topic.name}' has no end, so nobody would ever have all of it: make "
                "it with end='latest', or go over batches()"
            )

    def _rows(self) -> Iterator[tuple[Slice, SliceRows]]:
        while not self._stopped:
            view = self._log.view(POLL_S)
            self._check_history()
            end = view.head.end if self._end is None else self._end
            for piece, rows in self._read(view, end):
                yield piece, rows
                if self._stopped:
                    return
            if self._state_slices is not None:
                self._start, self._last, self._state_slices = end, None, None
            if self._end is not None:
                return
            self._log.clock.sleep(WAIT_S)

    def _read(self, view: View, end: Position) -> Iterator[tuple[Slice, SliceRows]]:
        try:
            for piece in joined(self._slices(view, end)):
                for rows in read_slice(self._log.storage, self._log.topic.uuid, piece, self._schema, with_ids=True):
                    yield piece, rows
        except CorruptData as error:
            if error.code != "LEDGER_FILE_MISSING" or self._state_slices is not None:
                raise
            head = self._log.refresh(sync=True).head
            if not trimmed.is_gone(head, self.position):
                raise
            raise trimmed.loss(head, self.position) from None  # it has read for longer than such files are kept

    def _check_history(self) -> None:
        """Other records may be before its position by now."""
        if self._log.histories != self._history:
            raise RolledBack(
                f"topic '{self._log.topic.name}': ZooKeeper was rolled back to an older state, and this reader may "
                "have read what was lost. Make another one, and decide where it begins"
            )

    def _slices(self, view: View, end: Position) -> Iterable[Slice]:
        around_lost = not self._fail_on_data_loss
        if around_lost:
            self._tell_lost(view, end)
        if self._state_slices is not None:
            return self._state_slices(self._log, view, self._start, end, around_lost)
        return scan.slices(self._log, view, self.position, end, around_lost=around_lost)

    def _tell_lost(self, view: View, end: Position) -> None:
        for each in lost.between(self._log.files, view.head, self.position, end):
            if each.first not in self._told:
                self._told.add(each.first)
                logger.warning("%s; going around them, because fail_on_data_loss is False", each.loss(view.head.name))


def projection(schema: pa.Schema, columns: Sequence[str] | None, topic: str) -> pa.Schema:
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise InvalidInput(
                f"topic '{topic}' has no column '{name}': {', '.join(schema.names)}", "LEDGER_COLUMN_NOT_FOUND"
            )
    return pa.schema([schema.field(name) for name in columns])


def metadata_of(rows: SliceRows) -> pa.StructArray:
    """Where records are and where they came from, as a column of :data:`METADATA_FIELD`."""
    position = pc.binary_join_element_wise(*(part.cast(pa.string()) for part in rows.positions()), ":")
    published = rows.publish_times().cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    return pa.StructArray.from_arrays(
        [position, published, *rows.ids(), rows.tokens()], fields=list(METADATA_FIELD.type)
    )
