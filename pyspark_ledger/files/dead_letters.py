"""Dead letters: rows that could not be stored where they were to go, and records that no consumer could handle, with
the reason, as records of another topic.

Few rows die, so turning one into JSON may take long; those that do not are not touched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.jsonrows import encoder

SCHEMA = pa.schema(
    [
        pa.field("reason", pa.string(), False),  # in words
        pa.field("topic", pa.string()),  # where it was, or was to go: as its row says, which may be no name at all
        pa.field("record", pa.string(), False),  # the row as JSON, without its topic and its token
        # Of a row that could not be stored: the query that brought it, and its batch; null for a batch job.
        pa.field("query", pa.string()),
        pa.field("batch", pa.int64()),
        # Of a record that no consumer could handle: whose it was, where it is in its topic, how often it came.
        pa.field("subscription", pa.string()),
        pa.field("position", pa.string()),
        pa.field("deliveries", pa.int64()),
        pa.field("failed_at", pa.timestamp("us", tz="UTC"), False),
    ]
)


def letters(
    rows: pa.RecordBatch, reason: str, topic: str | None, query: str, batch: int | None, now_ms: int
) -> pa.RecordBatch:
    """Rows that cannot be stored for one reason, as dead letters."""
    stored = schemas.canonical(rows.schema)
    same = {"reason": reason, "topic": topic, "query": query or None, "batch": batch}
    found = as_json(schemas.project(rows, stored).to_pylist(), stored)
    return made_of(({**same, "record": record} for record in found), now_ms)


def as_json(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> Iterator[str]:
    encode = encoder(schema)
    return (json.dumps(encode(row), ensure_ascii=False) for row in rows)


def made_of(fields: Iterable[Mapping[str, Any]], now_ms: int) -> pa.RecordBatch:
    """Letters from what is known of each; what is left out is null."""
    failed_at = datetime.fromtimestamp(now_ms / 1000, UTC)
    return pa.RecordBatch.from_pylist([{**each, "failed_at": failed_at} for each in fields], schema=SCHEMA)


def check_schema(schema: pa.Schema, topic: str) -> None:
    """Raises InvalidInput if dead letters cannot be stored in a topic."""
    try:
        schemas.merge(schema, SCHEMA, may_add=False)
    except InvalidInput as wrong:
        raise InvalidInput(f"topic '{topic}' is none for dead letters: {wrong.message}", wrong.code) from None
