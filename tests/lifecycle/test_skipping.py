"""A damaged entry is given up by name: who reads it is told exactly what is missing, or goes around it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pyspark_ledger.base.names import staged_file
from pyspark_ledger.base.position import Position
from pyspark_ledger.compaction.plan import state_slices
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.errors import CorruptData, DataLoss, InvalidInput
from pyspark_ledger.files.entryfile import BATCH_ROWS, EntryReader
from pyspark_ledger.lifecycle import gc, retention, rewriting
from pyspark_ledger.lifecycle.skipping import parse_entry, skip_damaged
from pyspark_ledger.lifecycle.verify import verify
from pyspark_ledger.log import lost, scan
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.disk import Disk, MemoryStorage
from pyspark_ledger.testing.memory import Faults
from tests.support.lifecycle import act_before
from tests.support.worlds import EAGER, World, append

LIMITS = replace(EAGER, rewrite_below_bytes=1 << 20)
LOST = Position(1, 1, 0)  # of ten entries with two records each, in ledgers of four: the sixth, with 5 and 15


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path, LIMITS, SeededClock(), key="n")
    for number in range(10):
        append(world.log(), number, number + 10)
    return world


def path_of(log: Log, position: Position = LOST) -> str:
    commit = next(log.commits_from(log.refresh(sync=True), position))
    file = log.entries(commit)[position.entry - commit.first_entry].file
    return staged_file(log.topic.uuid, file.epoch, file.uid)


def damaged(world: World, position: Position = LOST) -> str:
    """Flips a bit of the entry's file, and says which file that is."""
    path = path_of(world.log(), position)
    data = world.storage.read(path, 0, 1 << 20).to_pybytes()
    world.storage.delete(path)
    world.storage.write(path, data[:-30] + bytes([data[-30] ^ 1]) + data[-29:])
    return path


def values(world: World, start: str = "earliest", **options: Any) -> list[int]:
    return [record["n"] for record in Reader(world.log(), start, "latest", **options)]


def without_lost(world: World) -> list[int]:
    return values(world, fail_on_data_loss=False)


ALL = [n for number in range(10) for n in (number, number + 10)]
LEFT = [n for n in ALL if n not in (5, 15)]


# -- giving up -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [LOST, Position(0, 0, 0), Position(2, 1, 1)])
@pytest.mark.parametrize("is_missing", [True, False])
def test_an_entry_that_is_damaged_can_be_given_up_and_nothing_else_changes(world, position, is_missing):
    path = damaged(world, position)
    if is_missing:
        world.storage.delete(path)
    before = world.log().refresh().head
    planned = skip_damaged(world.log(), position, dry_run=True)
    assert world.log().refresh().head == before
    done = skip_damaged(world.log(), position, reason="the disk of rack 3")
    assert done == planned
    assert done.file.endswith(path)
    assert path in done.damage
    after = world.log().refresh().head
    assert (after.records, after.bytes, after.end, after.index) == (
        before.records,
        before.bytes,
        before.end,
        before.index,
    )
    assert len(without_lost(world)) == 18
    (each,) = lost.fetch(world.log().files, after)
    first = Position(position.ledger, position.entry, 0)
    assert (each.first, each.records, each.reason) == (first, 2, "the disk of rack 3")
    assert each.ordinal == scan.records_before(world.log(), world.log().refresh(), first)


def test_an_entry_that_is_whole_is_refused_and_so_is_one_that_is_not_there(world):
    before = world.log().refresh().head
    with pytest.raises(InvalidInput, match="is whole") as told:
        skip_damaged(world.log(), LOST)
    assert told.value.code == "LEDGER_ENTRY_WHOLE"
    for position in (Position(1, 4, 0), Position(2, 2, 0), Position(7, 0, 0)):
        with pytest.raises(InvalidInput, match="has no entry"):
            skip_damaged(world.log(), position)
    assert world.log().refresh().head == before
    retention.trim(world.log(), before="2:0:0")
    with pytest.raises(InvalidInput, match="begins at 2:0:0"):
        skip_damaged(world.log(), LOST)


@pytest.mark.parametrize("text", ["1:1", "1:1:0", "1:1:7"])
def test_an_entry_is_named_with_or_without_a_record(text):
    assert (parse_entry(text).ledger, parse_entry(text).entry) == (1, 1)
    with pytest.raises(InvalidInput):
        parse_entry("1")


def test_to_do_it_twice_is_to_do_it_once_and_an_answer_that_is_lost_is_found_out_I14(world):
    damaged(world)
    for fault in ("lost_before", "applied_then_lost"):
        faults = Faults()
        faults.next_transact(fault)
        skip_damaged(world.log(faults), LOST)
    assert len(lost.fetch(world.log().files, world.log().refresh().head)) == 1


def test_it_is_taken_back_when_a_copy_was_found(world):
    path = path_of(world.log())
    copy = world.storage.read(path, 0, 1 << 20).to_pybytes()
    damaged(world)
    skip_damaged(world.log(), LOST)
    with pytest.raises(InvalidInput, match="still damaged"):
        skip_damaged(world.log(), LOST, undo=True)
    world.storage.delete(path)
    world.storage.write(path, copy)
    skip_damaged(world.log(), LOST, undo=True)
    assert world.log().refresh().head.lost is None
    assert values(world) == ALL


# -- reading ---------------------------------------------------------------------------------------------------------


def test_a_reader_is_told_what_is_missing_or_goes_around_it_and_says_so(world, caplog):
    path = damaged(world)
    with pytest.raises(CorruptData):
        values(world)
    skip_damaged(world.log(), LOST, reason="rack 3")
    reader = Reader(world.log(), "earliest", "latest")
    seen = []
    with pytest.raises(DataLoss, match=r"2 records from 1:1:0 up to 1:2:0 are lost.*rack 3") as told:
        seen += [record["n"] for record in reader]
    assert told.value.code == "LEDGER_ENTRY_LOST"
    assert path in str(told.value)
    assert reader.position == Position(1, 0, 2) or reader.position == LOST
    with caplog.at_level(logging.WARNING):
        assert without_lost(world) == LEFT
    assert sum("going around them" in line for line in caplog.messages) == 1
    assert values(world, "1:2:0") == LEFT[10:]
    assert values(world, "1:1:1", fail_on_data_loss=False) == LEFT[10:]


def test_positions_ordinals_and_totals_stay_as_they_were(world):
    log = world.log()
    before = [scan.position_at(log, log.refresh(), ordinal) for ordinal in range(21)]
    damaged(world)
    skip_damaged(world.log(), LOST)
    log = world.log()
    assert [scan.position_at(log, log.refresh(), ordinal) for ordinal in range(21)] == before
    assert [scan.records_before(log, log.refresh(), position) for position in before] == list(range(21))


def test_a_consumer_is_told_or_goes_around_and_the_subscription_counts_the_loss_once(world):
    damaged(world)
    skip_damaged(world.log(), LOST)
    received: list[int] = []
    consumer = Consumer(world.log(), "s")
    with pytest.raises(DataLoss, match=r"1:1:0 up to 1:2:0.*fail_on_data_loss=False"):
        drain(consumer, received)
    consumer.close()
    assert CursorHandle(world.log(), "s").stats().lost == 0
    consumer = Consumer(world.log(), "s", fail_on_data_loss=False)
    drain(consumer, received)
    consumer.close()
    assert sorted(set(received)) == sorted(LEFT)
    stats = CursorHandle(world.log(), "s").stats()
    assert (stats.lost, stats.mark_delete, stats.backlog_records) == (2, world.log().refresh().head.end, 0)
    consumer = Consumer(world.log(), "s", fail_on_data_loss=False)
    assert drain(consumer) == []
    assert CursorHandle(world.log(), "s").stats().lost == 2


def drain(consumer: Consumer, found: list[int] | None = None) -> list[int]:
    found = [] if found is None else found
    while (message := consumer.receive(timeout_s=0)) is not None:
        found.append(message["n"])
        consumer.acknowledge(message)
    return found


def test_a_consumer_goes_around_the_first_and_the_last_entry_and_neighbours(world):
    for position in (Position(0, 0, 0), Position(0, 1, 0), Position(2, 1, 0)):
        damaged(world, position)
        skip_damaged(world.log(), position)
    consumer = Consumer(world.log(), "s", fail_on_data_loss=False)
    assert drain(consumer) == ALL[4:18]
    consumer.close()
    stats = CursorHandle(world.log(), "s").stats()
    assert (stats.lost, stats.backlog_records) == (6, 0)


def test_what_was_refused_and_is_lost_since_is_not_delivered_again(world):
    consumer = Consumer(world.log(), "s", fail_on_data_loss=False)
    messages = [consumer.receive(timeout_s=0) for _ in range(20)]
    for message in messages:
        if message["n"] in (5, 6):
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    damaged(world)
    skip_damaged(world.log(), LOST)
    consumer._log.refresh(sync=True)
    world.clock.sleep(120)
    assert drain(consumer) == [6]
    consumer.close()
    stats = CursorHandle(world.log(), "s").stats()
    assert (stats.lost, stats.backlog_records) == (1, 0)  # 15 was acknowledged before


# -- those who work on the log ---------------------------------------------------------------------------------------


def test_compaction_goes_around_what_was_given_up_and_says_so(world, caplog):
    damaged(world)
    with pytest.raises(CorruptData):
        compact(world.log())
    skip_damaged(world.log(), LOST)
    with caplog.at_level(logging.WARNING):
        generation = compact(world.log())
    assert generation is not None
    assert generation.records == 18
    assert any("the compaction goes around them" in line for line in caplog.messages)
    compacted = Reader(world.log(), "earliest", "latest", None, state_slices)
    assert [record["n"] for record in compacted] == LEFT
    append(world.log(), 99)
    caplog.clear()
    assert compact(world.log()) is not None  # what is lost is behind it
    assert not any("goes around" in line for line in caplog.messages)


def test_a_state_is_refused_or_without_what_was_given_up(world):
    damaged(world)
    skip_damaged(world.log(), LOST)
    with pytest.raises(DataLoss, match="1:1:0 up to 1:2:0"):
        list(Reader(world.log(), "earliest", "latest", None, state_slices))
    state = Reader(world.log(), "earliest", "latest", None, state_slices, fail_on_data_loss=False)
    assert [record["n"] for record in state] == LEFT


def test_rewriting_leaves_what_was_given_up_where_it_is_and_joins_the_rest(world):
    path = damaged(world)
    assert len(rewriting.rewrite(world.log()).skipped) == 1
    skip_damaged(world.log(), LOST)
    done = rewriting.rewrite(world.log(), everything=True)
    assert (done.ledgers, done.skipped) == (1, ())
    assert path_of(world.log()) == path
    assert without_lost(world) == LEFT
    for _ in range(4):
        gc.collect(world.log())
    assert without_lost(world) == LEFT
    assert verify(world.log()).is_sound


def test_one_entry_of_a_file_that_many_share_is_given_up(world):
    rewriting.rewrite(world.log())
    log = world.log()
    path = path_of(log)
    data = bytearray(world.storage.read(path, 0, 1 << 20).to_pybytes())
    data[-40] ^= 1  # its tail: none of the entries can be read
    world.storage.delete(path)
    world.storage.write(path, bytes(data))
    (found,) = (each for each in verify(world.log()).findings if each.is_harm)
    assert (found.first, found.end, found.records) == (Position(1, 0, 0), Position(1, 4, 0), 8)
    skip_damaged(world.log(), LOST)
    harm = [each.first for each in verify(world.log()).findings if each.is_harm]
    assert harm == [Position(1, entry, 0) for entry in (0, 2, 3)]
    for position in harm:
        skip_damaged(world.log(), position)
    assert without_lost(world) == ALL[:8] + ALL[16:]
    assert verify(world.log()).is_sound


def test_damage_in_the_middle_of_a_file_that_many_share_concerns_what_is_there_and_nothing_else(tmp_path):
    """Also a read that would otherwise take all that is left of the file at once."""
    world = World(tmp_path, LIMITS, key="n")
    for number in range(5):
        append(world.log(), *range(number * BATCH_ROWS, (number + 1) * BATCH_ROWS))  # a record batch each
    assert rewriting.rewrite(world.log()).entries == 4
    log = world.log()
    commit = next(log.commits_from(log.refresh(), Position(0, 1, 0)))
    offset, _ = EntryReader(log.storage, log.topic.uuid, log.entries(commit)[0].file)._batches[1].columns[0]
    path = path_of(log, Position(0, 1, 0))
    data = bytearray(world.storage.read(path, 0, 1 << 30).to_pybytes())
    data[offset + 100] ^= 1
    world.storage.delete(path)
    world.storage.write(path, bytes(data))
    (found,) = (each for each in verify(world.log()).findings if each.is_harm)
    assert (found.first, found.records) == (Position(0, 1, 0), BATCH_ROWS)
    skip_damaged(world.log(), found.first)
    assert verify(world.log()).is_sound
    read = Reader(world.log(), "earliest", "latest", fail_on_data_loss=False).batches()
    assert sum(batch.num_rows for batch in read) == 4 * BATCH_ROWS
    assert compact(world.log()).records == 4 * BATCH_ROWS


def test_trimming_forgets_what_was_given_up_before(world):
    for position in (Position(0, 2, 0), LOST):
        damaged(world, position)
        skip_damaged(world.log(), position)
    retention.trim(world.log(), before="1:0:0")
    for _ in range(4):
        gc.collect(world.log())
    damaged(world, Position(2, 0, 0))
    skip_damaged(world.log(), Position(2, 0, 0))
    listed = lost.fetch(world.log().files, world.log().refresh().head)
    assert [each.first for each in listed] == [LOST, Position(2, 0, 0)]
    assert verify(world.log()).is_sound


def test_verify_knows_what_was_given_up(world):
    damaged(world)
    assert not verify(world.log()).is_sound
    skip_damaged(world.log(), LOST, reason="rack 3")
    done = verify(world.log(), deep=True)
    assert done.is_sound
    (found,) = (each for each in done.findings if each.kind == "given up")
    assert (found.first, found.end, found.records) == (LOST, Position(1, 2, 0), 2)
    assert "rack 3" in found.what


def test_gc_keeps_the_list_and_deletes_the_one_before_I12(world):
    for position in (LOST, Position(1, 2, 0)):
        damaged(world, position)
        skip_damaged(world.log(), position)
    for _ in range(4):
        gc.collect(world.log())
    gc.collect(world.log(), thorough=True)
    done = verify(world.log())
    assert done.is_sound
    assert done.orphans == 0


def test_a_list_that_is_damaged_is_named_by_who_needs_it_and_found_I1(world):
    damaged(world)
    skip_damaged(world.log(), LOST)
    file = world.log().refresh().head.lost
    path = staged_file(world.topic.uuid, file.epoch, file.uid)
    world.storage.delete(path)
    world.storage.write(path, b"nonsense")
    for read in (without_lost, values, lambda world: compact(world.log())):
        with pytest.raises(CorruptData, match=file.uid.hex()):
            read(world)
    assert any(each.file.endswith(path) for each in verify(world.log()).findings if each.is_harm)


RIVALS: dict[str, Callable[[World], object]] = {
    "a writer that seals": lambda world: [append(world.log(), 50 + n) for n in range(4)],
    "a rewriting": lambda world: rewriting.rewrite(world.log()),
    "another who gives up": lambda world: skip_damaged(world.log(), LOST),
    "gc": lambda world: [gc.collect(world.log()) for _ in range(3)],
}


@pytest.mark.parametrize("rival", RIVALS)
def test_who_acts_between_two_requests_does_no_harm_I6(tmp_path, rival):
    for step in range(1, 20):
        storage = MemoryStorage(Disk())
        with storage.mounted():
            world = World(storage, LIMITS, SeededClock(step), key="n")
            for number in range(10):
                append(world.log(), number, number + 10)
            damaged(world)
            log = world.log()
            acted = act_before(log, step, partial(RIVALS[rival], world))
            skip_damaged(log, LOST)
            assert [n for n in without_lost(world) if n < 50] == LEFT
            assert verify(world.log()).is_sound
        if not acted():
            break
    assert 3 < step < 19
