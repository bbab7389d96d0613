"""Sources with names: a query gets another source, and loses one, and goes on from the same checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_ledger import LedgerClient
from tests.support.query import add
from tests.support.worlds import SCHEMA

pytestmark = pytest.mark.spark

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


@pytest.fixture
def client(namespace: str, storage_root: str) -> Iterator[LedgerClient]:
    with LedgerClient(namespace, storage_root) as client:
        for topic in ("web", "shop"):
            client.create_topic(topic, SCHEMA)
        yield client


@pytest.fixture
def evolving(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(EVOLUTION, "true")
    yield spark
    spark.conf.unset(EVOLUTION)


def test_sources_come_and_go_on_one_checkpoint_and_each_record_is_read_once(
    evolving: SparkSession, client: LedgerClient, tmp_path: Path
) -> None:
    def run(*topics: str) -> list[int]:
        """One run of the query over these topics: what it has added."""
        before = len(read())
        where = {"zookeeper": client.zookeeper}
        streams = [evolving.readStream.format("ledger").name(name).options(**where).load(name) for name in topics]
        sink = reduce(DataFrame.union, streams).writeStream.format("ledger").options(**where)
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert sink.start("all").awaitTermination(60)
        return sorted(read()[before:])

    def read() -> list[int]:
        return [record["n"] for record in client.reader("all", end="latest")] if "all" in client.topics() else []

    add(client, 1, 2, topic="web")
    add(client, 101, topic="shop")
    assert run("web") == [1, 2]
    add(client, 3, topic="web")
    assert run("shop", "web") == [3, 101]  # the other order: a source is known by its name
    add(client, 4, topic="web")
    add(client, 102, topic="shop")
    assert run("shop") == [102]
    assert run("shop", "web") == [4]  # whoever comes back goes on where it was
