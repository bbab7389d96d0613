"""The jobs that people do with Spark's Kafka source and sink, done with a ledger. docs/kafka.md has the Kafka side of
each and a table of all options. Run: python examples/kafka_guide.py"""

import os
import sys
import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_ledger import LedgerClient, LocalZooKeeper

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
quiet = {"spark.log.level": "ERROR", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
small = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
spark = SparkSession.builder.master("local[2]").config(map=quiet | small).getOrCreate()

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
CLICKS = "user STRING, page STRING, at TIMESTAMP"


def clicks(*rows: tuple[str, str, int]) -> DataFrame:
    """User, page, and minutes after noon."""
    return spark.createDataFrame([(user, page, NOON + timedelta(minutes=m)) for user, page, m in rows], CLICKS)


def read(topic: str, **options: object) -> DataFrame:
    return spark.read.format("ledger").options(**where, **options).load(topic)


def follow(topic: str, **options: object) -> DataFrame:
    return spark.readStream.format("ledger").options(**where, **options).load(topic)


def run(sink: DataStreamWriter, topic: str | None = None) -> StreamingQuery:
    """To the end of what is there, with a checkpoint of its own."""
    checkpoint = tempfile.mkdtemp(dir=folder, prefix="checkpoint-")
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(topic)
    query.awaitTermination()
    return query


def show(title: str, frame: DataFrame) -> list[tuple[object, ...]]:
    rows = sorted(tuple(row) for row in frame.collect())
    print(title, *rows, sep="\n   ", flush=True)
    return rows


with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    where = {"zookeeper": zookeeper.address, "storage": f"{folder}/ledger"}
    append = {"format": "ledger", "mode": "append", **where}

    # 1. Key and value, as bytes or JSON: works as it is. 'key' is an ordinary column that the topic is told of.
    first = clicks(("ann", "/", 0), ("bob", "/", 1), ("ann", "/buy", 4))
    pairs = first.selectExpr("user AS key", "to_json(struct(page, at)) AS value")
    pairs.write.save("clicks-json", keyColumn="key", **append)
    parsed = read("clicks-json").selectExpr("key", "from_json(value, 'page STRING, at TIMESTAMP') AS v")
    as_json = show("1. from JSON:", parsed.select("key", "v.page"))

    # 2. But a topic has columns and types of its own: nothing to serialise, and a read takes only what it needs.
    first.coalesce(1).write.save("clicks", **append)
    pages = show("2. two columns:", read("clicks", columns="user,page"))

    # 3. From an offset, from a time, up to an offset: one order, so one position instead of one per partition.
    with LedgerClient(**where) as client:
        end = client.end("clicks")
        [*_, published] = [record.publish_time for record in client.reader("clicks", end="latest")]
    more = clicks(("bob", "/buy", 7), ("ann", "/", 12), ("cat", "/", 3), ("cat", "/", 31))
    more.coalesce(1).write.save("clicks", **append)
    later = (published + timedelta(milliseconds=1)).isoformat()
    counts = [
        read("clicks", startingOffsets=end).count(),
        read("clicks", startingTimestamp=later).count(),
        read("clicks", startingOffsets="0:0:1", endingOffsets=end).count(),
    ]
    print("3. from an offset, from a time, between two offsets:", *counts)

    # 4. A consumer group: a subscription, which remembers what is done, whatever becomes of the checkpoint.
    def copy(batch: DataFrame, batch_id: int) -> None:
        copied.append(batch.count())

    copied: list[int] = []
    run(follow("clicks", subscription="copier", maxRowsPerTrigger=4).writeStream.foreachBatch(copy))
    clicks(("dan", "/", 32)).write.save("clicks", **append)
    run(follow("clicks", subscription="copier").writeStream.foreachBatch(copy))  # with a new checkpoint
    print("4. batches of a subscription, over two queries:", *copied)

    # 5. Update mode: Spark does not offer it to Python sinks, so foreachBatch writes each batch's updates; the batch id
    #    as sequenceId makes that exactly once. With a key, the topic can be read as the table of the newest totals.
    def upsert(batch: DataFrame, batch_id: int) -> None:
        for _attempt in range(2):  # as if the batch were run again after a crash
            batch.write.save("totals", keyColumn="user", producerName="totals", sequenceId=batch_id, **append)

    totals = follow("clicks", maxRowsPerTrigger=4).groupBy("user").count()
    run(totals.writeStream.outputMode("update").foreachBatch(upsert))
    print("5. updates written:", updates := read("totals").count())
    newest = show("   newest totals:", read("totals", readCompacted="true"))

    # 6. Event time, in append mode: each window is written once, when the watermark has passed it.
    by_event = follow("clicks", maxRowsPerTrigger=4).withWatermark("at", "5 minutes")
    windows = by_event.groupBy(F.window("at", "10 minutes")).count()
    closed = windows.selectExpr("date_format(window.start, 'HH:mm') AS since", "count AS clicks")
    run(closed.writeStream.format("ledger").options(**where), "clicks-per-window")
    per_window = show("6. closed windows:", read("clicks-per-window"))

    # 7. Kafka's 'timestamp' column is _metadata.publishTime, which never goes back: nothing is ever late by it.
    by_publishing = follow("clicks", includeMetadata=True).selectExpr("user", "_metadata.publishTime AS published")
    distinct = by_publishing.withWatermark("published", "1 hour").dropDuplicatesWithinWatermark(["user"]).select("user")
    run(distinct.writeStream.format("ledger").options(**where), "visitors")
    visitors = show("7. visitors, once an hour:", read("visitors"))
    spark.stop()

found = (as_json, len(pages), counts, copied, updates, newest, per_window, visitors)
wanted = (
    [("ann", "/"), ("ann", "/buy"), ("bob", "/")],
    3,
    [4, 4, 2],
    [4, 3, 1],
    5,
    [("ann", 3), ("bob", 2), ("cat", 2), ("dan", 1)],
    [("12:00", 5), ("12:10", 1)],
    [("ann",), ("bob",), ("cat",), ("dan",)],
)
if found != wanted:
    sys.exit(f"That is not what should have come out: {found}")
