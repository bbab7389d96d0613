"""Filters pushed to a Python data source are still in force where the same DataFrame is used without them.

    python docs/upstream/pushed_filters_are_kept.py

Needs PySpark and PyArrow, nothing else. Prints what a DataFrame of ten rows has before and after it was filtered once.
"""

import os
import sys
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThan, InputPartition

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH


class Reader(DataSourceReader):
    def __init__(self) -> None:
        self.first = 0

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            if isinstance(each, GreaterThan):
                self.first = max(self.first, each.value + 1)
            else:
                yield each

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        for number in range(self.first, 10):
            yield (number,)


class Ten(DataSource):
    """The numbers from 0 to 9."""

    @classmethod
    def name(cls) -> str:
        return "ten"

    def schema(self) -> str:
        return "n INT"

    def reader(self, schema: object) -> Reader:
        return Reader()


def main() -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
    spark.dataSource.register(Ten)
    ten = spark.read.format("ten").load()
    print(f"filtered: {ten.where('n > 7').count()} rows, as it should be 2")
    print(f"and then the whole DataFrame: {ten.count()} rows, as it should be 10")
    both = ten.where("n > 7").unionAll(ten.where("n < 3")).count()
    print(f"and two filters in one query: {both} rows, as it should be 2 + 3")
    spark.stop()


if __name__ == "__main__":
    main()
