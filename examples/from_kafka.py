"""Copies a Kafka topic into a topic of the ledger, each record once, however often and in whatever way it is run.

A record's id is its offset and its producer is its partition, so the ledger knows what it has: the job may be killed,
start again with a new checkpoint and in other batches, or run twice at the same time; docs/kafka.md says more. It needs
Spark's connector to Kafka, of the version of your Spark:

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/from_kafka.py \\
        --kafka kafka:9092 --topic clicks --zookeeper zk:2181/prod --storage /mnt/ledger --checkpoint /mnt/from-kafka
"""

import argparse
import os
import sys
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter


def numbered(records: DataFrame, cluster: str) -> DataFrame:
    """Kafka's records, with where each comes from and its number there. A job that knows what the bytes mean has
    columns instead of key and value, for example those of ``from_json(CAST(value AS STRING), …)``."""
    return records.selectExpr(
        "key",
        "value",
        "timestamp AS kafka_time",
        f"concat('{cluster}/', topic, '-', partition) AS kafka_partition",
        "offset AS kafka_offset",
    )


def copy(records: DataFrame, cluster: str, ledger: Mapping[str, str], checkpoint: str) -> DataStreamWriter:
    """The query, not started. ``cluster`` is part of the producers' names: two clusters may have a topic of one name;
    and a topic that was deleted and made again counts from 0 once more, so it needs another name here."""
    ids = {"producerColumn": "kafka_partition", "sequenceColumn": "kafka_offset"}
    sink = numbered(records, cluster).writeStream.format("ledger").options(**ids, **ledger)
    return sink.option("checkpointLocation", checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", required=True, help="host:port of a broker")
    parser.add_argument("--topic", required=True, help="of Kafka, and of the ledger")
    parser.add_argument("--cluster", default="kafka", help="a name for it; another one if the topic was made again")
    parser.add_argument("--zookeeper", required=True)
    parser.add_argument("--storage", required=True)
    parser.add_argument("--checkpoint", required=True, help="any folder that this query alone uses; a new one is fine")
    parser.add_argument("--per-batch", type=int, help="offsets in a micro-batch, at most")
    parser.add_argument("--follow", action="store_true", help="go on; else it ends when it has what is there now")
    asked = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH
    spark = SparkSession.builder.appName(f"from Kafka: {asked.topic}").getOrCreate()
    # From the earliest offset on, always: ids of a producer must rise, so what was skipped could not be brought later.
    source = {"kafka.bootstrap.servers": asked.kafka, "subscribe": asked.topic, "startingOffsets": "earliest"}
    if asked.per_batch:
        source["maxOffsetsPerTrigger"] = str(asked.per_batch)
    records = spark.readStream.format("kafka").options(**source).load()
    ledger = {"zookeeper": asked.zookeeper, "storage": asked.storage, "topic": asked.topic}
    query = copy(records, asked.cluster, ledger, asked.checkpoint)
    (query if asked.follow else query.trigger(availableNow=True)).start().awaitTermination()


if __name__ == "__main__":
    main()
