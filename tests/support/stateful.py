"""Queries that keep state, to be killed and reset. As a script, a driver that runs all of them until it is killed:
``python -m tests.support.stateful <zookeeper> <folder>``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

# transformWithState needs this store, and a query keeps its store and its partitions for good.
STATE_STORE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # nothing here waits for one, and they take time
}


@contextmanager
def keeping_state(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with a state store that keeps everything these queries need."""
    before = {name: spark.conf.get(name, None) for name in STATE_STORE}
    for name, value in STATE_STORE.items():
        spark.conf.set(name, value)
    try:
        yield spark
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def start(
    spark: SparkSession, name: str, zookeeper: str, folder: str, subscription: str = "", **trigger: object
) -> StreamingQuery:
    """The query of this name, which writes to a topic of this name."""

    def read(topic: str) -> DataFrame:
        source = spark.readStream.format("ledger").options(zookeeper=zookeeper, includeMetadata=True)
        return (source.option("subscription", subscription) if subscription else source).load(topic)

    sink = QUERIES[name](read).writeStream.format("ledger").option("zookeeper", zookeeper)
    return sink.option("checkpointLocation", f"{folder}/{name}").trigger(**trigger).start(name)  # type: ignore[arg-type]


def counted(read: Callable[[str], DataFrame]) -> DataFrame:
    """The customers' orders, numbered by transformWithState: as they are delivered, and as they are in the topic."""

    class Counter(StatefulProcessor):  # in here, so that it is sent to the tasks by value
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._state = handle.getValueState("counts", "delivered long, orders long, last string")

        def handleInputRows(self, key, rows, timerValues):  # type: ignore[no-untyped-def]
            delivered, orders, last = self._state.get() if self._state.exists() else (0, 0, "")
            for row in sorted(rows, key=lambda row: row.place):  # a shuffle keeps no order
                delivered += 1
                if row.place > last:  # places only rise, so one that does not is here again
                    orders, last = orders + 1, row.place
                yield Row(customer=key[0], n=row.n, delivered=delivered, orders=orders)
            self._state.update((delivered, orders, last))

        def close(self) -> None:
            pass

    place = "format_string('%019d:%019d:%019d', _metadata.ledgerId, _metadata.entryId, _metadata.index) AS place"
    rows = read("orders").selectExpr("customer", "n", place).groupBy("customer")
    columns = "customer string, n long, delivered long, orders long"
    return rows.transformWithState(Counter(), columns, "Append", "None")


def paid(read: Callable[[str], DataFrame]) -> DataFrame:
    """Orders with their payments, which come within an hour by the event time that both bring."""
    orders = read("orders").selectExpr("n", "ordered").withWatermark("ordered", "1 hour")
    payments = read("payments").selectExpr("n AS paid_order", "paid").withWatermark("paid", "1 hour")
    in_time = "n = paid_order AND paid BETWEEN ordered AND ordered + INTERVAL 1 HOUR"
    return orders.join(payments, expr(in_time)).select("n")


def distinct(read: Callable[[str], DataFrame]) -> DataFrame:
    """Each order once, though the shop sends some twice: within an hour of publish time."""
    orders = read("orders").selectExpr("n", "_metadata.publishTime AS published")
    return orders.withWatermark("published", "1 hour").dropDuplicatesWithinWatermark(["n"]).select("n")


QUERIES = {"counted": counted, "paid": paid, "distinct": distinct}


def main(zookeeper: str, folder: str) -> None:
    builder = SparkSession.builder.master("local[2]").config(map=STATE_STORE)
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.python.unix.domain.socket.enabled", "true")
    builder = builder.config(
        "spark.sql.streaming.checkpointFileManagerClass",
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    )
    spark = builder.getOrCreate()
    for name in QUERIES:
        start(spark, name, zookeeper, folder, processingTime="0 seconds")
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
