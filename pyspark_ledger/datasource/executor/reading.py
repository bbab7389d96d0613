"""What a reading task does: Arrow batches in Spark's schema from slices that the driver has planned."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from pyspark_ledger.base import compute as pc
from pyspark_ledger.files.storage import Root
from pyspark_ledger.log.rows import SliceRows, read_slices
from pyspark_ledger.log.slices import Slice

logger = logging.getLogger(__name__)

METADATA = "_metadata"
METADATA_TYPE = StructType(
    [
        StructField("topic", StringType(), False),
        StructField("ledgerId", LongType(), False),
        StructField("entryId", LongType(), False),
        StructField("index", LongType(), False),
        StructField("publishTime", TimestampType(), False),
        StructField("producer", StringType()),
        StructField("sequenceId", LongType()),
        StructField("epoch", LongType(), False),
        StructField("revision", LongType(), False),
        StructField("token", StringType()),
        StructField("tokenNumber", LongType()),
        StructField("ordinal", LongType()),
    ]
)
_OF_IDS = ("producer", "sequenceId")


@dataclass
class LedgerPartition(InputPartition):
    """What one task reads, with everything it needs: executors touch storage only, never ZooKeeper."""

    storage: Root
    uuid: str
    topic: str
    slices: tuple[Slice, ...]
    revision: int = 0
    epoch: int = 0
    own_metadata: bool = False  # the topic itself has a column of that name


def read_partition(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Arrow batches in Spark's schema, verified as they are read."""
    assert isinstance(partition, LedgerPartition)
    target = to_arrow_schema(schema, timezone="UTC")
    data = pa.schema([field for field in target if field.name != METADATA or partition.own_metadata])
    with_metadata = len(data) < len(target)
    with_ids = with_metadata and any(field.name in _OF_IDS for field in target.field(METADATA).type)
    storage = partition.storage.open()
    count = 0
    for rows in read_slices(storage, partition.uuid, partition.slices, data, with_ids=with_ids):
        count += rows.batch.num_rows
        yield _with_metadata(rows, target, partition) if with_metadata else rows.batch
    logger.info("read topic=%s slices=%d records=%d", partition.topic, len(partition.slices), count)


def _with_metadata(rows: SliceRows, target: pa.Schema, partition: LedgerPartition) -> pa.RecordBatch:
    kind = target.field(METADATA).type
    values = _metadata_of(rows, {field.name for field in kind})
    values |= {"topic": partition.topic, "epoch": partition.epoch, "revision": partition.revision}
    columns = [
        value if isinstance(value, pa.Array) else pa.repeat(pa.scalar(value, field.type), rows.batch.num_rows)
        for field, value in ((field, values[field.name]) for field in kind)
    ]
    metadata = pa.StructArray.from_arrays(columns, fields=list(kind))
    arrays = [metadata if name == METADATA else rows.batch.column(name) for name in target.names]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


# How fields of the metadata are found, some of them together.
_FIELDS: Mapping[tuple[str, ...], Callable[[SliceRows], Sequence[pa.Array]]] = {
    ("ledgerId", "entryId", "index"): lambda rows: rows.positions(),
    ("publishTime",): lambda rows: [pc.multiply(rows.publish_times(), 1000).cast(pa.timestamp("us", tz="UTC"))],
    _OF_IDS: lambda rows: rows.ids(),
    ("token",): lambda rows: [rows.tokens()],
    ("tokenNumber",): lambda rows: [rows.token_numbers()],
    ("ordinal",): lambda rows: [rows.ordinals()],
}


def _metadata_of(rows: SliceRows, asked: set[str]) -> dict[str, pa.Array | str | int | None]:
    """Only what is asked for: text takes long to make and to carry."""
    values: dict[str, pa.Array | str | int | None] = {}
    for names, find in _FIELDS.items():
        if asked.intersection(names):
            values |= zip(names, find(rows), strict=True)
    return values if rows.has_producer else values | {"producer": None}
