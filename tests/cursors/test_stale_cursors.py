"""A process whose ZooKeeper server is behind, or that looked a moment ago: it takes nobody for dead and nothing for
gone, and undoes nothing that came meanwhile (I6, I14, I16)."""

from __future__ import annotations

import pytest

from pyspark_ledger.cursors.attachment import Attachment
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.metadata.port import Create, OwnerKey
from pyspark_ledger.metadata.records import Holder
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults
from tests.support.flaky import Behind
from tests.support.worlds import World, append

STRANGER = Holder(b"x" * 16, "a stranger", 0)


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path, clock=SeededClock())
    for number in range(5):
        append(world.log(), number)
    CursorNode(world.log(), "s").ensure("earliest")
    return world


def outside(world: World) -> CursorHandle:
    return CursorHandle(world.log(), "s")


def leave_behind(world: World) -> None:
    """The node of an owner whom the cursor does not name."""
    world.metadata().transact([Create(OwnerKey(world.topic.uuid, "s"), STRANGER, ephemeral=True)])


def test_a_cursor_does_not_go_back_because_a_server_is_behind_I8(world):
    faults = Faults(max_lag=1)
    node = CursorNode(world.log(faults), "s")
    outside(world).skip(3)
    assert node.refresh().ordinal == 3
    faults.next_read("stale")
    assert node.refresh().ordinal == 3


def test_a_subscription_made_a_moment_ago_is_there_I14(world):
    node = CursorNode(world.log(Behind(1)), "new")
    CursorNode(world.log(), "new").ensure("earliest")
    assert node.refresh().name == "new"


def test_an_owner_whose_node_was_made_again_a_moment_ago_is_alive_I6(world):
    faults = Faults(max_lag=1)
    attachment, other = Attachment(CursorNode(world.log(), "s")), CursorNode(world.log(faults), "s")
    attachment.attach()
    cursor = other.refresh(sync=True)
    attachment.node.log.metadata.expire()
    attachment.node.log.metadata.chores.run_all()
    faults.next_read("stale")
    assert other.owner(cursor) is not None


def test_a_resetter_does_not_give_up_its_flag_because_a_server_is_behind_I16(world):
    faults = Behind(4)
    node = CursorNode(world.log(faults), "s")
    node.refresh(sync=True)
    resetter = RevisionController(node)
    resetter.start_revision()
    node.log.metadata.expire()
    faults.next_read("stale")
    assert resetter._holding.recreate(None), "the cursor still names it"


def test_who_clears_the_flag_of_a_dead_resetter_leaves_the_next_ones_I6_I7(world):
    dead, living = (RevisionController(CursorNode(world.log(), "s")) for _ in range(2))
    dead.start_revision()
    dead._node.log.metadata.expire()
    living.start_revision()
    CursorNode(world.log(), "s").unflag(dead._id)
    assert outside(world).stats().revising_seconds is not None


def test_a_node_that_was_left_behind_is_nobodys_also_if_the_cursor_names_one_that_died_I6(world):
    attachment = Attachment(CursorNode(world.log(), "s"))
    attachment.attach()
    attachment.node.log.metadata.close()
    leave_behind(world)
    assert outside(world).stats().owner == ""


def test_a_node_that_was_left_behind_goes_with_its_subscription_I16(world):
    leave_behind(world)
    outside(world).delete()
    assert world.metadata().read(OwnerKey(world.topic.uuid, "s")) is None


def test_properties_are_dropped_by_whatever_moves_the_cursor_I8(world):
    outside(world).mark_delete("0:1:0", {"offset": 4711})
    outside(world).skip(1)
    assert outside(world).properties() == {}
