"""Every type of Spark's that Arrow carries comes back as it was written: type, null flags, comments and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, VariantVal

from pyspark_ledger.client import LedgerClient, namespace_of

pytestmark = pytest.mark.spark

NULLABLE = {
    "flag": "true",
    "i8": "cast(-128 as byte)",
    "i16": "cast(32767 as short)",
    "i32": "-2147483648",
    "i64": "9223372036854775807",
    "f32": "array(float('nan'), float('-infinity'), float(1.5), float(-0.0D))[id % 4]",
    "f64": "array(double('nan'), double('infinity'), -0.0D, 1e-300D)[id % 4]",
    "price": "cast('12345678901234567890.123456789012345678' as decimal(38, 18))",
    "small": "cast(-1.5 as decimal(3, 1))",
    "text": "array('', 'ascii', 'žluťoučký kůň 🐎', 'a\\0b')[id % 4]",
    "bytes": "array(x'', x'00ff')[id % 2]",
    "day": "array(date'1582-10-15', date'0001-01-01', date'9999-12-31', date'1970-01-01')[id % 4]",
    # New York has no 02:30 on that day, and 01:30 twice on the other
    "moment": "array(timestamp'2024-03-10 03:30:00.123456', timestamp'2024-11-03 01:30:00 America/New_York')[id % 2]",
    "wall": "array(timestamp_ntz'2024-03-10 02:30:00.123456', timestamp_ntz'0001-01-01 00:00:00')[id % 2]",
    "span": "array(interval '-3 04:05:06.789012' day to second, interval '106751991' day)[id % 2]",
    "clock": "time'23:59:59.123456'",
    "any": """parse_json(array('{"a": [1, null, "x"], "b": {"c": 1.5}}', 'null', '[]', '"s"')[id % 4])""",
    "numbers": "array(array(1, null, 3), array())[id % 2]",
    "lists": "array(array(1), cast(null as array<int>), cast(array() as array<int>))",
    "points": "array(named_struct('x', id, 'at', timestamp'2024-07-01 00:00:00'), null)",
    "prices": "map('a', 1.5BD, 'b', cast(null as decimal(2, 1)))",
    "nothing_in_it": "cast(map() as map<string, int>)",
    "times": "map(timestamp_ntz'2024-01-01 00:00:00', array(timestamp'2024-01-01 00:00:00'))",
    "by_struct": "map(named_struct('k', 1), named_struct('v', parse_json('1'), 'i', interval '0 0:0:1' day to second))",
    "deep": "named_struct('a', named_struct('b', array(map(1, array(named_struct('c', x'01', 'd', id))))), 'n', null)",
    "place": "st_geogfromwkb(x'0101000000000000000000F03F0000000000000040')",
}
NOT_NULL = {
    "n_int": "7",
    "n_text": "'always'",
    "n_moment": "timestamp'2024-07-01 12:00:00'",
    "n_wall": "timestamp_ntz'2024-07-01 12:00:00'",
    "n_list": "array(named_struct('a', 1, 'b', array(2, 3)))",
    "n_map": "map('k', named_struct('t', date'2024-01-01'))",
    "n_struct": "named_struct('must', 1, 'may', if(id = 1, null, 'x'), 'at', timestamp'2024-07-01 12:00:00')",
    "n_any": "parse_json('[1, 2]')",
    "n_span": "interval '1 00:00:00' day to second",
}


def wide(ids: DataFrame) -> DataFrame:
    """Every type; every third row has null wherever it may."""
    columns = [F.expr(f"if(id % 3 = 1, null, {expr})").alias(name) for name, expr in NULLABLE.items()]
    columns += [F.expr(expr).alias(name) for name, expr in NOT_NULL.items()]
    columns += [
        F.expr("null").alias("void"),
        F.col("id").alias("said", metadata={"comment": "what it is", "level": 3, "tags": ["a", "b"]}),
    ]
    return ids.select("id", *columns)


def plain(value: Any) -> Any:
    """Comparable, with NaN equal to itself and -0.0 not equal to 0.0."""
    if isinstance(value, Row):
        return {name: plain(inner) for name, inner in value.asDict(recursive=False).items()}
    if isinstance(value, dict):
        return sorted((repr(plain(key)), plain(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, VariantVal):
        return ("variant", value.toJson())
    return repr(value)


def changed(frame: DataFrame, schema: StructType) -> list[Any]:
    """Where a frame's schema differs: types, null flags or metadata."""
    assert frame.columns == schema.names
    return [(a.json(), b.json()) for a, b in zip(frame.schema, schema, strict=True) if a.json() != b.json()]


def rows(frame: DataFrame) -> list[Any]:
    return sorted((plain(row) for row in frame.collect()), key=lambda row: int(row["id"]))


@pytest.fixture(autouse=True)
def time_type(spark) -> Iterator[None]:
    """Spark 4.3 has TIME, behind a switch."""
    before = spark.conf.get("spark.sql.timeType.enabled")
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.set("spark.sql.timeType.enabled", before)


@pytest.fixture
def zone(spark) -> Iterator[Any]:
    """Sets the session's time zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda name: spark.conf.set("spark.sql.session.timeZone", name)
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with LedgerClient(namespace, storage_root) as client:
        _ = namespace_of(client).storage
        yield client


def save(frame: DataFrame, client: LedgerClient, topic: str, **options: str) -> None:
    frame.write.format("ledger").options(zookeeper=client.zookeeper, **options).mode("append").save(topic)


def load(spark: SparkSession, client: LedgerClient, topic: str) -> DataFrame:
    return spark.read.format("ledger").option("zookeeper", client.zookeeper).load(topic)


def test_every_type_round_trips_through_a_batch_write_and_a_stream_in_other_time_zones(spark, client, zone, tmp_path):
    zone("America/New_York")
    written = wide(spark.range(6))
    expected, schema = rows(written), written.schema
    assert len(schema) == len(NULLABLE) + len(NOT_NULL) + 3
    save(written, client, "batch", compression="zstd")

    zone("Asia/Kolkata")
    batch = load(spark, client, "batch")
    assert changed(batch, schema) == []
    assert batch.schema["said"].metadata == {"comment": "what it is", "level": 3, "tags": ["a", "b"]}
    assert rows(batch) == expected

    stream = spark.readStream.format("ledger").option("zookeeper", client.zookeeper).load("batch")
    assert changed(stream, schema) == []
    stream.writeStream.format("ledger").options(
        zookeeper=client.zookeeper, checkpointLocation=str(tmp_path / "c"), compression="none"
    ).trigger(availableNow=True).start("stream").awaitTermination()

    zone("UTC")
    copied = load(spark, client, "stream")
    assert changed(copied, schema) == []
    assert rows(copied) == expected
    shown = copied.where("id = 0").selectExpr("cast(moment as string)", "cast(wall as string)").first()
    assert tuple(shown) == ("2024-03-10 07:30:00.123456", "2024-03-10 02:30:00.123456")


def test_every_column_can_be_read_alone(spark, client):
    """Each is found in the file by its place among the others' buffers."""
    save(wide(spark.range(4)).coalesce(1), client, "t")
    everything = next(iter(client.reader("t", end="latest").batches()))
    for name in everything.schema.names:
        alone = next(iter(client.reader("t", end="latest", columns=[name]).batches()))
        assert alone.schema.names == [name]
        assert repr(alone.column(0).to_pylist()) == repr(everything.column(name).to_pylist())


def test_odd_column_names_stay_as_they_are(spark, client):
    frame = spark.sql("SELECT 1 AS `a.b`, 2 AS `c d`, 3 AS `é`, 4 AS `x,y`, 5 AS `select`, 6 AS `_`")
    save(frame, client, "t")
    back = load(spark, client, "t")
    assert (back.schema, back.collect()) == (frame.schema, frame.collect())


@pytest.mark.parametrize(
    ("column", "expression"),
    [
        ("months", "interval '1-2' year to month"),
        ("nested", "array(named_struct('m', interval '1' month))"),
        ("unknown", "array()"),
    ],
)
def test_a_type_that_arrow_does_not_carry_names_its_column_and_makes_nothing(spark, client, column, expression):
    with pytest.raises(Exception, match=rf"LEDGER_INVALID_SCHEMA.*column '{column}' has the type .*cast it"):
        save(spark.sql(f"SELECT 1 AS fine, {expression} AS {column}"), client, "t")
    assert client.topics() == []


def test_columns_that_differ_in_case_only_are_refused_by_name(spark, client):
    save(spark.sql("SELECT if(rand() > 2, 1, null) AS Id"), client, "t")
    for merge in ("false", "true"):
        with pytest.raises(Exception, match=r"(?s)LEDGER_SCHEMA_MISMATCH.*the topic spells it Id"):
            save(spark.sql("SELECT if(rand() > 2, 1, null) AS ID"), client, "t", mergeSchema=merge)
    assert load(spark, client, "t").columns == ["Id"]


def test_a_null_where_the_topic_has_none_is_refused_by_column(spark, client):
    save(spark.sql("SELECT 1 AS a"), client, "t")
    with pytest.raises(Exception, match=r"LEDGER_NULL_NOT_ALLOWED.*column 'a' has a null"):
        save(spark.sql("SELECT if(rand() > 2, 1, null) AS a"), client, "t")
    save(spark.sql("SELECT if(rand() < 2, 2, null) AS a"), client, "t")  # it may, but does not
    assert sorted(row.a for row in load(spark, client, "t").collect()) == [1, 2]


@pytest.mark.parametrize("expression", ["interval '3' day", "'a' COLLATE UTF8_LCASE"])
def test_types_that_share_an_arrow_type_come_back_as_they_were(spark, client, expression):
    frame = spark.sql(f"SELECT {expression} AS c")
    save(frame, client, "t")
    assert load(spark, client, "t").collect() == frame.collect()
    assert load(spark, client, "t").schema == frame.schema
