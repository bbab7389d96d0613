"""A pipeline of real Spark queries loses its ZooKeeper, or a part of what that knew, and goes on (I1, I5, I18)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ledger import LedgerClient
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.cli import main
from pyspark_ledger.client import namespace_of
from pyspark_ledger.errors import DataLoss, LedgerError, Unavailable
from pyspark_ledger.lifecycle.backup import Backup
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from tests.support.query import eventually
from tests.support.zookeeper import Backups, nodes_of

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("n", pa.int64())])
IDS = {"sequenceColumn": "n", "producerName": "billing"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # reports go there
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)


class Shop:
    """Orders come from outside; queries of Spark make something of them."""

    def __init__(self, spark: SparkSession, server: LocalZooKeeper, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self.zookeeper, self.storage = f"{server.address}/shop", str(folder / "storage")

    def start_anew(self) -> None:
        """From now on everything is as in processes that were just started: another spelling is another connection."""
        self.zookeeper = self.zookeeper.replace("127.0.0.1", "localhost")

    def client(self, timeout_s: float = 30.0) -> LedgerClient:
        return LedgerClient(self.zookeeper, self.storage, timeout_s=timeout_s)

    def ingest(self, *numbers: int) -> None:
        """Orders with ids: those that are there already are not added again."""
        with self.client() as client, client.producer("orders", name="shop") as producer:
            for number in numbers:
                producer.send({"n": number}, sequence_id=number)

    def start(self, to: str, checkpoint: str, *, loss: str = "true", end: bool = True, **ids: str) -> StreamingQuery:
        """From orders to another topic; it ends when it has read everything, or runs on."""
        where = {"zookeeper": self.zookeeper, "storage": self.storage}
        orders = self._spark.readStream.format("ledger").options(**where, failOnDataLoss=loss).load("orders")
        sink = orders.writeStream.format("ledger").options(**where, **ids)
        sink = sink.trigger(availableNow=True) if end else sink.trigger(processingTime="0 seconds")
        return sink.option("checkpointLocation", str(self._folder / checkpoint)).start(to)

    def back_up(self) -> None:
        with self.client() as client:
            assert not Backup(namespace_of(client)).run(Pace(SYSTEM_CLOCK, lambda _: None)).failed

    def numbers(self, topic: str) -> list[int]:
        with self.client() as client:
            return [record["n"] for record in client.reader(topic, end="latest")]

    def files(self) -> set[Path]:
        return set(Path(self.storage).rglob("*.arrow"))

    def command(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, arguments, env={"LEDGER_ZOOKEEPER": self.zookeeper})


def run(query: StreamingQuery) -> None:
    assert query.awaitTermination(120)


def failure(act: Callable[[], Any]) -> str:
    """What a query's user is told."""
    with pytest.raises(PySparkException) as failed:
        act()
    return str(failed.value)


def test_zookeeper_is_deleted_under_a_running_pipeline_and_rebuilt_from_storage_I1_I5_I18(spark, tmp_path):
    data = tmp_path / "zookeeper"
    with LocalZooKeeper(data_dir=data, fsync=False) as server:
        shop = Shop(spark, server, tmp_path)
        with shop.client() as client:
            client.create_topic("orders", SCHEMA)
        shop.ingest(0, 1, 2)
        run(shop.start("bills", "bills-checkpoint", **IDS))
        run(shop.start("copies", "copies-checkpoint"))
        shop.ingest(3)
        shop.back_up()  # with order 3, which is neither billed nor copied yet
        running = [
            shop.start("bills", "bills-checkpoint", end=False, **IDS),
            shop.start("copies", "copies-checkpoint", end=False),
        ]
        shop.ingest(4, 5)
        for query in running:
            query.processAllAvailable()
        assert shop.numbers("bills") == shop.numbers("copies") == [0, 1, 2, 3, 4, 5]
        files = shop.files()
        Backups(server, data, tmp_path / "none").lose()

        # Whoever was running is refused by the server, and whoever comes then is told what has happened.
        for query in running:
            assert "rolled back to a state that is older" in failure(query.processAllAvailable)
        with pytest.raises(DataLoss, match=r"LEDGER_NAMESPACE_LOST.*namespace rebuild --storage"):
            shop.ingest(6)
        assert "LEDGER_NAMESPACE_LOST" in failure(lambda: run(shop.start("copies", "copies-checkpoint")))
        assert shop.files() == files

        done = shop.command("namespace", "rebuild", "--storage", shop.storage, "--yes", "--report", "report.json")
        assert done.exit_code == 0, done.output
        report = json.loads(Path("report.json").read_text())
        orders = {topic["topic"]: topic for topic in report["done"]["topics"]}["orders"]
        assert (orders["records"], orders["last_commit"]) == (4, 1)
        assert orders["last_publish"] < orders["saved"] == report["lost"]["commits_after"]["orders"]
        assert report["lost"]["files_that_nothing_names"]["orders"] == 1
        assert shop.files() >= files
        for topic, left in {"orders": [0, 1, 2, 3], "bills": [0, 1, 2], "copies": [0, 1, 2]}.items():
            assert shop.numbers(topic) == left

        # Both queries have seen an order that is lost, and say so.
        for to, ids in {"bills": IDS, "copies": {}}.items():
            query = shop.start(to, f"{to}-checkpoint", **ids)
            assert "[LEDGER_SET_BACK] topic 'orders': it had a commit 2 that it" in failure(query.awaitTermination)
        # With ids everything is run again from the start: it adds what is missing, and nothing twice.
        shop.ingest(*range(8))
        run(shop.start("bills", "another-checkpoint", **IDS))
        assert shop.numbers("orders") == shop.numbers("bills") == [0, 1, 2, 3, 4, 5, 6, 7]
        # Without, a query goes on after what its checkpoint has: its batch with order 3 is lost.
        run(shop.start("copies", "copies-checkpoint", loss="false"))
        assert shop.numbers("copies") == [0, 1, 2, 4, 5, 6, 7]


def test_whoever_lives_through_a_rollback_recognises_it_and_goes_on_when_it_is_repaired_I1_I5_I12_I18(spark, tmp_path):
    """A topic for each, so that nobody is told by another."""
    data, topics = tmp_path / "zookeeper", ("written", "read", "followed", "orders", "collected")
    with LocalZooKeeper(data_dir=data, fsync=False) as server:
        shop, backups = Shop(spark, server, tmp_path), Backups(server, data, tmp_path / "backup")
        with shop.client(timeout_s=4.0) as survivor:
            for topic in topics:
                survivor.create_topic(topic, SCHEMA)
            producers = {topic: survivor.producer(topic, name="shop") for topic in topics}

            def write(*numbers: int) -> None:
                for producer in producers.values():
                    for number in numbers:
                        producer.send({"n": number})
                    producer.flush()

            write(1, 2)
            reader = iter(survivor.reader("read"))
            consumer = survivor.consumer("followed", "billing")
            for _ in range(2):
                consumer.acknowledge(consumer.receive(30))
            consumer.flush()
            run(shop.start("bills", "checkpoint"))
            backups.take()
            eventually(lambda: is_let_in(survivor))
            write(3, 4)
            assert [next(reader)["n"] for _ in range(4)] == [1, 2, 3, 4]
            assert [consumer.receive(30)["n"] for _ in range(2)] == [3, 4]
            run(shop.start("bills", "checkpoint"))
            shop.back_up()
            files = shop.files()
            backups.restore()
            with nodes_of(server.address) as (busy, _):  # until the server is where the survivors have been
                busy.create("/other")
                for _ in range(500):
                    busy.set("/other", b"")
            eventually(lambda: is_let_in(survivor))

            producers["written"].send({"n": 5})
            assert code(producers["written"].flush) == "LEDGER_SET_BACK"
            assert code(lambda: next(reader)) == "LEDGER_SET_BACK"
            assert code(lambda: consumer.receive(30)) == "LEDGER_SET_BACK"
            assert code(lambda: survivor.gc("collected")) == "LEDGER_SET_BACK"
            shop.start_anew()
            assert "[LEDGER_SET_BACK] topic 'orders'" in failure(shop.start("bills", "checkpoint").awaitTermination)
            assert shop.files() >= files

            for topic in ("written", "read", "followed", "orders", "bills"):
                shown = shop.command("topics", "repair", topic)
                assert (shown.exit_code, "2 records of commits" in shown.stdout) == (1, True), shown.output
                done = shop.command("topics", "repair", topic, "--bring-back", "--yes", "--report", f"{topic}.json")
                assert done.exit_code == 0, done.output
            given_up = shop.command("topics", "repair", "collected", "--accept-loss", "--yes", "--json")
            row = json.loads(given_up.stdout)
            assert (row["records"], row["later"]["records"], row["lost_commits"] > 0) == (2, 2, True)

            producers["written"].flush()
            producers["orders"].send({"n": 5})
            producers["orders"].flush()
            run(shop.start("bills", "checkpoint"))
            for topic in ("written", "orders", "bills"):
                assert shop.numbers(topic) == [1, 2, 3, 4, 5]
            assert shop.numbers("read") == [1, 2, 3, 4]
            assert shop.numbers("collected") == [1, 2]
            assert not survivor.gc("collected").files
            assert code(consumer.close) == "LEDGER_SET_BACK"
            with survivor.consumer("followed", "billing") as another:
                assert [another.receive(30)["n"] for _ in range(2)] == [3, 4]


def is_let_in(client: LedgerClient) -> bool:
    try:
        return bool(client.topics())
    except Unavailable:
        return False


def code(act: Callable[[], Any]) -> str:
    with pytest.raises(LedgerError) as failed:
        act()
    return failed.value.code
