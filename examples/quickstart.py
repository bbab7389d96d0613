"""Writes and reads a ledger in every way there is. Run: python examples/quickstart.py"""

import os
import sys
import tempfile

from pyspark.sql import SparkSession

from pyspark_ledger import LedgerClient, LocalZooKeeper

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
spark = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()

with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    # Where the ledgers are. Instead of options: LEDGER_ZOOKEEPER and LEDGER_STORAGE in the driver's environment.
    where = {"zookeeper": zookeeper.address, "storage": f"{folder}/ledger"}

    # A batch write. The first write makes the topic; the same sequenceId again adds nothing.
    orders = spark.range(1_000).selectExpr("id AS order_id", "id % 7 AS customer", "id * 10 AS cents")
    once = {**where, "producerName": "import", "sequenceId": "1"}
    for _attempt in range(2):
        orders.write.format("ledger").mode("append").options(**once).save("orders")

    # A stream from one ledger to another, exactly once across restarts from its checkpoint.
    stream = spark.readStream.format("ledger").options(**where, maxRowsPerTrigger=250).load("orders")
    sink = stream.where("customer = 3").writeStream.format("ledger").options(**where)
    sink.option("checkpointLocation", f"{folder}/cp").trigger(availableNow=True).start("third").awaitTermination()

    # A batch read.
    print("orders:", spark.read.format("ledger").options(**where).load("orders").count())
    print("of customer 3:", spark.read.format("ledger").options(**where).load("third").count())

    # The same from Python, without Spark.
    with LedgerClient(**where) as client:
        with client.producer("orders") as producer:
            producer.send({"order_id": 1_000, "customer": 3, "cents": 99})
        *_, last = client.reader("orders", end="latest")
        print("last order:", last.position, dict(last.value))
    spark.stop()
