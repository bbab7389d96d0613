"""Thousands of random histories over the in-memory store: appends, lost answers, crashes, two writers, seals, gc.

The model is a list. Whatever happens, the log is the acknowledged records in order of acknowledgement, plus at most
what a crashed writer had under way; every sequence id is there at most once; and no file that is named is gone.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_ledger.append.prepared import AppendResult
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import OutcomeUnknown, Unavailable
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.metadata.port import LedgerKey, PartKey
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support import examples
from tests.support.worlds import EAGER, World, append, read

REPLAY = 10**9  # what a replay of a batch that is in the log must not add


class LogMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.05, 0.25]))
    def start(self, seed: int, trouble: float) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(self.folder, EAGER, SeededClock(seed))
        self.faults = [
            Faults(seed + i, lost_before=trouble, applied_then_lost=trouble, delayed=trouble, stale_read=trouble,
                   expired=trouble / 4)
            for i in range(2)
        ]  # fmt: skip
        self.logs = [self.world.log(f) for f in self.faults]
        self.number = 0
        self.acknowledged: list[int] = []
        self.in_doubt: set[int] = set()
        self.owed: set[int] = set()  # in doubt at first, and acknowledged to a replay since
        self.sequences = [0, 0]
        self.last: list[tuple[BatchId, int] | None] = [None, None]

    def attempt(self, who: int, number: int, batch_id: BatchId | None) -> AppendResult | None:
        """One append; a writer that does not know its outcome, or dies, leaves its record in doubt."""
        try:
            return append(self.logs[who], number, producer=f"p{who}" if batch_id else "", batch_id=batch_id)
        except (OutcomeUnknown, Unavailable):
            self.in_doubt.add(number)
        except Crash:
            self.in_doubt.add(number)
            self.logs[who] = self.world.log(self.faults[who])
        return None

    def append_new(self, who: int, batch_id: BatchId | None) -> None:
        self.number += 1
        if self.attempt(who, self.number, batch_id) is not None:
            self.acknowledged.append(self.number)

    @rule(who=st.integers(0, 1))
    def append_plain(self, who: int) -> None:
        self.append_new(who, None)

    @rule(who=st.integers(0, 1))
    def append_next_batch(self, who: int) -> None:
        self.sequences[who] += 1
        batch_id = BatchId(self.sequences[who], f"q{who}", "run", b"d%d" % (self.number + 1))
        self.last[who] = (batch_id, self.number + 1)
        self.append_new(who, batch_id)

    @rule(who=st.integers(0, 1))
    def replay_last_batch(self, who: int) -> None:
        """A restarted query brings its last batch again, whatever became of it the first time."""
        if self.last[who] is not None:
            batch_id, number = self.last[who]
            known = number not in self.in_doubt
            again = self.attempt(who, REPLAY if known else number, batch_id)
            if again is not None:
                assert again.duplicate or not known, "I5"
                self.owed.add(number)

    @rule(who=st.integers(0, 1), step=st.integers(1, 6), applied=st.booleans())
    def crash_soon(self, who: int, step: int, applied: bool) -> None:
        self.faults[who].crash_at(step, applied=applied)

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.logs[who] = self.world.log(self.faults[who])

    @rule()
    def collect_garbage(self) -> None:
        gc.collect(self.world.log())

    @rule()
    def deliver_zombies(self) -> None:
        self.world.server.deliver_delayed()

    @invariant()
    def the_log_is_what_was_acknowledged(self) -> None:
        log = self.world.log()
        found = list(read(log))  # opens every named file: I12
        numbers = [number for number, _ in found]
        positions = [position for _, position in found]
        assert positions == sorted(set(positions)), "I2"
        assert len(numbers) == len(set(numbers)), "I1, I5: nothing twice"
        assert REPLAY not in numbers, "I5: a replay adds nothing"
        assert [n for n in numbers if n not in self.in_doubt] == self.acknowledged, "I1, I2"
        assert set(numbers) <= set(self.acknowledged) | self.in_doubt, "I3"
        assert self.owed <= set(numbers), "I1, I14: what a replay was told is true"

    @invariant()
    def zookeeper_stays_small(self) -> None:
        """I4, I13: one open ledger; what crashed sealers left is bounded by what they had begun."""
        log = self.world.log()
        before, keys = log.view(), log.metadata.children(PartKey(self.world.topic.uuid, "commits"))
        after = log.refresh()  # a zombie may have arrived between these reads
        newest = max((key.ledger for key in keys if isinstance(key, LedgerKey)), default=-1)
        assert newest <= after.head.ledger
        assert newest >= before.head.ledger or not before.open_commits
        assert len(after.open_commits) <= self.world.limits.commits_per_ledger

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=examples(60),
    stateful_step_count=50,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
