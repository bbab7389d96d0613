"""Processes that take turns: the same seed, the same history."""

from __future__ import annotations

import doctest

import pytest

from pyspark_ledger.testing import schedule as module
from pyspark_ledger.testing.schedule import Schedule, ScheduleClock, TurnLock


def test_the_example_of_the_schedule():
    assert doctest.testmod(module).failed == 0


def test_what_is_put_off_happens_in_its_time_between_two_turns():
    schedule, seen = Schedule(), []
    schedule.at(1.0, lambda: seen.append(("later", schedule.now)))
    schedule.wait(0.5)
    assert seen == []
    schedule.wait(1.0)
    assert seen == [("later", 1.0)]


def test_an_error_of_a_process_reaches_the_one_who_watches():
    schedule = Schedule()

    def fail() -> None:
        schedule.wait(1.0)
        raise ValueError("so it goes")

    schedule.start("a process", fail)
    with pytest.raises(ValueError, match="so it goes"):
        schedule.wait(5.0)
    schedule.end()


def test_at_the_end_everybody_who_waits_stops_and_cleans_up_without_waiting():
    schedule, seen = Schedule(), []

    def wait_for_ever() -> None:
        try:
            while True:
                schedule.wait(1.0)
        finally:
            seen.append("cleaned up")

    schedule.start("a process", wait_for_ever)
    schedule.wait(3.0)
    schedule.end()
    assert seen == ["cleaned up"]


def test_a_lock_is_held_over_turns_and_may_be_taken_again_by_its_holder():
    schedule, seen = Schedule(), []
    lock = TurnLock(schedule)

    def work(name: str) -> None:
        with lock, lock:
            seen.append(f"{name} begins")
            schedule.wait(1.0)
            seen.append(f"{name} ends")

    for name in ("a", "b"):
        schedule.start(name, lambda name=name: work(name))
    schedule.wait(5.0)
    assert seen == ["a begins", "a ends", "b begins", "b ends"]


def test_a_wall_clock_may_be_wrong_and_the_time_that_passes_is_not():
    schedule = Schedule()
    clock = ScheduleClock(schedule, 0, start_ms=1_000)
    clock.skew_ms = -500
    clock.sleep(2.0)
    assert (clock.now_ms(), clock.monotonic()) == (2_500, 2.0)
