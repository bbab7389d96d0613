"""``spark.readStream.format("ledger")``: plans micro-batches on the driver, reads them on executors.

Spark sends the reader to its executors by the name of this module, so it imports only what a task needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_ledger.datasource.executor.reading import read_partition
from pyspark_ledger.datasource.first_line import sentence_first

if TYPE_CHECKING:
    from pyspark_ledger.datasource.options import ReadOptions
    from pyspark_ledger.datasource.stream_planner import StreamPlanner
    from pyspark_ledger.errors import LedgerError


class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One instance lives on the driver as long as the query runs and makes every plan; other, pickled instances run
    :meth:`read` on executors. So the constructor opens nothing, and data reaches ``read`` only in partitions."""

    def __init__(self, options: ReadOptions, schema: StructType, fail_on_new_columns: bool = False) -> None:
        self._options, self._schema, self._fail_on_new_columns = options, schema, fail_on_new_columns
        self._logs = options.logs
        self._lazy_planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_logs": self._logs}  # all that a task needs besides its partition

    @property
    def _planner(self) -> StreamPlanner:
        if self._lazy_planner is None:
            from pyspark_ledger.datasource.stream_planner import StreamPlanner

            self._lazy_planner = StreamPlanner(self._options, self._schema, self._fail_on_new_columns)
        return self._lazy_planner

    @sentence_first()
    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.fix_target()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark carries one limit at most; all of them are applied in latestOffset unless Spark wants everything."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_rows is not None:
            return ReadMinRows(self._options.min_rows)
        return ReadAllAvailable()

    @sentence_first()
    def initialOffset(self) -> dict[str, Any]:
        return self._planner.initial_offset()

    @sentence_first()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._planner.latest_offset(start, everything=isinstance(limit, ReadAllAvailable))

    @sentence_first()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planner.topic_end()

    @sentence_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._planner.partitions(start, end)

    @sentence_first()
    def commit(self, end: dict[str, Any]) -> None:
        self._planner.commit(end)

    def stop(self) -> None:
        if self._lazy_planner is not None:
            self._lazy_planner.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._logs.apply()
        with sentence_first():
            yield from read_partition(partition, self._schema)


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands in for a reader whose options are wrong, and says so whatever Spark asks for first."""

    def __init__(self, error: LedgerError) -> None:
        self._error = error

    @sentence_first()
    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    @sentence_first()
    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    @sentence_first()
    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    @sentence_first()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    @sentence_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error
