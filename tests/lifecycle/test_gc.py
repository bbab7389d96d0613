"""Only gc deletes files, and never one that is named or still can be, now or after a restore (I12)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import Conflict, DataLoss, NotFound
from pyspark_ledger.lifecycle import gc, rewriting
from pyspark_ledger.log import topics
from pyspark_ledger.log.index import Index
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.root import open_root
from pyspark_ledger.metadata.port import GcKey, Put
from pyspark_ledger.metadata.records import SetBack
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata
from tests.support.lifecycle import act_before
from tests.support.rollback import restore, snapshot
from tests.support.worlds import EAGER, SCHEMA, SMALL, World, append, stage

GRACE_S = 100
YEAR_MS = 365 * 24 * 3600 * 1000


@pytest.fixture
def world(tmp_path):
    """Every run of gc raises the epoch."""
    return World(tmp_path, EAGER)


@pytest.fixture
def slow_world(tmp_path):
    """An epoch lasts for the grace, and time passes only when a test says so."""
    return World(tmp_path, replace(SMALL, gc_grace_ms=GRACE_S * 1000), SeededClock(1))


def commit(log: Log, *entries) -> None:
    protocol.append(log, StagedBatch(log.clock.new_id(), entries, SCHEMA))


def epoch(world: World) -> int:
    return world.log().view().head.gc_epoch


def path(world: World, file) -> str:
    return f"{world.topic.uuid}/{file.epoch:08x}/{file.uid.hex()}.arrow"


# -- what is deleted, and what is not -------------------------------------------------------------------------------


def test_what_a_killed_task_left_is_gone_after_three_runs_and_nothing_else(world):
    log = world.log()
    append(log, 1)
    left = path(world, stage(log, 666).file)
    assert [gc.collect(log).files for _ in range(2)] == [(), ()]
    append(log, 2)
    assert gc.collect(log).files == (left,)
    assert left not in world.files()
    assert world.read() == [1, 2]


def test_a_dry_run_says_what_a_run_would_delete_and_changes_nothing(world):
    log = world.log()
    for number in range(9):
        append(log, number)
        stage(log, 666)
        before = (world.files(), world.log().view())
        expected = gc.collect(world.log(), dry_run=True)
        assert (world.files(), world.log().view()) == before
        done = gc.collect(log)
        assert done.files == expected.files
        assert done.epoch == expected.epoch + 1 == epoch(world)
        assert before[0] - world.files() == set(done.files)
    assert done.files


def test_a_slow_batch_is_named_while_gc_runs_I12(world):
    """Staged before gc, committed after one run: its file must still be there."""
    log, slow = world.log(), world.log()
    entry = stage(slow, 5)
    gc.collect(log)
    commit(slow, entry)
    for _ in range(4):
        gc.collect(log)
        assert world.read() == [5]


def test_a_batch_that_was_staged_two_epochs_ago_is_refused_and_its_file_goes(world):
    slow = world.log()
    entry = stage(slow, 5)
    for _ in range(2):
        gc.collect(world.log())
    with pytest.raises(Conflict, match="LEDGER_STAGED_TOO_LONG_AGO"):
        commit(slow, entry)
    gc.collect(world.log())
    assert world.files() == set()


def test_long_lists_index_files_and_snapshots_survive_any_number_of_runs_I12(world):
    log = world.log()
    for number in range(40):
        append(log, number)
        if number % 3 == 0:
            commit(log, stage(log, 100 + number), stage(log, 200 + number), stage(log, 300 + number))
        if number % 5 == 0:
            gc.collect(world.log())
            assert [n for n in world.read() if n < 100] == list(range(number + 1))


def test_a_snapshot_of_the_producers_stays_for_as_long_as_it_is_named_I12(tmp_path):
    world = World(tmp_path, limits=replace(EAGER, inline_producers_bytes=0))
    for number in range(5):  # seals a ledger
        append(world.log(), number, producer=f"p{number}", batch_id=BatchId(7))
    for _ in range(5):
        gc.collect(world.log())
    assert append(world.log(), 0, producer="p0", batch_id=BatchId(7)).duplicate


def test_a_file_that_a_task_staged_long_after_its_epoch_is_deleted_by_the_next_thorough_run(slow_world):
    log, clock = slow_world.log(), slow_world.clock
    for number in range(9):
        append(log, number)
    for _ in range(4):
        clock.sleep(GRACE_S)
        gc.collect(slow_world.log())
    late = path(slow_world, stage(log, 666, epoch=0).file)
    assert gc.collect(slow_world.log(), thorough=True).files == ()  # none is deleted by a run that raises nothing
    clock.sleep(GRACE_S)
    assert late not in gc.collect(slow_world.log(), thorough=False).files  # all references are read for it
    for _ in range(slow_world.limits.gc_thorough_epochs):
        clock.sleep(GRACE_S)
        gc.collect(slow_world.log())  # one of them is thorough
    assert late not in slow_world.files()
    assert slow_world.read() == list(range(9))


def test_gc_leaves_files_that_are_not_ours(world):
    log = world.log()
    sink = world.storage.create(f"{world.topic.uuid}/notes.txt")
    sink.write(b"hello")
    sink.close()
    for _ in range(3):
        gc.collect(log)
    assert f"{world.topic.uuid}/notes.txt" in world.files()


# -- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
def test_a_crash_of_gc_harms_nothing(world, applied):
    log = world.log()
    for number in range(6):
        append(log, number)
    stage(log, 666)
    for _ in range(3):
        faults = Faults()
        faults.crash_at(1, applied=applied)  # the raise: there is no other transaction
        with pytest.raises(Crash):
            gc.collect(world.log(faults))
        assert world.read() == list(range(6))
    for _ in range(3):
        gc.collect(world.log())
    assert world.read() == list(range(6))


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired"])
def test_a_lost_answer_raises_the_epoch_once_I14(world, fault):
    for _ in range(3):
        before = epoch(world)
        faults = Faults()
        faults.next_transact(fault)
        assert gc.collect(world.log(faults)).epoch == before + 1
        world.server.deliver_delayed()
        assert epoch(world) == before + 1


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
    assert heads[-1] == heads[3]
    gc.collect(world.log())
    assert len(world.files()) == 1  # what was left behind is gone


def refuse(_storage, path) -> None:
    raise PermissionError(path)


def test_a_topic_that_is_deleted_meanwhile_is_said_to_be(world, monkeypatch):
    log = world.log()
    for number in range(9):
        append(log, number)
    for _ in range(3):
        gc.collect(log)

    def delete_first(log: Log, view: object, *since: int) -> None:
        topics.delete_topic(world.metadata(), "t")
        for file in world.files():
            world.storage.delete(file)
        return real(log, view, *since)

    real = gc.references
    monkeypatch.setattr(gc, "references", delete_first)
    with pytest.raises(NotFound, match="LEDGER_TOPIC_DELETED"):
        gc.collect(world.log(), thorough=True)


# -- the grace ------------------------------------------------------------------------------------------------------


def test_gc_run_every_second_never_refuses_a_batch_that_takes_less_than_the_grace(slow_world):
    clock, files = slow_world.clock, []
    for begin in range(0, 5 * GRACE_S, 31):
        writer = slow_world.log()
        entry = stage(writer, begin)
        for _ in range(GRACE_S - 1):
            clock.sleep(1)
            gc.collect(slow_world.log())
        commit(writer, entry)
        files.append(begin)
        clock.sleep(31)
    assert slow_world.read() == files
    assert epoch(slow_world) > 5  # gc was not idle


def test_gc_run_all_the_time_never_refuses_such_a_batch_by_the_clock_of_a_real_zookeeper(namespace, storage_root):
    limits = replace(SMALL, gc_grace_ms=4_000)
    metadata = ZooKeeperMetadata(namespace)
    storage = open_root(metadata, storage_root)
    topic = topics.create_topic(metadata, "t", SCHEMA, storage=storage)
    log = Log(metadata, storage, topic, limits=limits)
    collector = Log(metadata, storage, topic, limits=limits)
    for number in range(4):
        entry, started = stage(log, number), SYSTEM_CLOCK.monotonic()
        while SYSTEM_CLOCK.monotonic() - started < 1.5:  # far less than the grace, also on a machine that is busy
            gc.collect(collector)
        commit(log, entry)
    assert log.refresh(sync=True).head.gc_epoch >= 1
    metadata.close()


def test_an_epoch_is_raised_once_in_a_grace_and_never_sooner_whoever_runs_gc(slow_world):
    raised = []
    for second in range(5 * GRACE_S):
        before = epoch(slow_world)
        for _ in range(2):
            gc.collect(slow_world.log())
        raised += [second] * (epoch(slow_world) - before)
        slow_world.clock.sleep(1)
    assert raised == [GRACE_S, 2 * GRACE_S, 3 * GRACE_S, 4 * GRACE_S]


class _Interrupted(MemoryMetadata):
    """Calls somebody else before one of its own calls."""

    before = None

    def _next(self):
        if self.before is not None:
            self.left -= 1
            if self.left == 0:
                hook, self.before = self.before, None
                hook()

    def read(self, key, on_change=None, ahead=None):
        self._next()
        return super().read(key, on_change, ahead)

    def transact(self, ops):
        self._next()
        super().transact(ops)

    def sync(self):
        self._next()
        super().sync()

    def now_ms(self, *, exact=False):
        self._next()
        return super().now_ms(exact=exact)


@pytest.mark.parametrize("pause", [0, GRACE_S, 3 * GRACE_S])
def test_two_gcs_wherever_one_of_them_pauses_raise_once_in_a_grace_and_delete_nothing_that_is_named_I12(
    slow_world, pause
):
    clock, numbers = slow_world.clock, list(range(9))
    for number in numbers:
        append(slow_world.log(), number)
    births = [clock.now_ms()]

    def note() -> None:
        if slow_world.metadata().read(GcKey(slow_world.topic.uuid)).modified_ms != births[-1]:
            births.append(slow_world.metadata().read(GcKey(slow_world.topic.uuid)).modified_ms)

    def rival() -> None:
        for _ in range(max(1, pause // GRACE_S)):
            gc.collect(slow_world.log())
            note()
            append(slow_world.log(), len(numbers))
            numbers.append(len(numbers))
            clock.sleep(min(pause, GRACE_S))

    for step in range(1, 100):
        clock.sleep(GRACE_S)
        stage(slow_world.log(), 666)
        metadata = _Interrupted(slow_world.server, None, clock)
        metadata.before, metadata.left = rival, step
        with suppress(Conflict):  # so slow that others have deleted what it was reading
            gc.collect(Log(metadata, slow_world.storage, slow_world.topic, limits=slow_world.limits, clock=clock))
        note()
        assert slow_world.read() == numbers
        if metadata.before is not None:
            break  # it ended before that step
    assert 8 < step < 99
    assert epoch(slow_world) == len(births) - 1
    assert all(b - a >= GRACE_S * 1000 for a, b in pairwise(births))


@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS])
def test_the_clock_of_the_machine_that_runs_gc_does_not_count(slow_world, off_ms):
    wrong = SeededClock(2, slow_world.clock.now_ms() + off_ms)

    def collect() -> int:
        metadata = MemoryMetadata(slow_world.server, None, wrong)
        log = Log(metadata, slow_world.storage, slow_world.topic, limits=slow_world.limits, clock=wrong)
        return gc.collect(log).epoch

    assert collect() == 0
    slow_world.clock.sleep(GRACE_S - 1)
    wrong.sleep(10 * GRACE_S)
    assert collect() == 0
    slow_world.clock.sleep(1)
    assert [collect(), collect()] == [1, 1]


def test_a_clock_of_zookeeper_that_was_a_year_ahead_does_not_stop_gc_for_a_year(slow_world):
    clock = slow_world.clock
    clock.sleep(YEAR_MS / 1000)
    assert gc.collect(slow_world.log()).epoch == 1
    clock.sleep(-YEAR_MS / 1000)
    assert gc.collect(slow_world.log(), dry_run=True).epoch == 1
    assert gc.collect(slow_world.log()).epoch == 1
    clock.sleep(GRACE_S - 1)
    assert gc.collect(slow_world.log()).epoch == 1
    clock.sleep(1)
    assert gc.collect(slow_world.log()).epoch == 2


def test_only_a_run_that_raises_the_epoch_reads_references(slow_world):
    for number in range(30):
        append(slow_world.log(), number)
    read = []
    for _ in range(8):
        slow_world.clock.sleep(GRACE_S / 2)
        log = slow_world.log()
        fetched: list[object] = []
        log.files.fetch_table = lambda ref, real=log.files.fetch_table, into=fetched: (into.append(ref), real(ref))[1]
        gc.collect(log, thorough=True)
        read.append(len(fetched))
    assert read[:4] == [0] * 4  # no file is old enough
    assert read[4::2] == [0, 0]
    assert min(read[5::2]) > 0


def test_what_was_replaced_is_deleted_when_that_was_longer_ago_than_the_grace_and_not_sooner(slow_world):
    """A seal replaces the open node of the index."""
    clock, replaced_at = slow_world.clock, {}
    log, number, longest = slow_world.log(), 0, 0.0
    for _ in range(60):
        named = {path(slow_world, ref) for ref in log.refresh(sync=True).head.index}
        for _ in range(3):
            append(log, number := number + 1)
        for file in named - {path(slow_world, ref) for ref in Index(log.files, log.view().head.index).references(0)}:
            replaced_at[file] = clock.monotonic()
        clock.sleep(GRACE_S / 7)
        for file in replaced_at.keys() & set(gc.collect(slow_world.log()).files):
            age = clock.monotonic() - replaced_at.pop(file)
            assert age >= GRACE_S
            longest = max(longest, age)
    assert 0 < longest <= 4 * GRACE_S
    assert all(clock.monotonic() - when <= 4 * GRACE_S for when in replaced_at.values())


# -- ZooKeeper comes back from an older snapshot ---------------------------------------------------------------------


def test_a_backup_that_is_younger_than_the_grace_reads_the_whole_history_after_seals_and_gcs(slow_world):
    clock, number, backups = slow_world.clock, 0, []
    for _ in range(25):
        for _ in range(3):
            append(slow_world.log(), number := number + 1)
        backups.append((clock.monotonic(), snapshot(slow_world.server), slow_world.read()))
        clock.sleep(GRACE_S / 5)
        gc.collect(slow_world.log())
        now = snapshot(slow_world.server)
        for made, backup, numbers in backups:
            if clock.monotonic() - made < GRACE_S:
                restore(slow_world.server, backup)
                assert slow_world.read() == numbers
                slow_world.log().producers()
        restore(slow_world.server, now)
    assert epoch(slow_world) > 4


def test_a_file_of_a_later_epoch_stops_gc(world):
    log = world.log()
    stage(log, 1, epoch=50)
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        gc.collect(log)


def test_a_file_that_is_staged_in_a_new_epoch_while_gc_lists_the_files_is_no_rollback(world, monkeypatch):
    real = type(world.storage).folders

    def raised_meanwhile(storage, folder):
        monkeypatch.setattr(type(world.storage), "folders", real)
        gc.collect(world.log())
        stage(world.log(), 666)
        return real(storage, folder)

    monkeypatch.setattr(type(world.storage), "folders", raised_meanwhile)
    assert gc.collect(world.log()).epoch == 2


def test_a_refused_run_changes_nothing_so_that_the_next_one_is_refused_too_I18(world):
    """The files of later epochs are the only evidence of what was lost."""
    append(world.log(), 1)
    gc.collect(world.log())
    backup = snapshot(world.server)
    for number in range(3):
        append(world.log(), 100 + number)
        gc.collect(world.log())
    append(world.log(), 200)
    restore(world.server, backup)
    files, head = world.files(), world.log().view().head
    for dry_run in (True, *[False] * 8):
        with pytest.raises(DataLoss, match="rolled back to an older state"):
            gc.collect(world.log(), dry_run=dry_run)
        assert (world.log().view().head == head) == dry_run
    assert world.files() == files
    now = world.log().view().head
    assert now.set_back.gc_epoch == 4
    assert replace(now, set_back=None, last_change=b"", operations=()) == replace(head, last_change=b"", operations=())
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        append(world.log(), 300)


# -- what comes between the judgement and the raise ------------------------------------------------------------------


def before_it_writes(log: Log, rival) -> None:
    transact = log.metadata.transact

    def overtaken(ops):
        log.metadata.transact = transact
        rival()
        transact(ops)

    log.metadata.transact = overtaken


def test_an_epoch_whose_birth_was_written_anew_meanwhile_is_not_raised_I12(slow_world):
    """As a gc does that finds ZooKeeper's clock set back."""
    world = slow_world
    log, key = world.log(), GcKey(world.topic.uuid)
    world.clock.sleep(2 * GRACE_S)

    def written_anew() -> None:
        node = world.metadata().read(key)
        world.metadata().transact([Put(key, node.record, node.version)])

    before_it_writes(log, written_anew)
    assert gc.collect(log).epoch == epoch(world) == 0


def test_a_gc_that_paused_does_not_raise_an_epoch_that_it_has_not_judged_I12(slow_world):
    log, clock = slow_world.log(), slow_world.clock
    clock.sleep(GRACE_S)
    before_it_writes(log, lambda: (gc.collect(slow_world.log()), clock.sleep(GRACE_S)))
    assert gc.collect(log).epoch == epoch(slow_world) == 1


def test_a_rollback_that_is_noticed_while_gc_works_stops_it_I18(world):
    log, noted = world.log(), SetBack(1, "somebody", "its head is older than it was before")
    before_it_writes(log, lambda: world.log().change_head(lambda head: replace(head, set_back=noted), "a note"))
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        gc.collect(log)
    assert epoch(world) == 0


@pytest.mark.parametrize("every", [2, 3, 5, 7])
def test_nodes_of_every_level_of_the_index_stay_whenever_gc_runs_I12(tmp_path, every):
    """A seal stages nodes above the lowest that do not contain the ledger that it seals."""
    world = World(tmp_path, replace(EAGER, commits_per_ledger=1, index_fanout=2))
    for number in range(40):
        append(world.log(), number)
        if number % every == 0:
            gc.collect(world.log(), thorough=False)
    for _ in range(3):
        gc.collect(world.log(), thorough=False)
    assert world.read() == list(range(40))


@pytest.mark.parametrize("step", range(1, 12))
def test_a_run_that_was_paused_for_days_says_so_and_not_that_a_file_is_lost(world, step):
    """Others have deleted what it was still to read: the lists of what is kept for a while, for example."""
    for number in range(9):
        append(world.log(), number)
    rewriting.rewrite(world.log())
    log = world.log()
    act_before(log, step, lambda: [gc.collect(world.log()) for _ in range(4)])
    with suppress(Conflict):
        gc.collect(log)
    assert world.read() == list(range(9))
