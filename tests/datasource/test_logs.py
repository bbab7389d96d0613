"""Log lines of Spark's own Python processes: which ones, in which form, and where they come out."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from pyspark_ledger.client import LedgerClient
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.datasource import LedgerDataSource, logs
from pyspark_ledger.datasource.logs import LogSettings
from pyspark_ledger.datasource.options import ReadOptions, WriteOptions
from pyspark_ledger.errors import Fenced, InvalidInput
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.zk_metadata import session
from tests.support import REPOSITORY
from tests.support.query import WorldQuery, add, eventually
from tests.support.said import said
from tests.support.stderr import SparksStderr
from tests.support.worlds import SCHEMA, World, append

# A process as Spark starts them, with what the driver has asked for.
IN_SPARK = """
import logging, os, sys
if {spark}:
    os.environ["PYTHON_WORKER_FACTORY_PORT"] = "1"
{before}
from pyspark_ledger.datasource.logs import LogSettings
for level, form in {settings}:
    LogSettings(level, form).apply()
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger("pyspark_ledger.log.seal").log(level, "line %d", level)
        logging.getLogger("pyspark_ledger.zk_metadata.session.kazoo").log(level, "kazoo %d", level)
"""


def stderr(*settings: tuple[str, str], spark: bool = True, before: str = "") -> list[str]:
    program = IN_SPARK.format(settings=list(settings), spark=spark, before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout == ""
    return done.stderr.splitlines()


# -- which lines, and how -----------------------------------------------------------------------------------------


def test_the_level_decides_and_the_last_one_who_asks_wins():
    found = stderr(("warning", "text"), ("info", "text"), ("off", "text"), ("debug", "json"))
    text, parsed = found[:7], [json.loads(line) for line in found[7:]]
    assert [re.sub(r"^[\d-]+ [\d:,]+ |pyspark_ledger\.| \d+(?=])", "", line) for line in text] == [
        "WARNING log.seal [python] line 30",
        "ERROR log.seal [python] line 40",
        "ERROR zk_metadata.session.kazoo [python] kazoo 40",  # its warnings are of every try to connect
        "INFO log.seal [python] line 20",
        "WARNING log.seal [python] line 30",
        "ERROR log.seal [python] line 40",
        "ERROR zk_metadata.session.kazoo [python] kazoo 40",
    ]
    assert [line["message"] for line in parsed] == [
        f"{who} {level}" for level in (10, 20, 30, 40) for who in ("line", "kazoo")
    ]
    assert parsed[0].keys() == {"time", "level", "logger", "process", "pid", "message"}


def test_what_the_user_has_configured_is_left_alone():
    assert stderr(("debug", "text"), spark=False) == []  # the user's own program
    own = stderr(("info", "text"), before='logging.basicConfig(format="mine %(message)s")')
    assert own == ["mine line 20", "mine line 30", "mine line 40", "mine kazoo 40"]


def test_the_options_count_before_the_environment_which_the_driver_hands_on(monkeypatch):
    def of(**options: str) -> LogSettings:
        read, write = (kind.parse({"topic": "t", **options}).logs for kind in (ReadOptions, WriteOptions))
        assert read == write
        return read

    assert of() == LogSettings("warning", "text")
    monkeypatch.setenv("LEDGER_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("LEDGER_LOG_FORMAT", "json")
    assert of() == LogSettings("debug", "json")
    assert of(loglevel="Info", logFormat="TEXT") == LogSettings("info", "text")

    reader = LedgerDataSource({"topic": "t"}).streamReader(None)
    monkeypatch.delenv("LEDGER_LOG_LEVEL")  # on an executor
    assert pickle.loads(pickle.dumps(reader))._logs == LogSettings("debug", "json")

    with pytest.raises(
        InvalidInput, match=r"LEDGER_INVALID_OPTION.*option 'logLevel' is 'loud': it must be one of debug"
    ):
        of(logLevel="loud")
    monkeypatch.setenv("LEDGER_LOG_FORMAT", "xml")
    with pytest.raises(InvalidInput, match="variable LEDGER_LOG_FORMAT is 'xml': it must be one of text, json"):
        of()


def test_kazoos_logger_is_the_one_that_is_kept_quiet():
    assert f"{session.__name__}.kazoo" == logs._CHATTY


# -- warnings that are there without being asked for --------------------------------------------------------------


def test_a_batch_that_a_source_reads_again_is_a_warning(tmp_path, caplog):
    world = World(tmp_path / "storage")
    append(world.log(), 1, 2)
    query = WorldQuery(world)
    start, end = query.plan()
    assert query.read(start, end) == [1, 2]
    assert said(caplog) == []
    again = WorldQuery(world, offset=end)  # with the checkpoint of one that did not finish
    for _ in range(2):
        assert again.read(start, end) == [1, 2]
    assert said(caplog) == [
        "topic=t: the batch that ends at 0:1:0 was not finished when the query ended, and is read again"
    ]


def test_a_query_whose_subscription_was_taken_over_is_a_warning(tmp_path, caplog):
    world = World(tmp_path / "storage")
    query = WorldQuery(world, subscription="s")
    query.batch()
    CursorNode(world.log(), "s").update(lambda cursor: replace(cursor, owner=b"another", epoch=cursor.epoch + 1))
    with pytest.raises(Fenced):
        query.batch()
    (warning,) = said(caplog)
    assert warning.startswith("fenced: [LEDGER_SUBSCRIPTION_FENCED] subscription 's' of topic 't' was taken over by")


# -- on Spark -----------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_lines_of_every_process_of_spark_reach_its_stderr_once(spark, namespace, storage_root, tmp_path):
    where = {"zookeeper": namespace, "logLevel": "info"}
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("a", SCHEMA)
        with client.producer("a") as producer:
            producer.send({"n": 1})  # by this program, which is not Spark's
    stderr = SparksStderr(spark)
    try:
        spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")  # Spark's own capture, into a table
        assert spark.read.format("ledger").options(**where, logFormat="json").load("a").count() == 1
        captured = [row["msg"] for row in spark.tvf.python_worker_logs().collect() if "planned" in row["msg"]]
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
        copied = spark.readStream.format("ledger").options(**where).load("a").writeStream.format("ledger")
        copied = copied.options(**where).option("checkpointLocation", str(tmp_path / "checkpoint"))
        copied.trigger(availableNow=True).start("b").awaitTermination()

        eventually(lambda: any("[sink " in line for line in stderr.lines()))
        planner, task = (json.loads(line[line.index("{") :]) for line in stderr.lines() if '{"time"' in line)
        assert (planner["process"], [planner["message"]]) == ("planner", captured)
        assert (task["process"], task["message"]) == ("task", "read topic=a slices=1 records=1")
        text = [line for line in stderr.lines() if '{"time"' not in line]
        assert [re.search(r"\[(\w+) \d+] (\w+)", line).groups() for line in text] == [
            ("stream", "planned"),
            ("task", "read"),
            ("task", "staged"),
            ("sink", "committed"),
        ]
    finally:
        stderr.close()


@pytest.mark.spark
def test_warnings_come_without_being_asked_for(spark, storage_root, tmp_path):
    with LocalZooKeeper(fsync=False) as server, LedgerClient(f"{server.address}/ns", storage_root) as client:
        client.create_topic("a", SCHEMA)
        add(client, 1, topic="a")

        def start():
            copied = spark.readStream.format("ledger").option("zookeeper", client.zookeeper).load("a").writeStream
            copied = copied.format("ledger").option("zookeeper", client.zookeeper)
            return copied.option("checkpointLocation", str(tmp_path / "checkpoint")).start("b")

        def told(words: str) -> bool:
            return any(re.search(rf" WARNING pyspark_ledger\..*{words}", line) for line in stderr.lines())

        stderr = SparksStderr(spark)
        query = start()
        try:
            query.processAllAvailable()
            assert stderr.lines() == []
            server.kill()
            eventually(lambda: told(r"\[stream \d+] ZooKeeper at .* does not answer"), 60)
            server.restart()
            eventually(lambda: told(r"\[stream \d+] ZooKeeper at .* answers again after [\d.]+ s, "), 60)
            add(client, 2, topic="a")
            query.processAllAvailable()
            query.stop()

            (tmp_path / "checkpoint" / "commits" / "1").unlink()  # as if the query had died before it was written
            (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
            query = start()
            query.processAllAvailable()
            eventually(lambda: told(r"\[stream \d+] topic=a: the batch that ends at .* is read again"))
            eventually(lambda: told(r"\[sink \d+] topic 'b': batch 1 of .* is a replay"))
            assert [record["n"] for record in client.reader("b", end="latest")] == [1, 2]
        finally:
            query.stop()
            stderr.close()
