"""A process that forks while it has consumers and a transaction: they stay the parent's."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from pathlib import Path
from pyspark_ledger.client import client_of
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support.worlds import EAGER, SCHEMA

folder, type = Path(sys.argv[1]), sys.argv[2]
clock = SeededClock()
metadata = MemoryMetadata(MemoryServer(clock), None, clock)
client = client_of(OpenNamespace(metadata, str(folder), limits=EAGER, clock=clock))
for name in ("in", "out"):
    client.create_topic(name, SCHEMA)
with client.producer("in") as producer:
    for number in range(3):
        producer.send({"n": number})

consumer = client.consumer("in", "s", type)
first = consumer.receive(0.0)
transaction = client.transaction()
transaction.append("out", [{"n": 7}])
consumer._lock.acquire()  # as if another thread had it at this moment: in the child nobody releases it
child = os.fork()
if not child:
    calls = {
        "receive": lambda: consumer.receive(0.0),
        "acknowledge": lambda: consumer.acknowledge(first),
        "negative_acknowledge": lambda: consumer.negative_acknowledge(first),
        "redeliver_unacknowledged": consumer.redeliver_unacknowledged,
        "flush": consumer.flush,
        "close": consumer.close,
        "append": lambda: transaction.append("out", [{"n": 8}]),
        "transaction.acknowledge": lambda: transaction.acknowledge(consumer, first),
        "commit": transaction.commit,
    }
    for name, call in calls.items():
        try:
            call()
            print(name, "was done")
        except LedgerError as error:
            print(name, error.code)
    with consumer:
        sys.stdout.flush()
        sys.exit()  # as a child that ends like any other process, with nothing to close
consumer._lock.release()
assert os.waitpid(child, 0)[1] == 0
transaction.acknowledge(consumer, first)
transaction.commit()
consumer.close()
print([record["n"] for record in client.reader("out", end="latest")], client.cursor("in", "s").stats().backlog_records)
"""

CONSUMER = ["receive", "acknowledge", "negative_acknowledge", "redeliver_unacknowledged", "flush", "close"]
TRANSACTION = ["append", "transaction.acknowledge", "commit"]


@pytest.mark.parametrize("type", ["exclusive", "shared"])
def test_a_forked_child_is_refused_and_its_parent_goes_on_I6(tmp_path, type):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), type]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *refused, parent = done.stdout.splitlines()
    assert refused == [f"{call} LEDGER_FORKED" for call in CONSUMER + TRANSACTION]
    assert parent == "[7] 2"
