"""Folding a log by key, against a model in ten lines (I9)."""

from __future__ import annotations

import struct
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.compaction import fold
from pyspark_ledger.compaction.fold import Fold, tombstones
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.files.schema import check_key

KEYS = st.one_of(st.none(), st.sampled_from("abcd"))
ROWS = st.lists(st.tuples(KEYS, st.booleans(), st.one_of(st.none(), st.integers(0, 5))), max_size=40)


def model(rows, versioned):
    """key -> (row, version) of its value, or a tombstone; and the rows without a key."""
    values, gone, keyless = {}, {}, []
    for row, (key, tombstone, version) in enumerate(rows):
        rank = -1 if version is None else version
        if key is None:
            keyless.append(row)
        elif tombstone:
            values.pop(key, None)
            gone[key] = row
        elif not versioned or key not in values or rank >= values[key][1]:
            values[key] = (row, rank)
    records = sorted([row for row, _ in values.values()] + keyless)
    return records, sorted(row for key, row in gone.items() if versioned or key not in values)


@given(ROWS, st.booleans(), st.lists(st.integers(0, 40), max_size=5), st.integers(1, 10), st.integers(1, 10))
def test_a_fold_is_the_models_however_it_is_cut_and_spilled(rows, versioned, cuts, merge_rows, spill_rows):
    before = fold._MERGE_ROWS, fold._SPILL_ROWS
    fold._MERGE_ROWS, fold._SPILL_ROWS = merge_rows, spill_rows
    try:
        folded = Fold(versioned=versioned)
        bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
        for start, stop in pairwise(bounds):
            part = rows[start:stop]
            folded.add(
                pa.array([key for key, _, _ in part], pa.string()),
                pa.array(range(start, stop), pa.int64()),
                pa.array([gone for _, gone, _ in part], pa.bool_()),
                pa.array([version for _, _, version in part], pa.int64()) if versioned else None,
            )
        found = folded.survivors()
    finally:
        fold._MERGE_ROWS, fold._SPILL_ROWS = before
    assert (found.records.to_pylist(), found.tombstones.to_pylist()) == model(rows, versioned)


def bits(number):
    """The NaN, or any other number, with these bits."""
    return struct.unpack("<d", struct.pack("<Q", number))[0]


NANS = [float("nan"), -float("nan"), bits(0x7FF8000000000001), bits(0xFFF0000000000F00)]
FRACTIONS = st.sampled_from([None, 0.0, -0.0, 1.5, -1.5, float("inf"), -float("inf"), *NANS])


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@given(
    rows=st.lists(st.tuples(FRACTIONS, st.booleans(), st.integers(0, 3)), max_size=30),
    versioned=st.booleans(),
    spill_rows=st.sampled_from([1, 2, 3, 1 << 20]),
)
def test_as_keys_both_zeros_are_one_and_all_nans_are_one(kind, rows, versioned, spill_rows):
    before = fold._MERGE_ROWS, fold._SPILL_ROWS
    fold._MERGE_ROWS, fold._SPILL_ROWS = spill_rows, spill_rows
    try:
        folded = Fold(versioned=versioned)
        for row, (key, gone, version) in enumerate(rows):
            folded.add(pa.array([key], kind), pa.array([row]), pa.array([gone]), pa.array([version]))
        found = folded.survivors()
    finally:
        fold._MERGE_ROWS, fold._SPILL_ROWS = before
    named = [(None if key is None else str(abs(key) if key != key else key + 0.0), *rest) for key, *rest in rows]
    assert (found.records.to_pylist(), found.tombstones.to_pylist()) == model(named, versioned)


VERSIONS = [
    pa.array(["", "a", "aa", "b", "é"]),
    pa.array([b"", b"\x00", b"a", b"\xff"]),
    pa.array([-1.5, 0.0, 2.0]),
    pa.array([False, True]),
    pa.array([date(1969, 1, 1), date(2026, 1, 1)]),
    pa.array([datetime(1, 1, 1), datetime(2026, 1, 1)], pa.timestamp("us")),
    pa.array([time(1), time(2)], pa.time64("ns")),
    pa.array([timedelta(-1), timedelta(1)], pa.duration("us")),
    pa.array([Decimal("-1.10"), Decimal("2.00")], pa.decimal128(20, 2)),
]


@pytest.mark.parametrize("versions", VERSIONS, ids=lambda versions: str(versions.type))
@pytest.mark.parametrize("spill_rows", [1, 1 << 20])
def test_the_highest_version_wins_whatever_type_versions_have(monkeypatch, versions, spill_rows):
    """Not every type has a maximum by group in Arrow: this holds from the oldest pyarrow that is supported on."""
    monkeypatch.setattr(fold, "_MERGE_ROWS", 1)
    monkeypatch.setattr(fold, "_SPILL_ROWS", spill_rows)
    for order in (versions, versions[::-1]):
        folded = Fold(versioned=True)
        for row in range(len(order)):
            folded.add(pa.array(["k"]), pa.array([row]), pa.array([False]), order[row : row + 1])
        assert order.take(folded.survivors().records) == versions[-1:]


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


def test_a_tombstone_has_nothing_but_its_key_and_perhaps_a_version():
    rows = batch(k=["a", "b", "c", "d"], v=[1, None, None, None], w=[None, "x", None, None], n=[1, 2, 3, None])
    assert tombstones(rows, "k", "n").to_pylist() == [False, False, True, True]
    assert tombstones(rows, "k", "").to_pylist() == [False, False, False, True]


def test_empty_bytes_are_nothing_if_they_are_all_there_is():
    payload = pa.array([b"", b"x", None], pa.binary())
    assert tombstones(batch(k=[1, 2, 3], payload=payload), "k", "").to_pylist() == [True, False, True]
    assert tombstones(batch(k=[1, 2, 3], payload=payload, n=[1, 1, None]), "k", "").to_pylist() == [False, False, True]


def test_a_topic_of_keys_alone_has_no_tombstones():
    assert tombstones(batch(k=["a", None]), "k", "").to_pylist() == [False, False]


def test_a_key_that_is_not_a_single_value_is_refused():
    with pytest.raises(InvalidInput, match=r"LEDGER_NOT_COMPACTABLE.*'k'.*struct"):
        check_key(pa.struct([("a", pa.int64())]), "k", "t")
