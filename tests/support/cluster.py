"""A real Spark standalone cluster on this machine, from the jars of the pip package.

    with StandaloneCluster(workers=2) as cluster:
        subprocess.run([sys.executable, "job.py", cluster.url])  # SparkSession.builder.master(url)

Executors run the driver's Python (PYSPARK_PYTHON) in a folder of their own, so the project must be installed
there, as ``make setup`` does, or be in the PYTHONPATH of the workers. Each worker has an address of its own, all
of them of this machine alone: Spark gives no second attempt of a task to the host that has the first.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from pyspark_ledger.local.zookeeper import _SUPERVISED, HOST, _free_ports

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


class StandaloneCluster:
    def __init__(
        self,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
        timeout: float = 90.0,
        environment: dict[str, str] | None = None,
    ) -> None:
        """``environment``: what workers, and so their executors, have in theirs beside that of this process."""
        self._count = workers
        self._options = ["--webui-port", "0", "--cores", str(cores), "--memory", memory]
        self._extra = environment or {}
        self._timeout = timeout
        self._folder = Path()
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> StandaloneCluster:
        self._folder = Path(tempfile.mkdtemp(prefix="ledger-cluster-"))
        self.url = f"spark://{HOST}:{_free_ports(1)[0]}"
        try:
            port = self.url.rpartition(":")[2]
            self._master = self._launch("master", HOST, MASTER, "--port", port, "--webui-port", "0")
            self._await("master", "New state: ALIVE", self._master)
            names = [self._launch_worker() for _ in range(self._count)]
            for name, worker in zip(names, self._workers, strict=True):
                self._await(name, "Successfully registered with master", worker)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def worker_pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def log(self, name: str) -> str:
        """What ``master``, ``worker-0`` … have logged."""
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def add_worker(self) -> None:
        name = self._launch_worker()
        self._await(name, "Successfully registered with master", self._workers[-1])

    @property
    def alive(self) -> list[int]:
        """The numbers of the workers that run."""
        return [number for number, worker in enumerate(self._workers) if worker.poll() is None]

    def executors(self, index: int) -> list[int]:
        """The executors of a worker: the Java processes that it has started."""
        mine = self._workers[index].pid
        return [pid for pid, (name, parent) in _processes().items() if parent == mine and name == "java"]

    def kill_executors(self, index: int) -> None:
        """SIGKILL; their Python processes end when they find out."""
        for pid in self.executors(index):
            os.kill(pid, signal.SIGKILL)

    def kill_worker(self, index: int) -> None:
        """SIGKILL of a worker with all that it has started, at the same moment: the machine is gone."""
        processes = [pid for executor in self.executors(index) for pid in _tree(executor)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in [self._workers[index].pid, *processes]:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._end(self._workers[index])

    def number(self, folder: str) -> int:
        """Of the worker below whose folder this one is, as tasks see it."""
        return int(Path(folder).relative_to(self._folder).parts[0].removeprefix("worker-"))

    def stop(self) -> None:
        processes = [*self._workers, *([self._master] if self._master else [])]
        for process in processes:  # by SIGTERM first: a worker then ends its executors
            process.terminate()
        for process in processes:
            self._end(process)
        self._workers, self._master = [], None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin and not process.stdin.closed:
            process.stdin.write(b"\n")
            process.stdin.close()

    def _launch_worker(self) -> str:
        name = f"worker-{len(self._workers)}"
        options = [*self._options, "--work-dir", str(self._folder / name), self.url]
        host = f"127.0.0.{len(self._workers) + 2}"
        self._workers.append(self._launch(name, host, WORKER, *options))
        return name

    def _launch(self, name: str, host: str, main: str, *options: str) -> subprocess.Popen[bytes]:
        spark_class = _spark_home() / "bin" / "spark-class"
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                ["/bin/sh", "-c", _SUPERVISED, name, str(spark_class), main, "--host", host, *options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                env=self._environment(host),
            )

    def _environment(self, host: str) -> dict[str, str]:
        return (
            os.environ
            | {
                "SPARK_HOME": str(_spark_home()),
                "SPARK_LOCAL_IP": host,
                "SPARK_LOCAL_DIRS": str(self._folder / "local"),
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
                "PYSPARK_PYTHON": sys.executable,
            }
            | self._extra
        )

    def _await(self, name: str, text: str, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + self._timeout
        while text not in self.log(name):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{name} is not ready; its log ends:\n{self.log(name)[-4000:]}")
            time.sleep(0.05)


def _processes() -> dict[int, tuple[str, int]]:
    """Name and parent of every process of this machine."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            name, _, rest = stat.read_text().partition("(")[2].rpartition(") ")
            found[int(stat.parent.name)] = (name, int(rest.split()[1]))
    return found


def _tree(root: int) -> list[int]:
    """A process and all below it."""
    below, found = _processes(), [root]
    for pid in found:
        found += [child for child, (_, parent) in below.items() if parent == pid]
    return found


def _spark_home() -> Path:
    if "SPARK_HOME" in os.environ:
        return Path(os.environ["SPARK_HOME"])
    spec = importlib.util.find_spec("pyspark")
    assert spec
    assert spec.origin
    return Path(spec.origin).parent
