"""What Spark does with a stream reader, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from unittest.mock import patch

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.datasource import LedgerDataSource, offsets, planning
from pyspark_ledger.datasource.offsets import Offset
from pyspark_ledger.datasource.stream_reader import LedgerStreamReader
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.records import Topic
from tests.support.worlds import World, append

INITIAL = {"initial": True}


def fields(offset: dict) -> dict:
    """What an offset says of its one topic."""
    ((_, found),) = offset["topics"].items()
    return found


def document(offset: Offset) -> dict:
    """What Spark keeps of a query at an offset."""
    return offsets.document({offset.name: offset.part()})


def parse(given, topic: Topic) -> Offset:
    """What a document of one topic says of it."""
    ((name, found),) = offsets.parts(given).items()
    return offsets.parse(name, found, topic)


def edited(offset: dict, **changes) -> dict:
    ((topic, found),) = offset["topics"].items()
    return {**offset, "topics": {topic: {**found, **changes}}}


def version_1(offset: dict) -> dict:
    """The same offset as the first version of this package wrote it."""
    found = {**fields(offset), "v": 1}
    found["topic"] = found.pop("id")
    return {key: found[key] for key in sorted(found) if key not in ("commit", "cursor", "records", "reset")}


SMALL_LEDGERS = Limits(commits_per_ledger=5, index_fanout=3)


def add(client: LedgerClient, *numbers: int, topic: str = "t") -> None:
    append(namespace_of(client).log(topic), *numbers)


class Query:
    """What Spark does with a reader, batch after batch. A new one with ``offset`` is a restart from a checkpoint."""

    def __init__(self, client: LedgerClient, topic: str = "t", *, offset=None, schema=None, **options: str) -> None:
        source = LedgerDataSource({"zookeeper": client.zookeeper, "topic": topic, **options})
        self.reader: LedgerStreamReader = source.streamReader(schema or source.schema())
        self.offset = offset or self.reader.initialOffset()
        self.batches: list[tuple[dict, dict, list[int]]] = []

    def plan(self, limit=None) -> tuple[dict, dict]:
        start = self.offset
        self.offset = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        return start, self.offset

    def read(self, start: dict, end: dict) -> list[int]:
        parts = self.reader.partitions(start, end)
        return [n for part in parts for batch in self.reader.read(part) for n in batch.column("n").to_pylist()]

    def batch(self, limit=None) -> list[int]:
        start, end = self.plan(limit)
        rows = [] if start == end else self.read(start, end)
        self.batches.append((start, end, rows))
        return rows

    def all(self, limit=None) -> list[list[int]]:
        """Batches until there is nothing new."""
        return list(iter(lambda: self.batch(limit), []))


class WorldQuery(Query):
    """The same over the in-memory store, in a process of its own. It sees at once what others have done."""

    def __init__(self, world: World, *, offset=None, **options: str) -> None:
        session = OpenNamespace(world.metadata(), world.storage.uri, limits=world.limits, clock=world.clock)
        self.in_world = patch.object(planning, "shared_namespace", lambda *_: session)
        with self.in_world:
            source = LedgerDataSource(options if "topics" in options else {"topic": "t", **options})
            self.reader = source.streamReader(source.schema())
            self.log = self.reader._planner._open()[0].log()
        self.offset = offset or self.reader.initialOffset()
        self.batches = []

    def plan(self, limit=None) -> tuple[dict, dict]:
        with suppress(LedgerError):  # then planning says so, too
            self.log.refresh(sync=True)
        if self.reader._planner.topics[0]._subscription is not None:
            self.reader._planner.topics[0]._subscription._attachment.node.refresh(sync=True)
        return super().plan(limit)

    def stop(self) -> None:
        self.reader.stop()


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def eventually(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
