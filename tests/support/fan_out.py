"""A Spark driver, in a process of its own, that spreads rows over topics, and that can be killed at any moment.

File n of the input has one row for each topic. Each run routes them in another way, and says so in each row. So in the
end every topic must have one row of each file, and all rows of a file must be of one run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from pyspark_ledger.client import LedgerClient, namespace_of

_DRIVER = """
import sys
from pyspark.sql import SparkSession, functions as F

zookeeper, folder, topics, run = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false").config("spark.log.level", "FATAL").config("spark.sql.shuffle.partitions", "2")
    .config("spark.python.unix.domain.socket.enabled", "true")
    .config("spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager")
    .getOrCreate()
)
rows = spark.readStream.schema("n long, i long").option("maxFilesPerTrigger", 1).json(f"{folder}/input")
to = F.when(F.col("i") >= 0, F.concat(F.lit("t"), (F.col("i") + run) % topics))  # a row below zero names none
rows = rows.repartition(2).withColumns({"to": to, "run": F.lit(run)})
options = {"zookeeper": zookeeper, "checkpointLocation": f"{folder}/checkpoint", "topicColumn": "to"}
stream = rows.writeStream.format("ledger").options(**options, deadLetterTopic="dead")
stream.trigger(availableNow=True).start().awaitTermination()
"""


class FanOut:
    def __init__(self, client: LedgerClient, folder: Path, topics: int, files: int) -> None:
        self.client, self.folder, self.topics, self.files, self.runs = client, folder, topics, files, 0
        (folder / "input").mkdir(parents=True)
        for n in range(files):
            rows = [f'{{"n": {n}, "i": {i}}}\n' for i in range(-1, topics)]
            file = folder / "input" / f"{n:05}.json"
            file.write_text("".join(rows))
            os.utime(file, (1e9 + n,) * 2)  # Spark takes the oldest first

    def start(self) -> subprocess.Popen[bytes]:
        self.runs += 1
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        arguments = [self.client.zookeeper, str(self.folder), str(self.topics), str(self.runs)]
        with (self.folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _DRIVER, *arguments], env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def finish(self) -> None:
        driver = self.start()
        try:
            status = driver.wait(300)
        except BaseException:
            kill(driver)
            raise
        assert status == 0, (self.folder / "driver.log").read_text()[-4000:]

    def found(self) -> dict[int, list[tuple[str, int, int]]]:
        """What the topics have of each file: topic, row and run."""
        by_file: dict[int, list[tuple[str, int, int]]] = {}
        for topic in self.client.topics():
            if topic.startswith("t"):
                for record in self.client.reader(topic, end="latest"):
                    by_file.setdefault(record["n"], []).append((topic, record["i"], record["run"]))
        return by_file

    def count(self) -> int:
        """How many files are in the first topic: quickly seen."""
        there = "t0" in self.client.topics()
        return namespace_of(self.client).log("t0").refresh().head.records if there else 0

    def check(self) -> int:
        """Every file is in all of its topics or in none, once, and by one run. Returns how many are there."""
        found = self.found()
        for n, rows in found.items():
            assert sorted(topic for topic, _, _ in rows) == sorted(f"t{i}" for i in range(self.topics)), (n, rows)
            assert sorted(row for _, row, _ in rows) == list(range(self.topics)), (n, rows)
            assert len({run for _, _, run in rows}) == 1, (n, rows)
        if "dead" in self.client.topics():
            assert len(list(self.client.reader("dead", end="latest"))) == len(found)
        return len(found)


def kill(driver: subprocess.Popen[bytes]) -> None:
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
