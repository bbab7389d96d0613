"""Folding a log: which records are left if only the last record of every key counts.

Rows are numbered in the order of the log. A tombstone removes all earlier rows of its key. Of the later rows the last
one counts; with versions the one with the highest version, and of equal versions the last. Rows without a key all
count.

The fold works in batches. It keeps at most two rows per key, however long the log is, and a bounded number of them in
memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from pyspark_ledger.base.arrays import one_array
from pyspark_ledger.errors import disk_errors
from pyspark_ledger.log.keys import identities

_MERGE_ROWS = 1 << 20  # rows that are gathered before they are folded
_SPILL_ROWS = 2 << 20  # keys that are held in memory


@dataclass(frozen=True, slots=True)
class Survivors:
    """The numbers of the rows that are left, in order."""

    records: pa.Array
    tombstones: pa.Array  # the last one of every key that has nothing after it; with versions, of every key


class Fold:
    """Takes rows in the order of the log. If there are more keys than fit in memory, it writes sorted runs of them to
    files."""

    def __init__(self, *, versioned: bool = False) -> None:
        self._versioned = versioned
        self._keyless: list[pa.Array] = []
        self._state: pa.Table | None = None
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._spill = _Spill()

    def add(self, key: pa.Array, row: pa.Array, tombstone: pa.Array, version: pa.Array | None = None) -> None:
        """Adds rows that come after all rows added before."""
        if key.null_count:
            keyed = key.is_valid()
            self._keyless.append(row.filter(pc.invert(keyed)))
            key, row, tombstone = key.filter(keyed), row.filter(keyed), tombstone.filter(keyed)
            version = version.filter(keyed) if version is not None else None
        columns = {"key": identities(key), "row": row, "tombstone": tombstone}
        if self._versioned:
            assert version is not None
            # Arrow finds no maximum of durations.
            columns["version"] = version.cast(pa.int64()) if pat.is_duration(version.type) else version
        self._pending.append(pa.table(columns))
        self._pending_rows += len(row)
        known = 0 if self._state is None else self._state.num_rows
        if self._pending_rows >= max(_MERGE_ROWS, known // 2):
            self._merge()

    def _merge(self) -> None:
        parts = [*([] if self._state is None else [self._state]), *self._pending]
        self._pending, self._pending_rows = [], 0
        if parts:
            self._state = self._reduced(pa.concat_tables(parts))
            if self._state.num_rows > _SPILL_ROWS:
                self._spill.add(self._state)
                self._state = None

    def survivors(self) -> Survivors:
        self._merge()
        if self._spill.runs and self._state is not None:
            self._spill.add(self._state)
            self._state = None
        records, tombstones = list(self._keyless), []
        for part in self._spill.ranges() if self._spill.runs else [self._state]:
            if part is not None:
                state = self._reduced(part)
                records.append(one_array(state.filter(pc.invert(state["tombstone"]))["row"]))
                tombstones.append(one_array(state.filter(state["tombstone"])["row"]))
        self._spill.close()
        return Survivors(_sorted(records), _sorted(tombstones))

    def _reduced(self, rows: pa.Table) -> pa.Table:
        return _best_versions(rows) if self._versioned else _last_rows(rows)


class _Spill:
    """Runs in files, each sorted by key, read back one range of keys at a time."""

    def __init__(self) -> None:
        self.runs: list[pa.Table] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, run: pa.Table) -> None:
        ordered = run.take(pc.sort_indices(run, [("key", "ascending")])).combine_chunks()
        with disk_errors("write temporary files in", f"{tempfile.gettempdir()} (TMPDIR chooses another folder)"):
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="ledger-fold-")
            path = f"{self._folder.name}/{len(self.runs)}.arrow"
            with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, ordered.schema) as writer:
                writer.write_table(ordered)
            self.runs.append(pa.ipc.open_file(pa.memory_map(path)).read_all())

    def ranges(self) -> Iterator[pa.Table]:
        """The rows in ranges of keys: all rows of a key are in one range, and each range is small enough to fold."""
        starts = [0] * len(self.runs)
        for bound in (*self._bounds(), None):
            stops = [run.num_rows if bound is None else _count_below(run["key"], bound) for run in self.runs]
            yield pa.concat_tables(
                [run.slice(start, stop - start) for run, start, stop in zip(self.runs, starts, stops, strict=True)]
            )
            starts = stops

    def _bounds(self) -> list[pa.Scalar]:
        """Keys that cut the whole into ranges of about the same size."""
        total = sum(run.num_rows for run in self.runs)
        every = max(1, _SPILL_ROWS // 64)
        sample = pa.concat_arrays([one_array(run["key"]).take(pa.arange(0, run.num_rows, every)) for run in self.runs])
        ordered = sample.take(pc.array_sort_indices(sample)).unique()
        wanted = min(-(-total // _SPILL_ROWS), len(ordered))
        return [ordered[len(ordered) * number // wanted] for number in range(1, wanted)]

    def close(self) -> None:
        self.runs = []
        if self._folder is not None:
            self._folder.cleanup()


def _last_rows(rows: pa.Table) -> pa.Table:
    """One row per key. Row number and tombstone are put into one number, so that one pass finds both."""
    marked = pc.add(pc.multiply(rows["row"], 2), rows["tombstone"].cast(pa.int64()))
    last = (
        pa.table({"key": rows["key"], "marked": marked})
        .group_by("key", use_threads=False)
        .aggregate([("marked", "max")])
    )
    found = last["marked_max"]
    return pa.table(
        {"key": last["key"], "row": pc.shift_right(found, 1), "tombstone": pc.equal(pc.bit_wise_and(found, 1), 1)}
    )


def _best_versions(rows: pa.Table) -> pa.Table:
    """At most two rows per key: its last tombstone, and the highest version after that. The tombstone is needed even
    then: a reader may have seen a higher version before the tombstone, which no longer counts."""
    codes = one_array(rows["key"]).dictionary_encode().indices
    rows = rows.append_column("code", codes)
    gone = rows.filter(rows["tombstone"]).group_by("code", use_threads=False).aggregate([("row", "max")])
    at = pc.index_in(codes, value_set=one_array(gone["code"]))
    since = pc.fill_null(one_array(gone["row_max"]).take(at), -1)
    alive = rows.filter(pc.and_not(pc.greater(one_array(rows["row"]), since), one_array(rows["tombstone"])))
    best = alive.group_by("code", use_threads=False).aggregate([("version", "max")])
    top = one_array(best["version_max"]).take(pc.index_in(one_array(alive["code"]), value_set=one_array(best["code"])))
    equal = pc.or_(pc.fill_null(pc.equal(one_array(alive["version"]), top), False), pc.is_null(top))
    winners = alive.filter(equal).group_by("code", use_threads=False).aggregate([("row", "max")])
    kept = pa.concat_arrays([one_array(gone["row_max"]), one_array(winners["row_max"])])
    return rows.filter(pc.is_in(rows["row"], value_set=kept)).drop_columns(["code"])


def tombstones(batch: pa.RecordBatch, key: str, version: str) -> pa.Array:
    """Which rows of an entry are tombstones: nothing but the key (and a version) has a value; if there is only one
    other column, empty bytes in it are nothing too. An entry that has no other column has no tombstones."""
    values = [name for name in batch.schema.names if name not in (key, version)]
    if not values:
        return pa.repeat(False, batch.num_rows)
    empty: pa.Array | None = None
    for name in values:
        column = batch.column(name)
        nothing = pc.is_null(column)
        if len(values) == 1 and pat.is_binary(column.type):
            nothing = pc.or_(nothing, pc.fill_null(pc.equal(pc.binary_length(column), 0), True))
        empty = nothing if empty is None else pc.and_(empty, nothing)
    return empty


def ranks(version: pa.Array) -> pa.Array:
    """Versions as they are compared. NaN is treated as no version, because it cannot be compared."""
    return pc.if_else(pc.is_nan(version), None, version) if pat.is_floating(version.type) else version


def _count_below(keys: pa.ChunkedArray, bound: pa.Scalar) -> int:
    return int(pc.sum(pc.less(keys, bound)).as_py() or 0)


def _sorted(parts: list[pa.Array]) -> pa.Array:
    rows = pa.concat_arrays([pa.array([], pa.int64()), *parts])
    return rows.take(pc.array_sort_indices(rows))
