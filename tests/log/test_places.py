"""Places in a topic mean the same for Spark's options, the client, the command line and cursors."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import DataLoss, InvalidInput
from pyspark_ledger.log import places
from pyspark_ledger.log.places import Place, Settled
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.clock import SeededClock
from tests.support.worlds import World, append


@pytest.fixture
def world(tmp_path):
    """Six commits of two records, a minute apart, over two ledgers."""
    world = World(tmp_path, clock=SeededClock())
    log = world.log()
    for number in range(0, 12, 2):
        append(log, number, number + 1)
        world.clock.sleep(60)
    return world


SECOND = Place(publish_ms=1000)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("earliest", Place(word="earliest")),
        (" Latest ", Place(word="latest")),
        ("3:17:0", Place(position=Position(3, 17, 0))),
        (Position(3, 17, 0), Place(position=Position(3, 17, 0))),
        ('{"pos": "3:17:0", "topic": "u", "v": 1}', Place(position=Position(3, 17, 0), uuid="u")),
        ("1970-01-01T00:00:01Z", SECOND),
        ("1970-01-01 00:00:01", SECOND),
        (datetime(1970, 1, 1, 0, 0, 1), SECOND),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), SECOND),
        (datetime(1970, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1))), SECOND),
        (SECOND, SECOND),
    ],
)
def test_a_place_is_a_word_a_position_a_time_or_an_offset(given, place):
    assert places.parse(given) == place


@pytest.mark.parametrize("given", ["", "yesterday", "3:17", "{}", '{"pos": 3}', "{", "1000", 5, None])
def test_what_is_no_place_is_refused_with_what_is(given):
    with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_POSITION.* is no place in a topic: use earliest, latest,"):
        places.parse(given)


def test_an_offset_of_a_newer_format_is_refused_by_name():
    with pytest.raises(InvalidInput, match=r"LEDGER_NEWER_FORMAT.*format 3.*knows 2: upgrade"):
        places.parse('{"pos": "anything", "v": 3}')


def test_only_an_option_for_times_takes_milliseconds():
    assert places.parse_time(" 1000 ") == places.parse_time("1970-01-01T00:00:01Z") == SECOND
    assert places.parse_time("3:17:0") is None
    assert places.parse_offset("1000") is None


def test_every_place_resolves_to_a_position(world):
    log, head = world.log(), world.log().view().head
    view, third = log.view(), list(log.commits_from(log.view(), EARLIEST))[2]
    offset = json.dumps({"pos": "0:1:1", "topic": world.topic.uuid, "v": 1})
    expected = {
        "earliest": EARLIEST,
        "latest": head.end,
        "0:1:1": Position(0, 1, 1),
        offset: Position(0, 1, 1),
        datetime.fromtimestamp(third.publish_ms / 1000, UTC): Position(0, 2, 0),
        datetime.fromtimestamp(third.publish_ms / 1000 + 0.001, UTC): Position(0, 3, 0),
        "2999-01-01T00:00:00Z": head.end,
    }
    for number, (place, position) in enumerate(expected.items()):
        assert places.resolve(log, view, place) == position
        assert places.settle(log, view, place) == Settled(position, exact=True)
        assert Reader(world.log(), place, "latest").position == position
        assert CursorNode(world.log(), f"s{number}").ensure(place).mark_delete == position


def test_a_read_from_past_the_end_is_refused_and_a_cursor_settles_on_the_end(world):
    log = world.log()
    view = log.refresh(sync=True)
    with pytest.raises(DataLoss, match=r"LEDGER_POSITION_PAST_END.*9:9:9 is past the end .* of topic 't'"):
        places.resolve(log, view, "9:9:9")
    assert places.settle(log, view, "9:9:9") == Settled(view.head.end, exact=False)
    assert places.settle(log, view, view.head.end) == Settled(view.head.end, exact=True)


def test_a_position_that_has_no_record_settles_on_the_next_one(world):
    log = world.log()
    assert places.settle(log, log.refresh(sync=True), "0:1:2") == Settled(Position(0, 2, 0), exact=False)


def test_an_offset_of_another_topic_is_refused_by_name(world):
    log, alien = world.log(), '{"pos": "0:1:1", "topic": "another", "v": 1}'
    named = '{"topics": {"orders": {"id": "another", "pos": "0:1:1"}}, "v": 2}'
    for mean in (places.resolve, places.settle):
        with pytest.raises(InvalidInput, match=r"LEDGER_TOPIC_RECREATED.* the topic another, and 't' is"):
            mean(log, log.view(), alien)
        with pytest.raises(InvalidInput, match=r"LEDGER_TOPIC_RECREATED.* the topic 'orders' \(another\), and 't' is"):
            mean(log, log.view(), named)


def test_the_largest_long_is_a_time_that_never_comes_and_a_larger_number_is_none():
    assert places.parse_time(str(2**63 - 1)).publish_ms == 2**63 - 1
    assert places.parse_time(str(2**63)) is None
