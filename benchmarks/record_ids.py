"""The sink with a sequence id for every record against the plain sink: the same rows, in the same run.

Every producer counts its own records. Sixteen Parquet files, four in a micro-batch: from the second batch on the topic
knows all its producers.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks import data
from benchmarks.contestants import Bench, Contestants, Progress
from benchmarks.session import drain

PLAIN, WITH_IDS = "plain sink", "with ids"
PRODUCERS = (10, 1_000_000)
IDS = {"sequenceColumn": "reading", "producerColumn": "device"}


def contestants(bench: Bench, parquet: Path, producers: int) -> Contestants:
    def rows() -> DataFrame:
        stream = bench.spark.readStream.schema(data.SCHEMA).option("maxFilesPerTrigger", "4").parquet(str(parquet))
        return stream.selectExpr(
            "*", f"concat('device-', id % {producers}) AS device", f"id div {producers} AS reading"
        )

    def into(folder: Path, **options: str) -> Progress:
        space = bench.namespace(folder / "storage")
        return drain(rows(), "ledger", folder / "checkpoint", space.options | options, "rows")

    return {PLAIN: lambda folder: into(folder), WITH_IDS: lambda folder: into(folder, **IDS)}
