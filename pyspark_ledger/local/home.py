"""A ZooKeeper and a storage folder for development, kept in one folder of this machine.

The server is a process in the background, and so is maintenance; they are started by one command and stopped by
another. Their data stay.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Deadline
from pyspark_ledger.base.setting_names import ZOOKEEPER, variable
from pyspark_ledger.errors import InvalidInput, Unavailable, disk_errors
from pyspark_ledger.local.pidfile import running_pid
from pyspark_ledger.local.zookeeper import HOST, find_jars, find_java, is_free, mode

# What the environment says of another ZooKeeper: this one asks for no login.
_OF_OTHERS = frozenset(variable(name) for name in ("profile", *ZOOKEEPER))
_START_S = 90.0
_STOP_S = 15.0


def default_folder() -> Path:
    return Path(os.environ.get("LEDGER_HOME") or "~/.pyspark-ledger").expanduser().absolute()


class LocalHome:
    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()
        self.storage = self.folder / "storage"
        self._data = self.folder / "zookeeper"
        self._pid_file = self.folder / "zookeeper.pid"
        self._log = self.folder / "zookeeper.log"
        self._maintainer_pid_file = self.folder / "maintain.pid"
        self._maintainer_log = self.folder / "maintain.log"
        self._marker_file = self.folder / "marker"

    @property
    def pid(self) -> int | None:
        """The process that runs the server; None if it is dead. A killed one has left its pid file, but no lock."""
        with self._disk_errors("read", self._pid_file):
            return running_pid(self._pid_file)

    @property
    def maintainer_pid(self) -> int | None:
        """The process that does the maintenance; None if it is dead."""
        with self._disk_errors("read", self._maintainer_pid_file):
            return running_pid(self._maintainer_pid_file)

    @property
    def port(self) -> int | None:
        """Where the server listens, or did when it last ran."""
        config = self._data / "1" / "zoo.cfg"
        with self._disk_errors("read", config), contextlib.suppress(FileNotFoundError):
            found = re.search(r"^clientPort=(\d+)$", config.read_text(), re.MULTILINE)
            return int(found[1]) if found else None
        return None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def answers(self) -> bool:
        return self.pid is not None and self.port is not None and bool(mode(self.port))

    def start(self, port: int) -> None:
        """Starts the server, and returns when it answers. It keeps running when this process ends."""
        find_java()
        find_jars()
        _require_free(port)
        with self._disk_errors("make the folder", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        command = ["pyspark_ledger.local.zookeeper", "--port", str(port)]
        command += ["--data", str(self._data), "--pid-file", str(self._pid_file)]
        process = self._spawn(command, self._log)
        try:
            self._await_start(process, port)
        except BaseException:
            process.terminate()
            raise

    def start_maintainer(self) -> None:
        """Starts maintenance of the namespace, and returns when it runs."""
        command = ["pyspark_ledger.cli", "maintain", "--zookeeper", self.address, "--port", "0"]
        process = self._spawn([*command, "--pid-file", str(self._maintainer_pid_file)], self._maintainer_log)
        deadline = Deadline(SYSTEM_CLOCK, _START_S)
        while self.maintainer_pid != process.pid:
            if process.poll() is not None or deadline.passed:
                process.terminate()
                raise Unavailable(
                    f"maintenance did not start: more in {self._maintainer_log}", "LEDGER_MAINTENANCE_NOT_STARTED"
                )
            SYSTEM_CLOCK.sleep(0.05)

    def _spawn(self, module: list[str], log_file: Path) -> subprocess.Popen[bytes]:
        """A process in the background, which keeps running when this one ends."""
        with self._disk_errors("write", log_file), log_file.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *module],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name not in _OF_OTHERS},
            )

    def _await_start(self, process: subprocess.Popen[bytes], port: int) -> None:
        """Waits until the process prints its address, which it does when it serves. If it cannot, it ends."""
        deadline = Deadline(SYSTEM_CLOCK, _START_S)
        while f"{HOST}:{port}" not in (said := self._log.read_text(errors="replace").splitlines()):
            if process.poll() is not None or deadline.passed:
                why = said[0] if said else f"no answer after {_START_S:g} s"
                raise Unavailable(
                    f"ZooKeeper did not start: {why} (more in {self._log})", "LEDGER_ZOOKEEPER_NOT_STARTED"
                )
            SYSTEM_CLOCK.sleep(0.05)

    def stop(self) -> bool:
        """Stops maintenance and the server. False if that was not running."""
        self.stop_maintainer()
        return self._end(self._pid_file)

    def stop_maintainer(self) -> bool:
        return self._end(self._maintainer_pid_file)

    def _end(self, pid_file: Path) -> bool:
        pid = running_pid(pid_file)
        if pid is None:
            return False
        for number in (signal.SIGTERM, signal.SIGKILL):  # a server ends with its process in either case
            with self._disk_errors("stop", f"process {pid}"), contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = Deadline(SYSTEM_CLOCK, _STOP_S)
            while not deadline.passed:
                if running_pid(pid_file) is None:
                    return True
                SYSTEM_CLOCK.sleep(0.05)
        raise Unavailable(f"process {pid} does not end", "LEDGER_ZOOKEEPER_NOT_STOPPED")

    @property
    def marker(self) -> tuple[str, str] | None:
        """The storage root that the namespace has, and the name of its marker file there, as far as that is known."""
        with self._disk_errors("read", self._marker_file), contextlib.suppress(FileNotFoundError):
            root, _, name = self._marker_file.read_text().strip().partition("\n")
            return (root, name) if name else None
        return None

    def note_marker(self, root: str, name: str) -> None:
        """For a purge: the root may be anywhere, and with its marker there the namespace would count as lost."""
        with self._disk_errors("write", self._marker_file):
            self._marker_file.write_text(f"{root}\n{name}\n")

    def contents(self) -> dict[str, int]:
        """What a purge would delete, in bytes."""
        parts = [part for part in (self._data, self.storage) if part.exists()]
        with self._disk_errors("look into", self.folder):
            return {str(part): sum(file.stat().st_size for file in part.rglob("*") if file.is_file()) for part in parts}

    def purge(self) -> None:
        """Deletes what this class made, and nothing else that is in the folder."""
        if self.pid is not None:
            raise InvalidInput(f"a server runs in {self.folder}: stop it first", "LEDGER_FOLDER_IN_USE")
        with self._disk_errors("delete what is in", self.folder):
            for part in (self._data, self.storage):
                if part.exists():
                    shutil.rmtree(part)
            logs = (self._log, self._maintainer_log)
            for file in (self._pid_file, self._maintainer_pid_file, self._marker_file, *logs):
                file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty, or never made
            self.folder.rmdir()

    def _disk_errors(self, doing: str, where: object) -> contextlib.AbstractContextManager[None]:
        return disk_errors(doing, where, "LEDGER_HOME_UNAVAILABLE", "set LEDGER_HOME to a folder that can be written")


def _require_free(port: int) -> None:
    deadline = Deadline(SYSTEM_CLOCK, 1.0)  # a server whose process was killed is still on its way out
    while not is_free(port):
        if deadline.passed:
            if mode(port):
                who = "another ZooKeeper: use that one (it needs LEDGER_STORAGE once), or"
            else:
                who = f"another program (ss -ltnp 'sport = :{port}' names it): stop it, or"
            raise InvalidInput(
                f"port {port} of {HOST} is in use by {who} choose another with --port", "LEDGER_PORT_IN_USE"
            )
        SYSTEM_CLOCK.sleep(0.05)
