"""ZooKeeper was rolled back, and a reset is lost. The next one gets its number: who knows the lost one does not take it
for that (I7, I18)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.attachment import Attachment
from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.key_shared_consumer import KeySharedConsumer
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import SeenRevision
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.errors import Conflict, DataLoss
from pyspark_ledger.metadata.records import Cursor
from tests.support.query import WorldQuery, fields
from tests.support.rollback import restore, snapshot
from tests.support.worlds import World, append

recreated = pytest.raises(Conflict, match=r"LEDGER_CURSOR_RECREATED.*revision 1 by.*revision 1 by.*new checkpoint")
rolled_back = pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*revision 1.*lost.*make another")

KINDS = pytest.mark.parametrize("kind", [Consumer, SharedConsumer, KeySharedConsumer])


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path, key="n")
    append(world.log(), *range(9))
    CursorNode(world.log(), "s").ensure("earliest")
    return world


class Followed:
    """A subscription that is reset, and set back to before that with all of ZooKeeper. No commit is lost."""

    def __init__(self, world: World) -> None:
        self._world, self._backup = world, snapshot(world.server)
        self.cursor.reset("0:0:4")

    @property
    def cursor(self) -> CursorHandle:
        return CursorHandle(self._world.log(), "s")

    def is_set_back(self, *clients: WorldQuery | Consumer | SharedConsumer) -> None:
        restore(self._world.server, self._backup)
        for client in clients:
            (client.log if isinstance(client, WorldQuery) else client._log).metadata.reconnect()


def test_a_running_query_does_not_take_a_reset_for_a_lost_one_of_the_same_number_I7(world):
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="2")
    followed = Followed(world)
    assert query.batch() == [4, 5]
    followed.is_set_back(query)
    followed.cursor.reset("earliest")
    for _ in range(2):  # it is told for as long as it goes on with this checkpoint
        with recreated:
            query.plan()
    assert followed.cursor.stats().mark_delete == Position(0, 0, 0), "nothing was acknowledged"


def test_a_query_that_starts_does_not_take_a_reset_for_a_lost_one_of_the_same_number_I7(world):
    followed = Followed(world)
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="2")
    query.batch()
    query.stop()
    followed.is_set_back()
    followed.cursor.reset("earliest")
    again = WorldQuery(world, subscription="s", offset=query.offset)
    again.reader.commit(query.offset)
    with recreated:
        again.plan()
    again.stop()
    assert followed.cursor.stats().mark_delete == Position(0, 0, 0), "nothing was acknowledged"
    assert WorldQuery(world, subscription="s").batch() == list(range(9))


def test_a_lost_reset_is_known_also_after_later_ones_I7(world):
    """Of those, the first was a reset that the query has not followed, and the second only skips."""
    followed = Followed(world)
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="2")
    query.batch()
    query.stop()
    followed.is_set_back()
    followed.cursor.reset("earliest")
    followed.cursor.skip(1)
    again = WorldQuery(world, subscription="s", offset=query.offset)
    with pytest.raises(Conflict, match=r"LEDGER_CURSOR_RECREATED.*revision 1 by.*revision 2 by"):
        again.plan()


def test_an_owner_does_not_acknowledge_under_a_reset_of_the_same_number_I7(world):
    """The rollback and the other reset come between its look at the cursor and its acknowledgement."""
    attachment = Attachment(CursorNode(world.log(), "s"))
    attachment.attach()
    followed = Followed(world)
    lost = SeenRevision.of(attachment.node.refresh(sync=True))
    followed.is_set_back()
    followed.cursor.reset("earliest")
    attachment.node.refresh(sync=True)
    assert attachment.acknowledge(Position(0, 0, 6), lost.number, lost.reset).mark_delete == Position(0, 0, 0)


@KINDS
def test_a_consumer_does_not_take_a_reset_for_a_lost_one_of_the_same_number_I7(world, kind):
    consumer = kind(world.log(), "s")
    followed = Followed(world)
    message = consumer.receive(0.0)
    assert message is not None
    assert message["n"] == 4
    followed.is_set_back(consumer)
    followed.cursor.reset("earliest")
    calls = (lambda: consumer.receive(0.0), lambda: consumer.acknowledge(message), consumer.flush, consumer.close)
    for call in calls:
        with rolled_back:
            call()
    with kind(world.log(), "s") as another:
        received = another.receive(0.0)
    assert received is not None
    assert received["n"] == 0


@KINDS
def test_a_consumer_whose_reset_is_lost_is_told_before_there_is_another_I18(world, kind):
    consumer = kind(world.log(), "s")
    followed = Followed(world)
    assert consumer.receive(0.0) is not None
    followed.is_set_back(consumer)
    with rolled_back:
        consumer.receive(0.0)


@KINDS
def test_acknowledgements_of_a_lost_reset_are_not_written_under_another_I7(world, kind):
    """The rollback and the other reset come after its last look at the cursor."""
    consumer = kind(world.log(), "s")
    followed = Followed(world)
    message = consumer.receive(0.0)
    assert message is not None
    assert consumer.acknowledge(message)
    followed.is_set_back(consumer)
    followed.cursor.reset("earliest")
    with rolled_back:
        consumer.flush()
    assert followed.cursor.stats().mark_delete == Position(0, 0, 0)


def test_a_query_goes_on_over_more_resets_than_a_cursor_remembers(world):
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="2")
    cursor = CursorHandle(world.log(), "s")
    cursor.reset("0:0:1")
    query.batch()
    for _ in range(world.limits.remembered_operations + 1):
        cursor.reset("0:0:7")
    assert query.batch() == [7, 8]


def test_offsets_name_the_reset_and_those_that_do_not_are_followed_as_before(world):
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="2")
    query.batch()
    assert "reset" not in fields(query.offset)  # there was none
    operation = bytes(range(16))
    CursorHandle(world.log(), "s").reset("0:0:1", operation_id=operation)
    query.batch()
    assert fields(query.offset)["reset"] == operation[:4].hex()
    query.stop()
    del fields(query.offset)["reset"]  # as an earlier version of this package wrote it
    again = WorldQuery(world, subscription="s", offset=query.offset)
    assert again.batch() == [3, 4, 5, 6, 7, 8]
    again.stop()
    append(world.log(), 9)
    assert "reset" not in fields(WorldQuery(world, offset=again.offset).plan()[1])  # it follows nothing any more


def test_resets_of_earlier_versions_that_left_no_id_are_not_taken_for_lost_ones():
    a, b, c = (bytes([number]) * 16 for number in (1, 2, 3))
    cursor = Cursor("s", Position(0, 0, 0), 0, 0, revision=5, operations=(a, b, c))
    assert SeenRevision(4, b[:4]).is_of(cursor)
    assert SeenRevision(3, b[:4]).is_of(cursor), "the reset to revision 4 left none"
    assert not SeenRevision(5, b[:4]).is_of(cursor)
    assert not SeenRevision(6, c[:4]).is_of(cursor)
    assert SeenRevision(2, b"lost").is_of(cursor), "that is longer ago than it remembers"
    assert SeenRevision(5, b"lost").is_of(replace(cursor, operations=()))
