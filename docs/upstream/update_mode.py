"""A streaming sink in Python cannot be used in Update mode.

    python docs/upstream/update_mode.py

Needs PySpark and PyArrow, nothing else. Writes to a sink that would take every update, in all three modes.
"""

import os
import sys
import tempfile
from collections.abc import Iterator

from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH


class Writer(DataSourceStreamWriter):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: object, batchId: int) -> None:
        pass


class Taker(DataSource):
    """Takes whatever it is given."""

    @classmethod
    def name(cls) -> str:
        return "taker"

    def streamWriter(self, schema: object, overwrite: bool) -> Writer:
        return Writer()


def main() -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Taker)
    with tempfile.TemporaryDirectory() as folder:
        spark.range(3).write.json(f"{folder}/input")
        for mode in ("append", "complete", "update"):
            stream = spark.readStream.schema("id LONG").json(f"{folder}/input")
            if mode != "append":
                stream = stream.groupBy("id").count()
            writer = stream.writeStream.format("taker").outputMode(mode).trigger(availableNow=True)
            try:
                writer.option("checkpointLocation", f"{folder}/{mode}").start().awaitTermination()
                print(f"{mode}: works")
            except Exception as error:
                print(f"{mode}: {str(error).splitlines()[0]}")
    spark.stop()


if __name__ == "__main__":
    main()
