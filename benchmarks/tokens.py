"""A pipeline with tokens against one without, topic to topic: tokens as text and as numbers.

The source's topic has tokens in any case. Spark does not tell a Python source which fields a query uses, so one
contestant reads all of ``_metadata``, as most people will at first, and the others only what they need of it.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

from benchmarks import data
from benchmarks.contestants import Bench, Contestants, Progress
from benchmarks.session import drain
from pyspark_ledger import LedgerClient

WITHOUT, ALL_METADATA, TEXT, NUMBERS = "no tokens", "text, all of _metadata", "text alone", "numbers"
TOKEN_MODE = {"deduplication": "token", "tokenColumn": "token"}


def contestants(bench: Bench, parquet: Path) -> Contestants:
    space = bench.namespace(bench.work / "token-topic")
    frame = data.parquet_stream(bench.spark, parquet)
    drain(frame, "ledger", bench.work / "checkpoint-tokens", space.options | {"mintTokens": "true"}, "rows")
    names = count()

    def copy(folder: Path, metadata: str = "false", field: str = "", **options: str) -> Progress:
        target = f"copy{next(names)}"
        rows = data.topic_stream(bench.spark, space, "rows", maxBytesPerTrigger="512m", includeMetadata=metadata)
        if field:
            rows = rows.selectExpr("id", "text", "payload", f"_metadata.{field} AS token")
            options |= TOKEN_MODE
        progress = drain(rows, "ledger", folder / "checkpoint", space.options | options, target)
        with LedgerClient(**space.options) as client:
            client.delete_topic(target)  # the disk is not endless
        return progress

    return {
        WITHOUT: copy,
        ALL_METADATA: lambda folder: copy(folder, "true", "token"),
        TEXT: lambda folder: copy(folder, "token", "token"),
        NUMBERS: lambda folder: copy(folder, "tokenNumber", "tokenNumber", tokenTopic="rows"),
    }
