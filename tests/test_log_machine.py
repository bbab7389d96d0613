"""Thousands of random histories over the in-memory store: appends, lost answers, crashes, two writers, seals, gc.

The model is a list. Whatever happens, the log is the acknowledged records in order of acknowledgement, plus at most
what a crashed writer had under way; every sequence id is there at most once; and no file that is named is gone.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from helpers import World, append, read
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_ledger import gc
from pyspark_ledger.clock import SeededClock
from pyspark_ledger.dedup import Claim
from pyspark_ledger.errors import Conflict, OutcomeUnknown, Unavailable
from pyspark_ledger.memory import Crash, Faults
from pyspark_ledger.port import LedgerKey, RootKey


class LogMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.05, 0.25]))
    def start(self, seed: int, trouble: float) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(self.folder, clock=SeededClock(seed))
        self.faults = [
            Faults(seed + i, lost_before=trouble, applied_then_lost=trouble, delayed=trouble, stale_read=trouble,
                   expired=trouble / 4)
            for i in range(2)
        ]  # fmt: skip
        self.logs = [self.world.log(f) for f in self.faults]
        self.number = 0
        self.acknowledged: list[int] = []
        self.in_doubt: set[int] = set()
        self.sequences = [0, 0]

    def attempt(self, who: int, number: int, claim: Claim | None) -> None:
        """One append; a writer that does not know its outcome, or dies, leaves its record in doubt."""
        try:
            append(self.logs[who], number, claim=claim)
            self.acknowledged.append(number)
        except (OutcomeUnknown, Unavailable):
            self.in_doubt.add(number)
        except Crash:
            self.in_doubt.add(number)
            self.logs[who] = self.world.log(self.faults[who])

    @rule(who=st.integers(0, 1))
    def append_plain(self, who: int) -> None:
        self.number += 1
        self.attempt(who, self.number, None)

    @rule(who=st.integers(0, 1))
    def append_next_batch(self, who: int) -> None:
        self.number += 1
        self.sequences[who] += 1
        self.attempt(who, self.number, Claim(f"p{who}", self.sequences[who], f"q{who}", "run", b"d%d" % self.number))

    @rule(who=st.integers(0, 1))
    def replay_last_batch(self, who: int) -> None:
        """A restarted query brings its last batch again: it is added if it was not there, and else not."""
        _, producers = self.world.log().producers()
        state = producers.get(f"p{who}")
        if state is None:
            return
        try:
            again = append(
                self.logs[who], 10**9, claim=Claim(state.name, state.sequence, state.query, "run", state.digest)
            )
            assert again.duplicate
        except (OutcomeUnknown, Unavailable, Conflict):
            pass

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
        assert 10**9 not in numbers, "I5: a replay adds nothing"
        assert [n for n in numbers if n not in self.in_doubt] == self.acknowledged, "I1, I2"
        assert set(numbers) <= set(self.acknowledged) | self.in_doubt, "I3"

    @invariant()
    def zookeeper_stays_small(self) -> None:
        """I4, I13: one open ledger; what crashed sealers left is bounded by what they had begun."""
        log = self.world.log()
        ledgers = [k for k in log.metadata.children(RootKey(self.world.topic.uuid)) if isinstance(k, LedgerKey)]
        assert max(k.ledger for k in ledgers) == log.view().head.ledger
        assert len(log.view().open_commits) <= self.world.limits.commits_per_ledger

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
