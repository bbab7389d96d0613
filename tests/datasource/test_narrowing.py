"""Only the columns that a select needs are read from the files: Spark itself does not tell sources in Python."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from pyspark_ledger.client import LedgerClient
from pyspark_ledger.datasource import narrowing
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.spark import read


@pytest.mark.spark
def test_a_select_reads_only_what_it_needs(spark, namespace, storage_root, tmp_path):
    with LedgerClient(zookeeper=namespace, storage=storage_root) as client:
        fields = [("id", pa.int64()), ("a, b", pa.string()), ("inner", pa.struct([("x", pa.int64())]))]
        client.create_topic("t", pa.schema(fields))
        with client.producer("t") as producer:
            producer.send({"id": 1, "a, b": "text", "inner": {"x": 7}})
    table = spark.read.format("ledger").options(zookeeper=namespace, includeMetadata="true").load("t")

    def columns_read(frame) -> list[str]:
        relation = frame._jdf.queryExecution().analyzed().collectLeaves().head()
        return list(relation.schema().fieldNames())

    computed = read(table).select((F.col("id") + 1).alias("next"), "inner.x", "_metadata.topic")
    assert columns_read(computed) == ["id", "inner", "_metadata"]
    assert computed.collect() == [(2, 7, "t")]
    assert columns_read(read(table).select("`a, b`")) == ["a, b"]
    assert columns_read(read("t", zookeeper=namespace).select("*")) == ["id", "a, b", "inner"]
    counted = read("t", zookeeper=namespace).select(F.count(F.lit(1)))
    assert (columns_read(counted), counted.collect()) == (["id"], [(1,)])
    letters = read(table).select(F.explode(F.split("`a, b`", "")).alias("letter"), "id")  # a plan of more than one step
    assert columns_read(letters) == ["id", "a, b"]
    assert letters.where("letter = 'x'").collect() == [("x", 1)]
    ranked = read(table).select(F.row_number().over(Window.orderBy("id")).alias("rank"))
    assert (columns_read(ranked), ranked.collect()) == (["id"], [(1,)])
    chosen = spark.read.format("ledger").options(zookeeper=namespace, columns="id,inner").load("t")
    assert columns_read(read(chosen).select("inner.x")) == ["inner"]  # what the DataFrame has, and less
    stream = read(spark.readStream.format("ledger").option("zookeeper", namespace).load("t")).select("inner.x")
    assert stream.isStreaming
    query = stream.writeStream.format("memory").queryName("narrow").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "narrow")).start().awaitTermination()
    assert spark.table("narrow").collect() == [(7,)]
    for wrong in (table.select("id"), spark.range(3)):
        with pytest.raises(InvalidInput, match="has loaded, unchanged"):
            read(wrong)
    with pytest.raises(InvalidInput, match="give none beside it"):
        read(table, topic="other")


def test_with_spark_connect_names_are_needed(monkeypatch):
    with pytest.raises(InvalidInput, match="a topic's name or a DataFrame, not a NoneType"):
        read(None)
    monkeypatch.setattr(narrowing, "_analyzed", lambda _: None)
    with pytest.raises(InvalidInput, match=r"does not show how it was loaded: give the topic"):
        narrowing._relation(None)
    columns = ["id", "inner", "odd.name", "it`s"]
    assert narrowing._named(("ID", "inner.x", "`odd.name`", "`it``s`"), columns) == set(columns)
    assert narrowing._named((["id", "inner.x"],), columns) == {"id", "inner"}
    assert narrowing._named(("id", "*"), columns) == set(columns)
    with pytest.raises(InvalidInput, match="does not say which columns 1 uses: give names"):
        narrowing._named((1,), ["id"])
