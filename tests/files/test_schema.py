"""Schemas: one canonical form, and a misfit shows every difference."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.files import schema as schemas


def test_python_and_spark_spellings_of_a_type_are_stored_alike():
    loose = pa.schema(
        {
            "s": pa.large_string(),
            "b": pa.large_binary(),
            "t": pa.timestamp("ns", "Europe/Berlin"),
            "n": pa.timestamp("ms"),
            "l": pa.large_list(pa.field("item", pa.large_string())),
            "m": pa.map_(pa.string(), pa.large_string()),
            "d": pa.dictionary(pa.int8(), pa.string()),
        }
    )
    stored = schemas.canonical(loose)
    assert stored.types == [
        pa.string(),
        pa.binary(),
        pa.timestamp("us", "UTC"),
        pa.timestamp("us"),
        pa.list_(pa.field("element", pa.string())),
        pa.map_(pa.string(), pa.string()),
        pa.string(),
    ]
    assert schemas.canonical(stored).equals(stored)
    assert schemas.from_bytes(schemas.to_bytes(stored)).equals(stored)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([]), "at least one column"),
        (pa.schema([("a", pa.int64()), ("A", pa.int64())]), "differ in case"),
        (pa.schema([("u", pa.uint64())]), "'u'.*uint64.*cast"),
        (pa.schema([("deep", pa.struct([("inner", pa.uint8())]))]), "deep.inner"),
    ],
)
def test_what_spark_could_not_read_is_refused_by_column(schema, words):
    with pytest.raises(InvalidInput, match=words):
        schemas.canonical(schema)


TOPIC = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])


def test_a_misfit_shows_every_difference_at_once():
    incoming = pa.schema([("name", pa.int32()), ("extra", pa.string())])
    with pytest.raises(InvalidInput) as caught:
        schemas.merge(TOPIC, incoming, may_add=False)
    for words in ("! name int32: the topic has name string", "+ extra string", "- id int64 not null: missing"):
        assert words in str(caught.value)


def test_a_column_in_another_spelling_is_no_new_column():
    with pytest.raises(InvalidInput, match="! ID int64 not null: the topic spells it id"):
        schemas.merge(TOPIC, pa.schema([pa.field("ID", pa.int64(), False)]), may_add=True)


def test_columns_may_come_in_any_order_and_nullable_ones_may_be_missing():
    incoming = pa.schema([("name", pa.string()), ("id", pa.int64())])
    assert schemas.merge(TOPIC, incoming, may_add=False) is TOPIC
    batch = pa.RecordBatch.from_pydict({"name": ["a"], "id": [1]}, schema=incoming)
    assert schemas.conform(batch, schemas.written(TOPIC, incoming)).schema.equals(TOPIC)
    assert schemas.written(TOPIC, pa.schema([TOPIC.field("id")])).names == ["id"]


def test_a_null_where_none_is_allowed_is_refused_by_column():
    batch = pa.RecordBatch.from_pydict({"id": [1, None], "name": ["a", "b"]})
    with pytest.raises(InvalidInput, match="column 'id' has a null"):
        schemas.conform(batch, TOPIC)


def test_merged_columns_are_nullable_because_older_records_lack_them():
    merged = schemas.merge(TOPIC, pa.schema([*TOPIC, pa.field("extra", pa.string(), False)]), may_add=True)
    assert merged.field("extra").nullable
    old = pa.RecordBatch.from_pydict({"id": [1], "name": ["a"]}, schema=TOPIC)
    assert schemas.project(old, merged).to_pylist() == [{"id": 1, "name": "a", "extra": None}]


def test_a_value_that_would_lose_something_is_refused():
    batch = pa.RecordBatch.from_pydict({"t": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(InvalidInput, match="column 't'"):
        schemas.conform(batch, pa.schema([("t", pa.timestamp("us"))]))
