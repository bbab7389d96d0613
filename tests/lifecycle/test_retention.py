"""Retention gives up the oldest ledgers, and nothing that somebody holds (I15); files go after the grace (I12)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import ByBatchId, StagedBatch
from pyspark_ledger.base.position import Position
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import DataLoss, InvalidInput, OutcomeUnknown
from pyspark_ledger.lifecycle import gc, retention
from pyspark_ledger.lifecycle.termination import terminate
from pyspark_ledger.log import places, policies, scan
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.port import RetentionKey, TokenGroupKey
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.lifecycle import act_before, crash_after_deleting
from tests.support.worlds import SCHEMA, SMALL, World, append, stage

GRACE_S = 100.0
HOUR = 3600


@pytest.fixture
def world(tmp_path) -> World:
    """Four commits in a ledger, three rows in an index node; time passes only when a test says so."""
    return World(tmp_path, replace(SMALL, gc_grace_ms=int(GRACE_S * 1000)), SeededClock(1))


def write(world: World, numbers: range, seconds_between: float = 0.0, **batch) -> None:
    for number in numbers:
        append(world.log(), number, **batch)
        world.clock.sleep(seconds_between)


def keep(world: World, **what) -> None:
    policies.change(world.log(), policies.Changes(**what))


def collect(world: World, times: int = 1) -> None:
    for _ in range(times):
        world.clock.sleep(GRACE_S)
        gc.collect(world.log())


def begin(world: World) -> Position:
    return places.earliest(world.log().view())


# -- what goes, and what stays --------------------------------------------------------------------------------------


def test_nothing_goes_unless_the_topic_says_so(world):
    write(world, range(20), HOUR)
    done = retention.trim(world.log())
    assert done.ledgers == 0
    assert "keeps everything" in done.why
    assert world.read() == list(range(20))


def test_sealed_ledgers_whose_last_record_is_too_old_go(world):
    write(world, range(18), HOUR)  # ledgers of four, the open one has two
    keep(world, retention_age=timedelta(hours=7))
    done = retention.trim(world.log())
    assert (done.ledgers, done.records, str(done.begin)) == (2, 8, "2:0:0")
    assert world.read() == list(range(8, 18))
    assert retention.trim(world.log()).ledgers == 0


def test_sealed_ledgers_go_if_enough_was_written_after_them(world):
    write(world, range(18))
    head = world.log().view().head
    keep(world, retention_bytes=head.bytes * 10 // 18)
    assert retention.trim(world.log()).records == 8
    head = world.log().view().head
    assert head.bytes - head.trim.bytes >= head.bytes * 10 // 18


def test_the_open_ledger_stays_and_is_sealed_in_time(world):
    keep(world, retention_age=timedelta(hours=1))
    write(world, range(2))
    world.clock.sleep(2 * HOUR)
    assert retention.trim(world.log()).ledgers == 0
    append(world.log(), 2)  # whoever comes next finds that the ledger is old
    assert world.log().view().head.ledger == 1
    assert retention.trim(world.log()).records == 2
    assert world.read() == [2]


def test_a_dry_run_says_what_would_go_and_changes_nothing(world):
    write(world, range(18), HOUR)
    keep(world, retention_age=timedelta(hours=7))
    before = world.log().view()
    expected = retention.trim(world.log(), dry_run=True)
    assert world.log().view() == before
    assert retention.trim(world.log()) == expected


def test_what_ends_before_a_place_can_be_given_up_by_hand(world):
    write(world, range(18))
    assert retention.trim(world.log(), before="2:3:0").records == 8
    assert world.read() == list(range(8, 18))


def test_positions_ordinals_and_totals_stay_as_they_were(world):
    write(world, range(30), HOUR)
    log = world.log()
    view = log.refresh(sync=True)
    there = [scan.position_at(log, view, n) for n in range(30)]
    totals = (view.head.records, view.head.bytes, view.head.end)
    retention.trim(world.log(), before="4:0:0")
    collect(world, 4)
    log = world.log()
    view = log.refresh(sync=True)
    assert (view.head.records, view.head.bytes, view.head.end) == totals
    assert [scan.position_at(log, view, n) for n in range(16, 30)] == there[16:]
    assert [scan.records_before(log, view, position) for position in there[16:]] == list(range(16, 30))
    assert [log.commit_at_time(view, ms * HOUR * 1000) is not None for ms in (0,)] == [True]
    assert places.at_time(log, view, 0) == Position(4, 0, 0)


# -- who holds a ledger ---------------------------------------------------------------------------------------------


def test_a_subscription_holds_what_it_has_not_passed_and_is_named_I15(world):
    write(world, range(18), HOUR)
    keep(world, retention_age=timedelta(hours=1))
    CursorNode(world.log(), "slow").ensure("earliest")
    CursorNode(world.log(), "quick").ensure("latest")
    done = retention.trim(world.log())
    assert done.ledgers == 0
    assert done.why == "subscription 'slow' holds back 16 records"
    CursorHandle(world.log(), "slow").skip(4)  # the whole first ledger, and not one record of the second
    done = retention.trim(world.log())
    assert done.records == 4
    assert [(hold.by, hold.records) for hold in done.holds] == [("subscription 'slow'", 12)]
    assert world.read() == list(range(4, 18))


@pytest.mark.parametrize("comes", ["a new one", "a reset"])
def test_who_comes_while_ledgers_are_given_up_finds_what_it_counts_on_or_the_later_begin_I15(tmp_path, comes):
    """At every step of the one the other acts."""
    for step in range(1, 40):
        world = World(tmp_path / str(step), SMALL, SeededClock(step))
        write(world, range(18), HOUR)
        keep(world, retention_age=timedelta(hours=7))
        CursorNode(world.log(), "old").ensure("latest")
        log = world.log()
        acted = act_before(log, step, lambda world=world: come(world, comes))
        retention.trim(log)
        assert all(cursor.mark_delete >= begin(world) for cursor in retention.subscriptions(world.log()))
        assert world.read()[-1] == 17
        if not acted():
            break
    assert 8 < step < 39


def test_who_is_there_when_the_guard_is_read_is_seen_whichever_server_answers_I15(world):
    write(world, range(18), HOUR)
    keep(world, retention_age=timedelta(hours=7))
    faults = Faults()
    log = world.log(faults)
    read = log.metadata.read

    def comes_and_the_next_server_is_behind(key, *hint):
        if not isinstance(key, RetentionKey):
            return read(key, *hint)
        CursorNode(world.log(), "new").ensure("earliest")
        faults.next_read(None, "missing")
        return read(key, *hint)

    log.metadata.read = comes_and_the_next_server_is_behind
    assert retention.trim(log).ledgers == 0


def test_policies_that_change_meanwhile_count_I15(world):
    write(world, range(18), HOUR)
    keep(world, retention_age=timedelta(hours=7))
    log = world.log()
    transact = log.metadata.transact

    def keep_everything_first(ops):
        log.metadata.transact = transact
        keep(world, retention_age=None)
        transact(ops)

    log.metadata.transact = keep_everything_first
    assert retention.trim(log).ledgers == 0
    assert world.read() == list(range(18))


@pytest.mark.parametrize("ahead", ["this machine's", "ZooKeeper's"])
def test_a_clock_that_is_ahead_gives_up_nothing_that_is_not_old(world, ahead):
    write(world, range(18))
    keep(world, retention_age=timedelta(hours=1))
    log = world.log()
    now = world.clock.now_ms()
    if ahead == "ZooKeeper's":
        log.clock = SeededClock(2, now)
        world.clock.sleep(1000 * HOUR)
    else:
        log.clock = SeededClock(2, now + 1000 * HOUR * 1000)
    assert retention.trim(log).ledgers == 0


def come(world: World, how: str) -> None:
    if how == "a reset":
        CursorHandle(world.log(), "old").reset("earliest")
    else:
        CursorNode(world.log(), "new").ensure("earliest")


def test_a_topic_can_be_compacted_for_the_first_time_after_it_was_trimmed(tmp_path):
    world = World(tmp_path, SMALL, SeededClock(1), key="n")
    write(world, range(18))
    retention.trim(world.log(), before="2:0:0")
    generation = compact(world.log())
    assert (generation.records, generation.read) == (10, 18)


def test_the_horizon_holds_what_comes_after_it_so_that_a_compacted_read_stays_true_I9(tmp_path):
    world = World(tmp_path, replace(SMALL, gc_grace_ms=1), SeededClock(1), key="n")
    write(world, range(10))
    compact(world.log())
    write(world, range(5, 25))
    keep(world, retention_age=timedelta(milliseconds=1))
    world.clock.sleep(HOUR)
    done = retention.trim(world.log())
    assert "compaction" in done.why
    assert begin(world) <= world.log().view().head.generation.horizon
    collect(world, 5)
    compact(world.log())
    log = world.log()
    from pyspark_ledger.compaction.plan import state_slices

    state = [r["n"] for r in Reader(log, "earliest", "latest", None, state_slices)]
    assert sorted(state) == list(range(25))


# -- who is too late ------------------------------------------------------------------------------------------------


def test_a_reader_from_earliest_begins_at_what_is_left_and_one_from_before_is_told_I14(world):
    write(world, range(18))
    reader = Reader(world.log(), "earliest", None)
    iterator = iter(reader)
    assert [next(iterator)["n"] for _ in range(2)] == [0, 1]
    retention.trim(world.log(), before="2:0:0")
    assert [record["n"] for record in Reader(world.log(), "earliest", "latest")] == list(range(8, 18))
    with pytest.raises(DataLoss, match=r"LEDGER_TRIMMED.*from 0:2:0 up to 2:0:0 are gone"):
        list(Reader(world.log(), "0:2:0", "latest"))


def test_who_has_read_to_the_end_of_what_was_given_up_has_lost_nothing(world):
    write(world, range(8))
    reader = Reader(world.log(), "earliest", "latest")
    list(reader)
    write(world, range(8, 18))
    retention.trim(world.log(), before="2:0:0")
    assert str(reader.position) == "1:4:0"
    collect(world, 4)
    assert [record["n"] for record in Reader(world.log(), reader.position, "latest")] == list(range(8, 18))


@pytest.mark.parametrize("epochs", range(4))
def test_a_batch_that_was_planned_before_can_be_read_for_the_grace_and_is_data_loss_later(world, epochs):
    """However old the files are when their ledgers are given up."""
    write(world, range(18))
    collect(world, epochs)
    early = world.log()
    view = early.refresh(sync=True)
    retention.trim(world.log(), before="2:0:0")

    def planned() -> int:
        log = world.log()
        return sum(piece.rows for piece in scan.slices(log, log.view(), Position(0, 1, 0), view.head.end, planned=True))

    assert planned() == 17
    collect(world)
    assert planned() == 17
    for _ in range(3):
        collect(world)  # the next one deletes the files, or has: nobody counts on them
        with pytest.raises(DataLoss, match="LEDGER_TRIMMED"):
            planned()


def test_ranges_that_are_merged_stay_for_as_long_as_the_later_one_I12(tmp_path):
    limits = replace(SMALL, gc_grace_ms=int(GRACE_S * 1000), pending_ranges=1)
    world = World(tmp_path, limits, SeededClock(1))
    write(world, range(18))
    retention.trim(world.log(), before="1:0:0")
    collect(world)
    retention.trim(world.log(), before="2:0:0")
    assert len(world.log().view().head.pending) == 1
    collect(world)
    log = world.log()
    assert sum(p.rows for p in scan.slices(log, log.view(), Position(1, 0, 0), Position(2, 0, 0), planned=True)) == 4


# -- files ----------------------------------------------------------------------------------------------------------


def test_files_go_after_the_grace_and_the_rest_of_the_log_is_as_it_was_I12(world):
    write(world, range(40))
    before = world.files()
    retention.trim(world.log(), before="6:0:0")
    collect(world)
    assert before <= world.files() | before
    assert len(world.files() & before) >= len(before) - 8  # only what seals replaced
    collect(world, 3)
    assert world.log().view().head.pending == ()
    assert world.read() == list(range(24, 40))
    log = world.log()
    named = {file.uid for file in gc.references(log, log.view())}
    assert len(world.files()) == len(named), "nothing is left that nothing names"


@pytest.mark.parametrize("applied", [True, False])
def test_a_crash_while_files_are_deleted_is_completed_by_the_next_run(world, applied):
    write(world, range(40))
    retention.trim(world.log(), before="6:0:0")
    collect(world, 2)
    for deleted in range(0, 30, 3):
        world.clock.sleep(GRACE_S)
        storage, left = world.storage, deleted
        real = type(storage).delete

        def crash(path: str, storage=storage, real=real) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash("while deleting")
            real(storage, path)

        storage.delete = crash
        try:
            gc.collect(world.log())
        except Crash:
            pass
        finally:
            del storage.delete
        assert world.read() == list(range(24, 40))
    collect(world, 3)
    log = world.log()
    assert len(world.files()) == len({file.uid for file in gc.references(log, log.view())})


@pytest.mark.parametrize("deleted", range(0, 16, 3))
def test_after_such_a_crash_files_are_found_that_are_older_than_the_leaf_that_names_them_I13(world, deleted):
    """They were staged in the epoch before. None of these runs looks at everything."""

    def collect(times: int) -> None:
        for _ in range(times):
            world.clock.sleep(GRACE_S)
            gc.collect(world.log(), thorough=False)

    collect(3)
    staged = [stage(world.log(), number) for number in range(8)]
    collect(1)
    for entry in staged:
        log = world.log()
        protocol.append(log, StagedBatch(log.clock.new_id(), (entry,), SCHEMA))
    write(world, range(8, 10))
    retention.trim(world.log(), before="2:0:0")
    collect(2)
    with crash_after_deleting(world, deleted), suppress(Crash):
        collect(1)
    collect(3)
    log = world.log()
    assert len(world.files()) == len({file.uid for file in gc.references(log, log.view())})


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired"])
def test_a_lost_answer_gives_up_once_and_the_truth_is_told_I14(world, fault):
    write(world, range(18), HOUR)
    keep(world, retention_age=timedelta(hours=7))
    faults = Faults()
    faults.next_transact(fault)
    assert retention.trim(world.log(faults)).records == 8
    world.server.deliver_delayed()
    assert world.read() == list(range(8, 18))


def test_the_requests_that_a_trim_a_gc_and_an_open_need_do_not_grow_I13(tmp_path):
    """From ten ledgers to a hundred: the same, but for the height of the index."""
    counts = []
    for ledgers in (10, 100):
        world = World(tmp_path / str(ledgers), replace(SMALL, index_fanout=10, gc_grace_ms=1), SeededClock(1))
        write(world, range(ledgers * 4 + 1))
        for _ in range(4):
            world.clock.sleep(1)
            gc.collect(world.log(), thorough=False)
        counted = []
        for do in (
            lambda log: retention.trim(log, before="2:0:0"),
            lambda log: gc.collect(log, thorough=False),
            lambda log: list(scan.slices(log, log.refresh(sync=True), log.view().head.end, log.view().head.end)),
        ):
            world.clock.sleep(1)
            log = world.log()
            requests = count_requests(log)
            do(log)
            counted.append(sum(requests.values()))
        counts.append(counted)
    small, large = counts
    assert all(b <= a + 8 for a, b in zip(small, large, strict=True)), counts


def count_requests(log: Log) -> dict[str, int]:
    counts: dict[str, int] = {}

    def counting(thing: object, name: str) -> None:
        real = getattr(thing, name)

        def call(*arguments, **options):
            counts[name] = counts.get(name, 0) + 1
            return real(*arguments, **options)

        setattr(thing, name, call)

    for name in ("read", "read_many", "children", "transact", "sync"):
        counting(log.metadata, name)
    counting(log.files, "fetch_table")
    return counts


# -- unknown outcomes, ids and tokens below the begin ----------------------------------------------------------------


def test_a_commit_whose_answer_is_lost_and_that_is_given_up_meanwhile_is_unknown_or_known_by_its_id_I14(world):
    def lose_answer(log: Log) -> None:
        transact = log.metadata.transact

        def lost(ops):
            log.metadata.transact = transact
            transact(ops)
            write(world, range(100, 112))
            retention.trim(world.log(), before="2:0:0")
            raise OutcomeUnknown("no answer")

        log.metadata.transact = lost

    write(world, range(2))
    log = world.log()
    log.view()
    lose_answer(log)
    with pytest.raises(OutcomeUnknown, match="retention gave up that part"):
        protocol.append(log, StagedBatch(log.clock.new_id(), (stage(log, 7),), SCHEMA))


def test_the_same_with_a_sequence_id_is_known_to_be_done_I14(world):
    write(world, range(2))
    log = world.log()
    log.producers()
    transact = log.metadata.transact

    def lost(ops):
        log.metadata.transact = transact
        transact(ops)
        write(world, range(100, 112))
        retention.trim(world.log(), before="2:0:0")
        raise OutcomeUnknown("no answer")

    log.metadata.transact = lost
    assert append(log, 7, producer="p", batch_id=BatchId(1)).duplicate
    assert 7 not in world.read()


def test_a_producer_that_asks_later_is_told_that_nobody_knows_I14(world):
    """With an id too: only who judges the batch again learns what the topic's producers remember."""
    write(world, range(2))
    log = world.log()
    log.producers()
    sent: list[protocol.UnderWay | None] = []
    transact = log.metadata.transact

    def dies(ops):
        log.metadata.transact = transact
        transact(ops)
        raise Crash("after it was sent")

    log.metadata.transact = dies
    batch = StagedBatch(log.clock.new_id(), (stage(log, 7),), SCHEMA, producer="p", admission=ByBatchId(BatchId(1)))
    with pytest.raises(Crash):
        protocol.append(log, batch, sent.append)
    write(world, range(100, 112))
    retention.trim(world.log(), before="2:0:0")
    assert sent[-1] is not None
    with pytest.raises(OutcomeUnknown, match="retention gave up that part"):
        protocol.resolve(log, sent[-1])


def tokens_of(world: World) -> list[str]:
    return [record.token for record in Reader(world.log(), "earliest", "latest")]


def test_a_token_that_a_late_group_cannot_have_seen_is_data_loss_and_no_duplicate_I11(world):
    write(world, range(18), mints=True)
    tokens = tokens_of(world)
    early = Tokens(world.log(), "early")
    assert all(early.consume(tokens[:8]))
    retention.trim(world.log(), before="2:0:0")
    collect(world, 4)
    late = Tokens(world.log(), "late")
    with pytest.raises(DataLoss, match="LEDGER_TRIMMED"):
        late.consume(tokens[:1])
    assert late.consume(tokens[8:10]) == [True, True]
    with pytest.raises(DataLoss, match="LEDGER_TRIMMED"):
        Tokens(world.log(), "late").present(tokens[:1])
    assert Tokens(world.log(), "early").consume(tokens[:8]) == [False] * 8  # all of them are known to be consumed
    assert Tokens(world.log(), "early").consume(tokens[8:9]) == [True]


def test_a_token_is_consumed_as_long_as_its_files_are_there_and_known_as_consumed_after_that_I11(world):
    write(world, range(18), mints=True)
    tokens = tokens_of(world)
    group = Tokens(world.log(), "g")
    group.consume([tokens[0], *tokens[2:8]])
    retention.trim(world.log(), before="2:0:0")
    assert Tokens(world.log(), "g").consume(tokens[:2]) == [False, True]  # while the files are there, all is known
    collect(world, 4)
    assert Tokens(world.log(), "g").consume(tokens[:8]) == [False] * 8


def test_whether_a_token_was_consumed_before_its_record_went_is_not_guessed_I11(world):
    write(world, range(18), mints=True)
    tokens = tokens_of(world)
    Tokens(world.log(), "g").consume([tokens[0], *tokens[2:8]])
    retention.trim(world.log(), before="2:0:0")
    collect(world, 4)
    with pytest.raises(DataLoss, match="LEDGER_TRIMMED"):
        Tokens(world.log(), "g").consume(tokens[1:2])


def test_a_group_answers_for_what_was_given_up_since_it_was_made_and_for_no_more_I11(world):
    write(world, range(18), mints=True)
    tokens = tokens_of(world)
    retention.trim(world.log(), before="2:0:0")
    assert all(Tokens(world.log(), "late").consume(tokens[8:16]))
    retention.trim(world.log(), before="4:0:0")
    collect(world, 4)
    assert Tokens(world.log(), "late").consume(tokens[8:16]) == [False] * 8


def test_a_group_that_is_made_while_ledgers_are_given_up_knows_where_it_began_I11_I15(tmp_path):
    """At every step of the one the other acts."""
    for step in range(1, 40):
        world = World(tmp_path / str(step), SMALL, SeededClock(step))
        write(world, range(18), mints=True)
        token, key = tokens_of(world)[17], TokenGroupKey(world.topic.uuid, "late")
        was_there = False

        def give_up(world=world, key=key) -> None:
            nonlocal was_there
            was_there = world.metadata().read(key) is not None
            retention.trim(world.log(), before="2:0:0")

        log = world.log()
        acted = act_before(log, step, give_up)
        assert Tokens(log, "late").consume([token]) == [True]
        group = world.metadata().read(key).record
        expected = (Position(0, 0, 0), 0) if was_there or not acted() else (Position(2, 0, 0), 8)
        assert (group.began, group.first_token) == expected
        if not acted():
            break
    assert 5 < step < 39


# -- the end of a topic ----------------------------------------------------------------------------------------------


def test_a_terminated_topic_takes_no_more_records_and_can_be_read_and_trimmed(world):
    write(world, range(6))
    append(world.log(), 6, producer="p", batch_id=BatchId(1))
    early = world.log()
    early.view()
    assert str(terminate(world.log())) == "1:3:0"
    with pytest.raises(InvalidInput, match="LEDGER_TOPIC_TERMINATED"):
        append(early, 8)
    assert append(world.log(), 6, producer="p", batch_id=BatchId(1)).duplicate  # a replay is still recognised
    assert str(terminate(world.log())) == "1:3:0"
    assert world.read() == list(range(7))
    assert retention.trim(world.log(), before="1:0:0").records == 4
