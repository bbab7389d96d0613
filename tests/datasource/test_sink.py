"""The sink: exactly once, whatever is retried, replayed, restarted, restored or killed."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import ByBatchId, StagedBatch
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.names import spark_producer
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace
from pyspark_ledger.datasource import LedgerDataSource
from pyspark_ledger.datasource.executor.staging import Staged, TaskOrigin, stage
from pyspark_ledger.datasource.options import WriteOptions
from pyspark_ledger.datasource.write_plan import writer_log
from pyspark_ledger.datasource.writer import LedgerStreamWriter
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import Conflict, Fenced, LedgerError, OutcomeUnknown
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.log.log import Log
from tests.support.said import said

SCHEMA = StructType([StructField("n", LongType())])


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with LedgerClient(namespace, storage_root) as client:
        _ = namespace_of(client).storage
        yield client


def numbers(client: LedgerClient, topic: str = "out") -> list[int]:
    return [record["n"] for record in client.reader(topic, end="latest")]


def files(client: LedgerClient, topic: str = "out") -> set[str]:
    return set(namespace_of(client).storage.list(client.topic(topic).uuid))


@dataclass
class Picture:
    """What must not change when something is refused. A file that no commit names is no part of the log."""

    client: LedgerClient
    named_only: bool = False

    def __post_init__(self) -> None:
        self._before = self._now()

    def _now(self):
        head = namespace_of(self.client).log("out").refresh(sync=True).head
        return head, self.client.producers("out"), None if self.named_only else files(self.client)

    def unchanged(self) -> bool:
        return self._now() == self._before


# -- without Spark: two runs, lost answers, executors ----------------------------------------------------------


class Run:
    """One run of a streaming query, as Spark drives its writers."""

    def __init__(self, client: LedgerClient, run: str = "r1", query: str = "q", **options: str) -> None:
        self._options = {"zookeeper": client.zookeeper, "topic": "out", **options}
        self._query, self._run = query, run

    def log(self) -> Log:
        """As the process sees it that commits."""
        plan = LedgerDataSource(self._options).streamWriter(SCHEMA, overwrite=False)._plan
        return writer_log(WriteOptions.parse(self._options), plan.uuid, plan.storage)

    def stage(self, batch: int, *partitions: list[int]) -> tuple[LedgerStreamWriter, list[Staged]]:
        """New writers for every batch, and another one for its commit."""
        plan = LedgerDataSource(self._options).streamWriter(SCHEMA, overwrite=False)._plan
        origin = TaskOrigin(self._query, self._run, batch)
        name = plan.producer or spark_producer(self._query)
        staged = [stage(plan, iter([_batch(rows)]), origin, name, batch) for rows in partitions]
        return LedgerDataSource(self._options).streamWriter(SCHEMA, overwrite=False), staged

    def write(self, batch: int, *partitions: list[int]) -> list[Staged]:
        committer, staged = self.stage(batch, *partitions)
        committer.commit(staged, batch)
        return staged


def _batch(rows: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(rows, pa.int64())})


def test_a_batch_is_one_commit_in_task_order_I2(client):
    Run(client).write(0, [1, 2], [], [3], [4, 5])
    assert numbers(client) == [1, 2, 3, 4, 5]
    log = namespace_of(client).log("out")
    (commit,) = log.view().open_commits
    assert (commit.entry_count, commit.producer, commit.sequence, commit.query, commit.run) == (
        3,
        "spark-q",
        0,
        "q",
        "r1",
    )


def test_a_replayed_batch_is_recognised_before_and_after_its_files_are_written_I5(client):
    run = Run(client)
    late, staged = run.stage(0, [1, 2])  # planned before its twin was committed
    run.write(0, [1, 2])
    before = files(client)
    late.commit(staged, 0)  # recognised in the commit
    (again,) = run.write(0, [1, 2])  # recognised before a file is written
    assert (again.entry, again.skipped) == (None, True)
    assert files(client) == before
    assert numbers(client) == [1, 2]


def test_a_replay_of_what_another_process_committed_writes_no_file_I5(client):
    run = Run(client)
    run.write(0, [0])
    _, staged = run.stage(1, [1])
    numbered = ByBatchId(BatchId(1, "q", "r1"))
    batch = StagedBatch(b"i" * 16, (staged[0].entry,), producer="spark-q", admission=numbered)
    protocol.append(namespace_of(client).log("out"), batch)  # this process has not heard of it
    assert run.write(1, [1])[0].entry is None
    assert numbers(client) == [0, 1]


def test_a_process_that_missed_a_gc_commits_what_another_one_staged(client):
    """Its picture says that the file comes from the future; it looks again before it says so."""
    run = Run(client)
    run.write(0, [0])
    behind = namespace_of(client).log("out")
    behind.view()
    with client_of(open_namespace(client.zookeeper, limits=Limits(gc_grace_ms=0))) as collector:
        collector.gc("out")
    _, staged = run.stage(1, [1])
    assert staged[0].entry.file.epoch > behind.view().head.gc_epoch
    protocol.append(behind, StagedBatch(b"i" * 16, (staged[0].entry,)))
    assert numbers(client) == [0, 1]


def test_a_zombie_run_is_fenced_by_name_and_changes_nothing_I6(client):
    old, new = Run(client, "run-old"), Run(client, "run-new")
    old.write(0, [0])
    zombie, staged = old.stage(1, [1])  # stops for a while here
    new.write(1, [1])
    picture = Picture(client)
    for batch in (1, 2):
        with pytest.raises(
            Fenced, match=r"LEDGER_PRODUCER_FENCED.*run run-old.*was replaced by run run-new.*must stop"
        ):
            zombie.commit(staged, batch)
    assert picture.unchanged()
    new.write(2, [2])
    assert numbers(client) == [0, 1, 2]


def test_a_zombie_stays_fenced_after_many_restarts_and_each_time_is_a_line_to_see_I6(client, caplog):
    for n in range(10):
        Run(client, f"run-{n}").write(n, [n])
    picture = Picture(client, named_only=True)
    for n in range(9):
        committer, staged = Run(client, f"run-{n}").stage(10, [99])
        with pytest.raises(Fenced, match=f"run run-{n} .*replaced by run run-9"):
            committer.commit(staged, 10)
    assert picture.unchanged()
    assert [line[:47] for line in said(caplog)] == [
        f"fenced: [LEDGER_PRODUCER_FENCED] run run-{n} of q" for n in range(9)
    ]


def test_a_producer_name_belongs_to_one_query_until_it_is_let_go_I5(client):
    Run(client, query="q-one", producerName="p").write(0, [0])
    picture = Picture(client, named_only=True)
    other = Run(client, query="q-two", producerName="p")
    for batch in (0, 1):
        with pytest.raises(Conflict, match=r"LEDGER_PRODUCER_OWNED.*q-one.*q-two.*producers forget out p --yes"):
            committer, staged = other.stage(batch, [7])
            committer.commit(staged, batch)
    assert picture.unchanged()
    client.forget_producer("out", "p")
    other.write(0, [7])
    assert numbers(client) == [0, 7]


def test_a_name_let_go_in_the_middle_of_a_replay_is_an_error_and_no_drop_I1(client):
    run = Run(client)
    run.write(0, [1])
    committer, staged = run.stage(0, [1])
    assert staged[0].skipped
    client.forget_producer("out", "spark-q")
    run.log().refresh()
    with pytest.raises(Conflict, match=r"LEDGER_RETRY.*run the batch again"):
        committer.commit(staged, 0)


def test_without_a_readable_checkpoint_the_row_count_tells_a_replay_from_another_batch_I5(client):
    run = Run(client, checkpointLocation="abfs://nowhere/c")
    run.write(0, [1], [2])
    picture = Picture(client)
    run.write(0, [1, 2])
    with pytest.raises(Conflict, match=r"LEDGER_SEQUENCE_REUSED.*3 records, the log has 2 records"):
        run.write(0, [1, 2, 3])
    assert picture.unchanged()


def test_the_sequence_id_of_a_batch_write_decides_whatever_the_rows_are_and_a_replay_is_a_line_to_see_I5(
    client, caplog
):
    """An honest retry may differ, by current_timestamp() for one, so rows cannot be compared; their number can."""

    def write(sequence: int, *rows: int) -> None:
        options = {"zookeeper": client.zookeeper, "topic": "out", "producerName": "job", "sequenceId": str(sequence)}
        writer = LedgerDataSource(options).writer(SCHEMA, overwrite=False)
        writer.commit([writer.write(iter([_batch(list(rows))]))])

    write(7, 1, 2)
    assert said(caplog) == []
    write(7, 3, 4)  # other data, as many rows
    assert numbers(client) == [1, 2]
    [line] = said(caplog)
    assert "topic 'out': producer 'job' has written sequence id 7 before, with as many rows" in line
    assert "adds nothing. The rows are not compared: new data needs a new sequenceId" in line
    with pytest.raises(Conflict, match=r"LEDGER_SEQUENCE_REUSED.*3 records, the log has 2 records"):
        write(7, 3, 4, 5)
    write(8, 3, 4)
    assert numbers(client) == [1, 2, 3, 4]
    assert len(said(caplog)) == 1


def test_a_replayed_batch_of_a_stream_whose_offsets_agree_is_a_line_to_see_and_no_mistake(client, tmp_path, caplog):
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text("the offsets of batch 0")
    run = Run(client, checkpointLocation=str(checkpoint))
    for _ in range(2):
        run.write(0, [1])
    assert numbers(client) == [1]
    assert said(caplog) == [
        "topic 'out': batch 0 of spark-q is a replay, as after a restart: the topic has it, and nothing is added"
    ]


class LosesAnswers:
    """A connection that breaks after what was sent has arrived, or before."""

    def __init__(self, metadata, *outcomes: str) -> None:
        self._metadata, self._outcomes = metadata, list(outcomes)

    def __getattr__(self, name: str):
        return getattr(self._metadata, name)

    def transact(self, ops) -> None:
        outcome = self._outcomes.pop(0) if self._outcomes else "answered"
        if outcome != "lost before":
            self._metadata.transact(ops)
        if outcome != "answered":
            raise OutcomeUnknown(f"the connection was {outcome}")


@pytest.mark.parametrize("outcomes", [("lost after",), ("lost before",), ("lost before", "lost after")])
def test_an_unknown_outcome_is_resolved_and_the_batch_is_there_once_I14(client, outcomes, caplog):
    run = Run(client)
    run.write(0, [0])
    log = run.log()
    log.metadata = LosesAnswers(log.metadata, *outcomes)
    run.write(1, [1])
    assert said(caplog) == []  # that the log has it is no replay
    run.write(1, [1])  # what Spark does if it was killed right then
    assert len(said(caplog)) == 1
    run.write(2, [2])
    assert numbers(client) == [0, 1, 2]


def test_abort_deletes_nothing_I12(client):
    committer, staged = Run(client).stage(0, [1], [2])
    committer.commit(staged, 0)
    before = files(client)
    committer.abort([*staged, None], 0)  # Spark does this after a commit that raised, too
    assert files(client) == before
    assert numbers(client) == [1, 2]


def test_a_batch_planned_for_a_topic_that_was_made_again_is_refused(client):
    run = Run(client)
    run.write(0, [1])
    committer, staged = run.stage(1, [2])
    client.delete_topic("out")
    client.create_topic("out", pa.schema([("n", pa.int64())]))
    with pytest.raises(LedgerError, match=r"LEDGER_TOPIC_(RECREATED|DELETED)"):
        committer.commit(staged, 1)
    assert numbers(client) == []


_EXECUTOR = """
import pickle, sys
sys.modules["kazoo"] = None  # an import would fail
import pyarrow as pa
from pyspark_ledger.datasource import writer
plan = pickle.load(sys.stdin.buffer)
staged = writer.LedgerStreamWriter(None, plan).write(iter([pa.RecordBatch.from_pydict({"n": [1, 2, 3]})]))
sys.stdout.buffer.write(pickle.dumps(staged))
"""


def test_executors_need_no_zookeeper(client):
    options = {"zookeeper": client.zookeeper, "topic": "out", "producerName": "p"}
    committer = LedgerDataSource(options).streamWriter(SCHEMA, overwrite=False)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LEDGER_")}
    done = subprocess.run(
        [sys.executable, "-c", _EXECUTOR], input=pickle.dumps(committer._plan), capture_output=True, env=environment
    )
    assert done.returncode == 0, done.stderr.decode()
    committer.commit([pickle.loads(done.stdout)], 0)
    assert numbers(client) == [1, 2, 3]


# -- with Spark: a folder of numbers as the input --------------------------------------------------------------


class Job:
    """A query from a folder to a topic. Every file is a batch; :meth:`run` ends when all are written."""

    def __init__(self, spark, client: LedgerClient, folder: Path, **options: str) -> None:
        self.spark, self.client = spark, client
        self.input, self.checkpoint = folder / "input", folder / "checkpoint"
        self.input.mkdir(parents=True, exist_ok=True)
        self.options = {"zookeeper": client.zookeeper, "checkpointLocation": str(self.checkpoint), **options}
        self.format = "ledger"

    def feed(self, *rows: int) -> Job:
        name = f"{len(list(self.input.iterdir())):05}.json"
        (self.input.parent / name).write_text("".join(f'{{"n": {n}}}\n' for n in rows))
        os.utime(self.input.parent / name, (1e9 + int(name[:5]),) * 2)  # Spark takes the oldest first
        (self.input.parent / name).rename(self.input / name)
        return self

    def frame(self):
        return self.spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(self.input))

    def start(self, topic: str = "out"):
        stream = self.frame().writeStream.format("ledger").options(**self.options)
        return stream.trigger(availableNow=True).start(topic)

    def run(self, topic: str = "out"):
        query = self.start(topic)
        query.awaitTermination()
        return query

    def lose_the_last_commit(self) -> int:
        """As if the driver was killed between the sink's commit and Spark's own."""
        commits = self.checkpoint / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        for file in (commits / str(last), commits / f".{last}.crc"):
            file.unlink(missing_ok=True)
        return last


@pytest.mark.spark
@pytest.mark.parametrize("how", ["option", "producerName", "session"])
def test_a_replayed_batch_adds_nothing_and_writes_no_file_I5(spark, client, tmp_path, how):
    job = Job(spark, client, tmp_path).feed(0, 1).feed(2, 3).feed(4, 5)
    if how == "producerName":
        job.options["producerName"] = "p"
    if how == "session":  # the sink is then not told where the checkpoint is
        del job.options["checkpointLocation"]
        job.options["queryName"] = "replayed"
        job.checkpoint = tmp_path / "by-session" / "replayed"
        spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "by-session"))
    try:
        query = job.run()
        (state,) = client.producers("out")
        assert state.name == ("p" if how == "producerName" else f"spark-{query.id}")
        assert (state.sequence, state.query, state.run) == (2, query.id, query.runId)
        assert bool(state.digest) == (how != "session")
        picture = Picture(client)
        for _ in range(2):
            assert job.lose_the_last_commit() == 2
            job.run()
            assert picture.unchanged()
        job.feed(6).run()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert numbers(client) == list(range(7))
    assert len(files(client)) == 4


@pytest.mark.spark
def test_an_older_copy_of_the_checkpoint_is_an_error_and_never_a_silent_drop_I5(spark, client, tmp_path):
    job = Job(spark, client, tmp_path).feed(0)
    job.run()
    old = shutil.copytree(job.checkpoint, tmp_path / "old")
    job.feed(1).run()
    newest = shutil.copytree(job.checkpoint, tmp_path / "newest")

    def restore(copy: Path) -> None:
        shutil.rmtree(job.checkpoint)
        shutil.copytree(copy, job.checkpoint)

    picture = Picture(client)
    restore(old)
    with pytest.raises(Exception, match=r"LEDGER_SEQUENCE_REUSED.*sequence id 1 .*Restore the newest checkpoint"):
        job.run()
    assert picture.unchanged()

    restore(newest)
    job.feed(2).run()
    picture = Picture(client)
    restore(old)
    with pytest.raises(Exception, match=r"LEDGER_SEQUENCE_BEHIND.*written sequence id 2 .*brings 1: an older copy"):
        job.run()
    assert picture.unchanged()
    assert numbers(client) == [0, 1, 2]


@pytest.mark.spark
def test_the_same_producer_name_with_a_new_checkpoint_names_both_sides_and_the_way_out_I5(spark, client, tmp_path):
    one = Job(spark, client, tmp_path / "one", producerName="p").feed(0).run()
    picture = Picture(client)
    job = Job(spark, client, tmp_path / "two", producerName="p").feed(100)
    with pytest.raises(Exception, match="LEDGER_PRODUCER_OWNED") as caught:
        job.run()
    new = json.loads((job.checkpoint / "metadata").read_text())["id"]
    way_on = "pyspark-ledger producers forget out p --yes"
    for words in (f"belongs to query {one.id}", f"query {new} now writes", way_on):
        assert words in str(caught.value)
    assert picture.unchanged()
    client.forget_producer("out", "p")
    job.run()
    assert numbers(client) == [0, 100]
    (state,) = client.producers("out")
    assert (state.name, state.query, state.sequence) == ("p", new, 0)


@pytest.mark.spark
def test_foreach_batch_with_a_producer_and_the_batch_id_is_exactly_once_I5(spark, client, tmp_path):
    job = Job(spark, client, tmp_path).feed(0, 1).feed(2)

    def save(frame, batch: int) -> None:
        options = {"zookeeper": client.zookeeper, "producerName": "p", "sequenceId": str(batch)}
        frame.write.format("ledger").options(**options).mode("append").save("out")

    def run():
        stream = job.frame().writeStream.foreachBatch(save).option("checkpointLocation", str(job.checkpoint))
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    query = run()
    (state,) = client.producers("out")
    assert (state.name, state.sequence, state.query) == ("p", 1, query.id)
    picture = Picture(client)
    job.lose_the_last_commit()
    run()
    assert picture.unchanged()
    job.feed(3)
    run()
    assert numbers(client) == [0, 1, 2, 3]


def fails_with(query, *words: str) -> None:
    with pytest.raises(Exception) as caught:
        query.awaitTermination()
    for expected in words:
        assert expected in str(caught.value), expected


@pytest.mark.spark
@pytest.mark.parametrize("how", ["option", "session"])
def test_a_query_whose_topic_is_deleted_under_it_fails_by_name_until_it_has_a_new_checkpoint_I1_I16(
    spark, client, tmp_path, how
):
    job = Job(spark, client, tmp_path).feed(0)
    if how == "session":  # the sink is then not told where the checkpoint is, and so cannot know its query beforehand
        del job.options["checkpointLocation"]
        job.options["queryName"] = "deleted"
        spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "by-session"))
    try:
        running = job.frame().writeStream.format("ledger").options(**job.options).start("out")
        try:
            eventually(lambda: count(client) == 1)
            client.delete_topic("out")
            job.feed(1)
            fails_with(running, "LEDGER_TOPIC_DELETED")
        finally:
            running.stop()
        assert client.topics() == []

        known = f"which query {running.id} writes to" if how == "option" else "createTopic=true"
        fails_with(job.start(), "LEDGER_TOPIC_DELETED", known)
        assert client.topics() == []
        client.create_topic("out", pa.schema([("n", pa.int64())]))  # somebody makes it again
        way_on = f"pyspark-ledger producers forget out spark-{running.id} --yes"
        fails_with(job.start(), "LEDGER_TOPIC_RECREATED", "Start the query with a new checkpoint", way_on)
        assert numbers(client) == []
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    job.options["checkpointLocation"] = str(tmp_path / "new")
    job.run()
    assert numbers(client) == [0, 1]


@pytest.mark.spark
def test_foreach_batch_does_not_go_on_in_a_topic_that_was_made_again_I1_I16(spark, client, tmp_path):
    job = Job(spark, client, tmp_path).feed(0)

    def run():
        stream = job.frame().writeStream.option("checkpointLocation", str(job.checkpoint))
        return stream.foreachBatch(lambda frame, _: save(frame, client)).trigger(availableNow=True).start()

    first = run()
    first.awaitTermination()
    client.delete_topic("out")
    job.feed(1)
    fails_with(run(), "LEDGER_TOPIC_DELETED", "createTopic=true")
    assert client.topics() == []
    client.create_topic("out", pa.schema([("n", pa.int64())]))
    fails_with(run(), "LEDGER_TOPIC_RECREATED", f"pyspark-ledger producers forget out spark-{first.id} --yes")
    assert numbers(client) == []
    client.forget_producer("out", f"spark-{first.id}")
    run().awaitTermination()
    assert numbers(client) == [1]


def save(frame, client: LedgerClient, topic: str = "out", mode: str = "append", **options: str) -> None:
    frame.write.format("ledger").options(zookeeper=client.zookeeper, **options).mode(mode).save(topic)


@pytest.mark.spark
def test_a_batch_write_with_a_sequence_id_is_exactly_once_I5(spark, client):
    def write(count: int, sequence: int) -> None:
        frame = spark.range(count).withColumnRenamed("id", "n")
        save(frame, client, producerName="job", sequenceId=str(sequence))

    write(3, 7)
    picture = Picture(client)
    write(3, 7)  # a retry of the whole job
    assert picture.unchanged()
    with pytest.raises(Exception, match=r"LEDGER_SEQUENCE_REUSED.*sequence id 7 .*4 records, the log has 3"):
        write(4, 7)
    with pytest.raises(Exception, match=r"LEDGER_SEQUENCE_BEHIND.*written sequence id 7 .*brings 6"):
        write(3, 6)
    assert picture.unchanged()
    write(2, 9)  # holes are fine
    assert sorted(numbers(client)) == [0, 0, 1, 1, 2]
    save(spark.range(1).withColumnRenamed("id", "n"), client)  # without a sequence id nothing is deduplicated
    save(spark.range(1).withColumnRenamed("id", "n"), client)
    assert len(numbers(client)) == 7


@pytest.mark.spark
def test_a_write_keeps_the_order_of_its_partitions_and_empty_tasks_leave_nothing_I2(spark, client):
    frame = spark.range(0, 100, numPartitions=5).withColumnRenamed("id", "n")
    save(frame.where("n < 10 or n between 45 and 55 or n > 90"), client)
    assert numbers(client) == [*range(10), *range(45, 56), *range(91, 100)]
    assert len(files(client)) == 3  # of the first, the third and the last partition
    picture = Picture(client)
    save(frame.where("n > 1000"), client)
    assert picture.unchanged()


@pytest.mark.spark
def test_an_empty_batch_of_a_stream_leaves_nothing(spark, client, tmp_path):
    job = Job(spark, client, tmp_path).feed(0).feed().feed(1)
    job.run()
    assert numbers(client) == [0, 1]
    assert namespace_of(client).log("out").view().head.next_commit == len(files(client)) == 2


@pytest.mark.spark
def test_a_topic_is_made_from_the_schema_and_a_schema_that_does_not_fit_shows_the_difference(spark, client):
    save(spark.sql("SELECT 1L AS n, 'a' AS s, if(rand() > 2, 1, null) AS x"), client, keyColumn="n")
    topic = client.topic("out")
    assert topic.key == "n"
    picture = Picture(client)
    with pytest.raises(Exception, match="LEDGER_SCHEMA_MISMATCH") as caught:
        save(spark.sql("SELECT '1' AS n, 1.5D AS y"), client)
    for line in (
        "! n string not null: the topic has n int64 not null",
        "+ y double not null: not in the topic; option mergeSchema=true would add it",
        "- s string not null: missing, and the topic does not allow null there",
    ):
        assert line in str(caught.value)
    assert picture.unchanged()
    save(spark.sql("SELECT 'b' AS s, 2L AS n"), client)  # another order, and without what may be null
    save(spark.sql("SELECT 3L AS n, 'c' AS s, 9 AS new"), client, mergeSchema="true")
    back = spark.read.format("ledger").option("zookeeper", client.zookeeper).load("out")
    assert back.schema["new"].nullable
    assert sorted(map(tuple, back.collect())) == [(1, "a", None, None), (2, "b", None, None), (3, "c", None, 9)]
    save(spark.sql("SELECT 4L AS n, 'd' AS s"), client)  # those who do not know the new column write on
    assert back.count() == 3  # a frame is planned once


@pytest.mark.spark
def test_complete_mode_and_overwrite_are_refused_and_change_nothing(spark, client, tmp_path):
    job = Job(spark, client, tmp_path).feed(0, 1)
    job.run()
    picture = Picture(client)
    with pytest.raises(Exception, match="LEDGER_APPEND_ONLY"):
        save(spark.range(1).withColumnRenamed("id", "n"), client, mode="overwrite")
    complete = job.frame().agg(F.sum("n").alias("n")).writeStream.outputMode("complete").format("ledger")
    options = {**job.options, "checkpointLocation": str(tmp_path / "complete")}
    with pytest.raises(Exception, match="LEDGER_APPEND_ONLY"):
        complete.options(**options).trigger(availableNow=True).start("out").awaitTermination()
    assert picture.unchanged()


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def count(client: LedgerClient, topic: str = "out") -> int:
    return namespace_of(client).log(topic).refresh().head.records if topic in client.topics() else 0


@pytest.mark.spark
def test_a_stream_survives_a_killed_zookeeper_and_writes_everything_once_I1_I14(spark, storage_root, tmp_path):
    with LocalZooKeeper(fsync=False) as server, LedgerClient(f"{server.address}/ns", storage_root) as client:
        _ = namespace_of(client).storage
        job = Job(spark, client, tmp_path)
        for n in range(0, 60, 3):
            job.feed(n, n + 1, n + 2)
        query = job.start()
        eventually(lambda: count(client) >= 9)
        server.kill()
        server.restart()
        query.awaitTermination()
        assert numbers(client) == list(range(60))
        assert len(files(client)) == 20


# -- drivers and tasks that die --------------------------------------------------------------------------------

_DRIVER = """
import sys
import time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession

zookeeper, folder, storage = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false").config("spark.log.level", "FATAL").config("spark.sql.shuffle.partitions", "2")
    .config("spark.python.unix.domain.socket.enabled", "true")
    .config("spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager")
    .getOrCreate()
)

def flaky(batches, rows=1):
    # First attempts die when they have written some rows, if those begin with a number that ten divides.
    context = TaskContext.get()
    for batch in batches:
        yield batch
        rows -= batch.num_rows
        if rows <= 0 and context.attemptNumber() == 0 and batch.column(0)[0].as_py() % 10 == 0:
            (Path(folder) / f"failed-{time.time_ns()}").touch()
            raise RuntimeError("this attempt fails")

def very_flaky(batches):
    # Dies when there is a file: the sink has one after 65,536 rows.
    try:
        yield from flaky(batches, 70_000)
    except RuntimeError:
        deadline = time.monotonic() + 30
        while not any(Path(storage).rglob("*.arrow")) and time.monotonic() < deadline:
            time.sleep(0.01)
        raise

options = {"zookeeper": zookeeper, "checkpointLocation": f"{folder}/checkpoint"}
stream = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(f"{folder}/input")
stream = stream.mapInArrow(flaky, "n long").writeStream.format("ledger").options(**options)
stream.trigger(availableNow=True).start("out").awaitTermination()
rows = spark.range(0, 240_000, numPartitions=3).withColumnRenamed("id", "n").mapInArrow(very_flaky, "n long")
rows.write.format("ledger").options(zookeeper=zookeeper).mode("append").save("big")
"""


class Driver:
    """A driver in a process of its own, with everything below it, that can be killed at any moment."""

    def __init__(self, job: Job) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        arguments = [job.client.zookeeper, str(job.input.parent), namespace_of(job.client).storage.uri[7:]]
        self._log = job.input.parent / "driver.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _DRIVER, *arguments], env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def finish(self) -> None:
        try:
            self._process.wait(180)
        except BaseException:
            self.kill()
            raise
        assert self._process.returncode == 0, self._log.read_text()[-4000:]


@pytest.mark.spark
def test_killed_drivers_and_retried_tasks_write_everything_once_and_in_order_I1_I2_I5(client, tmp_path):
    chance = random.Random(1)
    job = Job(None, client, tmp_path)
    for n in range(0, 40, 2):
        job.feed(n, n + 1)
    for goal in (1, 20):
        driver = Driver(job)
        try:
            eventually(lambda goal=goal: count(client) >= goal, 120)
            time.sleep(chance.uniform(0, 0.3))  # not to wait for something, but to hit another moment of a batch
        finally:
            driver.kill()
    Driver(job).finish()
    assert numbers(client) == list(range(40))
    # One file is one batch, unless a kill came after Spark had noted the next file and before it had noted the next
    # batch: that batch then reads two files.
    last = max(int(file.name) for file in (job.checkpoint / "offsets").iterdir() if file.name.isdigit())
    assert 19 - 2 <= last <= 19
    (state,) = client.producers("out")
    assert (state.sequence, len(state.past_runs)) == (last, 2)
    assert {record.sequence_id for record in client.reader("out", end="latest")} == set(range(last + 1))
    assert len(list(tmp_path.glob("failed-*"))) >= 4 + 3

    assert numbers(client, "big") == list(range(240_000))
    log = namespace_of(client).log("big")
    named = {entry.file.uid.hex() for commit in log.view().open_commits for entry in log.entries(commit)}
    left_behind = {path for path in files(client, "big") if Path(path).stem not in named}
    assert len(named) == 3
    assert left_behind  # what a failed attempt wrote is no part of the log
