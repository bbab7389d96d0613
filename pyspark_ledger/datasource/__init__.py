"""Everything that knows Spark: ``format("ledger")``.

This module is imported by every Spark session that looks for data sources, so it imports only Spark itself;
readers and writers are loaded when they are asked for.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_ledger.datasource.executor.staging import WritePlan
    from pyspark_ledger.datasource.options import ReadOptions, WriteOptions

_COMMIT_PROCESS = "pyspark.sql.worker.python_streaming_sink_runner"


class LedgerDataSource(DataSource):
    """``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream`` with ``format("ledger")``."""

    _schema_is_the_topics = False  # Spark asks for the schema only if the user gave none, and keeps the instance then

    @classmethod
    def name(cls) -> str:
        return "ledger"

    def schema(self) -> StructType:
        from pyspark_ledger.datasource.read_schema import topic_schema

        self._schema_is_the_topics = True
        return topic_schema(self._read_options())

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_ledger.datasource.batch_reader import LedgerBatchReader

        return LedgerBatchReader(self._read_options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_ledger.datasource.stream_reader import LedgerStreamReader

        options = self._read_options()
        return LedgerStreamReader(options, schema, options.fails_on_new_columns(given=not self._schema_is_the_topics))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_ledger.datasource.write_plan import plan_write
        from pyspark_ledger.datasource.writer import LedgerBatchWriter

        plan = plan_write(self._write_options(), schema, overwrite=overwrite, stream=False)
        return LedgerBatchWriter(dict(self.options), plan)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_ledger.datasource.write_plan import plan_write
        from pyspark_ledger.datasource.writer import LedgerStreamWriter

        def plan(again: bool) -> WritePlan:
            return plan_write(self._write_options(), schema, overwrite=overwrite, stream=True, again=again)

        to_commit = _is_commit_process()
        return LedgerStreamWriter(dict(self.options), partial(plan, again=True) if to_commit else plan(again=False))

    def _read_options(self) -> ReadOptions:
        from pyspark_ledger.datasource.options import ReadOptions

        options = ReadOptions.parse(self.options)
        options.logs.apply()
        return options

    def _write_options(self) -> WriteOptions:
        from pyspark_ledger.datasource.options import WriteOptions

        options = WriteOptions.parse(self.options)
        options.logs.apply()
        return options


def _is_commit_process() -> bool:
    """Whether this is the process in which Spark commits and aborts micro-batches. It asks for a writer before either,
    and an error there would hide the one that the abort is for: all that the user got to see was "Writing job failed.".
    So nothing is looked at yet in that process."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _COMMIT_PROCESS in sys.modules or (main is not None and main.name == _COMMIT_PROCESS)


def register(spark: SparkSession) -> None:
    """Registers ``format("ledger")`` by hand: needed only where the package is not installed, as with --py-files."""
    archive = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    context = getattr(spark, "sparkContext", None)  # a Connect session has none
    if context is None or os.path.isdir(archive):
        spark.dataSource.register(LedgerDataSource)
        return
    # Spark tells every Python process where the --py-files are, but for the one that plans a stream, which it sends
    # to a folder that does not exist. That process, too, gets the environment of this moment.
    environment = dict(context.environment)
    paths = [archive, environment.get("PYTHONPATH")]
    context.environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    try:
        spark.dataSource.register(LedgerDataSource)
    finally:
        context.environment = environment
