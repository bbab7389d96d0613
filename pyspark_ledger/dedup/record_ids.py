"""Sequence ids of single records, on the driver: which records of a staged batch are new.

Almost always the ranges that the tasks sent are enough: a range above the producer's last id is new, one at or below it
is old, and ranges that do not meet have no id in common. Only entries for which this does not decide are read row by
row, and of those only the two columns that matter. Everything is vectorised; the work grows with the batch, not with
the number of producers that the topic knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base.arrays import one_array
from pyspark_ledger.dedup.id_ranges import RANGES, IdColumns, is_new
from pyspark_ledger.dedup.producers import Producers
from pyspark_ledger.files import mask
from pyspark_ledger.files.entryfile import EntryReader
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.metadata.records import Entry

_TIMES = 4  # as much work as there are ranges is less than sorting them


@dataclass(frozen=True, slots=True)
class NewRecords:
    """What of a batch is new, and what it adds to the producers' state."""

    entries: tuple[Entry, ...]  # without those of which nothing is new; old rows are masked
    dropped: int
    highest: pa.Table  # (producer, sequence, slot in the state) of every producer whose last id rises


class RecordIds:
    """The ids of a batch: ``ranges[i]`` are those of its entry i. Its files are staged; or it has one entry, and
    ``rows`` are in memory."""

    def __init__(
        self,
        columns: IdColumns,
        ranges: Sequence[pa.Table],
        storage: Storage,
        uuid: str,
        rows: pa.RecordBatch | None = None,
    ) -> None:
        self.columns, self._storage, self._uuid, self._rows = columns, storage, uuid, rows
        table = pa.concat_tables([RANGES.empty_table(), *ranges])
        self._runs = [len(chunk) for chunk in table["low"].chunks]  # as the tasks have summarised them
        entry_of = [pa.repeat(pa.scalar(i, pa.int64()), part.num_rows) for i, part in enumerate(ranges)]
        self._entry = pa.chunked_array(entry_of, pa.int64()).combine_chunks()
        self._producers = table["producer"]  # not as one array: with a million names that takes a while
        self._low, self._high = one_array(table["low"]), one_array(table["high"])
        self._distinct = one_array(table["distinct"])

    @property
    def lowest(self) -> int | None:
        """The lowest id, if all are in one range, and so of one producer."""
        return self._low[0].as_py() if len(self._low) == 1 else None

    def new_records(self, entries: Sequence[Entry], producers: Producers, topic: str) -> NewRecords:
        """Compares the batch with the state before it; of equal ids in the batch the first one counts. Has to be called
        again if the state has changed."""
        encoded, last = producers.encode(self._producers, topic)
        self._names, self._codes = encoded.names, encoded.codes
        self._suspects = self._codes.filter(pc.invert(self._distinct))
        highest = self._compare_ranges()
        whole, undecided = self._decide_by_ranges(last)
        kept: list[Entry | None] = [None] * len(entries)
        for number in whole:
            kept[number] = entries[number]
        rows_of = self._decide_by_rows([entries[number] for number in undecided], last)
        for number, rows in zip(undecided, rows_of, strict=True):
            kept[number] = mask.cut(entries[number], rows)
        new = tuple(entry for entry in kept if entry is not None)
        rises = pc.and_(is_new(highest, last), highest.is_valid())
        raised = pa.table({"producer": self._names, "sequence": highest, "slot": encoded.slots})
        return NewRecords(
            new,
            sum(entry.records for entry in entries) - sum(entry.kept for entry in new),
            raised if pc.all(rises).as_py() else raised.filter(rises),
        )

    def _compare_ranges(self) -> pa.Array:
        """The highest id of each producer, null for one that is not in the batch. Finds those that may have brought an
        id in two ranges."""
        if len(self._names) == len(self._codes) == 1:  # of a service's producer, which writes often
            return self._high
        highest = self._rising()
        return self._sorted_ranges() if highest is None else highest

    def _rising(self) -> pa.Array | None:
        """The same if each producer is in a run once, and its ranges rise from run to run, these in the order of their
        lowest ids, as they nearly always do: then none meet. None if not, or if there are so many runs that sorting
        takes less."""
        count = len(self._names)
        if len(self._runs) * count > _TIMES * max(len(self._codes), 1):
            return None
        starts = [0, *accumulate(self._runs)]
        runs = [
            [each.slice(start, length) for each in (self._low, self._high, self._codes)]
            for start, length in zip(starts, self._runs, strict=False)
            if length
        ]
        highest = pa.nulls(count, pa.int64())
        for low, high, codes in sorted(runs, key=lambda run: pc.min(run[0]).as_py()):  # tasks come in any order
            placed = pc.scatter(high, codes, max_index=count - 1)
            if count - placed.null_count < len(codes):  # a producer is there twice
                return None
            if not pc.all(pc.greater(low, highest.take(codes)), min_count=0).as_py():
                return None
            highest = pc.coalesce(placed, highest)
        return highest

    def _sorted_ranges(self) -> pa.Array:
        by_producer = pa.table({"code": self._codes, "low": self._low})
        order = pc.sort_indices(by_producer, [("code", "ascending"), ("low", "ascending")])
        codes, low, high = self._codes.take(order), self._low.take(order), self._high.take(order)
        same = pc.equal(codes[1:], codes[:-1])
        meets = pc.and_(same, pc.less_equal(low[1:], high[:-1]))
        self._suspects = pa.concat_arrays([self._suspects, codes[1:].filter(meets)]).unique()
        if not len(self._suspects):  # ranges that rise: the last is the highest
            ends = pa.concat_arrays([pc.invert(same), pa.array([True])])
            high, codes = high.filter(ends), codes.filter(ends)
        else:
            rows = pa.table({"code": codes, "high": high})
            by_code = rows.group_by("code", use_threads=False).aggregate([("high", "max")])
            high, codes = (one_array(by_code[name]) for name in ("high_max", "code"))
        return pc.scatter(high, codes, max_index=len(self._names) - 1)

    def _decide_by_ranges(self, last: pa.Array) -> tuple[list[int], list[int]]:
        """The entries that are entirely new, and those whose rows have to be compared; the others are old."""
        last_of_range = last.take(self._codes)
        old = pc.fill_null(pc.less_equal(self._high, last_of_range), False)
        whole = pc.and_not(is_new(self._low, last_of_range), pc.is_in(self._codes, value_set=self._suspects))
        if pc.all(whole).as_py():
            return self._entry.unique().to_pylist(), []
        ranges = pa.table({"entry": self._entry, "whole": whole, "old": old})
        by_entry = ranges.group_by("entry", use_threads=False).aggregate([("whole", "all"), ("old", "all")]).to_pylist()
        undecided = [row["entry"] for row in by_entry if not row["whole_all"] and not row["old_all"]]
        return [row["entry"] for row in by_entry if row["whole_all"]], undecided

    def _decide_by_rows(self, entries: list[Entry], last: pa.Array) -> list[pa.BooleanArray]:
        """Which rows of each of these entries are new."""
        if not entries:
            return []
        parts = [self._ids(entry) for entry in entries]
        ids = pa.concat_tables(parts).combine_chunks()
        codes = pc.index_in(one_array(ids["producer"]), value_set=self._names)
        sequence = one_array(ids["sequence"])
        kept = is_new(sequence, last.take(codes))
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
        if self._rows is not None:
            return self.columns.of(self._rows)
        names = [name for name in (self.columns.sequence, self.columns.producer_column) if name]
        reader = EntryReader(self._storage, self._uuid, entry.file, names)
        return pa.concat_tables([self.columns.of(rows) for _, rows in reader.batches(0, entry.records)])
