"""A Kafka broker on this machine: one node that is its own controller (KRaft), on 127.0.0.1 only."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_ledger.local.zookeeper import find_java

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

HOST = "127.0.0.1"
START_S, TOPIC_S = 120.0, 30.0
# The start script of Kafka gives a broker a heap of 1 GB and the G1 collector.
_JVM = ["-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.net.preferIPv4Stack=true"]
_PROPERTIES = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={host}:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
# Not about speed: what is deleted goes at once, and a compaction begins when it may.
log.segment.delete.delay.ms=0
log.cleaner.backoff.ms=500
"""


class Broker:
    """`with Broker(jars, folder) as broker: …`; it is ended by its pid, and its folder is the caller's."""

    def __init__(self, jars: list[Path], folder: Path) -> None:
        self._classpath = os.pathsep.join(map(str, jars))
        self.folder = folder
        self.logs = folder / "logs"
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Broker:
        self.folder.mkdir(parents=True)
        port, controller = free_ports(2)
        file = self.folder / "server.properties"
        file.write_text(_PROPERTIES.format(host=HOST, port=port, controller=controller, logs=self.logs))
        identity = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        self._java(
            "kafka.tools.StorageTool", "format", "--standalone", "-t", identity.replace("-", "A"), "-c", str(file)
        )
        self.address = f"{HOST}:{port}"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [find_java(), *_JVM, "-cp", self._classpath, "kafka.Kafka", str(file)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.__dict__.pop("_admin", None)  # else it goes on asking
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def create(self, topic: str, partitions: int, settings: dict[str, str] | None = None) -> None:
        from confluent_kafka.admin import NewTopic

        made = self._admin.create_topics([NewTopic(topic, partitions, 1, config=settings or {})])
        made[topic].result(TOPIC_S)

    def delete(self, topic: str) -> None:
        """Returns when its files are gone."""
        self._admin.delete_topics([topic])[topic].result(TOPIC_S)
        deadline = time.monotonic() + TOPIC_S
        while list(self.logs.glob(f"{topic}-*")):
            if time.monotonic() > deadline:
                raise SystemExit(f"the broker did not remove the files of {topic} in {TOPIC_S:g} s")
            time.sleep(0.05)

    @cached_property
    def _admin(self) -> AdminClient:
        """Kept: its answers come only as long as it lives. Imported here, because reports and tests do without it."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, "log_level": 2})

    @property
    def _log(self) -> Path:
        return self.folder / "broker.log"

    def _java(self, *arguments: str) -> None:
        command = [find_java(), "-Xmx256m", "-cp", self._classpath, *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{arguments[0]} failed:\n{done.stdout}{done.stderr[-2000:]}")

    def _wait(self) -> None:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            with contextlib.suppress(KafkaException):
                if self._admin.list_topics(timeout=2).brokers:
                    return
        raise SystemExit(f"the Kafka broker did not start:\n{self._log.read_text(errors='replace')[-3000:]}")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        return [port for _, port in _bound(stack, count)]


def _bound(stack: contextlib.ExitStack, count: int) -> Iterator[tuple[socket.socket, int]]:
    for _ in range(count):
        probe = stack.enter_context(socket.socket())
        probe.bind((HOST, 0))
        yield probe, probe.getsockname()[1]
