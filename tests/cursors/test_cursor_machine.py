"""Random histories of a cursor: owners that come, go, hang and acknowledge; resets from outside; lost answers, crashes
and ended sessions anywhere. Whatever happens, I6, I7 and I8 hold, every operation is done once, nothing is stuck."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_ledger.cursors.attachment import Attachment
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import Conflict, CursorUnderRevision, Fenced, OutcomeUnknown, Unavailable
from pyspark_ledger.log import scan
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support import examples
from tests.support.worlds import World, append

RECORDS = 24
TROUBLES = (OutcomeUnknown, Unavailable, Conflict, CursorUnderRevision, Fenced)


class Resetter:
    def __init__(self, world: World, faults: Faults) -> None:
        self.log = world.log(faults)
        self.handle = CursorHandle(self.log, "s")


class Owner:
    """Attached, or trying to; what it acknowledges is what it read under the revision it knows."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.log = world.log(faults)
        self.attachment = Attachment(CursorNode(self.log, "s"), "exclusive")
        self.revision, self.ordinal = -1, 0


class CursorMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.05, 0.2]))
    def start(self, seed: int, trouble: float) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(self.folder, clock=SeededClock(seed))
        log = self.world.log()
        for number in range(0, RECORDS, 3):
            append(log, number, number + 1, number + 2)
        self.positions = [scan.position_at(log, log.view(), n) for n in range(RECORDS + 1)]
        self.node = CursorNode(self.world.log(), "s")
        self.node.ensure("earliest")
        self.faults = [
            Faults(seed + i, lost_before=trouble, applied_then_lost=trouble, delayed=trouble, stale_read=trouble,
                   expired=trouble / 4)
            for i in range(4)
        ]  # fmt: skip
        self.resetters = [Resetter(self.world, faults) for faults in self.faults[:2]]
        self.owners = [Owner(self.world, faults) for faults in self.faults[2:]]
        self.before = self.node.refresh(sync=True)
        self.begun: dict[bytes, int] = {}  # operations, and how often one was said to be done
        self.last: list[tuple[bytes, int, int] | None] = [None, None]

    # -- from outside ------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 1), act=st.sampled_from(["reset", "skip", "clear_backlog", "rewind", "redeliver"]),
          value=st.integers(0, RECORDS), again=st.booleans())  # fmt: skip
    def revise(self, who: int, act: str, value: int, again: bool) -> None:
        """An operation, or its last one again with the same id, as somebody does who heard no answer."""
        last = self.last[who]
        revision = self.node.refresh(sync=True).revision
        if again and last is not None and revision - last[2] < 16:  # the cursor remembers no more
            operation, value, act = last[0], last[1], "skip"
        else:
            operation = self.world.clock.new_id()
            if act == "skip":
                self.last[who] = (operation, value, revision)
        self.begun.setdefault(operation, 0)
        handle = self.resetters[who].handle
        try:
            if act == "reset":
                handle.reset(self.positions[value], operation_id=operation)
            elif act == "skip":
                handle.skip(value, operation_id=operation)
            else:
                getattr(handle, act)(operation_id=operation)
            self.begun[operation] += 1
        except TROUBLES:
            pass
        except Crash:
            self.resetters[who].log.metadata.close()
            self.resetters[who] = Resetter(self.world, self.faults[who])

    # -- owners ------------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 1))
    def attach(self, who: int) -> None:
        owner = self.owners[who]
        try:
            cursor = owner.attachment.attach()
            owner.revision, owner.ordinal = cursor.revision, cursor.ordinal
        except TROUBLES:
            pass
        except Crash:
            self.die(who)

    @rule(who=st.integers(0, 1), step=st.integers(1, 5))
    def acknowledge(self, who: int, step: int) -> None:
        owner = self.owners[who]
        before = self.node.refresh(sync=True)
        owner.ordinal = min(RECORDS, owner.ordinal + step)
        try:
            cursor = owner.attachment.acknowledge(self.positions[owner.ordinal], owner.revision)
            if cursor.revision == owner.revision and not cursor.reviser:
                assert cursor.ordinal >= owner.ordinal, "an acknowledgement that was taken counts"
        except TROUBLES:
            pass
        except Crash:
            self.die(who)
            return
        after = self.node.refresh(sync=True)
        if before.owner != owner.attachment._id:
            assert after.mark_delete == before.mark_delete, "I6: who is not the owner changes nothing"
        if owner.revision != before.revision:
            assert after.mark_delete == before.mark_delete, "I7: an old acknowledgement moves nothing"

    @rule(who=st.integers(0, 1))
    def read_on(self, who: int) -> None:
        owner = self.owners[who]
        try:
            cursor = owner.attachment.verified()
            if cursor.revision != owner.revision:
                owner.revision, owner.ordinal = cursor.revision, cursor.ordinal
        except TROUBLES:
            pass
        except Crash:
            self.die(who)

    @rule(who=st.integers(0, 1))
    def detach(self, who: int) -> None:
        try:
            self.owners[who].attachment.detach()
        except Crash:
            self.die(who)

    @rule(who=st.integers(0, 1))
    def hang(self, who: int) -> None:
        self.owners[who].log.metadata.expire()

    def die(self, who: int) -> None:
        self.owners[who].log.metadata.close()
        self.owners[who] = Owner(self.world, self.faults[2 + who])

    # -- the world ---------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 3), step=st.integers(1, 4), applied=st.booleans())
    def crash_soon(self, who: int, step: int, applied: bool) -> None:
        self.faults[who].crash_at(step, applied=applied)

    @rule()
    def deliver_zombies(self) -> None:
        self.world.server.deliver_delayed()

    @invariant()
    def the_cursor_only_moves_as_it_may(self) -> None:
        if not hasattr(self, "node"):
            return
        before, after = self.before, self.node.refresh(sync=True)
        assert after.revision >= before.revision
        assert after.epoch >= before.epoch
        if after.revision == before.revision:
            assert after.ordinal >= before.ordinal, "I8"
        assert self.positions[after.ordinal] == after.mark_delete
        assert len(set(after.operations)) == len(after.operations), "an operation is done once"
        done = sum(times > 0 for times in self.begun.values())
        assert done <= after.revision <= len(self.begun), "what was said to be done is done, and nothing else"
        self.before = after

    def teardown(self) -> None:
        """Nothing is stuck: when the trouble is over, a reset and an owner get through."""
        if hasattr(self, "node"):
            for client in (*self.resetters, *self.owners):
                client.log.metadata.close()
            self.world.server.deliver_delayed()
            CursorHandle(self.world.log(), "s").reset("earliest")
            assert Attachment(CursorNode(self.world.log(), "s")).attach().ordinal == 0
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


TestCursorMachine = CursorMachine.TestCase
TestCursorMachine.settings = settings(
    max_examples=examples(80),
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
