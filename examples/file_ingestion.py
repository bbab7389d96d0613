"""Log files are ingested by line number: read again and again, by several jobs at once, each line is in the topic once.
Run: python examples/file_ingestion.py"""

import os
import re
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ledger import LedgerClient, LocalZooKeeper

WHOLE_LINE = r"([^\n]*)\n"  # the last one may be half written, and what is in the topic stays as it is

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
spark = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()


def lines_of(path: Path) -> list[str]:
    return re.findall(WHOLE_LINE, path.read_text())


def grow(path: Path, lines: int, start: str = "", end: str = "") -> None:
    with path.open("a") as file:
        file.write(start + "".join(f"{path.stem} event {number}\n" for number in range(lines)) + end)


def ingest(files_per_batch: int) -> StreamingQuery:
    """Starts a job that knows of no other: its checkpoint is new, and it reads every file from the first line."""
    reader = spark.readStream.format("text").option("wholetext", True).option("maxFilesPerTrigger", files_per_batch)
    lines = reader.load(str(logs)).selectExpr(
        "_metadata.file_name AS file", f"posexplode(regexp_extract_all(value, '{WHOLE_LINE}', 1)) AS (line, text)"
    )
    # A producer's ids must rise from commit to commit: a line that comes in a later commit than the next line of its
    # file is taken for a duplicate. Here a file is one row of the source, so never in two batches: each commit has its
    # lines from the first one up to some line, and adds those that are not in the topic yet.
    sink = lines.writeStream.format("ledger").option("sequenceColumn", "line").option("producerColumn", "file")
    checkpoint = tempfile.mkdtemp(dir=folder, prefix="checkpoint-")
    return sink.options(**where, checkpointLocation=checkpoint).trigger(availableNow=True).start("lines")


def ship(path: Path) -> int:
    """The same without Spark: sends a file line by line from the first one, and returns how many were new."""
    with client.producer("lines", name=path.name, linger_ms=None) as producer:
        receipts = (
            producer.send({"file": path.name, "line": line, "text": text}, sequence_id=line)
            for line, text in enumerate(lines_of(path))
        )  # result() waits for each line, so that the others have a chance; to be fast, send all and flush() once
        return sum(not receipt.result().duplicate for receipt in receipts)


def topic() -> DataFrame:
    return spark.read.format("ledger").options(**where).load("lines")


with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    where = {"zookeeper": zookeeper.address, "storage": f"{folder}/ledger"}
    logs = Path(folder, "logs")
    logs.mkdir()
    api, db, web = files = [logs / name for name in ("api.log", "db.log", "web.log")]

    grow(api, 400)
    grow(web, 300, end="half a li")
    ingest(files_per_batch=1).awaitTermination()
    print("1. two files, one per batch: records", topic().count())

    grow(api, 100)
    grow(db, 200)
    grow(web, 50, start="ne\n")
    ingest(files_per_batch=3).awaitTermination()
    print("2. they have grown, there is a third, all are read again: records", before := topic().count())

    for path in files:
        grow(path, 500)
    with LedgerClient(zookeeper.address) as client:
        jobs = [ingest(files_per_batch=1), ingest(files_per_batch=2)]
        shipped = sum(ship(path) for path in files)
        for job in jobs:
            job.awaitTermination()  # raises what the job raised
        found = [(row.file, row.line, row.text) for row in topic().collect()]
        by_spark = len(found) - before - shipped
        print(f"3. two such jobs and a Python producer at once: records added {by_spark} and {shipped}")

        expected = [(path.name, line, text) for path in files for line, text in enumerate(lines_of(path))]
        distinct = {(file, line) for file, line, _ in found}
        print(f"4. lines in files {len(expected)}, records in topic {len(found)}, distinct {len(distinct)}")
        for state in client.producers("lines"):
            print(f"   producer {state.name}, last sequence id {state.sequence}")
    spark.stop()

if sorted(found, key=lambda record: record[0]) != expected:  # by file only: the lines of each must be in order
    sys.exit("Lines were lost, doubled, changed or moved.")
print("Nothing lost, nothing doubled.")
