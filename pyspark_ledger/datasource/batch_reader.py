"""``spark.read.format("ledger")``: a fixed piece of the log as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_ledger.datasource.options import ReadOptions
from pyspark_ledger.datasource.planning import (
    LedgerPartition,
    check_asked_schema,
    open_log,
    plan,
    read_partition,
    resolve,
)
from pyspark_ledger.scan import slices


class LedgerBatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        log = open_log(self._options, watch=False)
        view = log.refresh(sync=True)
        check_asked_schema(log, self._schema)
        start = resolve(log, view, self._options.start)
        end = resolve(log, view, self._options.end) if self._options.end else view.head.end
        parts = plan(log, list(slices(log, view, start, end)), self._options.min_partitions)
        # Spark makes up a partition without a value when there is none.
        return list(parts) or [LedgerPartition(log.storage.uri, log.topic.uuid, log.topic.name, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LedgerPartition)
        return read_partition(partition, self._schema)


class FilteringBatchReader(LedgerBatchReader):
    """Also drops rows before they reach Spark. A class of its own because Spark refuses every reader that has
    pushFilters while spark.sql.python.filterPushdown.enabled is off."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._pushed: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for candidate in filters:
            if to_expression(candidate) is None:
                yield candidate
            else:
                self._pushed.append(candidate)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        expression: pc.Expression | None = None
        for pushed in self._pushed:
            term = to_expression(pushed)
            expression = term if expression is None else expression & term
        for batch in super().read(partition):
            yield batch if expression is None else batch.filter(expression)


_COMPARISONS: dict[type[Filter], Callable[[Any, Any], Any]] = {
    spark.EqualTo: lambda column, value: column == value,
    spark.GreaterThan: lambda column, value: column > value,
    spark.GreaterThanOrEqual: lambda column, value: column >= value,
    spark.LessThan: lambda column, value: column < value,
    spark.LessThanOrEqual: lambda column, value: column <= value,
    spark.StringStartsWith: lambda column, value: pc.starts_with(column, value),
    spark.StringEndsWith: lambda column, value: pc.ends_with(column, value),
    spark.StringContains: lambda column, value: pc.match_substring(column, value),
}


def to_expression(condition: Filter) -> pc.Expression | None:
    """The same condition for Arrow; None if it is one that Spark should judge itself."""
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(attribute) != 1:
        return None
    column = pc.field(attribute[0])
    if isinstance(condition, spark.IsNotNull):
        return column.is_valid()
    if isinstance(condition, spark.IsNull):
        return column.is_null()
    if isinstance(condition, spark.In):
        # In SQL a null is never in a list; Arrow finds null in a list with null, and tells -0.0 from 0.0.
        values = [value for value in condition.value if value is not None]
        return column.isin(values) if values and not any(isinstance(value, float) for value in values) else None
    compare = _COMPARISONS.get(type(condition))
    value = getattr(condition, "value", None)
    # NaN compares differently in Spark and in Arrow.
    if compare is None or isinstance(value, float):
        return None
    return compare(column, value)


def batch_reader(options: ReadOptions, schema: StructType) -> LedgerBatchReader:
    return (FilteringBatchReader if options.filter_pushdown else LedgerBatchReader)(options, schema)
