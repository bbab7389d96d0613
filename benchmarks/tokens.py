"""The sink in token mode against the plain sink, both fed by a topic whose records have tokens.

The plain sink gets the tokens too, and stores them as one more column; a third contestant does without tokens from the
start, which tells what they cost in all.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

from benchmarks import data
from benchmarks.contestants import Bench, Contestants, Progress
from benchmarks.session import drain
from pyspark_ledger import LedgerClient

PLAIN, WITH_TOKENS, WITHOUT = "plain sink", "token mode", "no tokens"
TOKEN_MODE = {"deduplication": "token", "tokenColumn": "token"}


def contestants(bench: Bench, parquet: Path) -> Contestants:
    space = bench.namespace(bench.work / "token-topic")
    frame = data.parquet_stream(bench.spark, parquet)
    drain(frame, "ledger", bench.work / "checkpoint-tokens", space.options | {"mintTokens": "true"}, "rows")
    names = count()

    def copy(folder: Path, *, read_tokens: bool, **options: str) -> Progress:
        target = f"copy{next(names)}"
        rows = data.topic_stream(bench.spark, space, "rows", maxBytesPerTrigger="512m",
                                 includeMetadata=str(read_tokens).lower())  # fmt: skip
        if read_tokens:
            rows = rows.select("id", "text", "payload", "_metadata.token")
        progress = drain(rows, "ledger", folder / "checkpoint", space.options | options, target)
        with LedgerClient(**space.options) as client:
            client.delete_topic(target)  # the disk is not endless
        return progress

    return {
        PLAIN: lambda folder: copy(folder, read_tokens=True),
        WITH_TOKENS: lambda folder: copy(folder, read_tokens=True, **TOKEN_MODE),
        WITHOUT: lambda folder: copy(folder, read_tokens=False),
    }
