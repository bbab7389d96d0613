"""Every way to come to ``format("ledger")`` on one machine: an installed wheel, SQL, Connect, foreachBatch. A cluster,
and --py-files there: test_cluster.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pyspark_ledger import LedgerClient
from pyspark_ledger.local.zookeeper import _free_ports
from tests.support import REPOSITORY
from tests.support.jobs import PACKAGE, ROUND_TRIP, new_venv, result, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# -- the package itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pyspark_ledger", "pyspark_ledger.DefaultSource"])
def test_what_every_spark_session_imports_loads_neither_arrow_nor_kazoo(name: str, tmp_path: Path) -> None:
    script = f"import json, sys, pyspark_ledger; {name}; print(json.dumps(sorted(sys.modules)))"
    loaded = set(result([sys.executable, "-c", script], tmp_path))
    assert "pyspark_ledger" in loaded
    assert not loaded & {"pyarrow", "kazoo", "google.protobuf", "xxhash"}


@pytest.mark.parametrize("room", ["datasource", "zk_metadata"])
def test_the_two_rooms_are_linked_at_the_top(room: str) -> None:
    assert (REPOSITORY / room).is_symlink()
    assert (REPOSITORY / room).resolve() == PACKAGE / room


# -- a wheel -----------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_an_installed_wheel_is_found_without_registration(
    namespace: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    python = new_venv(tmp_path_factory.mktemp("wheel"))
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], REPOSITORY)
    (wheel,) = tmp_path.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], tmp_path)

    script = ROUND_TRIP + (
        "import pyspark_ledger\n"
        "spark = session(SparkSession.builder.master('local[2]'))\n"
        "copied = round_trip(spark, *sys.argv[1:])\n"
        "print(json.dumps([pyspark_ledger.__file__, copied]))\n"
    )
    imported_from, copied = result([str(python), "-c", script, namespace, str(tmp_path)], tmp_path, python)
    assert Path(imported_from).is_relative_to(python.parent.parent)
    assert copied == list(range(100))


# -- SQL ---------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_sql_reads_and_writes_through_a_temporary_view(spark: SparkSession, namespace: str, storage_root: str) -> None:
    def show_orders() -> None:
        # Spark plans a view's read once, at its first query: to see what came later, make the view anew.
        where = f"topic 'orders', zookeeper '{namespace}'"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING ledger OPTIONS ({where})")

    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", pa.schema([("order_id", pa.int64()), ("item", pa.string())]))
        show_orders()
        spark.sql("INSERT INTO orders VALUES (1, 'apple'), (2, 'pear')")
        spark.sql("INSERT INTO orders SELECT order_id + 10, upper(item) FROM orders WHERE item = 'pear'")
        show_orders()
        rows = spark.sql("SELECT order_id, item FROM orders WHERE order_id > 1 ORDER BY order_id").collect()
        assert [tuple(row) for row in rows] == [(2, "pear"), (12, "PEAR")]
        assert sorted(record["order_id"] for record in client.reader("orders", end="latest")) == [1, 2, 12]


@pytest.mark.spark
def test_sql_without_a_topic_is_shown_the_view_statement(
    spark: SparkSession, namespace: str, storage_root: str
) -> None:
    hint = r"(?s)\[LEDGER_NO_TOPIC\].*CREATE TEMPORARY VIEW orders USING ledger OPTIONS \(topic 'orders'"
    with pytest.raises(Exception, match=hint):
        spark.sql(f"CREATE TEMPORARY VIEW nameless USING ledger OPTIONS (zookeeper '{namespace}')")

    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", pa.schema([("order_id", pa.int64())]))
    spark.sql(f"CREATE TABLE forgetful USING ledger OPTIONS (topic 'orders', zookeeper '{namespace}')")
    try:
        with pytest.raises(Exception, match=hint):
            spark.sql("SELECT * FROM forgetful").collect()
    finally:
        spark.sql("DROP TABLE forgetful")


# -- Connect -----------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_connect(namespace: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    # Spark would take port 15002, and no other if somebody else on this machine has that one.
    script = ROUND_TRIP + (
        "from pyspark.sql.connect.client.core import DefaultChannelBuilder\n"
        "*where, port = sys.argv[1:]\n"
        "DefaultChannelBuilder.default_port = staticmethod(lambda: int(port))\n"
        "builder = SparkSession.builder.remote('local[2]').config('spark.connect.grpc.binding.port', port)\n"
        "spark = session(builder.config('spark.connect.grpc.binding.address', '127.0.0.1'))\n"
        "print(json.dumps([type(spark).__module__, round_trip(spark, *where)]))\n"
        "spark.stop()\n"
    )
    (port,) = _free_ports(1)
    kind, copied = result([sys.executable, "-c", script, namespace, str(tmp_path), str(port)], tmp_path)
    assert kind == "pyspark.sql.connect.session"
    assert copied == list(range(100))


# -- foreachBatch ------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_foreach_batch_is_exactly_once_when_a_batch_is_replayed(
    spark: SparkSession, namespace: str, storage_root: str, tmp_path: Path
) -> None:
    where = {"zookeeper": namespace, "storage": storage_root}
    checkpoint = tmp_path / "checkpoint"
    brought: list[int] = []

    def feed(first: int, last: int) -> None:
        spark.range(first, last).coalesce(1).write.format("ledger").mode("append").options(**where).save("numbers")

    def copy(frame: DataFrame, batch: int) -> None:
        brought.append(batch)
        once = {"producerName": "copier", "sequenceId": str(batch)}
        frame.write.format("ledger").mode("append").options(**where, **once).save("copies")

    def run_to_the_end() -> None:
        stream = spark.readStream.format("ledger").options(**where, maxRowsPerTrigger=100).load("numbers")
        sink = stream.writeStream.foreachBatch(copy).option("checkpointLocation", str(checkpoint))
        sink.trigger(availableNow=True).start().awaitTermination()

    feed(0, 250)
    run_to_the_end()
    for file in (checkpoint / "commits").glob("*2*"):  # as if the driver had died before it could note batch 2
        file.unlink()
    feed(250, 300)
    run_to_the_end()

    assert brought == [0, 1, 2, 2, 3]
    copied = spark.read.format("ledger").options(**where).load("copies").collect()
    assert [row.id for row in copied] == list(range(300))
