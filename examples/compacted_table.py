"""A compacted table followed by its tail: the state of every key first, then each change, deletions too.
Run: python examples/compacted_table.py"""

import os
import sys
import tempfile
import time

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pyspark_ledger import LedgerClient, LocalZooKeeper

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
quiet = {"spark.log.level": "ERROR", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
spark = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()

copy: dict[str, int] = {}  # what somebody who follows the topic knows
seen = 0


def follow(batch: DataFrame, batch_id: int) -> None:
    global seen
    for item, cents in (tuple(row) for row in batch.collect()):
        if cents is None:  # a tombstone: every column but the key is null
            copy.pop(item, None)
        else:
            copy[item] = cents
        print(f"   batch {batch_id}: {item} {'is gone' if cents is None else cents}", flush=True)
        seen += 1


def wait_for(records: int) -> None:
    deadline = time.monotonic() + 60
    while seen < records:
        if not query.isActive or time.monotonic() > deadline:
            sys.exit(f"the query did not deliver: {query.exception() or query.status}")
        time.sleep(0.05)


def change(**prices: int | None) -> None:
    with client.producer("prices", linger_ms=None) as producer:
        for item, cents in prices.items():
            producer.send({"item": item, "cents": cents})


def tell_compaction() -> None:
    stats = client.compact("prices")
    assert stats is not None
    kept = f"{stats.records} records, kept deletions included, instead of {stats.records_before}"
    print(f"   generation {stats.generation}: {kept}")


with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    where = {"zookeeper": zookeeper.address, "storage": f"{folder}/ledger"}
    compacted = {**where, "readCompacted": "true"}

    with LedgerClient(**where) as client:
        print("1. A topic with a key is written: a thousand prices of four items, and one item goes.")
        # Made by hand, because a tombstone needs columns that may be null: those of spark.range may not.
        client.create_topic("prices", pa.schema([("item", pa.string()), ("cents", pa.int64())]), key="item")
        prices = spark.range(1_000).selectExpr("elt(id % 4 + 1, 'apple', 'fig', 'kiwi', 'plum') AS item", "id AS cents")
        prices.coalesce(1).write.format("ledger").mode("append").options(**where).save("prices")
        change(kiwi=None)

        print("2. It is compacted.")
        tell_compaction()

        print("3. A stream gets the state: each key once, and nothing of what is gone.")
        stream = spark.readStream.format("ledger").options(**compacted).load("prices")
        query = stream.writeStream.foreachBatch(follow).option("checkpointLocation", f"{folder}/cp").start()
        wait_for(records=3)

        print("4. Then the tail: what changes, and what is deleted.")
        change(apple=120, plum=None, pear=80)
        wait_for(records=6)

        print("5. Compacted again, under the running stream, which goes on with what comes next.")
        tell_compaction()
        change(fig=95)
        wait_for(records=7)
        query.stop()

    print("6. The topic as a table, and the copy that followed it:")
    table = {row.item: row.cents for row in spark.read.format("ledger").options(**compacted).load("prices").collect()}
    print("   table", dict(sorted(table.items())))
    print("   copy ", dict(sorted(copy.items())))
    spark.stop()

if not copy == table == {"apple": 120, "fig": 95, "pear": 80}:
    sys.exit("The copy is not the table.")
