"""Sequence ids of single records, in a task: the columns they are in, and the ranges that summarise them.

For every run of rows and every producer in it a task sends the lowest and the highest id to the driver, which decides
(:mod:`pyspark_ledger.dedup.record_ids`). Everything is vectorised.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from pyspark_ledger.base import compute as pc
from pyspark_ledger.base.arrays import one_array
from pyspark_ledger.errors import InvalidInput

RANGES = pa.schema(
    [("producer", pa.string()), ("low", pa.int64()), ("high", pa.int64()), ("distinct", pa.bool_())]
)  # distinct: no id is there twice
RUN_ROWS = 1 << 20  # rows summarised at once: long runs make few ranges, short ones little memory
RUN_BYTES = 32 << 20
LEFT_OUT_TABLES = 16  # a task may leave out all of its rows: what it keeps of them does not grow with their number


@dataclass(frozen=True, slots=True)
class IdColumns:
    """Where a record's sequence id and its producer are found."""

    sequence: str
    producer_column: str = ""  # empty: one producer for all records,
    producer: str = ""  # this one

    def check(self, schema: pa.Schema) -> None:
        for option, name in (("sequenceColumn", self.sequence), ("producerColumn", self.producer_column)):
            if not name:
                continue
            if name not in schema.names:
                raise InvalidInput(
                    f"{option} '{name}' is not a column: {', '.join(schema.names)}", "LEDGER_INVALID_OPTION"
                )
            kind = schema.field(name).type
            text = pat.is_string(kind) or pat.is_large_string(kind)
            if not pat.is_integer(kind) and not (text and option == "producerColumn"):
                wanted = "an integer" if option == "sequenceColumn" else "a string or an integer"
                raise InvalidInput(f"{option} '{name}' is of type {kind}, it must be {wanted}", "LEDGER_INVALID_OPTION")

    def of(self, rows: pa.RecordBatch) -> pa.Table:
        """The ids of some rows as (producer, sequence)."""
        sequence = self._column(rows, self.sequence, pa.int64())
        if self.producer_column:
            producer = self._column(rows, self.producer_column, pa.string())
        else:
            producer = pa.repeat(pa.scalar(self.producer, pa.string()), rows.num_rows)
        return pa.table({"producer": producer, "sequence": sequence})

    def _column(self, rows: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
        column = rows.column(name)
        if column.null_count:
            raise InvalidInput(
                f"{column.null_count} of {rows.num_rows} rows have no value in '{name}': with sequence ids per record "
                "every record must have one",
                "LEDGER_NO_SEQUENCE_ID",
            )
        return column.cast(kind)


class IdRanges:
    """Gathers the ids that a task writes as ranges, and leaves out the rows that the log has already."""

    def __init__(self, columns: IdColumns, known: pa.Table | None = None) -> None:
        self._columns = columns
        self._known = known  # (producer, sequence): ids at or below these are in the log already
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0
        self._done: list[pa.Table] = []
        self._left_out: list[pa.Table] = []

    def add(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Adds the ids of some rows, and returns the rows that are not known to be in the log."""
        ids = self._columns.of(rows)
        if self._known is not None:
            last = self._known["sequence"].take(pc.index_in(ids["producer"], self._known["producer"]))
            fresh = is_new(ids["sequence"], last).combine_chunks()
            if not pc.all(fresh).as_py():
                self._left_out.append(_highest(ids.filter(pc.invert(fresh))))
                if len(self._left_out) >= LEFT_OUT_TABLES:
                    self._left_out = [_highest(pa.concat_tables(self._left_out))]
                rows, ids = rows.filter(fresh), ids.filter(fresh)
        if rows.num_rows:
            # A copy, so that the whole batch need not stay in memory.
            copied = pa.concat_tables([ids, ids.slice(0, 0)]).combine_chunks()
            self._pending.append(copied)
            self._pending_rows += rows.num_rows
            self._pending_bytes += copied.nbytes
            if self._pending_rows >= RUN_ROWS or self._pending_bytes >= RUN_BYTES:
                self._summarise()
        return rows

    def table(self) -> pa.Table:
        self._summarise()
        return pa.concat_tables([RANGES.empty_table(), *self._done])

    def left_out(self) -> pa.Table | None:
        """(producer, sequence) of the highest id that was left out of each producer; None if nothing was."""
        return _highest(pa.concat_tables(self._left_out)) if self._left_out else None

    def _summarise(self) -> None:
        if self._pending:
            self._done.append(_summary(pa.concat_tables(self._pending).combine_chunks()))
            self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def _highest(ids: pa.Table) -> pa.Table:
    grouped = ids.group_by("producer", use_threads=False).aggregate([("sequence", "max")])
    return pa.table({"producer": grouped["producer"], "sequence": grouped["sequence_max"]})


def _summary(ids: pa.Table) -> pa.Table:
    """One range for each producer."""
    producer, sequence = one_array(ids["producer"]), one_array(ids["sequence"])
    encoded = producer.dictionary_encode()
    if len(encoded.dictionary) == len(producer):  # each has one record
        return pa.table([producer, sequence, sequence, pa.repeat(True, len(producer))], schema=RANGES)
    rows = pa.table({"code": encoded.indices, "sequence": sequence})
    grouped = rows.group_by("code", use_threads=False).aggregate(
        [("sequence", "min"), ("sequence", "max"), ("sequence", "count")]
    )
    low, high, count = grouped["sequence_min"], grouped["sequence_max"], grouped["sequence_count"]
    # One id is distinct, two are if they differ. More have to be compared.
    distinct = pc.or_(pc.equal(count, 1), pc.and_(pc.equal(count, 2), pc.less(low, high)))
    if not pc.all(distinct).as_py():
        distinct = pc.invert(pc.is_in(grouped["code"], value_set=_repeating(encoded.indices, sequence)))
    return pa.table([encoded.dictionary.take(one_array(grouped["code"])), low, high, distinct], schema=RANGES)


def _repeating(code: pa.Array, sequence: pa.Array) -> pa.Array:
    """The producers that bring an id twice. Cheap if the ids of each rise, as they nearly always do."""
    order = pc.array_sort_indices(code)  # stable: rows of one producer stay in order
    codes, ids = code.take(order), sequence.take(order)
    falls = pc.and_(pc.equal(codes[1:], codes[:-1]), pc.less_equal(ids[1:], ids[:-1]))
    if not pc.any(falls).as_py():
        return code[:0]
    rows = pa.table({"code": codes, "sequence": ids}).group_by(["code", "sequence"], use_threads=False)
    counted = rows.aggregate([([], "count_all")])
    return one_array(counted.filter(pc.greater(counted["count_all"], 1))["code"]).unique()


def is_new(sequence: pa.Array | pa.ChunkedArray, last: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Which ids are above the producer's last one. A producer that has written nothing has no last id: null."""
    return pc.fill_null(pc.greater(sequence, last), True)
