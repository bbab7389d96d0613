"""Dead letters: rows that could not be stored where they were to go, with the reason, as records of another topic.

Few rows die, so turning one into JSON may take long; those that do not are not touched.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa

from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.jsonrows import encoder

SCHEMA = pa.schema(
    [
        pa.field("reason", pa.string(), False),  # why it could not be stored, in words
        pa.field("topic", pa.string()),  # where it was to go: as its row says, which may be no name at all
        pa.field("record", pa.string(), False),  # the row as JSON, without its topic and its token
        pa.field("query", pa.string()),  # the query that brought it; null for a batch job
        pa.field("batch", pa.int64()),  # and its batch
        pa.field("failed_at", pa.timestamp("us", tz="UTC"), False),
    ]
)


def letters(
    rows: pa.RecordBatch, reason: str, topic: str | None, query: str, batch: int | None, now_ms: int
) -> pa.RecordBatch:
    """Rows that cannot be stored for one reason, as dead letters."""
    stored = schemas.canonical(rows.schema)
    encode = encoder(stored)
    same = {
        "reason": reason,
        "topic": topic,
        "query": query or None,
        "batch": batch,
        "failed_at": datetime.fromtimestamp(now_ms / 1000, UTC),
    }
    found = [
        {**same, "record": json.dumps(encode(row), ensure_ascii=False)}
        for row in schemas.project(rows, stored).to_pylist()
    ]
    return pa.RecordBatch.from_pylist(found, schema=SCHEMA)
