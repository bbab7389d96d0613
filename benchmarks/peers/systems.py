"""The four that are compared, behind one face: how each is written and read by Spark with the settings that it
recommends.

All carry the same rows, a long, a string of 20 and a binary. Kafka knows only a key and a value of bytes: the string
is the key, the long is the first eight bytes of the value, the binary the rest. A plain read of Kafka leaves them
packed.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks.data import ARROW_SCHEMA, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEDGER, PARQUET, DELTA, KAFKA = NAMES = ("ledger", "parquet", "delta", "kafka")
KAFKA_PARTITIONS = 2  # as many as cores
_LONG = "conv(hex(substring(value, 1, 8)), 16, 10)"


@dataclass(frozen=True)
class Place:
    """Where a system keeps one topic, in words that a process can be given."""

    system: str
    folder: str
    topic: str
    zookeeper: str = ""
    kafka: str = ""
    storage: str = ""  # a URI, for data that are not in the folder

    def words(self) -> dict[str, str]:
        return asdict(self)


class System(ABC):
    format: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ("id", "text", "payload")  # as SQL, of what a read gives

    def __init__(self, place: Place) -> None:
        self.place = place
        self.data = Path(place.folder, "data")
        self.root = place.storage or str(self.data)

    @property
    @abstractmethod
    def sink(self) -> dict[str, str]:
        """Options of the sink, and of a batch write."""

    @property
    def source(self) -> dict[str, str]:
        return self.sink

    @abstractmethod
    def limit(self, rows: int) -> dict[str, str]:
        """So many rows in a micro-batch; where only files can be counted, one file."""

    def create(self, spark: SparkSession) -> None:
        """An empty topic or table, for whoever reads before anything is written."""
        self.data.mkdir(parents=True)

    def packed(self, frame: DataFrame) -> DataFrame:
        """The rows as the sink takes them."""
        return frame

    def append(self, frame: DataFrame) -> None:
        """A batch write."""
        self.packed(frame).write.format(self.format).options(**self.sink).mode("append").save()

    def stream(self, spark: SparkSession, rows: int | None = None) -> DataFrame:
        limit = self.limit(rows) if rows else {}
        return spark.readStream.format(self.format).options(**self.source, **limit).load()

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.format(self.format).options(**self.source).load()

    def unpacked(self, frame: DataFrame, *names: str) -> DataFrame:
        """These of the columns id, text and payload, of what a read gives."""
        sql = dict(zip(("id", "text", "payload"), self.columns, strict=True))
        return frame.selectExpr(*(f"{sql[name]} AS {name}" for name in names))

    def size(self) -> dict[str, float]:
        """What lies on the disk: megabytes that are taken, and files."""
        os.sync()
        stats = [file.stat() for folder in self.folders() for file in folder.rglob("*") if file.is_file()]
        return {"disk_mb": round(sum(stat.st_blocks for stat in stats) * 512 / 1e6, 1), "files": len(stats)}

    def folders(self) -> list[Path]:
        return [self.data]


class Ledger(System):
    format = "ledger"

    @property
    def sink(self) -> dict[str, str]:
        return {"zookeeper": self.place.zookeeper, "storage": self.root, "topic": self.place.topic}

    def limit(self, rows: int) -> dict[str, str]:
        return {"maxRowsPerTrigger": str(rows)}

    def create(self, spark: SparkSession) -> None:
        super().create(spark)
        with self.client() as client:
            client.create_topic(self.place.topic, ARROW_SCHEMA)

    def client(self) -> Any:
        from pyspark_ledger import LedgerClient

        return LedgerClient(zookeeper=self.place.zookeeper, storage=self.root)


class Parquet(System):
    format = "parquet"

    @property
    def sink(self) -> dict[str, str]:
        return {"path": self.root}

    def limit(self, rows: int) -> dict[str, str]:
        return {"maxFilesPerTrigger": "1"}

    def stream(self, spark: SparkSession, rows: int | None = None) -> DataFrame:
        limit = self.limit(rows) if rows else {}
        return spark.readStream.schema(SCHEMA).format("parquet").options(**self.source, **limit).load()


class Delta(System):
    format = "delta"

    @property
    def sink(self) -> dict[str, str]:
        return {"path": self.root}

    def limit(self, rows: int) -> dict[str, str]:
        return {"maxFilesPerTrigger": "1"}

    def create(self, spark: SparkSession) -> None:
        spark.sql(f"CREATE TABLE delta.`{self.data}` ({SCHEMA}) USING delta")


class Kafka(System):
    """`acks=all` and an idempotent producer are what Spark's sink has by default since Kafka 3."""

    format = "kafka"
    columns = (f"CAST({_LONG} AS LONG)", "CAST(key AS STRING)", "substring(value, 9)")

    @property
    def sink(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.place.kafka, "topic": self.place.topic}

    @property
    def source(self) -> dict[str, str]:
        servers = {"kafka.bootstrap.servers": self.place.kafka}
        return servers | {"subscribe": self.place.topic, "startingOffsets": "earliest"}

    def limit(self, rows: int) -> dict[str, str]:
        return {"maxOffsetsPerTrigger": str(rows)}

    def create(self, spark: SparkSession) -> None:
        """Its topics are made by the stage, before anything else."""

    def packed(self, frame: DataFrame) -> DataFrame:
        return frame.selectExpr("text AS key", "concat(unhex(lpad(hex(id), 16, '0')), payload) AS value")

    def folders(self) -> list[Path]:
        return sorted(Path(self.place.folder, "broker").resolve().glob(f"{self.place.topic}-*"))


KINDS: dict[str, type[System]] = {LEDGER: Ledger, PARQUET: Parquet, DELTA: Delta, KAFKA: Kafka}


def system_at(place: Place) -> System:
    return KINDS[place.system](place)
