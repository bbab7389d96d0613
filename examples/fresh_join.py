"""Orders are joined with their customers as they are now: a customer who moves is seen by the next batch.
Run: python examples/fresh_join.py"""

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
quiet["spark.sql.shuffle.partitions"] = "1"
spark = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()


def customers() -> DataFrame:
    """Each customer as of now, once: a new DataFrame, because Spark plans the read of a DataFrame only once."""
    return spark.read.format("ledger").options(**where, readCompacted=True).load("customers")


def ship(orders: DataFrame, batch_id: int) -> None:
    """A replayed batch adds nothing, also if a customer has moved meanwhile."""
    once = {"producerName": "shipping", "sequenceId": batch_id}
    parcels = orders.join(customers(), "customer").join(planned_once.withColumnRenamed("city", "old_city"), "customer")
    parcels.write.format("ledger").mode("append").options(**where, **once).save("parcels")


def move(customer: str, city: str) -> None:
    with client.producer("customers") as producer:
        producer.send({"customer": customer, "city": city})


def order(order_id: int, customer: str) -> None:
    with client.producer("orders") as producer:
        producer.send({"order_id": order_id, "customer": customer})
    while query.isActive and order_id not in shipped():
        time.sleep(0.1)


def shipped() -> dict[int, dict]:
    """Parcels by the number of their order."""
    if "parcels" not in client.topics():
        return {}
    return {record["order_id"]: record.value for record in client.reader("parcels", end="latest")}


with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    where = {"zookeeper": zookeeper.address, "storage": f"{folder}/ledger"}
    with LedgerClient(**where) as client:
        text = pa.string()
        client.create_topic("customers", pa.schema([("customer", text), ("city", text)]), key="customer")
        client.create_topic("orders", pa.schema([("order_id", pa.int64()), ("customer", text)]))
        move("ann", "Rome")

        planned_once = customers()  # to compare
        orders = spark.readStream.format("ledger").options(**where).load("orders")
        query = orders.writeStream.foreachBatch(ship).option("checkpointLocation", f"{folder}/cp").start()

        print("1. Ann lives in Rome, and orders.")
        order(1, "ann")
        print("2. She moves to Oslo, and orders again.")
        move("ann", "Oslo")
        order(2, "ann")
        query.stop()

        parcels = shipped()
        for number, parcel in parcels.items():
            print(f"   order {number}: to {parcel['city']}; a read planned before says {parcel['old_city']}")
    spark.stop()

if [parcel["city"] for parcel in parcels.values()] != ["Rome", "Oslo"]:
    sys.exit("A parcel went to the wrong city.")
