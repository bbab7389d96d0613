"""A driver on a cluster that tests ask to do things, and writes that stop in the middle until told to go on."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark_ledger import LedgerClient
from pyspark_ledger.local.zookeeper import _free_ports
from tests.support import REPOSITORY
from tests.support.cluster import StandaloneCluster
from tests.support.jobs import environment, wait_for

# One application to run on; a Connect server is a part of its driver.
STEADY = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}
# The other one: executors come when there is work and go when there is none, and slow tasks get a second attempt.
ELASTIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


class ClusterDriver:
    """A process with a Spark session on a cluster (``cluster_driver.py``). It alone is told where ZooKeeper is."""

    def __init__(self, cluster: StandaloneCluster, folder: Path, zookeeper: str) -> None:
        self.cluster, self.folder, self.zookeeper = cluster, folder, zookeeper
        self.storage = folder / "storage"
        self.jvm = 0
        self.connect_port = _free_ports(1)[0]
        self._settings: dict[str, str] | None = None
        self._log = (folder / "driver.log").open("ab")
        script = REPOSITORY / "tests" / "support" / "cluster_driver.py"
        told = {"LEDGER_ZOOKEEPER": zookeeper, "PYTHONPATH": str(REPOSITORY)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(script), cluster.url, str(folder)],
            cwd=folder,
            env=environment() | told,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def use(self, settings: dict[str, str]) -> ClusterDriver:
        """Runs with these settings from now on; a new application unless it does already."""
        if settings != self._settings:
            port = {"spark.connect.grpc.binding.port": str(self.connect_port)}
            self.jvm = self.ask("session", settings=settings | port)
            self._settings = settings
        return self

    def rest(self) -> None:
        self.ask("rest")
        self._settings = None

    def ask(self, what: str, **arguments: Any) -> Any:
        self.begin(what, **arguments)
        return self.answer()

    def begin(self, what: str, **arguments: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([what, arguments]) + "\n")
        self.process.stdin.flush()

    def is_busy(self) -> bool:
        """Whether what was begun has no answer yet."""
        return not select.select([self.process.stdout], [], [], 0)[0]

    def answer(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the driver ended; its log ends:\n{(self.folder / 'driver.log').read_text()[-6000:]}"
        return json.loads(line)

    @contextmanager
    def paused(
        self, client: LedgerClient, source: str, target: str, tasks: list[int], attempts: int
    ) -> Iterator[Paused]:
        """A copy whose tasks are in the middle of files that they have begun; it goes on, and ends, after the block."""
        write = Paused(self, client, target)
        write.folder.mkdir()
        self.begin("paused_copy", source=source, target=target, tasks=tasks)
        try:
            wait_for(lambda: len(write.attempts()) == attempts, self.process)
            wait_for(lambda: len(write.files()) >= attempts, self.process)
            yield write
        finally:
            write.go_on()
            self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


class Paused:
    """A write whose tasks wait, each with a part of its rows in a file that it has begun."""

    def __init__(self, driver: ClusterDriver, client: LedgerClient, target: str) -> None:
        self.driver, self.client, self.target = driver, client, target
        self.folder = driver.folder / target  # where attempts leave a note

    def attempts(self) -> list[dict[str, Any]]:
        return [json.loads(note.read_text()) for note in sorted(self.folder.glob("*.started"))]

    def files(self) -> list[Path]:
        """All that tasks have begun; the topic is none but this write's."""
        return list((self.driver.storage / self.client.topic(self.target).uuid).rglob("*.arrow"))

    def await_end_of(self, attempt: dict[str, Any]) -> None:
        wait_for(lambda: not Path(f"/proc/{attempt['pid']}").exists(), self.driver.process)

    def go_on(self) -> None:
        (self.folder / "go").touch()


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
