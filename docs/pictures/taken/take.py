"""Takes the pictures of docs/seeing.md again, and prints what that page quotes. Run by hand, a minute or two:

    python docs/pictures/taken/take.py

Needs the extras spark, cli and metrics, Java 17, and Chromium and pngquant (Debian's packages of these names). All
servers listen on 127.0.0.1, and end with it. The plot of lag is drawn by another script:

    python examples/lag.py docs/pictures/taken/lag.svg
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from pyspark_ledger import LedgerClient, LocalZooKeeper
from pyspark_ledger.spark import LagListener, error, lag, read

HERE = Path(__file__).parent
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # its UI too


def produce(client: LedgerClient, stop: threading.Event) -> None:
    """Two hundred orders every second, and a few returns."""
    with client.producer("orders") as orders, client.producer("returns") as returns:
        while not stop.wait(1):
            for order in range(200):
                orders.send({"order_id": order, "customer": order % 7, "cents": 100 * order})
                if order % 20 == 0:
                    returns.send({"order_id": order, "customer": order % 7, "cents": 100 * order})
            orders.flush()
            returns.flush()


def wait_for(query: StreamingQuery, batches: int) -> None:
    deadline = time.monotonic() + 180
    while not query.lastProgress or query.lastProgress["batchId"] < batches:
        if time.monotonic() > deadline or not query.isActive:
            sys.exit(f"waited too long: {query.exception() or query.status}")
        time.sleep(0.5)


def take(page: str, name: str, height: int) -> None:
    """A page of Spark's UI, as a PNG of 128 colours."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--user-data-dir={profile}", f"--window-size=1200,{height}", "--virtual-time-budget=20000"),
                *(f"--screenshot={HERE / name}", f"{spark.sparkContext.uiWebUrl}{page}"),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )
    subprocess.run(["pngquant", "--force", "--ext", ".png", "128", HERE / name], check=True)
    print(f"{name}: {(HERE / name).stat().st_size // 1000} kB")


def say(title: str, text: object) -> None:
    print(f"\n==== {title}\n{text}", flush=True)


def command(*words: str) -> None:
    line, environment = (
        [sys.executable, "-m", "pyspark_ledger.cli", *words],
        {**os.environ, "LEDGER_ZOOKEEPER": zookeeper.address},
    )
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)
    say(f"pyspark-ledger {' '.join(words)}", done.stdout + done.stderr)


def show_a_query() -> None:
    both = spark.readStream.format("ledger").options(
        **where,
        topics="orders,returns",
        includeMetadata="topic",
        maxRowsPerTrigger=500,
        subscription="billing",
        logLevel="info",
    )
    bills = both.load().selectExpr("order_id", "cents / 100 AS amount", "_metadata.topic AS why")
    sink = bills.writeStream.queryName("billing").format("ledger").options(**where, logLevel="info")
    query = sink.option("checkpointLocation", f"{folder}/checkpoint").trigger(processingTime="1 second").start("bills")
    wait_for(query, 10)
    progress, now = query.lastProgress, lag(query, client)
    say("query.lastProgress", json.dumps(json.loads(progress.json), indent=2))
    say("lag(query)", lag(progress))
    say("lag(query, client)", now)
    wait_for(query, 40)
    with urllib.request.urlopen(listener.url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    say("the listener's metrics", "\n".join(line for line in lines if line.startswith("ledger_query")))
    command("topics", "describe", "orders")
    command("cursors", "list", "orders")
    take(f"/StreamingQuery/statistics/?id={query.runId}", "statistics.png", 1290)
    show_an_error()
    take("/StreamingQuery/", "queries.png", 720)
    with urllib.request.urlopen(f"{spark.sparkContext.uiWebUrl}/StreamingQuery/", timeout=10) as answer:
        say("the code is below +details", "LEDGER_POSITION_PAST_END" in answer.read().decode())
    query.stop()
    query.awaitTermination(30)


def show_a_batch() -> None:
    orders = spark.read.format("ledger").options(**where).load("orders")
    spark.sparkContext.setJobDescription("orders of each customer")
    for chosen in (orders.select("customer"), read(orders).select("customer")):
        say("explain()", chosen._jdf.queryExecution().executedPlan().toString())
    read(orders).select("customer").groupBy("customer").count().collect()
    newest = spark._jsparkSession.sharedState().statusStore().executionsList().last().executionId()
    time.sleep(2)  # Spark's UI is told a little later
    take(f"/SQL/execution/?id={newest}", "plan.png", 1010)


def show_an_error() -> None:
    try:
        spark.read.format("ledger").options(**where).load("oders").show()
    except Exception as raised:
        say("an error as Spark shows it", str(raised)[:900])
        say("error(raised)", repr(error(raised)))
    stream = (
        spark.readStream.format("ledger").options(**where, logLevel="debug", startingOffsets="99:0:0").load("orders")
    )
    query = stream.writeStream.queryName("audit").format("noop").option("checkpointLocation", f"{folder}/wrong").start()
    try:
        query.awaitTermination(60)
    except Exception as raised:
        say("an error of a stream", str(raised)[:1200])
        say("error(raised)", repr(error(raised)))


logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(levelname)s %(name)s %(message)s")
logging.getLogger("pyspark_ledger.datasource.lag_listener").setLevel(logging.INFO)
with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    where = {"zookeeper": zookeeper.address}
    settings = {"spark.ui.port": "0", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    spark = SparkSession.builder.appName("billing").master("local[2]").config(map=settings).getOrCreate()
    with LedgerClient(zookeeper.address, f"{folder}/ledger") as client:
        schema = pa.schema([("order_id", pa.int64()), ("customer", pa.int64()), ("cents", pa.int64())])
        for topic in ("orders", "returns"):
            client.create_topic(topic, schema)
        listener = LagListener(client, port=0)
        spark.streams.addListener(listener)
        stop = threading.Event()
        producing = threading.Thread(target=produce, args=(client, stop), daemon=True)
        producing.start()
        try:
            show_a_query()
            show_a_batch()
        finally:
            stop.set()
            producing.join()
            spark.streams.removeListener(listener)
            listener.close()
    spark.stop()
