"""Writing with ``format("ledger")`` from other threads than the first one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from pyspark_ledger import activate
from pyspark_ledger.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Job:
    def __init__(self, spark: SparkSession, where: dict[str, str], folder: Path) -> None:
        self.spark, self._where, self._folder = spark, where, folder

    def write(self, topic: str, frame: DataFrame | None = None) -> None:
        frame = frame if frame is not None else self.spark.range(3).coalesce(1)
        frame.write.format("ledger").mode("append").options(**self._where).save(topic)

    def copy(self, topic: str) -> None:
        stream = self.spark.readStream.format("ledger").options(**self._where).load("numbers")
        writer = stream.writeStream.format("ledger").options(**self._where).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self._folder / topic)).start(topic).awaitTermination(120)

    def copy_by_function(self, topic: str) -> None:
        def write(frame: DataFrame, _: int) -> None:
            before = self._active()
            activate(self.spark)  # not needed here, and leaves alone what the query has
            assert self._active().equals(before)
            self.write(topic, frame)
            with ThreadPoolExecutor(initializer=activate, initargs=(frame.sparkSession,)) as pool:
                pool.submit(self.write, f"{topic}-again", frame).result()

        stream = self.spark.readStream.format("ledger").options(**self._where).load("numbers")
        writer = stream.writeStream.foreachBatch(write).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self._folder / topic)).start().awaitTermination(120)

    def count(self, topic: str) -> int:
        return self.spark.read.format("ledger").options(**self._where).load(topic).count()

    def _active(self):
        return self.spark._jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().get()


@pytest.fixture
def job(spark: SparkSession, namespace: str, storage_root: str, tmp_path: Path) -> Job:
    return Job(spark, {"zookeeper": namespace, "storage": storage_root}, tmp_path)


@pytest.mark.spark
def test_a_thread_can_write_once_it_has_a_session(job: Job) -> None:
    with ThreadPoolExecutor(1) as thread:
        # What Spark does without: if this ever succeeds, the page on threads and the function can go.
        with pytest.raises(Exception, match=r"\[DATA_SOURCE_NOT_FOUND\]"):
            thread.submit(job.write, "numbers").result()
        thread.submit(activate, job.spark).result()
        thread.submit(job.write, "numbers").result()
        thread.submit(job.copy, "copies").result()
    assert (job.count("numbers"), job.count("copies")) == (3, 3)


@pytest.mark.spark
def test_threads_of_a_pool_write_and_run_queries_side_by_side(job: Job) -> None:
    job.write("numbers")
    with ThreadPoolExecutor(2, initializer=activate, initargs=(job.spark,)) as pool:
        done = [pool.submit(job.copy, "copied"), pool.submit(job.write, "written")]
        done += [pool.submit(job.copy_by_function, topic) for topic in ("one", "other")]
        for each in done:
            each.result()
    assert [job.count(topic) for topic in ("copied", "written", "one", "other", "one-again", "other-again")] == [3] * 6


def test_no_session_is_an_error_and_not_passed_over():
    """As ``SparkSession.getActiveSession()`` gives in a thread of its own: the write would not find its sink."""
    for wrong in (None, "spark"):
        with pytest.raises(InvalidInput, match=r"is no session.*hand the session over"):
            activate(wrong)
    with pytest.raises(InvalidInput, match="was stopped"):
        activate(SimpleNamespace(_jsparkSession=object(), sparkContext=SimpleNamespace(_jsc=None)))
