"""A reset says where it went and whether that is where it was sent, and a preview says the same before it is done."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log import scan
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults
from tests.support.worlds import World, append

RECORDS = 30


@pytest.fixture
def world(tmp_path):
    """Ten commits of three records each, over several sealed ledgers."""
    world = World(tmp_path, clock=SeededClock())
    log = world.log()
    for number in range(0, RECORDS, 3):
        append(log, number, number + 1, number + 2)
        world.clock.sleep(60)
    return world


def at(world, ordinal):
    log = world.log()
    return scan.position_at(log, log.refresh(sync=True), ordinal)


def consumed(world, name, acknowledged):
    """A subscription of which some records are acknowledged."""
    with Consumer(world.log(), name) as consumer:
        for _ in range(RECORDS):
            message = consumer.receive()
            if message["n"] in acknowledged:
                consumer.acknowledge(message)
    return CursorHandle(world.log(), name)


def received(world, name):
    """What a consumer of the subscription would get."""
    found = set()
    with Consumer(world.log(), name) as consumer:
        while (message := consumer.receive(timeout_s=0)) is not None:
            found.add(message["n"])
    return found


@pytest.mark.parametrize("to", ["earliest", "latest", datetime(2000, 1, 1, tzinfo=UTC), "2999-01-01T00:00:00Z"])
def test_a_reset_to_a_word_or_a_time_is_exact(world, to):
    CursorNode(world.log(), "s").ensure("earliest")
    cursor = CursorHandle(world.log(), "s")
    assert (cursor.preview(to).exact, cursor.reset(to).exact) == (True, True)


@pytest.mark.parametrize(("to", "exact"), [("0:1:1", True), ("0:1:7", False), ("9:9:9", False)])
def test_a_reset_that_is_repeated_with_its_operation_id_says_the_same(world, to, exact):
    CursorNode(world.log(), "s").ensure("earliest")
    cursor = CursorHandle(world.log(), "s")
    done = cursor.reset(to, operation_id=b"1" * 16)
    assert (done.exact, done.revision) == (exact, 1)
    assert cursor.reset(to, operation_id=b"1" * 16) == done


def test_a_preview_says_what_a_reset_would_do_and_changes_nothing(world):
    cursor = consumed(world, "s", {*range(10), 12, 13, 20})
    before = cursor.stats()

    def told(to):
        preview = cursor.preview(to)
        assert preview.current == at(world, 10)
        return preview.position, preview.exact, preview.skipped_records, preview.repeated_records

    assert told("earliest") == (at(world, 0), True, 0, 10 + 3)
    assert told(at(world, 4)) == (at(world, 4), True, 0, 6 + 3)
    assert told(at(world, 10)) == (at(world, 10), True, 0, 3)
    assert told(str(at(world, 15))) == (at(world, 15), True, 5 - 2, 1)
    assert told("latest") == (at(world, RECORDS), True, 20 - 3, 0)
    assert told("99:0:0") == (at(world, RECORDS), False, 20 - 3, 0)
    with pytest.raises(InvalidInput, match="'yesterday' is no place to reset to"):
        cursor.preview("yesterday")
    assert cursor.stats() == before


def test_a_place_in_another_topic_is_refused_before_anything_is_done(world):
    CursorNode(world.log(), "s").ensure("earliest")
    faults, alien = Faults(), '{"pos": "0:1:1", "topic": "another", "v": 1}'
    cursor = CursorHandle(world.log(faults), "s")
    for move in (cursor.preview, cursor.reset):
        with pytest.raises(InvalidInput, match="LEDGER_TOPIC_RECREATED"):
            move(alien)
    assert faults.transacts == 0


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(to=st.integers(0, RECORDS), acknowledged=st.sets(st.integers(0, RECORDS - 1)))
def test_a_preview_counts_what_consumers_then_miss_or_get_again(world, to, acknowledged):
    name = f"s-{world.clock.new_id().hex()}"
    cursor = consumed(world, name, acknowledged)
    preview, unacknowledged = cursor.preview(at(world, to)), set(range(RECORDS)) - acknowledged
    assert cursor.reset(at(world, to)).position == preview.position
    after = received(world, name)
    assert preview.skipped_records == len(unacknowledged - after)
    assert preview.repeated_records == len(after - unacknowledged)
