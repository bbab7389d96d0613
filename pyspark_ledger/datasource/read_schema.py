"""The columns of a read: those of its topics, or those asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from pyspark_ledger.datasource.executor.reading import METADATA, METADATA_TYPE
from pyspark_ledger.datasource.options import ReadOptions
from pyspark_ledger.datasource.planning import open_log
from pyspark_ledger.datasource.types import arrow_schema, spark_schema
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import projection


def topic_schema(options: ReadOptions) -> StructType:
    """The columns that were written, or those asked for."""
    logs = [open_log(options, topic.name, watch=False) for topic in options.topics]
    schema = spark_schema(_columns(logs, options.columns))
    if options.include_metadata:
        if METADATA in schema.names:
            raise InvalidInput(
                f"topic '{logs[0].topic.name}' has a column '{METADATA}' of its own: read it without includeMetadata",
                "LEDGER_INVALID_OPTION",
            )
        asked = [field for field in METADATA_TYPE if field.name in options.include_metadata]
        schema = schema.add(StructField(METADATA, StructType(asked), False))
    return schema


def check_asked_schema(logs: Sequence[Log], schema: StructType, options: ReadOptions) -> None:
    """Spark hands on what the user gave to .schema() unchecked, so this is where a wrong one is found."""
    if options.columns is not None and [name for name in schema.names if name != METADATA] != list(options.columns):
        raise InvalidInput(
            f".schema() has {', '.join(schema.names)}, option 'columns' has {', '.join(options.columns)}: give one",
            "LEDGER_INVALID_OPTION",
        )
    own = any(METADATA in _schema(log).names for log in logs)
    if METADATA in schema.names and not own:
        _check_asked_metadata(schema[METADATA])
    asked = [field for field in arrow_schema(schema) if own or field.name != METADATA]
    for field, stored in zip(asked, _columns(logs, [field.name for field in asked]), strict=True):
        try:
            schemas.merge(pa.schema([field]), pa.schema([stored]), may_add=False)
        except InvalidInput:
            problem = f"{stored.type}{'' if stored.nullable else ' not null'}"
        else:
            problem = "nullable" if stored.nullable and not field.nullable else ""
        if problem:
            raise InvalidInput(
                f".schema() asks for '{field.name}' as {field.type}{'' if field.nullable else ' not null'}, the topic "
                f"has it as {problem}: read it as it is and cast it afterwards",
                "LEDGER_SCHEMA_MISMATCH",
            )


def _check_asked_metadata(asked: StructField) -> None:
    known = {field.name: field.dataType for field in METADATA_TYPE}
    if not isinstance(asked.dataType, StructType) or any(known.get(f.name) != f.dataType for f in asked.dataType):
        raise InvalidInput(
            f".schema() asks for '{METADATA}' as {asked.dataType.simpleString()}: it may have some of the fields of "
            f"{METADATA_TYPE.simpleString()}, or all",
            "LEDGER_SCHEMA_MISMATCH",
        )


def _schema(log: Log) -> pa.Schema:
    return log.schema(log.view().head.schema_id)


def _columns(logs: Sequence[Log], asked: Sequence[str] | None) -> pa.Schema:
    """The columns that the topics have now, or those of them that are asked for."""
    if len(logs) == 1:
        return projection(_schema(logs[0]), asked, logs[0].topic.name)
    columns = {log.topic.name: _schema(log) for log in logs}
    for topic, schema in columns.items():
        if METADATA in schema.names:
            raise InvalidInput(
                f"topic '{topic}' has a column '{METADATA}' of its own: read it alone", "LEDGER_INVALID_OPTION"
            )
    if asked is None:
        return schemas.union(columns)
    every = list(dict.fromkeys(name for schema in columns.values() for name in schema.names))
    for name in asked:
        if name not in every:
            raise InvalidInput(
                f"the topics {', '.join(columns)} have no column '{name}': {', '.join(every)}",
                "LEDGER_COLUMN_NOT_FOUND",
            )
    found = {topic: pa.schema([field for field in schema if field.name in asked]) for topic, schema in columns.items()}
    merged = schemas.union(found)
    return pa.schema([merged.field(name) for name in asked])
