"""Cursors, revisions and ownership on the in-memory store: every interleaving that Pulsar got wrong, one by one."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.base.position import Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors.attachment import Attachment
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import Conflict, CursorUnderRevision, DataLoss, Fenced, InvalidInput, NotFound
from pyspark_ledger.log import places, scan
from pyspark_ledger.log.places import Settled
from pyspark_ledger.metadata.port import Create, OwnerKey, PartKey, ReviserKey
from pyspark_ledger.metadata.records import Holder
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support.worlds import IDS, World, append, append_ids

# -- runs ------------------------------------------------------------------------------------------------------------

NUMBERS = st.sets(st.integers(0, 60))


def runs_of(numbers):
    return Runs((n, n + 1) for n in numbers)


@given(NUMBERS, NUMBERS, st.integers(0, 70))
def test_runs_are_sets(left, right, number):
    runs = runs_of(left)
    assert {n for start, stop in runs for n in range(start, stop)} == left
    assert len(runs) == len(left)
    assert (number in runs) == (number in left)
    assert runs | runs_of(right) == runs_of(left | right)
    assert runs.since(number) == runs_of({n for n in left if n >= number})
    assert runs.next_missing(number) == next(n for n in range(number, 200) if n not in left)
    assert Runs.unpack(runs_of({n + 5 for n in left}).pack(3), 3) == runs_of({n + 5 for n in left})


def test_a_consumer_that_acknowledges_in_order_costs_a_few_bytes():
    assert len(Runs([(10, 1_000_000), (1_000_005, 2_000_000)]).pack(0)) < 12


# -- positions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path):
    """Twenty commits of three records each, over several sealed ledgers."""
    world = World(tmp_path, clock=SeededClock())
    log = world.log()
    for number in range(0, 60, 3):
        append(log, number, number + 1, number + 2)
        world.clock.sleep(60)
    return world


def handle(world, faults=None):
    return CursorHandle(world.log(faults), "s")


def node(world, faults=None):
    cursor = CursorNode(world.log(faults), "s")
    cursor.ensure("earliest")
    return cursor


def at(world, ordinal):
    log = world.log()
    return scan.position_at(log, log.refresh(sync=True), ordinal)


def ordinal(world):
    return node(world).refresh(sync=True).ordinal


def test_ordinals_and_positions_are_each_others_reverse(world):
    log = world.log()
    view = log.refresh(sync=True)
    for number in range(61):
        position = scan.position_at(log, view, number)
        assert scan.records_before(log, view, position) == number
        assert places.settle(log, view, position) == Settled(position, exact=True)
    assert scan.position_at(log, view, 60) == view.head.end


def test_a_masked_or_vanished_position_settles_on_the_next_record_and_says_so(tmp_path):
    world = World(tmp_path, schema=IDS)
    log = world.log()
    append_ids(log, [[("a", 1)]])
    append_ids(log, [[("a", 2), ("a", 1), ("a", 1), ("a", 3)]])
    node(world)
    moved = handle(world).reset("0:1:1")
    assert (moved.position, moved.exact) == (Position(0, 1, 3), False)
    moved = handle(world).reset("9:9:9")
    assert (moved.position, moved.exact) == (log.refresh().head.end, False)
    assert handle(world).reset("0:1:0").exact


# -- moving ----------------------------------------------------------------------------------------------------------


def test_reset_goes_anywhere_and_raises_the_revision(world):
    node(world)
    cursor = handle(world)
    for revision, (to, expected) in enumerate(
        [("latest", 60), ("earliest", 0), (str(at(world, 31)), 31), (at(world, 7), 7), ("latest", 60)], 1
    ):
        moved = cursor.reset(to)
        assert (moved.revision, ordinal(world)) == (revision, expected)
    log = world.log()
    published = [commit.publish_ms for commit in log.commits_from(log.view(), Position(0, 0, 0))]
    cursor.reset(datetime.fromtimestamp(published[5] / 1000, UTC))
    assert ordinal(world) == 15
    cursor.reset(datetime.fromtimestamp(published[9] / 1000, UTC).isoformat())
    assert ordinal(world) == 27
    with pytest.raises(InvalidInput, match="'yesterday' is no place to reset to"):
        cursor.reset("yesterday")


def test_a_reset_to_latest_is_to_the_end_that_is_there_and_not_to_one_in_memory_I14(world):
    node(world)
    log = world.log()
    log.view()
    append(world.log(), 99)
    assert CursorHandle(log, "s").reset("latest").position == world.log().view().head.end


def test_skip_counts_records_that_are_not_acknowledged(world):
    cursor = node(world)
    owner = Attachment(cursor)
    owner.attach()
    owner.change(lambda c: cursor.moved(c, 2, Runs([(4, 6), (8, 9)])))
    handle(world).skip(3)  # 2, 3 and 6; 4 and 5 are done
    assert ordinal(world) == 7
    handle(world).skip(1)  # 7, and 8 is done
    assert ordinal(world) == 9
    handle(world).skip(1_000)
    assert ordinal(world) == 60
    assert handle(world).stats().backlog_records == 0


def test_clear_backlog_rewind_and_redeliver(world):
    node(world)
    cursor = handle(world)
    cursor.mark_delete(at(world, 10))
    assert (cursor.rewind().position, cursor.redeliver().position) == (at(world, 10), at(world, 10))
    stats = cursor.stats()
    assert (stats.revision, stats.epoch, stats.backlog_records) == (2, 1, 50)
    assert (stats.backlog_seconds, stats.backlog_bytes > 0, stats.revising_seconds) == (17 * 60, True, None)
    cursor.clear_backlog()
    assert (cursor.stats().backlog_records, cursor.stats().backlog_bytes, cursor.stats().backlog_seconds) == (0, 0, 0)


def test_properties_belong_to_a_position(world):
    node(world)
    cursor = handle(world)
    cursor.mark_delete(at(world, 5), {"rows": 5, "batch": -1})
    assert cursor.properties() == {"rows": 5, "batch": -1}
    cursor.mark_delete(at(world, 5), {"rows": 6})
    assert handle(world).properties() == {"rows": 6}
    cursor.mark_delete(at(world, 6))
    assert cursor.properties() == {}


def test_mark_delete_moves_backward_only_by_a_reset_I8(world):
    node(world)
    cursor = handle(world)
    cursor.mark_delete(str(at(world, 30)))
    with pytest.raises(InvalidInput, match="LEDGER_POSITION_BEHIND"):
        cursor.mark_delete(at(world, 29))
    assert ordinal(world) == 30
    cursor.reset(at(world, 29))
    assert ordinal(world) == 29


def test_mark_delete_past_the_end_is_refused_I18(world):
    node(world)
    with pytest.raises(DataLoss, match="LEDGER_POSITION_PAST_END"):
        handle(world).mark_delete("9:9:9")
    assert ordinal(world) == 0


def test_a_retried_operation_is_done_once(world):
    node(world)
    for _ in range(3):
        handle(world).skip(5, operation_id=b"o" * 16)
    assert (ordinal(world), handle(world).stats().revision) == (5, 1)


@pytest.mark.parametrize("fault", ["applied_then_lost", "lost_before", "delayed", "expired"])
@pytest.mark.parametrize("step", [0, 1])
def test_a_skip_whose_answers_are_lost_is_done_once_I14(world, fault, step):
    node(world)
    faults = Faults()
    faults.next_transact(*[None] * step, fault, fault)
    handle(world, faults).skip(5)
    world.server.deliver_delayed()
    assert (ordinal(world), handle(world).stats().revision) == (5, 1)


def test_a_subscription_that_is_not_there_is_named(world):
    with pytest.raises(NotFound, match=r"LEDGER_CURSOR_NOT_FOUND.*'s'.*cursors create t s"):
        handle(world).skip(1)
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_SUBSCRIPTION_NAME"):
        CursorHandle(world.log(), "../x")


BAD = {
    "5 is no place to reset to": lambda cursor: cursor.reset(5),
    "None is no place to reset to": lambda cursor: cursor.reset(None),
    r"date\(2026, 1, 1\) is no place to reset to": lambda cursor: cursor.reset(date(2026, 1, 1)),
    "5 is not a position": lambda cursor: cursor.mark_delete(5),
    "property 'a' is 'x'": lambda cursor: cursor.mark_delete("0:1:0", properties={"a": "x"}),
    f"property 'a' is {1 << 63}": lambda cursor: cursor.mark_delete("0:1:0", properties={"a": 1 << 63}),
    "property 1 is 2": lambda cursor: cursor.mark_delete("0:1:0", properties={1: 2}),
    r"properties are \['a'\]": lambda cursor: cursor.mark_delete("0:1:0", properties=["a"]),
    "cannot skip 0.5 records": lambda cursor: cursor.skip(0.5),
    "cannot skip -1 records": lambda cursor: cursor.skip(-1),
    "operation_id is 'again'": lambda cursor: cursor.skip(1, operation_id="again"),
    "operation_id is b'again'": lambda cursor: cursor.rewind(operation_id=b"again"),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_named_before_anything_is_done(world, words):
    before = node(world).refresh(sync=True)
    faults = Faults()
    with pytest.raises(InvalidInput, match=rf"^\[LEDGER_INVALID_\w+\] .*{words}"):
        BAD[words](handle(world, faults))
    assert (faults.transacts, node(world).refresh(sync=True)) == (0, before)


def test_a_subscription_that_would_begin_nowhere_is_not_made(world):
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_POSITION"):
        CursorNode(world.log(), "s").ensure(5)
    with pytest.raises(NotFound):
        handle(world).stats()


# -- revisions (PIP-269) ---------------------------------------------------------------------------------------------


def test_of_two_resets_at_once_one_gets_under_revision_at_once(world):
    one, two = RevisionController(node(world), "first"), RevisionController(node(world), "second")
    one.start_revision()
    with pytest.raises(CursorUnderRevision, match="is being reset by first"):
        two.start_revision()
    assert handle(world).stats().revising_seconds == 0
    one.end_revision(lambda cursor: cursor)
    two.start_revision()
    two.end_revision(lambda cursor: cursor)
    assert one.revision == 2


def test_a_dead_resetter_cannot_block_the_cursor_for_ever(world):
    dead = node(world)
    RevisionController(dead).start_revision()
    dead.log.metadata.close()  # its session ends
    assert handle(world).reset("latest").revision == 1
    assert world.log().metadata.read(ReviserKey(world.topic.uuid, "s")) is None


def test_a_dead_resetter_does_not_stop_acknowledgements_from_outside(world):
    dead = node(world)
    RevisionController(dead).start_revision()
    dead.log.metadata.close()
    handle(world).mark_delete(at(world, 5))
    assert (ordinal(world), handle(world).stats().revision) == (5, 0)


def test_a_resetter_or_an_owner_with_an_old_picture_leaves_no_node_behind(world):
    faults = Faults()
    cursor = node(world, faults)
    controller, owner = RevisionController(cursor), Attachment(cursor)
    for come, go in ((controller.start_revision, controller.give_up), (owner.attach, owner.detach)):
        come()
        faults.next_read(None, "stale")  # the cursor, its holder
        go()
    assert [key for key in holders(world) if world.metadata().read(key) is not None] == []


def test_a_node_that_was_left_behind_means_nothing_and_is_replaced(world):
    node(world)
    left = world.metadata()
    left.transact([Create(key, Holder(b"x" * 16, "gone", 0), ephemeral=True) for key in holders(world)])
    stats = handle(world).stats()
    assert (stats.owner, stats.revising_seconds) == ("", None)
    assert handle(world).reset(at(world, 6)).revision == 1
    assert Attachment(node(world), name="new").attach().ordinal == 6
    assert handle(world).stats().owner == "new"
    assert [world.metadata().read(key) is None for key in holders(world)] == [False, True]


def holders(world):
    return OwnerKey(world.topic.uuid, "s"), ReviserKey(world.topic.uuid, "s")


def test_a_resetter_that_was_thought_dead_changes_nothing_I6(world):
    late = node(world)
    controller = RevisionController(late)
    controller.start_revision()
    late.log.metadata.expire()
    other = node(world)
    second = RevisionController(other)
    second.start_revision()
    with pytest.raises(Fenced, match="LEDGER_REVISION_FENCED"):
        controller.end_revision(lambda cursor: late.moved(cursor, 60))
    second.end_revision(lambda cursor: other.moved(cursor, 6))
    assert (ordinal(world), second.revision) == (6, 1)


def test_a_resetter_that_lost_its_session_and_lives_on_is_not_thought_dead_I6(world):
    resetter = RevisionController(node(world))
    resetter.start_revision()
    resetter._node.log.metadata.expire()
    world.clock.sleep(60)
    resetter._node.log.metadata.chores.run_all()
    with pytest.raises(CursorUnderRevision):
        handle(world).reset("latest")


def test_a_revision_without_an_operation_of_its_own_is_known_by_its_id_I14(world):
    faults = Faults()
    resetter = RevisionController(node(world, faults))
    resetter.start_revision()
    faults.next_transact("applied_then_lost")
    assert resetter.end_revision(lambda cursor: cursor).revision == 1


def test_a_reset_that_is_repeated_is_told_what_it_did_also_while_another_one_is_under_way_I14(world):
    node(world)
    first = handle(world).reset("latest", operation_id=b"o" * 16)
    RevisionController(node(world)).start_revision()
    assert handle(world).reset("latest", operation_id=b"o" * 16) == first


def test_a_cursor_remembers_so_many_revisions_and_no_more_I13(world):
    node(world)
    for _ in range(world.limits.remembered_revisions + 3):
        handle(world).rewind()
    remembered = node(world).refresh(sync=True).past_revisions
    assert [past.revision for past in remembered] == list(range(3, world.limits.remembered_revisions + 3))


def test_an_edit_that_fails_leaves_the_cursor_as_it_was(world):
    cursor = node(world)
    controller = RevisionController(cursor)
    before = cursor.refresh(sync=True)
    controller.start_revision()
    with pytest.raises(ZeroDivisionError):
        controller.end_revision(lambda _: 1 // 0)
    assert cursor.refresh(sync=True) == before
    assert world.log().metadata.read(ReviserKey(world.topic.uuid, "s")) is None


def test_an_edit_with_nothing_to_do_clears_the_flag_and_raises_nothing(world):
    cursor = node(world)
    before = cursor.refresh(sync=True)
    controller = RevisionController(cursor)
    controller.start_revision()
    assert controller.end_revision(lambda _: None) == before
    assert cursor.refresh(sync=True) == before


def test_what_was_read_under_an_old_revision_is_outdated_and_so_is_everything_during_one(world):
    cursor = node(world)
    controller = RevisionController(cursor)
    assert not controller.is_outdated(0)
    controller.start_revision()
    assert controller.is_outdated(0)
    controller.end_revision(lambda c: c)
    assert (controller.is_outdated(0), controller.is_outdated(1)) == (True, False)


def test_an_old_acknowledgement_never_moves_a_reset_cursor_I7_pulsar_26304(world):
    """#26304: a reset was reported as done, and dropped because a mark-delete was queued behind it."""
    owner = Attachment(node(world))
    owner.attach()
    owner.acknowledge(at(world, 30), 0)
    handle(world).reset(at(world, 3))
    owner.acknowledge(at(world, 33), 0)
    assert ordinal(world) == 3
    owner.acknowledge(at(world, 6), 1)
    assert ordinal(world) == 6


def test_an_acknowledgement_during_a_revision_changes_nothing(world):
    owner = Attachment(node(world))
    owner.attach()
    controller = RevisionController(node(world))
    controller.start_revision()
    owner.acknowledge(at(world, 30), 0)
    with pytest.raises(CursorUnderRevision):
        handle(world).mark_delete(at(world, 30))
    controller.give_up()
    assert ordinal(world) == 0
    owner.acknowledge(at(world, 30), 0)
    assert ordinal(world) == 30


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("step", [1, 2])
def test_a_resetter_that_dies_at_any_step_leaves_a_cursor_that_works(world, step, applied):
    node(world)
    faults = Faults()
    dying = handle(world, faults)
    faults.crash_at(step, applied=applied)
    with pytest.raises(Crash):
        dying.reset("latest")
    dying._log.metadata.close()
    done = (step, applied) == (2, True)
    assert (ordinal(world), handle(world).stats().revision) == ((60, 1) if done else (0, 0))
    assert handle(world).reset(at(world, 9)).revision == (2 if done else 1)


# -- owners (PIP-84) -------------------------------------------------------------------------------------------------


def test_an_exclusive_owner_is_named_to_the_second(world):
    Attachment(node(world), name="the first query").attach()
    with pytest.raises(Conflict, match=r"LEDGER_SUBSCRIPTION_BUSY.*'s'.*belongs to the first query, which is alive"):
        Attachment(node(world)).attach()


def test_every_owner_has_a_higher_epoch_and_leaving_frees_at_once(world):
    for epoch in (1, 2, 3):
        owner = Attachment(node(world))
        assert owner.attach().epoch == epoch
        owner.detach()
        assert handle(world).stats().owner == ""


def test_a_dead_owners_successor_waits_and_does_not_fail(world):
    dead = node(world)
    Attachment(dead).attach()

    class Dies:
        """The session ends while the successor waits."""

        def __init__(self, clock):
            self._clock, self._left = clock, 5

        def __getattr__(self, name):
            return getattr(self._clock, name)

        def sleep(self, seconds):
            self._left -= 1
            if self._left == 0:
                dead.log.metadata.close()
            self._clock.sleep(seconds)

    successor = node(world)
    successor.log.clock = Dies(world.clock)
    assert Attachment(successor).attach().epoch == 2


def test_an_owner_that_was_away_is_fenced_and_changes_nothing_I6(world):
    away = node(world)
    old = Attachment(away, name="old")
    old.attach()
    away.log.metadata.expire()
    new = Attachment(node(world), name="new")
    new.attach()
    new.acknowledge(at(world, 12), 0)
    for act in (old.verified, lambda: old.acknowledge(at(world, 30), 0), lambda: old.change(lambda c: c)):
        with pytest.raises(Fenced, match=r"LEDGER_SUBSCRIPTION_FENCED.*taken over by new under epoch 2"):
            act()
    old.detach()
    assert (ordinal(world), handle(world).stats().owner) == (12, "new")


@pytest.mark.parametrize(("left", "lag"), [(False, 1), (True, 2), (True, 3)])
def test_an_owner_whose_picture_of_the_cursor_is_old_is_fenced_all_the_same_I6(world, left, lag):
    faults = Faults()
    away = node(world, faults)
    old = Attachment(away)
    old.attach()
    away.log.metadata.expire()
    world.clock.sleep(60)
    new = Attachment(node(world), name="new")
    new.attach()
    if left:
        new.detach()
    faults.lag = lambda: lag
    faults.next_read("stale")  # the cursor as it was before the other came
    with pytest.raises(Fenced, match=f"taken over by {'somebody who has left since' if left else 'new'}"):
        old.verified()


def test_an_owner_that_was_away_and_not_replaced_is_the_owner_still(world):
    away = node(world)
    owner = Attachment(away)
    owner.attach()
    away.log.metadata.expire()
    world.clock.sleep(60)
    assert owner.verified().epoch == 1  # nobody else was attached in between
    assert world.log().metadata.read(OwnerKey(world.topic.uuid, "s")) is not None


@pytest.mark.parametrize("fault", ["applied_then_lost", "lost_before", "delayed", "expired"])
def test_an_attach_of_unknown_outcome_ends_with_one_owner_I14(world, fault):
    faults = Faults()
    cursor = node(world, faults)
    faults.next_transact(fault)
    owner = Attachment(cursor)
    owner.attach()
    world.server.deliver_delayed()
    assert owner.verified().owner == owner._id
    assert world.log().metadata.read(OwnerKey(world.topic.uuid, "s")).record.id == owner._id


def test_a_reset_and_an_attach_do_not_cross_pip_269_scenario_3(world):
    """While the cursor is flagged nobody attaches, so a new owner never starts from half of a reset."""
    resetting = node(world)
    controller = RevisionController(resetting)
    controller.start_revision()

    class Finishes:
        def __init__(self, clock):
            self._clock, self._left = clock, 3

        def __getattr__(self, name):
            return getattr(self._clock, name)

        def sleep(self, seconds):
            self._left -= 1
            if self._left == 0:
                controller.end_revision(lambda cursor: resetting.moved(cursor, 15))
            self._clock.sleep(seconds)

    newcomer = node(world)
    newcomer.log.clock = Finishes(world.clock)
    cursor = Attachment(newcomer).attach()
    assert (cursor.ordinal, cursor.revision, cursor.epoch) == (15, 1, 1)


def test_a_cursor_in_use_is_not_deleted(world):
    owner = Attachment(node(world), name="billing")
    owner.attach()
    with pytest.raises(Conflict, match=r"LEDGER_CURSOR_IN_USE.*billing"):
        handle(world).delete()
    owner.detach()
    handle(world).delete()
    with pytest.raises(NotFound):
        handle(world).stats()


def test_a_cursor_that_somebody_attaches_to_in_between_is_not_deleted(world):
    node(world)
    deleting = handle(world)
    metadata = deleting._log.metadata
    transact = metadata.transact

    def attached_first(ops):
        metadata.transact = transact
        Attachment(node(world), name="billing").attach()
        transact(ops)

    metadata.transact = attached_first
    with pytest.raises(Conflict, match=r"LEDGER_CURSOR_IN_USE.*billing"):
        deleting.delete()
    assert handle(world).stats().owner == "billing"


def test_a_cursor_that_is_being_reset_is_not_deleted(world):
    controller = RevisionController(node(world))
    controller.start_revision()
    with pytest.raises(CursorUnderRevision, match="'s' is being reset"):
        handle(world).delete()
    controller.give_up()
    handle(world).delete()


@pytest.mark.parametrize("fault", ["applied_then_lost", "lost_before", "delayed", "expired"])
def test_a_delete_whose_answer_is_lost_is_done_once_I14(world, fault):
    faults = Faults()
    node(world)
    deleting = handle(world, faults)
    faults.next_transact(fault)
    deleting.delete()
    world.server.deliver_delayed()
    assert world.metadata().children(PartKey(world.topic.uuid, "subscriptions")) == []
    with pytest.raises(NotFound, match="LEDGER_CURSOR_NOT_FOUND"):
        deleting.delete()


# -- what comes between the look and the transaction ---------------------------------------------------------------


def before_it_writes(process: CursorNode, rival) -> None:
    """Calls somebody else right before the next transaction of a process."""
    metadata, transact = process.log.metadata, process.log.metadata.transact

    def overtaken(ops):
        metadata.transact = transact
        rival()
        transact(ops)

    metadata.transact = overtaken


def test_who_attaches_does_not_push_out_another_that_was_faster_I6(world):
    slow, fast = Attachment(node(world)), Attachment(node(world))
    before_it_writes(slow.node, fast.attach)
    with pytest.raises(Conflict, match="LEDGER_SUBSCRIPTION_BUSY"):
        slow.attach()
    assert fast.verified().epoch == 1


def test_a_reset_that_begins_while_somebody_attaches_comes_first_I7(world):
    attachment, resetter = Attachment(node(world)), RevisionController(node(world))
    before_it_writes(attachment.node, resetter.start_revision)
    with pytest.raises(CursorUnderRevision):
        attachment.attach()


def test_an_acknowledgement_that_another_has_overtaken_does_not_move_the_cursor_back_I8(world):
    attachment = Attachment(node(world))
    attachment.attach()
    before_it_writes(attachment.node, lambda: handle(world).mark_delete(at(world, 30)))
    attachment.acknowledge(at(world, 10), 0)
    stats = handle(world).stats()
    assert (stats.mark_delete, ordinal(world)) == (at(world, 30), 30)


def test_an_owner_changes_nothing_while_somebody_resets_the_cursor_I7(world):
    attachment = Attachment(node(world))
    attachment.attach()
    RevisionController(node(world)).start_revision()
    with pytest.raises(CursorUnderRevision):
        attachment.change(lambda cursor: cursor)


def test_what_was_acknowledged_one_by_one_stays_so_when_a_query_acknowledges_what_is_before_I8(world):
    attachment = Attachment(node(world))
    attachment.attach()
    attachment.change(lambda cursor: attachment.node.moved(cursor, 0, Runs([(7, 8)])))
    attachment.acknowledge(at(world, 3), 0)
    assert handle(world).stats().individual_acks == 1


def test_an_owner_does_not_rely_on_a_node_of_its_old_session_I6(world):
    attachment, old = Attachment(node(world)), world.metadata()
    attachment.attach()
    metadata, key = attachment.node.log.metadata, attachment.node.owner_key
    holder = metadata.read(key).record
    metadata.expire()
    old.transact([Create(key, holder, ephemeral=True)])  # its session has not ended at this server
    world.clock.sleep(60)
    attachment.verified()
    old.close()
    assert metadata.read(key) is not None


def test_an_owner_that_is_replaced_while_it_makes_its_node_again_leaves_none_I6(world):
    attachment, successor = Attachment(node(world)), Attachment(node(world))
    attachment.attach()
    attachment.node.log.metadata.expire()

    def come_and_go() -> None:
        successor.attach()
        successor.node.log.metadata.close()

    before_it_writes(attachment.node, come_and_go)
    attachment._holding.recreate(None)
    assert world.metadata().read(attachment.node.owner_key) is None
