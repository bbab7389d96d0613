"""How far a query is behind while it is killed and catches up: drawn as it happens, and as a picture if you want one.
Run: python examples/lag.py [lag.svg]"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from pyspark_ledger import LedgerClient, LocalZooKeeper
from pyspark_ledger.spark import lag

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python, not the first one in PATH
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
quiet = {"spark.log.level": "OFF", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
spark = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()

EVERY_S, A_BAR = 0.5, 250  # a sample; records for one character
samples: list[tuple[float, int, float, str]] = []  # when, records behind, seconds behind, what happened


def produce(client: LedgerClient, stop: threading.Event) -> None:
    """Two hundred orders at a time, five times a second, whatever the query does."""
    with client.producer("orders") as producer:
        while not stop.wait(0.2):
            for order in range(200):
                producer.send({"order_id": order})
            producer.flush()


def start() -> StreamingQuery:
    stream = (
        spark.readStream.format("ledger").options(zookeeper=zookeeper.address, maxRowsPerTrigger=3000).load("orders")
    )
    return stream.writeStream.format("noop").option("checkpointLocation", f"{folder}/cp").start()


def kill_the_planner() -> None:
    """The Python process that plans the query's batches, among those that this Spark has started."""
    for process in spark._jvm.java.lang.ProcessHandle.current().descendants().toArray():
        if "python_streaming_source_runner" in process.info().commandLine().orElse(""):
            process.destroyForcibly()


def watch(what: str, until: Callable[[int], bool]) -> None:
    """Draws a bar for each sample. ``lag`` also tells of a query that is dead: from where it was, to the end now."""
    global begun, progress
    deadline, said = time.monotonic() + 120, what
    while True:
        progress = query.lastProgress or progress  # of a query that was just started there is none yet
        found = lag(progress, client) if progress else None
        if found is not None:
            begun = begun or time.monotonic()
            samples.append((time.monotonic() - begun, found.records, found.seconds, said))
            at, records, seconds, _ = samples[-1]
            print(
                f"{at:6.1f} s {records:6d} records {seconds:5.1f} s behind {'#' * (records // A_BAR)} {said}",
                flush=True,
            )
            said = ""
            if until(records):
                return
        if time.monotonic() > deadline:
            sys.exit(f"waited too long: {query.exception() or query.status}")
        time.sleep(EVERY_S)


def picture() -> str:
    """The samples as SVG: records behind, over seconds."""
    last, top = samples[-1][0], max(records for _, records, *_ in samples)

    def x(seconds: float) -> float:
        return round(60 + seconds / last * 720, 1)

    def y(records: float) -> float:
        return round(300 - records / top * 260, 1)

    step = 10 ** (len(str(top)) - 1)
    grid = "".join(
        f'<path d="M60 {y(at)}H780" stroke="#ddd"/><text x="54" y="{y(at) + 4}" text-anchor="end">{at:,}</text>'
        for at in range(0, top + 1, step)
    )
    seconds = "".join(f'<text x="{x(at)}" y="318" text-anchor="middle">{at} s</text>' for at in range(0, int(last), 5))
    told = [(at, said) for at, _, _, said in samples if said]
    marks = "".join(
        f'<path d="M{x(at)} 20V300" stroke="#888" stroke-dasharray="4"/>'
        f'<text x="{x(at)}" y="{14 if number % 2 else 0}" text-anchor="middle">{said}</text>'
        for number, (at, said) in enumerate(told)
    )
    line = " ".join(f"{x(at)},{y(records)}" for at, records, *_ in samples)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -20 840 350" font-family="sans-serif" font-size="12">'
        f'<rect y="-20" width="840" height="350" fill="#fff"/>{grid}{seconds}{marks}'
        f'<polyline points="{line}" fill="none" stroke="#c33" stroke-width="2"/></svg>\n'
    )


with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    with LedgerClient(zookeeper.address, f"{folder}/ledger") as client:
        client.create_topic("orders", pa.schema([("order_id", pa.int64())]))
        stop, begun, progress = threading.Event(), 0.0, None
        producer = threading.Thread(target=produce, args=(client, stop), daemon=True)
        producer.start()
        query = start()
        watch("starts", until=lambda records: len(samples) > 4 and records < 2000)
        kill_the_planner()
        watch("killed", until=lambda records: not query.isActive and records > 6000)
        query = start()
        watch("started again", until=lambda records: bool(query.recentProgress) and records < 2000)
        stop.set()
        producer.join()
        query.processAllAvailable()
        watch("no more orders", until=lambda records: records == 0)
        query.stop()
    spark.stop()

if len(sys.argv) > 1:
    Path(sys.argv[1]).write_text(picture())
    print(f"the picture is in {sys.argv[1]}")
