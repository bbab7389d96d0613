"""A ZooKeeper and storage for development, by one command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.local.home import LocalHome
from pyspark_ledger.local.zookeeper import _free_ports
from tests.support.old_code import make_old_namespace

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LEDGER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    monkeypatch.delenv("LEDGER_ZOOKEEPER", raising=False)
    home = LocalHome()
    yield home
    home.stop()


def run(*arguments, **environment):
    return CliRunner().invoke(main, arguments, env=environment)


def answer(*arguments):
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_up_makes_everything_work_without_options_until_down(home, monkeypatch):
    (port,) = _free_ports(1)
    started = answer("up", "--port", str(port))
    assert started["zookeeper"] == f"127.0.0.1:{port}"
    assert started["storage"] == home.storage.as_uri()
    monkeypatch.setenv("LEDGER_ZOOKEEPER", started["zookeeper"])  # as 127.0.0.1:2181 needs none
    with LedgerClient() as client:
        client.create_topic("orders", SCHEMA)
        with client.producer("orders") as producer:
            producer.send({"v": 1})

    again = answer("up")
    assert (again["started"], again["pid"]) == (False, started["pid"])
    elsewhere = run("up", "--port", str(port + 1))
    assert (elsewhere.exit_code, "LEDGER_ZOOKEEPER_RUNNING" in elsewhere.stderr) == (1, True)
    told = answer("status")
    assert (told["running"], told["topics"], told["storage"]) == (True, 1, home.storage.as_uri())

    os.kill(started["pid"], signal.SIGKILL)  # the server goes with its process, and leaves a pid file
    deadline = time.monotonic() + 10
    while run("status").exit_code == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert answer("up", "--port", str(port))["started"] is True
    with LedgerClient() as client:
        assert [record["v"] for record in client.reader("orders", end="latest")] == [1]

    refused = run("down", "--purge")
    assert (refused.exit_code, str(home.storage) in refused.stdout, home.answers) == (1, True, True)
    assert answer("down") == {"stopped": True, "deleted": []}
    assert answer("down")["stopped"] is False
    stopped = run("status", "--json")
    assert (stopped.exit_code, json.loads(stopped.stdout)["running"]) == (1, False)
    (home.folder / "mine.txt").write_text("not made by up")
    run("down", "--purge", "--yes")
    assert [path.name for path in home.folder.iterdir()] == ["mine.txt"]


def test_maintenance_runs_beside_it_unless_told_not_to(home, monkeypatch):
    (port,) = _free_ports(1)
    monkeypatch.setenv("LEDGER_PROFILE", "of-another")  # what is meant for another ZooKeeper is in nobody's way
    monkeypatch.setenv("LEDGER_ZOOKEEPER_TLS", "true")
    assert answer("up", "--port", str(port), "--no-maintain")["maintainer_pid"] is None
    monkeypatch.setenv("LEDGER_ZOOKEEPER", home.address)
    first = answer("up")["maintainer_pid"]
    assert first is not None
    assert answer("status")["maintainer_pid"] == answer("up")["maintainer_pid"] == first
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while home.maintainer_pid is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second = answer("up")["maintainer_pid"]
    assert second not in (None, first)
    answer("down")
    assert (home.maintainer_pid, home.pid) == (None, None)
    run("down", "--purge", "--yes")
    assert not home.folder.exists()


def test_a_process_that_only_has_the_number_in_the_pid_file_is_left_alone(home):
    home.folder.mkdir(parents=True)
    (home.folder / "zookeeper.pid").write_text(f"{os.getpid()}\n")
    assert home.pid is None
    assert answer("down")["stopped"] is False


def test_up_says_what_is_in_its_way(home):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = run("up", "--port", str(other.getsockname()[1]))
    assert (taken.exit_code, "is in use by another program" in taken.stderr) == (1, True)
    nothing = run("up", PATH="", JAVA_HOME="")
    assert (nothing.exit_code, "install Java 17" in nothing.stderr) == (1, True)
    assert not home.folder.exists()


def test_up_says_who_else_serves_there(home, zookeeper):
    taken = run("up", "--port", zookeeper.rpartition(":")[2])
    assert (taken.exit_code, "is in use by another ZooKeeper" in taken.stderr) == (1, True)


def test_a_home_that_cannot_be_made_is_told_with_a_code(home):
    home.folder.write_text("a file")
    told = run("up", "--port", str(*_free_ports(1)))
    assert (told.exit_code, len(told.stderr.splitlines())) == (1, 1)
    assert f"[LEDGER_HOME_UNAVAILABLE] cannot make the folder {home.folder}: File exists" in told.stderr


def test_a_part_of_the_home_that_cannot_be_written_is_told_in_one_line(home):
    home.folder.mkdir()
    (home.folder / "zookeeper").write_text("a file")
    told = run("up", "--port", str(*_free_ports(1)))
    assert (told.exit_code, len(told.stderr.splitlines())) == (1, 1)
    assert "[LEDGER_ZOOKEEPER_NOT_STARTED] " in told.stderr
    assert "Traceback" not in told.stderr
    assert home.pid is None


def test_a_home_of_the_old_version_stays_up_so_that_it_can_be_upgraded(home, monkeypatch):
    (port,) = _free_ports(1)
    home.start(port)
    monkeypatch.setenv("LEDGER_ZOOKEEPER", home.address)
    make_old_namespace(home.address, str(home.storage))
    home.stop()

    told = run("up", "--port", str(port))
    assert (told.exit_code, len(told.stderr.splitlines())) == (1, 1)
    assert f"[LEDGER_OLDER_FORMAT] ZooKeeper runs at {home.address}, " in told.stderr
    assert "namespace upgrade" in told.stderr
    status = answer("status")
    assert (status["running"], "[LEDGER_OLDER_FORMAT]" in status["error"]) == (True, True)

    assert run("namespace", "upgrade", "--yes").exit_code == 0
    assert answer("up")["started"] is False
    assert "error" not in answer("status")


def test_after_a_purge_the_same_storage_can_be_used_again_and_without_one_a_loss_is_told_I18(home, tmp_path):
    (port,) = _free_ports(1)
    start = ("up", "--port", str(port), "--no-maintain", "--storage", str(tmp_path / "elsewhere"))
    for _ in range(2):
        assert answer(*start)["started"] is True
        assert run("down", "--purge", "--yes").exit_code == 0
    answer(*start)
    assert run("down").exit_code == 0
    shutil.rmtree(home.folder / "zookeeper")  # as a disk loses it
    lost = run(*start)
    assert (lost.exit_code, "LEDGER_NAMESPACE_LOST" in lost.stderr, home.pid) == (1, True, None)
