"""Deduplication by sequence id: what is new, what is a replay, and what must stop (I5, I6)."""

from __future__ import annotations

import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.dedup.producers import Claim, Verdict, judge
from pyspark_ledger.errors import Conflict, Fenced
from pyspark_ledger.metadata.records import ProducerState
from tests.support.worlds import SMALL, World, append, stage

STATE = ProducerState("p", 7, "query", "run-2", ("run-0", "run-1"), b"digest", 100, 0)


@pytest.mark.parametrize(
    ("claim", "records", "verdict"),
    [
        (Claim("p", 8, "query", "run-2"), 5, Verdict.NEW),
        (Claim("p", 9, "query", "run-3"), 5, Verdict.NEW),  # holes are fine: empty batches make no commit
        (Claim("p", 7, "query", "run-3", b"digest"), None, Verdict.REPLAY),
        (Claim("p", 7, "query", "run-3", b""), 100, Verdict.REPLAY),  # no offset log to compare: the count must agree
    ],
)
def test_new_and_replayed_batches_are_told_apart_I5(claim, records, verdict):
    assert judge(STATE, claim, records, "t") is verdict


@pytest.mark.parametrize(
    ("claim", "records", "error", "code"),
    [
        (Claim("p", 6, "query", "run-2"), 100, Conflict, "LEDGER_SEQUENCE_BEHIND"),
        (Claim("p", 7, "query", "run-2", b"other"), 100, Conflict, "LEDGER_SEQUENCE_REUSED"),
        (Claim("p", 7, "query", "run-2", b""), 99, Conflict, "LEDGER_SEQUENCE_REUSED"),
        (Claim("p", 8, "another", "run-9"), 5, Conflict, "LEDGER_PRODUCER_OWNED"),
        (Claim("p", 8, "query", "run-1"), 5, Fenced, "LEDGER_PRODUCER_FENCED"),
    ],
)
def test_anything_else_is_an_error_never_a_silent_drop_I6(claim, records, error, code):
    with pytest.raises(error) as caught:
        judge(STATE, claim, records, "t")
    assert caught.value.code == code


def test_an_owned_name_says_both_sides_and_the_way_out():
    with pytest.raises(Conflict, match=r"query query.*query another.*forget_producer\('t', 'p'\)"):
        judge(STATE, Claim("p", 8, "another", "run"), 5, "t")


def claim(sequence: int, run: str = "r", digest: bytes = b"") -> Claim:
    return Claim("p", sequence, "q", run, digest)


def test_a_replay_adds_nothing_and_says_so_I5(tmp_path):
    world = World(tmp_path)
    log = world.log()
    append(log, 1, claim=claim(0, digest=b"a"))
    assert append(world.log(), 1, claim=claim(0, digest=b"a")).duplicate
    assert world.read() == [1]


def test_state_survives_seals_inline_and_as_a_file_I5(tmp_path):
    for limits in (SMALL, Limits(commits_per_ledger=4, index_fanout=3, inline_producers_bytes=0)):
        world = World(tmp_path / str(limits.inline_producers_bytes), limits)
        log = world.log()
        for sequence in range(11):
            append(log, sequence, claim=claim(sequence, f"run-{sequence // 3}", b"%d" % sequence))
        fresh = world.log()
        _, producers = fresh.producers()
        state = producers.get("p")
        assert (state.sequence, state.run, state.past_runs) == (10, "run-3", ("run-0", "run-1", "run-2"))
        with pytest.raises(Fenced):
            append(fresh, 99, claim=claim(11, "run-1"))
        assert world.read() == list(range(11))


def test_the_last_sixteen_runs_are_remembered(tmp_path):
    world = World(tmp_path)
    log = world.log()
    for run in range(20):
        append(log, run, claim=claim(run, f"run-{run}"))
    assert log.producers()[1].get("p").past_runs == tuple(f"run-{run}" for run in range(3, 19))


def test_a_forgotten_producer_may_start_again_with_another_query(tmp_path):
    world = World(tmp_path)
    log = world.log()
    append(log, 1, claim=claim(5))
    other = Claim("p", 0, "another", "r")
    with pytest.raises(Conflict):
        append(log, 2, claim=other)
    protocol.append(log, protocol.Batch(log.clock.new_id(), producer="p", forget=True))
    append(world.log(), 2, claim=other)
    assert world.read() == [1, 2]


def test_a_writer_that_expected_a_replay_never_commits_nothing_as_something(tmp_path):
    world = World(tmp_path)
    log = world.log()
    batch = protocol.Batch(b"i" * 16, claim=claim(3), expects_replay=True, counted=7)
    with pytest.raises(Conflict, match="LEDGER_RETRY"):
        protocol.append(log, batch)
    assert world.log().view().head.next_commit == 0


def test_a_snapshot_covers_exactly_the_commits_it_has_seen(tmp_path):
    world = World(tmp_path)
    log = world.log()
    for number in range(10):
        append(log, number, claim=claim(number))
        view, producers = world.log().producers()
        assert producers.next_commit == view.head.next_commit
        assert producers.get("p").sequence == number


def test_two_zombie_writers_of_one_batch_add_it_once_I5(tmp_path):
    """Both have staged; both commit; one wins, the other finds that it was a replay."""
    world = World(tmp_path)
    one, two = world.log(), world.log()
    first, second = stage(one, 1, 2), stage(two, 1, 2)
    results = [
        protocol.append(log, protocol.Batch(log.clock.new_id(), (entry,), claim=claim(0, digest=b"same")))
        for log, entry in ((one, first), (two, second))
    ]
    assert [r.duplicate for r in results] == [False, True]
    assert world.read() == [1, 2]
