"""Reads from the files only the columns that a select needs.

Spark does not tell a source that is written in Python which columns a query uses: it reads all of them, and Spark drops
the others. So the columns have to be known when the DataFrame is made; this finds them from the select.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from pyspark_ledger.errors import InvalidInput

_RELATIONS = {"DataSourceV2Relation": "options", "StreamingRelationV2": "extraOptions"}  # and what has their options


def read(source: DataFrame | str, *, spark: SparkSession | None = None, stream: bool = False, **options: str) -> Narrow:
    """A ledger whose ``select`` reads only what it needs: of a DataFrame that was loaded with ``format("ledger")``, or
    of a topic, with the options given here. ``stream``: read the topic as a stream.

    >>> read("orders", zookeeper=zookeeper, includeMetadata="true").select("amount", "_metadata.publishTime").columns
    ['amount', 'publishTime']
    """
    if isinstance(source, str):
        session = spark or SparkSession.active()
        return Narrow(session, {**options, "topic": source}, stream=stream)
    if options or spark is not None or stream:
        raise InvalidInput("read(): a DataFrame has its options and its session; give none beside it")
    if not isinstance(source, DataFrame):
        raise InvalidInput(f"read(): give a topic's name or a DataFrame, not a {type(source).__name__}")
    relation = _relation(source)
    found = getattr(relation, _RELATIONS[str(relation.nodeName())])().asCaseSensitiveMap()
    return Narrow(source.sparkSession, dict(found), stream=source.isStreaming)


class Narrow:
    """What :func:`read` gives."""

    def __init__(self, spark: SparkSession, options: dict[str, str], *, stream: bool) -> None:
        self._spark, self._options, self._stream = spark, options, stream

    def select(self, *columns: str | Column) -> DataFrame:
        """As ``DataFrame.select``. Give names, or columns by name as ``F.col("amount")``: one as ``df.amount`` belongs
        to another DataFrame."""
        whole = self._reader().load()
        needed = _referenced(whole, columns)
        # Spark makes a batch of rows even for a count: without any column of its own a select reads the first one.
        fields = [field for field in whole.schema if field.name in needed] or whole.schema.fields[:1]
        return self._reader().schema(StructType(fields)).load().select(*columns)

    def _reader(self) -> DataFrameReader | DataStreamReader:
        reader = self._spark.readStream if self._stream else self._spark.read
        return reader.format("ledger").options(**self._options)


def _relation(source: DataFrame) -> Any:
    """The plan of a DataFrame that was just loaded."""
    plan = _analyzed(source)
    if plan is None:
        raise InvalidInput(
            "read(): a DataFrame of Spark Connect does not show how it was loaded: give the topic and its options, as "
            'read("orders", spark=spark, zookeeper=…)'
        )
    if str(plan.nodeName()) not in _RELATIONS or str(plan.table().name()).lower() != "ledger":
        raise InvalidInput('read(): give what spark.read or spark.readStream.format("ledger") has loaded, unchanged')
    return plan


def _referenced(whole: DataFrame, columns: tuple[str | Column, ...]) -> set[str]:
    """The columns that a select uses, by name."""
    selected = whole.select(*columns)
    plan = _analyzed(selected)
    if plan is None:
        return set(whole.columns) if "*" in columns else _named(columns)
    attributes, found = plan.references().iterator(), set()
    while attributes.hasNext():
        found.add(str(attributes.next().name()))
    return found


def _named(columns: tuple[str | Column, ...]) -> set[str]:
    for column in columns:
        if not isinstance(column, str):
            raise InvalidInput(
                f"select(): Spark Connect does not say which columns {column} uses: give names here, and compute from "
                "them afterwards"
            )
    return {str(column).split(".")[0].strip("`") for column in columns}


def _analyzed(frame: DataFrame) -> Any:
    """None with Spark Connect, where the plan is on another machine."""
    frame_in_jvm = getattr(frame, "_jdf", None) if type(frame).__module__.startswith("pyspark.sql.classic") else None
    return None if frame_in_jvm is None else frame_in_jvm.queryExecution().analyzed()
