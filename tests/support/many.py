"""Several topics of one namespace, over the in-memory store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.append.claim import BatchClaim
from pyspark_ledger.append.several import Beside, Part, Together
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import SinkKey
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults, MemoryMetadata, MemoryServer
from tests.support.worlds import SCHEMA, SMALL, read, stage


class Process:
    """One process that writes to topics by their names, with a connection of its own."""

    def __init__(self, place: Topics, faults: Faults | None = None) -> None:
        self.place, self.metadata = place, MemoryMetadata(place.server, faults, place.clock)

    def log(self, name: str) -> Log:
        topic = topics.get_topic(self.metadata, name)
        return Log(self.metadata, self.place.storage, topic, limits=self.place.limits, clock=self.place.clock)

    def part(self, name: str, *numbers: int, **batch) -> Part:
        log = self.log(name)
        return Part(log, StagedBatch(log.clock.new_id(), (stage(log, *numbers),), SCHEMA, **batch))

    def together(self, parts: Sequence[Part], *beside: Beside) -> Together:
        return Together(self.metadata, self.place.limits, self.place.clock, parts, beside)

    def claim(self, number: int, run: str = "run", rows: int = 1, query: str = "q") -> BatchClaim:
        id = BatchId(number, query, run, b"offsets of %d" % number)
        return BatchClaim(
            self.metadata, self.place.limits, self.place.clock, SinkKey(query), f"spark-{query}", id, rows
        )


class Topics:
    def __init__(
        self, folder: Path, names: Sequence[str] = "abc", limits: Limits = SMALL, clock: Clock | None = None
    ) -> None:
        self.clock = clock or SeededClock()
        self.server, self.limits = MemoryServer(self.clock), limits
        self.storage = open_storage(str(folder))
        self.storage.make_folder("")
        for name in names:
            self.make(name)

    def make(self, name: str) -> None:
        metadata = MemoryMetadata(self.server, None, self.clock)
        topics.create_topic(metadata, name, SCHEMA, clock=self.clock, storage=self.storage)

    def delete(self, name: str) -> None:
        topics.delete_topic(MemoryMetadata(self.server, None, self.clock), name, limits=self.limits, clock=self.clock)

    def process(self, faults: Faults | None = None) -> Process:
        return Process(self, faults)

    def numbers(self, name: str) -> list[int]:
        return [number for number, _ in read(self.process().log(name))]
