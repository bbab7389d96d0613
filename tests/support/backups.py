"""A namespace that is backed up, and what storage has of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyspark_ledger.append import append as protocol
from pyspark_ledger.base import names
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.lifecycle import saved_files
from pyspark_ledger.lifecycle.backup import Backup, Round
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.lifecycle.saving import path_of_file
from pyspark_ledger.log import root, snapshots
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.port import Create, Metadata, NamespaceKey
from pyspark_ledger.metadata.records import Entity, Namespace, NodeRecord
from pyspark_ledger.outbox.outbox import Outbox, Send
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.disk import Disk, MemoryStorage
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.pipeline import TINY, batch, batch_with_tokens
from tests.support.worlds import SCHEMA, append

LIMITS = replace(TINY, topics_at_once=2, entity_bytes=10, commits_per_ledger=100)
OUTBOX, ENTITY = "billing", "ann"


class Vault:
    """A namespace in memory, with its files on a disk in memory; each that is opened is a process of its own."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits, self.clock, self.disk = limits, SeededClock(1), Disk()
        self.server = MemoryServer(self.clock)
        metadata = MemoryMetadata(self.server, clock=self.clock)
        metadata.transact([Create(NamespaceKey(), Namespace("memory://disk", self.clock.now_ms()))])
        made = root.finish_namespace(metadata, MemoryStorage(self.disk), self.clock)
        self.marker = names.marker_file(made.id)
        self.namespace = self.open()

    def open(self) -> OpenNamespace:
        metadata = MemoryMetadata(self.server, clock=self.clock)
        namespace = OpenNamespace(metadata, limits=self.limits, clock=self.clock)
        namespace._storage = MemoryStorage(self.disk, marker=self.marker)
        return namespace

    @property
    def storage(self) -> Storage:
        return self.namespace.storage

    def create(self, *names: str) -> None:
        for name in names:
            self.namespace.create_topic(name, SCHEMA)

    def uuid(self, topic: str) -> str:
        return self.namespace.log(topic).topic.uuid

    def write(self, topic: str, *numbers: int) -> None:
        append(self.namespace.log(topic), *numbers)

    def acknowledge(self, topic: str, count: int, name: str = "sub") -> None:
        node = CursorNode(self.namespace.log(topic), name)
        node.ensure("earliest")
        node.update(lambda cursor: node.moved(cursor, count, Runs()))

    def backup(self) -> Backup:
        """Of a process that has just started."""
        return Backup(self.open())

    def round(self, backup: Backup | None = None) -> Round:
        self.clock.sleep(60)
        return (backup or self.backup()).run(pace(self.clock))

    def snapshots(self, prefix: str = "") -> list[str]:
        """What is in the recovery folder: all files whose names begin so."""
        folder = names.recovery_folder(self.marker) + "/"
        found = [path.removeprefix(folder) for path in self.disk.files() if path.startswith(folder)]
        return [path for path in found if path.rpartition("/")[2].startswith(prefix)]


def pace(clock: SeededClock) -> Pace:
    return Pace(clock, lambda _: None)


def in_storage(storage: Storage) -> dict[Any, NodeRecord]:
    """What a rebuild would find: the newest snapshots that can be read. Long values are in the records."""
    there = saved_files.SavedFiles.list(storage)
    found: dict[Any, NodeRecord] = {}
    for listed in there.logs.values():
        found.update(snapshots.read(storage, listed).records())
    for some in (*there.readers.values(), there.namespace):
        newest = saved_files.newest_readable(storage, some)
        if newest is not None:
            for key, record in newest.records.items():
                found[key] = with_value(key, record, newest.files)
    return found


def with_value(key: Any, record: Any, files: Mapping[str, bytes]) -> NodeRecord:
    path = path_of_file(key, record)
    if not path:
        return record
    return replace(record, file=None, **{"content" if isinstance(record, Entity) else "bitmap": files[path]})


class Shop(Vault):
    """Orders mint tokens. A sink consumes them with what it appends to the invoices, and a handler with a state does
    the same; both acknowledge an order after that."""

    def __init__(self, orders: int = 20) -> None:
        super().__init__()
        self.create("orders", "invoices")
        log = self.namespace.log("orders")
        protocol.append(log, batch(log, [range(orders)], mints=True))
        self.tokens = [record.token for record in Reader(log, "earliest", "latest")]
        self.done = self.bills = 0

    def invoice(self) -> None:
        """One record, and one token of the sink's group."""
        log = self.namespace.log("invoices")
        rows = [(self.done, self._next())]
        protocol.append(log, batch_with_tokens(log, [rows], Groups.in_namespace_of(log, "invoices")))

    def bill(self) -> None:
        """One record, one token of the outbox's group, and one more in the state."""
        number, token = self.done, self._next()
        self.bills += 1

        def handler(state: Any) -> Any:
            return {"count": (state or {"count": 0})["count"] + 1}, [Send("invoices", {"n": number})]

        self.outbox().process(f"m{number}", token, handler, entity=ENTITY)

    def _next(self) -> str:
        self.done += 1
        return self.tokens[self.done - 1]

    def outbox(self) -> Outbox:
        space = self.namespace
        return Outbox(OUTBOX, space.metadata, space.storage, space.log, space.limits, space.clock)

    def consumed(self, group: str) -> int:
        return Tokens(self.namespace.log("orders"), group).stats().consumed

    def everybody(self) -> None:
        """All of them once, each after the one before."""
        self.invoice()
        self.acknowledge("orders", self.done)
        self.acknowledge("invoices", self.done)
        self.bill()
        self.acknowledge("orders", self.done)
        self.acknowledge("invoices", self.done)


def before_each_call(metadata: Metadata, act: Callable[[int], None]) -> None:
    """``act`` is told the number of each request of a process, counted from 0, before it is made."""
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            act(count - 1)
            return real(*arguments, **options)

        return call

    for name in ("read", "children", "sync"):  # those of many keys are made of these
        setattr(metadata, name, counted(getattr(metadata, name)))
