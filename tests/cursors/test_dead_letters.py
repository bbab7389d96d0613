"""A record that was delivered too often goes to the dead letters, in one step with its acknowledgement: it is neither
lost nor doubled, whatever type the consumer is of and whatever goes wrong."""

from __future__ import annotations

import json
import random
from itertools import islice

import pyarrow as pa
import pytest

from pyspark_ledger.client import LedgerClient, client_of
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.receiving import Message
from pyspark_ledger.errors import Conflict, CursorUnderRevision, Fenced, InvalidInput, OutcomeUnknown, Unavailable
from pyspark_ledger.files import dead_letters
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata, MemoryServer
from tests.support.worlds import EAGER

TYPES = ("exclusive", "failover", "shared", "key_shared")
SHARING = ("shared", "key_shared")
RECORDS = 6
KEYED = pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64())])


class Place:
    def __init__(self, folder, seed: int = 0) -> None:
        self.clock, self.folder = SeededClock(seed), folder
        self.server = MemoryServer(self.clock)
        client = self.client()
        client.create_topic("in", KEYED, key="k")
        with client.producer("in") as producer:
            for n in range(RECORDS):
                producer.send({"k": f"key {n % 3}", "n": n})

    def client(self, faults: Faults | None = None) -> LedgerClient:
        metadata = MemoryMetadata(self.server, faults, self.clock)
        return client_of(OpenNamespace(metadata, str(self.folder), limits=EAGER, clock=self.clock))

    def consumer(self, type: str, faults: Faults | None = None, again: int = 1, **options):
        client = self.client(faults)
        return client.consumer("in", "s", type, max_redeliveries=again, dead_letter_topic="dead", **options)

    def letters(self) -> list[dict]:
        if "dead" not in self.client().topics():
            return []
        return [dict(record.value) for record in self.client().reader("dead", end="latest")]

    def dead(self) -> list[int]:
        return [json.loads(letter["record"])["n"] for letter in self.letters()]

    def backlog(self) -> int:
        return self.client().cursor("in", "s").stats().backlog_records

    def work(self, consumer, poison, seconds: int = 40) -> dict[int, list[int]]:
        """Acknowledges all but the poison. Returns how often each record came, as their counts."""
        came: dict[int, list[int]] = {}
        for _ in range(seconds):
            for message in islice(iter(lambda: consumer.receive(0.0), None), 4 * RECORDS):
                came.setdefault(message["n"], []).append(message.delivery_count)
                if message["n"] in poison:
                    consumer.negative_acknowledge(message)
                else:
                    consumer.acknowledge(message)
            self.clock.sleep(1)
        return came


def refuse_first(consumer) -> Message:
    """Handles everything else, so that the next call has to do with what was refused."""
    first, *others = [consumer.receive(0.0) for _ in range(RECORDS)]
    consumer.negative_acknowledge(first)
    for other in others:
        consumer.acknowledge(other)
    consumer.flush()
    return first


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("type", TYPES)
def test_a_record_that_is_refused_too_often_becomes_a_letter_and_the_others_are_handled_I1(place, type):
    with place.consumer(type, again=2) as consumer:
        came = place.work(consumer, poison={1, 4})
    assert came == {0: [1], 1: [1, 2, 3], 2: [1], 3: [1], 4: [1, 2, 3], 5: [1]}
    assert sorted(place.dead()) == [1, 4]
    assert place.backlog() == 0
    letter = min(place.letters(), key=lambda letter: letter["position"])
    assert json.loads(letter.pop("record")) == {"k": "key 1", "n": 1}
    assert letter.pop("failed_at") is not None
    assert letter == {
        "reason": "delivered 3 times to subscription 's', and not acknowledged",
        "topic": "in", "subscription": "s", "position": "0:0:1", "deliveries": 3, "query": None, "batch": None,
    }  # fmt: skip


@pytest.mark.parametrize("type", TYPES)
def test_without_redeliveries_the_first_refusal_is_the_last_and_takes_no_time(place, type):
    with place.consumer(type, again=0) as consumer:
        came = place.work(consumer, poison=set(range(RECORDS)), seconds=3)
    assert came == {n: [1] for n in range(RECORDS)}
    assert sorted(place.dead()) == list(range(RECORDS))


@pytest.mark.parametrize("type", SHARING)
def test_a_record_that_kills_its_consumers_becomes_a_letter_I16(place, type):
    killed = []
    for _ in range(9):
        consumer = place.consumer(type, again=2)
        while (message := consumer.receive(0.0)) is not None:
            if message["n"] == 2:
                killed.append(message.delivery_count)
                consumer._log.metadata.close()
                break
            consumer.acknowledge(message)
        else:
            consumer.close()
            break
    assert killed == [1, 2, 3]
    assert place.dead() == [2]
    assert place.backlog() == 0


@pytest.mark.parametrize("type", SHARING)
def test_a_record_that_nobody_answers_for_becomes_a_letter(place, type):
    consumer = place.consumer(type, again=1, ack_timeout_s=5.0)
    came = []
    for _ in range(60):
        while (message := consumer.receive(0.0)) is not None:
            came.append(message["n"])
            if message["n"] != 3:
                consumer.acknowledge(message)
        place.clock.sleep(1)
    assert came.count(3) == 2
    assert place.dead() == [3]


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired", "unavailable"])
def test_a_lost_answer_makes_no_second_letter_and_loses_none_I1_I14(place, type, fault):
    faults = Faults()
    consumer = place.consumer(type, faults, again=0)
    message = consumer.receive(0.0)
    consumer.negative_acknowledge(message)
    faults.next_transact(fault, fault)
    for _ in range(20):
        try:
            while (other := consumer.receive(0.0)) is not None:
                assert other["n"] != message["n"]
                consumer.acknowledge(other)
            consumer.flush()
        except (Unavailable, OutcomeUnknown):
            pass
        place.server.deliver_delayed()
        place.clock.sleep(1)
    assert place.dead() == [message["n"]]
    assert place.backlog() == 0


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("applied", [False, True])
def test_one_that_dies_while_it_stores_a_letter_leaves_both_or_neither_I1_I3_I14(place, type, applied):
    faults = Faults()
    consumer = place.consumer(type, faults, again=0)
    message = refuse_first(consumer)
    faults.crash_at(1, applied=applied)
    with pytest.raises(Crash):
        consumer.receive(0.0)
    consumer._log.metadata.expire()
    assert len(place.letters()) == 1 - place.backlog() == (1 if applied else 0)
    with place.consumer(type, again=0) as other:
        place.work(other, poison={message["n"]}, seconds=5)
    assert place.dead() == [message["n"]]
    assert place.backlog() == 0


@pytest.mark.parametrize("type", TYPES)
def test_a_reset_that_comes_in_between_brings_it_back_I7(place, type):
    """What was read before the reset is no letter: it is delivered again."""
    consumer = place.consumer(type, again=0)
    refuse_first(consumer)
    original = consumer._grave.bury
    consumer._grave.bury = lambda *given: (place.client().cursor("in", "s").reset("earliest"), original(*given))[1]
    assert consumer.receive(0.0) is None
    consumer._grave.bury = original
    assert place.letters() == []
    assert consumer.receive(0.0)["n"] == 0
    assert place.backlog() == RECORDS


def test_of_a_key_the_next_record_comes_after_the_letter_I2(place):
    with place.consumer("key_shared", again=1) as consumer:
        order = []
        for _ in range(20):
            while (message := consumer.receive(0.0)) is not None:
                order.append((message["n"], len(place.letters())))
                if message["n"] == 1:
                    consumer.negative_acknowledge(message)
                else:
                    consumer.acknowledge(message)
            place.clock.sleep(1)
    assert [each for each in order if each[0] in (1, 4)] == [(1, 0), (1, 0), (4, 1)]


def test_a_topic_for_letters_that_was_deleted_is_made_again(place):
    with place.consumer("exclusive", again=0) as consumer:
        place.client().delete_topic("dead")
        place.work(consumer, poison={5}, seconds=2)
    assert place.dead() == [5]


def test_a_topic_that_is_none_for_letters_is_refused_and_nothing_is_lost(place):
    client = place.client()
    client.create_topic("other", KEYED)
    with pytest.raises(InvalidInput, match=r"LEDGER_SCHEMA_MISMATCH.*topic 'other' is none for dead letters"):
        client.consumer("in", "s", max_redeliveries=1, dead_letter_topic="other")
    consumer = place.consumer("shared", again=0)
    client.delete_topic("dead")
    client.create_topic("dead", KEYED)
    refuse_first(consumer)
    assert consumer.receive(0.0) is None  # the topic that it knew is gone: it looks for another
    for _ in range(3):
        with pytest.raises(InvalidInput, match="is none for dead letters"):
            consumer.receive(0.0)
    client.delete_topic("dead")
    place.work(consumer, poison=(), seconds=2)
    assert place.dead() == [0]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"max_redeliveries": 3}, "dead_letter_topic is missing: give both"),
        ({"dead_letter_topic": "dead"}, "max_redeliveries is missing: give both"),
        ({"max_redeliveries": -1, "dead_letter_topic": "dead"}, "max_redeliveries=-1: a whole number of at least 0"),
        ({"max_redeliveries": True, "dead_letter_topic": "dead"}, "max_redeliveries=True: a whole number"),
        ({"max_redeliveries": 3, "dead_letter_topic": "in"}, "dead_letter_topic='in': it must be another topic"),
        ({"redelivery_delay_s": "1"}, "redelivery_delay_s='1'"),
        ({"max_redelivery_delay_s": None}, "max_redelivery_delay_s=None"),
        ({"type": "shared", "ack_timeout_s": "1"}, "ack_timeout_s='1': a number of seconds of more than 0"),
        ({"type": "shared", "ack_timeout_s": True}, "ack_timeout_s=True: a number of seconds of more than 0"),
        ({"type": "shared", "prefetch": 1.5}, "prefetch=1.5: a whole number of at least 1"),
    ],
)
def test_what_does_not_make_sense_is_told_and_nothing_is_made(place, given, why):
    client = place.client()
    with pytest.raises(InvalidInput, match=rf"LEDGER_INVALID_OPTION.*{why}"):
        client.consumer("in", "s", **given)
    assert client.topics() == ["in"]
    assert client.cursors("in") == []


def test_the_topic_is_made_with_the_columns_that_the_sink_makes(place):
    place.consumer("shared").close()
    log = place.client()._namespace.log("dead")
    assert log.schema(0).names == dead_letters.SCHEMA.names


class Process:
    """Consumes until it dies, with lost answers and crashes."""

    def __init__(self, place: Place, type: str, seed: int) -> None:
        rates = dict.fromkeys(("lost_before", "applied_then_lost", "delayed", "stale_read"), 0.1)
        self.faults = Faults(seed, **rates, expired=0.01)
        self.client, self.consumer = place.client(self.faults), None
        self.type = type

    def step(self, poison: set[int], handled: set[int]) -> None:
        if self.consumer is None:
            self.consumer = self.client.consumer(
                "in", "s", self.type, max_redeliveries=2, dead_letter_topic="dead", redelivery_delay_s=0.1
            )
        message = self.consumer.receive(0.0)
        if message is not None and message["n"] in poison:
            self.consumer.negative_acknowledge(message)
        elif message is not None:
            handled.add(message["n"])
            self.consumer.acknowledge(message)

    def die(self) -> None:
        self.client._namespace.metadata.close()


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_goes_wrong_each_record_is_acknowledged_or_one_letter_I1_I14(tmp_path, type, seed):
    place, dice = Place(tmp_path, seed), random.Random(seed)
    handled, poison = set(), {1, 4}
    processes = [Process(place, type, seed)] * (2 if type in SHARING else 1)
    for step in range(150):
        who = dice.randrange(len(processes))
        if dice.random() < 0.05:
            processes[who].faults.crash_at(dice.randint(1, 3), applied=dice.random() < 0.5)
        try:
            processes[who].step(poison, handled)
        except (Crash, Fenced):
            processes[who].die()
            processes[who] = Process(place, type, 1000 * seed + step)
        except (Unavailable, OutcomeUnknown, Conflict, CursorUnderRevision):
            pass
        place.clock.sleep(0.2)
        if step % 10 == 9:
            check_letters(place, handled)
    for process in processes:
        process.die()
    place.server.deliver_delayed()
    with place.consumer(type, again=2) as last:
        handled |= set(place.work(last, poison)) - poison
    check_letters(place, handled)
    assert poison <= set(place.dead())
    assert place.backlog() == 0


def check_letters(place: Place, handled: set[int]) -> None:
    dead = place.dead()
    assert len(dead) == len(set(dead))
    assert set(dead) <= acknowledged(place) <= set(dead) | handled


def acknowledged(place: Place) -> set[int]:
    """By ordinal, which is the number here."""
    node = CursorNode(place.client()._namespace.log("in"), "s")
    cursor = node.ensure("earliest")
    return set((node.acks(cursor) | ((0, cursor.ordinal),)).numbers())
