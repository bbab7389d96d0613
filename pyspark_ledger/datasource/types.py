"""Spark's schemas and Arrow's. What Arrow's type alone does not tell is kept in the field's metadata."""

from __future__ import annotations

import json

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from pyspark_ledger.errors import InvalidInput, damage

SPARK_FIELD = b"ledger.spark.field"


def arrow_schema(schema: StructType) -> pa.Schema:
    """InvalidInput names the column that Arrow does not carry: Spark's own error does not."""
    return pa.schema([_arrow_field(field) for field in schema])


def spark_schema(schema: pa.Schema) -> StructType:
    """Of a topic. CorruptData if it is none that a topic can have."""
    with damage("the node with a topic's schema"):
        return StructType([_spark_field(field) for field in schema])


def _arrow_field(field: StructField) -> pa.Field:
    try:
        arrow = to_arrow_schema(StructType([field]), timezone="UTC").field(0)
        plain = from_arrow_schema(pa.schema([arrow]))[0]
    except (PySparkTypeError, ValueError) as error:
        raise InvalidInput(
            f"column '{field.name}' has the type {field.dataType.simpleString()}, which Arrow does not carry "
            f"({error}): cast it or leave it out",
            "LEDGER_INVALID_SCHEMA",
        ) from None
    if plain.dataType == field.dataType:
        return arrow
    # One Arrow type for several of Spark's: intervals, collated strings, user-defined types.
    return arrow.with_metadata({**(arrow.metadata or {}), SPARK_FIELD: json.dumps(field.jsonValue())})


def _spark_field(field: pa.Field) -> StructField:
    plain = from_arrow_schema(pa.schema([field]))[0]
    stored = (field.metadata or {}).get(SPARK_FIELD)
    if stored is None:
        return plain
    kept = StructField.fromJson(json.loads(stored))
    return StructField(kept.name, kept.dataType, plain.nullable, kept.metadata)
