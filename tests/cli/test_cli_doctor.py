"""pyspark-ledger doctor: what is missing or does not work is said with the way on, whatever else is missing too."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import socket
import stat

import pyarrow as pa
import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from pyspark_ledger.cli import checks, main
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.local.zookeeper import LocalZooKeeper, _free_ports
from pyspark_ledger.zk_metadata.server_words import Taken, servers, taken


@pytest.fixture
def client(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", pa.schema([("id", pa.int64())]))
        yield client


def examined(address, exit_code=0):
    done = CliRunner().invoke(main, ["doctor", "--zookeeper", address, "--json"])
    assert done.exit_code == exit_code, done.output
    return {row["what"]: row for row in json.loads(done.stdout)}


def nodes(address):
    host, _, chroot = address.partition("/")
    zookeeper = KazooClient(host)
    zookeeper.start()
    try:
        return sorted(zookeeper.get_children(f"/{chroot}")) if zookeeper.exists(f"/{chroot}") else None
    finally:
        zookeeper.stop()
        zookeeper.close()


def test_where_all_is_well_each_line_says_so_and_nothing_stays(client, zookeeper, storage_root):
    before = sorted(os.listdir(storage_root)), nodes(client.zookeeper)
    found = examined(client.zookeeper)
    for what in (
        "Python",
        "pyarrow",
        "kazoo",
        "pyspark",
        "pandas",
        "Java",
        f"ZooKeeper {zookeeper}",
        "namespace",
        "clock",
    ):
        assert found[what]["status"] == "ok", found[what]
    assert found[f"ZooKeeper {zookeeper}"]["found"].startswith("3.")
    assert "standalone" in found[f"ZooKeeper {zookeeper}"]["found"]
    assert "was written, synced, read and deleted in" in found["storage"]["found"]
    assert (found["limits"]["status"], found["limits"]["found"]) == ("ok", "sessions of 10s, and requests of 900.0 kB")
    assert {"latency", "disk"} <= found.keys()
    assert (sorted(os.listdir(storage_root)), nodes(client.zookeeper)) == before
    shown = CliRunner().invoke(main, ["--zookeeper", client.zookeeper, "doctor"]).stdout
    assert f"ok    Python  {' ' * (len(f'ZooKeeper {zookeeper}') - 6)}3." in shown


def test_without_a_server_without_java_and_without_spark_it_says_what_to_do(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    known = importlib.metadata.version

    def version(name):
        if name in ("pyspark", "pandas"):
            raise importlib.metadata.PackageNotFoundError(name)
        return "23.0" if name == "pyarrow" else known(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = examined("127.0.0.1:1", exit_code=1)
    assert (found["pyspark"]["status"], "pip install 'pyspark-ledger[spark]'" in found["pyspark"]["advice"]) == (
        "warn",
        True,
    )
    assert (found["Java"]["status"], found["Java"]["found"]) == ("warn", "not found")
    assert (found["pyarrow"]["status"], "23.0; tried with" in found["pyarrow"]["found"]) == ("warn", True)
    assert found["ZooKeeper 127.0.0.1:1"] == {
        "status": "fail", "what": "ZooKeeper 127.0.0.1:1", "found": "nothing listens there",
        "advice": "start it, or name another one with --zookeeper or LEDGER_ZOOKEEPER; 'pyspark-ledger up' starts one "
        "for development",
    }  # fmt: skip
    assert "namespace" not in found
    shown = CliRunner().invoke(main, ["--zookeeper", "127.0.0.1:1", "doctor"])
    assert (shown.exit_code, "-> start it, or name another one" in shown.stdout) == (1, True)


def test_an_old_java_with_spark_here_is_a_failure(tmp_path, monkeypatch, namespace):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = examined(namespace, exit_code=1)
    assert (found["Java"]["status"], "11.0.2" in found["Java"]["found"]) == ("fail", True)


def test_a_chroot_without_a_namespace_is_told_and_not_made(namespace):
    found = examined(namespace)
    assert (found["namespace"]["status"], "storage" in found) == ("warn", False)
    assert nodes(namespace) is None


def test_some_servers_of_several_and_addresses_that_are_none(client, zookeeper):
    dead = f"127.0.0.1:{_free_ports(1)[0]}"
    chroot = client.zookeeper.partition("/")[2]
    found = examined(f"{zookeeper},{dead}/{chroot}")
    assert (found[f"ZooKeeper {dead}"]["status"], found[f"ZooKeeper {zookeeper}"]["status"]) == ("warn", "ok")
    assert (found["ensemble"]["status"], found["storage"]["found"] != "") == ("warn", True)
    assert "is no connect string" in examined("a:b", exit_code=1)["ZooKeeper"]["advice"]
    assert [server.listens for server in servers(f"{zookeeper},{dead}")] == [True, False]


def test_a_server_that_gives_shorter_sessions_and_takes_no_large_request_is_found(monkeypatch):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Djute.maxbuffer=100000")
    with LocalZooKeeper(max_session_ms=5_000, fsync=False) as server:
        done = CliRunner().invoke(main, ["doctor", "--zookeeper", server.address, "--json"])
        session, request = (row for row in json.loads(done.stdout) if row["what"] == "limits")
        assert (done.exit_code, session["status"], request["status"]) == (1, "warn", "fail")
        assert "makes a session of 10s one of 5s" in session["found"]
        assert "takes no request of 900.0 kB" in request["found"]
        assert "jute.maxbuffer" in request["advice"]
        assert taken(server.address, 5.0, 50_000) == Taken(5.0, True)


def test_of_what_is_no_zookeeper_no_limits_are_told():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert taken(f"127.0.0.1:{silent.getsockname()[1]}", 10.0, 1_000, timeout_s=0.2) is None


def test_a_clock_that_is_wrong_is_found(client, monkeypatch):
    real = checks.SYSTEM_CLOCK.now_ms
    for off_ms, status in ((5_000, "warn"), (-120_000, "fail")):
        monkeypatch.setattr(type(checks.SYSTEM_CLOCK), "now_ms", lambda _, off=off_ms: real() + off)
        found = examined(client.zookeeper, exit_code=int(status == "fail"))
        assert (found["clock"]["status"], "run chrony" in found["clock"]["advice"]) == (status, True), found["clock"]


def test_a_storage_that_is_gone_or_full_is_a_failure_with_its_reason(client, storage_root, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100 << 30, 100 << 30, 0))
        assert examined(client.zookeeper)["disk"]["status"] == "warn"
    shutil.move(storage_root, f"{storage_root}-elsewhere")
    found = examined(client.zookeeper, exit_code=1)
    assert (found["storage"]["status"], "is the storage mounted" in found["storage"]["advice"]) == ("fail", True)
    assert not os.path.exists(storage_root)


def test_versions_are_compared_as_numbers():
    assert checks._fits("26.0.1", ">=24,<27")
    assert not checks._fits("27.0.0", ">=24,<27")
    assert not checks._fits("3.9.18", ">=3.11")
    assert checks._fits("6.31.1rc1", ">=6.31.1")
