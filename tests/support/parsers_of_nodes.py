"""The parsers of what ZooKeeper keeps: nodes and their paths, and the sets of numbers that they hold."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from functools import cache
from itertools import chain

import pyarrow as pa
from pyspark.sql.types import DayTimeIntervalType, StringType, StructField, StructType

from pyspark_ledger.base.bitmap import Bitmap
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.datasource.types import arrow_schema, spark_schema
from pyspark_ledger.describe import ddl
from pyspark_ledger.files import mask, packed_rows
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.ipc_layout import buffer_count
from pyspark_ledger.outbox.entities import Content, Pending
from pyspark_ledger.zk_metadata import codec, format1, paths
from tests.support.golden_files import GOLDEN
from tests.support.parser_table import COLUMNS, UUID, parser, parser_of, text_of


def _samples(folder: str) -> Iterator[tuple[str, bytes]]:
    for file in ("node_samples.json", "nodes.json"):
        for line in json.loads((GOLDEN / folder / file).read_text()):
            yield line["path"], bytes.fromhex(line["bytes"])


@cache
def _paths(folder: str) -> list[str]:
    return sorted({path for path, _ in _samples(folder)})


def _numbered(folder: str) -> list[bytes]:
    """Nodes, each with the number of its path in front."""
    return [bytes([_paths(folder).index(path)]) + data for path, data in _samples(folder)]


def _path_and_record(folder: str, data: bytes) -> tuple[str, bytes]:
    known = _paths(folder)
    return known[data[0] % len(known)] if data else known[0], data[1:]


@parser_of("codec", lambda: _numbered("format2"))
def _node(data: bytes) -> object:
    path, record = _path_and_record("format2", data)
    key = paths.key(path)
    assert key is not None
    return codec.decode(key, record, path)


_BROUGHT = pa.schema([("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int32())), ("none", pa.null())])


def _brought() -> list[bytes]:
    """Records that a request to append brings along, with their number in front."""
    rows = [{"n": number, "text": "x" * number, "list": [number] * number} for number in range(3)]
    batches = [pa.RecordBatch.from_pylist(rows[:count], schema=_BROUGHT) for count in (1, 3)]
    return [bytes([batch.num_rows]) + packed_rows.pack(batch) for batch in batches]


@parser_of("packed-rows", _brought)
def _packed_rows(data: bytes) -> object:
    return packed_rows.unpack(data[1:], _BROUGHT, data[0] if data else 0, "a request to append").to_pylist()


@parser_of("codec-format1", lambda: _numbered("format1"))
def _old_node(data: bytes) -> object:
    return format1.decode(*_path_and_record("format1", data))


@parser_of("node-path", lambda: [path.encode() for path in chain(_paths("format1"), _paths("format2"))])
def _path(data: bytes) -> object:
    return paths.key(text_of(data)), format1.key(text_of(data))


@parser_of("schema", lambda: [schemas.to_bytes(ddl.parse(COLUMNS)), schemas.to_bytes(ddl.parse("n bigint not null"))])
def _schema(data: bytes) -> object:
    schema = schemas.from_bytes(data)
    canonical = schemas.canonical(schema)
    for field in canonical:
        buffer_count(field.type, field.name)
    return ddl.ddl(canonical), schemas.merge(canonical, canonical, may_add=True)


def _spark_schemas() -> list[bytes]:
    """Also with types that Arrow alone does not tell apart."""
    fields = [StructField("gap", DayTimeIntervalType(0, 1)), StructField("t", StringType("UNICODE_CI"))]
    return [schemas.to_bytes(arrow_schema(StructType(fields))), schemas.to_bytes(ddl.parse(COLUMNS))]


@parser_of("spark-schema", _spark_schemas)
def _spark_schema(data: bytes) -> object:
    return spark_schema(schemas.from_bytes(data))


@parser(
    "entity",
    Content({"n": 1}, {"m": Pending(({"to": "a"},), f"{UUID}:m{'0' * 32}", (f"{UUID}:m{'1' * 32}",))}).to_bytes(),
    Content().to_bytes(),
)
def _entity(data: bytes) -> object:
    return Content.from_bytes(data)


@parser("runs", Runs([(3, 5), (9, 10), (1000, 70_000)]).pack(0), Runs().pack(0))
def _runs(data: bytes) -> object:
    runs = Runs.unpack(data, 7)
    return list(iter(runs)), 8 in runs, runs.since(100), runs.next_missing(3), runs.without(9).pack(7)


def _with_size(size: int, packed: bytes) -> bytes:
    return struct.pack("<Q", size) + packed


def _sized(data: bytes) -> tuple[int, bytes]:
    """A number of the record, and the bytes beside it."""
    return int.from_bytes(data[:8], "little"), data[8:]


def _bitmap_seeds() -> list[bytes]:
    full, some = Bitmap(1 << 16), Bitmap(77)
    full.fill(0, 1 << 16)
    some.fill(3, 9)
    return [_with_size(each.size, each.pack()) for each in (full, some)] + [_with_size(8, b"")]


@parser_of("bitmap", _bitmap_seeds)
def _bitmap(data: bytes) -> object:
    size, packed = _sized(data)
    bitmap = Bitmap(size, packed)
    return bitmap.count, bitmap.is_full, bitmap.has_none(0, size), bitmap.copy()


@parser_of("mask", lambda: [_with_size(n, mask.pack(pa.array([i % 3 > 0 for i in range(n)]))) for n in (9, 1000)])
def _mask(data: bytes) -> object:
    rows, packed = _sized(data)
    return mask.count(packed, rows, 0, rows), mask.skip(packed, rows, 0, 3)
