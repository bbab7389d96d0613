"""Rewriting joins small files, and nobody sees a difference, whatever else happens meanwhile (I1, I2, I12, I14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base import names
from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.compaction.plan import state_slices
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import Conflict, DataLoss, InvalidInput
from pyspark_ledger.files import mask
from pyspark_ledger.files.entryfile import EntryReader, EntryWriter
from pyspark_ledger.lifecycle import gc, going, retention, rewriting
from pyspark_ledger.lifecycle.rewrite_copy import LedgerCopy
from pyspark_ledger.lifecycle.rewriting import Rewritten, rewrite
from pyspark_ledger.log import places, policies, scan, seal
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.log.rows import read_slice
from pyspark_ledger.log.slices import EntrySlice, SharedSlice
from pyspark_ledger.metadata.records import Entry, SetBack
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.lifecycle import act_before, named
from tests.support.loose_rows import append_in_turn, wants
from tests.support.worlds import IDS, SCHEMA, SMALL, World, append, append_ids, stage

GRACE_S = 100.0
LIMITS = replace(SMALL, gc_grace_ms=int(GRACE_S * 1000), rewrite_ledgers=2)


@pytest.fixture
def world(tmp_path) -> World:
    """Four commits in a ledger, three rows in an index node; time passes only when a test says so."""
    return World(tmp_path, LIMITS, SeededClock(1))


def write(world: World, numbers: range, **batch) -> None:
    for number in numbers:
        append(world.log(), number, **batch)
        world.clock.sleep(0.01)


def collect(world: World, times: int = 1, *, thorough: bool | None = False) -> None:
    for _ in range(times):
        world.clock.sleep(GRACE_S)
        gc.collect(world.log(), thorough=thorough)


def entries(world: World) -> list[Entry]:
    log = world.log()
    return [
        entry for commit in log.commits_from(log.view(), places.earliest(log.view())) for entry in log.entries(commit)
    ]


def copy_all(log: Log) -> list[LedgerCopy]:
    """What a rewriting does before it publishes."""
    work = rewriting.plan(log, log.refresh(sync=True), 1 << 20, everything=False)
    return [rewriting.copy(log.files, each, log.view().head.gc_epoch, log.clock) for each in work]


def everything_seen(world: World) -> object:
    """Every record with all that is known of it, from every place; and where each is in the order of all."""
    log = world.log()
    view = log.refresh(sync=True)
    records = list(Reader(log, "earliest", "latest"))
    by_place = [[r["n"] for r in Reader(log, record.position, "latest")] for record in records[::5]]
    ordinals = [scan.records_before(log, view, record.position) for record in records]
    at = [scan.position_at(log, view, ordinal) for ordinal in ordinals]
    totals = (view.head.records, view.head.bytes, view.head.end, view.head.next_commit)
    return records, by_place, ordinals, at, totals


# -- what a reader sees ---------------------------------------------------------------------------------------------


def test_many_files_become_few_and_a_reader_sees_what_it_saw_I1_I2(world):
    write(world, range(30), producer="p")
    seen = everything_seen(world)
    done = rewrite(world.log())
    assert (done.ledgers, done.entries, done.files_before, done.files_after) == (7, 28, 28, 7)
    assert done.bytes_after < done.bytes_before
    assert len({entry.file.uid for entry in entries(world)}) == 7 + 2  # the open ledger stays as it is
    assert everything_seen(world) == seen


def test_files_that_writers_share_because_they_committed_together_are_joined_too(world):
    for numbers in ((1, 2), (3, 4)):
        wants(world.log(), numbers[0], 10 + numbers[0])
        append_in_turn(world.log(), numbers[1])
    write(world, range(5, 13))
    before, files = everything_seen(world), [entry.file for entry in entries(world)]
    assert files[0] == files[1] != files[2] == files[3]
    done = rewrite(world.log())
    assert (done.entries, done.files_before, done.files_after) == (8, 6, 2)  # the third ledger is not sealed yet
    assert everything_seen(world) == before
    assert rewrite(world.log()).entries == 0
    collect(world, 3)
    assert everything_seen(world) == before


def test_a_ledger_that_is_one_file_stays_as_it_is(tmp_path):
    world = World(tmp_path, replace(LIMITS, commits_per_ledger=2), SeededClock(1))
    wants(world.log(), 1)
    append_in_turn(world.log(), 2)
    write(world, range(3, 4))
    assert rewrite(world.log()).entries == 0
    assert len({entry.file for entry in entries(world)}) == 2


def test_a_second_time_there_is_nothing_to_do_and_no_leaf_is_read_for_it(world):
    write(world, range(30))
    rewrite(world.log())
    log = world.log()
    fetched = []
    real = log.files.fetch_table
    log.files.fetch_table = lambda ref: fetched.append(ref) or real(ref)
    assert rewrite(log) == Rewritten()
    assert len(fetched) <= 4  # nodes of the index


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(world):
    write(world, range(30))
    files, head = world.files(), world.log().view().head
    expected = rewrite(world.log(), dry_run=True)
    assert (world.files(), world.log().view().head) == (files, head)
    done = rewrite(world.log())
    assert replace(done, bytes_after=0) == expected


def test_masks_stay_and_masked_rows_lose_their_values(tmp_path):
    world = World(tmp_path, LIMITS, SeededClock(1), schema=IDS)
    for first in range(0, 24, 3):  # each batch brings two ids again
        append_ids(world.log(), [[("who", first + n) for n in range(-2, 3)]], note="x" * 50)
    seen = list(Reader(world.log(), "earliest", "latest"))
    assert any(entry.masked for entry in entries(world))
    rewrite(world.log())
    assert list(Reader(world.log(), "earliest", "latest")) == seen
    masked = next(entry for entry in entries(world) if entry.masked and entry.file_rows)
    ((_, stored),) = EntryReader(world.storage, world.topic.uuid, masked.file).batches(
        masked.first_row, masked.first_row + masked.records
    )
    kept = mask.unpack(masked.mask, masked.records).to_pylist()
    assert [value is not None for value in stored.column("note").to_pylist()] == kept
    assert [record.sequence_id for record in seen] == sorted({record.sequence_id for record in seen})


def test_ids_tokens_and_batches_are_what_they_were_I5_I11(world):
    write(world, range(6), producer="p", mints=True)
    for n in range(6, 18):
        append(world.log(), n, producer=f"q{n}", batch_id=BatchId(n), mints=True)
    write(world, range(18, 26))
    seen = everything_seen(world)
    tokens = [record.token for record in seen[0]]
    early = Tokens(world.log(), "early")
    assert all(early.consume(tokens[:9:2]))
    rewrite(world.log())
    assert everything_seen(world) == seen
    assert Tokens(world.log(), "early").consume(tokens[:9]) == [n % 2 == 1 for n in range(9)]
    assert append(world.log(), 17, producer="q17", batch_id=BatchId(17)).duplicate


def test_only_entries_with_the_same_columns_share_a_file(tmp_path):
    """Whether a record is a tombstone is judged by the columns of its entry."""
    wide = pa.schema([*SCHEMA, pa.field("more", pa.string())])
    world = World(tmp_path, LIMITS, SeededClock(1), key="n")
    for number in range(12):
        log = world.log()
        schema = wide if number in (2, 3, 6) else SCHEMA
        writer = EntryWriter(log.storage, log.topic.uuid, 0, schema, clock=log.clock)
        values = {"n": [number, number + 100], **({"more": ["x", None]} if schema is wide else {})}
        writer.write(pa.RecordBatch.from_pydict(values, schema=schema))
        protocol.append(log, StagedBatch(log.clock.new_id(), (writer.close(),), schema, merge_schema=True))
    append(world.log(), 99)

    def state() -> list[object]:
        return sorted(r["n"] for r in Reader(world.log(), "earliest", "latest", None, state_slices))

    seen, values = list(Reader(world.log(), "earliest", "latest")), state()
    assert 102 not in values
    assert 100 in values
    assert rewrite(world.log()).files_after == 2 + 3 + 1
    assert (list(Reader(world.log(), "earliest", "latest")), state()) == (seen, values)
    assert rewrite(world.log(), everything=True) == Rewritten()  # the lone ones are not tried again
    compact(world.log())
    assert state() == values


def test_long_lists_of_entries_and_large_entries_stay_where_they_are(world):
    for first in range(0, 60, 5):
        log = world.log()
        large = stage(log, *range(first, first + 3000))
        some = tuple(stage(log, n) for n in range(3))
        protocol.append(log, StagedBatch(log.clock.new_id(), (*some, large, *some), SCHEMA))
    append(world.log(), 7)
    limit = min(entry.bytes for entry in entries(world) if entry.records > 1)
    before = [(e.records, e.file) for e in entries(world) if e.records > 1]
    seen = list(Reader(world.log(), "earliest", "latest"))
    done = rewrite(world.log(), below_bytes=limit)
    assert (done.ledgers, done.entries) == (3, 12 * 6)
    assert [(e.records, e.file) for e in entries(world) if e.records > 1] == before
    assert list(Reader(world.log(), "earliest", "latest")) == seen
    collect(world, 4)
    assert list(Reader(world.log(), "earliest", "latest")) == seen


def test_a_file_is_not_much_larger_than_its_limit(tmp_path):
    world = World(tmp_path, replace(LIMITS, commits_per_ledger=40, rewritten_file_bytes=3000), SeededClock(1))
    for n in range(41):
        append(world.log(), *range(n * 100, n * 100 + 100))
    done = rewrite(world.log(), below_bytes=2500)
    assert done.files_after > 3
    assert world.read() == list(range(4100))


def test_what_is_large_enough_is_left_alone(world):
    write(world, range(30))
    files = world.files()
    assert rewrite(world.log(), below_bytes=100) == Rewritten()
    assert world.files() == files
    policies.change(world.log(), policies.Changes(rewrite_below_bytes=100))
    assert rewrite(world.log()) == Rewritten()
    assert rewrite(world.log(), below_bytes=1 << 20).ledgers == 7


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_limit_that_cannot_be_is_refused(world, wrong):
    with pytest.raises(InvalidInput, match="below_bytes"):
        rewrite(world.log(), below_bytes=wrong)
    with pytest.raises(InvalidInput, match="read_rate"):
        rewrite(world.log(), read_rate=0)


def test_it_stops_looking_where_nothing_was_to_be_done_for_long_unless_asked_for_everything(tmp_path):
    world = World(tmp_path, replace(LIMITS, rewrite_looks=2), SeededClock(1))
    write(world, range(4))
    for _ in range(3 * 4):
        append(world.log(), *range(3000))
    write(world, range(9))
    limit = 2000
    assert rewrite(world.log(), below_bytes=limit).ledgers == 2
    assert rewrite(world.log(), below_bytes=limit) == Rewritten()
    assert rewrite(world.log(), below_bytes=limit, everything=True).ledgers == 1


def test_it_reads_no_faster_than_it_may_and_says_how_far_it_is(world):
    write(world, range(30))
    told: list[tuple[str, int, int]] = []
    before = world.clock.monotonic()
    done = rewrite(world.log(), read_rate=1000.0, progress=lambda *step: told.append(step))
    assert world.clock.monotonic() - before >= done.bytes_before / 1000 - 1
    assert told[-1] == ("rewriting", done.bytes_before, done.bytes_before)


# -- files ----------------------------------------------------------------------------------------------------------


def assert_no_file_too_few_or_too_many(world: World) -> None:
    assert named(world) <= world.files(), "I12"
    assert world.files() <= named(world), "a file that nothing names is left"


@pytest.mark.parametrize("thorough", [True, False])
def test_old_files_go_after_the_grace_and_new_ones_stay_I12(world, thorough):
    """What gc did to rewritten files of old ledgers before it asked them: it took them for unnamed."""
    write(world, range(30))
    collect(world, 3)  # gc looks only at what is newer than these ledgers
    before = world.files()
    rewrite(world.log())
    collect(world, thorough=thorough)
    assert before <= world.files()
    for _ in range(4):
        collect(world, thorough=thorough)
        assert world.read() == list(range(30))
        assert named(world) <= world.files()
    assert_no_file_too_few_or_too_many(world)


def test_a_planned_batch_can_be_read_for_the_grace(world):
    write(world, range(30))
    log = world.log()
    pieces = list(scan.slices(log, log.refresh(sync=True), EARLIEST, log.view().head.end))

    def planned() -> list[int]:
        rows = (rows for piece in pieces for rows in read_slice(world.storage, world.topic.uuid, piece, SCHEMA))
        return [n for each in rows for n in each.batch.column("n").to_pylist()]

    rewrite(world.log())
    assert planned() == list(range(30))
    collect(world)
    world.clock.sleep(GRACE_S * 0.9)
    gc.collect(world.log())
    assert planned() == list(range(30))
    view = log.view()  # and a process with an older head finds its index
    assert sum(piece.rows for piece in scan.slices(log, view, EARLIEST, view.head.end)) == 30


def test_rewritten_twice_and_then_given_up_nothing_is_left_of_it_I12(world):
    for n in range(30):
        append(world.log(), *range(n * 10, n * 10 + 10 * (1 + n % 2 * 9)))
    seen = world.read()
    sizes = sorted({entry.bytes for entry in entries(world)})
    assert rewrite(world.log(), below_bytes=(sizes[0] + sizes[-1]) // 2 + 50).ledgers in (0, 7)
    collect(world, 1)
    rewrite(world.log(), everything=True)
    assert world.read() == seen
    collect(world, 1)
    assert world.read() == seen
    retention.trim(world.log(), before="4:0:0")
    left = world.read()
    for _ in range(5):
        collect(world, 1)
        assert world.read() == left
    assert_no_file_too_few_or_too_many(world)


def test_what_was_replaced_later_is_not_deleted_with_what_was_replaced_before_I12(world):
    """A ledger is rewritten in two epochs: the leaf in between has files of the first one that the last has not."""
    for n in range(0, 16, 2):
        append(world.log(), n)
        append(world.log(), n + 1)
        for more in (100, 200):
            append(world.log(), *range(n * 1000 + more, n * 1000 + more + 80))
    append(world.log(), 99)
    collect(world, 3)  # no later run looks at files that are as old
    seen = world.read()
    below = min(entry.bytes for entry in entries(world) if entry.records == 80)
    assert rewrite(world.log(), below_bytes=below).entries == 16
    collect(world)
    between = named(world)
    assert rewrite(world.log(), everything=True).entries == 16
    collect(world)
    assert between <= world.files()  # as a batch reads that was planned in between
    for _ in range(3):
        collect(world)
        assert world.read() == seen
    assert_no_file_too_few_or_too_many(world)


def test_what_is_replaced_while_gc_raises_the_epoch_is_kept_from_then_on_I12(world):
    write(world, range(18))
    log = world.log()
    copied = copy_all(log)
    transact = log.metadata.transact

    def raise_the_epoch_first(ops):
        log.metadata.transact = transact
        collect(world)
        transact(ops)

    log.metadata.transact = raise_the_epoch_first
    rewriting.publish(log, copied)
    head = world.log().view().head
    assert {each.epoch for each in going.fetch(log.files, head)} == {head.gc_epoch}


def test_nothing_is_published_after_a_rollback_was_noticed_I18(world):
    write(world, range(18))
    log, noted = world.log(), SetBack(1, "somebody", "its head is older than it was before")
    copied = copy_all(log)
    world.log().change_head(lambda head: replace(head, set_back=noted), "a note")
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        rewriting.publish(log, copied)


def test_of_two_that_have_copied_the_same_ledger_the_second_changes_nothing_I6(world):
    write(world, range(18))
    log = world.log()
    first, second = copy_all(log), copy_all(log)
    assert rewriting.publish(log, first) == first
    head = world.log().view().head
    assert rewriting.publish(log, second) == []
    assert world.log().view().head == head


def test_a_ledger_that_was_given_up_meanwhile_is_left_out_I12(world):
    write(world, range(18))
    log = world.log()
    copied = copy_all(log)
    retention.trim(world.log(), before="2:0:0")
    assert [each.before.ledger for each in rewriting.publish(log, copied)] == [2, 3]


def test_a_node_of_the_index_outlives_the_ledger_that_it_is_named_by_I12(world):
    """The first ledgers below it are given up in the epoch in which it was copied; the others still need it."""
    write(world, range(60))
    collect(world, 3)
    rewrite(world.log())
    retention.trim(world.log(), before="7:0:0")
    for _ in range(5):
        collect(world)
        assert world.read() == list(range(28, 60))
    assert_no_file_too_few_or_too_many(world)


def test_gc_goes_on_where_the_first_part_of_the_index_is_given_up_and_gone(world):
    write(world, range(60))
    retention.trim(world.log(), before="12:0:0")
    collect(world, 4)
    for number in range(60, 120):  # nodes at the right edge are replaced, and some move inside
        append(world.log(), number)
        if number % 5 == 0:
            collect(world)
    assert world.read() == list(range(48, 120))
    collect(world, 4)
    assert_no_file_too_few_or_too_many(world)


@pytest.mark.parametrize("step", range(0, 60, 7))
def test_gc_that_crashes_while_it_deletes_what_was_replaced_leaves_nothing_behind(world, step):
    for n in range(0, 60, 3):
        log = world.log()
        protocol.append(log, StagedBatch(log.clock.new_id(), tuple(stage(log, n + i) for i in range(3)), SCHEMA))
    collect(world, 3)
    rewrite(world.log())
    collect(world)
    world.clock.sleep(GRACE_S)
    left, real = step, world.storage.delete

    def delete(path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash("while deleting")
        real(path)

    world.storage.delete = delete
    with suppress(Crash):
        gc.collect(world.log(), thorough=False)
    world.storage.delete = real
    collect(world, 3)  # none of them looks at everything
    assert world.read() == list(range(60))
    assert_no_file_too_few_or_too_many(world)


# -- crashes, lost answers, rivals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
def test_a_crash_before_or_after_any_request_is_harmless(tmp_path, applied):
    for step in range(1, 30):
        world = World(tmp_path / str(step), replace(LIMITS, rewrite_ledgers=1), SeededClock(step))
        write(world, range(10))
        faults = Faults()
        faults.crash_at(step, applied=applied)
        crashed = False
        log = world.log(faults)
        try:
            rewrite(log)
        except Crash:
            crashed = True
        log.metadata.expire()
        assert world.read() == list(range(10))
        assert rewrite(world.log()).ledgers in (0, 1, 2)
        collect(world, 4)
        assert_no_file_too_few_or_too_many(world)
        assert world.read() == list(range(10))
        if not crashed:
            break
    assert 3 < step < 29


def test_a_crash_while_files_are_written_is_harmless(tmp_path):
    for step in range(1, 60):
        world = World(tmp_path / str(step), replace(LIMITS, rewrite_ledgers=1), SeededClock(step))
        write(world, range(10))
        left, real = step, world.storage.create
        crashed = False

        def create(path: str, real=real):
            nonlocal left
            left -= 1
            if left == 0:
                raise Crash("while writing")
            return real(path)

        world.storage.create = create
        try:
            rewrite(world.log())
        except Crash:
            crashed = True
        world.storage.create = real
        assert world.read() == list(range(10))
        rewrite(world.log())
        collect(world, 4)
        assert_no_file_too_few_or_too_many(world)
        if not crashed:
            break
    assert 5 < step < 59


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired"])
@pytest.mark.parametrize("number", range(1, 6))
def test_a_lost_answer_is_found_and_the_truth_is_told_I14(world, fault, number):
    write(world, range(18))
    faults = Faults()
    log = world.log(faults)
    real, left = log.metadata.transact, number

    def transact(ops):
        nonlocal left
        left -= 1
        if left == 0:
            faults.next_transact(fault)
        return real(ops)

    log.metadata.transact = transact
    done = rewrite(log)
    world.server.deliver_delayed()
    assert (done.ledgers, done.files_after) == (4, 4)
    assert len({entry.file.uid for entry in entries(world)}) == 4 + 2
    assert world.read() == list(range(18))
    collect(world, 4)
    assert_no_file_too_few_or_too_many(world)


def seal_now(world: World) -> None:
    log = world.log()
    append(log, 1000)
    log.limits = replace(log.limits, commits_per_ledger=1)
    seal.seal(log)


def rewrite_without_lock(world: World) -> None:
    log = world.log()
    rewriting.publish(log, copy_all(log))


RIVALS: dict[str, Callable[[World], object]] = {
    "a trim": lambda world: retention.trim(world.log(), before="1:0:0"),
    "a seal": seal_now,
    "gc": lambda world: collect(world),
    "gc twice": lambda world: collect(world, 2),
    "a trim and gc": lambda world: (retention.trim(world.log(), before="1:0:0"), collect(world, 3)),
    "another rewriter": rewrite_without_lock,
    "compaction": lambda world: compact(world.log()),
}


@pytest.mark.parametrize("rival", RIVALS)
def test_who_acts_between_any_two_requests_loses_nothing_and_takes_nothing_I12(tmp_path, rival):
    for step in range(1, 60):
        world = World(tmp_path / str(step), replace(LIMITS, rewrite_ledgers=1), SeededClock(step), key="n")
        write(world, range(10))
        log = world.log()
        acted = act_before(log, step, lambda world=world: RIVALS[rival](world))
        done = rewrite(log)
        begin = places.earliest(world.log().view()).ledger * 4
        numbers = list(range(begin, 10))
        assert [n for n in world.read() if n < 1000] == numbers
        assert done.ledgers + len(done.skipped) <= 3
        collect(world, 4)
        collect(world, thorough=True)  # a rewriter that was overtaken has staged files under an epoch that had ended
        assert [n for n in world.read() if n < 1000] == numbers
        assert_no_file_too_few_or_too_many(world)
        if not acted():
            break
    assert 6 < step < 59


def test_a_second_rewriter_is_told_who_the_first_is(world):
    write(world, range(18))
    with rewriting.rewriting(world.log()):
        with pytest.raises(Conflict, match=r"LEDGER_REWRITING_RUNNING.*is being rewritten by process \d+ on .* since"):
            rewrite(world.log())
    assert rewrite(world.log()).ledgers == 4


def test_one_that_takes_longer_than_the_grace_begins_again_I12(world):
    write(world, range(18))
    slow = iter([True, False])

    def copy_slowly(group, epoch, report) -> Iterator[object]:
        log = world.log()
        yield from [rewriting.copy(log.files, each, epoch, log.clock, report) for each in group]
        if next(slow, False):
            collect(world, 2)

    done = rewriting.rewrite_with(world.log(), copy_slowly, None)
    assert done.ledgers == 4
    collect(world, 4)
    assert world.read() == list(range(18))
    assert_no_file_too_few_or_too_many(world)


def test_one_that_always_takes_longer_gives_up_and_changes_nothing(world):
    write(world, range(18))

    def copy_slowly(group, epoch, report) -> Iterator[object]:
        log = world.log()
        yield from [rewriting.copy(log.files, each, epoch, log.clock, report) for each in group]
        collect(world, 2)

    with pytest.raises(Conflict, match="LEDGER_STAGED_TOO_LONG_AGO"):
        rewriting.rewrite_with(world.log(), copy_slowly, None)
    assert not any(entry.file_rows for entry in entries(world))


# -- damage ---------------------------------------------------------------------------------------------------------


def damage(world: World, entry: Entry, how: str) -> str:
    path = names.staged_file(world.topic.uuid, entry.file.epoch, entry.file.uid)
    if how == "missing":
        world.storage.delete(path)
        return path
    data = bytearray(world.storage.read(path, 0, entry.file.length).to_pybytes())
    data[len(data) // 3] ^= 0xFF
    world.storage.delete(path)
    world.storage.write(path, bytes(data))
    return path


@pytest.mark.parametrize("how", ["missing", "changed"])
def test_a_ledger_with_a_damaged_file_stays_as_it_is_and_the_file_is_named(world, how):
    write(world, range(18))
    path = damage(world, entries(world)[5], how)
    before, files = entries(world)[4:8], world.files()
    done = rewrite(world.log())
    assert done.ledgers == 3
    (why,) = done.skipped
    assert why.startswith("ledger 1: ")
    assert path in why
    assert entries(world)[4:8] == before
    assert not any(names.ledger_in_id(bytes.fromhex(file[-38:-6])) == 1 for file in world.files() - files)


def test_an_entry_that_is_shorter_than_its_commit_says_moves_nothing(world):
    log = world.log()
    for number in range(4):
        entry = stage(log, number, number)
        protocol.append(log, StagedBatch(log.clock.new_id(), (replace(entry, records=2 + number % 2),), SCHEMA))
    append(log, 9)
    done = rewrite(world.log())
    assert done.ledgers == 0
    assert "its commit says 3" in done.skipped[0]


def test_pieces_of_a_rewritten_file_are_read_together(world):
    write(world, range(8))
    append(world.log(), 8)
    rewrite(world.log())
    log = world.log()
    batches = [batch.num_rows for batch in Reader(log, "earliest", "latest").batches()]
    assert batches == [4, 4, 1]
    pieces = list(scan.slices(log, log.view(), EARLIEST, log.view().head.end))
    assert [type(piece) for piece in pieces] == [SharedSlice, SharedSlice, EntrySlice]


# -- object stores --------------------------------------------------------------------------------------------------


def test_rewriting_trimming_and_gc_on_s3(s3_root):
    from pyspark_ledger.files.storage import open_storage

    world = World(open_storage(s3_root), LIMITS, SeededClock(1))
    write(world, range(18))
    assert rewrite(world.log()).ledgers == 4
    collect(world, 3)
    assert world.read() == list(range(18))
    retention.trim(world.log(), before="2:0:0")
    collect(world, 4)
    assert world.read() == list(range(8, 18))
    assert_no_file_too_few_or_too_many(world)
