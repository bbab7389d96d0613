"""The sink in token mode, on real Spark and a real ZooKeeper: one invoice for each order, whatever happens (I11)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException

from pyspark_ledger.client import LedgerClient, namespace_of

pytestmark = pytest.mark.spark


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with LedgerClient(namespace, storage_root) as client:
        _ = namespace_of(client).storage
        yield client


def order(spark, client: LedgerClient, first: int, count: int, **options) -> None:
    rows = spark.range(first, first + count, numPartitions=3).selectExpr("id AS order_id", "id * 1.5 AS amount")
    where = {"zookeeper": client.zookeeper, "mintTokens": "true", **options}
    rows.write.format("ledger").mode("append").options(**where).save("orders")


def orders(spark, client: LedgerClient, *, stream: bool = True, **options):
    reader = spark.readStream if stream else spark.read
    where = {"zookeeper": client.zookeeper, "includeMetadata": "true", **options}
    return reader.format("ledger").options(**where).load("orders").select("order_id", "amount", "_metadata.token")


def invoice(frame, client: LedgerClient, checkpoint):
    writer = frame.writeStream.format("ledger").option("zookeeper", client.zookeeper).trigger(availableNow=True)
    writer = writer.option("deduplication", "token").option("tokenColumn", "token")
    return writer.option("checkpointLocation", str(checkpoint)).start("invoices")


def invoiced(client: LedgerClient) -> list[int]:
    return [record["order_id"] for record in client.reader("invoices", end="latest")]


def test_one_invoice_per_order_over_a_lost_checkpoint_a_rewound_cursor_and_two_copies_of_the_job_I11(
    spark, client, tmp_path
):
    for first in range(0, 600, 100):
        order(spark, client, first, 100)
    few = orders(spark, client, subscription="billing", maxRowsPerTrigger="70", endingOffsets="0:9:0")
    invoice(few, client, tmp_path / "one").awaitTermination()
    assert invoiced(client) == list(range(300)), "in order"

    shutil.rmtree(tmp_path / "one")
    client.cursor("orders", "billing").reset("earliest")
    again = invoice(orders(spark, client, subscription="billing", maxRowsPerTrigger="90"), client, tmp_path / "one")
    copy = invoice(orders(spark, client, maxRowsPerTrigger="130"), client, tmp_path / "two")
    again.awaitTermination()
    copy.awaitTermination()
    assert sorted(invoiced(client)) == list(range(600))

    client.cursor("orders", "billing").reset("earliest")
    invoice(orders(spark, client, subscription="billing"), client, tmp_path / "one").awaitTermination()
    assert sorted(invoiced(client)) == list(range(600))
    [stats] = client.tokens("orders").stats()
    assert (stats.group, stats.in_flight, stats.consumed, stats.nodes) == ("invoices", 0, 600, 1)


def test_upstream_replayed_under_its_own_tokens_too_is_invoiced_once_I11(spark, client, tmp_path):
    """Orders themselves come from outside with minted tokens, and are written twice."""
    client.create_topic("orders", orders_schema())
    tokens = client.tokens("orders").mint(50)
    incoming = spark.createDataFrame([(n, n * 1.5, token) for n, token in enumerate(tokens)],
                                     "order_id long, amount double, token string")  # fmt: skip
    for _ in range(2):
        order_with_tokens(incoming.repartition(4), client)
    for run in ("one", "two"):
        invoice(orders(spark, client), client, tmp_path / run).awaitTermination()
    assert sorted(invoiced(client)) == list(range(50))
    assert {stats.group: stats.in_flight for stats in client.tokens("orders").stats()} == {"orders": 50, "invoices": 0}


def orders_schema():
    import pyarrow as pa

    return pa.schema([("order_id", pa.int64()), ("amount", pa.float64())])


def order_with_tokens(frame, client: LedgerClient) -> None:
    options = {"zookeeper": client.zookeeper, "deduplication": "token", "tokenColumn": "token", "mintTokens": "true"}
    frame.write.format("ledger").mode("append").options(**options).save("orders")


def test_the_token_is_the_right_to_write_and_no_column_of_the_topic(spark, client):
    order(spark, client, 0, 10)
    write(orders(spark, client, stream=False), client)
    assert namespace_of(client).log("invoices").schema(0).names == ["order_id", "amount"]
    write(orders(spark, client, stream=False).orderBy("order_id", ascending=False), client, tokenGroup="again")
    assert invoiced(client) == [*range(10), *range(9, -1, -1)]


def test_one_order_with_several_lines_needs_fan_out(spark, client):
    order(spark, client, 0, 5)
    lines = orders(spark, client, stream=False).selectExpr("order_id", "explode(array(1, 2, 3)) AS line", "token")
    write(lines, client, tokenGroup="first")
    assert sorted(invoiced(client)) == [0, 1, 2, 3, 4]
    for _ in range(2):
        write(lines, client, tokenGroup="all", tokenFanOut="true")
    assert sorted(invoiced(client)) == sorted([0, 1, 2, 3, 4] * 4)


def write(frame, client: LedgerClient, **options) -> None:
    where = {"zookeeper": client.zookeeper, "deduplication": "token", "tokenColumn": "token", **options}
    frame.write.format("ledger").mode("append").options(**where).save("invoices")


@pytest.mark.parametrize(
    ("token", "words"),
    [("'nonsense'", r"LEDGER_INVALID_TOKEN.*row 3 .*'nonsense'"), ("NULL", r"LEDGER_NO_TOKEN.*row 3 .*mintTokens")],
)
def test_a_record_without_a_real_token_is_an_error_that_names_the_row(spark, client, token, words):
    order(spark, client, 0, 5)
    frame = orders(spark, client, stream=False).coalesce(1)
    frame = frame.selectExpr("order_id", f"if(order_id = 3, {token}, token) AS token")
    with pytest.raises(PySparkException, match=words):
        write(frame, client)
    assert client.end("invoices").entry == 0


@pytest.mark.parametrize(
    ("expressions", "words"),
    [
        (["order_id"], "tokenColumn 'token' is not a column: order_id"),
        (["order_id", "order_id AS token"], "tokenColumn 'token' has numbers: name the topic .* option 'tokenTopic'"),
        (["token"], "needs at least one column besides its token"),
    ],
)
def test_a_token_column_that_does_not_fit_is_found_before_anything_is_written(spark, client, expressions, words):
    order(spark, client, 0, 5)
    with pytest.raises(PySparkException, match=words):
        write(orders(spark, client, stream=False).selectExpr(*expressions), client)
    assert client.topics() == ["orders"]


def numbered(spark, client: LedgerClient, *, stream: bool = True, fields: str = "tokenNumber", **options):
    reader = spark.readStream if stream else spark.read
    where = {"zookeeper": client.zookeeper, "includeMetadata": fields, **options}
    return reader.format("ledger").options(**where).load("orders").selectExpr("*", "_metadata.tokenNumber AS token")


def test_numbers_are_the_same_tokens_over_a_new_checkpoint_and_mixed_with_text_I11(spark, client, tmp_path):
    for first in range(0, 300, 100):
        order(spark, client, first, 100, mintTokens=str(first != 100).lower())
    every = numbered(spark, client, stream=False, fields="ordinal, tokenNumber")
    assert every.schema["_metadata"].dataType.simpleString() == "struct<tokenNumber:bigint,ordinal:bigint>"
    ordinals = every.selectExpr("_metadata.ordinal", "order_id", "token IS NULL").collect()
    assert [tuple(row) for row in ordinals] == [(n, n, 100 <= n < 200) for n in range(300)]

    few = numbered(spark, client, maxRowsPerTrigger="180").where("token IS NOT NULL AND order_id < 250")
    for checkpoint in ("one", "two"):  # the second time as if the checkpoint was lost
        by_number(few.drop("_metadata"), client, tmp_path / checkpoint).awaitTermination()
        assert invoiced(client) == [*range(100), *range(200, 250)], "in order"
    left = orders(spark, client).where("token IS NOT NULL")
    invoice(left, client, tmp_path / "text").awaitTermination()
    assert invoiced(client) == [*range(100), *range(200, 300)]
    [stats] = client.tokens("orders").stats()
    assert (stats.in_flight, stats.consumed, stats.nodes) == (0, 200, 1)


def by_number(frame, client: LedgerClient, checkpoint):
    writer = frame.writeStream.format("ledger").option("zookeeper", client.zookeeper).trigger(availableNow=True)
    writer = writer.option("deduplication", "token").option("tokenColumn", "token").option("tokenTopic", "orders")
    return writer.option("checkpointLocation", str(checkpoint)).start("invoices")


def test_numbers_that_cannot_be_tokens_are_errors_by_name_and_nothing_is_written(spark, client):
    order(spark, client, 0, 5)
    frame = numbered(spark, client, stream=False).drop("_metadata").coalesce(1)
    for options, column, words in (
        ({"tokenTopic": "orders"}, "string(token)", "has text, .* leave option 'tokenTopic' out"),
        ({"tokenTopic": "nobody"}, "token", r"LEDGER_TOPIC_NOT_FOUND.*option 'tokenTopic' is 'nobody'"),
    ):
        with pytest.raises(PySparkException, match=words):
            write(frame.selectExpr("order_id", f"{column} AS token"), client, **options)
    assert client.topics() == ["orders"]
    for wrong, words in (
        ("order_id", r"LEDGER_INVALID_TOKEN.*row 3 .*number 3 is no token of topic 'orders'"),
        ("NULL", r"LEDGER_NO_TOKEN.*row 3"),
        ("token + 2", r"LEDGER_INVALID_TOKEN.*number \d+ is no token of topic 'orders'"),
    ):
        bad = frame.selectExpr("order_id", f"if(order_id = 3, {wrong}, token) AS token")
        with pytest.raises(PySparkException, match=words):
            write(bad, client, tokenTopic="orders")
    assert client.end("invoices").entry == 0


def test_after_a_million_records_one_short_node_is_left_I13(spark, client):
    order(spark, client, 0, 1_000_000)
    frame = orders(spark, client, stream=False)
    write(frame.where("order_id % 2 = 0"), client)
    [half] = client.tokens("orders").stats()
    assert (half.in_flight, half.consumed) == (500_000, 500_000)
    assert half.nodes <= 3
    write(frame.repartition(3), client)  # in another order
    [stats] = client.tokens("orders").stats()
    assert (stats.in_flight, stats.consumed, stats.nodes) == (0, 1_000_000, 1)
    assert stats.bytes < 1_000
    assert namespace_of(client).log("invoices").view().head.records == 1_000_000
