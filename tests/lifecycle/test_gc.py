"""Only gc deletes files, and never one that is named or still can be (I12)."""

from __future__ import annotations

from contextlib import suppress

import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.errors import DataLoss
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support.rollback import restore, snapshot
from tests.support.worlds import SCHEMA, World, append, stage


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_what_a_killed_task_left_is_gone_after_two_runs_and_nothing_else(world):
    log = world.log()
    append(log, 1)
    stage(log, 666)
    assert gc.collect(log).files == ()
    append(log, 2)
    doomed = gc.collect(log).files
    assert len(doomed) == 1
    assert not set(doomed) & world.files()
    assert world.read() == [1, 2]


def test_a_dry_run_shows_and_changes_nothing(world):
    log = world.log()
    stage(log, 666)
    gc.collect(log)
    log.refresh()
    before = (world.files(), world.log().view().head)
    gc.collect(log, dry_run=True)
    assert (world.files(), world.log().view().head) == before


def test_a_slow_batch_is_named_while_gc_runs_I12(world):
    """Staged before gc, committed after one run: its file must still be there."""
    log, slow = world.log(), world.log()
    entry = stage(slow, 5)
    gc.collect(log)
    protocol.append(slow, StagedBatch(b"i" * 16, (entry,), SCHEMA))
    for _ in range(3):
        gc.collect(log)
        assert world.read() == [5]


def test_long_lists_index_files_and_snapshots_survive_any_number_of_runs_I12(world):
    log = world.log()
    for number in range(40):
        append(log, number)
        if number % 3 == 0:
            entries = (stage(log, 100 + number), stage(log, 200 + number), stage(log, 300 + number))
            protocol.append(log, StagedBatch(log.clock.new_id(), entries, SCHEMA))
        if number % 5 == 0:
            gc.collect(world.log())
            expected = list(range(number + 1))
            assert [n for n in world.read() if n < 100] == expected


@pytest.mark.parametrize("step", [1, 2])  # the epoch, then the floor
@pytest.mark.parametrize("applied", [True, False])
def test_a_crash_of_gc_at_any_step_harms_nothing(world, step, applied):
    log = world.log()
    for number in range(6):
        append(log, number)
    stage(log, 666)
    gc.collect(log)
    faults = Faults()
    faults.crash_at(step, applied=applied)
    with pytest.raises(Crash):
        gc.collect(world.log(faults))
    assert world.read() == list(range(6))
    for _ in range(3):
        gc.collect(world.log())
    assert world.read() == list(range(6))


def test_the_cost_of_gc_does_not_grow_with_history(world):
    log = world.log()
    seen = []
    for round_ in range(8):
        for number in range(12):
            append(log, round_ * 100 + number)
        collector = world.log()
        fetched: list[object] = []
        original = collector.files.fetch
        collector.files.fetch = lambda ref, f=original, into=fetched: (into.append(ref), f(ref))[1]
        gc.collect(collector)
        seen.append(len(set(fetched)))
    assert max(seen[4:]) <= max(seen[2:4]) + 3


def test_a_file_of_a_later_epoch_stops_gc(world):
    log = world.log()
    stage(log, 1, epoch=50)
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        gc.collect(log)


def test_gc_leaves_files_that_are_not_ours(world):
    log = world.log()
    sink = world.storage.create(f"{world.topic.uuid}/notes.txt")
    sink.write(b"hello")
    sink.close()
    for _ in range(3):
        gc.collect(log)
    assert f"{world.topic.uuid}/notes.txt" in world.files()


def test_a_gc_that_keeps_failing_adds_nothing_to_the_head_and_one_that_works_finishes_it_I13(world, monkeypatch):
    log = world.log()
    append(log, 1)
    stage(log, 666)
    heads = []
    with monkeypatch.context() as broken:
        broken.setattr(type(world.storage), "delete", refuse)
        for _ in range(10):
            with suppress(PermissionError):
                gc.collect(world.log())
            heads.append(world.log().view().head)
    assert max(len(head.gc_marks) for head in heads) <= 3
    assert heads[-1] == heads[3]
    for _ in range(2):
        gc.collect(world.log())
    assert len(world.files()) == 1  # what was left behind is gone


def refuse(_storage, path) -> None:
    raise PermissionError(path)


def test_a_refused_run_changes_nothing_so_that_the_next_one_is_refused_too_I18(world):
    """ZooKeeper comes back from an older snapshot: the files of later epochs are the only evidence of what was lost."""
    append(world.log(), 1)
    gc.collect(world.log())
    backup = snapshot(world.server)
    for number in range(3):
        append(world.log(), 100 + number)
        gc.collect(world.log())
    append(world.log(), 200)
    restore(world.server, backup)
    files, head = world.files(), world.log().view().head
    for _ in range(8):
        with pytest.raises(DataLoss, match="rolled back to an older state"):
            gc.collect(world.log())
    assert world.files() == files
    assert world.log().view().head == head
