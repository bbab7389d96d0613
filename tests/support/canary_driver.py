"""A Spark application that is given secrets in every way there is, and keeps all that can be seen of it.

It is run as a script: what it prints and logs is part of what is looked through.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
GIVEN: dict[str, dict[str, str]] = json.loads(sys.stdin.read())  # options with secrets in them, and a profile's name
SEEN = FOLDER / "seen"
LOCAL = FOLDER / "local"

os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

from pyspark.sql import DataFrame, SparkSession  # noqa: E402 - after what it takes from the environment

SESSION = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "INFO",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": (FOLDER / "warehouse").as_uri(),
    "spark.local.dir": str(LOCAL),
    "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={LOCAL}",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": (FOLDER / "events").as_uri(),
    # What is kept on disk is to be read as it is.
    **{f"spark.{what}.compress": "false" for what in ("eventLog", "broadcast", "shuffle", "shuffle.spill", "rdd")},
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def keep(name: str, text: object) -> None:
    (SEEN / name).write_text(str(text))


def main() -> None:
    for folder in (SEEN, LOCAL, FOLDER / "events"):
        folder.mkdir(parents=True)
    builder = SparkSession.builder.master("local[2]").appName("canary")
    for key, value in SESSION.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for way, options in GIVEN.items():
        play(spark, way, {**options, "logLevel": "debug"})
    keep_the_ui(spark)
    shutil.copytree(LOCAL, FOLDER / "local-kept", ignore_dangling_symlinks=True)
    spark.stop()


def play(spark: SparkSession, way: str, options: dict[str, str]) -> None:
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "n long, t string")
    batch = rows.write.format("ledger").options(**options).option("producerName", "p").option("sequenceId", "1")
    batch.mode("append").save("orders")
    stream = spark.readStream.format("ledger").options(**options).load("orders")
    writer = stream.writeStream.format("ledger").options(**options).queryName(f"canary_{way}")
    query = writer.option("checkpointLocation", str(FOLDER / f"checkpoint-{way}")).trigger(availableNow=True)
    running = query.start("copies")
    running.awaitTermination()
    keep(f"query-{way}", [running.lastProgress, running.status, running.recentProgress])
    keep(f"query-explained-{way}", running._jsq.explainInternal(True))
    found = spark.read.format("ledger").options(**options).load("copies")
    copied = found.collect()
    assert len(copied) == 2
    keep(f"rows-{way}", copied)
    keep_plan(f"batch-{way}", found)
    keep_plan(f"stream-{way}", stream)
    if way == "options":
        spark.sql(f"CREATE TEMPORARY VIEW v USING ledger OPTIONS ({sql({**options, 'topic': 'orders'})})")
        keep_plan("view", spark.table("v"))
    fail(spark, way, options)


def sql(options: dict[str, str]) -> str:
    return ", ".join(f"'{name}' '{value}'" for name, value in options.items())


def keep_plan(name: str, frame: DataFrame) -> None:
    for mode in ("extended", "formatted"):
        keep(f"plan-{name}-{mode}", frame._sc._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), mode))
    keep(f"plan-{name}", frame._jdf.queryExecution().toString())
    keep(f"plan-{name}-json", frame._jdf.queryExecution().logical().toJSON() if not frame.isStreaming else "")
    keep(f"plan-{name}-repr", repr(frame))


def fail(spark: SparkSession, way: str, options: dict[str, str]) -> None:
    """Errors of every kind, each with all secrets at hand."""

    def read(topic: str = "orders", **changed: str) -> Callable[[], Any]:
        return lambda: spark.read.format("ledger").options(**{**options, **changed}).load(topic).count()

    def write(**changed: str) -> Callable[[], Any]:
        rows = spark.createDataFrame([(1,)], "other long")
        return lambda: rows.write.format("ledger").options(**{**options, **changed}).mode("append").save("orders")

    wrong: dict[str, Callable[[], Any]] = {
        "topic": read("none"),
        "schema": write(),
        "store": read(**{"storage.endpoint": "127.0.0.1:9", "storage.connectTimeout": "1"}),
        "foreign": read(**{"storage.sasToken": options.get("storage.secretKey", "x")}),
        "both": read(**{"zookeeper.user": "u", "zookeeper.password": options.get("zookeeper.password", "u:x")}),
    }
    if way == "profile":
        wrong = {"store": wrong["store"]}
    for name, call in wrong.items():
        try:
            call()
        except Exception:
            keep(f"error-{way}-{name}", traceback.format_exc())
        else:
            raise AssertionError(f"{name} is no error")


def keep_the_ui(spark: SparkSession) -> None:
    ui = spark.sparkContext.uiWebUrl
    assert ui is not None
    application = f"api/v1/applications/{spark.sparkContext.applicationId}"
    pages = ["jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/"]
    pages += [f"{application}/{what}" for what in ("jobs", "stages?details=true", "environment", "sql?details=true")]
    executions = json.loads(_page(f"{ui}/{application}/sql?details=true&length=1000"))
    pages += [f"SQL/execution/?id={each['id']}" for each in executions]
    for number, page in enumerate(pages):
        keep(f"ui-{number}", _page(f"{ui}/{page}"))


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


if __name__ == "__main__":
    main()
