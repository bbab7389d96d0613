"""A declarative pipeline reads a topic and writes another; a full refresh writes nothing twice.
Run: python examples/declarative_pipeline.py"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from pyspark_ledger import LedgerClient, LocalZooKeeper

PIPELINE = Path(__file__).parent / "pipeline"
# Spark's own catalog forgets its tables with each run: this one is kept, in the folder in which the command runs.
KEPT = ["--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.ui.enabled=false"]


def send(*orders: int) -> None:
    with client.producer("orders") as producer:
        for order in orders:
            producer.send({"order_id": order, "cents": 100 * order})


def run(*arguments: str) -> None:
    """As ``spark-pipelines run`` in a shell."""
    command = [str(Path(sys.executable).parent / "spark-pipelines"), "run", *KEPT, "--spec", str(spec), *arguments]
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["LEDGER_ZOOKEEPER"] = client.zookeeper
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    bills = [bill["order_id"] for bill in client.reader("bills", end="latest")]
    print(f"   spark-pipelines run {' '.join(arguments)}: bills of orders {bills}", flush=True)


with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    spec = Path(folder, "spark-pipeline.yaml")
    text = (PIPELINE / spec.name).read_text()
    spec.write_text(text.replace("storage: storage", f"storage: file://{folder}/checkpoints"))
    Path(folder, "bills.py").write_text((PIPELINE / "bills.py").read_text())
    with LedgerClient(zookeeper.address, f"{folder}/ledger") as client:
        client.create_topic("orders", pa.schema([("order_id", pa.int64()), ("cents", pa.int64())]))
        print("1. Three orders.")
        send(1, 2, 3)
        run()
        print("2. Two more, and everything is computed again from the start.")
        send(4, 5)
        run("--full-refresh-all")
        print(f"   table of orders: {len(list(Path(folder).glob('spark-warehouse/orders/*.parquet')))} files")
