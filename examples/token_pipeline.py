"""Orders become invoices, once each: over a deleted checkpoint, a rewound cursor, and two copies of the job at once.
Run: python examples/token_pipeline.py"""

import os
import shutil
import sys
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ledger import LedgerClient, LocalZooKeeper

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH
spark = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()


def order(first: int, count: int) -> None:
    """Orders whose records have tokens."""
    rows = spark.range(first, first + count).selectExpr("id AS order_id", "id % 100 AS amount")
    rows.write.format("ledger").mode("append").options(**where, mintTokens="true").save("orders")


def invoice(checkpoint: str, **options: str) -> StreamingQuery:
    """The job: reads orders with their tokens, and writes an invoice for each whose token is still there."""
    orders = spark.readStream.format("ledger").options(**where, **options, includeMetadata="tokenNumber").load("orders")
    invoices = orders.selectExpr("order_id", "amount * 1.19 AS total", "_metadata.tokenNumber AS token")
    sink = invoices.writeStream.format("ledger").options(**where, deduplication="token")
    sink = sink.options(tokenColumn="token", tokenTopic="orders")
    return sink.option("checkpointLocation", f"{folder}/{checkpoint}").trigger(availableNow=True).start("invoices")


def tell(what: str) -> None:
    invoices = spark.read.format("ledger").options(**where).load("invoices")
    [tokens] = client.tokens("orders").stats()
    count, distinct = invoices.count(), invoices.select("order_id").distinct().count()
    print(f"{what}: invoices {count}, distinct {distinct}, tokens in flight {tokens.in_flight}, nodes {tokens.nodes}")


with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    where = {"zookeeper": zookeeper.address, "storage": f"{folder}/ledger"}
    with LedgerClient(**where) as client:
        order(0, 500)
        invoice("one", subscription="billing").awaitTermination()
        tell("1. 500 orders")

        shutil.rmtree(f"{folder}/one")
        client.cursor("orders", "billing").reset("earliest")
        invoice("one", subscription="billing").awaitTermination()
        tell("2. checkpoint deleted, cursor rewound")

        order(500, 500)
        for job in [invoice("two", maxRowsPerTrigger="150"), invoice("three", maxRowsPerTrigger="200")]:
            job.awaitTermination()
        tell("3. 500 more, two copies of the job at once, from the start")

spark.stop()
