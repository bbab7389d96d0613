"""A terminated topic: readers come to its end, writers are refused by name, and replays are still recognised (I5)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_ledger.client import LedgerClient
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.lifecycle.termination import terminate
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.query import WorldQuery, add, flat
from tests.support.worlds import SCHEMA, SMALL, World, append


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path, SMALL, SeededClock(1))
    for number in range(6):
        append(world.log(), number, mints=True)
    terminate(world.log())
    return world


def test_available_now_ends_there_and_another_stream_goes_on_waiting(world):
    query = WorldQuery(world, maxRowsPerTrigger="4")
    query.reader.prepareForTriggerAvailableNow()
    assert flat(query.all()) == list(range(6))
    waiting = WorldQuery(world)
    assert flat(waiting.all()) == list(range(6))
    assert waiting.plan() == (waiting.offset, waiting.offset)


def test_its_tokens_can_still_be_used_I11(world):
    tokens = [record.token for record in Reader(world.log(), "earliest", "latest")]
    assert Tokens(world.log(), "late").consume(tokens) == [True] * 6
    assert Tokens(world.log(), "late").consume(tokens) == [False] * 6


# -- on ZooKeeper and Spark -----------------------------------------------------------------------------------------


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("t", SCHEMA)
        add(client, 0, 1, 2)
        yield client


def test_a_producer_is_told(client):
    producer = client.producer("t")
    producer.send({"n": 3})
    producer.flush()
    assert str(client.terminate("t")) == "0:2:0"
    producer.send({"n": 4})
    for give_up in (producer.flush, producer.close):
        with pytest.raises(InvalidInput, match="LEDGER_TOPIC_TERMINATED"):
            give_up()


@pytest.mark.spark
def test_spark_reads_to_the_end_and_its_sinks_are_refused_by_name(spark, client, tmp_path):
    def copy(frm: str, to: str) -> None:
        stream = spark.readStream.format("ledger").option("zookeeper", client.zookeeper).load(frm)
        sink = stream.writeStream.format("ledger").option("zookeeper", client.zookeeper)
        sink.option("checkpointLocation", str(tmp_path / to)).trigger(availableNow=True).start(to).awaitTermination()

    client.terminate("t")
    copy("t", "copy")
    assert [record["n"] for record in client.reader("copy", end="latest")] == [0, 1, 2]
    client.terminate("copy")
    (tmp_path / "copy" / "commits" / "0").unlink()
    copy("t", "copy")  # Spark replays its last batch, which is in the topic
    client.create_topic("other", SCHEMA)
    client.terminate("other")
    with pytest.raises(Exception, match="LEDGER_TOPIC_TERMINATED"):
        copy("t", "other")
    table = spark.read.format("ledger").option("zookeeper", client.zookeeper).load("t")
    with pytest.raises(Exception, match="LEDGER_TOPIC_TERMINATED"):
        table.write.format("ledger").option("zookeeper", client.zookeeper).mode("append").save("other")
