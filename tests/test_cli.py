"""The command line, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_ledger.cli import _told as told
from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.compaction import compacting

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture
def client(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA, key="k")
        with client.producer("orders") as producer:
            for n in range(100):
                producer.send({"k": f"k{n % 10}", "v": n})
        yield client


def run(client, *arguments):
    return CliRunner().invoke(main, ["--zookeeper", client.zookeeper, *arguments])


def test_a_topic_is_compacted_and_told_of(client):
    done = run(client, "topics", "compact", "orders")
    assert (done.exit_code, done.stdout.splitlines()[-1].startswith("orders: generation 1, 10 of 100 records")) == (
        0,
        True,
    )
    again = run(client, "topics", "compact", "orders", "--json")
    told = json.loads(again.stdout)
    assert (told["generation"], told["records"], told["horizon"]) == (1, 10, "0:1:0")


def test_an_error_is_one_line_and_exit_status_one(client):
    failed = run(client, "topics", "compact", "order")
    assert failed.exit_code == 1
    assert failed.stderr.strip() == (
        "Error: [LEDGER_TOPIC_NOT_FOUND] there is no topic 'order' in this namespace: did you mean 'orders'?"
    )
    wrong = run(client, "topics", "compact", "orders", "--every", "soon")
    assert (wrong.exit_code, "write 30s, 10m or 1h" in wrong.stderr) == (2, True)
    for option in ("--read-rate", "--write-rate"):
        wrong = run(client, "topics", "compact", "orders", option, "0")
        assert (wrong.exit_code, f"'{option}': 0.0 is not in the range x>0" in wrong.stderr) == (2, True)


def test_an_empty_topic_has_nothing_to_compact(client):
    client.create_topic("empty", SCHEMA, key="k")
    assert run(client, "topics", "compact", "empty").stdout == "empty: nothing to compact\n"
    with compacting(client.log("empty")):  # a first run of another process
        stats = client.compaction("empty")
    assert (stats.generation, told("empty", stats, False)) == (0, "empty: nothing to compact")


def test_it_runs_again_and_again_until_interrupted(client):
    command = [
        sys.executable,
        "-m",
        "pyspark_ledger.cli",
        "--zookeeper",
        client.zookeeper,
        "topics",
        "compact",
        "orders",
    ]
    daemon = subprocess.Popen([*command, "--every", "0.2s"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "generation 1" in daemon.stdout.readline()
    with client.producer("orders") as producer:
        producer.send({"k": "new", "v": 1})
    deadline = time.monotonic() + 30
    while client.compaction("orders").generation < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    daemon.send_signal(2)
    _, error = daemon.communicate(timeout=30)
    assert daemon.returncode == 1
    assert "Traceback" not in error


@pytest.mark.spark
def test_the_spark_engine_compacts_too(spark, client):
    done = run(client, "topics", "compact", "orders", "--engine", "spark", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["records"] == 10


def test_help_says_what_each_command_does():
    text = CliRunner().invoke(main, ["topics", "compact", "--help"]).stdout
    for word in ("--engine", "--read-rate", "--write-rate", "--every", "readCompacted"):
        assert word in text
