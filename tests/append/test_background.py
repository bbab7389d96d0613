"""What a producer does by itself: it stores what it was given, tries again, gives up, and tells the truth (I1, I14)."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from pyspark_ledger.append import flusher, loose, sender
from pyspark_ledger.append.background import Background
from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import Fenced, InvalidInput, LedgerError, NotFound, OutcomeUnknown, Unavailable
from pyspark_ledger.lifecycle import termination
from pyspark_ledger.log import policies, topics
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.clock import SeededClock
from tests.support.producers import NEVER_BY_ITSELF, Process, numbers
from tests.support.worlds import SMALL, World

NAMES = pytest.mark.parametrize("name", ["p", None], ids=["with a name", "without"])
SOON = Background(linger_ms=1)
LATER_S = 121.0  # after the delivery time-out


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, limits=replace(SMALL, append_deadline_s=0.2))


@pytest.fixture
def slow_world(tmp_path):
    """Where time passes only when the test says so."""
    return World(tmp_path, clock=SeededClock())


# -- storing -------------------------------------------------------------------------------------------------------


@NAMES
def test_send_alone_suffices_I1(world, name):
    producer = Producer(world.log(), name=name, background=SOON)
    receipts = [producer.send({"n": number}) for number in range(3)]
    assert [receipt.result(10).duplicate for receipt in receipts] == [False] * 3
    assert numbers(world) == [0, 1, 2]


@pytest.mark.parametrize(("module", "step"), [(loose, "stage_entry"), (sender, "append")])
def test_what_comes_while_a_part_is_being_stored_goes_into_the_next_one_I1(world, monkeypatch, module, step):
    begun, goes_on, does = threading.Event(), threading.Event(), getattr(module, step)

    def slowly(*arguments):
        begun.set()
        goes_on.wait(10)
        return does(*arguments)

    monkeypatch.setattr(module, step, slowly)
    producer = Producer(world.log(), background=SOON)
    first = producer.send({"n": 0})
    assert begun.wait(10)
    others = [producer.send({"n": number}) for number in range(1, 5)]
    goes_on.set()
    assert first.result(10).position == Position(0, 0, 0)
    assert [receipt.result(10).position for receipt in others] == [Position(0, 1, index) for index in range(4)]
    assert numbers(world) == list(range(5))


def test_a_full_part_does_not_wait_for_its_time(world, monkeypatch):
    monkeypatch.setattr("pyspark_ledger.append.delivery.FLUSH_ROWS", 3)
    producer = Producer(world.log(), background=NEVER_BY_ITSELF)
    receipts = [producer.send({"n": number}) for number in range(3)]
    assert receipts[2].result(10).position == Position(0, 0, 2)


def test_records_of_many_threads_are_numbered_as_they_were_taken_and_those_of_each_thread_in_its_order_I2_I5(world):
    with Producer(world.log(), name="p", background=SOON) as producer, ThreadPoolExecutor(8) as pool:

        def send(thread: int) -> None:
            for number in range(200):
                producer.send({"n": thread * 1_000 + number})
                if number % 50 == thread:
                    producer.flush()

        list(pool.map(send, range(8)))
    found = list(Reader(world.log(), "earliest", "latest"))
    assert [record.sequence_id for record in found] == list(range(1_600))
    for thread in range(8):
        mine = [record["n"] for record in found if record["n"] // 1_000 == thread]
        assert mine == [thread * 1_000 + number for number in range(200)]


def test_a_batch_keeps_its_place_among_records_of_other_threads_and_one_in_doubt_is_found_out_unasked_I14(world):
    process = Process(world, background=SOON)
    process.lose_the_next_commit("applied_then_lost")
    with pytest.raises(OutcomeUnknown):
        process.producer.send_batch(pa.table({"n": [0, 1]}))
    after = process.producer.send({"n": 2})
    process.zookeeper.down = False
    assert after.result(10).sequence_id == 2
    assert numbers(world) == [0, 1, 2]


# -- the thread ----------------------------------------------------------------------------------------------------


def test_the_thread_comes_with_the_first_record_waits_without_looking_and_goes(world, monkeypatch):
    monkeypatch.setattr(flusher, "IDLE_S", 0.3)
    producer = Producer(world.log(), background=SOON)
    delivery = producer._delivery
    assert delivery._flusher.thread is None
    producer.send({"n": 1}).result(10)
    thread, looks = delivery._flusher.thread, []
    delivery._flusher._due = lambda: looks.append(None)
    thread.join(10)
    assert len(looks) <= 2  # when it began to wait, and before it left
    delivery._flusher._due = delivery._due_in
    producer.send({"n": 2}).result(10)
    assert numbers(world) == [1, 2]


def test_a_producer_that_nobody_has_any_more_stores_its_records_and_leaves_no_thread_I1(world, monkeypatch):
    monkeypatch.setattr(flusher, "IDLE_S", 0.05)
    producer = Producer(world.log(), background=Background(linger_ms=50))
    receipt, dropped = producer.send({"n": 1}), weakref.ref(producer._delivery)
    thread = producer._delivery._flusher.thread
    del producer
    receipt.result(10)
    thread.join(10)
    gc.collect()
    assert dropped() is None
    assert numbers(world) == [1]


# -- room ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits", [{"max_waiting_records": 5}, {"max_waiting_bytes": 40}], ids=["by records", "by bytes"]
)
def test_when_zookeeper_is_away_send_waits_for_room_and_says_why_it_was_not_taken(world, limits):
    process = Process(world, background=Background(1, **limits, send_timeout_s=0.05))
    process.producer.send({"n": 0}).result(10)
    process.zookeeper.down = True
    receipts = [process.producer.send({"n": number}) for number in range(1, 6)]
    with pytest.raises(Unavailable, match=r"LEDGER_PRODUCER_FULL.*max_waiting_records is .*send_timeout_s=0\.05"):
        process.producer.send({"n": 6})
    process.zookeeper.down = False
    assert receipts[-1].result(10)
    process.producer.send({"n": 6}).result(10)
    assert numbers(world) == list(range(7))


def test_who_waits_for_room_goes_on_when_there_is_some(world):
    process = Process(world, background=Background(1, max_waiting_records=3))
    process.producer.send({"n": 0}).result(10)
    process.zookeeper.down = True
    threading.Timer(0.2, lambda: setattr(process.zookeeper, "down", False)).start()
    receipts = [process.producer.send({"n": number}) for number in range(1, 20)]
    assert len(process.producer._delivery.waiting) <= 3
    assert receipts[-1].result(10)
    assert numbers(world) == list(range(20))


def test_a_record_that_is_larger_than_all_that_may_wait_is_taken_alone(world):
    producer = Producer(world.log(), background=Background(1, max_waiting_bytes=1, send_timeout_s=10))
    for number in range(3):
        producer.send({"n": number})
    producer.close()
    assert numbers(world) == [0, 1, 2]


@pytest.mark.parametrize(
    "wrong",
    [{"linger_ms": -1}, {"max_waiting_records": 0}, {"max_waiting_bytes": None}, {"send_timeout_s": "1"},
     {"delivery_timeout_s": float("nan")}, {"linger_ms": float("inf")}, {"send_timeout_s": float("inf")}],
    ids=lambda wrong: next(iter(wrong)),
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused_by_name(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Background(**wrong)


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "5", True])
def test_a_timeout_that_cannot_be_is_refused_and_the_producer_goes_on(world, wrong):
    with Producer(world.log(), background=SOON) as producer:
        producer.send({"n": 1})
        with pytest.raises(InvalidInput, match="timeout is"):
            producer.close(wrong)
        producer.send({"n": 2})
    assert numbers(world) == [1, 2]


# -- failures that pass --------------------------------------------------------------------------------------------


@NAMES
@pytest.mark.parametrize("fate", ["applied_then_lost", "lost_before", "delayed"])
def test_a_lost_answer_is_found_out_in_the_background_I14(world, name, fate):
    process = Process(world, name, SOON)
    process.lose_the_next_commit(fate)
    receipts = [process.producer.send({"n": number}) for number in range(3)]
    while not process.zookeeper.down:
        time.sleep(0.001)
    assert not any(receipt.done() for receipt in receipts)
    world.server.deliver_delayed()
    process.zookeeper.down = False
    assert receipts[0].result(10).position == Position(0, 0, 0)
    process.producer.flush()
    assert numbers(world) == [0, 1, 2]


@NAMES
def test_a_flush_that_fails_leaves_the_records_and_the_background_goes_on_with_them(world, name):
    process = Process(world, name, SOON)
    process.producer.send({"n": 0}).result(10)
    process.zookeeper.down = True
    receipt = process.producer.send({"n": 1})
    for _ in range(2):
        with pytest.raises(Unavailable):
            process.producer.flush()
    process.zookeeper.down = False
    assert receipt.result(10).duplicate is False
    assert process.producer.flush() is None
    assert numbers(world) == [0, 1]


# -- records that are given up -------------------------------------------------------------------------------------


def test_what_was_never_sent_is_given_up_as_surely_not_in_the_log_and_a_producer_without_ids_goes_on_I14_I16(
    slow_world,
):
    process = Process(slow_world, None, NEVER_BY_ITSELF)
    old = process.producer.send({"n": 1})
    process.zookeeper.down = True
    slow_world.clock.sleep(LATER_S - 2)
    process.background_acts()
    young = process.producer.send({"n": 2})
    assert not old.done()
    slow_world.clock.sleep(2)
    process.background_acts()
    with pytest.raises(Unavailable, match=r"LEDGER_DELIVERY_TIMEOUT.*delivery_timeout_s=120"):
        old.result(0)
    assert not young.done()
    process.zookeeper.down = False
    with pytest.raises(Unavailable, match=r"LEDGER_DELIVERY_TIMEOUT.*1 records were given up"):
        process.producer.flush()  # also for those who look at no receipt
    process.producer.flush()
    assert young.result(0).position == Position(0, 0, 0)
    assert numbers(slow_world) == [2]


@pytest.mark.parametrize("fate", ["applied_then_lost", "lost_before"])
@NAMES
def test_what_was_sent_and_not_found_out_is_given_up_as_unknown_I14(slow_world, name, fate):
    process = Process(slow_world, name, NEVER_BY_ITSELF)
    receipt = process.producer.send({"n": 1})
    process.lose_the_next_commit(fate)
    process.background_acts()
    slow_world.clock.sleep(LATER_S)
    process.background_acts()
    with pytest.raises(OutcomeUnknown, match="not found out whether it is in the log"):
        receipt.result(0)
    process.zookeeper.down = False
    with pytest.raises(OutcomeUnknown, match="1 records were given up"):
        process.producer.flush()
    process.producer.discard()
    process.producer.send({"n": 2})
    process.producer.flush()
    assert numbers(slow_world) == ([1, 2] if fate == "applied_then_lost" else [2])


@pytest.mark.parametrize("explicit", [True, False])
def test_a_producer_with_ids_stops_rather_than_leave_a_gap_until_somebody_takes_notice_I5_I14(slow_world, explicit):
    process = Process(slow_world, "p", NEVER_BY_ITSELF)

    def send(number):
        return process.producer.send({"n": number}, number if explicit else None)

    send(0)
    process.producer.flush()
    old = send(1)
    process.zookeeper.down = True
    slow_world.clock.sleep(60)
    young = send(2)
    slow_world.clock.sleep(LATER_S - 60)
    process.background_acts()
    for receipt in (old, young):  # the younger one would be in the log without the one before it
        with pytest.raises(Unavailable, match="LEDGER_DELIVERY_TIMEOUT"):
            receipt.result(0)
    process.zookeeper.down = False
    for call in (lambda: send(3), process.producer.flush, process.producer.close):
        with pytest.raises(Unavailable, match=r"LEDGER_PRODUCER_STOPPED.*discard what waits"):
            call()
    process.producer.discard()
    assert process.producer.last_sequence_id == 0
    for number in (1, 2, 3):
        send(number)
    process.producer.close()
    assert [(record["n"], record.sequence_id) for record in Reader(slow_world.log(), "earliest", "latest")] == [
        (number, number) for number in range(4)
    ]


# -- failures that do not pass -------------------------------------------------------------------------------------


def terminated(world):
    termination.terminate(world.log())


def deduplicates_no_more(world):
    policies.change(world.log(), policies.Changes(deduplication=False))


def has_a_successor(world):
    Producer(world.log(), name="p").send({"n": 100}).result()


def is_deleted(world):
    topics.delete_topic(world.metadata(), "t", limits=world.limits, clock=world.clock)


@pytest.mark.parametrize(
    ("what", "kind", "code"),
    [
        (terminated, InvalidInput, "LEDGER_TOPIC_TERMINATED"),
        (deduplicates_no_more, InvalidInput, "LEDGER_DEDUPLICATION_OFF"),
        (has_a_successor, Fenced, "LEDGER_PRODUCER_FENCED"),
        (is_deleted, NotFound, "LEDGER_TOPIC_DELETED"),
    ],
)
def test_what_will_never_pass_is_told_at_once_to_every_record_that_waits_and_to_who_comes_next_I6_I14(
    slow_world, what, kind, code
):
    process = Process(slow_world, "p", NEVER_BY_ITSELF)
    receipts = [process.producer.send({"n": number}) for number in range(2)]
    what(slow_world)
    process.background_acts()
    for call in (
        *[partial(receipt.result, 0) for receipt in receipts],
        lambda: process.producer.send({"n": 3}),
        process.producer.flush,
    ):
        with pytest.raises(kind, match=code):
            call()
    assert len(process.producer._delivery.waiting) == 0


def test_a_flush_that_will_never_pass_says_so_and_so_do_the_receipts(slow_world):
    process = Process(slow_world, None, NEVER_BY_ITSELF)
    receipt = process.producer.send({"n": 0})
    terminated(slow_world)
    with pytest.raises(InvalidInput, match="LEDGER_TOPIC_TERMINATED"):
        process.producer.flush()
    with pytest.raises(InvalidInput, match="LEDGER_TOPIC_TERMINATED"):
        receipt.result(0)


def test_an_error_that_nobody_expects_ends_the_waiting_too(slow_world, monkeypatch):
    process = Process(slow_world, None, NEVER_BY_ITSELF)
    receipt = process.producer.send({"n": 0})
    monkeypatch.setattr("pyspark_ledger.append.loose.stage_entry", lambda *_: 1 / 0)
    process.background_acts()
    with pytest.raises(LedgerError, match="ZeroDivisionError"):
        receipt.result(0)
    with pytest.raises(LedgerError, match="ZeroDivisionError"):
        process.producer.send({"n": 1})


# -- closing -------------------------------------------------------------------------------------------------------


@NAMES
@pytest.mark.parametrize("background", [SOON, None], ids=["lingers", "does not"])
def test_close_tries_for_so_long_and_then_says_what_is_left_I14(world, name, background):
    process = Process(world, name, background)
    process.producer.send({"n": 0})
    process.producer.flush()
    process.zookeeper.down = True
    for number in range(1, 4):
        process.producer.send({"n": number})
    begun = time.monotonic()
    with pytest.raises(Unavailable, match=r"3 records were not stored .* none of them is in the log"):
        process.producer.close(timeout=0.2)
    assert time.monotonic() - begun < 60  # and not for as long as a delivery may take
    threading.Timer(0.2, lambda: setattr(process.zookeeper, "down", False)).start()
    process.producer.close(timeout=10)
    with pytest.raises(InvalidInput, match="LEDGER_CLOSED"):
        process.producer.send({"n": 4})
    assert numbers(world) == [0, 1, 2, 3]


def test_close_says_of_how_many_the_outcome_is_unknown_I14(world):
    process = Process(world, background=Background(linger_ms=20))
    process.lose_the_next_commit("applied_then_lost")
    process.producer.send({"n": 0})
    while not process.zookeeper.down:
        time.sleep(0.001)
    process.producer.send({"n": 1})
    with pytest.raises(OutcomeUnknown, match=r"2 records were not stored .* 1 of them may be in the log"):
        process.producer.close(timeout=0.05)
    process.zookeeper.down = False
    process.producer.close(timeout=10)
    assert numbers(world) == [0, 1]


@pytest.mark.parametrize("background", [NEVER_BY_ITSELF, None], ids=["lingers", "does not"])
def test_after_an_exception_nothing_more_is_stored_and_every_record_knows_it_I14(world, background):
    process = Process(world, background=background)
    with pytest.raises(ZeroDivisionError), process.producer as producer:
        receipt = producer.send({"n": 0})
        raise ZeroDivisionError
    with pytest.raises(InvalidInput, match="LEDGER_CLOSED"):
        receipt.result(0)
    assert numbers(world) == []


def test_after_an_exception_in_doubt_the_records_are_told_so_I14(world):
    process = Process(world)
    with pytest.raises(OutcomeUnknown), process.producer as producer:
        receipt = producer.send({"n": 0})
        process.lose_the_next_commit("applied_then_lost")
        producer.flush()
    with pytest.raises(OutcomeUnknown, match="not found out whether it is in the log"):
        receipt.result(0)
    assert numbers(world) == [0]


def test_what_is_being_stored_when_its_producer_is_left_is_tried_no_more_I14(world):
    process = Process(world, background=SOON)
    transact, begun, goes_on = process.zookeeper.transact, threading.Event(), threading.Event()

    def never(ops):
        process.zookeeper.transact = transact
        begun.set()
        goes_on.wait(10)
        raise Unavailable("ZooKeeper does not answer")

    process.zookeeper.transact = never
    receipt = process.producer.send({"n": 0})
    assert begun.wait(10)
    process.producer.__exit__(ValueError)
    assert not receipt.done()
    goes_on.set()
    with pytest.raises(Unavailable):
        receipt.result(10)
    assert numbers(world) == []
