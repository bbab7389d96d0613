"""ZooKeeper is rolled back to an older state while processes live on: they notice before anything is overwritten (I18),
who had been told "done" is told of the loss, and nobody writes until the topic is repaired."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import DataLoss, InvalidInput
from pyspark_ledger.lifecycle import gc, repair, retention, subscriptions, termination
from pyspark_ledger.log import policies, seal
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.policies import UNCHANGED
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.port import Delete, PartKey, TipKey
from pyspark_ledger.metadata.records import SetBack
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults
from tests.support import histories
from tests.support.rollback import restore, snapshot
from tests.support.worlds import SCHEMA, SMALL, World, append, read, stage

LONG = replace(SMALL, commits_per_ledger=8)
set_back = pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*rolled back")


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path, limits=LONG)


def lose(world: World, log: Log, *numbers: int) -> None:
    """Appends, and loses what was appended."""
    backup = snapshot(world.server)
    for number in numbers:
        append(log, number)
    restore(world.server, backup)


def test_an_idle_writer_does_not_put_a_lost_head_over_the_new_one_I18(world):
    """The version and the commit's number fit again: only the tip tells."""
    survivor = world.log()
    append(survivor, 1)
    lose(world, survivor, 2)
    append(world.log(), 30)
    with set_back:
        append(survivor, 4)
    assert world.read() == [1, 30]


def test_lost_commits_do_not_come_back_with_a_seal_I18(world):
    survivor = world.log()
    append(survivor, 1)
    lose(world, survivor, 30, 40)
    for number in (2, 3, 4):
        append(world.log(), number)
    with set_back:
        survivor.refresh(sync=True)
    assert world.read() == [1, 2, 3, 4]


def test_a_reader_that_has_seen_a_lost_commit_is_told(world):
    writer, reader = world.log(), world.log(watch=True)
    append(writer, 1)
    backup = snapshot(world.server)
    append(writer, 2)
    assert [n for n, _ in read(reader)] == [1, 2]
    restore(world.server, backup)
    append(world.log(), 3)
    append(world.log(), 4)
    with set_back:
        list(read(reader))


@pytest.mark.parametrize("ledgers", [1, 2])
def test_a_loss_is_noticed_over_sealed_ledgers_too(world, ledgers):
    survivor = world.log()
    append(survivor, 1)
    lose(world, survivor, 2)
    for number in range(10, 10 + ledgers * 8 + 3):
        append(world.log(), number)
    with set_back:
        survivor.refresh()


def test_who_has_seen_nothing_of_what_was_lost_goes_on(world):
    writer, bystander = world.log(), world.log()
    append(writer, 1)
    assert bystander.refresh().head.records == 1
    lose(world, writer, 2)
    append(world.log(), 3)
    append(bystander, 4)
    assert world.read() == [1, 3, 4]


def test_a_thread_that_reads_while_another_one_does_notices_no_rollback(world, monkeypatch):
    """Threads may share what holds a log. If one took what the other has read meanwhile for what was there before, it
    would stop every writer of the topic."""
    log, read_head = world.log(), world.metadata().read
    append(log, 1)

    def slow(key, on_change=None):
        found = read_head(key, on_change)
        monkeypatch.undo()
        append(world.log(), 2)
        assert log.refresh().head.records == 2  # another thread
        return found

    monkeypatch.setattr(log.metadata, "read", slow)
    assert log.refresh().head.records == 1
    assert log.view().head.records == 2, "what is newer stays"
    assert repair.inspect(log) is None


def test_a_schema_of_the_lost_history_is_not_taken_for_another_with_its_id_I18(world):
    survivor = world.log()
    append(survivor, 1)
    backup = snapshot(world.server)
    widen(survivor, "lost")
    assert survivor.schema(1).names == ["n", "lost"]
    restore(world.server, backup)
    widen(world.log(), "new")
    with set_back:
        survivor.refresh()
    repair.accept_loss(world.log())
    survivor.refresh(sync=True)
    widen(survivor, "newer")
    assert survivor.schema(survivor.view().head.schema_id).names == ["n", "new", "newer"]


def widen(log: Log, column: str) -> None:
    wider = log.schema(log.view().head.schema_id).append(pa.field(column, pa.int64()))
    protocol.append(log, StagedBatch(log.clock.new_id(), (stage(log, 1),), wider, merge_schema=True))


def test_a_reader_of_the_lost_history_never_goes_on_past_records_that_it_has_not_seen(world):
    writer, log = world.log(), world.log()
    append(writer, 1)
    backup = snapshot(world.server)
    append(writer, 2)
    reader = Reader(log, "earliest", None)
    records = iter(reader)
    assert [next(records)["n"] for _ in range(2)] == [1, 2]
    restore(world.server, backup)
    for number in (30, 40):
        append(world.log(), number)
    for _ in range(2):
        with set_back:
            log.refresh()
            next(iter(reader))


def test_a_rollback_between_the_reads_of_head_and_commits_is_no_corrupt_data(world, monkeypatch):
    append(world.log(), 1)
    backup = snapshot(world.server)
    append(world.log(), 2)
    reader = world.log()

    def roll_back() -> None:
        restore(world.server, backup)
        append(world.log(), 3)

    before(monkeypatch, reader, "read_many", roll_back)
    assert [n for n, _ in read(reader)] == [1, 3]
    assert reader.view().open_commits[-1].id == reader.view().head.last_commit, "both are of one history"


def lost_epoch(log: Log) -> None:
    gc.collect(log)


def lost_seal(log: Log) -> None:
    for number in range(9):
        append(log, number)


CHANGES = {"a seal": lost_seal, "a gc epoch": lost_epoch}


@pytest.mark.parametrize("what", CHANGES)
def test_a_lost_change_that_is_no_commit_is_noticed_by_who_made_it(tmp_path, what):
    world = World(tmp_path, limits=replace(LONG, gc_grace_ms=0))
    survivor = world.log()
    append(survivor, 1)
    backup = snapshot(world.server)
    CHANGES[what](survivor)
    restore(world.server, backup)
    append(world.log(), 2)
    with set_back:
        append(survivor, 3)


def test_a_commit_whose_answer_is_lost_is_not_taken_for_another_with_its_number_I14(world):
    survivor = world.log()
    append(survivor, 1)
    sent = []
    backup = snapshot(world.server)
    protocol.append(survivor, StagedBatch(b"i" * 16, (stage(survivor, 2),)), sent.append)
    restore(world.server, backup)
    append(world.log(), 3)
    with set_back:
        protocol.resolve(survivor, sent[-1])
    assert world.read() == [1, 3]


def before(monkeypatch, log: Log, call: str, act) -> None:
    """Does something right before the process calls the server in this way the next time."""
    as_before = getattr(log.metadata, call)

    def interrupted(*args):
        monkeypatch.undo()
        act()
        return as_before(*args)

    monkeypatch.setattr(log.metadata, call, interrupted)


@pytest.mark.parametrize("at", ["children", "transact"])
def test_a_sweep_deletes_no_commit_of_a_ledger_that_is_open_again_I18(world, monkeypatch, at):
    """They are in no index yet: without their nodes the topic could not be read any more."""
    sweeper = world.log()
    for number in range(8):
        append(sweeper, number)
    backup = snapshot(world.server)
    monkeypatch.setattr(seal, "sweep", lambda *_: None)
    view = seal.seal(sweeper)
    monkeypatch.undo()
    before(monkeypatch, sweeper, at, lambda: restore(world.server, backup))
    with set_back:
        seal.sweep(sweeper, view)
    assert world.read() == list(range(8))


def test_a_sweep_deletes_nothing_after_another_thread_was_told_of_the_rollback_I18(world, monkeypatch):
    """What was in memory is forgotten with that, and the tip is one of the older history."""
    sweeper = world.log()
    for number in range(8):
        append(sweeper, number)
    backup = snapshot(world.server)
    monkeypatch.setattr(seal, "sweep", lambda *_: None)
    view = seal.seal(sweeper)
    monkeypatch.undo()
    restore(world.server, backup)
    with set_back:
        sweeper.refresh(sync=True)
    seal.sweep(sweeper, view)
    assert world.read() == list(range(8))


def test_a_lost_epoch_is_noticed_although_the_log_has_grown_since_I18(tmp_path):
    world = World(tmp_path, limits=replace(LONG, gc_grace_ms=0))
    survivor = world.log()
    append(survivor, 1)
    backup = snapshot(world.server)
    gc.collect(survivor)
    restore(world.server, backup)
    for number in (2, 3):
        append(world.log(), number)
    with set_back:
        survivor.refresh()


def test_the_note_has_the_most_that_any_process_knows_of_the_lost_history_I18(world):
    append(world.log(), 1)
    early, late, backup = world.log(), world.log(), snapshot(world.server)
    append(early, 2)
    for number in range(10):
        append(late, number)  # seals a ledger
    restore(world.server, backup)
    append(world.log(), 3)
    for survivor in (early, late):
        with set_back:
            survivor.refresh(sync=True)
    assert world.log().view().head.set_back.ledger == 1


# -- until it is repaired -----------------------------------------------------------------------------------------


def noticed(world: World) -> None:
    survivor = world.log()
    append(survivor, 1)
    lose(world, survivor, 2, 3)
    append(world.log(), 4)
    with set_back:
        survivor.refresh(sync=True)


REFUSED = {
    "append": lambda log: append(log, 5),
    "seal": seal.seal,
    "gc": gc.collect,
    "trim": retention.trim,
    "terminate": termination.terminate,
    "evict": subscriptions.enforce_quota,
    "expire": subscriptions.expire,
}


@pytest.mark.parametrize("what", REFUSED)
def test_until_the_repair_nobody_changes_the_topic(world, what):
    noticed(world)
    before, files = world.log().view().head, world.files()
    with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*topics repair t"):
        REFUSED[what](world.log())
    assert world.log().refresh().head == before
    assert what == "append" or world.files() == files


def test_readers_go_on_meanwhile(world):
    noticed(world)
    assert world.read() == [1, 4]


def test_the_note_says_how_far_the_lost_history_had_come(world):
    noticed(world)
    damage = repair.inspect(world.log())
    assert damage.lost_commits == 1  # three commits were known, and there are two again
    assert damage.records == 2
    assert str(damage.end) == "0:2:0"


def test_repair_accepts_the_loss_and_uses_no_number_twice(world):
    noticed(world)
    before = world.log().view().head
    repair.accept_loss(world.log())
    after = world.log().view().head
    append(world.log(), 5)
    assert world.read() == [1, 4, 5]
    assert after.set_back is None
    assert after.ledger >= before.ledger + 1000
    assert after.next_commit >= before.set_back.next_commit + 1000
    assert after.gc_epoch >= before.gc_epoch + 1000
    assert after.token_base > before.tokens
    assert repair.inspect(world.log()) is None
    with pytest.raises(InvalidInput, match="LEDGER_NOTHING_TO_REPAIR"):
        repair.accept_loss(world.log())


def test_a_repair_begins_after_the_most_that_is_known_of_the_lost_history_I18(world):
    append(world.log(), 1)
    noted = SetBack(1, "somebody", "why", next_commit=50_000, ledger=60_000, gc_epoch=70_000, next_token=1 << 50)
    world.log().change_head(lambda head: replace(head, set_back=noted), "a note")
    repair.accept_loss(world.log())
    head = world.log().view().head
    assert (head.next_commit > 50_000, head.ledger > 60_000, head.gc_epoch > 70_000) == (True, True, True)
    assert head.token_base + head.tokens > 1 << 50


def test_a_repair_begins_after_the_epochs_of_files_that_nobody_has_noted_I12_I18(world):
    stage(world.log(), 1, epoch=90_000)
    repair.accept_loss(world.log())
    assert world.log().view().head.gc_epoch > 90_000


def test_a_repair_that_another_one_overtakes_does_nothing_I14(world, monkeypatch):
    noticed(world)
    log = world.log()
    before(monkeypatch, log, "transact", lambda: repair.accept_loss(world.log()))
    repair.accept_loss(log)
    assert world.log().view().head.ledger == world.limits.repair_jump


def test_after_the_repair_a_survivor_is_told_once_and_goes_on(world):
    survivor, other = world.log(), world.log()
    append(survivor, 1)
    backup = snapshot(world.server)
    append(survivor, 2)
    other.refresh(sync=True)
    restore(world.server, backup)
    append(world.log(), 3)
    with set_back:
        append(survivor, 4)
    repair.accept_loss(world.log())
    with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*was repaired since"):
        append(other, 5)
    for log in (survivor, other):
        append(log, 6)
    assert world.read() == [1, 3, 6, 6]


def test_a_repair_whose_answer_is_lost_is_done_once_I14(world):
    noticed(world)
    faults = Faults()
    faults.next_transact("applied_then_lost")
    repair.accept_loss(world.log(faults))
    assert world.log().view().head.ledger == 1000
    append(world.log(), 5)
    assert world.read() == [1, 4, 5]


def test_two_repairs_at_a_time_skip_nothing_that_was_written_after_the_first(world, monkeypatch):
    CursorNode(world.log(), "s").ensure("earliest")
    noticed(world)
    cursor = CursorNode(world.log(), "s")
    cursor.update(lambda now: replace(now, mark_delete=Position(0, 3, 0), ordinal=3))  # it was past the end
    slow = world.log()

    def other_repair() -> None:
        repair.accept_loss(world.log())
        append(world.log(), 5)

    before(monkeypatch, slow, "transact", other_repair)
    repair.accept_loss(slow)
    assert world.read() == [1, 4, 5]
    assert CursorHandle(world.log(), "s").stats().backlog_records == 1


def test_an_epoch_that_gc_begins_meanwhile_is_no_damage(tmp_path, monkeypatch):
    world = World(tmp_path, limits=replace(LONG, gc_grace_ms=0))
    log = world.log()
    append(log, 1)

    def collect() -> None:
        gc.collect(world.log())
        append(world.log(), 2)

    as_before = log.storage.folders

    def slow(folder):
        monkeypatch.undo()
        collect()
        return as_before(folder)

    monkeypatch.setattr(log.storage, "folders", slow)
    assert repair.inspect(log) is None


@pytest.mark.parametrize("then", [(), (5,)], ids=["nothing", "something"])
def test_who_has_seen_a_repaired_topic_is_not_told_of_a_loss_after_the_next_repair_I14(world, then):
    """No commit has the number before the next one then: the last commit is the one before the gap."""
    noticed(world)
    repair.accept_loss(world.log())
    bystander = world.log()
    bystander.refresh()
    world.log().change_head(lambda head: replace(head, set_back=SetBack(0, "somebody", "anything")), "a note")
    repair.accept_loss(world.log())
    for number in then:
        append(world.log(), number)
    append(bystander, 6) if then else bystander.refresh(sync=True)
    assert world.read() == [1, 4, *then, *([6] if then else [])]


def test_who_has_seen_only_what_is_left_is_not_told_because_versions_begin_anew_with_a_repair_I14(tmp_path):
    world = World(tmp_path, limits=replace(LONG, gc_grace_ms=0))
    append(world.log(), 1)
    bystander, writer, backup = world.log(), world.log(), snapshot(world.server)
    for _ in range(5):
        gc.collect(world.log())  # changes the head, and that is lost
    bystander.refresh()
    append(writer, 2)
    restore(world.server, backup)
    with set_back:
        writer.refresh(sync=True)
    repair.accept_loss(world.log())
    append(bystander, 3)
    assert world.read() == [1, 3]


def test_a_rollback_that_comes_after_a_repair_is_not_said_to_be_repaired_I14(tmp_path):
    world = World(tmp_path, limits=replace(LONG, gc_grace_ms=0))
    noticed(world)
    repair.accept_loss(world.log())
    survivor = world.log()
    survivor.refresh()
    backup = snapshot(world.server)
    gc.collect(survivor)
    restore(world.server, backup)
    append(world.log(), 5)
    for _ in range(2):
        with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*topics repair t"):
            append(survivor, 6)
    repair.accept_loss(world.log())
    append(survivor, 7)
    assert world.read() == [1, 4, 5, 7]


@pytest.mark.parametrize("commits", [1, 8], ids=["an append", "a seal"])
def test_a_tip_that_is_missing_is_an_error_by_name_I16(world, commits):
    for number in range(commits):
        append(world.log(), number)
    tip = TipKey(world.topic.uuid, world.log().view().head.last_change)
    world.metadata().transact([Delete(tip)])
    with set_back:
        append(world.log(), 2)


def test_producers_tokens_and_old_files_survive_a_repair(tmp_path):
    world = World(tmp_path, limits=replace(LONG, gc_grace_ms=0))
    survivor = world.log()
    append(survivor, 1, producer="p", batch_id=BatchId(7))
    lose(world, survivor, 2, 3)
    append(world.log(), 4)
    with set_back:
        survivor.refresh(sync=True)
    repair.accept_loss(world.log())
    assert append(world.log(), 1, producer="p", batch_id=BatchId(7)).duplicate
    for number in range(20):
        append(world.log(), number)
        gc.collect(world.log())
    assert world.read() == [1, 4, *range(20)]
    named = {file for file in world.files() if file.endswith(".arrow")}
    assert len(named) < 22 + 30, "files of lost commits are collected in the end"


def test_what_is_named_at_a_repair_is_kept_for_a_grace_after_it_was_replaced_I12(tmp_path):
    """The repair begins an epoch: a backup that was made in it can be restored as long as any other."""
    clock = SeededClock(0)
    world = World(tmp_path, limits=replace(LONG, ledger_age_ms=1 << 60), clock=clock)
    for number in range(9):
        append(world.log(), number)
    noticed(world)
    repair.accept_loss(world.log())
    clock.sleep(25 * 3600)
    backup, before = snapshot(world.server), world.read()
    for number in range(9):
        append(world.log(), number)  # seals a ledger, and so replaces the open node of the index
    gc.collect(world.log())
    restore(world.server, backup)
    assert world.read() == before


def test_a_cursor_from_before_is_read_again_after_a_reconnect_I18(world):
    """Its version is the same as that of another record then."""
    log = world.log()
    for number in range(4):
        append(log, number)
    node = CursorNode(log, "s")
    node._hint = lambda: None  # a hint that the connection is another one may get lost
    node.ensure("earliest")
    backup = snapshot(world.server)
    CursorHandle(log, "s").mark_delete("0:3:0")
    node.refresh()
    restore(world.server, backup)
    CursorHandle(world.log(), "s").mark_delete("0:1:0", {"by": 2})
    log.metadata.reconnect()
    changed = node.update(lambda cursor: replace(cursor, epoch=cursor.epoch + 1))
    assert str(changed.mark_delete) == "0:1:0"


def test_a_part_that_a_rollback_took_along_is_made_again_I16_I18(world):
    log = world.log()
    backup = snapshot(world.server)
    log.ensure_part("tokens")
    restore(world.server, backup)
    log.metadata.reconnect()
    log.ensure_part("tokens")
    assert world.metadata().read(PartKey(world.topic.uuid, "tokens")) is not None


def test_policies_from_before_are_read_again_after_a_reconnect_I18(world):
    log = world.log()
    backup = snapshot(world.server)
    policies.change(log, policies.Changes(False, UNCHANGED, UNCHANGED))
    assert log.policies().record.deduplication is False
    restore(world.server, backup)
    policies.change(world.log(), policies.Changes(UNCHANGED, 5, UNCHANGED))
    log.metadata.reconnect()
    assert log.policies().record.deduplication is None


def test_a_commit_that_was_lost_and_sent_again_is_not_the_one_that_was_seen_before_it_I18(world):
    """It has the same id, because it is the same batch, and an earlier number."""
    log = world.log()
    append(log, 1)
    batch = StagedBatch(b"the same batch".ljust(16), (stage(log, 3),), SCHEMA)
    backup = snapshot(world.server)
    append(log, 2)
    protocol.append(log, batch)
    seen = log.view().head
    restore(world.server, backup)
    fresh = world.log()
    protocol.append(fresh, batch)
    assert fresh.view().head.last_commit == seen.last_commit
    assert not fresh.has_commit(fresh.view(), seen.next_commit - 1, seen.last_commit)


# -- any history --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", histories(20))
def test_whatever_happens_no_acknowledged_record_of_the_new_history_is_lost_I18(tmp_path, seed):
    """Three processes append and seal; once the server is rolled back to any earlier moment. Who notices is told."""
    rng = random.Random(seed)
    world = World(tmp_path, limits=replace(LONG, commits_per_ledger=3), clock=SeededClock(seed))
    logs, backups, acknowledged = [world.log() for _ in range(3)], [(snapshot(world.server), [])], []
    rolled_back = False
    for number in range(30):
        if not rolled_back and rng.random() < 0.1:
            backup, acknowledged = rng.choice(backups)
            acknowledged = list(acknowledged)
            restore(world.server, backup)
            rolled_back = True
        log = rng.choice([*logs, world.log()])
        try:
            append(log, number)
            acknowledged.append(number)
        except DataLoss:
            assert rolled_back, "nobody is told of a loss that did not happen"
            if repair.inspect(world.log()) is not None:  # or it was repaired since, and this one is only told
                repair.accept_loss(world.log())
        backups.append((snapshot(world.server), list(acknowledged)))
        assert world.read() == acknowledged
