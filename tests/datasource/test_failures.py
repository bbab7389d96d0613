"""What Spark shows of an error of ours, of every kind and from every place, and how it is taken out of that."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from traceback import walk_tb
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pyspark_ledger import errors
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.datasource import LedgerDataSource
from pyspark_ledger.datasource.first_line import SOURCE_PROCESS, sentence_first
from pyspark_ledger.errors import (
    Conflict,
    CorruptData,
    CursorUnderRevision,
    DataLoss,
    Fenced,
    InvalidInput,
    LedgerError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from pyspark_ledger.spark import Failure, error
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBERS = pa.schema([("n", pa.int64())])


# -- through a real Spark ----------------------------------------------------------------------------------------


class Job:
    """Reads and writes topics of which some are not as they should be."""

    def __init__(self, spark: SparkSession, client: LedgerClient, folder) -> None:
        self._spark, self._client, self._folder = spark, client, folder
        self._zookeeper = client.zookeeper

    def load(self, topic: str, schema: str | None = None, **options: str) -> DataFrame:
        reader = self._spark.read.format("ledger").options(**{"zookeeper": self._zookeeper, **options})
        return (reader.schema(schema) if schema else reader).load(topic)

    def save(self, query: str, topic: str, **options: str) -> None:
        writer = self._spark.range(3).selectExpr(query).write.format("ledger").mode("append")
        writer.options(**{"zookeeper": self._zookeeper, **options}).save(topic)

    def stream(self, topic: str, schema: str | None = None, **options: str) -> DataFrame:
        reader = self._spark.readStream.format("ledger").options(zookeeper=self._zookeeper, **options)
        return (reader.schema(schema) if schema else reader).load(topic)

    def run(self, stream: DataFrame, topic: str | None = None, **options: str) -> None:
        writer = stream.writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self._folder / secrets.token_hex(8)))
        if topic is None:
            query = writer.format("noop").start()
        else:
            query = writer.format("ledger").options(zookeeper=self._zookeeper, **options).start(topic)
        query.awaitTermination(120)

    def follow_until_taken_over(self) -> None:
        stream = self.stream("numbers", subscription="wanted").writeStream.format("noop")
        query = stream.option("checkpointLocation", str(self._folder / secrets.token_hex(8))).start()
        try:
            query.processAllAvailable()
            self._cursor("wanted").update(lambda cursor: replace(cursor, owner=b"another", epoch=cursor.epoch + 1))
            query.awaitTermination(120)
        finally:
            query.stop()

    def follow_while_it_is_being_reset(self) -> None:
        self._client.create_cursor("numbers", "moved")
        resetter = RevisionController(self._cursor("moved"), "a slow resetter")
        resetter.start_revision()
        try:
            self.run(self.stream("numbers", subscription="moved"))
        finally:
            resetter.give_up()

    def save_and_lose_the_answer(self) -> None:
        server, _, chroot = self._zookeeper.partition("/")
        proxy = Proxy(server)
        proxy.drop_reply_of_next_multi = proxy.close_when_dropped = True
        try:
            self.save("id AS n", "copies", zookeeper=f"{proxy.address}/{chroot}")
        finally:
            proxy.close()

    def _cursor(self, subscription: str) -> CursorNode:
        return CursorNode(namespace_of(self._client).log("numbers"), subscription)

    def each_batch(self, write: Callable[[DataFrame, int], None]) -> None:
        writer = self.stream("numbers").writeStream.trigger(availableNow=True).foreachBatch(write)
        writer.option("checkpointLocation", str(self._folder / secrets.token_hex(8))).start().awaitTermination(120)


@pytest.fixture(scope="module")
def job(spark: SparkSession, zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("failures")
    address = f"{zookeeper}/test-{secrets.token_hex(8)}"
    with LedgerClient(address, str(folder / "storage")) as client:
        damaged = client.create_topic("damaged", NUMBERS)
        client.create_topic("no-nulls", pa.schema([pa.field("n", pa.int64(), nullable=False)]))
        for topic in ("numbers", "damaged", "copies"):
            if topic != "damaged":
                client.create_topic(topic, NUMBERS)
            with client.producer(topic, name="mine") as producer:
                producer.send({"n": 1})
        for file in (folder / "storage" / damaged.uuid).rglob("*.arrow"):
            file.write_bytes(b"x" * file.stat().st_size)
        yield Job(spark, client, folder)


# What goes wrong: where Spark says it happened, the code, the kind.
FROM_THE_DRIVER: dict[str, tuple[Callable[[Job], object], str, str, type[LedgerError]]] = {
    "the schema of a read": (
        lambda job: job.load("nmbers"),
        "create Python data source instance", "LEDGER_TOPIC_NOT_FOUND", NotFound,
    ),
    "the plan of a batch read": (
        lambda job: job.load("numbers", startingOffsets="77:0:0").collect(),
        "generate Python data source read partitions", "LEDGER_POSITION_PAST_END", DataLoss,
    ),
    "the plan of a batch write": (
        lambda job: job.save("string(id) AS n", "numbers"),
        "initialize Python data source writer", "LEDGER_SCHEMA_MISMATCH", InvalidInput,
    ),
    "the commit of a batch write": (
        lambda job: job.save("id AS n", "copies", producerName="mine", sequenceId="0"),
        "commit or abort Python data source write", "LEDGER_PRODUCER_OWNED", Conflict,
    ),
    "the options of a stream": (
        lambda job: job.run(job.stream("numbers", "n LONG", topci="numbers")),
        "prepareForTriggerAvailableNow", "LEDGER_UNKNOWN_OPTION", InvalidInput,
    ),
    "the plan of a stream": (
        lambda job: job.run(job.stream("numbers", startingOffsets="77:0:0")),
        "initialOffset", "LEDGER_POSITION_PAST_END", DataLoss,
    ),
    "the plan of a sink": (
        lambda job: job.run(job.stream("numbers").selectExpr("string(n) AS n"), "copies"),
        "initialize Python data source writer", "LEDGER_SCHEMA_MISMATCH", InvalidInput,
    ),
    "the commit of a sink": (
        lambda job: job.run(job.stream("numbers"), "copies", producerName="mine"),
        "perform commit", "LEDGER_PRODUCER_OWNED", Conflict,
    ),
    "a ZooKeeper that is not there": (
        lambda job: job.load("numbers", zookeeper="127.0.0.1:1"),
        "create Python data source instance", "LEDGER_UNAVAILABLE", Unavailable,
    ),
    "an answer that is lost": (
        Job.save_and_lose_the_answer,
        "commit or abort Python data source write", "LEDGER_OUTCOME_UNKNOWN", OutcomeUnknown,
    ),
    "a subscription that another has taken": (
        Job.follow_until_taken_over,
        "latestOffset", "LEDGER_SUBSCRIPTION_FENCED", Fenced,
    ),
    "a subscription that is being reset": (
        Job.follow_while_it_is_being_reset,
        "prepareForTriggerAvailableNow", "LEDGER_CURSOR_UNDER_REVISION", CursorUnderRevision,
    ),
}  # fmt: skip
FROM_TASKS: dict[str, tuple[Callable[[Job], object], str, type[LedgerError]]] = {
    "a batch read": (lambda job: job.load("damaged").collect(), "LEDGER_CORRUPT_DATA", CorruptData),
    "a batch write": (
        lambda job: job.save("BIGINT(NULL) AS n", "no-nulls"), "LEDGER_NULL_NOT_ALLOWED", InvalidInput,
    ),
    "a stream": (lambda job: job.run(job.stream("damaged")), "LEDGER_CORRUPT_DATA", CorruptData),
    "a sink": (
        lambda job: job.run(job.stream("numbers").selectExpr("BIGINT(NULL) AS n"), "no-nulls"),
        "LEDGER_NULL_NOT_ALLOWED", InvalidInput,
    ),
}  # fmt: skip


SLOW = ("an answer that is lost", "a subscription that is being reset")  # two minutes, and a quarter: in make search


def test_every_kind_is_among_them() -> None:
    kinds = {row[-1] for row in (*FROM_THE_DRIVER.values(), *FROM_TASKS.values())}
    assert kinds == {kind for kind in vars(errors).values() if type(kind) is type and kind.__base__ is LedgerError}


@pytest.mark.spark
@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=pytest.mark.soak if place in SLOW else ()) for place in FROM_THE_DRIVER]
)
def test_from_the_driver_the_code_and_the_sentence_are_in_the_first_line(job: Job, place: str) -> None:
    wrong, where, code, kind = FROM_THE_DRIVER[place]
    with pytest.raises(Exception, match=where) as raised:
        wrong(job)
    assert f"{kind.__name__}: [{code}] " in str(raised.value).splitlines()[0]
    assert_is_told(raised.value, code, kind)


@pytest.mark.spark
@pytest.mark.parametrize("place", FROM_TASKS)
def test_from_tasks_they_are_the_last_line_of_pythons_part_and_the_abort_does_not_hide_them(
    job: Job, place: str
) -> None:
    wrong, code, kind = FROM_TASKS[place]
    with pytest.raises(Exception, match="An exception was thrown from the Python worker") as raised:
        wrong(job)
    python_part = str(raised.value).partition("\n SQLSTATE")[0].splitlines()
    assert f"{kind.__name__}: [{code}] " in python_part[-1]
    assert len(python_part) <= 2
    assert_is_told(raised.value, code, kind)


@pytest.mark.spark
def test_an_error_in_a_function_for_batches_is_found_below_what_the_function_made_of_it(job: Job) -> None:
    def write(frame: DataFrame, _: int) -> None:
        try:
            frame.selectExpr("string(n) AS n", "n AS m").write.format("ledger").mode("append").options(
                zookeeper=job._zookeeper
            ).save("copies")
        except Exception as error:
            raise RuntimeError("copying failed") from error

    with pytest.raises(Exception, match="copying failed") as raised:
        job.each_batch(write)
    assert_is_told(raised.value, "LEDGER_SCHEMA_MISMATCH", InvalidInput)


def assert_is_told(raised: BaseException, code: str, kind: type[LedgerError]) -> None:
    assert "pyspark_ledger/" not in str(raised), "frames of ours"
    told = error(raised)
    assert told is not None
    may_restart = kind in (Unavailable, OutcomeUnknown, CursorUnderRevision)
    assert (told.code, told.kind, told.may_restart) == (code, kind, may_restart)
    assert str(told) in str(raised)
    assert "SQLSTATE" not in told.sentence
    if code == "LEDGER_SCHEMA_MISMATCH":
        assert told.sentence.splitlines()[1].startswith("  ! n string")


# -- taking it out of a text -------------------------------------------------------------------------------------

SENTENCE = "the schema does not fit the topic:\n  ! n string: the topic has n int64"
PLAIN = f"pyspark_ledger.errors.InvalidInput: [LEDGER_SCHEMA_MISMATCH] {SENTENCE}"
STACK = "\tat org.apache.spark.Runner.run(Runner.scala:7)"


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        f"[STREAM_FAILED] Query [id = 1]: {PLAIN}\n SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nx",
        f"An error occurred while calling o1.\n: org.apache.spark.SparkException: {PLAIN}\n\n{STACK}\nCaused by: x",
        f"[A] {PLAIN}\n SQLSTATE: 38000\n\nJVM stacktrace:\norg.X\n{STACK}\nCaused by: {PLAIN[:-9]}…\n{STACK}",
        f"SparkException\n\nJVM stacktrace:\norg.X\n{STACK}\nCaused by: {PLAIN}\n{STACK}",
        f"pyspark_ledger.errors.Conflict: [LEDGER_CONFLICT] first\n\nDuring handling of the above exception, another "
        f"exception occurred:\n\nTraceback (most recent call last):\n  File x\n{PLAIN}\n\n{STACK}",
    ],
    ids=["alone", "a query", "Py4J", "Connect", "Connect, in the stack only", "one led to another"],
)
def test_a_sentence_of_several_lines_ends_where_spark_goes_on(text: str) -> None:
    assert error(RuntimeError(text)) == Failure("LEDGER_SCHEMA_MISMATCH", SENTENCE, InvalidInput)


def test_what_a_job_made_of_an_error_still_tells_its_code() -> None:
    assert error(RuntimeError("job 7: [LEDGER_FENCED] stop this one")) == Failure("LEDGER_FENCED", "stop this one")
    caught = RuntimeError("job 7 failed")
    caught.__cause__ = Unavailable("ZooKeeper does not answer")
    told = error(caught)
    assert told == Failure("LEDGER_UNAVAILABLE", "ZooKeeper does not answer", Unavailable)
    assert told.may_restart
    assert str(told) == "[LEDGER_UNAVAILABLE] ZooKeeper does not answer"


def test_an_error_that_a_job_has_dealt_with_is_not_told() -> None:
    """``raise ... from None`` says that it has nothing to do with the one before."""
    with pytest.raises(ValueError, match="a wrong amount") as raised:
        try:
            raise Unavailable("ZooKeeper does not answer")
        except Unavailable:
            raise ValueError("a wrong amount") from None
    assert error(raised.value) is None


@pytest.mark.parametrize("raised", [None, ValueError("[TABLE_OR_VIEW_NOT_FOUND] no table"), RuntimeError()])
def test_what_is_not_ours_is_none(raised: BaseException | None) -> None:
    assert error(raised) is None


# -- hiding the traceback ----------------------------------------------------------------------------------------


@sentence_first()
def deep(levels: int, raised: Exception) -> None:
    if levels:
        deep.__wrapped__(levels - 1, raised)  # type: ignore[attr-defined]
    raise raised


def length(traceback: TracebackType | None) -> int:
    return len(list(walk_tb(traceback)))


@pytest.fixture
def in_a_process_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="pyspark.daemon"))
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def test_a_process_of_spark_shows_no_frames_and_logs_where_they_were(in_a_process_of_spark, caplog) -> None:
    caplog.set_level(logging.DEBUG, "pyspark_ledger")
    with pytest.raises(InvalidInput) as raised:
        deep(20, InvalidInput("no"))
    assert length(raised.value.__traceback__) <= 5
    assert os.environ["SPARK_HIDE_TRACEBACK"]
    assert length(caplog.records[-1].exc_info[2]) > 20


def test_errors_that_are_not_ours_keep_their_traceback(in_a_process_of_spark) -> None:
    with pytest.raises(ValueError) as raised:
        deep(20, ValueError("no"))
    assert length(raised.value.__traceback__) > 20
    assert not os.environ["SPARK_HIDE_TRACEBACK"]


def test_nothing_is_hidden_in_a_process_of_the_user() -> None:
    before = os.environ.get("SPARK_HIDE_TRACEBACK")
    with pytest.raises(InvalidInput) as raised:
        deep(20, InvalidInput("no"))
    assert length(raised.value.__traceback__) > 20
    assert os.environ.get("SPARK_HIDE_TRACEBACK") == before


def test_the_process_of_a_source_gets_a_reader_that_refuses_and_no_error(monkeypatch) -> None:
    """It would stumble over the error, and tell of a variable that has no value."""
    source, schema = LedgerDataSource({"topci": "orders"}), None
    with pytest.raises(InvalidInput, match="LEDGER_UNKNOWN_OPTION"):
        source.streamReader(schema)
    monkeypatch.setitem(sys.modules, SOURCE_PROCESS, sys)
    reader = source.streamReader(schema)
    asked = [
        reader.prepareForTriggerAvailableNow,
        reader.getDefaultReadLimit,
        reader.initialOffset,
        lambda: reader.latestOffset({}, None),
        lambda: reader.partitions({}, {}),
    ]
    for ask in asked:
        with pytest.raises(InvalidInput, match="LEDGER_UNKNOWN_OPTION"):
            ask()
    reader.stop()
