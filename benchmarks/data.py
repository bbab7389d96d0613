"""The rows that all contestants carry, as Parquet files and as topics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.ceiling import PAYLOAD_BYTES
from benchmarks.session import drain, rows_of

ROW_BYTES = 8 + (4 + 20) + (4 + 100)  # in Arrow: a long, a string and a binary, each with its offset
ROWS_PER_FILE = 1_000_000  # about 80 MB of Parquet: one file is one partition under Spark's defaults
SCHEMA = "id long, text string, payload binary"
ARROW_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("payload", pa.binary())])

# Half noise, half repetition: a text of hex digits, 48 bytes of a hash and 52 bytes of few words, as often as there is
# room in the payload.
_NOISE_BYTES = 48


def _columns(payload_bytes: int) -> tuple[str, ...]:
    times = max(1, payload_bytes // (2 * _NOISE_BYTES))
    noise = [
        f"unhex(sha2(concat({turn or ''!r}, 'a', id), 256)), unhex(md5(concat({turn or ''!r}, id)))"
        for turn in range(times)
    ]
    words = f"binary(rpad(concat('device=', id % 1000), {payload_bytes - times * _NOISE_BYTES}, ';status=ok'))"
    return (
        "id",
        "substring(sha2(string(id), 256), 1, 20) AS text",
        f"concat({', '.join(noise)}, {words}) AS payload",
    )


@dataclass(frozen=True)
class Namespace:
    """Where topics live: a ZooKeeper address with its chroot, and a storage root of its own."""

    zookeeper: str
    storage: str

    @property
    def options(self) -> dict[str, str]:
        return {"zookeeper": self.zookeeper, "storage": self.storage}


def file_count(rows: int) -> int:
    """An even number, so that two cores end together."""
    return 2 * max(1, -(-rows // (2 * ROWS_PER_FILE)))


def numbered(spark: SparkSession, rows: int, parts: int, payload_bytes: int = PAYLOAD_BYTES) -> DataFrame:
    """The rows, deterministic, from 0 on."""
    return spark.range(0, rows, 1, parts).selectExpr(*_columns(payload_bytes))


def write_parquet(spark: SparkSession, path: Path, rows: int, payload_bytes: int = PAYLOAD_BYTES) -> Path:
    """The rows in Spark's own Parquet with its default compression."""
    numbered(spark, rows, file_count(rows), payload_bytes).write.parquet(str(path))
    return path


def parquet_stream(spark: SparkSession, path: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).parquet(str(path))


def write_topic(spark: SparkSession, parquet: Path, space: Namespace, topic: str, work: Path) -> int:
    """Copies the Parquet rows into a topic, one entry per file; the number of rows."""
    frame = parquet_stream(spark, parquet)
    return rows_of(drain(frame, "ledger", work / f"checkpoint-{topic}", space.options, topic))


def topic_stream(spark: SparkSession, space: Namespace, topic: str, **options: str) -> DataFrame:
    return spark.readStream.format("ledger").options(**space.options, **options).load(topic)


def fill_topic(space: Namespace, topic: str, commits: int, rows_each: int) -> None:
    """Many small commits, each of its own."""
    from pyspark_ledger import LedgerClient

    with LedgerClient(**space.options) as client:
        client.create_topic(topic, ARROW_SCHEMA)
        with client.producer(topic, linger_ms=None) as producer:
            for row in range(commits * rows_each):
                producer.send({"id": row, "text": f"{row:020d}", "payload": bytes(100)})
                if (row + 1) % rows_each == 0:
                    producer.flush()


def size_megabytes(path: Path) -> float:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6
