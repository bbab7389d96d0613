"""Any history of a sink over several topics, with crashes, lost answers, rivals, seals and deleted topics: every batch
is in all of its topics or in none, and once, whatever topics a replay names (models/h_claims)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_ledger.errors import NotFound, OutcomeUnknown, Unavailable
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support import examples
from tests.support.many import Topics
from tests.support.worlds import append

NAMES = "abcd"
TROUBLES = (OutcomeUnknown, Unavailable)
ROUTES = st.sets(st.sampled_from(NAMES), min_size=1).map(sorted)


class SeveralMachine(RuleBasedStateMachine):
    """A record is batch * 1,000 + attempt: so all that is in the log of a batch must be of one attempt."""

    @initialize(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.1, 0.3]))
    def start(self, seed: int, trouble: float) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.place = Topics(self.folder, NAMES, clock=SeededClock(seed))
        self.seed, self.trouble = seed, trouble
        self.batch = self.attempts = self.rivals = 0
        self.routes: dict[int, dict[str, int]] = {}  # attempt -> the topics that it names, with how often each was made
        self.made = dict.fromkeys(NAMES, 0)
        self.done: set[int] = set()
        self.restart()

    @rule()
    def restart(self) -> None:
        self.seed += 1
        rate = self.trouble
        self.faults = Faults(
            self.seed, lost_before=rate, applied_then_lost=rate, delayed=rate, stale_read=rate, expired=rate / 4
        )
        self.process, self.run = self.place.process(self.faults), f"run-{self.seed}"

    @rule(route=ROUTES, rival=st.sampled_from(["", *NAMES]))
    def write(self, route: list[str], rival: str) -> None:
        """The next batch, or the last one again: its rows may go elsewhere now."""
        self.attempts += 1
        self.routes[self.attempts] = {name: self.made[name] for name in route}
        number = self.batch * 1_000 + self.attempts
        try:
            parts = [self.process.part(name, number) for name in route]
            claim = self.process.claim(self.batch, self.run)
            if rival:
                self.append_alone(rival)
            self.process.together(parts, claim).append()
        except Crash:
            self.restart()
        except TROUBLES:
            return
        else:
            self.done.add(self.batch)
            self.batch += 1

    @rule(name=st.sampled_from(NAMES))
    def append_alone(self, name: str) -> None:
        """Somebody else writes; ledgers are short, so this also seals."""
        self.rivals += 1
        append(self.place.process().log(name), -self.rivals)

    @rule(step=st.integers(1, 4), applied=st.booleans())
    def crash_soon(self, step: int, applied: bool) -> None:
        self.faults.crash_at(step, applied=applied)

    @rule(name=st.sampled_from(NAMES), route=ROUTES)
    def delete_and_make_again_in_the_middle(self, name: str, route: list[str]) -> None:
        self.attempts += 1
        self.routes[self.attempts] = {name: self.made[name] for name in route}
        try:
            parts = [self.process.part(each, self.batch * 1_000 + self.attempts) for each in route]
            together = self.process.together(parts, self.process.claim(self.batch, self.run))
            self.place.delete(name)
            self.place.make(name)
            self.made[name] += 1
            together.append()
        except Crash:
            self.restart()
        except TROUBLES:
            return
        except NotFound:
            assert name in route
        else:
            self.done.add(self.batch)
            self.batch += 1

    @invariant()
    def every_batch_is_in_all_of_its_topics_or_in_none(self) -> None:
        if not hasattr(self, "place"):
            return
        time = -1
        while time != self.place.server.time:  # looking takes time, and what was delayed may come in between
            time = self.place.server.time
            found = {name: [n for n in self.place.numbers(name) if n > 0] for name in NAMES}
        self.check(found)

    def check(self, found: dict[str, list[int]]) -> None:
        attempts: dict[int, int] = {}  # batch -> the attempt that is in the log
        for numbers in found.values():
            assert len(numbers) == len(set(numbers)), "once"
            assert numbers == sorted(numbers), "in the order of batches"
            for number in numbers:
                batch, attempt = divmod(number, 1_000)
                assert attempts.setdefault(batch, attempt) == attempt, "of one attempt"
        for batch, attempt in attempts.items():
            for name, made in self.routes[attempt].items():
                if made == self.made[name]:
                    assert batch * 1_000 + attempt in found[name], "in all of its topics"

    def teardown(self) -> None:
        if not hasattr(self, "place"):
            return
        self.place.server.deliver_delayed()
        self.trouble = 0.0
        self.restart()
        last = self.batch
        self.write(list(NAMES), "")
        assert last in self.done, "it terminates"
        found = {name: self.place.numbers(name) for name in NAMES}
        self.check({name: [n for n in numbers if n > 0] for name, numbers in found.items()})
        if all(made == 0 for made in self.made.values()):
            batches = {number // 1_000 for numbers in found.values() for number in numbers if number > 0}
            assert batches == self.done, "nothing that was told to be done is missing"
        shutil.rmtree(self.folder)


TestSeveralMachine = SeveralMachine.TestCase
TestSeveralMachine.settings = settings(max_examples=examples(20), stateful_step_count=25, deadline=None)
