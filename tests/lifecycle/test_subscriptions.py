"""Subscriptions that hold back too much, or that nobody uses: what they lose is said, and nobody else loses (I15)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pyspark_ledger.base.clock import Clock
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.cursors.attachment import Attachment
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.lifecycle import old_sinks, retention, subscriptions
from pyspark_ledger.log import policies
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import CursorKey, SinkKey, SinksKey, SinkTopicKey
from pyspark_ledger.metadata.records import Cursor
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support.worlds import SMALL, World, append

HOUR, DAY = 3600.0, 86_400.0


@pytest.fixture
def world(tmp_path) -> World:
    """Four commits in a ledger; time passes only when a test says so."""
    return World(tmp_path, SMALL, SeededClock(1))


def write(world: World, numbers: range, seconds_between: float = 0.0) -> None:
    for number in numbers:
        append(world.log(), number)
        world.clock.sleep(seconds_between)


def keep(world: World, **what) -> None:
    policies.change(world.log(), policies.Changes(**what))


def subscribe(world: World, name: str, start: str = "earliest") -> CursorNode:
    node = CursorNode(world.log(), name)
    node.ensure(start)
    return node


def cursor(world: World, name: str) -> Cursor:
    return world.metadata().read(CursorKey(world.topic.uuid, name)).record


def names(world: World) -> list[str]:
    return [cursor.name for cursor in retention.subscriptions(world.log())]


def over(world: World) -> list[str]:
    log = world.log()
    return [each.name for each in subscriptions.over_quota(log, log.refresh(sync=True))]


# -- the backlog quota ----------------------------------------------------------------------------------------------


def test_without_a_quota_nobody_is_over_it(world):
    write(world, range(12), DAY)
    subscribe(world, "slow")
    assert over(world) == []


def test_a_subscription_is_over_its_quota_by_bytes_or_by_age(world):
    write(world, range(12), HOUR)
    for at, name in enumerate(("slow", "middle", "quick")):
        subscribe(world, name, f"{at}:0:0")
    bytes_of_one = world.log().view().head.bytes // 12
    keep(world, backlog_quota_bytes=bytes_of_one * 8)
    assert over(world) == ["slow"]
    keep(world, backlog_quota_bytes=None, backlog_quota_age=timedelta(hours=7))
    assert over(world) == ["middle", "slow"]
    CursorHandle(world.log(), "slow").clear_backlog()
    assert over(world) == ["middle"]


@pytest.mark.parametrize("ahead", ["this machine's", "ZooKeeper's"])
def test_whose_clock_is_ahead_finds_nobody_too_old(world, ahead):
    write(world, range(4))
    subscribe(world, "slow")
    keep(world, backlog_quota_age=timedelta(hours=1), expire_subscriptions_after=timedelta(hours=1))
    log = world.log()
    log.clock = _Ahead(world.clock) if ahead == "this machine's" else SeededClock(2, world.clock.now_ms())
    world.clock.sleep(365 * DAY if ahead == "ZooKeeper's" else 0)
    assert subscriptions.over_quota(log, log.view()) == []
    assert subscriptions.expire(log) == subscriptions.Expired()


class _Ahead(SeededClock):
    """A year ahead of ZooKeeper's."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(2, clock.now_ms() + 365 * 86_400_000)


def test_hold_only_reports_I15(world):
    write(world, range(18), HOUR)
    subscribe(world, "slow")
    keep(world, retention_age=timedelta(hours=2), backlog_quota_age=timedelta(hours=2))
    (found,) = subscriptions.enforce_quota(world.log())
    assert (found.name, found.evicted) == ("slow", 0)
    assert "older than 7,200 s" in found.why
    assert cursor(world, "slow").ordinal == 0
    assert retention.trim(world.log()).ledgers == 0


def test_evict_moves_it_to_where_the_topic_would_begin_and_marks_it_I8_I15(world):
    write(world, range(18), HOUR)
    subscribe(world, "slow")
    CursorHandle(world.log(), "slow").skip(1)
    keep(world, retention_age=timedelta(hours=7), backlog_quota_age=timedelta(hours=2), backlog_action="evict")
    (found,) = subscriptions.enforce_quota(world.log())
    assert found.evicted == 7
    slow = cursor(world, "slow")
    assert (str(slow.mark_delete), slow.ordinal, slow.evicted, slow.revision) == ("2:0:0", 8, 7, 2)
    assert slow.last_backward_revision == 0
    assert retention.trim(world.log()).records == 8
    # What retention keeps, it keeps for this one too, however far over the quota it is.
    assert [each.evicted for each in subscriptions.enforce_quota(world.log())] == [0]


def test_nobody_loses_what_the_compaction_holds_back_all_the_same_I15(tmp_path):
    world = World(tmp_path, SMALL, SeededClock(1), key="n")
    write(world, range(6))
    compact(world.log())
    write(world, range(6, 18), HOUR)
    keep(world, retention_age=timedelta(hours=1), backlog_quota_age=timedelta(hours=2), backlog_action="evict")
    subscribe(world, "slow")
    assert [each.evicted for each in subscriptions.enforce_quota(world.log())] == [6]
    assert cursor(world, "slow").ordinal == world.log().view().head.generation.read == 6


def test_records_that_it_had_acknowledged_are_not_lost_to_it(world):
    write(world, range(10), HOUR)
    node = subscribe(world, "slow")
    node.update(lambda seen: node.moved(seen, 0, node.acks(seen) | [(1, 3), (8, 9)], seen.mark_delete))
    keep(world, retention_age=timedelta(hours=1), backlog_quota_age=timedelta(hours=1), backlog_action="evict")
    (found,) = subscriptions.enforce_quota(world.log())
    assert found.evicted == 6
    slow = cursor(world, "slow")
    assert (slow.ordinal, list(node.acks(slow))) == (9, [])


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("at", [1, 2])
def test_an_eviction_that_dies_half_way_is_done_by_the_next_one_I16(world, at, applied):
    write(world, range(10), HOUR)
    subscribe(world, "slow")
    keep(world, retention_age=timedelta(hours=1), backlog_quota_age=timedelta(hours=1), backlog_action="evict")
    faults = Faults()
    log = world.log(faults)
    faults.crash_at(at, applied=applied)
    with pytest.raises(Crash):
        subscriptions.enforce_quota(log)
    log.metadata.expire()
    subscriptions.enforce_quota(world.log())
    slow = cursor(world, "slow")
    assert (slow.ordinal, slow.evicted, slow.reviser) == (8, 8, b"")


def test_one_that_is_being_reset_is_left_alone(world):
    write(world, range(10), HOUR)
    node = subscribe(world, "slow")
    keep(world, retention_age=timedelta(hours=1), backlog_quota_age=timedelta(hours=1), backlog_action="evict")
    RevisionController(node).start_revision()
    assert [each.evicted for each in subscriptions.enforce_quota(world.log())] == [0]
    assert cursor(world, "slow").ordinal == 0


def test_one_that_acknowledges_enough_just_before_keeps_its_records_I15(world, monkeypatch):
    """It is still where retention would give up records, and holds back no more than it may."""
    write(world, range(18), HOUR)
    subscribe(world, "slow")
    keep(world, retention_age=timedelta(hours=7), backlog_quota_age=timedelta(hours=14), backlog_action="evict")
    evict = subscriptions.evict

    def acknowledged_meanwhile(*arguments) -> int:
        CursorHandle(world.log(), "slow").skip(6)
        return evict(*arguments)

    monkeypatch.setattr(subscriptions, "evict", acknowledged_meanwhile)
    assert [each.evicted for each in subscriptions.enforce_quota(world.log())] == [0]
    assert cursor(world, "slow").ordinal == 6


# -- expiry ---------------------------------------------------------------------------------------------------------


def test_subscriptions_that_nobody_uses_are_deleted_if_the_topic_says_so(world):
    write(world, range(4))
    subscribe(world, "forgotten")
    world.clock.sleep(40 * DAY)
    assert subscriptions.expire(world.log()).deleted == ()
    subscribe(world, "new")
    keep(world, expire_subscriptions_after=timedelta(days=30))
    assert subscriptions.expire(world.log()).deleted == ("forgotten",)
    assert names(world) == ["new"]


@pytest.mark.parametrize("use", ["attach", "acknowledge", "reset"])
def test_every_use_counts(world, use):
    write(world, range(4))
    node = subscribe(world, "billing")
    keep(world, expire_subscriptions_after=timedelta(days=30))
    world.clock.sleep(29 * DAY)
    if use == "attach":
        attached = Attachment(node)
        attached.attach()
        attached.detach()
    elif use == "acknowledge":
        CursorHandle(world.log(), "billing").mark_delete("0:1:0")
    else:
        CursorHandle(world.log(), "billing").reset("earliest")
    world.clock.sleep(29 * DAY)
    assert subscriptions.expire(world.log()).deleted == ()
    world.clock.sleep(2 * DAY)
    assert subscriptions.expire(world.log()).deleted == ("billing",)


def test_an_owner_that_waits_on_an_idle_topic_keeps_it_and_for_as_long_after_its_death(world):
    write(world, range(4))
    keep(world, expire_subscriptions_after=timedelta(days=30))
    owner = Attachment(subscribe(world, "billing"))
    before = owner.attach()
    for _ in range(20):
        world.clock.sleep(5 * DAY)
        assert subscriptions.expire(world.log()).deleted == ()
    assert cursor(world, "billing") == before
    owner.node.log.metadata.expire()  # it dies
    for _ in range(3):  # from when that is noticed
        world.clock.sleep(10 * DAY)
        assert subscriptions.expire(world.log()).deleted == ()
    world.clock.sleep(10 * DAY)
    assert subscriptions.expire(world.log()).deleted == ("billing",)


def test_one_that_is_shared_by_somebody_who_waits_is_kept_and_for_as_long_after_its_death(world):
    keep(world, expire_subscriptions_after=timedelta(days=30))
    consumer = SharedConsumer(world.log(), "s")
    for _ in range(20):
        world.clock.sleep(5 * DAY)
        assert subscriptions.expire(world.log()).deleted == ()
    consumer._log.metadata.close()
    for _ in range(3):  # from when that is noticed
        world.clock.sleep(10 * DAY)
        assert subscriptions.expire(world.log()).deleted == ()
    world.clock.sleep(10 * DAY)
    assert subscriptions.expire(world.log()).deleted == ("s",)


def test_an_owner_that_dies_while_nobody_does_maintenance_leaves_it_the_whole_time(world):
    keep(world, expire_subscriptions_after=timedelta(days=30))
    owner = world.log()
    subscribe(world, "s")
    Attachment(CursorNode(owner, "s")).attach()
    world.clock.sleep(40 * DAY)
    owner.metadata.close()
    assert subscriptions.expire(world.log()).deleted == ()
    world.clock.sleep(29 * DAY)
    assert subscriptions.expire(world.log()).deleted == ()
    world.clock.sleep(2 * DAY)
    assert subscriptions.expire(world.log()).deleted == ("s",)


def test_what_its_owner_acknowledges_while_it_is_written_anew_stays_I8(world):
    write(world, range(4))
    keep(world, expire_subscriptions_after=timedelta(days=30))
    Attachment(subscribe(world, "billing")).attach()
    world.clock.sleep(10 * DAY)
    log = world.log()
    transact = log.metadata.transact

    def acknowledged_first(ops) -> None:
        log.metadata.transact = transact
        CursorHandle(world.log(), "billing").skip(2)
        transact(ops)

    log.metadata.transact = acknowledged_first
    assert subscriptions.expire(log) == subscriptions.Expired()
    assert cursor(world, "billing").ordinal == 2


def test_one_that_is_being_reset_does_not_expire(world):
    write(world, range(4))
    keep(world, expire_subscriptions_after=timedelta(days=30))
    RevisionController(subscribe(world, "billing")).start_revision()
    world.clock.sleep(31 * DAY)
    assert subscriptions.expire(world.log()) == subscriptions.Expired((), 1)


def test_whoever_comes_while_it_is_being_deleted_keeps_it_I6(world, monkeypatch):
    write(world, range(4))
    keep(world, expire_subscriptions_after=timedelta(days=30))
    subscribe(world, "billing")
    world.clock.sleep(31 * DAY)
    vacate = CursorNode.vacate

    def used_meanwhile(node: CursorNode, key: object) -> list[object]:
        monkeypatch.undo()
        CursorHandle(world.log(), "billing").reset("latest")
        return vacate(node, key)

    monkeypatch.setattr(CursorNode, "vacate", used_meanwhile)
    assert subscriptions.expire(world.log()).deleted == ()
    assert names(world) == ["billing"]


# -- sinks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def space(world) -> OpenNamespace:
    return OpenNamespace(world.metadata(), str(world.storage.uri), limits=world.limits, clock=world.clock)


def test_what_is_known_of_a_query_goes_when_nobody_has_asked_for_90_days(world, space):
    for query in ("old", "young"):
        space.sinks.remember(query, world.topic)
    world.clock.sleep(60 * DAY)
    space.sinks.remember("young", world.topic)  # as a query that runs does every day
    world.clock.sleep(31 * DAY)
    assert old_sinks.remove_unused(space) == 1
    assert space.metadata.children(SinksKey()) == [SinkKey("young")]
    assert space.metadata.children(SinkKey("young")) == [SinkTopicKey("young", "t")]
    assert old_sinks.remove_unused(space) == 0


def test_a_query_that_writes_to_another_topic_too_is_kept_for_that(world, space):
    space.sinks.remember("q", world.topic)
    other = space.create_topic("u", world.log().schema(0))
    world.clock.sleep(60 * DAY)
    space.sinks.remember("q", other)
    world.clock.sleep(31 * DAY)
    assert old_sinks.remove_unused(space) == 1
    assert space.metadata.children(SinkKey("q")) == [SinkTopicKey("q", "u")]


def test_a_removal_that_dies_half_way_is_finished_by_the_next_one(world, space):
    space.sinks.remember("q", world.topic)
    world.clock.sleep(91 * DAY)
    faults = Faults()
    dying = OpenNamespace(world.metadata(faults), str(world.storage.uri), limits=world.limits, clock=world.clock)
    faults.crash_at(1, applied=True)
    with pytest.raises(Crash):
        old_sinks.remove_unused(dying)
    assert space.metadata.children(SinksKey()) == [SinkKey("q")]
    old_sinks.remove_unused(space)
    assert space.metadata.children(SinksKey()) == []


def test_more_queries_than_one_page(world):
    limits = replace(SMALL, topics_at_once=3)
    space = OpenNamespace(world.metadata(), str(world.storage.uri), limits=limits, clock=world.clock)
    for number in range(10):
        space.sinks.remember(f"q{number}", world.topic)
    world.clock.sleep(91 * DAY)
    assert old_sinks.remove_unused(space) == 10
    assert space.metadata.children(SinksKey()) == []
