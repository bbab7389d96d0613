"""A real ZooKeeper on this machine, one server or an ensemble, from the jars that PySpark brings along.

In the foreground: ``python -m pyspark_ledger.local.zookeeper --port 2181 --data DIR``.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Deadline
from pyspark_ledger.errors import InvalidInput, LedgerError, NotFound, Unavailable, disk_errors
from pyspark_ledger.local.certificates import Certificates
from pyspark_ledger.local.pidfile import held, lock
from pyspark_ledger.local.protection import Protection

HOST = "127.0.0.1"
# Below what Linux and macOS give to outgoing connections: a client that reconnects to a dead server on a port
# of that range can end up connected to itself, and the server then never gets its port back.
_PORTS = range(20_000, 32_000)
# The shell becomes java. A child of the shell waits for the end of the pipe that we hold, which comes when we die in
# whatever way, and then kills java. A line on the pipe ends the child, so that it never kills a pid that was reused.
_SUPERVISED = 'exec 3<&0; (read -r _ <&3 || kill -9 $$) >/dev/null 2>&1 & exec 3<&-; exec "$@" </dev/null'
_JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto"]
_QUIET = ["-Dlog4j2.level=WARN", "-Dzookeeper.jmx.log4j.disable=true", "-Djava.net.preferIPv4Stack=true"]
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_START_TIMEOUT = 60.0
_ATTEMPTS = 4
_NOT_STARTED = "LEDGER_ZOOKEEPER_NOT_STARTED"
_TAIL_BYTES = 4_000


def find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = (home and shutil.which("java", path=os.path.join(home, "bin"))) or shutil.which("java")
    if not found:
        raise NotFound(
            "no java in JAVA_HOME or PATH: install Java 17 or newer, for example"
            " apt-get install openjdk-17-jre-headless",
            "LEDGER_JAVA_NOT_FOUND",
        )
    return found


def find_jars() -> Path:
    """The folder with ZooKeeper's jars; looks for PySpark without importing it."""
    spec = importlib.util.find_spec("pyspark")
    roots = [*((spec and spec.submodule_search_locations) or []), os.environ.get("SPARK_HOME", "")]
    for jars in (Path(root) / "jars" for root in roots if root):
        if any(jars.glob("zookeeper-[0-9]*.jar")):
            return jars
    raise NotFound(
        "ZooKeeper's server comes with PySpark, which is neither installed nor in SPARK_HOME:"
        " pip install 'pyspark-ledger[spark]'",
        "LEDGER_ZOOKEEPER_JARS_NOT_FOUND",
    )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False


def _free_ports(count: int) -> list[int]:
    first = int.from_bytes(SYSTEM_CLOCK.new_id()[:4], "big")
    ports: list[int] = []
    for step in range(len(_PORTS)):
        port = _PORTS[(first + step) % len(_PORTS)]
        if is_free(port):
            ports.append(port)
            if len(ports) == count:
                return ports
    raise Unavailable(f"fewer than {count} free ports in {_PORTS}", "LEDGER_NO_FREE_PORT")


def _ask(port: int, word: str, timeout: float = 1.0, tls: ssl.SSLContext | None = None) -> str:
    """The answer to a four-letter word, empty if there is none."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout) as plain:
        plain.settimeout(timeout)
        with plain if tls is None else tls.wrap_socket(plain) as conn:
            conn.sendall(word.encode())
            return b"".join(iter(lambda: conn.recv(4096), b"")).decode(errors="replace")
    return ""


def mode(port: int, tls: ssl.SSLContext | None = None) -> str:
    """standalone, leader, follower; empty if no ZooKeeper serves there."""
    lines = _ask(port, "srvr", tls=tls).splitlines()
    return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")


@dataclass
class _Member:
    number: int  # from 1, as in ZooKeeper's myid
    folder: Path
    ports: tuple[int, int, int]  # client, quorum, election
    tls: ssl.SSLContext | None = None  # to ask it how it is
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.ports[0]}"

    @property
    def config(self) -> Path:
        return self.folder / "zoo.cfg"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def launch(self, command: list[str]) -> None:
        with self.log.open("ab") as log:
            if not lock(log, fcntl.LOCK_EX):  # java inherits the lock: two servers never share a folder
                raise InvalidInput(f"a server runs in {self.folder}", "LEDGER_FOLDER_IN_USE")
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", _SUPERVISED, "zookeeper", *command, str(self.config)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                bufsize=0,
                start_new_session=True,  # a Ctrl-C is for us, not for the server
            )

    def kill(self) -> None:
        """Kills the server. Nothing is lost, because ZooKeeper logs a write before it answers."""
        process, self.process = self.process, None
        if process is None or process.stdin is None:
            return
        process.kill()
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(b"\n")
        process.wait()

    def signal(self, number: signal.Signals) -> None:
        if not self.running or self.process is None:
            raise InvalidInput(f"server {self.number - 1} is not running", "LEDGER_ZOOKEEPER_NOT_RUNNING")
        self.process.send_signal(number)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def mode(self) -> str:
        return mode(self.ports[0], self.tls) if self.running else ""

    @property
    def ready(self) -> bool:
        """Whether it serves. Another server may have taken the port, so its folder is compared too."""
        return bool(self.mode) and f"dataDir={self.folder}" in _ask(self.ports[0], "conf", tls=self.tls)

    def tail(self) -> str:
        return self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")


class LocalZooKeeper:
    """Real ZooKeeper servers on this machine, for development and tests. They listen on 127.0.0.1 only and end with the
    process that started them, even if that is killed. Needs Java 17 and PySpark, whose jars contain ZooKeeper.

    Args:
        servers: how many; three make an ensemble that survives the loss of one.
        data_dir: a folder to keep the data in; without one they are temporary.
        port: the first server's port, the others follow; without one free ports are chosen.
        tick_ms: ZooKeeper's tickTime.
        min_session_ms: the shortest session time-out that a client may ask for.
        max_session_ms: the longest.
        fsync: False is faster. Then data survive a kill of the server, but not of the machine.
        tls: takes only encrypted connections. The certificates are made on the fly, unless they are given.
        client_certificates: and only from who shows a certificate of the same authority.
        sasl: serves only the user ``ledger``, by SASL with a password that is made up.

    Raises InvalidInput if ``servers`` is below 1. Servers are numbered from 0.

    >>> with LocalZooKeeper(fsync=False) as zookeeper:
    ...     with LedgerClient(zookeeper.address, storage_root) as client:
    ...         client.topics()
    []
    """

    def __init__(
        self,
        servers: int = 1,
        data_dir: str | os.PathLike[str] | None = None,
        port: int | None = None,
        *,
        tick_ms: int = 500,
        min_session_ms: int = 1_000,
        max_session_ms: int = 60_000,
        fsync: bool = True,
        tls: bool | Certificates = False,
        client_certificates: bool = False,
        sasl: bool = False,
    ) -> None:
        if servers < 1:
            raise InvalidInput(f"servers must be 1 or more, not {servers}")
        self._protection = Protection(tls, client_certificates=client_certificates, sasl=sasl)
        self._servers = servers
        self._data_dir = Path(data_dir).absolute() if data_dir is not None else None
        self._port = port
        self._settings = {
            "tickTime": tick_ms,
            "initLimit": 20,
            "syncLimit": 10,
            "minSessionTimeout": min_session_ms,
            "maxSessionTimeout": max_session_ms,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "quorumListenOnAllIPs": "false",
            "4lw.commands.whitelist": "srvr,ruok,conf",
            "forceSync": "yes" if fsync else "no",
            "preAllocSize": 1_024,
            "autopurge.purgeInterval": 1,
        }
        self._folder: Path | None = None
        self._members: list[_Member] = []
        self._command: list[str] = []
        self._owner = 0

    def __enter__(self) -> LocalZooKeeper:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """The connect string of all servers, as in ``127.0.0.1:20001,127.0.0.1:20004``. Empty before the start."""
        return ",".join(self.addresses)

    @property
    def addresses(self) -> list[str]:
        """The address of each server."""
        return [member.address for member in self._members]

    @property
    def options(self) -> dict[str, str]:
        """What it takes to connect, by the names of Spark's options: also ``LedgerClient(options=server.options)``."""
        return {"zookeeper": self.address, **self._protection.options}

    @property
    def certificates(self) -> Certificates | None:
        """Of a server with ``tls``, when it was started: the files."""
        return self._protection.certificates

    @property
    def pids(self) -> list[int | None]:
        """The process id of each server; None for one that was killed."""
        return [member.process.pid if member.process else None for member in self._members]

    @property
    def running(self) -> bool:
        """Whether all servers' processes are alive."""
        return bool(self._members) and all(member.running for member in self._members)

    def start(self) -> LocalZooKeeper:
        """Starts all servers, waits until they serve, and returns this object. Does nothing if they were started
        before.

        Raises NotFound if there is no Java or no PySpark; InvalidInput if a given port is in use or another server
        runs in the folder; Unavailable (LEDGER_ZOOKEEPER_NOT_STARTED) if a server does not come up, with the end of its
        log."""
        if self._members:
            return self
        java, jars = find_java(), f"{find_jars()}/*"
        if self._port is not None:
            self._require_free(self._port)
        self._make_folder()
        self._command = [java, *_JVM, *_QUIET, *self._protection.jvm_options, "-cp", jars, _MAIN]
        self._owner = os.getpid()
        atexit.register(self.stop)
        try:
            self._start_on_some_ports()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stops all servers, and removes the data unless ``data_dir`` was given. Stopping twice is fine."""
        atexit.unregister(self.stop)
        if self._owner != os.getpid():
            return  # a forked child does not own the servers
        self._kill_all()
        self._members = []
        if self._folder is not None and self._data_dir is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def kill(self, member: int = 0) -> None:
        """Kills one server with SIGKILL."""
        self._members[member].kill()

    def restart(self, member: int = 0) -> None:
        """Starts one server again, with its port and its data, and waits until it serves. Raises what :meth:`start`
        raises."""
        self._members[member].kill()
        self._members[member].launch(self._command)
        self._await_ready([self._members[member]])

    def pause(self, member: int = 0) -> None:
        """Stops one server with SIGSTOP: it keeps its connections and answers nothing. Raises InvalidInput if it is not
        running."""
        self._members[member].signal(signal.SIGSTOP)

    def resume(self, member: int = 0) -> None:
        """Lets a paused server go on, with SIGCONT. Raises InvalidInput if it is not running."""
        self._members[member].signal(signal.SIGCONT)

    def leader(self, timeout: float = 30.0) -> int:
        """The number of the server that leads. Waits until there is one, and raises Unavailable after ``timeout``
        seconds."""
        deadline = Deadline(SYSTEM_CLOCK, timeout)
        while not deadline.passed:
            for index, member in enumerate(self._members):
                if member.mode in ("leader", "standalone"):
                    return index
            SYSTEM_CLOCK.sleep(0.1)
        raise Unavailable(f"no leader after {timeout:g} s", "LEDGER_ZOOKEEPER_NO_LEADER")

    def _require_free(self, port: int) -> None:
        for used in (port + index for index in range(self._servers)):
            if not is_free(used):
                raise InvalidInput(f"port {used} of {HOST} is in use: choose another", "LEDGER_PORT_IN_USE")

    def _start_on_some_ports(self) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            with disk_errors("write to", self._folder or self._data_dir or tempfile.gettempdir(), _NOT_STARTED):
                self._members = self._new_members()
            try:
                for member in self._members:
                    with disk_errors("start the server in", member.folder, _NOT_STARTED):
                        member.launch(self._command)
                self._await_ready(self._members)
                return
            except Unavailable as error:
                if self._port is not None or attempt == _ATTEMPTS or "BindException" not in error.message:
                    raise
                self._kill_all()

    def _make_folder(self) -> None:
        place = self._data_dir or tempfile.gettempdir()
        with disk_errors("write to", place, _NOT_STARTED):
            self._folder = self._data_dir or Path(tempfile.mkdtemp(prefix="ledger-zookeeper-"))
            self._protection.prepare(self._folder)

    def _new_members(self) -> list[_Member]:
        assert self._folder is not None
        found = _free_ports(3 * self._servers)
        members = []
        for index in range(self._servers):
            client, quorum, election = found[3 * index : 3 * index + 3]
            client = client if self._port is None else self._port + index
            ports = client, quorum, election
            members.append(_Member(index + 1, self._folder / str(index + 1), ports, tls=self._protection.context))
        for member in members:
            self._write_config(member, members)
        return members

    def _write_config(self, member: _Member, members: list[_Member]) -> None:
        member.folder.mkdir(parents=True, exist_ok=True)
        settings = self._settings | {
            "dataDir": member.folder,
            **self._protection.settings(HOST, member.ports[0]),
        }
        if len(members) > 1:
            (member.folder / "myid").write_text(f"{member.number}\n")
            settings |= {f"server.{m.number}": f"{HOST}:{m.ports[1]}:{m.ports[2]}" for m in members}
        member.config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def _await_ready(self, members: list[_Member]) -> None:
        deadline = Deadline(SYSTEM_CLOCK, _START_TIMEOUT)
        waiting = list(members)
        while waiting:
            ended = next((member for member in waiting if not member.running), None)
            if ended or deadline.passed:
                late = ended or waiting[0]
                what = "ended at once" if ended else f"does not serve after {_START_TIMEOUT:g} s"
                text = f"ZooKeeper server {late.number - 1} {what}; its log ends:\n{late.tail()}"
                raise Unavailable(text, _NOT_STARTED)
            waiting = [member for member in waiting if not member.ready]
            if waiting:
                SYSTEM_CLOCK.sleep(0.05)

    def _kill_all(self) -> None:
        for member in self._members:
            member.kill()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_ledger.local.zookeeper",
        description="Run ZooKeeper on 127.0.0.1 in the foreground, until Ctrl-C.",
    )
    parser.add_argument("--port", type=int, default=2181, help="of the first server; default %(default)s")
    parser.add_argument("--data", help="folder to keep the data in; temporary if not given")
    parser.add_argument("--servers", type=int, default=1, help="size of the ensemble; default %(default)s")
    parser.add_argument("--pid-file", help="holds the process id, and is locked as long as the process lives")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with held(options.pid_file), LocalZooKeeper(options.servers, options.data, options.port) as zookeeper:
            print(zookeeper.address, flush=True)
            while zookeeper.running:
                SYSTEM_CLOCK.sleep(0.5)
    except KeyboardInterrupt:
        return 0
    except LedgerError as error:
        print(error, file=sys.stderr)
        return 1
    print("a server has ended", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
