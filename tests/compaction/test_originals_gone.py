"""Compacted records outlive the records that they were made of: retention gives up only what a published generation has
(I9, I10, I12, I15). The tests are named after what went wrong in Pulsar."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pyspark_ledger.compaction import run
from pyspark_ledger.compaction.plan import state_slices
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.lifecycle import gc, retention
from pyspark_ledger.log import policies
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash
from tests.support.worlds import SMALL, World, append

GRACE_S = 100.0


@pytest.fixture
def world(tmp_path) -> World:
    """A topic that keeps nothing longer than it must, with four commits in a ledger."""
    world = World(tmp_path, replace(SMALL, gc_grace_ms=int(GRACE_S * 1000)), SeededClock(1), key="n")
    policies.change(world.log(), policies.Changes(retention_age=timedelta(milliseconds=1)))
    return world


def write(world: World, *numbers: int) -> None:
    for number in numbers:
        append(world.log(), number)


def trim(world: World) -> retention.Trimmed:
    world.clock.sleep(1)
    return retention.trim(world.log())


def collect(world: World, times: int = 4) -> None:
    for _ in range(times):
        world.clock.sleep(GRACE_S)
        gc.collect(world.log())


def state(world: World, start: str = "earliest") -> list[int]:
    """As a compacted reader gets it."""
    return [record["n"] for record in Reader(world.log(), start, "latest", None, state_slices)]


def test_compacted_records_are_there_when_their_originals_are_trimmed_pulsar_11211(world):
    write(world, *range(10))
    compact(world.log())
    write(world, *range(10, 18))
    assert trim(world).records == 8  # the horizon is in the third ledger
    collect(world)
    assert world.read() == list(range(8, 18))
    assert state(world) == list(range(18))


def test_and_over_many_rounds_of_everything_I9(world):
    written: set[int] = set()
    for start in range(0, 60, 6):
        write(world, *range(start, start + 6), 0)
        written |= set(range(start, start + 6))
        compact(world.log())
        trim(world)
        collect(world, 1)
        assert sorted(state(world)) == sorted(written)
    assert len(world.read()) < 20


@pytest.mark.parametrize("published", [False, True])
def test_what_a_generation_has_is_given_up_only_once_that_is_published_pulsar_12522(world, monkeypatch, published):
    """Theirs moved its cursor first, and a crash in between, or a reader at that moment, lost the records."""
    write(world, *range(10))
    compact(world.log())
    write(world, *range(10, 22))
    log = world.log()
    transact = log.metadata.transact

    def crash(ops):
        publishes = any("HeadKey" in type(op.key).__name__ for op in ops)
        if publishes and published:
            transact(ops)
        if publishes:
            raise Crash("when the generation is published")
        transact(ops)

    log.metadata.transact = crash
    with pytest.raises(Crash):
        run.compact(log)
    done = trim(world)
    assert done.records == (20 if published else 8)
    assert ("compaction" in done.why) is not published
    collect(world)
    assert state(world) == list(range(22))
    compact(world.log())
    assert state(world) == list(range(22))


def test_a_generation_follows_keys_and_not_age_pulsar_24791(world):
    """Retention is for the log. A compacted record stays for as long as it is the last one of its key, however old it
    is; what should go is deleted, by a tombstone."""
    write(world, *range(10))
    compact(world.log())
    world.clock.sleep(10 * 365 * 86400)
    write(world, *range(10, 18))
    trim(world)
    collect(world)
    compact(world.log())
    assert state(world) == list(range(18))


def test_a_reader_at_a_trimmed_position_goes_on_pulsar_25998(world):
    """Theirs was stuck: nothing was at the position, and nothing moved it."""
    write(world, *range(10))
    compact(world.log())
    write(world, *range(10, 18))
    trim(world)
    collect(world)
    for at in ("0:0:0", "0:3:0", "1:3:0", "1:4:0", "2:0:0"):
        reader = iter(Reader(world.log(), at, None, None, state_slices))
        write(world, 99)
        assert any(record["n"] == 99 for record in reader)


def test_the_state_is_whole_when_everything_before_the_horizon_is_gone_pulsar_26486(world):
    write(world, *range(12))
    compact(world.log())
    write(world, 12)  # opens the next ledger
    assert trim(world).records == 12
    collect(world)
    assert world.read() == [12]
    assert state(world) == list(range(13))
    write(world, 3)
    compact(world.log())  # from the generation and the rest of the log
    assert sorted(state(world)) == list(range(13))
    collect(world)
    assert sorted(state(world)) == list(range(13))
