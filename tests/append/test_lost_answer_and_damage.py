"""The answer to a commit is lost, and the file that would tell what became of it is damaged: that is unknown, and not
"not done" (I14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.errors import OutcomeUnknown
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import Op
from pyspark_ledger.testing.disk import Disk, MemoryStorage
from pyspark_ledger.testing.memory import Faults, MemoryMetadata
from tests.support.worlds import World, append


class Paused(MemoryMetadata):
    """Others act between its next transaction and whatever it does after that."""

    meanwhile: Callable[[], None] | None = None

    def transact(self, ops: Sequence[Op]) -> None:
        try:
            super().transact(ops)
        finally:
            if self.meanwhile is not None:
                act, self.meanwhile = self.meanwhile, None
                act()


@pytest.mark.parametrize("damage", ["removed", "torn"])
def test_a_commit_that_cannot_be_looked_up_is_unknown_until_the_file_is_restored_I1_I14(damage):
    disk = Disk()
    world = World(MemoryStorage(disk))
    faults = Faults()
    metadata = Paused(world.server, faults, world.clock)
    log = Log(metadata, world.storage, world.topic, limits=world.limits, clock=world.clock)
    saved: dict[str, bytes] = {}

    def others_seal_it_and_the_leaf_is_damaged() -> None:
        other = world.log()
        for number in range(4):
            append(other, number)
        [leaf] = Index(other.files, other.view().head.index).leaves(lambda row: row.first_commit, 0)
        path = next(path for path in disk.files() if leaf.file.uid.hex() in path)
        saved[path] = disk.content(path)
        disk.put(path, None if damage == "removed" else saved[path][:10])

    producer = Producer(log)
    receipt = producer.send({"n": 7})
    faults.next_transact("applied_then_lost")
    metadata.meanwhile = others_seal_it_and_the_leaf_is_damaged
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match=r"LEDGER_OUTCOME_UNKNOWN.*(is missing|is damaged)"):
            producer.flush()
    for path, data in saved.items():
        disk.put(path, data)
    producer.flush()
    assert receipt.result().duplicate
    assert world.read() == [7, 0, 1, 2, 3]
