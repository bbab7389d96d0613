"""A Spark driver with some of the queries: ``python -m tests.soak.driver WORLD NAME START QUERY…``.

A query that fails by something that a fault may lead to is started again from its checkpoint, as a user's supervisor
does. One that fails otherwise ends the driver, which the run takes for a failure.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.soak.tap import Tap
from tests.soak.workers import die_with_parent, note
from tests.soak.world import (
    BILLING,
    CODE,
    COPIES,
    EXPECTED,
    FILE_MISSING,
    FOLLOW,
    FOLLOWED,
    INVOICES,
    JOBS,
    NEW_CHECKPOINT,
    ORDERS,
    STATES,
    TRIMMED,
    World,
    patiently,
)

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "FATAL",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "1000000",  # the checkpoint says in the end which batches were committed
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


# Spark gives a Python worker ten seconds to start, which is too little now and then if two cores have much to do.
NO_WORKER = "Python worker failed to connect back"


class Query:
    """One stream from the ledger to the ledger."""

    source, sink = ORDERS, COPIES
    subscription = ""
    read: ClassVar[dict[str, str]] = {}
    write: ClassVar[dict[str, str]] = {}

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.running: Any = None

    @property
    def life(self) -> str:
        """A query and its checkpoint."""
        return self.name

    def start(self, spark: SparkSession) -> None:
        tap = Tap(
            self.world, self.life, self.source, self.sink, self.subscription,
            "readCompacted" in self.read, "tokenColumn" in self.write, is_first=self.life == self.name,
            fans_out="topicColumn" in self.write,
        )  # fmt: skip
        common = {"zookeeper": self.world.zookeeper}
        read = common | {"includeMetadata": "true", "maxRowsPerTrigger": "1000", "minPartitions": "2"} | self.read
        rows = spark.readStream.format("ledger").options(**read).load(self.source)
        tapped = rows.coalesce(1).mapInArrow(tap, tap.schema)  # one task, in the order of its partitions
        write = common | {"checkpointLocation": str(self.world.checkpoint(self.life))} | self.write
        self.running = tapped.writeStream.format("ledger").options(**write).start(self.sink or None)

    def failed(self, text: str) -> None:
        """Notes what it was told, and prepares the next start."""
        lines = [line for line in text.splitlines() if CODE.search(line)]
        print(f"{time.monotonic():.1f} {self.life} told {lines[0] if lines else text}", flush=True)
        if NO_WORKER in text:
            return
        if not self.goes_on_after(CODE.findall(text)):
            raise SystemExit(f"{self.life} failed by something unexpected: {text}")

    def goes_on_after(self, codes: list[str]) -> bool:
        return any(code in EXPECTED for code in codes)


class BeginsAnew(Query):
    """One that is away for so long that something is gone is told so, and begins with a new checkpoint. A task that
    takes longer than the grace only sees that its file is missing: started again, the query is told why, or goes on."""

    @property
    def life(self) -> str:
        file = self.world.path("state", self.name)
        return f"{self.name}{file.read_text()}" if file.exists() else self.name

    def goes_on_after(self, codes: list[str]) -> bool:
        if not any(code in NEW_CHECKPOINT for code in codes):
            return FILE_MISSING in codes or super().goes_on_after(codes)
        file = self.world.path("state", self.name)
        note(file, int(file.read_text()) + 1 if file.exists() else 2)
        return True


class Copy(BeginsAnew):
    """No subscription, so that nothing is held back for it: every record that it does not miss once, in order."""


class Follow(BeginsAnew):
    """What it has not acknowledged is held back for it (I15). But a batch that was planned before a reset is held back
    only for the grace: one that could not be read for so long is gone."""

    sink = FOLLOWED
    subscription = FOLLOW
    read: ClassVar = {"subscription": FOLLOW}

    def goes_on_after(self, codes: list[str]) -> bool:
        return (TRIMMED not in codes or patiently(self._was_reset)) and super().goes_on_after(codes)

    def _was_reset(self) -> bool:
        """Since its last batch was planned."""
        batches = (file for file in (self.world.checkpoint(self.life) / "offsets").iterdir() if file.name.isdigit())
        last = max(batches, key=lambda file: int(file.name))
        planned = json.loads(last.read_text().splitlines()[-1])["topics"][ORDERS]["rev"]
        with self.world.client() as client:
            return bool(client.cursor(ORDERS, FOLLOW).stats().revision > planned)


class Latest(BeginsAnew):
    """The state of every key, and its changes. It begins anew if it would miss a deletion."""

    sink = STATES
    read: ClassVar = {"readCompacted": "true"}


class Spread(BeginsAnew):
    """As the copy, but each record goes to one of several topics: each batch to all of its topics, or to none."""

    sink = ""
    write: ClassVar = {"topicColumn": "topic"}


class Bill(Query):
    """Takes the tokens of jobs, in competition with a Python process."""

    source, sink = JOBS, INVOICES
    write: ClassVar = {"deduplication": "token", "tokenColumn": "token", "tokenGroup": BILLING}


QUERIES: dict[str, type[Query]] = {"copy": Copy, "follow": Follow, "latest": Latest, "bill": Bill, "spread": Spread}


def run(spark: SparkSession, queries: list[Query], is_over: Callable[[], bool]) -> None:
    while not is_over():
        for query in queries:
            try:
                if query.running is None:
                    query.start(spark)
                elif not query.running.isActive:
                    error = query.running.exception()
                    query.running = None
                    query.failed(str(error))
            except PySparkException as error:  # it could not even start
                query.running = None
                query.failed(str(error))
                time.sleep(0.5)
        time.sleep(0.1)


def main(file: str, name: str, start: str, *queries: str) -> None:
    die_with_parent()
    over: list[int] = []  # an exception in the middle of a call would confuse the connection to the JVM
    signal.signal(signal.SIGTERM, lambda number, _: over.append(number))
    world = World.load(file)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2,2]").appName(f"{name}.{start}")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.config("spark.sql.warehouse.dir", str(world.path("warehouse"))).getOrCreate()
    running = [QUERIES[query](world, query) for query in queries]
    try:
        run(spark, running, lambda: bool(over))
    finally:
        for query in running:
            with suppress(Exception):  # it ends in any case
                query.running.stop()
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
