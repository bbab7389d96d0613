"""Random histories of deduplicated writing against a simple model (I1, I2, I5, I12, I14).

There is one source for every producer: its records 0, 1, 2, … Two jobs copy all sources into one topic, each from
where it last knew it was, with old records mixed in, in any order, spread over any tasks; a third producer is a Python
program that asks after every crash where it was. They crash, lose answers, race each other, and recover; snapshots are
taken at any time and gc runs. The model: of every producer the log has exactly the records 0 to some n, each once, at
least as far as any job was told; and whoever recovers the state finds exactly n.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import OutcomeUnknown, Unavailable
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log import places, policies, scan
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support import examples
from tests.support.worlds import IDS, World, append_ids

PRODUCERS = "abc"
PROGRAM = "program"
SOME = Limits(4, index_fanout=3, nodes_per_delete=3, inline_entries=2, inline_mask_bytes=20, inline_producers_bytes=150,
              append_deadline_s=5.0)  # fmt: skip
TROUBLES = (OutcomeUnknown, Unavailable)


class DedupMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.05, 0.2]))
    def start(self, seed: int, trouble: float) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(self.folder, SOME, SeededClock(seed), IDS)
        self.faults = [
            Faults(seed + i, lost_before=trouble, applied_then_lost=trouble, delayed=trouble, stale_read=trouble,
                   expired=trouble / 4)
            for i in range(3)
        ]  # fmt: skip
        self.logs = [self.world.log(faults) for faults in self.faults]
        self.told = [dict.fromkeys(PRODUCERS, 0) for _ in range(2)]  # of each job: the next record, as far as it knows
        self.program: Producer | None = None
        self.program_told = -1

    # -- the jobs ------------------------------------------------------------------------------------------------

    @rule(job=st.integers(0, 1), data=st.data())
    def copy(self, job: int, data: st.DataObject) -> None:
        told = self.told[job]
        upto = {who: told[who] + data.draw(st.integers(0, 3)) for who in PRODUCERS}
        again = {who: max(0, told[who] - data.draw(st.integers(0, 4))) for who in PRODUCERS}
        rows = [(who, n) for who in PRODUCERS for n in range(again[who], upto[who])]
        rows += data.draw(st.lists(st.sampled_from(rows), max_size=3)) if rows else []  # and some twice
        rows = data.draw(st.permutations(rows))
        cut = data.draw(st.integers(0, len(rows)))
        try:
            append_ids(self.logs[job], [rows[:cut], rows[cut:]])
            self.told[job] = upto
        except TROUBLES:
            pass  # it does not know, and begins again where it was
        except Crash:
            self.logs[job] = self.world.log(self.faults[job])

    @rule(job=st.integers(0, 1))
    def start_from_the_beginning(self, job: int) -> None:
        self.told[job] = dict.fromkeys(PRODUCERS, 0)

    # -- the program ---------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4), resend=st.integers(0, 3))
    def send(self, count: int, resend: int) -> None:
        try:
            if self.program is None:
                self.program = Producer(self.logs[2], name=PROGRAM)
                last = self.program.last_sequence_id
                assert self.program_told <= (-1 if last is None else last), "I1: recovery forgot what was confirmed"
                self.next = 0 if last is None else last + 1
            for n in range(max(0, self.next - resend), self.next + count):
                receipt = self.program.send({"who": PROGRAM, "seq": n}, sequence_id=n)
                assert receipt.done() == (n <= self.confirmed()), "duplicate only if it is in the log: Pulsar #5218"
            self.next += count
            self.program.flush()
            self.program_told = self.next - 1
        except TROUBLES:
            pass  # what was sent is still waiting; the next flush finds out
        except Crash:
            self.program, self.logs[2] = None, self.world.log(self.faults[2])

    def confirmed(self) -> int:
        assert self.program is not None
        last = self.program.last_sequence_id
        return -1 if last is None else last

    @rule()
    def restart_the_program(self) -> None:
        self.program, self.logs[2] = None, self.world.log(self.faults[2])

    # -- the world -----------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 2), step=st.integers(1, 6), applied=st.booleans())
    def crash_soon(self, who: int, step: int, applied: bool) -> None:
        self.faults[who].crash_at(step, applied=applied)

    @rule(job=st.integers(0, 1))
    def restart(self, job: int) -> None:
        self.logs[job] = self.world.log(self.faults[job])

    @rule(commits=st.integers(1, 6))
    def snapshot_more_or_less_often(self, commits: int) -> None:
        policies.change(self.world.log(), policies.Changes(snapshot_commits=commits))

    @rule()
    def collect_garbage(self) -> None:
        gc.collect(self.world.log())

    @rule()
    def deliver_zombies(self) -> None:
        self.world.server.deliver_delayed()

    @invariant()
    def the_log_has_every_record_once_and_the_state_is_exact(self) -> None:
        log = self.world.log()
        found: defaultdict[str, list[int]] = defaultdict(list)
        positions = []
        for record in Reader(log, "earliest", "latest"):
            assert (record.sequence_id, record.producer or record["who"]) == (record["seq"], record["who"])
            found[record["who"]].append(record["seq"])
            positions.append(record.position)
        assert positions == sorted(set(positions)), "I2"
        view, states = log.producers()
        assert view.head.records == len(positions) == scan.count(log, view, places.earliest(view), view.head.end)
        for who in (*PRODUCERS, PROGRAM):
            assert sorted(found[who]) == list(range(len(found[who]))), "I1, I5: every record, once"
            last = states.last_sequence(who, "t")
            assert last == (len(found[who]) - 1 if found[who] else None), "I5: recovery is exact"
        for told in self.told:
            assert all(len(found[who]) >= count for who, count in told.items()), "I1: what a job was told is there"
        assert len(found[PROGRAM]) > self.program_told, "I1, I14"

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


TestDedupMachine = DedupMachine.TestCase
TestDedupMachine.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
