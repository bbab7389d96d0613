"""The one Spark session that all contestants share, and how a stream is run to its end in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.ceiling import Ceiling

REPOSITORY = Path(__file__).resolve().parent.parent
CORES = 2
CONF = {
    "spark.master": f"local[{CORES}]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


@contextmanager
def session(work: Path, **extra: str) -> Iterator[SparkSession]:
    """A session whose workers can import this package and pyspark_ledger."""
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # nobody else has to reach it
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else Spark starts whatever python3 is in PATH
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.pathsep.join(paths).split(os.pathsep)))
    builder = SparkSession.builder.appName("ledger benchmarks").config(map=CONF | extra)
    builder = builder.config("spark.sql.warehouse.dir", str(work / "warehouse"))
    builder = builder.config("spark.log.level", "ERROR")
    spark = builder.getOrCreate()
    spark.dataSource.register(Ceiling)
    try:
        yield spark
    finally:
        spark.stop()


def drain(
    frame: DataFrame,
    sink: str,
    checkpoint: Path,
    options: dict[str, str] | None = None,
    target: str | None = None,
) -> list[dict[str, Any]]:
    """Runs the stream with Trigger.AvailableNow to its end; the progress of its batches with data."""
    writer = frame.writeStream.format(sink).options(**options or {})
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start(target) if target else writer.start()
    query.awaitTermination()
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def rows_of(progress: list[dict[str, Any]]) -> int:
    return sum(batch["numInputRows"] for batch in progress)
