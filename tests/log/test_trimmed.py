"""A reader from Python holds nothing back: if it is too slow for retention it is told, and not left waiting (I14)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_ledger.errors import CorruptData, DataLoss
from pyspark_ledger.lifecycle import gc, retention
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.clock import SeededClock
from tests.support.worlds import SMALL, World, append

GRACE_S = 100.0


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path, replace(SMALL, gc_grace_ms=int(GRACE_S * 1000)), SeededClock(1))


def write(world: World, *numbers: int) -> None:
    for number in numbers:
        append(world.log(), number)


def collect(world: World) -> None:
    for _ in range(4):
        world.clock.sleep(GRACE_S)
        gc.collect(world.log())


def test_a_reader_without_an_end_that_falls_behind_is_told(world):
    write(world, 0, 1)
    records = iter(Reader(world.log(), "earliest", None))
    assert [next(records)["n"] for _ in range(2)] == [0, 1]
    write(world, *range(2, 18))
    retention.trim(world.log(), before="2:0:0")
    with pytest.raises(DataLoss, match=r"LEDGER_TRIMMED.*from 0:2:0 up to 2:0:0"):
        next(records)


def test_one_that_reads_for_longer_than_the_files_are_kept_is_told_the_same(world):
    write(world, *range(18))
    records = iter(Reader(world.log(), "earliest", None))
    next(records)
    retention.trim(world.log(), before="2:0:0")
    assert next(records)["n"] == 1  # for the grace it finds what it planned to read
    collect(world)
    with pytest.raises(DataLoss, match=r"LEDGER_TRIMMED.*from 0:2:0 up to 2:0:0"):
        list(records)


def test_a_file_that_is_missing_and_was_not_given_up_is_damage(world):
    write(world, *range(6))
    records = iter(Reader(world.log(), "earliest", "latest"))
    next(records)
    for path in world.files():
        world.storage.delete(path)
    with pytest.raises(CorruptData, match="LEDGER_FILE_MISSING"):
        list(records)


def test_one_that_is_at_the_end_of_what_was_given_up_goes_on(world):
    write(world, *range(8))
    reader = Reader(world.log(), "earliest", "latest")
    assert len(list(reader)) == 8
    write(world, *range(8, 18))
    retention.trim(world.log(), before="2:0:0")
    collect(world)
    assert [record["n"] for record in Reader(world.log(), reader.position, "latest")] == list(range(8, 18))
