"""What the pipeline of spark-pipeline.yaml makes of the topic orders: a table of Spark's, and the topic bills.

ZooKeeper's address is in LEDGER_ZOOKEEPER.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

# By their ids, orders that are billed already are not billed again: a full refresh reads all of them once more.
dp.create_sink("bills", "ledger", {"topic": "bills", "sequenceColumn": "order_id", "producerName": "billing"})


@dp.table
def orders() -> DataFrame:
    return spark.readStream.format("ledger").load("orders")


@dp.append_flow(target="bills")
def bill() -> DataFrame:
    return spark.readStream.format("ledger").load("orders").selectExpr("order_id", "cents * 119 DIV 100 AS cents")
