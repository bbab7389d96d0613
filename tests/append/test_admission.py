"""What append asks of an admission, and when: judge, committed, lost."""

from __future__ import annotations

import pytest

from pyspark_ledger.append.admission import Admission, StagedBatch, TopicState, Verdict
from pyspark_ledger.append.append import append as append_batch
from pyspark_ledger.errors import Conflict
from pyspark_ledger.testing.memory import Faults
from tests.support.worlds import SCHEMA, World, append, stage


class Recorded(Admission):
    """Remembers what it was asked; ``meanwhile`` happens after each verdict, before the commit."""

    def __init__(self, *verdicts, meanwhile=None):
        self.calls, self._verdicts, self._meanwhile = [], list(verdicts), list(meanwhile or [])

    def judge(self, batch: StagedBatch, topic: TopicState) -> Verdict:
        self.calls.append(("judge", topic.view.head.next_commit))
        if self._meanwhile:
            self._meanwhile.pop(0)()
        verdict = self._verdicts.pop(0) if self._verdicts else Verdict(batch.entries)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def committed(self):
        self.calls.append("committed")

    def lost(self):
        self.calls.append("lost")


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def staged(log, *numbers: int, admission: Admission) -> StagedBatch:
    return StagedBatch(log.clock.new_id(), (stage(log, *numbers),), SCHEMA, admission=admission)


def test_a_batch_that_nobody_overtakes_is_judged_once(world):
    log, admission = world.log(), Recorded()
    append_batch(log, staged(log, 1, admission=admission))
    assert admission.calls == [("judge", 0), "committed"]


def test_a_batch_that_was_overtaken_is_judged_again_from_the_new_head_I2(world):
    log = world.log()
    admission = Recorded(meanwhile=[lambda: append(world.log(), 7)])
    append_batch(log, staged(log, 1, admission=admission))
    assert admission.calls == [("judge", 0), "lost", ("judge", 1), "committed"]
    assert world.read() == [7, 1]


def test_a_lost_answer_is_not_a_lost_commit_I14(world):
    faults = Faults()
    log, admission = world.log(faults), Recorded()
    batch = staged(log, 1, admission=admission)
    faults.next_transact("applied_then_lost")
    append_batch(log, batch)
    assert admission.calls == [("judge", 0), "committed"]
    assert world.read() == [1]


def test_nothing_is_rejected_from_what_may_be_out_of_date(world):
    """The head's version validates an acceptance, but nothing validates a rejection."""
    log = world.log()
    log.view()
    append(world.log(), 7)  # this process has not heard of it
    admission = Recorded(Conflict("old news"))
    append_batch(log, staged(log, 1, admission=admission))
    assert admission.calls == [("judge", 0), ("judge", 1), "committed"]

    admission = Recorded(Conflict("old news"), Conflict("true"))
    with pytest.raises(Conflict, match="true"):
        append_batch(log, staged(log, 2, admission=admission))
    assert admission.calls == [("judge", 2), ("judge", 2)]
    assert world.read() == [7, 1]


def test_a_batch_with_nothing_new_makes_no_commit_and_that_is_not_said_from_what_may_be_out_of_date(world):
    log = world.log()
    append(log, 7)
    nothing_new = Verdict((), dropped=3, is_duplicate=True)
    before, admission = log.view().head, Recorded(nothing_new, nothing_new)
    done = append_batch(log, staged(log, 1, admission=admission))
    assert (done.duplicate, done.records, done.dropped, done.start) == (True, 0, 3, before.end)
    assert admission.calls == [("judge", 1), ("judge", 1)]
    assert world.log().view().head == before
