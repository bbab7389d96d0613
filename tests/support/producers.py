"""A process with a producer, whose ZooKeeper can be taken away."""

from __future__ import annotations

from pyspark_ledger.append.background import Background
from pyspark_ledger.append.producer import Producer
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.port import CommitKey
from pyspark_ledger.testing.memory import Faults
from tests.support.flaky import Flaky, creates
from tests.support.worlds import World

NEVER_BY_ITSELF = Background(linger_ms=86_400_000)  # the test decides when the background does something


class Process:
    def __init__(
        self,
        world: World,
        name: str | None = "p",
        background: Background | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.faults = Faults(max_delay=50)
        self.zookeeper = Flaky(world.server, self.faults, world.clock)
        log = Log(self.zookeeper, world.storage, world.topic, limits=world.limits, clock=world.clock)
        self.producer = Producer(log, name=name, background=background)
        if faults is not None:
            self.faults = self.zookeeper._faults = faults  # not before it is there

    def lose_the_next_commit(self, fate: str) -> None:
        """Its answer never comes, and then nothing is answered any more."""
        self.faults.next_transact(fate)
        self.zookeeper.down_after = creates(CommitKey)

    def background_acts(self) -> None:
        """As if its time had come."""
        self.producer._delivery._work()


def numbers(world: World) -> list[int]:
    return [record["n"] for record in Reader(world.log(), "earliest", "latest")]
