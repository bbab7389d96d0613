"""Writers and readers log one line for each commit, as key=value."""

from __future__ import annotations

import logging
import re

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

from pyspark_ledger.client import LedgerClient
from pyspark_ledger.datasource.batch_reader import LedgerBatchReader
from pyspark_ledger.datasource.options import ReadOptions
from pyspark_ledger.datasource.stream_reader import LedgerStreamReader

SPARK_SCHEMA = StructType().add("v", LongType())


@pytest.fixture
def client(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", pa.schema([("v", pa.int64())]))
        yield client


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "pyspark_ledger")

    def found(verb):
        texts = [record.getMessage() for record in caplog.records if record.getMessage().startswith(f"{verb} ")]
        return [dict(re.findall(r"(\w+)=(\S*)", text)) for text in texts]

    return found


def options(client, **more):
    return ReadOptions.parse({"zookeeper": client.zookeeper, "topic": "orders", **more})


def test_each_commit_each_planned_batch_and_each_acknowledgement_is_a_line(client, lines):
    for _ in range(2):
        with client.producer("orders", name="web") as producer:
            producer.send({"v": 1})
    assert [(line["topic"], line["position"], line["records"]) for line in lines("committed")] == [
        ("orders", "0:0:0", "1"),
        ("orders", "0:1:0", "1"),
    ]

    LedgerBatchReader(options(client), SPARK_SCHEMA).partitions()
    stream = LedgerStreamReader(options(client, subscription="billing", maxRowsPerTrigger="1"), SPARK_SCHEMA)
    offset = stream.initialOffset()
    for _ in range(4):  # the last ones find nothing new
        offset = stream.latestOffset(offset, stream.getDefaultReadLimit())
    stream.stop()
    batch, *planned = lines("planned")
    assert (batch["start"], batch["end"], batch["partitions"]) == ("0:0:0", "0:2:0", "1")
    assert [(line["start"], line["end"], line["records"]) for line in planned] == [
        ("0:0:0", "0:1:0", "1"),
        ("0:1:0", "0:2:0", "1"),
    ]
    assert {line["subscription"] for line in planned} == {"billing"}

    with client.consumer("orders", "audit") as consumer:
        consumer.acknowledge(consumer.receive())
    (acknowledged,) = lines("acknowledged")
    assert (acknowledged["subscription"], acknowledged["position"]) == ("audit", "0:1:0")


def test_a_stream_without_a_subscription_says_so_too(client, lines):
    with client.producer("orders") as producer:
        producer.send({"v": 1})
    stream = LedgerStreamReader(options(client), SPARK_SCHEMA)
    stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert [(line["subscription"], line["records"]) for line in lines("planned")] == [("", "1")]
