"""Deduplication by sequence id: what is new, what is a replay, and what must stop (I5, I6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import ByBatchId, StagedBatch
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.dedup.batch_ids import BatchId, is_replay
from pyspark_ledger.errors import Conflict, Fenced
from pyspark_ledger.metadata.records import ProducerState
from tests.support.worlds import SMALL, World, append, forget, stage

STATE = ProducerState("p", 7, "query", "run-2", ("run-0", "run-1"), b"digest", 100, 0)


@pytest.mark.parametrize(
    ("batch", "records", "replay"),
    [
        (BatchId(8, "query", "run-2"), 5, False),
        (BatchId(9, "query", "run-3"), 5, False),  # holes are fine: empty batches make no commit
        (BatchId(7, "query", "run-3", b"digest"), None, True),
        (BatchId(7, "query", "run-3", b""), 100, True),  # no offset log to compare: the count must agree
        (BatchId(7, "query", "run-3", b""), 0, True),  # the batch was discarded: it adds nothing in any case
    ],
)
def test_new_and_replayed_batches_are_told_apart_I5(batch, records, replay):
    assert is_replay(STATE, batch, records, "t") is replay


@pytest.mark.parametrize(
    ("batch", "records", "error", "code"),
    [
        (BatchId(6, "query", "run-2"), 100, Conflict, "LEDGER_SEQUENCE_BEHIND"),
        (BatchId(7, "query", "run-2", b"other"), 100, Conflict, "LEDGER_SEQUENCE_REUSED"),
        (BatchId(7, "query", "run-2", b""), 99, Conflict, "LEDGER_SEQUENCE_REUSED"),
        (BatchId(8, "another", "run-9"), 5, Conflict, "LEDGER_PRODUCER_OWNED"),
        (BatchId(8, "query", "run-1"), 5, Fenced, "LEDGER_PRODUCER_FENCED"),
    ],
)
def test_anything_else_is_an_error_never_a_silent_drop_I6(batch, records, error, code):
    with pytest.raises(error) as caught:
        is_replay(STATE, batch, records, "t")
    assert caught.value.code == code


def test_a_batch_write_without_rows_under_an_id_that_had_some_is_an_error():
    nightly = replace(STATE, query="", run="", past_runs=(), digest=b"")
    with pytest.raises(Conflict, match=r"LEDGER_SEQUENCE_REUSED.*0 records, the log has 100 records"):
        is_replay(nightly, BatchId(7), 0, "t")


def test_an_owned_name_says_both_sides_and_the_way_out():
    with pytest.raises(
        Conflict, match=r"query query.*query another.*full refresh.*producers forget t p --yes.*sequenceColumn"
    ):
        is_replay(STATE, BatchId(8, "another", "run"), 5, "t")


def append_p(log, number: int, sequence: int, run: str = "r", digest: bytes = b"", query: str = "q"):
    """One batch of producer p."""
    return append(log, number, producer="p", batch_id=BatchId(sequence, query, run, digest))


def test_a_replay_adds_nothing_and_says_so_I5(tmp_path):
    world = World(tmp_path)
    log = world.log()
    append_p(log, 1, 0, digest=b"a")
    assert append_p(world.log(), 1, 0, digest=b"a").duplicate
    assert world.read() == [1]


def test_state_survives_seals_inline_and_as_a_file_I5(tmp_path):
    for limits in (SMALL, Limits(commits_per_ledger=4, index_fanout=3, inline_producers_bytes=0)):
        world = World(tmp_path / str(limits.inline_producers_bytes), limits)
        log = world.log()
        for sequence in range(11):
            append_p(log, sequence, sequence, f"run-{sequence // 3}", b"%d" % sequence)
        fresh = world.log()
        _, producers = fresh.producers()
        state = producers.get("p")
        assert (state.sequence, state.run, state.past_runs) == (10, "run-3", ("run-0", "run-1", "run-2"))
        with pytest.raises(Fenced):
            append_p(fresh, 99, 11, "run-1")
        assert world.read() == list(range(11))


def test_the_last_sixteen_runs_are_remembered(tmp_path):
    world = World(tmp_path)
    log = world.log()
    for run in range(20):
        append_p(log, run, run, f"run-{run}")
    assert log.producers()[1].get("p").past_runs == tuple(f"run-{run}" for run in range(3, 19))


def test_a_forgotten_producer_may_start_again_with_another_query(tmp_path):
    world = World(tmp_path)
    log = world.log()
    append_p(log, 1, 5)
    with pytest.raises(Conflict):
        append_p(log, 2, 0, query="another")
    forget(log, "p")
    append_p(world.log(), 2, 0, query="another")
    assert world.read() == [1, 2]


def test_a_writer_that_expected_a_replay_never_commits_nothing_as_something(tmp_path):
    world = World(tmp_path)
    log = world.log()
    batch = StagedBatch(b"i" * 16, producer="p", admission=ByBatchId(BatchId(3, "q", "r"), skipped_rows=7))
    with pytest.raises(Conflict, match="LEDGER_RETRY"):
        protocol.append(log, batch)
    assert world.log().view().head.next_commit == 0


def test_a_snapshot_covers_exactly_the_commits_it_has_seen(tmp_path):
    world = World(tmp_path)
    log = world.log()
    for number in range(10):
        append_p(log, number, number)
        view, producers = world.log().producers()
        assert producers.next_commit == view.head.next_commit
        assert producers.get("p").sequence == number


def test_two_zombie_writers_of_one_batch_add_it_once_I5(tmp_path):
    """Both have staged; both commit; one wins, the other finds that it was a replay."""
    world = World(tmp_path)
    one, two = world.log(), world.log()
    first, second = stage(one, 1, 2), stage(two, 1, 2)
    admission = ByBatchId(BatchId(0, "q", "r", b"same"))
    results = [
        protocol.append(log, StagedBatch(log.clock.new_id(), (entry,), producer="p", admission=admission))
        for log, entry in ((one, first), (two, second))
    ]
    assert [r.duplicate for r in results] == [False, True]
    assert world.read() == [1, 2]
