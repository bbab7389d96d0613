"""The driver of the tests on a cluster: a process that does what it is asked, one line of JSON after the other.

It is run as a script, so that what tasks run travels with them: executors know nothing of the tests.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

MASTER, FOLDER = sys.argv[1:]
PAUSE_AFTER = 80_000  # rows: more than the 65,536 with which a task begins its file

SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": f"{FOLDER}/warehouse",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.scheduler.minRegisteredResourcesRatio": "1",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


class Driver:
    """What it can be asked. Topics are in the namespace that LEDGER_ZOOKEEPER names to this process alone."""

    spark: SparkSession
    query: StreamingQuery

    def session(self, settings: dict[str, str]) -> int:
        """Another Spark application; the process id of its JVM."""
        self.rest()
        builder = SparkSession.builder.master(MASTER)
        for key, value in (SESSION | settings).items():
            builder = builder.config(key, value)
        self.spark = builder.getOrCreate()
        return self.spark._jvm.java.lang.ProcessHandle.current().pid()

    def rest(self) -> None:
        """Leaves the executors to others."""
        if hasattr(self, "spark"):
            self.spark.stop()

    def look(self, zookeeper: str) -> list[dict[str, Any]]:
        """What two tasks see where they are."""

        def see(_: int) -> dict[str, Any]:
            try:
                socket.create_connection(zookeeper.split(":"), timeout=5).close()
                answer = "reached"
            except OSError as error:
                answer = type(error).__name__
            told = [name for name in ("LEDGER_ZOOKEEPER", "LEDGER_STORAGE") if name in os.environ]
            time.sleep(1)  # so that one executor does not do both
            return {"folder": os.getcwd(), "pid": os.getpid(), "zookeeper": answer, "told": told}

        return self.spark.sparkContext.parallelize(range(2), 2).map(see).collect()

    def write(self, rows: int, topic: str) -> None:
        self.spark.range(0, rows, 1, 2).write.format("ledger").mode("append").save(topic)

    def read(self, topic: str, options: dict[str, str]) -> list[int]:
        return self.spark.read.format("ledger").options(**options).load(topic).toArrow().column("id").to_pylist()

    def copy(self, source: str, target: str, options: dict[str, str]) -> list[int]:
        """A stream from one topic to another, with what there is; the rows of each of its batches."""
        return self._copy(self._stream(source, options), target)

    def paused_copy(self, source: str, target: str, tasks: list[int]) -> list[int]:
        """The same in one batch, and these tasks of it stop in the middle: see ``Paused`` in support/scenes.py."""
        return self._copy(self._stream(source, {}).mapInArrow(_pausing(f"{FOLDER}/{target}", tasks), "id long"), target)

    def follow(self, source: str, target: str) -> None:
        """The same without an end."""
        self.query = self._sink(self._stream(source, {}), target).start(target)

    def executors(self) -> int:
        return len(self.spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1  # one is the driver

    def unfollow(self) -> None:
        self.query.stop()

    def compact(self, topic: str, records_per_task: int) -> int:
        from pyspark_ledger.datasource import compaction

        compaction.RECORDS_PER_TASK = records_per_task
        return compaction.compact(self.spark, topic).records

    def rewrite(self, topic: str) -> list[int]:
        from pyspark_ledger.datasource import rewriting

        done = rewriting.rewrite(self.spark, topic)
        return [done.ledgers, done.entries, done.files_after]

    def _stream(self, topic: str, options: dict[str, str]) -> DataFrame:
        return self.spark.readStream.format("ledger").options(minPartitions=2, **options).load(topic)

    def _sink(self, frame: DataFrame, target: str) -> Any:
        return frame.writeStream.format("ledger").option("checkpointLocation", f"{FOLDER}/checkpoints/{target}")

    def _copy(self, frame: DataFrame, target: str) -> list[int]:
        query = self._sink(frame, target).trigger(availableNow=True).start(target)
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress]


def _pausing(folder: str, tasks: list[int]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def pause(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        passed, task = 0, TaskContext.get()
        for batch in batches:
            yield batch
            passed += batch.num_rows
            if task.partitionId() in tasks and passed - batch.num_rows < PAUSE_AFTER <= passed:
                about = {"task": task.partitionId(), "folder": os.getcwd(), "pid": os.getpid()}
                note = Path(folder, f"{task.taskAttemptId()}")
                note.write_text(json.dumps(about))
                note.rename(note.with_suffix(".started"))
                deadline = time.monotonic() + 120
                while not Path(folder, "go").exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.02)

    return pause


if __name__ == "__main__":
    driver, answers = Driver(), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed belongs to the log
    for line in sys.stdin:
        asked, arguments = json.loads(line)
        print(json.dumps(getattr(driver, asked)(**arguments)), file=answers, flush=True)
