"""What is left of a log when only the last record of every key counts.

Rows are numbered in the order of the log. A tombstone removes its key and everything before it. Of what comes after it
the last row counts, or, with versions, the highest version, and of equal ones the last. Rows without a key all count.

The fold works in batches and keeps at most two rows per key, whatever the length of the log.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from pyspark_ledger.errors import InvalidInput

_MERGE_ROWS = 1 << 20  # so much is gathered before it is folded in


@dataclass(frozen=True, slots=True)
class Survivors:
    """Row numbers, in order."""

    records: pa.Array
    tombstones: pa.Array  # the last one of every key that has nothing after it


class Fold:
    def __init__(self, *, versioned: bool = False) -> None:
        self._versioned = versioned
        self._keyless: list[pa.Array] = []
        self._state: pa.Table | None = None
        self._pending: list[pa.Table] = []
        self._pending_rows = 0

    def add(self, key: pa.Array, row: pa.Array, tombstone: pa.Array, version: pa.Array | None = None) -> None:
        """Some rows, each after all that were added before."""
        if key.null_count:
            keyed = key.is_valid()
            self._keyless.append(row.filter(pc.invert(keyed)))
            key, row, tombstone = key.filter(keyed), row.filter(keyed), tombstone.filter(keyed)
            version = version.filter(keyed) if version is not None else None
        columns = {"key": key, "row": row, "tombstone": tombstone}
        if self._versioned:
            assert version is not None
            columns["version"] = version
        self._pending.append(self._reduced(pa.table(columns)))
        self._pending_rows += self._pending[-1].num_rows
        known = 0 if self._state is None else self._state.num_rows
        if self._pending_rows >= max(_MERGE_ROWS, known // 2):
            self._merge()

    def survivors(self) -> Survivors:
        self._merge()
        assert self._state is not None
        gone, row = _flat(self._state["tombstone"]), _flat(self._state["row"])
        records = pa.concat_arrays([row.filter(pc.invert(gone)), *self._keyless])
        return Survivors(_sorted(records), _sorted(self._last_words()))

    def _last_words(self) -> pa.Array:
        """Tombstones of keys that are still gone."""
        assert self._state is not None
        gone = self._state.filter(self._state["tombstone"])
        if self._versioned:
            alive = self._state.filter(pc.invert(self._state["tombstone"]))["key"]
            gone = gone.filter(pc.invert(pc.is_in(gone["key"], value_set=_flat(alive))))
        return _flat(gone["row"])

    def _merge(self) -> None:
        parts = [*([] if self._state is None else [self._state]), *self._pending]
        if len(parts) > 1:
            self._state = self._reduced(pa.concat_tables(parts))
        elif parts:
            self._state = parts[0]
        else:
            self._state = pa.table(
                {"key": pa.nulls(0), "row": pa.array([], pa.int64()), "tombstone": pa.array([], pa.bool_())}
            )
        self._pending, self._pending_rows = [], 0

    def _reduced(self, rows: pa.Table) -> pa.Table:
        return _best_versions(rows) if self._versioned else _last_rows(rows)


def _last_rows(rows: pa.Table) -> pa.Table:
    """One row per key: row number and tombstone in one number, so that one pass finds both."""
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
    """At most two rows per key: its last tombstone, and the best of what came after that."""
    codes = _flat(rows["key"]).dictionary_encode().indices
    rows = rows.append_column("code", codes)
    gone = rows.filter(rows["tombstone"]).group_by("code", use_threads=False).aggregate([("row", "max")])
    at = pc.index_in(codes, value_set=_flat(gone["code"]))
    since = pc.fill_null(_flat(gone["row_max"]).take(at), -1)
    alive = rows.filter(pc.and_not(pc.greater(_flat(rows["row"]), since), _flat(rows["tombstone"])))
    best = alive.group_by("code", use_threads=False).aggregate([("version", "max")])
    top = _flat(best["version_max"]).take(pc.index_in(_flat(alive["code"]), value_set=_flat(best["code"])))
    equal = pc.or_(pc.fill_null(pc.equal(_flat(alive["version"]), top), False), pc.is_null(top))
    winners = alive.filter(equal).group_by("code", use_threads=False).aggregate([("row", "max")])
    kept = pa.concat_arrays([_flat(gone["row_max"]), _flat(winners["row_max"])])
    return rows.filter(pc.is_in(rows["row"], value_set=kept)).drop_columns(["code"])


def tombstones(batch: pa.RecordBatch, key: str, version: str) -> pa.Array:
    """Which rows are tombstones: nothing but the key (and a version) has a value; if there is only one other column,
    empty bytes in it are nothing too. A topic that has no other column has no tombstones."""
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


def check_key(kind: pa.DataType, key: str, topic: str) -> None:
    if pat.is_nested(kind):
        raise InvalidInput(
            f"the key '{key}' of topic '{topic}' is of type {kind}: only a key that is a single value can be compacted",
            "LEDGER_NOT_COMPACTABLE",
        )


def _sorted(rows: pa.Array) -> pa.Array:
    return rows.take(pc.array_sort_indices(rows))


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
