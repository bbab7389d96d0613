"""Queries with state, over a killed driver and a live reset: what is exactly once, and what is delivered again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_ledger import LedgerClient
from tests.support import REPOSITORY
from tests.support.query import eventually
from tests.support.stateful import QUERIES, keeping_state, start

pytestmark = pytest.mark.spark

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")


@pytest.fixture
def client(namespace: str, storage_root: str) -> Iterator[LedgerClient]:
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", pa.schema([("customer", pa.string()), ("n", pa.int64()), ("ordered", TIME)]))
        client.create_topic("payments", pa.schema([("n", pa.int64()), ("paid", TIME)]))
        yield client


def order(client: LedgerClient, *numbers: int) -> None:
    with client.producer("orders") as producer:
        for n in numbers:
            customer = "ann" if n % 2 else "bob"
            producer.send({"customer": customer, "n": n, "ordered": NOON + timedelta(minutes=n)})


def pay(client: LedgerClient, *numbers: int, after: int = 30) -> None:
    with client.producer("payments") as producer:
        for n in numbers:
            producer.send({"n": n, "paid": NOON + timedelta(minutes=n + after)})


def rows(client: LedgerClient, topic: str) -> list[dict]:
    return [record.value for record in client.reader(topic, end="latest")] if topic in client.topics() else []


def numbers(client: LedgerClient, topic: str) -> list[int]:
    return sorted(row["n"] for row in rows(client, topic))


def counts(client: LedgerClient, customer: str) -> list[tuple[int, int, int]]:
    found = [row for row in rows(client, "counted") if row["customer"] == customer]
    return [(row["delivered"], row["orders"], row["n"]) for row in found]


@contextmanager
def doomed_driver(client: LedgerClient, folder: Path) -> Iterator[None]:
    """A driver with all the queries, in a process of its own, and SIGKILL for everything below it."""
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "tests.support.stateful", client.zookeeper, str(folder)]
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=os.environ | environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
        assert process.poll() is None, (folder / "driver.log").read_text()[-4000:]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_state_and_output_go_on_together_when_the_driver_is_killed_I1_I5(
    spark: SparkSession, client: LedgerClient, tmp_path: Path
) -> None:
    order(client, 1, 2, 3, 4, 5, 6, 3)  # the shop sends order 3 twice
    pay(client, 1, 2, 3)
    with doomed_driver(client, tmp_path):
        eventually(lambda: all(rows(client, name) for name in QUERIES), 150)
    order(client, 7, 8, 5, 1)
    pay(client, 5, 8)
    pay(client, 6, after=61)  # too late
    with keeping_state(spark):
        again = [start(spark, name, client.zookeeper, str(tmp_path), availableNow=True) for name in QUERIES]
        assert all(query.awaitTermination(150) for query in again)

    # Each order was counted once, with the state of those before it, whichever run has done it.
    assert sorted(counts(client, "ann")) == [(i, i, n) for i, n in enumerate([1, 3, 5, 3, 7, 5, 1], 1)]
    assert sorted(counts(client, "bob")) == [(i, i, n) for i, n in enumerate([2, 4, 6, 8], 1)]
    assert numbers(client, "distinct") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert numbers(client, "paid") == sorted([1, 2, 3, 3, 5, 5, 8, 1])  # by each pair of order and payment


def test_a_reset_delivers_again_and_state_takes_it_for_new_unless_it_knows_positions(
    spark: SparkSession, client: LedgerClient, tmp_path: Path
) -> None:
    order(client, 1, 2, 3)
    pay(client, 1, 2, 3)

    def delivered(counted: int, distinct: int, paid: list[int]) -> bool:
        found = len(rows(client, "counted")), len(rows(client, "distinct")), numbers(client, "paid")
        return found == (counted, distinct, sorted(paid))

    def reset() -> None:
        for name in QUERIES:
            client.cursor("orders", name).reset("earliest")

    with keeping_state(spark):
        running = [
            start(spark, name, client.zookeeper, str(tmp_path), subscription=name, processingTime="0 seconds")
            for name in QUERIES
        ]
        try:
            eventually(lambda: delivered(3, 3, [1, 2, 3]), 150)
            reset()
            eventually(lambda: delivered(6, 3, [1, 2, 3] * 2), 150)  # the payments are still there to be joined
            # Eight hours later by event time. Spark judges what is late by the watermark of one batch before.
            for n, seen in ((501, [501]), (503, [501, 503])):
                order(client, n)
                pay(client, n)
                eventually(lambda seen=seen: delivered(6 + len(seen), 3 + len(seen), [1, 2, 3] * 2 + seen), 150)
            reset()
            eventually(lambda: delivered(13, 5, [1, 2, 3] * 2 + [501, 503] * 2), 150)
        finally:
            for query in running:
                query.stop()
    # What counts deliveries counts them again and again; what remembers the last position does not.
    assert [orders for _, orders, _ in counts(client, "ann")] == [1, 2, 2, 2, 3, 4, 4, 4, 4, 4]
    assert [delivered for delivered, _, _ in counts(client, "ann")] == list(range(1, 11))
    assert numbers(client, "distinct") == [1, 2, 3, 501, 503]
