"""Every way to come to ``format("ledger")`` on one machine: an installed wheel, Connect, foreachBatch. A cluster, and
--py-files there: test_cluster.py; SQL: test_sql.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
        "copied = round_trip(spark, *where)\n"
        # Errors, and threads.
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from pyspark_ledger import activate\n"
        "from pyspark_ledger.spark import error\n"
        "def told(act, *args, **options):\n"
        "    try:\n"
        "        act(*args, zookeeper=where[0], **options)\n"
        "    except Exception as raised:\n"
        "        found = error(raised)\n"
        "        return [found.code, found.kind.__name__, str(raised).find(str(found))]\n"
        "stream = spark.readStream.format('ledger').option('zookeeper', where[0]).load('numbers')\n"
        "text = stream.selectExpr('string(id) id')\n"
        "with ThreadPoolExecutor(initializer=activate, initargs=(spark,)) as pool:\n"
        "    read = pool.submit(told, read, spark, 'nmbers').result()\n"
        "    wrote = pool.submit(told, copy, text, 'copies', f'{where[1]}/other').result()\n"
        # Columns and lag, which look at plans and progress.
        "from pyspark_ledger.spark import lag, read as narrow\n"
        "narrowed = narrow('numbers', spark=spark, zookeeper=where[0], includeMetadata='ordinal').select('ID')\n"
        "query = stream.writeStream.format('noop').option('checkpointLocation', f'{where[1]}/noop')\n"
        "query = query.trigger(availableNow=True).start()\n"
        "query.awaitTermination()\n"
        "behind = [[each.topic, each.read, each.records] for each in lag(query).topics]\n"
        "print(json.dumps([type(spark).__module__, copied, narrowed.count(), behind, read, wrote]))\n"
        "spark.stop()\n"
    )
    (port,) = _free_ports(1)
    kind, copied, narrowed, behind, *told = result(
        [sys.executable, "-c", script, namespace, str(tmp_path), str(port)], tmp_path
    )
    assert kind == "pyspark.sql.connect.session"
    assert copied == list(range(100))
    assert (narrowed, behind) == (100, [["numbers", 100, 0]])
    assert [error[:2] for error in told] == [
        ["LEDGER_TOPIC_NOT_FOUND", "NotFound"],
        ["LEDGER_SCHEMA_MISMATCH", "InvalidInput"],
    ]
    assert all(0 < place < 300 for *_, place in told)  # near the top of a hundred lines


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
