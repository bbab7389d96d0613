"""Tries examples/from_kafka.py on the real broker: `.venv-peers/bin/python -m benchmarks.peers.from_kafka`.

The job is killed in the middle, started again with a new checkpoint and other batches, killed again, and run twice at
the same time; then every record must be in the ledger once, in the order of its partition.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks.peers.__main__ import KEPT
from benchmarks.peers.broker import Broker
from benchmarks.peers.driver import Job, leave_on_sigterm
from benchmarks.peers.jars import jars
from benchmarks.run import work_folder
from benchmarks.session import REPOSITORY
from pyspark_ledger import LedgerClient, NotFound
from pyspark_ledger.local.zookeeper import LocalZooKeeper

TOPIC, PARTITIONS = "clicks", 3
PATIENCE_S = 300.0


class Trial:
    def __init__(self, broker: Broker, zookeeper: str, work: Path, loaded: list[Path], stack: ExitStack) -> None:
        self._broker, self._zookeeper, self._work, self._stack = broker, zookeeper, work, stack
        self._environment = os.environ | {
            "PYSPARK_SUBMIT_ARGS": f"--master local[2] --jars {','.join(map(str, loaded))} pyspark-shell",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._runs = 0
        self.storage = str(work / "ledger")

    def client(self) -> LedgerClient:
        return LedgerClient(zookeeper=self._zookeeper, storage=self.storage)

    def produce(self, first: int, count: int) -> None:
        producer = Producer({"bootstrap.servers": self._broker.address, "acks": "all", "enable.idempotence": True})
        for number in range(first, first + count):
            producer.produce(TOPIC, key=str(number % 1_000), value=str(number), partition=number % PARTITIONS)
            producer.poll(0)
        if left := producer.flush(60):
            raise SystemExit(f"Kafka did not take {left} records")

    def start(self, per_batch: int) -> Job:
        """Always with a new checkpoint."""
        self._runs += 1
        arguments = {
            "--kafka": self._broker.address,
            "--topic": TOPIC,
            "--zookeeper": self._zookeeper,
            "--storage": self.storage,
            "--checkpoint": str(self._work / f"checkpoint-{self._runs}"),
            "--per-batch": str(per_batch),
        }
        command = [sys.executable, str(REPOSITORY / "examples" / "from_kafka.py")]
        command += [word for pair in arguments.items() for word in pair]
        job = Job(self._work / f"run-{self._runs}.log", command, self._environment)
        self._stack.callback(job.end)
        return job

    def kill_at(self, records: int, per_batch: int) -> None:
        """Starts the job, and kills it as soon as there are so many records, which is while it works on others."""
        job = self.start(per_batch)
        deadline, there, seen = time.monotonic() + PATIENCE_S, 0, "earliest"
        with self.client() as client:
            while True:
                more, seen = _news(client, seen)
                if (there := there + more) >= records:
                    break
                job.check()
                if time.monotonic() > deadline:
                    job.fail(f"brought {there} of {records} records in {PATIENCE_S:g} s")
                time.sleep(0.05)
        job.kill()
        print(f"killed with {there} records there", flush=True)

    def found(self) -> dict[str, list[tuple[int, int]]]:
        """(offset, value) of each partition, in the ledger's order."""
        partitions: dict[str, list[tuple[int, int]]] = defaultdict(list)
        with self.client() as client:
            for record in client.reader(TOPIC, end="latest"):
                value: Any = record.value
                partitions[value["kafka_partition"]].append((value["kafka_offset"], int(value["value"])))
        return partitions


def _news(client: LedgerClient, seen: Any) -> tuple[int, Any]:
    """How many records have come since this place, and the place after them."""
    try:
        end = client.end(TOPIC)
        new = client.reader(TOPIC, start=seen, end=end, columns=["kafka_offset"]).batches()
        return sum(batch.num_rows for batch in new), end
    except NotFound:  # the first batch makes the topic
        return 0, seen


def run(asked: argparse.Namespace) -> None:
    leave_on_sigterm()
    records, loaded = asked.records, jars(asked.jars, "spark")
    per_batch = max(1, records // 10)
    with work_folder(None) as work, ExitStack() as stack:
        broker = stack.enter_context(Broker(jars(asked.jars, "broker"), work / "kafka"))
        zookeeper = stack.enter_context(LocalZooKeeper())
        broker.create(TOPIC, PARTITIONS)
        trial = Trial(broker, zookeeper.address, work, loaded, stack)
        trial.produce(0, records)
        trial.kill_at(1, per_batch)
        trial.kill_at(records // 2, per_batch * 3 // 2 + 1)
        trial.produce(records, records // 10)
        both = [trial.start(per_batch), trial.start(per_batch * 2)]
        for job in both:
            job.finish(PATIENCE_S)
        found, total = trial.found(), records + records // 10
    wanted = {
        f"kafka/{TOPIC}-{part}": [(offset, number) for offset, number in enumerate(range(part, total, PARTITIONS))]
        for part in range(PARTITIONS)
    }
    print(f"produced {total} records, found {sum(map(len, found.values()))} in {len(found)} partitions", flush=True)
    if found != wanted:
        raise SystemExit("Records were lost, doubled or moved.")
    print("Each record once, in the order of its partition.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.from_kafka", description=__doc__)
    parser.add_argument("--records", type=int, default=60_000, help="[%(default)s]")
    parser.add_argument("--jars", type=Path, default=KEPT, help="where make bench-peers has brought them [%(default)s]")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
