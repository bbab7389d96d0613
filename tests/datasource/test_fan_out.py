"""``topicColumn`` and ``deadLetterTopic`` in real Spark, with drivers that are killed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

import pytest
from pyspark.sql import functions as F

from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.spark import error
from tests.support.fan_out import FanOut, kill

pytestmark = pytest.mark.spark


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with LedgerClient(namespace, storage_root) as client:
        _ = namespace_of(client).storage
        yield client


def numbers(client: LedgerClient, topic: str) -> list[int]:
    return [record["n"] for record in client.reader(topic, end="latest")]


def routed(spark, start: int, stop: int):
    """Numbers to t0 to t4 by turns; every sixth names no topic."""
    frame = spark.range(start, stop, numPartitions=3).withColumnRenamed("id", "n")
    return frame.withColumn("to", F.when(F.col("n") % 6 != 5, F.concat(F.lit("t"), F.col("n") % 6)))


def wanted(topic: int, stop: int) -> list[int]:
    return [n for n in range(stop) if n % 6 == topic]


def test_a_stream_and_a_batch_write_to_five_topics_and_dead_letters_once_I1_I5(spark, client, tmp_path):
    source = tmp_path / "source"
    options = {"zookeeper": client.zookeeper, "topicColumn": "to", "deadLetterTopic": "dead"}

    def run():
        stream = spark.readStream.schema("n long, to string").option("maxFilesPerTrigger", 1).json(str(source))
        writer = stream.writeStream.format("ledger").options(**options, checkpointLocation=str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    routed(spark, 0, 30).coalesce(1).write.json(str(source))
    query = run()
    routed(spark, 30, 60).coalesce(1).write.mode("append").json(str(source))
    run()
    commits = tmp_path / "checkpoint" / "commits"
    for file in (commits / "1", commits / ".1.crc"):  # as if the driver had died before Spark's own commit
        file.unlink(missing_ok=True)
    run()
    for topic in range(5):
        assert numbers(client, f"t{topic}") == wanted(topic, 60)
    dead = list(client.reader("dead", end="latest"))
    assert [json.loads(record["record"])["n"] for record in dead] == wanted(5, 60)
    assert {(record["reason"], record["query"]) for record in dead} == {("no topic in column 'to'", query.id)}

    for _ in range(2):
        writer = routed(spark, 60, 90).write.format("ledger").options(**options, producerName="job", sequenceId="1")
        writer.mode("append").save()
    assert numbers(client, "t0") == wanted(0, 90)
    assert len(list(client.reader("dead", end="latest"))) == 15


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (
            {"topicColumn": "too"},
            "LEDGER_INVALID_OPTION",
            "topicColumn 'too' is not a column: n, to (did you mean",
        ),
        ({"topicColumn": "n"}, "LEDGER_INVALID_OPTION", "it must be a string"),
        ({"topicColumn": "to", "topic": "x"}, "LEDGER_INVALID_OPTION", "exclude each other"),
        ({"topicColumn": "to"}, "LEDGER_NO_TOPIC", "no topic in column 'to'"),
        ({"topic": "x", "deadLetterTopic": "x"}, "LEDGER_INVALID_OPTION", "option 'deadLetterTopic'"),
    ],
)
def test_what_cannot_be_is_told_by_name_and_changes_nothing(spark, client, options, code, words):
    with pytest.raises(Exception, match=code) as raised:
        routed(spark, 0, 12).write.format("ledger").options(zookeeper=client.zookeeper, **options).mode("append").save()
    assert words in error(raised.value).sentence
    assert [name for name in client.topics() if name != "_staging"] == []


def test_a_killed_driver_leaves_every_batch_in_all_topics_or_in_none_I1_I3(client, tmp_path):
    job = FanOut(client, tmp_path / "job", topics=5, files=5)
    driver = job.start()
    try:
        deadline = time.monotonic() + 90
        while job.count() < 1:
            assert time.monotonic() < deadline, (job.folder / "driver.log").read_text()[-4000:]
            time.sleep(0.1)
    finally:
        kill(driver)
    assert 1 <= job.check() <= 5
    job.finish()
    assert job.check() == 5


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_twenty_topics_and_drivers_killed_at_random_I1_I3(client, tmp_path):
    """For two minutes; whenever a driver is dead, every batch is in all of its topics or in none."""
    chance, job = random.Random(), FanOut(client, tmp_path / "job", topics=20, files=100)
    done, ends = 0, time.monotonic() + 120
    while done < 90 and time.monotonic() < ends:
        driver, goal = job.start(), done + chance.randint(1, 6)
        try:
            deadline = time.monotonic() + 180
            while job.count() < goal and driver.poll() is None:
                assert time.monotonic() < deadline, (job.folder / "driver.log").read_text()[-4000:]
                time.sleep(0.05)
            time.sleep(chance.uniform(0, 1.0))  # not to wait for something, but to hit another moment of a batch
        finally:
            kill(driver)
        done = job.check()
        print(f"run {job.runs}: {done} batches, each in 20 topics", flush=True)
    job.finish()
    assert job.check() == 100
