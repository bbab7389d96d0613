"""Many writers of one topic, each a process of its own, in an order that follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import LedgerError, OutcomeUnknown, Unavailable
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata
from pyspark_ledger.testing.schedule import Schedule, ScheduleClock
from tests.support.worlds import World, append

CALL_S = 0.003  # how long a call takes on average
LIMITS = Limits(commits_per_ledger=20, index_fanout=5, append_deadline_s=60.0, leftover_s=5.0)


class Writer:
    """One process. What it was told of each number that it wrote is in ``told``: where it is, or the error."""

    def __init__(self, crowd: Crowd, name: str, faults: Faults | None = None) -> None:
        self.crowd, self.name = crowd, name
        self.faults = faults or Faults()
        self.clock = ScheduleClock(crowd.schedule, crowd.random.randrange(2**32))
        self.metadata = MemoryMetadata(crowd.world.server, self.faults, self.clock, self._before_call)
        self.log = Log(
            self.metadata, crowd.world.storage, crowd.world.topic, limits=crowd.world.limits, clock=self.clock
        )
        self.told: dict[int, Position | LedgerError] = {}
        self.producer: Producer | None = None
        self.paused_until = 0.0
        self.dead = False

    def _before_call(self) -> None:
        if self.dead:
            raise Crash(f"{self.name} was killed")
        self.crowd.schedule.wait(self.crowd.random.expovariate(1 / CALL_S))
        while self.crowd.schedule.now < self.paused_until:
            self.crowd.schedule.wait(self.paused_until - self.crowd.schedule.now)
        if self.dead:
            raise Crash(f"{self.name} was killed")

    def write(self, number: int, **batch: object) -> None:
        try:
            self.told[number] = append(self.log, number, **batch).start
        except LedgerError as error:
            self.told[number] = error

    def send(self, number: int) -> None:
        """By a producer with a name, which tries until it knows."""
        receipt = None
        while number not in self.told:
            try:
                self.producer = self.producer or Producer(self.log, name=self.name)
                receipt = receipt or self.producer.send({"n": number})
                position = receipt.result().position
                assert position is not None
                self.told[number] = position
            except (Unavailable, OutcomeUnknown):
                self.clock.sleep(0.1)

    @property
    def done(self) -> dict[int, Position]:
        return {number: told for number, told in self.told.items() if isinstance(told, Position)}


class Crowd:
    def __init__(self, folder: Path, seed: int = 0, limits: Limits = LIMITS) -> None:
        self.random, self.schedule = random.Random(seed), Schedule()
        self.world = World(folder, limits, clock=ScheduleClock(self.schedule, seed))
        self.writers: list[Writer] = []

    def writer(self, faults: Faults | None = None) -> Writer:
        self.writers.append(Writer(self, f"writer {len(self.writers)}", faults))
        return self.writers[-1]

    def start(self, writer: Writer, act: Callable[[Writer], None]) -> None:
        def live() -> None:
            try:
                act(writer)
            except Crash:
                self.schedule.at(writer.metadata.session_timeout_s, writer.metadata.close)

        self.schedule.start(writer.name, live)

    def run(self, seconds: float = 120.0) -> None:
        """Until then all must have ended, but for those who wait for ever."""
        self.schedule.wait(seconds)

    def stored(self) -> dict[int, list[Position]]:
        """Where each number is in the log."""
        found: dict[int, list[Position]] = {}
        for record in Reader(self.world.log(), "earliest", "latest"):
            found.setdefault(record["n"], []).append(record.position)
        return found

    def check(self) -> None:
        """Each number is there once at most, where its writer was told that it is; nobody was told "no" of one that is
        there; and nobody has left anything in the queue."""
        stored = self.stored()
        assert all(len(positions) == 1 for positions in stored.values()), "stored twice"
        for writer in self.writers:
            for number, told in writer.told.items():
                if isinstance(told, Position):
                    assert stored.get(number) == [told], f"{writer.name} was told that {number} is at {told}"
                elif not isinstance(told, OutcomeUnknown):
                    assert number not in stored, f"{writer.name} was told {told} of {number}, and it is there"
        assert self.world.log().queue.waiting() == []

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.schedule.end()
