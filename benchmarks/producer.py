"""How many small records one producer takes and stores by ``send`` alone. Run: python -m benchmarks.producer"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.data import Namespace

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def measure(space: Namespace, records: int, rounds: int, threads: int = 1) -> dict[str, Any]:
    """Records per second, from the first ``send`` until everything is in the log; microseconds of CPU for each, which
    depend less on what else the machine does; and milliseconds until a lone record is in the log."""
    from pyspark_ledger import LedgerClient

    with LedgerClient(zookeeper=space.zookeeper, storage=space.storage) as client:
        client.create_topic("sent", SCHEMA)
        with client.producer("sent", "bench") as producer:
            cpu_s = time.process_time()
            rates = [_send(producer, records, threads) for _ in range(rounds)]
            cpu_s = time.process_time() - cpu_s
            alone_ms = [_alone_ms(producer) for _ in range(50)]
        stored = client.producers("sent")[0].sequence
    assert stored == records // threads * threads * rounds + 50 - 1
    return {
        "records": records,
        "threads": threads,
        "records_per_s": round(median(rates)),
        "all": [round(rate) for rate in rates],
        "cpu_us": round(cpu_s / rounds / records * 1e6, 2),
        "alone_ms": round(median(alone_ms), 1),
    }


def _send(producer: Any, records: int, threads: int) -> float:
    def send() -> None:
        for number in range(records // threads):
            producer.send({"id": number, "text": "a short text"})

    start = time.perf_counter()
    senders = [threading.Thread(target=send) for _ in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    producer.flush()
    return records / (time.perf_counter() - start)


def _alone_ms(producer: Any) -> float:
    start = time.perf_counter()
    producer.send({"id": 1, "text": "alone"}).result()
    return (time.perf_counter() - start) * 1000


def main() -> None:
    from pyspark_ledger import LocalZooKeeper

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
        for threads in (1, 8):
            space = Namespace(f"{zookeeper.address}/threads{threads}", f"{folder}/{threads}")
            found = measure(space, options.records, options.rounds, threads)
            print(
                f"{threads} threads: {found['records_per_s']:,} records/s (of {found['all']}), "
                f"{found['cpu_us']} µs of CPU each; a record alone is in the log after {found['alone_ms']} ms"
            )


if __name__ == "__main__":
    main()
