"""Sinks without Spark: plans and commits are made as Spark has them made, each in a process of its own (here: a client
of its own)."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_ledger import datasource
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.names import spark_producer
from pyspark_ledger.client import client_of
from pyspark_ledger.datasource import LedgerDataSource, write_plan
from pyspark_ledger.datasource.executor.staging import Staged, TaskOrigin
from pyspark_ledger.datasource.writer import LedgerBatchWriter, LedgerStreamWriter
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import SinkTopicKey
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults, MemoryMetadata, MemoryServer

SCHEMA = StructType([StructField("n", LongType())])
COLUMNS = pa.schema([("n", pa.int64())])


class Place:
    """One ZooKeeper, one storage, and as many processes as there are."""

    def __init__(self, folder: Path, limits: Limits = Limits()) -> None:  # noqa: B008 - it never changes
        write_plan._logs.clear()
        self.clock = SeededClock()
        self.server, self.folder, self.limits = MemoryServer(self.clock), folder, limits
        self._processes: list[OpenNamespace] = []  # kept, because logs are cached by their identity
        self.client = client_of(self.process())

    def process(self, faults: Faults | None = None) -> OpenNamespace:
        return self.process_with(MemoryMetadata(self.server, faults, self.clock))

    def process_with(self, metadata: MemoryMetadata) -> OpenNamespace:
        made = OpenNamespace(metadata, str(self.folder / "storage"), limits=self.limits, clock=self.clock)
        self._processes.append(made)
        return made

    def numbers(self, topic: str = "out") -> list[int]:
        return [record["n"] for record in self.client.reader(topic, end="latest")]

    def uuid(self) -> str | None:
        return self.client.topic("out").uuid if "out" in self.client.topics() else None

    def make(self) -> None:
        self.client.create_topic("out", COLUMNS)

    def noted(self, query: str = "q") -> str | None:
        found = MemoryMetadata(self.server).read(SinkTopicKey(query, "out"))
        return found.record.uuid if found else None


class Query:
    """A streaming query, or with ``batch`` a batch write in its foreachBatch, as Spark drives them."""

    schema = SCHEMA

    def __init__(self, place: Place, query: str = "q", *, knows: bool = True, batch: bool = False, **options: str):
        self.place, self.query, self.batch = place, query, batch
        self.options = {"topic": "out", **options} if "topicColumn" not in options else options
        if knows and not batch:
            checkpoint = place.folder / f"checkpoint-{query}"
            checkpoint.mkdir(exist_ok=True)
            (checkpoint / "metadata").write_text(json.dumps({"id": query}))
            self.options["checkpointLocation"] = str(checkpoint)
        self.number, self.run = 0, 0
        self.restart()

    def restart(self, planner: Faults | None = None, committer: Faults | None = None) -> None:
        self.planner, self.committer = self.place.process(planner), self.place.process(committer)
        self.run += 1

    def plan(self) -> LedgerStreamWriter | LedgerBatchWriter:
        self.place.clock.sleep(0.01)
        writer = self._writer(self.planner, commits=False)
        return pickle.loads(pickle.dumps(writer))

    def stage(self, writer, *rows: int) -> list[Staged]:
        plan, origin = writer._plan, TaskOrigin(self.query, f"run-{self.run}", self.number)
        producer = plan.producer or ("" if self.batch else spark_producer(self.query))
        batch = self.rows(rows)
        return [plan.stage(iter([batch]), origin, producer, plan.sequence if self.batch else self.number)]

    def rows(self, rows) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"n": pa.array(rows, pa.int64())})

    def commit(self, writer, staged: list[Staged]) -> None:
        self.place.clock.sleep(0.01)
        if self.batch:
            with in_process(self.committer, commits=True):
                writer.commit(staged)
        else:
            committer = self._writer(self.committer, commits=True)
            with in_process(self.committer, commits=True):
                committer.commit(staged, self.number)
        self.number += 1

    def write(self, *rows: int) -> None:
        writer = self.plan()
        self.commit(writer, self.stage(writer, *rows))

    def replay(self, *rows) -> None:
        """The last batch again, after a restart."""
        self.restart()
        self.number -= 1
        self.write(*rows)

    def _writer(self, process: OpenNamespace, *, commits: bool):
        with in_process(process, commits=commits):
            source = LedgerDataSource(self.options)
            return source.writer(self.schema, False) if self.batch else source.streamWriter(self.schema, False)


@contextlib.contextmanager
def in_process(process: OpenNamespace, *, commits: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_plan, "shared_namespace", lambda *_, **__: process)
        patch.setattr(datasource, "runs_in", lambda _: commits)
        yield
