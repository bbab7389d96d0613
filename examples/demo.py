"""Exactly once, shown: a stream is killed twice at the worst moments, and nothing is lost or doubled.

``make demo``, or ``python -m examples.demo``. It brings its own ZooKeeper and a temporary folder, and takes both away.

A Spark query copies the topic ``orders`` to the topic ``invoices``. It runs in a process of its own, and that process
gets SIGKILL, once while a batch is being worked on, and once when the ledger has a batch and Spark's checkpoint does
not know it yet. Each time it is started again from its checkpoint. In the end everything is read back and compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_ledger import LedgerClient, LedgerError, LocalZooKeeper

ORDERS = 15_000
PER_BATCH = 1_000
FIRST_KILL_AT, SECOND_KILL_AT = 3, 7  # batches, at the earliest
PATIENCE_S = 90.0


# -- the process that gets killed --------------------------------------------------------------------------------


def run_query(folder: str, zookeeper: str) -> None:
    """An ordinary Spark job; nothing in it knows that it will be killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("pyspark-ledger demo")
    for option, value in {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.local.dir": f"{folder}/spark",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }.items():
        builder = builder.config(option, value)
    spark = builder.getOrCreate()

    orders = (
        spark.readStream.format("ledger")
        .option("zookeeper", zookeeper)
        .option("maxRowsPerTrigger", PER_BATCH)
        .load("orders")
    )
    (
        orders.selectExpr("order_id", "cents", "cents * 19 div 100 AS tax")
        .writeStream.format("ledger")
        .option("zookeeper", zookeeper)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start("invoices")
        .awaitTermination()
    )

    invoices = spark.read.format("ledger").option("zookeeper", zookeeper).load("invoices")
    found = invoices.selectExpr("count(*)", "count(DISTINCT order_id)", "sum(cents)").first()
    print(json.dumps(list(found or ())), flush=True)
    spark.stop()


def _end_with_parent() -> None:
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


# -- the one who starts and kills it -----------------------------------------------------------------------------


class Query:
    """The Spark job in a session of its own, so that all its processes can be found."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self._log = folder / "query.log"
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(scratch),
            # The job lives for seconds: compile quickly rather than well.
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData -XX:TieredStopAtLevel=1 "
            "-XX:+UseSerialGC",
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(folder), zookeeper],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=scratch,
                env=environment,
                start_new_session=True,
                text=True,
            )

    def kill_when(self, moment: Callable[[], bool]) -> None:
        """SIGKILL to the whole job as soon as the moment is there. It is stopped for a look, and goes on if the
        moment has passed meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._fail("ended before it was killed")
            if moment():
                self._signal(signal.SIGSTOP)
                if moment():
                    self.end()
                    return
                self._signal(signal.SIGCONT)
            time.sleep(0.005)
        self._fail(f"did not come to the moment of the kill in {PATIENCE_S:g} s")

    def result(self) -> list[int]:
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._fail(f"did not finish in {PATIENCE_S:g} s")
        if self._process.returncode != 0 or self._process.stdout is None:
            self._fail(f"ended with status {self._process.returncode}")
        return [int(number) for number in json.loads(self._process.stdout.read().splitlines()[-1])]

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        # Spark's Python workers make process groups of their own, the session is one. Where there is no /proc,
        # the driver's own group must do; its workers end when they find it gone.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(path.name)) == self._process.pid:
                    os.kill(int(path.name), number)

    def _fail(self, what: str) -> None:
        self.end()
        raise SystemExit(f"the query {what}; its log ends:\n{self._log.read_text(errors='replace')[-4000:]}")


@dataclass(frozen=True)
class Now:
    """What Spark's checkpoint and the ledger say at one moment; -1 for none yet."""

    planned: int
    finished: int
    appended: int

    @property
    def to_be_taken(self) -> bool:
        """Spark has begun a batch that the ledger does not have."""
        return self.planned > self.finished and self.planned > self.appended

    @property
    def to_be_dropped(self) -> bool:
        """The ledger has a batch that Spark will bring again."""
        return self.planned > self.finished and self.planned == self.appended


class Demo:
    def __init__(self, folder: Path, zookeeper: str, client: LedgerClient) -> None:
        self._folder, self._zookeeper, self._client = folder, zookeeper, client

    def run(self) -> bool:
        self._write_orders()
        say(f"\n2. A Spark query copies 'orders' to 'invoices', {PER_BATCH:,} records per micro-batch.")
        with self._query() as query:
            query.kill_when(self._working_on_a_batch)
        say("\n   kill -9, while a batch was being worked on.")
        self._tell()

        say("\n3. Started again from the same checkpoint.")
        with self._query() as query:
            query.kill_when(self._appended_and_spark_not_told)
        say("\n   kill -9 again, at the worst moment: the ledger has the batch, Spark does not know.")
        self._tell()

        say("\n4. Started again, and left alone until it is through.")
        with self._query() as query:
            counted = query.result()
        self._tell()
        return self._prove(counted)

    def _write_orders(self) -> None:
        schema = pa.schema([("order_id", pa.int64()), ("cents", pa.int64())])
        self._client.create_topic("orders", schema)
        numbers = range(ORDERS)
        with self._client.producer("orders") as producer:
            producer.send_batch(pa.table({"order_id": numbers, "cents": map(_cents, numbers)}, schema=schema))
        say(f"1. {ORDERS:,} orders written to topic 'orders'; it ends at position {self._client.end('orders')}.")

    @contextlib.contextmanager
    def _query(self) -> Iterator[Query]:
        query = Query(self._folder, self._zookeeper)
        try:
            yield query
        finally:
            query.end()

    # -- moments

    def _working_on_a_batch(self) -> bool:
        return self._open_batch_after(FIRST_KILL_AT) and self._now().to_be_taken

    def _appended_and_spark_not_told(self) -> bool:
        return self._open_batch_after(SECOND_KILL_AT) and self._now().to_be_dropped

    def _open_batch_after(self, batch: int) -> bool:
        return self._newest("offsets") > self._newest("commits") >= batch

    def _now(self) -> Now:
        state = self._dedup_state()
        return Now(self._newest("offsets"), self._newest("commits"), -1 if state is None else state.sequence)

    def _newest(self, log: str) -> int:
        folder = self._folder / "checkpoint" / log
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _dedup_state(self) -> Any:
        if "invoices" not in self._client.topics():
            return None
        return next(iter(self._client.producers("invoices")), None)

    # -- the story

    def _tell(self) -> None:
        now, state = self._now(), self._dedup_state()
        records = sum(batch.num_rows for batch in self._client.reader("invoices", end="latest").batches())
        say(f"     the ledger:   {records:>6,} records, ends at position {self._client.end('invoices')}")
        if state is not None:
            say(f"     dedup state:  producer {state.name[:14]}…, last sequence id {state.sequence}")
        say(f"     checkpoint:   batch {now.finished} finished, {open_batch(now)}")
        if now.to_be_taken:
            say(f"     so Spark will bring batch {now.planned} again, and the sink must take it")
        if now.to_be_dropped:
            say(f"     so Spark will bring batch {now.planned} again, and the sink must add nothing")

    def _prove(self, counted: list[int]) -> bool:
        records = list(self._client.reader("invoices", start="earliest", end="latest"))
        found = [record["order_id"] for record in records]
        distinct = set(found)
        lost, doubled = len(set(range(ORDERS)) - distinct), len(found) - len(distinct)
        in_order = found == list(range(ORDERS))
        expected = [ORDERS, ORDERS, sum(map(_cents, range(ORDERS)))]
        runs = {run for state in self._client.producers("invoices") for run in (state.run, *state.past_runs)}
        batches = len({record.sequence_id for record in records})

        say("\n5. Everything read back.")
        say(f"     expected      {ORDERS:>6,}")
        say(f"     found         {len(found):>6,}")
        say(f"     distinct      {len(distinct):>6,}")
        say(f"     duplicates    {doubled:>6,}")
        say(f"     lost          {lost:>6,}")
        say(f"     in the order in which they were written: {'yes' if in_order else 'NO'}")
        say(f"     Spark's own count, distinct count and sum: {'the same' if counted == expected else counted}")
        say(f"     {batches} batches, by {len(runs)} runs of one query")
        return (lost, doubled, in_order, counted) == (0, 0, True, expected)


def open_batch(now: Now) -> str:
    return f"batch {now.planned} open" if now.planned > now.finished else "none open"


def _cents(order: int) -> int:
    return 100 + order * 37 % 9_900


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="ledger-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            with LocalZooKeeper() as zookeeper:
                say(f"ZooKeeper on {zookeeper.address}, files in {folder / 'ledger'}, both only for this demo.\n")
                with LedgerClient(zookeeper.address, str(folder / "ledger")) as client:
                    proved = Demo(folder, zookeeper.address, client).run()
        except LedgerError as error:
            say(f"\n{error}")
            return 1
    took = time.monotonic() - began
    say(f"\n{'Exactly once: nothing lost, nothing doubled.' if proved else 'THE PROOF FAILED.'} ({took:.0f} s)")
    return 0 if proved else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_query(*sys.argv[1:])
    else:
        sys.exit(main())
