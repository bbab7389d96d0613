"""Reads from the files only the columns that a select needs.

Spark does not tell a source that is written in Python which columns a query uses: it reads all of them, and Spark drops
the others. So the columns have to be known when the DataFrame is made; this finds them from the select.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
        whole = self._reader(self._options).load()
        needed = _referenced(whole, columns)
        # Spark makes a batch of rows even for a count: without any column of its own a select reads the first one.
        fields = [field for field in whole.schema if field.name in needed] or whole.schema.fields[:1]
        # The schema says it all, and may have less than what the DataFrame was loaded with.
        options = {name: value for name, value in self._options.items() if name.lower() != "columns"}
        return self._reader(options).schema(StructType(fields)).load().select(*columns)

    def _reader(self, options: dict[str, str]) -> DataFrameReader | DataStreamReader:
        reader = self._spark.readStream if self._stream else self._spark.read
        return reader.format("ledger").options(**options)


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
    plan = _analyzed(whole.select(*columns))
    if plan is None:
        return _named(columns, whole.columns)
    # A select may be a plan of several steps, as with explode or a window. What one step makes has another id than what
    # the source has, also under the same name.
    loaded = {attribute.exprId().id(): str(attribute.name()) for attribute in _each(_leaf(plan).output())}
    used: set[str] = set()
    while plan.children().nonEmpty():
        used.update(loaded.get(attribute.exprId().id(), "") for attribute in _each(plan.references()))
        plan = plan.children().head()
    return used


def _leaf(plan: Any) -> Any:
    return plan.collectLeaves().head()


def _each(attributes: Any) -> Iterator[Any]:
    """Of a collection of Scala's."""
    iterator = attributes.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _named(columns: tuple[Any, ...], known: list[str]) -> set[str]:
    """The same where only names can be looked at."""
    names = columns[0] if len(columns) == 1 and isinstance(columns[0], list) else columns
    wanted = set()
    for column in names:
        if not isinstance(column, str):
            raise InvalidInput(
                f"select(): Spark Connect does not say which columns {column} uses: give names here, and compute from "
                "them afterwards"
            )
        if column == "*":
            return set(known)
        quoted = re.match(r"`((?:[^`]|``)+)`", column)
        wanted.add((quoted[1].replace("``", "`") if quoted else column.partition(".")[0]).lower())
    return {name for name in known if name.lower() in wanted}


def _analyzed(frame: DataFrame) -> Any:
    """None with Spark Connect, where the plan is on another machine."""
    frame_in_jvm = getattr(frame, "_jdf", None) if type(frame).__module__.startswith("pyspark.sql.classic") else None
    return None if frame_in_jvm is None else frame_in_jvm.queryExecution().analyzed()
