"""``df.writeStream`` and ``df.write`` with ``format("ledger")``: the two classes that Spark sees.

A write is a plan (``write_plan``, on the driver), tasks that stage entry files (``executor.staging``) and a commit
(``write_commit``, on the driver). Spark makes a new writer for every batch and another for its commit, so what they
share travels in the plan and in the tasks' messages.

Executors import this module to unpickle a writer, so it imports nothing that only the driver needs, and a writer keeps
the options as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_ledger.base.names import spark_producer
from pyspark_ledger.datasource.executor.staging import Staged, TaskOrigin, TaskPlan
from pyspark_ledger.datasource.first_line import sentence_first


class LedgerStreamWriter(DataSourceStreamArrowWriter):
    """In the process that commits, the plan is made when it is asked for: an abort needs none."""

    def __init__(self, options: Mapping[str, str], plan: TaskPlan | Callable[[], TaskPlan]) -> None:
        self._options, self._made_or_to_make = options, plan

    @property
    def _plan(self) -> TaskPlan:
        if not isinstance(self._made_or_to_make, TaskPlan):
            self._made_or_to_make = self._made_or_to_make()
        return self._made_or_to_make

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_made_or_to_make": self._plan}  # a task gets a plan, and never makes one

    @sentence_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        origin = TaskOrigin.current()
        return self._plan.stage(iterator, origin, self._plan.producer or spark_producer(origin.query), origin.batch)

    @sentence_first()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        from pyspark_ledger.datasource.options import WriteOptions
        from pyspark_ledger.datasource.write_commit import commit_stream

        options = WriteOptions.parse(self._options)
        options.logs.apply()
        commit_stream(options, self._plan, _staged(messages), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Deletes nothing: Spark also aborts after a commit whose outcome it does not know. gc cleans up."""


class LedgerBatchWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], plan: TaskPlan) -> None:
        self._options, self._plan = options, plan

    @sentence_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self._plan.stage(iterator, TaskOrigin.current(), self._plan.producer, self._plan.sequence)

    @sentence_first()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        from pyspark_ledger.datasource.options import WriteOptions
        from pyspark_ledger.datasource.write_commit import commit_batch

        options = WriteOptions.parse(self._options)
        options.logs.apply()
        commit_batch(options, self._plan, _staged(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes nothing, as in a stream."""


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]
