"""A query whose watch got lost: what it has in memory is older than what it is asked about. Nothing is said to be lost
because of that, and nothing is left out (I1, I7, I14)."""

from __future__ import annotations

import pytest

from pyspark_ledger.cursors.attachment import Attachment
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import Conflict, Fenced
from pyspark_ledger.testing.clock import SeededClock
from tests.support.query import Query, WorldQuery, fields, version_1
from tests.support.worlds import World, append


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path, clock=SeededClock())
    append(world.log(), 0, 1, 2)
    return world


def grow(world: World, *unaware: WorldQuery) -> None:
    """One more record, of which some queries are not told."""
    append(world.log(), 3)
    for query in unaware:
        query.log._hinted = False


def test_a_checkpoint_that_has_seen_more_than_the_head_in_memory_has_lost_nothing_I14(world):
    restarted = WorldQuery(world)
    grow(world, restarted)
    ahead = WorldQuery(world)
    ahead.batch()
    restarted.offset = ahead.offset
    assert Query.plan(restarted) == (ahead.offset, ahead.offset)


def test_a_subscription_that_was_moved_past_the_end_in_memory_has_lost_nothing_I14(world):
    query = WorldQuery(world, subscription="s")
    query.batch()
    grow(world, query)
    CursorHandle(world.log(), "s").reset("latest")
    Query.plan(query)
    assert fields(query.offset)["rev"] == 0, "there is nothing new after the reset"


def test_a_logged_batch_past_the_end_in_memory_is_read_I7(world):
    reading, planning = WorldQuery(world), WorldQuery(world)
    assert reading.read(*planning.plan()) == [0, 1, 2]
    grow(world, reading)
    assert reading.read(*planning.plan()) == [3]


def test_available_now_reads_to_the_end_that_is_there_I1(world):
    query = WorldQuery(world)
    grow(world, query)
    query.reader.prepareForTriggerAvailableNow()
    assert query.all() == [[0, 1, 2, 3]]


def test_a_query_that_was_replaced_plans_nothing_also_if_it_has_nothing_to_acknowledge_I6(world):
    query = WorldQuery(world, subscription="s")
    query.log.metadata.expire()
    Attachment(CursorNode(world.log(), "s")).attach()
    append(world.log(), 3)
    world.clock.sleep(60)
    with pytest.raises(Fenced):
        query.plan()


def test_a_checkpoint_without_a_cursor_id_and_of_a_later_revision_is_of_another_cursor_I18(world):
    query = WorldQuery(world, subscription="s")
    for _ in range(2):
        CursorHandle(world.log(), "s").reset("earliest")
    query.batch()
    query.stop()
    CursorHandle(world.log(), "s").delete()
    for _ in range(5):  # its epoch is past the checkpoint's
        WorldQuery(world, subscription="s").stop()
    again = WorldQuery(world, subscription="s", offset=version_1(query.offset))
    with pytest.raises(Conflict, match=r"LEDGER_CURSOR_RECREATED.*revision 2"):
        again.plan()


def test_a_reset_that_comes_while_a_query_acknowledges_is_followed_at_once_I7(world):
    query = WorldQuery(world, subscription="s")
    query.batch()
    metadata, transact = query.log.metadata, query.log.metadata.transact

    def overtaken(ops):
        metadata.transact = transact
        CursorHandle(world.log(), "s").reset("earliest")
        transact(ops)

    metadata.transact = overtaken
    assert query.batch() == [0, 1, 2]
    assert fields(query.offset)["rev"] == 1
