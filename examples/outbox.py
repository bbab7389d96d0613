"""Handlers with business state, once for each order: from a consumer and from foreachBatch, over a lost answer.
Run: python examples/outbox.py"""

import os
import sys
import tempfile
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pyspark_ledger import LedgerClient, LocalZooKeeper
from pyspark_ledger.outbox.outbox import Dispatch, Handler, Send

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH

ORDERS = pa.schema([("order_id", pa.int64()), ("customer", pa.string()), ("amount", pa.int64())])
INVOICES = pa.schema([("order_id", pa.int64()), ("customer", pa.string()), ("balance", pa.int64())])


def bill(order: dict[str, Any]) -> Handler:
    """What one order does: it raises the customer's balance, makes an invoice, and has a parcel sent."""

    def handler(state: Any) -> Any:
        balance = (state or {"balance": 0})["balance"] + order["amount"]
        invoice = {"order_id": order["order_id"], "customer": order["customer"], "balance": balance}
        return {"balance": balance}, [Send("invoices", invoice), Dispatch(f"parcel for order {order['order_id']}")]

    return handler


class Shipping:
    """Another system, reached over a network that is cut now and then. It ships what it has not shipped yet."""

    def __init__(self, client: LedgerClient, lost_answer: int) -> None:
        self._tokens, self._lost_answer = client.tokens("parcels", "shipping"), lost_answer
        self.calls, self.shipped = 0, list[str]()

    def __call__(self, payload: str, token: str | None) -> None:
        self.calls += 1
        if token is None or self._tokens.consume([token]) == [True]:
            self.shipped.append(payload)
        if self.calls == self._lost_answer:
            raise ConnectionError("the parcel is on its way, but nobody told us")


def by_consumer(client: LedgerClient, shipping: Shipping) -> None:
    outbox = client.outbox("billing", dispatch=shipping, dispatch_tokens=client.tokens("parcels", "shipping"))
    with client.consumer("orders", "billing") as consumer:
        while (order := consumer.receive(timeout_s=1)) is not None:
            try:
                outbox.process(
                    str(order["order_id"]), order.token or "", bill(dict(order.value)), entity=order["customer"]
                )
                consumer.acknowledge(order)
            except ConnectionError as error:
                print(f"   order {order['order_id']}: {error}; it is delivered again")
                consumer.negative_acknowledge(order)


def by_foreach_batch(spark: SparkSession, client: LedgerClient, shipping: Shipping, folder: str) -> None:
    outbox = client.outbox("billing", dispatch=shipping, dispatch_tokens=client.tokens("parcels", "shipping"))

    def process(batch: DataFrame, _: int) -> None:
        for order in batch.collect():
            outbox.process(str(order.order_id), order.token, bill(order.asDict()), entity=order.customer)

    orders = spark.readStream.format("ledger").option("zookeeper", client.zookeeper).option("includeMetadata", "true")
    rows = orders.load("orders").select("order_id", "customer", "amount", "_metadata.token")
    rows.writeStream.foreachBatch(process).option("checkpointLocation", f"{folder}/checkpoint").trigger(
        availableNow=True
    ).start().awaitTermination()


def tell(client: LedgerClient, shipping: Shipping, what: str) -> None:
    invoices = [record["order_id"] for record in client.reader("invoices", end="latest")]
    balances = {name: client.outbox("billing").state(name)["balance"] for name in ("ann", "bob")}
    print(f"{what}: invoices {len(invoices)}, distinct {len(set(invoices))}, balances {balances}, parcels "
          f"{len(shipping.shipped)}, dispatched {shipping.calls}")  # fmt: skip


with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    with LedgerClient(zookeeper.address, f"{folder}/ledger") as client:
        for topic, schema in (("orders", ORDERS), ("invoices", INVOICES), ("parcels", INVOICES)):
            client.create_topic(topic, schema)
        with client.producer("orders", mint_tokens=True) as producer:
            for number in range(20):
                producer.send({"order_id": number, "customer": ("ann", "bob")[number % 2], "amount": 10})
        shipping = Shipping(client, lost_answer=7)
        by_consumer(client, shipping)
        tell(client, shipping, "1. from a consumer")

        with client.producer("orders", mint_tokens=True) as producer:
            for number in range(20, 30):
                producer.send({"order_id": number, "customer": ("ann", "bob")[number % 2], "amount": 10})
        spark = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()
        by_foreach_batch(spark, client, shipping, folder)  # which knows nothing of the consumer, and reads all orders
        tell(client, shipping, "2. from foreachBatch, all orders again and ten more")
        [tokens] = client.tokens("orders").stats()
        print(f"tokens in flight {tokens.in_flight}")
        spark.stop()
