"""One of several processes that share a subscription by key:
``python -m tests.support.sharing_worker <zookeeper> <topic> <file>``. It writes what it does to its file, one
line each: the time, what, and which record. It works until it is killed."""

from __future__ import annotations

import sys
import time

from pyspark_ledger.client import client_of
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

SESSION_S = 4.0  # as short as the server allows, so that nobody waits long for the death of one that was killed


def main(zookeeper: str, topic: str, file: str) -> None:
    namespace = OpenNamespace(ZooKeeperMetadata(zookeeper, session_timeout_s=SESSION_S), None)
    client = client_of(namespace)
    with open(file, "a", buffering=1) as out:

        def tell(what: str, n: int) -> None:
            out.write(f"{time.monotonic()} {what} {n}\n")

        consumer = client.consumer(topic, "s", "key_shared", prefetch=20)
        tell("joined", 0)
        for message in consumer:
            tell("got", message["n"])
            time.sleep(0.002)
            if consumer.acknowledge(message) and message["n"] % 10 == 0:
                consumer.flush()
                tell("flushed", message["n"])


if __name__ == "__main__":
    main(*sys.argv[1:])
