"""What planning batch and stream reads has in common, on the driver: schemas and partitions."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from pyspark_ledger.client import shared_namespace
from pyspark_ledger.datasource.executor.reading import METADATA, METADATA_TYPE, LedgerPartition
from pyspark_ledger.datasource.options import ReadOptions
from pyspark_ledger.datasource.types import arrow_schema, spark_schema
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import projection
from pyspark_ledger.log.scan import share
from pyspark_ledger.log.slices import Slice, joined

PARTITION_BYTES = 128 << 20  # stored bytes for one task, as for Spark's own file sources
SMALL_PARTITION_BYTES = 4 << 20  # below this, one more task costs more than it saves


def open_log(options: ReadOptions, *, watch: bool) -> Log:
    """From here on nothing is older than this moment: whoever says that a topic was recreated, or has no such column or
    position, does not have it from a server that is behind."""
    connection = options.connection
    namespace = shared_namespace(connection.zookeeper, connection.storage, connection.password)
    namespace.metadata.sync()
    return namespace.log(options.topic, watch=watch)


def topic_schema(options: ReadOptions) -> StructType:
    """The columns that were written, or those asked for."""
    log = open_log(options, watch=False)
    columns = list(options.columns) if options.columns is not None else None
    schema = spark_schema(projection(_current_schema(log), columns, log.topic.name))
    if options.include_metadata:
        if METADATA in schema.names:
            raise InvalidInput(
                f"topic '{log.topic.name}' has a column '{METADATA}' of its own: read it without includeMetadata",
                "LEDGER_INVALID_OPTION",
            )
        asked = [field for field in METADATA_TYPE if field.name in options.include_metadata]
        schema = schema.add(StructField(METADATA, StructType(asked), False))
    return schema


def check_asked_schema(log: Log, schema: StructType, options: ReadOptions) -> None:
    """Spark hands on what the user gave to .schema() unchecked, so this is where a wrong one is found."""
    topic = _current_schema(log)
    if options.columns is not None and [name for name in schema.names if name != METADATA] != list(options.columns):
        raise InvalidInput(
            f".schema() has {', '.join(schema.names)}, option 'columns' has {', '.join(options.columns)}: give one",
            "LEDGER_INVALID_OPTION",
        )
    for field in arrow_schema(schema):
        if field.name == METADATA and METADATA not in topic.names:
            _check_asked_metadata(schema[METADATA])
            continue
        projection(topic, [field.name], log.topic.name)
        stored = topic.field(field.name)
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


def _current_schema(log: Log) -> pa.Schema:
    return log.schema(log.view().head.schema_id)


def share_out(
    log: Log, pieces: Sequence[Slice], min_partitions: int, revision: int = 0, epoch: int = 0
) -> Sequence[LedgerPartition]:
    """Partitions for what a read consists of: contiguous and in order, so that ledger to ledger keeps the order of
    records."""
    pieces = list(joined(pieces))
    total = sum(piece.bytes for piece in pieces)
    cores = os.cpu_count() or 1
    target = min(PARTITION_BYTES, max(SMALL_PARTITION_BYTES, total // cores))
    if total > cores * target:  # whole rounds of tasks, or cores idle in the last one
        rounds = -(-total // (cores * target))
        target = -(-total // (cores * rounds))
    own = METADATA in _current_schema(log).names
    return [
        LedgerPartition(log.storage.uri, log.topic.uuid, log.topic.name, tuple(part), revision, epoch, own)
        for part in share(pieces, target, min_partitions)
    ]
