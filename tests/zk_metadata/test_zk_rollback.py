"""A real ZooKeeper is restored from a backup while processes that have seen its later state live on (I18)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pyarrow as pa
import pytest

from pyspark_ledger import LedgerClient
from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.client import namespace_of, shared_namespace
from pyspark_ledger.errors import DataLoss, Unavailable
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.log import snapshots
from tests.support.query import eventually
from tests.support.zookeeper import Backups

SCHEMA = pa.schema([pa.field("n", pa.int64())])


def write(producer: Producer, *numbers: int) -> None:
    for number in numbers:
        producer.send({"n": number})
        producer.flush()


def read(client: LedgerClient) -> list[int]:
    return [record["n"] for record in client.reader("t", end="latest")]


def test_a_survivor_is_let_in_late_and_told_what_is_lost_and_a_repair_lets_everybody_go_on(tmp_path):
    data, storage = tmp_path / "zookeeper", str(tmp_path / "storage")
    with LocalZooKeeper(data_dir=data, fsync=False) as server:
        backups = Backups(server, data, tmp_path / "backup")
        with LedgerClient(server.address, storage) as survivor:
            survivor.create_topic("t", SCHEMA)
            old = survivor.producer("t")
            write(old, 1)
            backups.take()
            eventually(lambda: _is_let_in(survivor))
            write(old, 2, 3, 4)
            backups.restore()

            # The server is behind what this process has seen, and so refuses it: the error says so.
            with (
                impatient(survivor),
                pytest.raises(Unavailable, match=r"rolled back to a state that is older than what this process has"),
            ):
                survivor.end("t")
            # Another spelling is another connection: as a process that was started after the rollback.
            with LedgerClient(server.address.replace("127.0.0.1", "localhost")) as newcomer:
                new = newcomer.producer("t")
                assert read(newcomer) == [1]
                write(new, *range(10, 40))
                eventually(lambda: _is_let_in(survivor))
                with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*commits were lost"):
                    write(old, 50)
                with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*topics repair t"):
                    write(new, 51)
                assert read(newcomer) == [1, *range(10, 40)]
                assert newcomer.accept_loss("t").records == 31
                new.flush()
                old.flush()
                assert read(newcomer) == read(survivor) == [1, *range(10, 40), 51, 50]


@contextmanager
def impatient(client: LedgerClient) -> Iterator[None]:
    """While it waits for what is not to come."""
    metadata = namespace_of(client).metadata
    patience_s, metadata._timeout_s = metadata._timeout_s, 4.0
    try:
        yield
    finally:
        metadata._timeout_s = patience_s


def _is_let_in(client: LedgerClient, topics: int = 1) -> bool:
    try:
        with impatient(client):
            return len(client.topics()) == topics
    except Unavailable:
        return False


def test_what_storage_has_is_brought_back_and_a_survivor_goes_on_I1_I18(tmp_path):
    data, storage = tmp_path / "zookeeper", str(tmp_path / "storage")
    with LocalZooKeeper(data_dir=data, fsync=False) as server:
        backups = Backups(server, data, tmp_path / "backup")
        with LedgerClient(server.address, storage) as survivor:
            survivor.create_topic("t", SCHEMA)
            old = survivor.producer("t")
            write(old, 1)
            backups.take()
            eventually(lambda: _is_let_in(survivor))
            write(old, 2, 3, 4)
            snapshots.leave(namespace_of(survivor).log("t"))
            backups.restore()
            with LedgerClient(server.address.replace("127.0.0.1", "localhost")) as newcomer:
                assert newcomer.damage("t").later.records == 3
                newcomer.bring_back("t")
                assert read(newcomer) == [1, 2, 3, 4]
                for number in range(30):  # until the server is where the survivor has been
                    newcomer.create_topic(f"other-{number}", SCHEMA)
                eventually(lambda: _is_let_in(survivor, 31))
                write(old, 5)
                assert read(newcomer) == read(survivor) == [1, 2, 3, 4, 5]


def test_a_process_that_spark_keeps_is_let_in_at_once_I16(tmp_path):
    """Otherwise it is refused until the server has caught up, and with it every query that is started again."""
    data, storage = tmp_path / "zookeeper", str(tmp_path / "storage")
    with LocalZooKeeper(data_dir=data, fsync=False) as server:
        settings = Settings.of({"zookeeper": server.address, "storage": storage})
        before = shared_namespace(settings)
        before.create_topic("t", SCHEMA)
        assert shared_namespace(settings) is before
        Backups(server, data, tmp_path / "none").lose()
        with (
            closing(shared_namespace(settings)) as again,
            pytest.raises(DataLoss, match="LEDGER_NAMESPACE_LOST"),
        ):
            again.log("t")
