"""A record is judged when it is sent: what is taken can be stored, and what is refused is refused by name (I16)."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.append.record_check import UNSURE, RecordCheck, quick_test
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.files import schema as schemas

POINT = pa.struct([("x", pa.int32()), ("label", pa.string())])
TYPES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.duration("us"), pa.time64("ns"),
    pa.decimal128(10, 2), pa.decimal128(38, 10), pa.null(),
    pa.list_(pa.int32()), pa.list_(pa.string()), POINT, pa.list_(POINT), pa.map_(pa.string(), pa.int64()),
]  # fmt: skip


def check(kind: pa.DataType, *, nullable: bool = True) -> RecordCheck:
    return RecordCheck(schemas.canonical(pa.schema([pa.field("c", kind, nullable)])), "t")


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (pa.int64(), "1", "column 'c' of topic 't' is int64, and '1' does not fit"),
        (pa.int64(), True, "Expected integer, got bool"),
        (pa.int32(), 1 << 31, "column 'c' of topic 't' is int32, and 2147483648 does not fit"),
        (pa.int64(), 1 << 63, "does not fit"),
        (pa.int64(), 1.5, "c would be stored as 1"),
        (pa.list_(pa.int32()), [1.5], "c would be stored as 1"),
        (pa.float32(), 1e300, "c is too large"),
        (pa.string(), 5, "does not fit"),
        (pa.string(), "\ud800", "surrogates"),
        (pa.string(), b"\xff", "does not fit"),
        (pa.decimal128(4, 2), Decimal("1.234"), "does not fit"),
        (pa.decimal128(4, 2), Decimal("123"), "does not fit"),
        (pa.decimal128(4, 2), Decimal("NaN"), "does not fit"),
        (pa.duration("us"), timedelta.max, "does not fit"),
        (pa.list_(pa.int32()), [1, "2"], "does not fit"),
        (POINT, {"x": 1, "y": 2}, "there is no c.y"),
        (pa.list_(POINT), [{"x": 1}, {"z": 2}], "there is no c.z"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(kind, value, why):
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_VALUE") as refused:
        check(kind).take({"c": value})
    assert why in str(refused.value)


def test_null_is_refused_where_the_topic_does_not_allow_it_and_unknown_columns_everywhere():
    for record in ({}, {"c": None}):
        with pytest.raises(InvalidInput, match=r"LEDGER_NULL_NOT_ALLOWED.*column 'c' is null"):
            check(pa.int64(), nullable=False).take(record)
        assert check(pa.int64()).take(record)[0] == record
    with pytest.raises(InvalidInput, match=r"LEDGER_SCHEMA_MISMATCH.*no column 'd': c"):
        check(pa.int64()).take({"c": 1, "d": None})
    with pytest.raises(InvalidInput, match=r"is a mapping of columns to values, not \[1\]"):
        check(pa.int64()).take([1])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 7), (pa.float64(), 0.5), (pa.float32(), 0.5), (pa.string(), "é"), (pa.binary(), b"x"),
        (pa.bool_(), True), (pa.date32(), date(2026, 1, 1)), (pa.time64("ns"), time(1, 2)),
        (pa.timestamp("us", "UTC"), datetime.now(UTC)), (pa.timestamp("us"), datetime(2026, 1, 1)),
        (pa.timestamp("us", "UTC"), datetime.now(ZoneInfo("Europe/Vienna"))),
        (pa.decimal128(10, 2), Decimal("12.5")), (pa.duration("us"), timedelta(days=1)),
        (pa.list_(pa.string()), ["a", None]), (POINT, {"x": 1, "label": None}), (pa.list_(POINT), [{"x": 1}]),
    ],
)  # fmt: skip
def test_everyday_values_are_not_converted_twice(kind, value):
    assert quick_test(kind)(value) != UNSURE


simple = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 65), 1 << 65), st.integers(-200, 200), st.floats(), st.text(),
    st.text(st.characters(codec=None), max_size=3), st.binary(max_size=5), st.dates(), st.datetimes(),
    st.datetimes(timezones=st.timezones()), st.times(), st.timedeltas(), st.decimals(),
    st.decimals(-1000, 1000, places=2),
)  # fmt: skip
values = st.recursive(
    simple,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries({}, optional={"x": inner, "label": inner, "other": inner})
        | st.lists(st.tuples(st.text(max_size=2), inner), max_size=2)
    ),
    max_leaves=5,
)


@given(st.sampled_from(TYPES), values)
def test_what_is_taken_can_be_stored_I16(kind, value):
    checker = check(kind)
    try:
        taken, size = checker.take({"c": value})
    except InvalidInput:
        return
    stored = schemas.from_records([taken], checker.schema, "t")
    assert stored.num_rows == 1
    assert size >= 0
