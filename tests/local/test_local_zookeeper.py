from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from pyspark_ledger.errors import InvalidInput, NotFound, Unavailable
from pyspark_ledger.local.zookeeper import HOST, LocalZooKeeper

needs_proc = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="looks into /proc")


@contextmanager
def client(address: str, session: float = 4.0) -> Iterator[KazooClient]:
    zk = KazooClient(address, timeout=session)
    zk.start(20)
    try:
        yield zk
    finally:
        zk.stop()
        zk.close()


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    """A zombie is dead: who reaps it is not our business."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="module")
def ensemble() -> Iterator[LocalZooKeeper]:
    with LocalZooKeeper(servers=3, fsync=False) as servers:
        yield servers


@needs_proc
@pytest.mark.filterwarnings("ignore:No chroot path exists")
def test_a_single_server_takes_a_write_and_leaves_nothing_behind() -> None:
    with LocalZooKeeper() as server:
        folder = server._folder
        assert folder is not None
        assert server.leader() == 0
        with client(server.address + "/chroot") as zk:
            zk.ensure_path("/")
            zk.create("/a", b"1")
            assert zk.get("/a")[0] == b"1"
        pid = server.pids[0]
        assert pid
    assert not is_alive(pid)
    assert not folder.exists()


@needs_proc
def test_it_listens_on_the_loopback_only() -> None:
    with LocalZooKeeper(fsync=False) as server:
        port = int(server.address.rpartition(":")[2])
        listeners = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert f"0100007F:{port:04X}" in listeners
        assert f"00000000:{port:04X}" not in listeners


def test_stop_and_start_may_be_repeated() -> None:
    server = LocalZooKeeper(fsync=False)
    server.stop()
    assert server.start() is server.start()
    server.stop()
    server.stop()
    assert server.addresses == []
    with server:
        assert server.running


def test_two_at_once_have_their_own_ports() -> None:
    with LocalZooKeeper(fsync=False) as one, LocalZooKeeper(fsync=False) as two:
        assert one.address != two.address
        with client(one.address) as zk:
            zk.create("/only-in-one")
        with client(two.address) as zk:
            assert zk.exists("/only-in-one") is None


def test_a_lost_port_race_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark_ledger.local import zookeeper as local_zookeeper

    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        free = local_zookeeper._free_ports
        offers = iter([[taken.getsockname()[1], *free(2)], free(3)])
        monkeypatch.setattr(local_zookeeper, "_free_ports", lambda count: next(offers))
        with LocalZooKeeper(fsync=False) as server, client(server.address) as zk:
            assert zk.exists("/zookeeper")


def test_data_survive_a_kill_and_a_new_start_in_a_given_folder(tmp_path: Path) -> None:
    with LocalZooKeeper(data_dir=tmp_path / "zk") as server:
        with client(server.address) as zk:
            zk.create("/kept", b"1")
            server.kill()
            server.restart()
            zk.retry(zk.set, "/kept", b"2")
        with pytest.raises(InvalidInput, match="LEDGER_FOLDER_IN_USE"):
            LocalZooKeeper(data_dir=tmp_path / "zk").start()
    with LocalZooKeeper(data_dir=tmp_path / "zk") as again, client(again.address) as zk:
        assert zk.get("/kept")[0] == b"2"


def test_an_ensemble_survives_the_loss_of_its_leader(ensemble: LocalZooKeeper) -> None:
    first = ensemble.leader()
    with client(ensemble.address) as zk:
        zk.create("/n", b"0")
        ensemble.kill(first)
        zk.retry(zk.set, "/n", b"1")
        assert ensemble.leader() != first
        ensemble.restart(first)
    with client(ensemble.addresses[first]) as zk:
        zk.sync("/n")
        assert zk.get("/n")[0] == b"1"


def test_an_ensemble_works_on_while_a_member_is_paused(ensemble: LocalZooKeeper) -> None:
    leader = ensemble.leader()
    paused, other = (index for index in range(3) if index != leader)
    ensemble.pause(paused)
    try:
        with client(f"{ensemble.addresses[leader]},{ensemble.addresses[other]}") as zk:
            zk.create("/while-paused", b"1")
    finally:
        ensemble.resume(paused)
    with client(ensemble.addresses[paused]) as zk:
        zk.sync("/while-paused")
        assert zk.get("/while-paused")[0] == b"1"


def test_an_ensemble_finds_its_data_on_other_ports(tmp_path: Path) -> None:
    with LocalZooKeeper(3, tmp_path, fsync=False) as servers, client(servers.address) as zk:
        zk.create("/kept", b"1")
    with LocalZooKeeper(3, tmp_path, fsync=False) as servers, client(servers.address) as zk:
        assert zk.get("/kept")[0] == b"1"


PARENT = """
import sys, time
from pyspark_ledger.local.zookeeper import LocalZooKeeper
server = LocalZooKeeper(fsync=False).start()
print(server.pids[0], server._folder, flush=True)
time.sleep(600)
"""


@needs_proc
@pytest.mark.parametrize("paused", [False, True])
def test_the_server_dies_with_a_killed_parent(paused: bool, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline().split()[0])
        assert is_alive(pid)
        if paused:
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
        assert eventually(lambda: not is_alive(pid), 5)


def test_in_the_foreground_it_runs_until_a_sigterm(tmp_path: Path) -> None:
    with LocalZooKeeper(fsync=False) as used:  # its neighbour is as likely free as any
        port = int(used.address.rpartition(":")[2]) + 7
    command = [
        sys.executable,
        "-m",
        "pyspark_ledger.local.zookeeper",
        "--port",
        str(port),
        "--data",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline().strip() == f"127.0.0.1:{port}"
        with client(f"127.0.0.1:{port}") as zk:
            assert zk.exists("/zookeeper")
        refused = subprocess.run([*command[:-1], str(tmp_path / "x")], capture_output=True, text=True)
        assert refused.returncode == 1
        assert "LEDGER_PORT_IN_USE" in refused.stderr
        server.terminate()
        assert server.wait(10) == 0
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1)


def test_a_forked_child_does_not_stop_the_server() -> None:
    with LocalZooKeeper(fsync=False) as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        os.waitpid(child, 0)
        assert server.running


def test_without_java_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotFound, match=r"LEDGER_JAVA_NOT_FOUND.*install Java 17 or newer"):
        LocalZooKeeper().start()


def test_a_failing_java_is_shown_with_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="no such thing"):
        LocalZooKeeper().start()


def test_without_jars_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with pytest.raises(NotFound, match=r"pip install 'pyspark-ledger\[spark\]'"):
        LocalZooKeeper().start()


def test_it_brings_no_heavy_import() -> None:
    code = (
        "import sys, pyspark_ledger.local.zookeeper;"
        "sys.exit(bool({'pyarrow', 'kazoo', 'pyspark', 'pandas'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_that_cannot_be_written_is_told_with_a_code(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(Unavailable, match=r"LEDGER_ZOOKEEPER_NOT_STARTED.*write to .*file/data: Not a directory"):
        LocalZooKeeper(data_dir=tmp_path / "file" / "data").start()
