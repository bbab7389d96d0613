"""``spark.read.format("ledger")``: a fixed piece of the log as a table.

Spark sends the reader to its executors by the name of this module, so it imports only what a task needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_ledger.datasource.executor.reading import read_partition
from pyspark_ledger.datasource.first_line import sentence_first

if TYPE_CHECKING:
    from pyspark_ledger.datasource.options import ReadOptions


class LedgerBatchReader(DataSourceReader):
    """:meth:`partitions` is called on the driver; a pickled copy runs :meth:`read` on executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema, self._logs = options, schema, options.logs

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_logs": self._logs}  # all that a task needs besides its partition

    @sentence_first()
    def partitions(self) -> Sequence[InputPartition]:
        from pyspark_ledger.datasource.batch_planner import plan_batch

        return plan_batch(self._options, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._logs.apply()
        with sentence_first():
            yield from read_partition(partition, self._schema)
