"""What the user of a sink is told when ZooKeeper or the storage fails: always a code, and soon."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_ledger.client import LedgerClient, open_namespace
from pyspark_ledger.datasource import LedgerDataSource
from pyspark_ledger.datasource.first_line import COMMIT_PROCESS
from pyspark_ledger.errors import Unavailable
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.zk_metadata import session
from pyspark_ledger.zk_metadata.trouble import REFUSED_S

SCHEMA = StructType([StructField("n", LongType())])
NOBODY = {"zookeeper": "127.0.0.1:1", "topic": "out"}


def test_an_abort_raises_nothing_when_zookeeper_is_away(monkeypatch):
    """Spark asks for a new writer to abort with. If that fails, Spark drops the error that the abort is for."""
    monkeypatch.setitem(sys.modules, COMMIT_PROCESS, sys)
    monkeypatch.setattr(session.Lease, "connection", lambda *_: pytest.fail("it waits for ZooKeeper"))
    LedgerDataSource(NOBODY).streamWriter(SCHEMA, overwrite=False).abort([], 0)


def test_a_commit_waits_for_a_zookeeper_that_is_restarted_after_the_plan_I16(monkeypatch):
    """The process that commits is another one than the one that planned: it has never been connected."""
    monkeypatch.setitem(sys.modules, COMMIT_PROCESS, sys)
    monkeypatch.setitem(open_namespace.__kwdefaults__, "timeout_s", REFUSED_S + 2)
    started = time.monotonic()
    with pytest.raises(Unavailable, match=r"\[LEDGER_UNAVAILABLE\] ZooKeeper at 127.0.0.1:1 does not answer"):
        LedgerDataSource(NOBODY).streamWriter(SCHEMA, overwrite=False).commit([], 0)
    assert time.monotonic() - started >= REFUSED_S + 2


def test_a_batch_is_not_begun_when_zookeeper_is_away():
    with pytest.raises(Unavailable, match=r"\[LEDGER_UNAVAILABLE\] nothing listens at 127.0.0.1:1"):
        LedgerDataSource(NOBODY).streamWriter(SCHEMA, overwrite=False)


class Stream:
    """A query that writes what lies in a folder to the topic "out"."""

    def __init__(self, spark, client: LedgerClient, folder: Path) -> None:
        self._spark, self._client, self._folder = spark, client, folder
        (folder / "input").mkdir()

    def feed(self, n: int) -> None:
        (self._folder / "input" / f"{n}.json").write_text(f'{{"n": {n}}}\n')

    def start(self, change=lambda n: n):
        frame = self._spark.readStream.schema(SCHEMA).json(str(self._folder / "input")).select(change(F.col("n")))
        writer = frame.toDF("n").writeStream.format("ledger").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        return writer.option("zookeeper", self._client.zookeeper).start("out")

    def error(self, query) -> str:
        with pytest.raises(Exception, match=r"."):
            query.awaitTermination(120)
        return str(query.exception())

    def written(self) -> list[int]:
        return [record["n"] for record in self._client.reader("out", end="latest")]


@pytest.mark.spark
def test_a_zookeeper_that_goes_away_before_the_commit_is_told_with_a_code_I16(spark, storage_root, tmp_path):
    with LocalZooKeeper(fsync=False) as server, LedgerClient(f"{server.address}/ns", storage_root) as client:
        stream = Stream(spark, client, tmp_path)
        stream.feed(0)
        client.create_topic("out", pa.schema([("n", pa.int64())]))
        began, gone = tmp_path / "began", tmp_path / "gone"

        @F.udf("long")
        def wait_until_it_is_gone(n):
            began.touch()
            while not gone.exists():
                time.sleep(0.05)
            return n

        query = stream.start(wait_until_it_is_gone)
        _eventually(began.exists)
        server.kill()
        gone.touch()
        assert "[LEDGER_UNAVAILABLE] " in stream.error(query)
        server.restart()
        stream.start().awaitTermination(120)
        assert stream.written() == [0]


@pytest.mark.spark
def test_a_disk_that_refuses_a_task_is_told_with_a_code_and_the_file_I16(spark, namespace, storage_root, tmp_path):
    with LedgerClient(namespace, storage_root) as client:
        stream = Stream(spark, client, tmp_path)
        stream.feed(0)
        topic = client.create_topic("out", pa.schema([("n", pa.int64())]))
        epoch = Path(storage_root) / topic.uuid / "00000000"
        epoch.parent.mkdir(parents=True, exist_ok=True)
        epoch.write_text("in the way")
        error = stream.error(stream.start())
        assert "[LEDGER_STORAGE_UNAVAILABLE] " in error
        assert str(epoch) in error
        epoch.unlink()
        stream.start().awaitTermination(120)
        assert stream.written() == [0]


def _eventually(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
