"""ZooKeeper comes back from an older snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import Key, Versioned
from pyspark_ledger.metadata.records import Head
from pyspark_ledger.testing.memory import MemoryServer

Snapshot = dict[Key[Any], Versioned[Any] | None]


def snapshot(server: MemoryServer) -> Snapshot:
    with server.lock:
        return {key: server.value(key, server.time) for key in list(server._keys)}


def restore(server: MemoryServer, backup: Snapshot) -> None:
    """Everything as it was then, for every client at once."""
    with server.lock:
        server.time += 1
        for key in list(server._keys):
            before = backup.get(key)
            if before is not server.value(key, server.time):
                server._set(key, before)


def accept_the_loss(log: Log) -> None:
    """What a repair does at least: writers may write again, and whoever knows a commit that is gone is told so."""

    def repaired(head: Head) -> Head:
        known = head.set_back.next_commit if head.set_back is not None else 0
        return replace(head, set_back=None, repaired=max(known, head.next_commit))

    log.change_head(repaired, "a repair")
