"""Compaction as a Spark job, for topics that outgrow one machine. The same records as compaction in process.

Only keys and row numbers are shuffled: tasks read the keys, Spark finds each key's survivor, and tasks that each have a
range of row numbers copy those records into compacted files. The driver publishes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from pyspark_ledger.client import settings_of, shared_namespace
from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.compaction.fold import Survivors
from pyspark_ledger.compaction.plan import begin
from pyspark_ledger.compaction.run import CompactionStats
from pyspark_ledger.compaction.work import KeyedSlices, Work, keys_of, write
from pyspark_ledger.datasource.types import spark_schema
from pyspark_ledger.log.generations import CompactedBatch

RECORDS_PER_TASK = 2_000_000


def spark_session() -> SparkSession:
    """The one that runs, or a new one."""
    return SparkSession.builder.getOrCreate()


def compact(
    spark: SparkSession,
    topic: str,
    *,
    zookeeper: str | None = None,
    storage: str | None = None,
    profile: str | None = None,
    options: Mapping[str, str] | None = None,
) -> CompactionStats | None:
    """One run as a Spark job; None if the topic has never been compacted and is empty."""
    settings = settings_of(options, zookeeper, storage, profile=profile)
    log = shared_namespace(settings, pooled=False).log(topic)
    with compaction.compacting(log):
        work = begin(log)
        if work is not None:
            pieces = work.input.pieces
            tasks = max(1, min(len(pieces), -(-sum(piece.rows for piece in pieces) // RECORDS_PER_TASK)))
            survivors = _survivors(_keys(spark, work.input, tasks), versioned=bool(work.input.version))
            compaction.publish(log, work, _write(survivors, work, tasks))
    return compaction.stats(log)


def _keys(spark: SparkSession, keyed: KeyedSlices, tasks: int) -> DataFrame:
    """Key, row number, tombstone and version of every row."""
    fields = spark_schema(keyed.schema)
    columns = [StructField("key", fields[keyed.key].dataType), StructField("row", LongType())]
    columns += [StructField("tombstone", BooleanType())]
    columns += [StructField("version", fields[keyed.version].dataType)] if keyed.version else []
    first, firsts = 0, []
    for piece in keyed.pieces:
        firsts.append(first)
        first += piece.rows

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (n for batch in batches for n in batch.column(0).to_pylist()):
            row = firsts[number]
            for key, tombstone, version in keys_of(keyed, keyed.pieces[number]):
                rows = pa.arange(row, row + len(key))
                row += len(key)
                arrays = [key, rows, tombstone, *([version] if version is not None else [])]
                yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])

    return spark.range(0, len(keyed.pieces), 1, tasks).mapInArrow(read, StructType(columns))


def _survivors(rows: DataFrame, *, versioned: bool) -> DataFrame:
    """(row, tombstone) of what is left."""
    keyed = rows.where("key IS NOT NULL")
    if versioned:
        gone = F.max(F.when(F.col("tombstone"), F.col("row"))).over(Window.partitionBy("key"))
        since = keyed.withColumn("gone", gone).where("gone IS NULL OR row > gone OR row = gone")
        best = F.max(F.when(~F.col("tombstone"), F.struct("version", "row")))
        folded = since.groupBy("key").agg(best.alias("best"), F.max("gone").alias("gone"))
        values = folded.where("best IS NOT NULL").selectExpr("best.row AS row", "false AS tombstone")
        kept = values.unionAll(folded.where("gone IS NOT NULL").selectExpr("gone AS row", "true AS tombstone"))
    else:
        last = keyed.groupBy("key").agg(F.max(F.struct("row", "tombstone")).alias("last"))
        kept = last.selectExpr("last.row AS row", "last.tombstone AS tombstone")
    return kept.unionAll(rows.where("key IS NULL").selectExpr("row", "false AS tombstone"))


def _write(survivors: DataFrame, work: Work, tasks: int) -> list[CompactedBatch]:
    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        received = list(batches)
        number = pa.concat_arrays([pa.array([], pa.int64()), *(batch.column("row") for batch in received)])
        gone = pa.concat_arrays([pa.array([], pa.bool_()), *(batch.column("tombstone") for batch in received)])
        written = write(work, Survivors(number.filter(pc.invert(gone)), number.filter(gone)))
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(batch) for batch in written], pa.binary())], ["batch"])

    ordered = survivors.repartitionByRange(tasks, "row").sortWithinPartitions("row")
    written = [pickle.loads(row["batch"]) for row in ordered.mapInArrow(copy, "batch binary").collect()]
    return sorted(written, key=lambda batch: batch.first)
