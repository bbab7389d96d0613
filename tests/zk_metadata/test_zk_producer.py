"""A producer that many threads share, on a real server that goes away and comes back; and with its real defaults."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import pyarrow as pa
import pytest

from pyspark_ledger.client import LedgerClient
from pyspark_ledger.local.zookeeper import LocalZooKeeper

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(scope="module")
def server():
    with LocalZooKeeper(fsync=False) as server:
        yield server


@pytest.mark.parametrize("name", ["web", None], ids=["with a name", "without"])
def test_eight_threads_lose_and_double_nothing_while_zookeeper_is_killed_and_comes_back_I1_I5_I14(
    server, tmp_path, name
):
    with LedgerClient(f"{server.address}/{name}", str(tmp_path)) as client:
        client.create_topic("t", SCHEMA)
        with client.producer("t", name, linger_ms=2, max_waiting_records=2_000) as producer:
            enough = threading.Event()

            def send(thread: int):
                receipts, number = [], 0
                while not enough.wait(0.001):
                    receipts.append((thread * 1_000_000 + number, producer.send({"n": thread * 1_000_000 + number})))
                    number += 1
                return receipts

            with ThreadPoolExecutor(8) as pool:
                threads = [pool.submit(send, thread) for thread in range(8)]
                for _ in range(2):
                    enough.wait(0.3)
                    server.restart()
                enough.wait(0.5)
                enough.set()
            sent = [each for thread in threads for each in thread.result()]
            assert not wait([receipt for _, receipt in sent], 60).not_done
        where = {receipt.result().position: number for number, receipt in sent}
        found = {record.position: record["n"] for record in client.reader("t", end="latest")}
        assert found == where
        assert set(Counter(found.values()).values()) == {1}
        assert len(found) == len(sent) > 100


def test_a_service_needs_nothing_but_send(server, tmp_path):
    """The default, which the other tests do without."""
    signature = "import inspect, pyspark_ledger; print(inspect.signature(pyspark_ledger.LedgerClient.producer))"
    assert "linger_ms: 'float | None' = 5.0" in subprocess.check_output([sys.executable, "-c", signature], text=True)
    with LedgerClient(f"{server.address}/service", str(tmp_path)) as client:
        client.create_topic("t", SCHEMA)
        producer = client.producer("t", linger_ms=5.0)
        receipt = producer.send({"n": 1})
        assert receipt.result(30).position is not None
        assert [record["n"] for record in client.reader("t", end="latest")] == [1]
        producer.close(timeout=10)


EXITS = """
import sys
from pyspark_ledger import LedgerClient
producer = LedgerClient(sys.argv[1], sys.argv[2]).producer("t", linger_ms=60_000)
for number in range(100):
    producer.send({"n": number})
"""


def test_a_program_that_ends_without_closing_anything_has_stored_its_records_I1(server, tmp_path):
    with LedgerClient(f"{server.address}/exits", str(tmp_path)) as client:
        client.create_topic("t", SCHEMA)
        done = subprocess.run(
            [sys.executable, "-c", EXITS, client.zookeeper, str(tmp_path)], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert [record["n"] for record in client.reader("t", end="latest")] == list(range(100))
