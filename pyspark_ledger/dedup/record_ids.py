"""Sequence ids of single records: what a batch brings, and which of its records are new.

A task tells, for every run of rows and every producer in it, the lowest and the highest id. Almost always that is all
the driver needs: a range above the producer's last id is new, one at or below it is old, and ranges that do not meet
have no id in common. Only entries for which this does not decide are looked at row by row, and of those only the two
columns that matter. Everything is vectorised; the work grows with the batch, not with the number of producers that
the topic knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from pyspark_ledger.base.arrays import one_array
from pyspark_ledger.dedup.producers import Producers
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.files import mask
from pyspark_ledger.files.entryfile import EntryReader
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.metadata.records import Entry

RANGES = pa.schema(
    [("producer", pa.string()), ("low", pa.int64()), ("high", pa.int64()), ("distinct", pa.bool_())]
)  # distinct: no id is there twice
RUN_ROWS = 1 << 20  # rows summarised at once: long runs make few ranges, short ones little memory
RUN_BYTES = 32 << 20


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


class Ranges:
    """Gathers, in a task, what it tells the driver of the ids that it wrote."""

    def __init__(self, columns: IdColumns, known: pa.Table | None = None) -> None:
        self._columns = columns
        self._known = known  # (producer, sequence): ids at or below these are in the log already
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0
        self._done: list[pa.Table] = []

    def add(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Takes note of some rows and returns those that are worth writing."""
        ids = self._columns.of(rows)
        if self._known is not None:
            last = self._known["sequence"].take(pc.index_in(ids["producer"], self._known["producer"]))
            fresh = _above(ids["sequence"], last).combine_chunks()
            if not pc.all(fresh).as_py():
                rows, ids = rows.filter(fresh), ids.filter(fresh)
        if rows.num_rows:
            copied = pa.concat_tables([ids, ids.slice(0, 0)]).combine_chunks()  # or the whole batch stays in memory
            self._pending.append(copied)
            self._pending_rows += rows.num_rows
            self._pending_bytes += copied.nbytes
            if self._pending_rows >= RUN_ROWS or self._pending_bytes >= RUN_BYTES:
                self._summarise()
        return rows

    def table(self) -> pa.Table:
        self._summarise()
        return pa.concat_tables([RANGES.empty_table(), *self._done])

    def _summarise(self) -> None:
        if self._pending:
            self._done.append(_summary(pa.concat_tables(self._pending).combine_chunks()))
            self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def _summary(ids: pa.Table) -> pa.Table:
    """One range for each producer."""
    grouped = ids.group_by("producer", use_threads=False).aggregate(
        [("sequence", "min"), ("sequence", "max"), ("sequence", "count")]
    )
    low, high, count = grouped["sequence_min"], grouped["sequence_max"], grouped["sequence_count"]
    # One id is distinct, two are if they differ. For more, look.
    distinct = pc.or_(pc.equal(count, 1), pc.and_(pc.equal(count, 2), pc.less(low, high)))
    if not pc.all(distinct).as_py():
        repeated = _repeating(one_array(ids["producer"]), one_array(ids["sequence"]))
        distinct = pc.invert(pc.is_in(grouped["producer"], value_set=repeated))
    return pa.table([grouped["producer"], low, high, distinct], schema=RANGES)


def _repeating(producer: pa.Array, sequence: pa.Array) -> pa.Array:
    """The producers that bring an id twice. Cheap if the ids of each rise, as they nearly always do."""
    encoded = producer.dictionary_encode()
    order = pc.array_sort_indices(encoded.indices)  # stable: rows of one producer stay in order
    codes, ids = encoded.indices.take(order), sequence.take(order)
    falls = pc.and_(pc.equal(codes[1:], codes[:-1]), pc.less_equal(ids[1:], ids[:-1]))
    if not pc.any(falls).as_py():
        return encoded.dictionary[:0]
    rows = pa.table({"code": codes, "sequence": ids}).group_by(["code", "sequence"], use_threads=False)
    counted = rows.aggregate([([], "count_all")])
    return encoded.dictionary.take(one_array(counted.filter(pc.greater(counted["count_all"], 1))["code"]).unique())


@dataclass(frozen=True, slots=True)
class Accepted:
    """What of a batch becomes visible, and what it adds to the dedup state."""

    entries: tuple[Entry, ...]
    dropped: int = 0
    highest: pa.Table | None = None  # (producer, sequence, slot in the state), of the producers that it moves on


class RecordIds:
    """The ids of a batch whose files are staged: ``ranges[i]`` are those of entry i."""

    def __init__(
        self,
        columns: IdColumns,
        entries: Sequence[Entry],
        ranges: Sequence[pa.Table],
        storage: Storage,
        uuid: str,
    ) -> None:
        self.columns = columns
        self.entries, self._storage, self._uuid = tuple(entries), storage, uuid
        table = pa.concat_tables([RANGES.empty_table(), *ranges]).combine_chunks()
        entry_of = [pa.repeat(pa.scalar(i, pa.int64()), part.num_rows) for i, part in enumerate(ranges)]
        self._entry = pa.chunked_array(entry_of, pa.int64()).combine_chunks()
        encoded = one_array(table["producer"]).dictionary_encode()
        self._names, self._codes = encoded.dictionary, encoded.indices
        self._low, self._high = one_array(table["low"]), one_array(table["high"])
        self._suspects = self._codes.filter(pc.invert(one_array(table["distinct"])))
        self._highest = self._high
        if len(self._names) < len(self._codes):
            self._compare_ranges()

    def _compare_ranges(self) -> None:
        """Finds the highest id of each producer, and those that may have brought an id in two ranges."""
        by_producer = pa.table({"code": self._codes, "low": self._low})
        order = pc.sort_indices(by_producer, [("code", "ascending"), ("low", "ascending")])
        codes, low, high = self._codes.take(order), self._low.take(order), self._high.take(order)
        same = pc.equal(codes[1:], codes[:-1])
        meets = pc.and_(same, pc.less_equal(low[1:], high[:-1]))
        self._suspects = pa.concat_arrays([self._suspects, codes[1:].filter(meets)]).unique()
        if len(self._suspects):
            highest = pa.table({"code": codes, "high": high}).group_by("code", use_threads=False)
            self._highest = one_array(highest.aggregate([("high", "max")])["high_max"])  # in the order of codes
        else:  # ranges that rise: the last is the highest
            self._highest = high.filter(pa.concat_arrays([pc.invert(same), pa.array([True])]))

    def judge(self, producers: Producers, topic: str) -> Accepted:
        """Compares with the state before the batch; among equals inside it the first wins. Repeated in full whenever
        the state has moved on."""
        state = producers.look_up(self._names, topic)
        last = one_array(state["last"])
        last_of_range = last.take(self._codes)
        new = _above(self._low, last_of_range)
        old = pc.fill_null(pc.less_equal(self._high, last_of_range), False)
        whole = pc.and_not(new, pc.is_in(self._codes, value_set=self._suspects))
        verdicts = pa.table({"entry": self._entry, "whole": whole, "old": old})
        verdicts = verdicts.group_by("entry", use_threads=False).aggregate([("whole", "all"), ("old", "all")])
        undecided = [
            row["entry"] for row in verdicts.to_pylist() if not row["whole_all"] and not row["old_all"]
        ]  # fmt: skip
        accepted: list[Entry | None] = [None] * len(self.entries)
        for row in verdicts.to_pylist():
            if row["whole_all"]:
                accepted[row["entry"]] = self.entries[row["entry"]]
        for number, kept in zip(undecided, self._kept_rows(undecided, last), strict=True):
            accepted[number] = mask.cut(self.entries[number], kept)
        entries = tuple(entry for entry in accepted if entry is not None)
        raised = _above(self._highest, last)
        highest = pa.table({"producer": self._names, "sequence": self._highest, "slot": state["slot"]})
        return Accepted(
            entries,
            sum(entry.records for entry in self.entries) - sum(entry.kept for entry in entries),
            highest if pc.all(raised).as_py() else highest.filter(raised),
        )

    def _kept_rows(self, numbers: list[int], last: pa.Array) -> list[pa.BooleanArray]:
        """Row by row, for the entries that their ranges did not decide."""
        if not numbers:
            return []
        parts = [self._ids(self.entries[number]) for number in numbers]
        ids = pa.concat_tables(parts).combine_chunks()
        codes = pc.index_in(one_array(ids["producer"]), value_set=self._names)
        sequence = one_array(ids["sequence"])
        kept = _above(sequence, last.take(codes))
        if len(self._suspects):
            rows = pa.table({"code": codes, "sequence": sequence, "row": pa.arange(0, len(codes))})
            rows = rows.filter(pc.and_(kept, pc.is_in(codes, value_set=self._suspects)))
            firsts = rows.group_by(["code", "sequence"], use_threads=False).aggregate([("row", "min")])
            repeats = rows["row"].filter(pc.invert(pc.is_in(rows["row"], value_set=one_array(firsts["row_min"]))))
            kept = pc.and_not(kept, pc.is_in(pa.arange(0, len(codes)), value_set=one_array(repeats)))
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + part.num_rows)
        return [kept.slice(start, stop - start) for start, stop in pairwise(starts)]

    def _ids(self, entry: Entry) -> pa.Table:
        names = [name for name in (self.columns.sequence, self.columns.producer_column) if name]
        reader = EntryReader(self._storage, self._uuid, entry.file, names)
        return pa.concat_tables([self.columns.of(rows) for _, rows in reader.batches(0, entry.records)])


def _above(sequence: pa.Array | pa.ChunkedArray, last: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Is an id new? A producer that has written nothing has no last id."""
    return pc.fill_null(pc.greater(sequence, last), True)
