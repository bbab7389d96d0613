"""Everything that knows Spark: ``format("ledger")``.

This module is imported by every Spark session that looks for data sources, so it imports only Spark itself;
readers and writers are loaded when they are asked for.
"""

from __future__ import annotations

import os
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

from pyspark_ledger.datasource.first_line import COMMIT_PROCESS, SOURCE_PROCESS, runs_in, sentence_first

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_ledger.datasource.executor.staging import TaskPlan
    from pyspark_ledger.datasource.options import ReadOptions, WriteOptions


class LedgerDataSource(DataSource):
    """``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream`` with ``format("ledger")``."""

    _schema_is_the_topics = False  # Spark asks for the schema only if the user gave none, and keeps the instance then

    @classmethod
    def name(cls) -> str:
        return "ledger"

    @sentence_first()
    def schema(self) -> StructType:
        from pyspark_ledger.datasource.read_schema import topic_schema

        self._schema_is_the_topics = True
        return topic_schema(self._read_options())

    @sentence_first()
    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_ledger.datasource.batch_reader import LedgerBatchReader

        return LedgerBatchReader(self._read_options(), schema)

    @sentence_first()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_ledger.datasource.stream_reader import LedgerStreamReader, RefusedStreamReader
        from pyspark_ledger.errors import LedgerError

        try:
            options = self._read_options()
        except LedgerError as error:
            if runs_in(SOURCE_PROCESS):  # which stumbles over an error here, and then tells of its own
                return RefusedStreamReader(error)
            raise
        return LedgerStreamReader(options, schema, options.fails_on_new_columns(given=not self._schema_is_the_topics))

    @sentence_first()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_ledger.datasource.write_plan import plan_write
        from pyspark_ledger.datasource.writer import LedgerBatchWriter

        plan = plan_write(self._write_options(), schema, overwrite=overwrite, stream=False)
        return LedgerBatchWriter(dict(self.options), plan)

    @sentence_first()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_ledger.datasource.write_plan import plan_write
        from pyspark_ledger.datasource.writer import LedgerStreamWriter

        def plan(again: bool) -> TaskPlan:
            return plan_write(self._write_options(), schema, overwrite=overwrite, stream=True, again=again)

        # The process in which Spark commits and aborts micro-batches asks for a writer before either, and an error
        # there would hide the one that the abort is for: all that the user got to see was "Writing job failed.". So
        # nothing is looked at yet in that process.
        to_commit = runs_in(COMMIT_PROCESS)
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


def register(spark: SparkSession) -> None:
    """Registers ``format("ledger")`` by hand: needed only where the package is not installed, as with --py-files. The
    calling thread can write then; others need :func:`pyspark_ledger.activate`."""
    from pyspark_ledger.datasource.threads import activate

    activate(spark)
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
