"""Where a play happens: one ZooKeeper, one disk, three topics, and time that passes when somebody waits."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.names import marker_file
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.files import dead_letters
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.records import Topic
from pyspark_ledger.testing.disk import Disk, MemoryStorage, StorageFaults
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from pyspark_ledger.testing.schedule import Schedule, ScheduleClock
from tests.support.worlds import SCHEMA

GRACE_S = 40.0
LIMITS = Limits(
    commits_per_ledger=4,
    index_fanout=3,
    nodes_per_delete=3,
    inline_entries=2,
    append_deadline_s=5.0,
    change_deadline_s=5.0,
    leftover_s=10.0,
    gc_grace_ms=int(GRACE_S * 1000),
    token_chunk=8,
    token_block=4,
    inline_bitmap_bytes=24,
    inline_bitmaps=1,
    node_bitmap_bytes=5,
)
LOG, TABLE, OUT = "log", "table", "out"
DEAD = "dead"  # only where there are dead letters
TABLE_SCHEMA = pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64())])
MARKER = marker_file(b"simulation")  # with it, whoever seals leaves a snapshot of the log
SUBSCRIPTIONS = {"followed": "by queries", "shared": "by consumers"}


class Stage:
    """``schedule`` and ``chance`` make everything that happens follow from the seed."""

    def __init__(self, seed: int, limits: Limits = LIMITS) -> None:
        self.chance = random.Random(seed)
        self.schedule = Schedule()
        self.limits = limits
        self.clock = ScheduleClock(self.schedule, seed)
        self.server = MemoryServer(self.clock)
        self.disk = Disk()
        self._number = 0
        MemoryStorage(self.disk).make_folder("")
        storage = self.storage()
        storage.write(MARKER, b"")
        self.topics: dict[str, Topic] = {}
        for name, schema, key in ((LOG, SCHEMA, "n"), (TABLE, TABLE_SCHEMA, "k"), (OUT, SCHEMA, "")):
            self.topics[name] = topics.create_topic(
                MemoryMetadata(self.server, clock=self.clock), name, schema, key=key, clock=self.clock, storage=storage
            )
        for subscription in SUBSCRIPTIONS:
            CursorNode(self.log(LOG), subscription).ensure("earliest")

    def make_dead(self) -> None:
        """The topic for dead letters."""
        metadata = MemoryMetadata(self.server, clock=self.clock)
        self.topics[DEAD] = topics.create_topic(
            metadata, DEAD, dead_letters.SCHEMA, clock=self.clock, storage=self.storage()
        )

    def log(self, topic: str) -> Log:
        """A topic as somebody sees it to whom nothing happens, and who takes no time."""
        metadata = MemoryMetadata(self.server, clock=self.clock)
        return Log(metadata, self.storage(), self.topics[topic], limits=self.limits, clock=self.clock)

    def storage(self, faults: StorageFaults | None = None, uri: str = "memory://disk") -> MemoryStorage:
        """The disk, as one process sees it."""
        return MemoryStorage(self.disk, faults, marker=MARKER, uri=uri)

    def number(self) -> int:
        """No two records have the same."""
        self._number += 1
        return self._number

    def some_time(self, mean_s: float) -> float:
        return self.chance.expovariate(1.0 / mean_s)

    def happens(self, rate: float) -> bool:
        return self.chance.random() < rate

    def with_limits(self, **changes: int) -> Limits:
        return replace(self.limits, **changes)

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self.schedule.at(seconds, do)
