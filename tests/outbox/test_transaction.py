"""client.transaction(): records, acknowledgements and tokens together, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.client import LedgerClient, client_of
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import Conflict, CursorUnderRevision, Fenced, InvalidInput, NotFound, OutcomeUnknown
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults, MemoryMetadata, MemoryServer
from tests.support.worlds import EAGER, SCHEMA, widen


class Place:
    def __init__(self, folder) -> None:
        self.clock, self.folder = SeededClock(), folder
        self.server = MemoryServer(self.clock)
        client = self.client()
        for name in ("in", "out", "audit"):
            client.create_topic(name, SCHEMA)
        with client.producer("in", mint_tokens=True) as producer:
            for number in range(5):
                producer.send({"n": number})

    def client(self, faults: Faults | None = None, limits: Limits = EAGER) -> LedgerClient:
        metadata = MemoryMetadata(self.server, faults, self.clock)
        return client_of(OpenNamespace(metadata, str(self.folder), limits=limits, clock=self.clock))

    def numbers(self, topic: str) -> list[int]:
        return [record["n"] for record in self.client().reader(topic, end="latest")]

    def acknowledged(self) -> int:
        stats = self.client().cursor("in", "s").stats()
        return 5 - stats.backlog_records


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def client(place, faults) -> LedgerClient:
    return place.client(faults)


def test_all_of_it_happens_in_one_step_I3_I11(place, client):
    tokens = client.tokens("in", "g")
    with client.consumer("in", "s") as consumer:
        message = consumer.receive(1)
        before = place.server.time
        with client.transaction() as t:
            t.append("out", {"n": 10})
            t.append("out", [{"n": 11}, {"n": 12}])
            t.append("audit", pa.table({"n": [13]}))
            t.acknowledge(consumer, message)
            t.consume(tokens, [message.token])
            assert place.numbers("out") == []
        assert {name: str(position) for name, position in t.positions.items()} == {"out": "0:0:0", "audit": "0:0:0"}
        assert place.server.time <= before + 2  # the first use of the group makes the parent of its node
        assert place.numbers("out") == [10, 11, 12]
        assert place.numbers("audit") == [13]
        assert place.acknowledged() == 1
        assert tokens.present([message.token]) == [False]
        assert consumer.receive(1)["n"] == 1


def test_a_block_that_raises_does_nothing(place, client):
    with client.consumer("in", "s") as consumer:
        with pytest.raises(ZeroDivisionError):
            with client.transaction() as t:
                t.append("out", {"n": 10})
                t.acknowledge(consumer, consumer.receive(1))
                _ = 1 / 0
        with pytest.raises(InvalidInput, match="LEDGER_CLOSED"):
            t.commit()
    assert place.numbers("out") == []
    assert place.acknowledged() == 0


def test_consume_transform_produce_survives_a_restart_I1(place):
    """What was acknowledged in the transaction is not delivered again, what was not is."""
    for _ in range(5):
        client = place.client()
        with client.consumer("in", "s") as consumer:
            message = consumer.receive(1)
            lost = consumer.receive(0.1)
            with client.transaction() as t:
                t.append("out", {"n": 10 * message["n"]})
                t.acknowledge(consumer, message)
        assert lost is None or lost["n"] == message["n"] + 1
    assert place.numbers("out") == [0, 10, 20, 30, 40]
    assert place.acknowledged() == 5


def test_acknowledgements_in_any_order_leave_gaps(place, client):
    with client.consumer("in", "s") as consumer:
        messages = [consumer.receive(1) for _ in range(5)]
        with client.transaction() as t:
            t.acknowledge(consumer, [messages[1], messages[3]])
        assert consumer.acknowledge(messages[0])
        consumer.redeliver_unacknowledged()
        assert [consumer.receive(1)["n"] for _ in range(2)] == [2, 4]
    assert place.acknowledged() == 3


# -- messages that are outdated ---------------------------------------------------------------------------------------


def outdate(place: Place, client: LedgerClient, consumer, message, how: str) -> None:
    if how == "reset":
        place.client().cursor("in", "s").reset("earliest")
    elif how == "redelivered":
        consumer.redeliver_unacknowledged()
    elif how == "acknowledged":
        consumer.acknowledge(message)
    elif how == "acknowledged by another transaction":
        with client.transaction() as t:
            t.acknowledge(consumer, message)


@pytest.mark.parametrize("how", ["reset", "redelivered", "acknowledged", "acknowledged by another transaction"])
def test_an_outdated_message_refuses_all_and_changes_nothing_I6_I7(place, client, how):
    with client.consumer("in", "s") as consumer:
        message = consumer.receive(1)
        with pytest.raises(Conflict, match=r"LEDGER_MESSAGE_OUTDATED.*message 0:0:0 is .*[Nn]othing was changed"):
            with client.transaction() as t:
                t.append("out", {"n": 10})
                t.acknowledge(consumer, message)
                outdate(place, client, consumer, message, how)
        assert place.numbers("out") == []
        if how in ("reset", "redelivered"):
            assert place.acknowledged() == 0
            assert consumer.receive(1)["n"] == 0  # and comes again


def test_a_consumer_that_was_replaced_is_fenced_I6(place, client):
    consumer = client.consumer("in", "s")
    message = consumer.receive(1)
    client._namespace.metadata.expire()
    other = place.client().consumer("in", "s")
    with pytest.raises(Fenced, match="LEDGER_SUBSCRIPTION_FENCED"):
        with client.transaction() as t:
            t.append("out", {"n": 10})
            t.acknowledge(consumer, message)
    assert place.numbers("out") == []
    assert other.receive(1)["n"] == 0


def test_while_somebody_resets_the_subscription_nothing_is_acknowledged_I7(place, client):
    with client.consumer("in", "s") as consumer:
        message = consumer.receive(1)
        revision = RevisionController(CursorNode(place.client()._namespace.log("in"), "s"))
        revision.start_revision()
        t = client.transaction()
        t.append("out", {"n": 10})
        t.acknowledge(consumer, message)
        with pytest.raises(CursorUnderRevision):
            t.commit()
        revision.give_up()
        t.commit()
    assert place.numbers("out") == [10]


def test_a_token_that_is_gone_refuses_all_I11(place, client):
    tokens = client.tokens("in", "g")
    one, two = tokens.mint(2)
    tokens.consume([one])
    for ids in ([two, one], [two, two]):
        with pytest.raises(Conflict, match=r"LEDGER_TOKEN_CONSUMED.*for group 'g'.*Nothing was changed"):
            with client.transaction() as t:
                t.append("out", {"n": 10})
                t.consume(tokens, ids)
    assert tokens.present([two]) == [True]
    assert place.numbers("out") == []


# -- lost answers ----------------------------------------------------------------------------------------------------


PARTS = {
    "records": "r", "acknowledgements": "a", "tokens": "t", "all": "rat", "acknowledgements and tokens": "at",
}  # fmt: skip


@pytest.mark.parametrize("what", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost"])
@pytest.mark.parametrize("found_out", ["at once", "later"])
def test_a_lost_answer_is_found_out_and_nothing_is_done_twice_I14(place, faults, client, what, fault, found_out):
    tokens = client.tokens("in", "g")
    ids = tokens.mint(2)
    tokens.consume(ids[:1])  # the group is there
    with client.consumer("in", "s") as consumer:
        message = consumer.receive(1)
        with client.transaction() as t:
            t.append("out", {"n": 9})  # what is read once is in memory
        t = client.transaction()
        if "r" in what:
            t.append("out", {"n": 10})
        if "a" in what:
            t.acknowledge(consumer, message)
        if "t" in what:
            t.consume(tokens, ids[1:])
        faults.next_transact(fault)
        if found_out == "later":
            transact = client._namespace.metadata.transact

            def lost(ops):
                client._namespace.metadata.transact = transact
                faults.next_read(*["unavailable"] * 500)
                transact(ops)

            client._namespace.metadata.transact = lost
            with pytest.raises(OutcomeUnknown):
                t.commit()
            with pytest.raises(InvalidInput, match="tried already"):
                t.append("out", {"n": 11})
            faults.stop()
        t.commit()
        t.commit()
        assert place.numbers("out") == ([9, 10] if "r" in what else [9])
        assert place.acknowledged() == (1 if "a" in what else 0)
        assert tokens.present(ids[1:]) == ["t" not in what]
        if "a" in what:
            assert consumer.receive(1)["n"] == 1


@pytest.mark.parametrize("type", ["shared", "key_shared"])
def test_consumers_that_share_acknowledge_in_a_transaction_too_I14(place, client, faults, type):
    client.create_topic("keyed", pa.schema([("n", pa.int64())]), key="n")
    with client.producer("keyed") as producer:
        for number in range(3):
            producer.send({"n": number})
    consumer = client.consumer("keyed", "s", type)
    first, second, third = (consumer.receive(1) for _ in range(3))
    other = place.client().consumer("keyed", "s", type)
    faults.next_transact("applied_then_lost")
    with client.transaction() as t:
        t.append("out", {"n": first["n"]})
        t.acknowledge(consumer, first)
    assert consumer.acknowledge(second)
    for done in (first, second):
        with pytest.raises(Conflict, match=r"LEDGER_MESSAGE_OUTDATED.*acknowledged already"), client.transaction() as t:
            t.append("out", {"n": 10})
            t.acknowledge(consumer, done)
    consumer.flush()
    client._namespace.metadata.expire()
    assert other.receive(1)["n"] == third["n"]  # and nothing else
    assert other.receive(0.0) is None
    with pytest.raises(Fenced), client.transaction() as t:
        t.append("out", {"n": 10})
        t.acknowledge(consumer, third)
    assert consumer.receive(0.0) is None  # it has joined again
    with pytest.raises(Conflict, match=r"LEDGER_MESSAGE_OUTDATED.*another consumer's"), client.transaction() as t:
        t.append("out", {"n": 10})
        t.acknowledge(consumer, third)
    assert place.numbers("out") == [first["n"]]


def test_what_is_done_is_told_so_also_if_the_server_goes_away_right_after_I14(place, faults, client):
    """The cursor's own change makes its watch fire, and whoever looked again now would find nobody."""
    with client.consumer("in", "s") as consumer:
        message = consumer.receive(1)
        with client.transaction() as t:
            t.append("out", {"n": 9})
        t = client.transaction()
        t.append("out", {"n": 10})
        t.acknowledge(consumer, message)
        transact = client._namespace.metadata.transact

        def answered(ops):
            transact(ops)
            client._namespace.metadata.transact = transact
            faults.next_read("unavailable", "unavailable")

        client._namespace.metadata.transact = answered
        t.commit()
        faults.stop()
        assert place.numbers("out") == [9, 10]
        assert consumer.receive(1)["n"] == 1


# -- input -----------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_told_at_once_and_the_rest_goes_on(place, client):
    with client.transaction() as t:
        t.append("out", {"n": 10})
        for wrong, words in (
            ({"m": 1}, "no column 'm'"),
            ({"n": "one"}, "column 'n'"),
            (pa.table({"m": [1]}), "m int64: not in the topic"),
        ):
            with pytest.raises(InvalidInput, match=words):
                t.append("out", wrong)
        with pytest.raises(NotFound, match="LEDGER_TOPIC_NOT_FOUND"):
            t.append("nowhere", {"n": 1})
        with pytest.raises(InvalidInput, match="no consumer"):
            t.acknowledge(None, [])
        with client.consumer("in", "s") as consumer, pytest.raises(InvalidInput, match="no message"):
            t.acknowledge(consumer, ["x"])
        with pytest.raises(InvalidInput, match="LEDGER_INVALID_TOKEN"):
            t.consume(client.tokens("in"), ["x"])
    assert place.numbers("out") == [10]


def test_a_transaction_without_anything_is_no_transaction(place, client):
    time = place.server.time
    with client.transaction() as t:
        t.append("out", [])
    assert t.positions == {}
    assert place.server.time == time


def test_consumers_and_tokens_of_another_client_are_refused(place, client):
    other = place.client()
    with other.consumer("in", "s") as consumer:
        t = client.transaction()
        t.acknowledge(consumer, consumer.receive(1))
        with pytest.raises(InvalidInput, match="of the client that it was made by"):
            t.commit()


def test_files_that_gc_has_overtaken_are_staged_again_I12(place, client):
    with client.transaction() as t:
        t.append("out", {"n": 9})
    t = client.transaction()
    t.append("out", {"n": 10})
    t._together = t._staged()
    for _ in range(3):
        gc.collect(place.client()._namespace.log("out"))
    t.commit()
    assert place.numbers("out") == [9, 10]


def test_a_topic_that_was_made_again_is_told_once_and_then_written_to(place, client):
    with client.transaction() as t:
        t.append("out", {"n": 9})
    place.client().delete_topic("out")
    place.client().create_topic("out", SCHEMA)
    with pytest.raises(NotFound, match="LEDGER_TOPIC_DELETED"):
        with client.transaction() as t:
            t.append("out", {"n": 10})
    with client.transaction() as t:
        t.append("out", {"n": 11})
    assert place.numbers("out") == [11]


# -- numbered ----------------------------------------------------------------------------------------------------------


def test_a_numbered_transaction_is_done_once_whatever_topics_it_names_I5(place, client):
    """As in foreachBatch, whose batch is given again after a crash."""

    def write(number: int, **records: int):
        with client.transaction(producer="job", sequence_id=number) as t:
            for topic, n in records.items():
                t.append(topic, {"n": n})
        return t

    assert not write(0, out=1, audit=1).duplicate
    again = write(0, out=1, audit=1)
    assert (again.duplicate, again.positions) == (True, {})
    assert not write(1, audit=2).duplicate
    with pytest.raises(Conflict, match=r"LEDGER_SEQUENCE_BEHIND.*'job' has written sequence id 1 to its topics"):
        write(0, out=1)
    with pytest.raises(Conflict, match="LEDGER_SEQUENCE_REUSED"):
        write(1, audit=2, out=2)
    assert (place.numbers("out"), place.numbers("audit")) == ([1], [1, 2])


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost"])
def test_a_numbered_transaction_whose_answer_is_lost_is_no_duplicate_I14(place, faults, client, fault):
    with client.transaction(producer="job", sequence_id=0) as t:
        t.append("out", {"n": 1})
        faults.next_transact(fault)
    assert (t.duplicate, place.numbers("out")) == (False, [1])


def test_a_number_needs_a_name(client):
    for wrong in ({"producer": "p"}, {"sequence_id": 1}, {"producer": "", "sequence_id": 1}):
        with pytest.raises(InvalidInput, match="both producer and sequence_id"):
            client.transaction(**wrong)


def test_a_message_of_another_subscription_is_refused_and_nothing_is_acknowledged_I14(client):
    """Elsewhere the same number is another record, which nobody has handled."""
    with client.producer("audit") as producer:
        producer.send({"n": 7})
    for kind in ("exclusive", "shared"):
        with client.consumer("in", kind, kind) as one, client.consumer("audit", kind, kind) as other:
            message, foreign = one.receive(1), other.receive(1)
            with client.transaction() as t:
                t.append("out", {"n": 1})
                with pytest.raises(InvalidInput, match="another subscription"):
                    t.acknowledge(one, foreign)
                t.acknowledge(one, message)
            with pytest.raises(InvalidInput, match="another subscription"):
                one.acknowledge(foreign)
            with pytest.raises(InvalidInput, match="another subscription"):
                one.negative_acknowledge(foreign)
        assert client.cursor("audit", kind).stats().backlog_records == 1


def test_two_consumers_of_one_subscription_are_refused_at_once(client):
    with client.consumer("in", "s", "shared", prefetch=1) as one, client.consumer("in", "s", "shared") as other:
        t = client.transaction()
        t.acknowledge(one, one.receive(1))
        with pytest.raises(InvalidInput, match="two of its consumers"):
            t.acknowledge(other, other.receive(1))
        t.commit()
    assert client.cursor("in", "s").stats().backlog_records == 4


@pytest.mark.parametrize(
    ("producer", "sequence_id", "code"),
    [(" ", 1, "LEDGER_INVALID_NAME"), (7, 1, "LEDGER_INVALID_NAME"), ("p", "1", "LEDGER_INVALID_VALUE"),
     ("p", True, "LEDGER_INVALID_VALUE"), ("p", 1.5, "LEDGER_INVALID_VALUE"), ("p", 1 << 63, "LEDGER_INVALID_VALUE")],
)  # fmt: skip
def test_a_producer_or_an_id_that_is_none_is_refused_before_anything_is_done(client, producer, sequence_id, code):
    with pytest.raises(InvalidInput) as refused:
        client.transaction(producer=producer, sequence_id=sequence_id)
    assert refused.value.code == code


def test_whether_tokens_are_minted_is_asked_before_anything_is_done(client):
    with pytest.raises(InvalidInput, match="mint_tokens is 1, and must be True or False"):
        client.transaction(mint_tokens=1)
    with pytest.raises(InvalidInput, match="mint_tokens is None, and must be True or False"):
        client.outbox("o", mint_tokens=None)


def test_a_topic_too_many_is_left_out_and_the_others_are_committed(place):
    t = place.client(limits=replace(EAGER, topics_together=2)).transaction()
    t.append("out", {"n": 1})
    t.append("audit", {"n": 2})
    with pytest.raises(InvalidInput, match="LEDGER_TOO_MANY_TOPICS"):
        t.append("in", {"n": 3})
    t.append("out", {"n": 4})
    assert set(t.commit()) == {"out", "audit"}


@pytest.mark.parametrize("rows", [None, 7, "n", b"n", [1]])
def test_what_are_no_records_is_refused(client, rows):
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_VALUE"):
        client.transaction().append("out", rows)


def test_columns_that_others_have_added_are_taken_I14(place, client):
    with client.transaction() as t:
        t.append("out", {"n": 1})
    widen(place.client()._namespace.log("out"), "extra")
    with client.transaction() as t:
        t.append("out", {"n": 2})
        t.append("out", {"n": 3, "extra": "x"})
        t.append("out", pa.table({"n": [4], "extra": ["y"]}))
    found = [record["extra"] for record in place.client().reader("out", t.positions["out"], "latest")]
    assert found == [None, "x", "y"]


def test_a_topic_that_was_made_again_with_other_columns_takes_records_I16(place, client):
    with client.transaction() as t:
        t.append("out", {"n": 1})
    other = place.client()
    other.delete_topic("out")
    other.create_topic("out", pa.schema([("text", pa.string())]))
    with client.transaction() as t:
        t.append("out", {"text": "x"})
    assert [record["text"] for record in other.reader("out", end="latest")] == ["x"]
