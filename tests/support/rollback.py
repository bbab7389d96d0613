"""ZooKeeper comes back from an older snapshot."""

from __future__ import annotations

from typing import Any

from pyspark_ledger.metadata.port import Key, Versioned
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
