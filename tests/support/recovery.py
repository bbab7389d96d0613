"""A namespace with some of everything in a real folder, which loses its ZooKeeper."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark_ledger.append import append as protocol
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.files import storage as storages
from pyspark_ledger.files.storage import LocalStorage, normalise_uri
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.lifecycle.backup import Backup
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.lifecycle.rebuild import Rebuild, from_file, from_storage
from pyspark_ledger.lifecycle.rebuild_plan import RebuildPlan
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import Create, NamespaceKey, SinkKey, SinkTopicKey, Versioned
from pyspark_ledger.metadata.records import Sink, SinkTopic
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata, MemoryServer
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.everything import ENTITY, GROUP, LIMITS, READING, SUBSCRIPTION, outbox
from tests.support.rollback import snapshot
from tests.support.worlds import IDS, stage_ids

TOPIC, IDLE, GONE, QUERY = "t", "idle", "gone", "query-1"


class Shop:
    """One storage root, and one ZooKeeper after the other. ``namespace()`` is a process."""

    def __init__(self, folder: Path, limits: Limits = LIMITS) -> None:
        self.folder, self.limits, self.clock = folder, limits, SeededClock(7)
        self.server = MemoryServer(self.clock)

    def copy(self, folder: Path) -> Shop:
        """The same in another folder."""
        other = Shop(folder, self.limits)
        shutil.copytree(self.folder, folder)
        other.clock, other.tokens = copy.deepcopy(self.clock), self.tokens
        other.server = MemoryServer(other.clock)
        with other.server.lock:
            for key, node in {**snapshot(self.server), NamespaceKey(): self._moved(folder)}.items():
                other.server._set(key, node)
        return other

    def _moved(self, folder: Path) -> Versioned[Any]:
        found = self.namespace().metadata.read(NamespaceKey())
        assert found is not None
        return replace(found, record=replace(found.record, storage=normalise_uri(str(folder))))

    def namespace(self, faults: Faults | None = None, server: MemoryServer | None = None) -> OpenNamespace:
        metadata = MemoryMetadata(server or self.server, faults, self.clock)
        return OpenNamespace(metadata, str(self.folder), limits=self.limits, clock=self.clock)

    def log(self, topic: str = TOPIC, server: MemoryServer | None = None) -> Log:
        return self.namespace(server=server).log(topic)

    def fill(self, commits: int = 14) -> None:
        """Sealed ledgers in an index of two levels and an open one, generations, producers, tokens, a subscription with
        gaps, an entity, a sink, and topics that are idle or deleted."""
        namespace = self.namespace()
        for name in (TOPIC, IDLE, GONE):
            namespace.create_topic(name, IDS, key="who")
        log = namespace.log(TOPIC)
        for number in range(commits):
            self.commit(log, number)
            if number in (3, 8):
                gc.collect(log)
            if number in (6, 9):
                assert compact(log) is not None
        CursorNode(log, SUBSCRIPTION).ensure("earliest")
        CursorHandle(log, SUBSCRIPTION).mark_delete("1:0:0", {"checkpoint": 7})
        node = CursorNode(log, SUBSCRIPTION)
        node.update(lambda cursor: node.moved(cursor, cursor.ordinal, node.acks(cursor) | [(20, 23), (25, 26)]))
        self.tokens = [record["token"] for record in self.records(log) if record["token"]]
        assert Tokens(log, GROUP).consume(self.tokens[::3])
        outbox(log).process("m0", self.tokens[0], lambda _: ("a long state", []), entity=ENTITY)
        sink = SinkTopicKey(QUERY, TOPIC)
        log.metadata.transact(
            [Create(SinkKey(QUERY), Sink(7, QUERY, "a run")), Create(sink, SinkTopic(log.topic.uuid))]
        )
        topics.delete_topic(log.metadata, GONE, limits=self.limits, clock=self.clock)

    def commit(self, log: Log, number: int) -> None:
        tasks = [[(f"p{(number + task) % 5}", 10 * number + row) for row in range(1 + number % 2)] for task in range(3)]
        protocol.append(log, replace(stage_ids(log, tasks, f"n{number}"), mints=number % 4 == 0))
        self.clock.sleep(600)

    def records(self, log: Log) -> list[dict[str, Any]]:
        return [
            {"position": position, "value": value, "token": token}
            for position, value, token in READING["read"](self, log)  # type: ignore[arg-type]
        ]

    # -- backups ---------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """A round of backup."""
        done = Backup(self.namespace()).run(Pace(self.clock, lambda _: None))
        assert not done.failed

    # -- recovery --------------------------------------------------------------------------------------------------

    def lose(self) -> MemoryServer:
        """ZooKeeper has lost everything. Returns the old one, which may come back."""
        old, self.server = self.server, MemoryServer(self.clock)
        storages._opened.clear()  # as in a new process
        return old

    def rebuild(self, faults: Faults | None = None, asked: str | None = None) -> RebuildPlan:
        return self.rebuilding(faults, asked).run()

    def rebuilding(self, faults: Faults | None = None, asked: str | None = None) -> Rebuild:
        metadata = MemoryMetadata(self.server, faults, self.clock)
        return from_storage(metadata, str(self.folder), asked, limits=self.limits, clock=self.clock)

    def restore(self, file: Path, faults: Faults | None = None) -> RebuildPlan:
        metadata = MemoryMetadata(self.server, faults, self.clock)
        return from_file(metadata, file, str(self.folder), limits=self.limits, clock=self.clock).run()

    def facts(self) -> dict[str, Any]:
        """What processes see of the topic."""
        log = self.log()
        found = {what: look(self, log) for what, look in READING.items() if what != "read an old generation"}  # type: ignore[arg-type]
        cursor = CursorNode(log, SUBSCRIPTION).refresh(sync=True)
        found["cursor"] = (cursor.mark_delete, cursor.ordinal, cursor.acks, cursor.properties, cursor.id)
        found["policies"], found["topic"] = log.policies().record, log.topic
        found["schema"] = log.schema(log.view().head.schema_id)
        for what, key in (("claim", SinkKey(QUERY)), ("sink", SinkTopicKey(QUERY, TOPIC))):
            node = log.metadata.read(key)
            found[what] = None if node is None else node.record
        return found


CALLS = ("create", "delete", "replace", "make_folder")


@contextmanager
def dying(after: int) -> Iterator[Callable[[], int]]:
    """The process dies in the midst of its n-th change of a file. Yields how many there were."""
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == after:
                if real.__name__ == "create":  # and leaves a part of it
                    real(self, *arguments).close()
                raise Crash(f"in {real.__name__} {arguments[0]}")
            return real(self, *arguments)

        return call

    with ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(mock.patch.object(LocalStorage, name, counted(getattr(LocalStorage, name))))
        yield lambda: count
