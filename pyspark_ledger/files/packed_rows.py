"""A few records in a node: one Arrow record batch, without its schema, which whoever reads it knows."""

from __future__ import annotations

import struct

import pyarrow as pa

from pyspark_ledger.base.limits import MOST_TABLE_ROWS
from pyspark_ledger.errors import damage
from pyspark_ledger.files.ipc_layout import is_compressed


def pack(rows: pa.RecordBatch) -> bytes:
    return rows.serialize().to_pybytes()  # type: ignore[no-any-return]


def unpack(data: bytes, schema: pa.Schema, count: int, what: str) -> pa.RecordBatch:
    """CorruptData if these are not so many rows of that schema. ``what`` says whose they are."""
    with damage(what):
        if is_compressed(_header(data)):
            raise ValueError("they are compressed, and so could be any number of bytes")
        rows = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        rows.validate(full=True)  # what Arrow takes on trust would end the process where it is used
        if rows.num_rows > MOST_TABLE_ROWS:  # of nothing but nulls, they need no bytes
            raise ValueError(f"they are {rows.num_rows} rows, and at most {MOST_TABLE_ROWS} are taken")
        if rows.num_rows != count:
            raise ValueError(f"they are {rows.num_rows} rows, and their commit says {count}")
        for field, column in zip(schema, rows.columns, strict=True):
            if column.null_count and not field.nullable:
                raise ValueError(f"column '{field.name}' has a null")
        return rows


def _header(data: bytes) -> bytes:
    """The message before the values: after four bytes of ones and its length."""
    (length,) = struct.unpack_from("<i", data, 4)
    return data[8 : 8 + length]
