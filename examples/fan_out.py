"""One stream of events fans out to a topic for each kind, all of a batch in one step; what cannot be stored goes to a
topic for dead letters, is mended there, and comes in by a transaction. Run: python examples/fan_out.py"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_ledger import LedgerClient, LocalZooKeeper

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH
spark = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "2")

KINDS = ["click", "order", "signup"]


def happen(first: int, count: int) -> None:
    """Events in a file; every tenth is of no kind that anybody knows."""
    rows = spark.range(first, first + count).withColumnRenamed("id", "event")
    kinds = F.array(*map(F.lit, KINDS))
    kind = F.when(F.col("event") % 10 != 9, kinds[(F.col("event") % len(KINDS)).cast("int")])
    rows.withColumn("kind", kind).coalesce(1).write.mode("append").json(f"{folder}/events")


def fan_out() -> None:
    """The job: each event goes to the topic of its kind, as ``events-click``."""
    events = spark.readStream.schema("event BIGINT, kind STRING").json(f"{folder}/events")
    routed = events.withColumn("topic", F.concat(F.lit("events-"), "kind"))  # null if there is no kind
    sink = routed.writeStream.format("ledger").options(**where, topicColumn="topic", deadLetterTopic="events-dead")
    sink.option("checkpointLocation", f"{folder}/job").trigger(availableNow=True).start().awaitTermination()


def tell(what: str) -> None:
    counts = {name: sum(1 for _ in client.reader(name, end="latest")) for name in client.topics() if "events" in name}
    print(f"{what}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))


def mend() -> None:
    """What is made of a dead letter, and that it is done, are one step: so each comes in once."""
    with client.consumer("events-dead", "mending") as letters:
        while (letter := letters.receive(timeout_s=1)) is not None:
            with client.transaction() as t:
                t.append("events-click", {**json.loads(letter["record"]), "kind": "click"})
                t.acknowledge(letters, letter)


with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    where = {"zookeeper": zookeeper.address, "storage": f"{folder}/ledger"}
    with LedgerClient(**where) as client:
        happen(0, 300)
        fan_out()
        tell("1. 300 events")

        last = max(int(file.name) for file in Path(f"{folder}/job/commits").glob("[0-9]*"))
        for name in (str(last), f".{last}.crc"):  # as if the job had died right after its last commit
            Path(f"{folder}/job/commits/{name}").unlink(missing_ok=True)
        happen(300, 300)
        fan_out()
        tell("2. a replay, and 300 more")

        mend()
        mend()
        tell("3. mended")
        letter = next(iter(client.reader("events-dead", end="latest")))
        print(f"why: {letter['reason']}; what: {letter['record']}; batch {letter['batch']}")
    shutil.rmtree(f"{folder}/job")

spark.stop()
