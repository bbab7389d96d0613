"""Many writers of one topic: everybody gets its turn, and is told the truth (I14, I17)."""

from __future__ import annotations

import pytest

from pyspark_ledger.testing.memory import Faults
from tests.support.crowds import Crowd, Writer


@pytest.fixture
def crowd(tmp_path):
    with Crowd(tmp_path) as crowd:
        yield crowd


def for_three_seconds(writer: Writer) -> None:
    """Half of them are producers with a name."""
    crowd = writer.crowd
    me = crowd.writers.index(writer)
    while crowd.schedule.now < 3.0:
        number = 1000 * me + len(writer.told)
        writer.send(number) if me % 2 else writer.write(number)


def test_sixteen_writers_get_as_much_as_each_other_I1_I17(crowd):
    for _ in range(16):
        crowd.start(crowd.writer(), for_three_seconds)
    crowd.run()
    counts = [len(writer.done) for writer in crowd.writers]
    assert min(counts) >= 0.5 * sum(counts) / 16
    crowd.check()


def test_those_who_wait_are_committed_in_one_transaction_I17(crowd):
    for _ in range(16):
        crowd.start(crowd.writer(), for_three_seconds)
    crowd.run()
    view = crowd.world.log().view()
    assert view.head.next_commit > 4 * view.version  # seals count as well


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_nothing_is_doubled_and_everybody_is_told_the_truth_I1_I14_I16_I17(tmp_path, seed):
    """Lost, late and refused answers, outages, ended sessions, pauses and deaths; then none, and all get on."""
    with Crowd(tmp_path, seed) as crowd:
        trouble = crowd.random.choice([0.01, 0.03])
        for number in range(8):
            faults = Faults(
                seed * 100 + number, lost_before=trouble, applied_then_lost=trouble, delayed=trouble,
                stale_read=trouble, expired=trouble / 4, unavailable=trouble / 4, outage_s=3.0,
            )  # fmt: skip
            writer = crowd.writer(faults)
            crowd.start(writer, for_three_seconds)
            happens = crowd.random.uniform(0.0, 6.0)
            if happens < 1.0:
                crowd.schedule.at(happens, lambda writer=writer: setattr(writer, "dead", True))
            elif happens < 2.0:
                crowd.schedule.at(happens, lambda writer=writer: setattr(writer, "paused_until", 12.0))
        crowd.run(40.0)
        for writer in crowd.writers:
            writer.faults.stop()
        before = {writer.name: len(writer.done) for writer in crowd.writers}
        alive = [writer for writer in crowd.writers if not writer.dead]
        for writer in alive:
            crowd.start(
                writer, lambda writer: [writer.write(100_000 * (alive.index(writer) + 1) + n) for n in range(5)]
            )
        crowd.run(60.0)
        assert all(len(writer.done) == before[writer.name] + 5 for writer in alive)
        for writer in alive:
            writer.metadata.chores.run_all()
        crowd.check()
