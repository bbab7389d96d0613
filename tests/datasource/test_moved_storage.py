"""Spark queries while the storage of their namespace moves."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest

from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.errors import Conflict
from pyspark_ledger.lifecycle import move_storage
from pyspark_ledger.lifecycle.moving import Mover

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.mark.spark
def test_a_query_that_reads_and_writes_is_told_and_goes_on_when_it_is_started_again_I1(
    spark, namespace, storage_root, tmp_path, monkeypatch
):
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    options = {"zookeeper": namespace}
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("in", SCHEMA)
        client.create_topic("out", SCHEMA)

        def send(*numbers: int) -> None:
            with client.producer("in") as producer:
                for number in numbers:
                    producer.send({"n": number})

        def start():
            stream = (
                spark.readStream.format("ledger").options(**options, startingOffsets="earliest").option("topic", "in")
            )
            sink = stream.load().writeStream.format("ledger").options(**options).option("topic", "out")
            return sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

        def in_spark(topic: str) -> list[int]:
            rows = spark.read.format("ledger").options(**options).option("topic", topic).load().collect()
            return [row.n for row in rows]

        send(1, 2)
        query = start()
        query.processAllAvailable()
        spark.range(7, 8).selectExpr("id as n").write.format("ledger").options(**options).option("topic", "in").mode(
            "append"
        ).save()
        query.processAllAvailable()
        move_storage.move(Mover(namespace_of(client).metadata), str(tmp_path / "new"))
        with pytest.raises(Conflict, match="LEDGER_STORAGE_MOVED"):
            send(3)
        send(3)
        with pytest.raises(Exception, match=r"LEDGER_STORAGE_MOVED|LEDGER_STAGED_TOO_LONG_AGO"):
            query.processAllAvailable()
        shutil.rmtree(storage_root)
        query = start()
        query.processAllAvailable()
        query.stop()
        spark.range(9, 10).selectExpr("id as n").write.format("ledger").options(**options).option("topic", "in").mode(
            "append"
        ).save()  # a batch write goes on by itself
        assert in_spark("in") == [1, 2, 7, 3, 9]
        assert in_spark("out") == [1, 2, 7, 3]
