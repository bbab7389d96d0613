"""Consumers that share a subscription by key: the records of a key come in order, to one of them at a time."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest

from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors import shares
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import InvalidInput, Unavailable
from pyspark_ledger.log import keys, scan
from pyspark_ledger.metadata.port import PartKey
from tests.support.sharing import (
    cursor,
    die,
    go_away,
    handle,
    key_shared,
    keyed_world,
    numbers,
    send,
    take,
)  # fmt: skip
from tests.support.worlds import World


def slot(key):
    return keys.slots(pa.array([key]), pa.array([0]))[0].as_py()


def acknowledge(consumer, messages):
    for message in messages:
        assert consumer.acknowledge(message)


def by_turns(consumers, rounds=100):
    """Each receives and acknowledges one record after the other: who got what."""
    got = defaultdict(list)
    for _ in range(rounds):
        for number, consumer in enumerate(consumers):
            message = consumer.receive(0.0)
            if message is not None:
                got[number].append(message)
                acknowledge(consumer, [message])
    return got


def test_the_records_of_a_key_come_in_order_to_one_of_them(tmp_path):
    world = keyed_world(tmp_path, 60, keys=10)
    consumers = [key_shared(world) for _ in range(3)]
    got = by_turns(consumers)
    assert sorted(n for mine in got.values() for n in numbers(mine)) == list(range(60))
    assert len(got) == 3
    for key in range(10):
        [its] = [mine for mine in got.values() if key in numbers(mine)]
        assert [n for n in numbers(its) if n % 10 == key] == list(range(key, 60, 10))


def test_a_newcomer_waits_until_older_records_of_its_keys_are_acknowledged_pip_269_footnote_4(tmp_path):
    world = keyed_world(tmp_path, 40, keys=20)
    first = key_shared(world, prefetch=100)
    held = take(first, 20)  # one of each key
    second = key_shared(world)
    assert take(second) == []
    moves = shares.leaving(cursor(world), first._follower.id)
    assert len(moves) == keys.SLOTS // 2
    rest = take(first)
    assert numbers(rest) == [n for n in range(20, 40) if slot(f"key {n % 20}") not in moves]
    assert take(second) == []
    moving = [message for message in held if slot(message["k"]) in moves]
    acknowledge(first, moving[:1])
    first.receive(0.0)
    assert {message["k"] for message in take(second)} == {moving[0]["k"]}  # and none that was acknowledged
    acknowledge(first, moving[1:])
    first.receive(0.0)
    assert numbers(take(second)) == [message["n"] + 20 for message in moving[1:]]


def test_what_a_newcomer_is_to_have_and_was_not_delivered_yet_is_its_own_at_once(tmp_path):
    world = keyed_world(tmp_path, 40, keys=20)
    first = key_shared(world)
    take(first, 1)  # and has the others in its queue
    second = key_shared(world)
    first.receive(0.0)
    assert len(take(second)) > 5


def test_the_keys_of_a_dead_one_go_to_others_in_order_from_where_it_was_I16(tmp_path):
    world = keyed_world(tmp_path, 40, keys=20)
    first, second = key_shared(world), key_shared(world)
    first.receive(0.0)
    by_first, by_second = take(first), take(second)
    acknowledge(first, by_first[:3])
    first.flush()
    die(first)
    again = take(second)
    assert numbers(again) == sorted({*range(40)} - {*numbers(by_second)} - {*numbers(by_first[:3]), 0})
    assert {message.delivery_count for message in again} <= {1, 2}


def test_one_that_leaves_hands_over_at_once(tmp_path):
    world = keyed_world(tmp_path, 20, keys=20)
    first, second = key_shared(world), key_shared(world)
    take(first)
    assert len(take(second)) < 20
    first.close()
    take(second)
    assert [len(shares.slots(each)) for each in cursor(world).members] == [keys.SLOTS]


def test_one_that_was_away_and_comes_back_does_not_disturb_the_order_I6(tmp_path):
    world = keyed_world(tmp_path, 20, keys=5)
    first, second = key_shared(world), key_shared(world)
    first.receive(0.0)
    held = take(first, 2)
    go_away(world, first)
    got = take(second)
    assert not first.acknowledge(held[0])  # and so it joins again
    for key in range(5):
        its = [message["n"] for message in got if message["k"] == f"key {key}"]
        assert its == list(range(key, 20, 5))
    assert take(first) == []
    acknowledge(second, got)
    second.receive(0.0)
    send(world, *((f"key {n % 5}", n) for n in range(20, 30)))
    assert set(numbers(take(first) + take(second))) == set(range(20, 30))


def test_a_refused_record_holds_back_later_ones_of_its_key_until_it_is_acknowledged(tmp_path):
    world = keyed_world(tmp_path, 12, keys=3)
    consumer = key_shared(world)
    first, *rest = take(consumer, 3)
    consumer.negative_acknowledge(first)
    assert numbers(take(consumer)) == [n for n in range(3, 12) if n % 3]
    send(world, ("key 0", 12))
    assert take(consumer) == []
    world.clock.sleep(1)
    [again] = take(consumer)
    assert (again["n"], again.delivery_count) == (0, 2)
    consumer.negative_acknowledge(again)
    assert take(consumer) == []
    world.clock.sleep(2)
    [again] = take(consumer)
    acknowledge(consumer, [again, *rest])
    assert numbers(take(consumer)) == [3, 6, 9, 12]


def test_a_look_up_that_fails_leaves_nothing_out_I1(tmp_path, monkeypatch):
    world = keyed_world(tmp_path, 12, keys=3)
    consumer = key_shared(world)
    first, *rest = take(consumer, 3)
    consumer.negative_acknowledge(first)
    take(consumer)
    world.clock.sleep(1)
    [again] = take(consumer)

    def fail(*_):
        raise Unavailable("the storage does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(scan, "position_at", fail)
        acknowledge(consumer, [again, *rest])
        with pytest.raises(Unavailable):
            consumer.receive(0.0)
    assert numbers(take(consumer)) == [3, 6, 9]


def test_several_refused_records_of_a_key_come_again_in_order(tmp_path):
    world = keyed_world(tmp_path, 6, keys=1)
    consumer = key_shared(world)
    held = take(consumer, 4)
    for number in (2, 0):
        consumer.negative_acknowledge(held[number])
    world.clock.sleep(5)
    [again] = take(consumer)
    assert again["n"] == 0
    acknowledge(consumer, [again])
    world.clock.sleep(5)
    [again] = take(consumer)
    assert again["n"] == 2
    acknowledge(consumer, [again])
    assert numbers(take(consumer)) == [4, 5]


def test_what_is_refused_and_is_to_move_begins_with_the_newcomer(tmp_path):
    world = keyed_world(tmp_path, 40, keys=20)
    first = key_shared(world)
    held = take(first, 20)
    second = key_shared(world)
    moves = shares.leaving(cursor(world), first._follower.id)
    moved = [message for message in held if slot(message["k"]) in moves]
    first.negative_acknowledge(moved[0])
    first.receive(0.0)
    got = take(second)
    assert numbers(got) == [moved[0]["n"], moved[0]["n"] + 20]
    assert [message.delivery_count for message in got] == [2, 1]


def test_a_reset_ends_the_waiting_of_newcomers_together_with_moving_the_position_pip_269_scenario_3(tmp_path):
    """Elsewhere the second one waits for what was read before the reset, and gets nothing for ever."""
    world = keyed_world(tmp_path, 40, keys=20)
    first = key_shared(world)
    held = take(first, 30)
    second = key_shared(world)
    assert take(second) == []
    handle(world).reset("0:0:10")
    assert [shares.slots(each) for each in cursor(world).members] == [shares.dealt(e) for e in cursor(world).members]
    got = [*take(first), *take(second)]
    assert sorted(numbers(got)) == list(range(10, 40))
    assert not first.acknowledge(held[-1])


def test_nobody_waits_for_a_place_that_a_rewind_has_changed_pip_269_footnote_5(tmp_path):
    """All leave while a read is in flight, and others come: they begin where the subscription is, all of them."""
    world = keyed_world(tmp_path, 40, keys=20)
    first = key_shared(world)
    acknowledge(first, take(first, 5))
    read = first._begin_read()
    first.close()
    assert read is None
    handle(world).rewind()
    consumers = [key_shared(world) for _ in range(3)]
    for consumer in consumers:
        take(consumer, 1)
    handle(world).rewind()
    got = by_turns(consumers)
    assert sorted(n for mine in got.values() for n in numbers(mine)) == list(range(5, 40))
    assert len(got) == 3


def test_a_scan_in_flight_when_the_cursor_is_reset_is_dropped_pip_269_scenario_2(tmp_path):
    world = keyed_world(tmp_path, 20, keys=4)
    consumer = key_shared(world)
    consumer._follow()
    read = consumer._begin_read()
    fetched = consumer._fetch(read)
    assert len(fetched.messages) == 20
    handle(world).reset("0:0:10")
    consumer._follow()
    assert not consumer._complete_read(read, fetched)
    assert numbers(take(consumer)) == list(range(10, 20))


def test_nothing_is_read_while_the_cursor_is_being_moved(tmp_path):
    world = keyed_world(tmp_path, 20, keys=4)
    consumer = key_shared(world)
    consumer._follow()
    read = consumer._begin_read()
    fetched = consumer._fetch(read)
    controller = RevisionController(CursorNode(world.log(), "s"))
    controller.start_revision()
    consumer._follow()
    assert consumer._begin_read() is None
    assert not consumer._complete_read(read, fetched)
    assert take(consumer) == []
    controller.give_up()
    assert numbers(take(consumer)) == list(range(20))


def test_a_reset_that_is_given_up_while_a_scan_comes_back_confuses_nobody(tmp_path, monkeypatch):
    """The scan is judged once: it was outdated when it came back, and is made again (I7)."""
    world = keyed_world(tmp_path, 20, keys=4)
    consumer = key_shared(world)
    consumer._follow()
    read = consumer._begin_read()
    fetched = consumer._fetch(read)
    controller = RevisionController(CursorNode(world.log(), "s"))
    controller.start_revision()
    consumer._follow()
    current = consumer._node.current

    def looked_at(max_age_s=0.0):
        cursor = current(max_age_s)
        if cursor.reviser:
            controller.give_up()
        return cursor

    monkeypatch.setattr(consumer._node, "current", looked_at)
    assert not consumer._complete_read(read, fetched)
    assert numbers(take(consumer)) == list(range(20))


def test_a_redelivery_by_one_acts_on_all_and_ends_waiting_pip_84(tmp_path):
    world = keyed_world(tmp_path, 20, keys=20)
    first = key_shared(world)
    held = take(first)
    second = key_shared(world)
    second.redeliver_unacknowledged()
    got = [*take(second), *take(first)]
    assert sorted(numbers(got)) == list(range(20))
    assert {message.delivery_count for message in got} == {2}
    assert not first.acknowledge(held[0])


def test_records_without_a_key_are_spread_over_all(tmp_path):
    world = keyed_world(tmp_path)
    consumers = [key_shared(world) for _ in range(2)]
    send(world, *((None, n) for n in range(2_000)))
    got = by_turns(consumers, 2_000)
    assert sorted(n for mine in got.values() for n in numbers(mine)) == list(range(2_000))
    assert min(map(len, got.values())) > 500


def test_a_topic_without_a_key_is_refused_by_name(tmp_path):
    world = World(tmp_path)
    with pytest.raises(InvalidInput, match="LEDGER_NO_KEY"):
        key_shared(world)
    assert world.log().metadata.children(PartKey(world.topic.uuid, "subscriptions")) == []


def test_a_record_that_kills_its_consumers_is_soon_known_from_its_neighbours(tmp_path):
    world = keyed_world(tmp_path, 60, keys=3)
    counts = []
    for _ in range(5):
        consumer = key_shared(world)
        while (message := consumer.receive(0.0)) is not None:
            if message["n"] == 7:
                counts.append(message.delivery_count)
                die(consumer)
                break
            acknowledge(consumer, [message])
    assert counts == [1, 2, 3, 4, 5]
    others = {message["n"]: message.delivery_count for message in take(key_shared(world))}
    assert others.pop(7) == 6
    assert max(others.values()) <= 3


def test_what_is_acknowledged_from_outside_does_not_come_any_more_I8(tmp_path):
    world = keyed_world(tmp_path, 20, keys=4)
    consumer = key_shared(world, prefetch=4)
    take(consumer, 1)
    handle(world).mark_delete("0:0:12")
    assert numbers(take(consumer)) == list(range(12, 20))


def test_the_same_key_falls_into_the_same_slot_for_ever():
    """All members must agree, whatever version of this package each of them has."""
    assert keys.slots(pa.array(["a", "b", None, ""]), pa.array([1, 2, 3, 4])).to_pylist() == [543, 63, 3, 194]
    assert keys.slots(pa.array([1, 2, -1]), pa.array([1, 2, 3])).to_pylist()[:2] == [302, 579]
    nans = keys.slots(pa.array([0.0, -0.0, float("nan"), -float("nan")]), pa.arange(0, 4)).to_pylist()
    assert nans[0] == nans[1]
    assert nans[2] == nans[3]


def test_members_are_removed_by_those_who_are_busy_too(tmp_path):
    world = keyed_world(tmp_path, 400, keys=100)
    first, second = key_shared(world, prefetch=5), key_shared(world, prefetch=5)
    take(first, 1)
    die(first)
    got = take(second, 100)
    assert len(got) == 100
    assert len(cursor(world).members) == 1
    assert shares.served(cursor(world), second._follower.id) == Runs([(0, keys.SLOTS)])
