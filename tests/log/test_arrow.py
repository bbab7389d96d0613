"""A reader hands its records to whoever speaks Arrow: pyarrow, pandas, Polars, DuckDB."""

from __future__ import annotations

import duckdb
import polars
import pyarrow as pa
import pytest

from pyspark_ledger.client import client_of
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])


@pytest.fixture
def client(tmp_path):
    client = client_of(OpenNamespace(MemoryMetadata(MemoryServer()), str(tmp_path)))
    client.create_topic("t", SCHEMA, key="id")
    with client.producer("t") as producer:
        for first in (0, 3):
            ids = list(range(first, first + 3))
            producer.send_batch(pa.table({"id": ids, "name": [f"n{each}" for each in ids]}))
    return client


def test_a_table_has_what_is_left_and_the_reader_is_behind_it_then(client):
    reader = client.reader("t", "0:0:1", "latest")
    table = reader.to_arrow()
    assert (table.schema, table.column("id").to_pylist()) == (SCHEMA, [1, 2, 3, 4, 5])
    assert reader.position == client.end("t")
    assert reader.to_arrow().num_rows == 0
    assert reader.to_arrow().schema == reader.schema == SCHEMA


def test_a_stream_is_lazy_and_reads_for_itself(client):
    reader = client.reader("t", end="latest", columns=["name"])
    stream = pa.RecordBatchReader.from_stream(reader)
    assert stream.read_next_batch().num_rows == 3
    assert str(reader.position) == "0:0:0"
    assert pa.table(reader).num_rows == 6
    assert stream.read_all().num_rows == 3


def test_polars_takes_it(client):
    frame = polars.DataFrame(client.reader("t", end="latest"))
    assert frame.schema == {
        "id": polars.Int64, "name": polars.String, "at": polars.Datetime("us", "UTC"),
    }  # fmt: skip
    assert frame.filter(polars.col("id") > 3)["name"].to_list() == ["n4", "n5"]


def test_duckdb_takes_it_also_twice_in_one_query(client):
    orders = client.reader("t", end="latest")  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql("select count(*), max(name) from orders").fetchall() == [(6, "n5")]
    joined = "select count(*) from orders as one join orders as other on one.id = other.id + 1"
    assert duckdb.sql(joined).fetchall() == [(5,)]


def test_pandas_takes_it(client):
    frame = client.reader("t", end="latest", columns=["id"]).to_arrow().to_pandas()
    assert frame["id"].tolist() == list(range(6))


def test_a_compacted_reader_gives_the_state(client):
    with client.producer("t") as producer:
        producer.send_batch(pa.table({"id": [1, 2], "name": ["new", None]}))
    state = client.reader("t", end="latest", compacted=True)
    assert sorted(pa.table(state).column("name").to_pylist()) == ["n0", "n3", "n4", "n5", "new"]
    assert polars.DataFrame(state).height == 5


def test_without_an_end_there_would_never_be_all_of_it(client):
    reader = client.reader("t")
    for ask in (reader.to_arrow, lambda: pa.table(reader), lambda: polars.DataFrame(reader)):
        with pytest.raises(InvalidInput, match=r"has no end.*end='latest'"):
            ask()


def test_metadata_is_a_column_of_its_own(client):
    with client.producer("t", name="web", mint_tokens=True) as producer:
        producer.send_batch(pa.table({"id": [7]}))
    reader = client.reader("t", end="latest", columns=["id"])
    rows = pa.Table.from_batches(reader.batches(metadata=True))
    records = list(client.reader("t", end="latest"))
    assert rows.column("id").to_pylist() == [record["id"] for record in records]
    for found, record in zip(rows.column("_metadata").to_pylist(), records, strict=True):
        assert found == {
            "position": str(record.position), "publish_time": record.publish_time, "producer": record.producer,
            "sequence_id": record.sequence_id, "token": record.token,
        }  # fmt: skip
    client.create_topic("u", pa.schema([("_metadata", pa.string())]))
    with pytest.raises(InvalidInput, match="column '_metadata' of its own"):
        next(client.reader("u", end="latest").batches(metadata=True))
