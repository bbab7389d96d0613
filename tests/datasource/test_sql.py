"""SQL: temporary views, catalog tables whose statements name the topic, and what is said where Spark loses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pyspark_ledger import LedgerClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def client(namespace: str, storage_root: str) -> Iterator[LedgerClient]:
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", pa.schema([("order_id", pa.int64()), ("item", pa.string())]))
        yield client


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[None]:
    """The catalog is the session's, so it is left as it was."""
    yield
    for kind, name in (("VIEW", "of_a_catalog"), ("TABLE", "t"), ("TABLE", "ids")):
        spark.sql(f"DROP {kind} IF EXISTS {name}")


def stored(client: LedgerClient) -> list[int]:
    return sorted(record["order_id"] for record in client.reader("orders", end="latest"))


def test_sql_reads_and_writes_through_a_temporary_view(spark: SparkSession, client: LedgerClient) -> None:
    def show_orders() -> None:
        # Spark plans a view's read once, at its first query: to see what came later, make the view anew.
        where = f"topic 'orders', zookeeper '{client.zookeeper}'"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING ledger OPTIONS ({where})")

    show_orders()
    spark.sql("INSERT INTO orders VALUES (1, 'apple'), (2, 'pear')")
    spark.sql("INSERT INTO orders SELECT order_id + 10, upper(item) FROM orders WHERE item = 'pear'")
    show_orders()
    rows = spark.sql("SELECT order_id, item FROM orders WHERE order_id > 1 ORDER BY order_id").collect()
    assert [tuple(row) for row in rows] == [(2, "pear"), (12, "PEAR")]
    assert stored(client) == [1, 2, 12]


@pytest.mark.usefixtures("tables")
def test_statements_on_a_catalog_table_name_the_topic_and_see_what_came_since(
    spark: SparkSession, client: LedgerClient
) -> None:
    topic = f"'topic'='orders', 'zookeeper'='{client.zookeeper}'"

    def numbers(statement: str) -> list[int]:
        return sorted(row[0] for row in spark.sql(statement).collect())

    spark.sql(f"CREATE TABLE t USING ledger OPTIONS ({topic})")  # for its columns
    spark.sql(f"INSERT INTO t WITH ({topic}) VALUES (1, 'apple'), (2, 'pear')")
    for _ in range(2):  # written once: this producer has brought this id before
        spark.sql(f"INSERT INTO t WITH ({topic}, 'producerName'='shop', 'sequenceId'='7') VALUES (3, 'fig')")
    assert numbers(f"SELECT order_id FROM t WITH ({topic})") == stored(client) == [1, 2, 3]

    # A view of such a statement is kept in the catalog, and needs no options.
    spark.sql(f"CREATE VIEW of_a_catalog AS SELECT * FROM t WITH ({topic})")
    spark.sql(f"INSERT INTO t WITH ({topic}) SELECT order_id + 10, item FROM of_a_catalog WHERE order_id = 3")
    assert numbers("SELECT order_id FROM of_a_catalog") == [1, 2, 3, 13]

    stream = spark.sql(f"SELECT order_id FROM STREAM t WITH ({topic})")
    query = stream.writeStream.format("memory").queryName("streamed").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert numbers("SELECT order_id FROM streamed") == [1, 2, 3, 13]

    spark.sql("CREATE TABLE ids (order_id BIGINT) USING ledger")  # or columns of one's own: only these are read
    assert numbers(f"SELECT * FROM ids WITH ({topic}) WHERE order_id < 3") == [1, 2]


@pytest.mark.usefixtures("tables")
def test_a_statement_without_a_topic_is_shown_those_that_work(spark: SparkSession, client: LedgerClient) -> None:
    def said(statement: str) -> str:
        with pytest.raises(Exception, match=r"\[LEDGER_NO_TOPIC\]") as failed:
            spark.sql(statement).collect()
        return str(failed.value)

    options = f"topic 'orders', zookeeper '{client.zookeeper}'"
    view = "CREATE TEMPORARY VIEW orders USING ledger OPTIONS (topic 'orders', zookeeper"
    assert view in said(f"CREATE TEMPORARY VIEW nameless USING ledger OPTIONS (zookeeper '{client.zookeeper}')")
    assert "CREATE TABLE t (order_id BIGINT) USING ledger" in said("CREATE TABLE t USING ledger")

    spark.sql(f"CREATE TABLE t USING ledger OPTIONS ({options})")
    for statement in ("SELECT * FROM t", "INSERT INTO t VALUES (1, 'apple')"):
        told = said(statement)
        assert "loses its OPTIONS, TBLPROPERTIES and LOCATION" in told
        assert "FROM t WITH ('topic'='orders'" in told
        assert view in told
    assert stored(client) == []
