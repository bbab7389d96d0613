"""A running query is moved from outside, by position and by time: no restart, no change to its checkpoint.
Run: python examples/live_reset.py"""

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pyspark_ledger import LedgerClient, LocalZooKeeper

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
quiet = {"spark.log.level": "ERROR", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
spark = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()

delivered: list[list[int]] = []


def deliver(batch: DataFrame, batch_id: int) -> None:
    """The query's sink: tells what it is given."""
    rows = batch.select("order_id", "_metadata.revision").collect()
    orders = [row.order_id for row in rows]
    print(f"   batch {batch_id}, revision {rows[0].revision}: orders {orders[0]} to {orders[-1]}", flush=True)
    delivered.append(orders)


def wait_for(batches: int) -> None:
    deadline = time.monotonic() + 60
    while len(delivered) < batches or client.cursor("orders", "billing").stats().backlog_records:
        if not query.isActive or time.monotonic() > deadline:
            sys.exit(f"the query did not deliver: {query.exception() or query.status}")
        time.sleep(0.05)


def send(*orders: int) -> None:
    with client.producer("orders", linger_ms=None) as producer:
        for order in orders:
            producer.send({"order_id": order})


with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    with LedgerClient(zookeeper.address, f"{folder}/ledger") as client:
        client.create_topic("orders", pa.schema([("order_id", pa.int64())]))

        print("1. A query follows the subscription 'billing', and orders come in.")
        send(*range(10))
        where = {"zookeeper": zookeeper.address, "subscription": "billing", "includeMetadata": True}
        stream = spark.readStream.format("ledger").options(**where).load("orders")
        query = stream.writeStream.foreachBatch(deliver).option("checkpointLocation", f"{folder}/cp").start()
        run = query.runId
        wait_for(batches=1)
        moment = datetime.now(UTC)
        send(*range(10, 15))
        wait_for(batches=2)

        print("2. It is reset to a position, while it runs.")
        moved = client.cursor("orders", "billing").reset("0:0:5")
        print(f"   now at {moved.position}, revision {moved.revision}")
        wait_for(batches=3)

        print("3. It is reset to a time, by another process.")
        command = ["cursors", "reset", "orders", "billing", "--to", moment.isoformat(), "--yes"]
        ledger = [sys.executable, "-m", "pyspark_ledger.cli", "--zookeeper", zookeeper.address]
        subprocess.run([*ledger, *command], check=True)
        wait_for(batches=4)

        print("4. The query is the one that was started, and its checkpoint has only grown.")
        print(f"   same run: {query.isActive and query.runId == run}")
        for log in sorted(Path(folder, "cp", "offsets").glob("[0-9]*")):
            offset = json.loads(log.read_text().splitlines()[-1])["topics"]["orders"]
            begins = f"begins at {offset['from']}" if "from" in offset else "begins where the last one ended"
            print(f"   checkpoint, batch {log.name}: revision {offset['rev']}, {begins}, ends at {offset['pos']}")
        stats = client.cursor("orders", "billing").stats()
        print(f"   subscription: at {stats.mark_delete}, backlog {stats.backlog_records}, revision {stats.revision}")
        query.stop()
    spark.stop()

if delivered != [[*range(10)], [*range(10, 15)], [*range(5, 15)], [*range(10, 15)]]:
    sys.exit(f"That is not what should have been delivered: {delivered}")
