"""The processes of a run: started, killed, stopped for a while, replaced, started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.soak.world import SESSION_S, SPARK_SESSION_S, World
from tests.support import REPOSITORY


@dataclass
class Process:
    """One of the cast, over all its lives. A driver has the names of queries, another process a role."""

    world: World
    name: str
    role: str = ""
    queries: tuple[str, ...] = ()
    running: subprocess.Popen[bytes] | None = None
    zombie: subprocess.Popen[bytes] | None = None  # one that was replaced while it was stopped
    stopped: bool = False
    starts: int = 0
    happened: dict[str, int] = field(default_factory=lambda: {"kill": 0, "pause": 0, "replace": 0})
    deaths: list[str] = field(default_factory=list)  # by itself, and why
    _logs: dict[int, Path] = field(default_factory=dict)

    @property
    def is_driver(self) -> bool:
        return bool(self.queries)

    @property
    def session_s(self) -> float:
        return SPARK_SESSION_S if self.is_driver else SESSION_S

    def start(self) -> None:
        self.starts += 1
        module = "driver" if self.is_driver else "workers"
        what = (
            [self.name, str(self.starts), *self.queries] if self.is_driver else [self.role, self.name, str(self.starts)]
        )
        command = [sys.executable, "-m", f"tests.soak.{module}", str(self.world.file), *what]
        file = self.world.path("logs", f"{self.name}.{self.starts}.log")
        with file.open("wb") as log:
            self.running = self._launch(command, log)
        self._logs[self.running.pid] = file

    def _launch(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.world.folder,
            start_new_session=True,
        )  # fmt: skip

    def await_question(self, seconds: float) -> None:
        """Until it has asked something and waits for the answer, which is when a fault matters most. Most of its time
        it does nothing."""
        file = self.world.path("histories", f"history-{self.name}.{self.starts}.jsonl")
        size, deadline = _size(file), time.monotonic() + seconds
        while not self.is_driver and _size(file) == size and time.monotonic() < deadline:
            time.sleep(0.001)

    # -- what happens to it ------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL. Spark's Python workers are not killed with their driver: they find out."""
        self.happened["kill"] += 1
        if self.running is not None:
            _end(self.running, whole_session=False)
        self.running, self.stopped = None, False

    def pause(self) -> None:
        self.happened["pause"] += 1
        self.stopped = True
        _signal(self.running, signal.SIGSTOP)

    def resume(self) -> None:
        self.stopped = False
        _signal(self.running, signal.SIGCONT)

    def replace(self) -> None:
        """Another takes the place of one that is stopped, and which goes on later."""
        self.happened["replace"] += 1
        self.zombie, self.stopped = self.running, False
        self.start()

    def resume_zombie(self) -> None:
        _signal(self.zombie, signal.SIGCONT)

    def end_zombie(self) -> None:
        if self.zombie is not None:
            self._judge(self.zombie)
            _end(self.zombie)
        self.zombie = None

    def look(self) -> None:
        """Starts it again if it has ended by itself."""
        if self.running is not None and self._judge(self.running):
            _end(self.running)
            self.start()

    def _judge(self, process: subprocess.Popen[bytes]) -> bool:
        code = process.poll()
        if code is None:
            return False
        log = self._logs[process.pid]
        lines = log.read_text(errors="replace").strip().splitlines()
        self.deaths.append(f"{self.name} ended by itself with {code} ({log.name}): {' '.join(lines[-1:])[:500]}")
        return True

    def ask_to_stop(self) -> None:
        """As one stops a program: with SIGTERM."""
        if self.running is not None and self._judge(self.running):
            _end(self.running)
            self.running = None
        elif self.running is not None:
            self.running.terminate()

    def await_stop(self, deadline: float) -> None:
        """One that does not end is killed, and that counts."""
        process, self.running = self.running, None
        if process is None:
            return
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.deaths.append(f"{self.name} did not end when it got SIGTERM")
        else:
            if code not in (0, -signal.SIGTERM):  # the latter before it had a handler
                self._judge(process)
        _end(process)

    def abandon(self) -> None:
        for process in (self.running, self.zombie):
            if process is not None:
                _end(process)
        self.running = self.zombie = None


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _session(leader: int) -> list[int]:
    """The processes of a session: a driver's, with its JVM and the Python workers, which have groups of their own."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,sess="], capture_output=True, text=True).stdout
    pairs = (line.split() for line in listed.splitlines())
    return [int(pid) for pid, session in pairs if session == str(leader)]


def _signal(process: subprocess.Popen[bytes] | None, number: signal.Signals) -> None:
    if process is not None and process.poll() is None:
        for pid in _session(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _end(process: subprocess.Popen[bytes], *, whole_session: bool = True) -> None:
    """Kills it, with all that is in its session or only with its group; and waits until it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while whole_session and (left := _session(process.pid)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
