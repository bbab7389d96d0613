"""Compaction: the state of a long log, exactly, whatever is compacted when and whoever reads what (I9, I10)."""

from __future__ import annotations

import contextlib
import datetime
import decimal
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.compaction import fold
from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.compaction import writer as compacted
from pyspark_ledger.compaction.pins import Pinned
from pyspark_ledger.compaction.plan import begin, state_slices
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.compaction.work import survivors_of, write
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import Conflict, DataLoss, InvalidInput, Unavailable
from pyspark_ledger.files.entryfile import EntryWriter
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log import locks, scan, topics
from pyspark_ledger.log.generations import CompactedLedger, fetch_replaced, files_of, kept, newest, numbered
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.rows import read_slice
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.port import CompactorKey, PartKey, PinKey
from pyspark_ledger.metadata.records import SetBack
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support import examples
from tests.support.flaky import Flaky
from tests.support.rollback import restore, snapshot
from tests.support.worlds import EAGER, IDS, World, append, append_ids, forget

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("version", pa.int64())])


class Keyed(World):
    def __init__(self, folder, version_column="", **options) -> None:
        super().__init__(folder, **options)
        self.topic = topics.create_topic(
            self.metadata(), "keyed", SCHEMA, key="k", version_column=version_column, storage=self.storage
        )

    def put(self, log: Log, *rows) -> None:
        """One commit of (key, value) or (key, value, version); a value of None is a tombstone."""
        rows = [(*row, None)[:3] for row in rows]
        batch = pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)
        epoch = log.refresh(sync=True).head.gc_epoch
        writer = EntryWriter(log.storage, self.topic.uuid, epoch, SCHEMA)
        writer.write(batch)
        protocol.append(log, StagedBatch(log.clock.new_id(), (writer.close(),), SCHEMA))


def rows_of(log: Log, pieces):
    """(position, key, value) of what a reader gets."""
    found = []
    for piece in pieces:
        for rows in read_slice(log.storage, log.topic.uuid, piece, SCHEMA, with_ids=True):
            ledger, entry, index = (column.to_pylist() for column in rows.positions())
            for where, row in zip(zip(ledger, entry, index, strict=True), rows.batch.to_pylist(), strict=True):
                found.append((Position(*where), row["k"], row["v"]))
    return found


def state(rows):
    """The map that a reader ends with, and the records without a key."""
    final = {}
    for _, key, value in rows:
        if key is not None:
            final.pop(key, None)
            if value is not None:
                final[key] = value
    return final, [value for _, key, value in rows if key is None]


def compacted_read(log: Log, start=EARLIEST, base=None):
    view = log.refresh(sync=True)
    horizon = view.head.generation.horizon if view.head.generation else EARLIEST
    source = ReadSource(log, view, newest(log, view), horizon if base is None else base)
    return rows_of(log, source.slices(start, view.head.end))


def kept_numbers(world: Keyed, of=lambda generation: generation.number) -> list:
    log = world.log()
    return [of(generation) for generation in kept(log.files, log.view().head)]


def full_read(log: Log, start=EARLIEST):
    view = log.refresh(sync=True)
    return rows_of(log, scan.slices(log, view, start, view.head.end))


@pytest.fixture
def world(tmp_path):
    """Every run of gc raises the epoch."""
    return Keyed(tmp_path, limits=EAGER)


def test_the_last_record_of_every_key_with_its_position_and_no_deleted_one(world):
    log = world.log()
    world.put(log, ("a", 1), ("b", 1), (None, 7))
    world.put(log, ("a", 2), ("c", 3))
    world.put(log, ("b", None), (None, 8))
    generation = compact(log)
    assert (generation.number, generation.horizon, generation.read) == (1, Position(0, 3, 0), 7)
    assert compacted_read(log) == [
        (Position(0, 0, 2), None, 7),
        (Position(0, 1, 0), "a", 2),
        (Position(0, 1, 1), "c", 3),
        (Position(0, 2, 1), None, 8),
    ]
    assert len(full_read(log)) == 7  # a normal read still sees the whole log
    assert compact(log) is None
    world.put(log, ("c", None))
    assert state(compacted_read(log)) == ({"a": 2}, [7, 8])


def test_a_topic_that_is_all_tombstones_compacts_to_nothing_pulsar_2591_6237_21718_21916(world):
    log = world.log()
    world.put(log, ("a", 1))
    world.put(log, ("a", None))
    compact(log)
    assert compacted_read(log) == []
    world.put(log, ("b", 1))
    compact(log)
    assert state(compacted_read(log)) == ({"b": 1}, [])


def test_horizon_and_generation_only_grow_and_an_overtaken_compactor_changes_nothing_I6_I10_pulsar_25118(
    world, monkeypatch
):
    log, other = world.log(), world.log()
    world.put(log, ("a", 1))
    write = compaction.write

    def slow(*arguments):
        written = write(*arguments)
        monkeypatch.setattr(compaction, "write", write)
        world.put(other, ("a", 2))
        log.metadata.expire()  # it was away for so long that its lock is gone
        compact(other)
        return written

    monkeypatch.setattr(compaction, "write", slow)
    with pytest.raises(Conflict, match="LEDGER_COMPACTION_FENCED"):
        compact(log)
    (generation,) = kept_numbers(world, of=lambda generation: generation)
    assert (generation.number, generation.read) == (1, 2)


def compacted_but_not_published(log: Log):
    work = begin(log)
    return work, write(work, survivors_of(work.input))


def test_what_was_compacted_before_a_rollback_was_noticed_is_not_published_I18(world):
    log = world.log()
    world.put(log, ("a", 1))
    done = compacted_but_not_published(log)
    noted = SetBack(1, "somebody", "its head is older than it was before")
    world.log().change_head(lambda head: replace(head, set_back=noted), "a note")
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        compaction.publish(log, *done)
    assert world.log().view().head.generation is None


def test_what_was_compacted_two_gc_epochs_ago_is_not_published_because_its_files_may_be_gone_I12(tmp_path):
    world = Keyed(tmp_path, limits=EAGER)
    log = world.log()
    world.put(log, ("a", 1))
    done = compacted_but_not_published(log)
    for _ in range(3):
        gc.collect(world.log())
    with pytest.raises(Conflict, match="LEDGER_STAGED_TOO_LONG_AGO"):
        compaction.publish(log, *done)
    assert world.log().view().head.generation is None


@pytest.mark.parametrize("step", [0, 1])  # the lock, the publication
@pytest.mark.parametrize("fault", ["applied_then_lost", "lost_before", "delayed", "expired"])
def test_a_compaction_whose_answers_are_lost_is_published_once_I14(world, fault, step):
    log = world.log()
    world.put(log, ("a", 1))
    faults = Faults()
    compactor = world.log(faults)
    faults.next_transact(*[None] * step, fault)
    compact(compactor)
    world.server.deliver_delayed()
    assert kept_numbers(world) == [1]


def test_a_compaction_that_failed_leaves_no_lock_I16(tmp_path, monkeypatch):
    """ZooKeeper was away when it ended, and came back before the session had."""
    world = Keyed(tmp_path, clock=SeededClock())
    metadata = Flaky(world.server, clock=world.clock)
    log = Log(metadata, world.storage, world.topic, limits=world.limits, clock=world.clock)
    world.put(log, ("a", 1))
    write = compaction.write

    def cut_off(*arguments):
        metadata.down = True
        return write(*arguments)

    for retry in ("by the same process", "by another"):
        monkeypatch.setattr(compaction, "write", cut_off)
        with pytest.raises(Unavailable):
            compact(log)
        monkeypatch.setattr(compaction, "write", write)
        metadata.down = False
        if retry == "by another":
            metadata.chores.run_all()
        assert compact(log if retry == "by the same process" else world.log()) is not None
        world.put(log, ("a", 2))


@pytest.mark.parametrize("applied", [False, True])
def test_a_compactor_that_dies_leaves_the_old_or_the_new_generation_and_gc_the_rest_I12(world, applied):
    log = world.log()
    world.put(log, ("a", 1), ("b", 1))
    compact(log)
    world.put(log, ("a", 2))
    dying(world, publication=2, applied=applied)
    assert kept_numbers(world) == ([1, 2] if applied else [1])
    for _ in range(4):
        gc.collect(world.log())
    assert state(compacted_read(world.log())) == ({"a": 2, "b": 1}, [])
    compact(world.log())
    assert state(compacted_read(world.log())) == ({"a": 2, "b": 1}, [])


def test_a_generation_is_kept_until_two_gc_epochs_after_it_was_replaced_and_then_gone_by_name(world):
    log = world.log()
    for value in range(3):
        world.put(log, ("a", value), (f"k{value}", value))
        compact(log)
    first, second, _ = kept_numbers(world, of=lambda generation: generation)
    for raised in range(2):
        assert kept_numbers(world) == [1, 2, 3]
        for generation in (first, second):
            planned = numbered(log, log.refresh(sync=True), generation.number)
            ledger = CompactedLedger(log.files, planned)
            found = rows_of(log, ledger.slices(EARLIEST, log.view().head.end, EARLIEST))
            assert state(found)[0]["a"] == generation.number - 1
        assert gc.collect(world.log()).epoch == raised + 1
    assert kept_numbers(world) == [3]
    with pytest.raises(DataLoss, match=r"LEDGER_GENERATION_GONE.*there are 3"):
        numbered(world.log(), world.log().view(), 1)
    assert {path(world, first.manifest), path(world, second.manifest)} <= world.files()
    gc.collect(world.log())  # only now: a head that named them may come back from a backup
    assert not {path(world, first.manifest), path(world, second.manifest)} & world.files()
    assert state(compacted_read(log))[0]["a"] == 2


def test_all_that_replaced_generations_leave_is_deleted_in_the_end(world):
    log = world.log()
    for value in range(8):
        world.put(log, ("a", value))
        compact(log)
        gc.collect(world.log())
    assert kept_numbers(world) == [7, 8]
    for _ in range(4):
        gc.collect(world.log())
    head = log.refresh(sync=True).head
    assert (kept_numbers(world), head.replaced) == ([8], None)
    named = [head.generation.manifest, *files_of(log.files, head.generation.manifest)]
    named += [*Index(log.files, head.index).references(0)]
    named += [entry.file for commit in log.commits_from(log.view(), EARLIEST) for entry in commit.entries]
    assert world.files() == {path(world, file) for file in named}


def test_every_generation_that_a_backup_of_the_last_grace_names_can_be_read_after_a_restore_I12(tmp_path):
    world = Keyed(tmp_path, limits=replace(EAGER, gc_grace_ms=100_000), clock=SeededClock())
    log, backups = world.log(), []
    for value in range(24):
        world.put(log, ("a", value))
        if value % 3 == 0:
            compact(world.log())
        backups.append((world.clock.monotonic(), snapshot(world.server)))
        world.clock.sleep(21)
        gc.collect(world.log())
        now = snapshot(world.server)
        for made, backup in backups:
            if world.clock.monotonic() - made < 100:
                restore(world.server, backup)
                for generation in kept_numbers(world, of=lambda generation: generation):
                    restored = world.log()
                    pieces = CompactedLedger(restored.files, generation).slices(EARLIEST, Position(99, 0, 0), EARLIEST)
                    assert rows_of(restored, pieces)
        restore(world.server, now)
    assert log.refresh(sync=True).head.gc_epoch >= 4


def path(world, file) -> str:
    return f"{world.topic.uuid}/{file.epoch:08x}/{file.uid.hex()}.arrow"


def test_as_many_generations_as_can_be_kept_are_an_error_by_name_before_any_work_and_gc_helps_I13(tmp_path):
    world = Keyed(tmp_path, limits=replace(EAGER, kept_generations=3))
    log = world.log()
    for value in range(4):
        world.put(log, ("a", value))
        compact(log)
    world.put(log, ("a", 4))
    files, head = world.files(), log.refresh(sync=True).head
    told = []
    with pytest.raises(Conflict, match=r"LEDGER_TOO_MANY_GENERATIONS.*'keyed' has 3 older .* let gc run"):
        compact(log, lambda *step: told.append(step))
    assert (world.files(), log.refresh(sync=True).head, told) == (files, head, [])
    for _ in range(2):
        gc.collect(world.log())
    assert compact(log).number == 5
    assert kept_numbers(world) == [4, 5]


def test_a_generation_counts_as_replaced_from_the_epoch_in_which_it_was_I12(world):
    """Its publication was overtaken by gc: if its list were of the epoch before, the next gc would drop it."""
    log = world.log()
    world.put(log, ("a", 1))
    compact(log)
    world.put(log, ("a", 2))
    write = log.metadata.transact

    def overtaken(ops):
        if len(ops) > 1:
            log.metadata.transact = write
            gc.collect(world.log())
        write(ops)

    log.metadata.transact = overtaken
    compact(log)
    gc.collect(world.log())
    assert kept_numbers(world) == [1, 2]


def test_a_publication_that_others_delay_stages_its_list_once(world):
    log, other = world.log(), world.log()
    world.put(log, ("a", 1))
    compact(log)
    world.put(log, ("a", 2))
    write, in_time = log.metadata.transact, []

    def overtaken(ops):
        if len(ops) > 1 and len(in_time) < 2:
            in_time.append(world.put(other, ("b", 1)))
        write(ops)

    log.metadata.transact = overtaken
    before = len(world.files())
    assert compact(log).number == 2
    assert len(in_time) == 2
    assert len(world.files()) == before + 2 + 3  # two entries; a file of records, its manifest, the list
    assert len(fetch_replaced(log.files, log.refresh(sync=True).head.replaced)) == 1


def test_a_pin_that_went_with_its_session_is_made_again(tmp_path):
    world = Keyed(tmp_path, clock=SeededClock())
    reader = world.log()
    pin = Pinned(reader)

    def pins():
        keys = reader.metadata.children(PartKey(world.topic.uuid, "pins"))
        return [reader.metadata.read(key).record.position for key in keys if isinstance(key, PinKey)]

    pin.move(0, Position(0, 1, 0))
    reader.metadata.expire()
    assert pins() == []
    reader.metadata.chores.run_all()  # in the background: the reader itself is busy
    assert pins() == [Position(0, 1, 0)]
    pin.move(0, Position(0, 3, 0))  # not worth a request
    assert pins() == [Position(0, 1, 0)]
    pin.move(1, Position(0, 4, 0))
    assert pins() == [Position(0, 4, 0)]
    pin.release()
    assert pins() == []


def test_a_pin_whose_move_got_lost_is_moved_with_the_next_batch_I9(world):
    faults = Faults()
    log = world.log(faults)
    pin = Pinned(log)
    pin.move(1, Position(0, 1, 0))
    faults.next_transact("lost_before")
    for _ in range(2):  # two batches
        pin.move(2, Position(0, 2, 0))
    [key] = log.metadata.children(PartKey(world.topic.uuid, "pins"))
    assert log.metadata.read(key).record.position == Position(0, 2, 0)


def test_a_second_compactor_is_refused_at_once_with_the_name_of_the_first(world):
    log, other = world.log(), world.log()
    world.put(log, ("a", 1))
    compact(log)
    world.put(log, ("a", 2))
    with compaction.compacting(log):
        with pytest.raises(Conflict, match=r"LEDGER_COMPACTION_RUNNING.*by process \d+ on .* since"):
            compact(other)
        assert compaction.stats(other).running_since_ms is not None
    assert compaction.stats(other).running_since_ms is None
    assert compact(other).number == 2


def test_a_first_compaction_that_runs_can_be_seen(world):
    log, other = world.log(), world.log()
    world.put(log, ("a", 1), ("a", 2))
    assert compaction.stats(other) is None
    with compaction.compacting(log):
        stats = compaction.stats(other)
        assert (stats.generation, stats.records_before, stats.backlog_records) == (0, 0, 2)
        assert stats.running_since_ms is not None
    assert compaction.stats(other) is None


def test_others_see_how_far_a_compaction_is(world, monkeypatch):
    monkeypatch.setattr(locks, "_TOLD_EVERY_S", 0.0)
    log, other, seen, refused = world.log(), world.log(), [], []
    for n in range(3):
        world.put(log, (f"{n}", n), ("x", n))

    def look(*_):
        seen.append(locks.split_name(other.metadata.read(CompactorKey(world.topic.uuid)).record)[1])
        with pytest.raises(Conflict) as error:
            compact(other)
        refused.append(str(error.value))

    assert compact(log, look).records == 4
    assert ("reading 6 of 6 records" in seen, "writing 4 of 4 records" in seen) == (True, True)
    assert all(f"({progress})" in text for progress, text in zip(seen, refused, strict=True))
    assert other.metadata.read(CompactorKey(world.topic.uuid)) is None


def test_a_compaction_whose_progress_cannot_be_told_goes_on(world, monkeypatch):
    monkeypatch.setattr(locks, "_TOLD_EVERY_S", 0.0)

    def away(*_):
        raise Unavailable("nobody answers")

    monkeypatch.setattr(locks.Ephemeral, "put", away)
    log = world.log()
    world.put(log, ("a", 1), ("a", 2))
    assert compact(log).records == 1


@pytest.mark.parametrize("rate", [0, -1.5, float("nan"), "fast"])
@pytest.mark.parametrize("which", ["read_rate", "write_rate"])
def test_a_rate_that_is_none_is_refused_before_anything_is_done(world, rate, which):
    log = world.log()
    world.put(log, ("a", 1))
    with pytest.raises(InvalidInput, match=rf"LEDGER_INVALID_INPUT.*{which} is .*above 0"):
        compact(log, **{which: rate})
    assert (len(world.files()), log.refresh(sync=True).head.generation) == (1, None)


def test_a_compactor_with_an_old_picture_leaves_no_lock_behind(world):
    faults = Faults()
    with compaction.compacting(world.log(faults)):
        faults.next_read("stale")
    with compaction.compacting(world.log()):
        pass


KEYS = {
    pa.int64(): [1, -5, 2**60],
    pa.binary(): [b"", b"a", b"\xff"],
    pa.bool_(): [True, False],
    pa.date32(): [datetime.date(2026, 1, 1), datetime.date(1969, 1, 1)],
    pa.timestamp("us", "UTC"): [
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
    ],
    pa.decimal128(20, 2): [decimal.Decimal("1.10"), decimal.Decimal("-7.00")],
    pa.float64(): [0.5, -1.0],
}


@pytest.mark.parametrize("kind", KEYS, ids=str)
@pytest.mark.parametrize("spill", [1, 1 << 20])
def test_a_key_may_be_of_any_type_that_is_a_single_value(tmp_path, monkeypatch, kind, spill):
    monkeypatch.setattr(fold, "_SPILL_ROWS", spill)
    monkeypatch.setattr(fold, "_MERGE_ROWS", 1)
    schema = pa.schema([("k", kind), ("v", pa.int64())])
    world = World(tmp_path)
    world.topic = topics.create_topic(world.metadata(), "typed", schema, key="k", storage=world.storage)
    log = world.log()
    for value in range(3):
        writer = EntryWriter(log.storage, world.topic.uuid, 0, schema)
        writer.write(pa.RecordBatch.from_pylist([{"k": key, "v": value} for key in KEYS[kind]], schema=schema))
        protocol.append(log, StagedBatch(log.clock.new_id(), (writer.close(),), schema))
    assert compact(log).records == len(KEYS[kind])
    view = log.refresh(sync=True)
    pieces = state_slices(log, view, EARLIEST, view.head.end)
    rows = [
        row for p in pieces for r in read_slice(log.storage, log.topic.uuid, p, schema) for row in r.batch.to_pylist()
    ]
    assert rows == [{"k": key, "v": 2} for key in KEYS[kind]]


@pytest.mark.parametrize("kind", [pa.struct([("a", pa.int64())]), pa.list_(pa.int64()), pa.null()], ids=str)
def test_a_version_that_cannot_be_compared_is_refused_when_the_topic_is_made(tmp_path, kind):
    metadata = World(tmp_path).metadata()
    with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_OPTION.*versionColumn 'n' is of type .*single value"):
        topics.create_topic(metadata, "x", pa.schema([("k", pa.string()), ("n", kind)]), key="k", version_column="n")
    with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_OPTION.*versionColumn 'k' is the key"):
        topics.create_topic(metadata, "x", SCHEMA, key="k", version_column="k")
    assert topics.list_topics(metadata) == ["t"]


def test_a_key_whose_version_is_not_a_number_is_not_lost(tmp_path):
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("n", pa.float64())])
    world = World(tmp_path)
    world.topic = topics.create_topic(world.metadata(), "x", schema, key="k", version_column="n", storage=world.storage)
    log = world.log()
    nan = float("nan")
    writer = EntryWriter(log.storage, world.topic.uuid, 0, schema)
    rows = [("a", 1, nan), ("a", 2, 0.5), ("a", 3, nan), ("b", 4, nan), ("c", 5, None), ("c", 6, nan)]
    writer.write(pa.RecordBatch.from_pylist([dict(zip("kvn", row, strict=True)) for row in rows], schema=schema))
    protocol.append(log, StagedBatch(log.clock.new_id(), (writer.close(),), schema))
    view = log.refresh(sync=True)
    pieces = state_slices(log, view, EARLIEST, view.head.end)
    found = [
        r.batch.column("v").to_pylist() for p in pieces for r in read_slice(log.storage, log.topic.uuid, p, schema)
    ]
    assert found == [[2, 4, 6]]


def test_progress_is_told_and_rates_are_kept(tmp_path):
    world = Keyed(tmp_path, clock=SeededClock())
    log = world.log()
    world.put(log, *[(f"k{n}", n) for n in range(100)])
    told = []
    before = world.clock.monotonic()
    compact(log, lambda *step: told.append(step), read_rate=10, write_rate=20)
    assert told == [("reading", 100, 100), ("writing", 100, 100)]
    assert world.clock.monotonic() - before == pytest.approx(10 + 5)


def test_tombstones_go_when_every_reader_is_past_them_and_not_before(world):
    log = world.log()
    world.put(log, ("a", 1), ("b", 1))
    CursorNode(world.log(), "slow").ensure("earliest")
    world.put(log, ("a", None))

    def compact_often():
        for value in range(4):
            world.put(log, ("b", value))
            compact(log)
            gc.collect(world.log())
        return newest(log, log.refresh(sync=True))

    assert (compact_often().records, newest(log, log.view()).tombstones_from) == (2, EARLIEST)
    CursorHandle(world.log(), "slow").clear_backlog()
    pin = Pinned(world.log())
    pin.move(newest(log, log.view()).number, Position(0, 1, 0))  # a running reader that may have seen a
    assert compact_often().records == 2
    pin.release()
    generation = compact_often()
    assert generation.records == 1  # b alone
    assert generation.tombstones_from > Position(0, 1, 0)


def test_every_tombstone_stays_while_the_first_generation_can_be_read(world):
    """Readers that began before it have read the log alone: no generation says how far they had come."""
    log = world.log()
    world.put(log, ("a", 1))
    world.put(log, ("a", None))
    for value in range(5):
        world.put(log, ("b", value))
        assert compact(log).tombstones_from == EARLIEST
    gc.collect(world.log())
    world.put(log, ("b", 5))
    assert compact(log).tombstones_from == EARLIEST
    gc.collect(world.log())
    assert 1 not in kept_numbers(world)
    world.put(log, ("b", 6))
    assert compact(log).tombstones_from > Position(0, 2, 0)


def without_the_first_generation(world: Keyed, log: Log) -> None:
    for value in range(4):
        world.put(log, ("b", value))
        compact(log)
        gc.collect(world.log())
    assert 1 not in kept_numbers(world)


def test_who_reads_the_oldest_generation_that_is_kept_finds_every_deletion_after_it_I9(world):
    """It may have stopped, and have neither a subscription nor a pin."""
    log = world.log()
    without_the_first_generation(world, log)
    oldest = kept_numbers(world, of=lambda generation: generation.horizon)[0]
    world.put(log, ("a", 1), ("a", None))
    assert compact(log).tombstones_from <= oldest


def test_what_a_generation_has_dropped_no_later_one_claims_to_have_I9_I10(world):
    log = world.log()
    without_the_first_generation(world, log)
    world.put(log, ("a", 1))
    dropped = compact(log).tombstones_from
    CursorNode(world.log(), "new").ensure("earliest")
    world.put(log, ("a", 2))
    assert EARLIEST < dropped <= compact(log).tombstones_from


def test_an_interrupted_compaction_leaves_nothing_behind(world, monkeypatch):
    monkeypatch.setattr(compacted, "BATCH_ROWS", 2)
    monkeypatch.setattr(compacted, "FILE_ROWS", 4)
    log = world.log()
    for value in range(8):
        world.put(log, (f"k{value}", value), (f"l{value}", value))
    before = world.files()

    def interrupt(phase, done, total):
        if phase == "writing" and done >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact(log, interrupt)
    assert (world.files(), log.refresh(sync=True).head.generation) == (before, None)


def test_masked_duplicates_are_not_part_of_the_state(tmp_path):
    world = World(tmp_path, schema=IDS)
    world.topic = topics.create_topic(world.metadata(), "ids", IDS, key="note", storage=world.storage)
    log = world.log()
    append_ids(log, [[("a", 1)]], "x")
    append_ids(log, [[("a", 2), ("a", 1)]], "y")  # the second row is masked
    append_ids(log, [[("a", 2)], [("b", 1)]], "x")
    compact(log)
    view = log.refresh(sync=True)
    pieces = ReadSource(log, view, newest(log, view)).slices(EARLIEST, view.head.end)
    rows = [row for p in pieces for r in read_slice(log.storage, log.topic.uuid, p, IDS) for row in r.batch.to_pylist()]
    assert [(row["note"], row["who"], row["seq"]) for row in rows] == [("y", "a", 2), ("x", "b", 1)]


def test_records_from_before_a_column_was_added_are_compacted_too(world):
    log = world.log()
    world.put(log, ("a", 1), ("b", 1))
    compact(log)
    wider = pa.schema([*SCHEMA, pa.field("extra", pa.string())])
    writer = EntryWriter(log.storage, world.topic.uuid, log.view().head.gc_epoch, wider)
    rows = [{"k": "b", "v": None, "version": None, "extra": "x"}, {"k": "a", "v": None, "version": None, "extra": None}]
    writer.write(pa.RecordBatch.from_pylist(rows, schema=wider))
    protocol.append(log, StagedBatch(log.clock.new_id(), (writer.close(),), wider, merge_schema=True))
    compact(log)
    view = log.refresh(sync=True)
    found = [
        row
        for piece in state_slices(log, view, EARLIEST, view.head.end)
        for rows in read_slice(log.storage, log.topic.uuid, piece, wider)
        for row in rows.batch.to_pylist()
    ]
    assert found == [{"k": "b", "v": None, "version": None, "extra": "x"}]  # a is gone, b is not: extra is a value


def test_a_topic_without_a_key_or_with_a_nested_one_is_refused(tmp_path):
    world = World(tmp_path)
    log = world.log()
    forget(log, "p")
    assert compact(log) is None
    append(log, 1)
    with pytest.raises(InvalidInput, match=r"LEDGER_NOT_COMPACTABLE.*keyColumn"):
        compact(log)


def test_a_position_is_found_by_binary_search_in_several_files(world, monkeypatch):
    monkeypatch.setattr(compacted, "BATCH_ROWS", 2)
    monkeypatch.setattr(compacted, "FILE_ROWS", 4)
    log = world.log()
    for value in range(12):
        world.put(log, (f"k{value}", value), ("x", value))
    generation = compact(log)
    ledger = CompactedLedger(log.files, generation)
    assert len(files_of(log.files, generation.manifest)) == 4
    everything = compacted_read(log)
    positions = [position for position, _, _ in everything]
    assert positions == sorted(positions)
    for start in [*positions, EARLIEST, Position(0, 2, 1), Position(9, 9, 9), generation.horizon]:
        found = rows_of(log, ledger.slices(start, generation.horizon, EARLIEST))
        assert found == [row for row in everything if row[0] >= start]
        before = rows_of(log, ledger.slices(EARLIEST, start, EARLIEST))
        assert before == [row for row in everything if row[0] < start]
    for piece in ledger.slices(EARLIEST, generation.horizon, EARLIEST):
        for row in range(piece.all_rows + 1):
            after = ledger.position(piece, row)
            left = rows_of(log, ledger.slices(after, generation.horizon, EARLIEST))
            assert len(left) == len(everything) - before_row(ledger, piece, row)


def before_row(ledger, piece, row):
    return (
        sum(p.all_rows for p in ledger.slices(EARLIEST, Position(99, 0, 0), EARLIEST) if p.number < piece.number) + row
    )


# -- random histories ------------------------------------------------------------------------------------------------

KEY = st.one_of(st.none(), st.sampled_from("abc"))
ROW = st.tuples(KEY, st.one_of(st.none(), st.integers(0, 9)), st.one_of(st.none(), st.integers(0, 3)))
ACT = st.one_of(
    st.lists(ROW, min_size=1, max_size=5),
    st.just("compact"),
    st.just("read"),
    st.just("gc"),
    st.sampled_from(["dies before", "dies after"]),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(ACT, max_size=25))
def test_a_compacted_read_ends_with_the_map_of_a_full_read_and_a_live_one_sees_every_deletion_I9(
    tmp_path_factory, acts
):
    world = Keyed(tmp_path_factory.mktemp("w"), limits=EAGER)
    log = world.log()
    live, position, base = {}, None, EARLIEST
    pin = Pinned(world.log())
    horizons = [EARLIEST]
    for act in acts:
        if act == "compact":
            compact(world.log())
            generation = world.log().view().head.generation
            if generation:
                assert generation.horizon >= horizons[-1], "I10"
                horizons.append(generation.horizon)
        elif act == "gc":
            gc.collect(world.log())
        elif act in ("dies before", "dies after"):
            dying(world, publication=2, applied=act == "dies after")
        elif act == "read":  # a live reader goes on, over whatever generations there are by now
            view = log.refresh(sync=True)
            generation = newest(log, view)
            if position is None:
                base = generation.horizon if generation else EARLIEST
            elif generation and generation.tombstones_from > max(position, base):
                continue  # it came too late: a query says so and stops
            source = ReadSource(log, view, generation, base)
            for _, key, value in rows_of(log, source.slices(position or EARLIEST, view.head.end)):
                if key is not None:
                    live.pop(key, None)
                    if value is not None:
                        live[key] = value
            position = view.head.end
            if generation:
                pin.move(generation.number, max(position, base))
            assert live == state(full_read(log))[0], "I9: a live reader sees every deletion of a key it saw"
        else:
            world.put(log, *[(key, value, None) for key, value, _ in act])
    assert state(compacted_read(log)) == state(full_read(log)), "I9"
    assert table(log) == state(full_read(log))[0]


def dying(world, *, publication, applied):
    """A compactor that dies at its second transaction, the publication, if it comes that far."""
    faults = Faults()
    faults.crash_at(publication, applied=applied)
    log = world.log(faults)
    with contextlib.suppress(Crash):
        compact(log)
    faults._crash_at = None
    log.metadata.close()


def table(log):
    """The topic as a table: folded to its end without writing anything."""
    view = log.refresh(sync=True)
    found = rows_of(log, state_slices(log, view, EARLIEST, view.head.end))
    keyed = [key for _, key, _ in found if key is not None]
    assert len(keyed) == len(set(keyed)), "each key once"
    return {key: value for _, key, value in found if key is not None}


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(ACT, max_size=20))
@example([[("a", 1, 3)], "read", [("a", None, None), ("a", 2, 1)], "compact", "read"])
def test_with_a_version_column_the_highest_version_since_the_last_tombstone_wins_I9(tmp_path_factory, acts):
    world = Keyed(tmp_path_factory.mktemp("w"), version_column="version", limits=EAGER)
    log = world.log()
    wanted: dict[str, tuple[int, int]] = {}
    live: dict[str, tuple[int, int]] = {}
    position, base, pin = None, EARLIEST, Pinned(world.log())
    for act in acts:
        if act == "compact":
            compact(world.log())
        elif act == "read":  # a live reader that folds by version, over whatever generations there are by now
            view = log.refresh(sync=True)
            generation = newest(log, view)
            base = generation.horizon if position is None and generation else base
            if generation and generation.tombstones_from > max(position or EARLIEST, base):
                continue
            source = ReadSource(log, view, generation, base)
            for piece in source.slices(position or EARLIEST, view.head.end):
                for rows in read_slice(log.storage, log.topic.uuid, piece, SCHEMA):
                    for row in rows.batch.to_pylist():
                        by_version(live, row["k"], row["v"], row["version"])
            position = view.head.end
            if generation:
                pin.move(generation.number, max(position, base))
            assert live == wanted, "I9: a live reader learns that versions count anew"
        elif act == "gc":
            gc.collect(world.log())
        elif act in ("dies before", "dies after"):
            dying(world, publication=2, applied=act == "dies after")
        else:
            world.put(log, *act)
            for row in act:
                by_version(wanted, *row)
    assert table(log) == {key: value for key, (value, _) in wanted.items()}


def by_version(state, key, value, version):
    """What one record does to a map of the best versions."""
    rank = -1 if version is None else version
    if key is not None and value is None:
        state.pop(key, None)
    elif key is not None and rank >= state.get(key, (0, -1))[1]:
        state[key] = (value, rank)
