"""A namespace with every kind of file in a folder, for tests that give it another root: each ``open()`` is a process of
its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from pyspark_ledger.client import LedgerClient, client_of
from pyspark_ledger.lifecycle.moving import Mover
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import NamespaceKey
from pyspark_ledger.metadata.records import Namespace
from pyspark_ledger.testing.memory import Faults, MemoryMetadata, MemoryServer
from tests.support.rollback import restore, snapshot
from tests.support.worlds import SMALL

E = TypeVar("E", bound=BaseException)
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
# Short enough for every long value to go into a file; a process that opens a topic makes few requests.
LIMITS = replace(
    SMALL, inline_producers_bytes=0, token_chunk=64, inline_bitmap_bytes=1, node_bitmap_bytes=2, entity_bytes=10
)
TOPIC, GROUP, OUTBOX, ENTITY = "t", "group", "billing", "ann"
FILES = 15  # that there are in the beginning


class Movable:
    """One namespace; ``old`` and ``new`` are folders, the first one is its storage."""

    def __init__(self, folder: Path, old: str = "", new: str = "") -> None:
        self.server = MemoryServer()
        self.old, self.new = old or str(folder / "old"), new or str(folder / "new")
        client = self.client(self.old)
        client.create_topic(TOPIC, SCHEMA, key="k")
        client.create_topic("empty", SCHEMA)
        for n in range(6):  # two ledgers
            self.write(client, n)
        assert client.compact(TOPIC) is not None
        self.write(client, 6)
        self.tokens = [record.token for record in client.reader(TOPIC, end="latest") if record.token]
        self.consume(client, 0)
        self.bill(client, 0)
        self._kept = folder / "kept"
        if Path(self.old).is_dir():
            shutil.copytree(self.old, self._kept)
        self._nodes = snapshot(self.server)

    def reset(self) -> None:
        """All as it was in the beginning."""
        for folder in (self.old, self.new):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._kept, self.old)
        restore(self.server, self._nodes)

    def open(self, storage: str | None = None, faults: Faults | None = None) -> OpenNamespace:
        return OpenNamespace(MemoryMetadata(self.server, faults), storage, limits=LIMITS)

    def client(self, storage: str | None = None) -> LedgerClient:
        return client_of(self.open(storage))

    def mover(self, faults: Faults | None = None) -> Mover:
        return Mover(MemoryMetadata(self.server, faults), limits=LIMITS)

    def record(self) -> Namespace:
        found = MemoryMetadata(self.server).read(NamespaceKey())
        assert found is not None
        return found.record

    # -- what processes do -----------------------------------------------------------------------------------------

    def write(self, client: LedgerClient, n: int) -> None:
        with client.producer(TOPIC, mint_tokens=True) as producer:
            producer.send({"k": f"key{n % 3}", "n": n})

    def consume(self, client: LedgerClient, n: int) -> None:
        assert client.tokens(TOPIC, GROUP).consume([self.tokens[n]]) == [True]

    def bill(self, client: LedgerClient, n: int) -> Any:
        def handler(state: list[int] | None) -> tuple[list[int], list[Any]]:
            return [*(state or []), n, *range(10)], []

        return client.outbox(OUTBOX).process(f"m{n}", self.tokens[n], handler, entity=ENTITY)

    # -- what there is ---------------------------------------------------------------------------------------------

    def everything(self) -> dict[str, Any]:
        """All that the namespace holds, read by a new process."""
        client = self.client()
        return {
            "records": [record["n"] for record in client.reader(TOPIC, end="latest")],
            "state": sorted(record["n"] for record in client.reader(TOPIC, end="latest", compacted=True)),
            "tokens": client.tokens(TOPIC, GROUP).present(self.tokens),
            "entity": client.outbox(OUTBOX)._resources.entities.load(ENTITY).content.state,
            "topics": client.topics(),
            "producers": len(client.producers(TOPIC)),
        }

    def lose_old(self) -> None:
        shutil.rmtree(self.old)


def whatever_happens(call: Callable[[], Any], expected: type[E]) -> E | None:
    """Calls, and returns the error of this kind that it ended with."""
    try:
        call()
    except expected as error:
        return error
    return None
