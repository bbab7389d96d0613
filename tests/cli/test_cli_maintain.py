"""``pyspark-ledger maintain`` on a real ZooKeeper: one process leads, another takes over, and a signal ends it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from unittest.mock import ANY

import pyarrow as pa
import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace
from pyspark_ledger.lifecycle.actions import NAMES
from pyspark_ledger.lifecycle.maintenance import Maintenance
from pyspark_ledger.metadata.port import CondemnedKey, CondemnedsKey, MaintainerKey, PoliciesKey
from pyspark_ledger.zk_metadata import paths
from tests.support import interruptible

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA)
        yield client


class Maintainer:
    """One process."""

    def __init__(self, namespace: str, *options: str) -> None:
        command = [sys.executable, "-m", "pyspark_ledger.cli", "maintain", "--zookeeper", namespace, "--json"]
        self.process = subprocess.Popen(
            [*command, "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            preexec_fn=interruptible,
        )  # fmt: skip
        self.url = json.loads(self.process.stdout.readline())["url"]

    def get(self, page: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.url}{page}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    @property
    def leads(self) -> bool:
        return self.get("/health/ready") == (200, "leads\n")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def started(namespace) -> Iterator[Callable[..., Maintainer]]:
    made: list[Maintainer] = []

    def start(*options: str) -> Maintainer:
        made.append(Maintainer(namespace, *options))
        return made[-1]

    yield start
    for maintainer in made:
        maintainer.process.kill()
        maintainer.process.communicate()


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def run(namespace: str, *options: str):
    return CliRunner().invoke(main, ["maintain", "--zookeeper", namespace, *options])


def test_the_leader_is_killed_and_the_other_takes_over(client, started):
    first = started()
    until(lambda: first.leads)
    second = started()
    until(lambda: second.get("/health/ready")[0] == 200)
    status, said = second.get("/health/ready")
    assert (
        status,
        "stands by: " in said,
        f"process {first.process.pid}" in said or str(first.process.pid) in said,
    ) == (
        200,
        True,
        True,
    )
    os.kill(first.process.pid, signal.SIGKILL)
    until(lambda: second.leads)
    first.process.wait()
    with client.producer("orders") as producer:
        producer.send({"v": 1})
    assert second.get("/health/live") == (200, "alive\n")
    status, metrics = second.get("/metrics")
    assert (status, "ledger_maintenance_leads 1.0" in metrics) == (200, True)
    until(lambda: 'ledger_maintenance_runs_total{action="gc"} ' in second.get("/metrics")[1])
    assert second.get("/elsewhere")[0] == 404


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_lets_the_lead_go(client, started, number):
    maintainer = started()
    until(lambda: maintainer.leads)
    assert maintainer.end(number) == 0
    assert namespace_of(client).metadata.read(MaintainerKey()) is None


def test_it_stands_by_a_topic_that_is_written_to(client, started):
    """Sealing, trimming and compacting go on beside a writer, and nothing that is kept is lost (I1, I15)."""
    client.create_topic("state", pa.schema([("k", pa.int64()), ("v", pa.int64())]), key="k")
    client.set_policies("state", compact_after_bytes=1, snapshot_commits=5)
    maintainer = started("--read-rate", "50MB", "--write-rate", "50MB")
    with client.producer("state") as producer:
        for number in range(30):
            producer.send({"k": number % 3, "v": number})
            producer.flush()
    assert [record["v"] for record in client.reader("state", end="latest")] == list(range(30))
    assert maintainer.end(signal.SIGTERM) == 0


def test_once_does_what_is_due_and_says_what_it_did(client, namespace):
    with client.producer("orders") as producer:
        producer.send({"v": 1})
    client.set_policies("orders", retention_age=timedelta(milliseconds=1))
    client.create_topic("gone", SCHEMA)
    client.delete_topic("gone")
    done = run(namespace, "--once", "--json")
    assert done.exit_code == 0, done.stderr
    rows = {row["action"]: row for row in json.loads(done.stdout)}
    assert set(rows) == set(NAMES)
    assert all(row["failed"] == 0 for row in rows.values())
    metadata = namespace_of(client).metadata
    assert [key for key in metadata.children(CondemnedsKey()) if isinstance(key, CondemnedKey)]  # it has its grace
    only = run(namespace, "--once", "--actions", "gc,trim", "--json")
    assert {row["action"] for row in json.loads(only.stdout)} == {"gc", "trim"}


def test_once_ends_with_status_1_if_something_failed_and_does_the_rest(client, namespace):
    """A topic whose nodes cannot be read stops no other one (I16)."""
    client.create_topic("damaged", SCHEMA)
    kazoo = KazooClient(namespace)
    kazoo.start()
    kazoo.set(paths.path(PoliciesKey(client.topic("damaged").uuid)), b"\xff not a record")
    kazoo.stop()
    kazoo.close()
    done = run(namespace, "--once", "--json")
    assert done.exit_code == 1
    rows = {row["action"]: row["failed"] for row in json.loads(done.stdout)}
    assert (rows.pop("look"), rows.pop("backup")) == (1, 1)  # it is not in the backup, which is said too
    assert set(rows.values()) == {0}


def test_what_is_wrong_with_its_options_is_said(namespace):
    assert "there is no action 'trimm': there are seal," in run(namespace, "--actions", "trimm").stderr
    assert "'fast' is no number of bytes per second: write 100MB" in run(namespace, "--read-rate", "fast").stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = run(namespace, "--port", str(taken.getsockname()[1]))
    assert (told.exit_code, "[LEDGER_PORT_IN_USE] cannot listen on 127.0.0.1:" in told.stderr) == (1, True)


def test_an_empty_namespace_is_no_error(namespace):
    assert run(namespace, "--once").exit_code == 0


def test_an_idle_topic_has_at_most_eleven_nodes_once_it_is_sealed(namespace, storage_root):
    """Ten thousand topics are a hundred thousand nodes, and not millions (I13)."""
    limits = replace(DEFAULT_LIMITS, ledger_age_ms=0)
    with client_of(open_namespace(namespace, storage_root, limits=limits)) as client:
        client.create_topic("orders", SCHEMA)
        for number in range(3):
            with client.producer("orders", "p") as producer:
                producer.send({"v": number})
        assert Maintenance(namespace_of(client)).once()
        assert namespace_of(client).log("orders").view().open_commits == ()
        uuid = client.topic("orders").uuid
    kazoo = KazooClient(namespace)
    kazoo.start()
    try:
        nodes = [f"{paths.TOPICS}/orders", *_below(kazoo, f"{paths.LOGS}/{uuid}")]
        assert len(nodes) <= 11, nodes
        assert sum(len(kazoo.get(node)[0]) for node in nodes) < 2_000
    finally:
        kazoo.stop()
        kazoo.close()


def _below(kazoo, path: str) -> Iterator[str]:
    yield path
    for name in kazoo.get_children(path):
        yield from _below(kazoo, f"{path}/{name}")


def test_what_zookeeper_knows_is_in_storage_after_a_round(client, namespace):
    with client.producer("orders") as producer:
        producer.send({"v": 1})
    client.create_cursor("orders", "billing")
    for did in ("1 logs, 1 readers, 1 namespaces", ""):  # the second process finds nothing that has changed
        command = ["maintain", "--once", "--actions", "backup", "--zookeeper", namespace, "--json"]
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout) == [{"action": "backup", "failed": 0, "seconds": ANY, "did": did}]
    storage = namespace_of(client).storage
    assert len([path for path in storage.list("") if path.startswith("ledger-recovery-")]) == 3
