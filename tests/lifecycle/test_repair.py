"""After a rollback of ZooKeeper a topic goes on with what storage has, if nothing was committed since; otherwise it is
said what is lost, and where the two histories part."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import DataLoss, InvalidInput
from pyspark_ledger.lifecycle import gc, repair, retention
from pyspark_ledger.log import policies, root, snapshots
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.policies import Changes
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support.recovery import dying
from tests.support.rollback import restore, snapshot
from tests.support.worlds import SMALL, World, append, read

LIMITS = replace(SMALL, commits_per_ledger=6, gc_grace_ms=0)
set_back = pytest.raises(DataLoss, match="LEDGER_SET_BACK")


class Marked(World):
    """A world in a namespace: so there are snapshots in its storage."""

    def __init__(self, folder) -> None:
        super().__init__(folder, limits=LIMITS)
        self.storage = root.open_root(self.metadata(), str(folder))


@pytest.fixture
def world(tmp_path) -> Marked:
    return Marked(tmp_path)


def rolled_back(world: Marked, before: int = 2, lost: int = 3) -> Log:
    """Commits, of which storage has a snapshot, are lost. Returns a process that has seen them."""
    survivor = world.log()
    for number in range(before):
        append(survivor, number, producer=f"p{number}", batch_id=BatchId(number))
    backup = snapshot(world.server)
    for number in range(before, before + lost):
        append(survivor, number, producer=f"p{number}", batch_id=BatchId(number))
    snapshots.leave(survivor)
    restore(world.server, backup)
    return survivor


@pytest.mark.parametrize("lost", [1, 3, 9], ids=["one", "some", "a ledger"])
def test_what_storage_has_is_brought_back_I1_I18(world, lost):
    survivor = rolled_back(world, lost=lost)
    damage = repair.inspect(world.log())
    assert (damage.records, damage.later.records, damage.later.why_not) == (2, lost, "")
    assert (damage.later.first_commit, damage.later.last_commit) == (2, lost + 1)
    repair.bring_back(world.log())
    assert world.read() == list(range(2 + lost))
    assert repair.inspect(world.log()) is None
    append(survivor, 100)
    assert world.read() == [*range(2 + lost), 100], "who has seen them goes on, and is told of no loss"


@pytest.mark.parametrize("changes", range(6))
def test_a_writer_of_the_lost_commits_goes_on_whatever_version_its_head_has_I18(world, changes):
    """By accident it may be the version that the head has again: only the tip is another one."""
    survivor = rolled_back(world)
    repair.bring_back(world.log())
    for _ in range(changes):
        policies.change(world.log(), Changes(deduplication=True))
        world.log().change_head(lambda head: head, "nothing")
    append(survivor, 100)
    assert world.read() == [0, 1, 2, 3, 4, 100]


def test_positions_stay_and_a_batch_that_is_sent_again_is_recognised_I1_I5(world):
    writer = world.log()
    append(writer, 0)
    backup = snapshot(world.server)
    append(writer, 1, producer="p", batch_id=BatchId(7))
    snapshots.leave(writer)
    before = list(read(world.log()))
    restore(world.server, backup)
    repair.bring_back(world.log())
    assert append(world.log(), 1, producer="p", batch_id=BatchId(7)).duplicate
    assert list(read(world.log())) == before


def test_no_number_is_used_again_I1_I18(world):
    survivor = rolled_back(world)
    before = survivor.view().head
    repair.bring_back(world.log())
    after = world.log().view().head
    assert after.ledger >= before.ledger + LIMITS.repair_jump
    assert after.next_commit == after.repaired >= before.next_commit + LIMITS.repair_jump
    assert after.gc_epoch >= before.gc_epoch + LIMITS.repair_jump
    assert after.token_base + after.tokens >= before.tokens + LIMITS.repair_token_jump


def test_who_has_seen_more_than_storage_has_is_told_once(world):
    survivor = world.log()
    append(survivor, 0)
    backup = snapshot(world.server)
    append(survivor, 1)
    snapshots.leave(survivor)
    append(survivor, 2)
    restore(world.server, backup)
    repair.bring_back(world.log())
    assert world.read() == [0, 1]
    with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*repaired since"):
        append(survivor, 3)
    append(survivor, 3)
    assert world.read() == [0, 1, 3]


def test_two_histories_are_not_mixed_and_it_is_said_where_they_part_I18(world):
    rolled_back(world, before=3)
    append(world.log(), 100)
    before = world.log().view().head
    damage = repair.inspect(world.log())
    assert (damage.later.first_commit, damage.later.records) == (3, 3)
    assert "commit 3" in damage.later.why_not
    with pytest.raises(InvalidInput, match=r"LEDGER_NOT_BROUGHT_BACK.*commit 3"):
        repair.bring_back(world.log())
    assert world.log().view().head == before
    repair.accept_loss(world.log())
    append(world.log(), 101)
    assert world.read() == [0, 1, 2, 100, 101]
    assert repair.inspect(world.log()) is None


def test_a_commit_that_is_made_during_the_repair_is_not_lost_I1_I18(world, monkeypatch):
    rolled_back(world)
    log = world.log()
    transact = log.metadata.transact

    def slow(ops):
        monkeypatch.undo()
        append(world.log(), 100)
        return transact(ops)

    monkeypatch.setattr(log.metadata, "transact", slow)
    with pytest.raises(InvalidInput, match="LEDGER_NOT_BROUGHT_BACK"):
        repair.bring_back(log)
    assert world.read() == [0, 1, 100]


def test_the_loss_can_be_accepted_instead_and_old_snapshots_do_not_matter_any_more(world):
    survivor = rolled_back(world)
    known = survivor.view().head.next_commit
    repair.accept_loss(world.log())
    assert world.log().view().head.next_commit >= known + LIMITS.repair_jump
    assert repair.inspect(world.log()) is None
    for number in range(20):
        append(world.log(), number)
        gc.collect(world.log())
    assert world.read() == [0, 1, *range(20)]


def test_what_came_after_an_earlier_repair_is_brought_back_over_the_gap_that_it_left_I1(world):
    rolled_back(world)
    repair.accept_loss(world.log())
    log, backup = world.log(), snapshot(world.server)
    append(log, 7)
    snapshots.leave(log)
    restore(world.server, backup)
    repair.bring_back(world.log())
    assert world.read() == [0, 1, 7]


@pytest.mark.parametrize("how", [repair.accept_loss, repair.bring_back])
def test_who_has_repaired_goes_on_with_an_empty_ledger_and_leaves_a_snapshot_of_it_I4(world, how):
    rolled_back(world)
    log = world.log()
    how(log)
    assert log.view().open_commits == ()
    [*_, newest] = snapshots.listed(world.storage, world.topic.uuid)
    left = snapshots.read(world.storage, newest)
    assert (left.commits, left.head.ledger) == ((), log.view().head.ledger)
    append(log, 7)
    assert world.read()[-1] == 7


def test_a_damaged_snapshot_is_passed_over_and_the_one_before_it_is_brought_back(world):
    survivor = world.log()
    append(survivor, 0)
    backup = snapshot(world.server)
    for number in (1, 2):
        append(survivor, number)
        snapshots.leave(survivor)
    newest = snapshots.listed(world.storage, world.topic.uuid)[-1]
    world.storage.delete(newest.path)
    world.storage.write(newest.path, b"torn")
    restore(world.server, backup)
    assert repair.bring_back(world.log()).later.last_commit == 1
    assert world.read() == [0, 1]


def test_a_repair_begins_after_commits_that_only_the_name_of_a_damaged_file_shows_I18(world):
    survivor = rolled_back(world)
    known = survivor.view().head.next_commit
    for found in snapshots.listed(world.storage, world.topic.uuid):
        world.storage.delete(found.path)
        world.storage.write(found.path, b"torn")
    repair.accept_loss(world.log())
    assert world.log().view().head.next_commit >= known + LIMITS.repair_jump


def test_without_anything_in_storage_only_the_loss_can_be_accepted(world):
    survivor = world.log()
    append(survivor, 0)
    backup = snapshot(world.server)
    append(survivor, 1)
    restore(world.server, backup)
    with set_back:
        survivor.refresh(sync=True)
    assert repair.inspect(world.log()).later is None
    with pytest.raises(InvalidInput, match=r"LEDGER_NOT_BROUGHT_BACK.*accept the loss"):
        repair.bring_back(world.log())
    repair.accept_loss(world.log())


def test_a_subscription_is_delivered_again_what_it_had_acknowledged_and_nothing_is_skipped_I8(world):
    CursorNode(world.log(), "s").ensure("earliest")
    rolled_back(world)
    repair.bring_back(world.log())
    assert CursorHandle(world.log(), "s").stats().backlog_records == 5


def with_trim(world: Marked, before: int) -> Log:
    """A subscription moves on, the topic is trimmed behind it, and both are lost."""
    log = world.log()
    CursorNode(log, "s").ensure("earliest")
    for number in range(before):
        append(log, number)
    backup = snapshot(world.server)
    for number in range(before, 8):
        append(log, number)
    append(log, 8)
    policies.change(log, Changes(retention_bytes=1))
    CursorHandle(log, "s").mark_delete(str(log.view().head.end))
    assert retention.trim(log)
    snapshots.leave(log)
    restore(world.server, backup)
    return log


def test_a_subscription_does_not_stay_before_what_was_given_up_with_its_consent_I15(world):
    lost = with_trim(world, before=8).view().head
    repair.bring_back(world.log())
    assert world.log().view().head.trim == lost.trim
    assert CursorHandle(world.log(), "s").stats().mark_delete == lost.trim.position


def test_a_history_whose_beginning_was_given_up_is_not_brought_back_I18(world):
    with_trim(world, before=3)
    with pytest.raises(InvalidInput, match=r"LEDGER_NOT_BROUGHT_BACK.*given up"):
        repair.bring_back(world.log())


def test_gc_deletes_nothing_that_was_brought_back_I12(world):
    rolled_back(world, lost=9)
    repair.bring_back(world.log())
    for number in range(100, 120):
        append(world.log(), number)
        gc.collect(world.log())
    assert world.read() == [*range(11), *range(100, 120)]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("how", [repair.bring_back, repair.accept_loss])
def test_a_repair_that_dies_at_any_transaction_is_repeated_I16(tmp_path, how, applied):
    for at in range(1, 20):
        world = Marked(tmp_path / str(at))
        CursorNode(world.log(), "s").ensure("earliest")
        rolled_back(world, lost=3)
        faults = Faults()
        faults.crash_at(at, applied=applied)
        try:
            how(world.log(faults))
        except Crash:
            if repair.inspect(world.log()) is not None:
                how(world.log())
        else:
            break
        expected = [0, 1, 2, 3, 4] if how is repair.bring_back else [0, 1]
        assert world.read() == expected
        append(world.log(), 9)
        assert world.read() == [*expected, 9]
    assert at > 1


@pytest.mark.parametrize("how", [repair.bring_back, repair.accept_loss])
def test_a_repair_that_dies_at_any_file_is_repeated_I16(tmp_path, how):
    for at in range(1, 50):
        world = Marked(tmp_path / str(at))
        rolled_back(world, lost=3)
        with dying(at) as count:
            with contextlib.suppress(Crash):
                how(world.log())
        if repair.inspect(world.log()) is not None:
            how(world.log())
        append(world.log(), 9)
        assert world.read() == ([0, 1, 2, 3, 4, 9] if how is repair.bring_back else [0, 1, 9])
        gc.collect(world.log())
        if count() < at:
            break
    assert at > 3


def test_an_answer_that_is_lost_does_not_repair_twice_I14(world):
    rolled_back(world)
    faults = Faults()
    faults.next_transact("applied_then_lost")
    repair.bring_back(world.log(faults))
    assert world.log().view().head.ledger == LIMITS.repair_jump
    assert world.read() == [0, 1, 2, 3, 4]
