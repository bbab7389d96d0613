"""A streaming source in Python has no metrics in a query's progress, and no name.

    python docs/upstream/source_metrics.py

Needs PySpark and PyArrow, nothing else. Prints what the progress of a query says of a source in Python.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH


class Reader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        return {"at": 3}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"at": 10}

    def metrics(self, latest_consumed: dict[str, int] | None) -> dict[str, str]:
        return {"rowsBehind": "7"}  # what we would like to say, and what nobody asks for

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(range(start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        for number in partition.value:
            yield (number,)


class Numbers(DataSource):
    """The first three of ten numbers."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "n INT"

    def streamReader(self, schema: object) -> Reader:
        return Reader()


def main() -> None:
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Numbers)
    with tempfile.TemporaryDirectory() as folder:
        stream = spark.readStream.format("numbers").load()
        query = stream.writeStream.format("noop").option("checkpointLocation", folder).start()
        query.processAllAvailable()
        (progress,) = json.loads(query.recentProgress[0].json)["sources"]
        query.stop()
    print("description:", progress["description"])
    print("metrics:", progress.get("metrics", {}))
    print("the rest:", {name: value for name, value in progress.items() if name not in ("description", "metrics")})
    spark.stop()


if __name__ == "__main__":
    main()
