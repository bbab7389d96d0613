"""What a producer promises when something fails: a record is taken or it is not, once, and nobody is told what is not
true (I1, I5, I14, I16)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_ledger.append import delivery
from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import Fenced, InvalidInput, OutcomeUnknown, Unavailable
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.clock import SeededClock
from tests.support.producers import Process, numbers
from tests.support.worlds import World

NAMES = pytest.mark.parametrize("name", ["p", None], ids=["with a name", "without"])


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, clock=SeededClock())


# -- taken or not --------------------------------------------------------------------------------------------------


@NAMES
def test_a_send_that_raises_has_not_taken_its_record_so_it_may_be_repeated_I1(world, monkeypatch, name):
    monkeypatch.setattr(delivery, "FLUSH_ROWS", 3)
    process = Process(world, name)
    for number in range(3):
        process.producer.send({"n": number})
    process.zookeeper.down = True
    for _ in range(2):
        with pytest.raises(Unavailable):
            process.producer.send({"n": 3})
    process.zookeeper.down = False
    for number in range(3, 8):
        process.producer.send({"n": number})
    process.producer.close()
    assert numbers(world) == list(range(8))


@NAMES
def test_a_batch_whose_sending_raises_is_not_taken_so_it_may_be_repeated_I1(world, name):
    process = Process(world, name)
    process.producer.send_batch(pa.table({"n": [0]}))
    process.zookeeper.down = True
    for _ in range(2):
        with pytest.raises(Unavailable):
            process.producer.send_batch(pa.table({"n": [1, 2]}))
    process.zookeeper.down = False
    process.producer.send_batch(pa.table({"n": [1, 2]}))
    process.producer.send({"n": 3}).result()
    assert numbers(world) == [0, 1, 2, 3]


@NAMES
def test_records_that_are_sent_while_a_batch_is_in_doubt_are_stored_after_it_I1_I2(world, name):
    process = Process(world, name)
    process.lose_the_next_commit("lost_before")
    with pytest.raises(OutcomeUnknown):
        process.producer.send_batch(pa.table({"n": [0, 1]}))
    receipt = process.producer.send({"n": 2})
    with pytest.raises(Unavailable, match=r"what was sent before.*This batch was not taken"):
        process.producer.send_batch(pa.table({"n": [3]}))
    process.zookeeper.down = False
    process.producer.send_batch(pa.table({"n": [3]}))
    assert numbers(world) == [0, 1, 2, 3]
    assert receipt.result().position == Position(0, 1, 0)


# -- in doubt ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["applied_then_lost", "lost_before", "delayed"])
@NAMES
def test_after_an_unknown_outcome_nobody_is_told_that_nothing_was_changed_and_a_flush_finds_out_I14(world, name, fate):
    process = Process(world, name)
    receipts = [process.producer.send({"n": number}) for number in range(3)]
    process.lose_the_next_commit(fate)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="the next flush finds out"):
            process.producer.flush()
    world.server.deliver_delayed()
    process.zookeeper.down = False
    process.producer.flush()
    assert [receipt.result().position for receipt in receipts] == [Position(0, 0, number) for number in range(3)]
    assert numbers(world) == [0, 1, 2]


@NAMES
def test_a_flush_that_was_interrupted_may_be_repeated_I14(world, name):
    process = Process(world, name)
    process.producer.send({"n": 0})
    transact = process.zookeeper.transact

    def interrupted(ops):
        transact(ops)
        process.zookeeper.transact = transact
        raise KeyboardInterrupt

    process.zookeeper.transact = interrupted
    with pytest.raises(KeyboardInterrupt):
        process.producer.flush()
    process.producer.flush()
    process.producer.send({"n": 1}).result()
    assert numbers(world) == [0, 1]


def test_what_was_discarded_in_doubt_and_arrives_late_is_not_taken_for_another_producers_I5(world):
    process = Process(world)
    process.producer.send({"n": 0})
    process.lose_the_next_commit("delayed")
    with pytest.raises(OutcomeUnknown):
        process.producer.flush()
    process.zookeeper.down = False
    process.producer.discard()
    process.producer.send({"n": 1})
    world.server.deliver_delayed()
    process.producer.flush()
    assert numbers(world) == [0, 1]


# -- fenced --------------------------------------------------------------------------------------------------------


def test_a_producer_whose_successor_used_its_ids_is_fenced_and_not_told_duplicate_I6_I14(world):
    old = Process(world)
    old.producer.send({"n": 0}).result()
    receipts = [old.producer.send({"n": number}) for number in (1, 2)]
    old.lose_the_next_commit("lost_before")
    with pytest.raises(OutcomeUnknown):
        old.producer.flush()
    successor = Producer(world.log(), name="p")
    for number in (100, 200):
        successor.send({"n": number}).result()
    old.zookeeper.down = False
    for call in (old.producer.flush, receipts[0].result, lambda: old.producer.send({"n": 3}), old.producer.close):
        with pytest.raises(Fenced, match=r"LEDGER_PRODUCER_FENCED.*another producer.*'p'"):
            call()
    assert [receipt.done() for receipt in receipts] == [False, False]
    assert numbers(world) == [0, 100, 200]
    old.producer.discard()  # it has been told; now it may go on after the other one
    assert old.producer.send({"n": 4}).result().sequence_id == 3
    assert numbers(world) == [0, 100, 200, 4]


def test_a_fenced_producer_is_still_told_which_of_its_records_are_in_the_log_I14(world):
    old = Process(world)
    stored = old.producer.send({"n": 0})
    old.lose_the_next_commit("applied_then_lost")
    with pytest.raises(OutcomeUnknown):
        old.producer.flush()
    Producer(world.log(), name="p").send({"n": 100}).result()
    old.zookeeper.down = False
    lost = old.producer.send({"n": 1})
    assert stored.result().position == Position(0, 0, 0)
    with pytest.raises(Fenced):
        lost.result()
    assert numbers(world) == [0, 100]


def test_what_was_refused_and_never_sent_again_is_not_in_doubt_so_its_ids_are_free_I14(world):
    """Another one uses the name between the decision and its commit."""
    old = Process(world)
    for number in range(3):
        old.producer.send({"n": number})
    transact = old.zookeeper.transact

    def overtaken(ops):
        old.zookeeper.transact = transact
        Producer(world.log(), name="p").send({"n": 100}).result()
        transact(ops)

    old.zookeeper.transact = overtaken
    with pytest.raises(Fenced):
        old.producer.flush()
    old.producer.discard()
    assert old.producer.send({"n": 3}).result().sequence_id == 1
    assert numbers(world) == [100, 3]


# -- records that do not fit ---------------------------------------------------------------------------------------


@NAMES
def test_a_record_that_does_not_fit_is_refused_by_send_and_the_others_are_stored_I16(world, name):
    producer = Producer(world.log(), name=name)
    producer.send({"n": 0})
    with pytest.raises(
        InvalidInput, match=r"LEDGER_INVALID_VALUE.*column 'n' of topic 't' is int64, and 'one' does not"
    ):
        producer.send({"n": "one"})
    with pytest.raises(InvalidInput, match=r"LEDGER_SCHEMA_MISMATCH.*no column 'm'"):
        producer.send({"m": 1})
    producer.send({"n": 1})
    producer.close()
    assert numbers(world) == [0, 1]


@pytest.mark.parametrize("id", ["7", 1 << 63, 1.5, True])
def test_a_sequence_id_that_is_none_is_refused_by_send(world, id):
    producer = Producer(world.log(), name="p")
    with pytest.raises(InvalidInput, match="is not a 64-bit integer"):
        producer.send({"n": 1}, sequence_id=id)
    producer.send({"n": 1}, sequence_id=7)
    producer.close()
    assert numbers(world) == [1]


@pytest.mark.parametrize("batch", ["rows", None, {"n": [1]}, [{"n": 1}]])
def test_a_batch_that_is_no_arrow_data_is_refused_by_name(world, batch):
    with Producer(world.log()) as producer:
        with pytest.raises(InvalidInput, match=f"Arrow RecordBatch or Table, not {type(batch).__name__}"):
            producer.send_batch(batch)
        producer.send_batch(pa.table({"n": [1]}))
    assert numbers(world) == [1]


def test_whether_tokens_are_minted_is_asked_before_anything_is_taken(world):
    with pytest.raises(InvalidInput, match="mint_tokens is 'yes', and must be True or False"):
        Producer(world.log(), mint_tokens="yes")


def test_a_record_may_be_changed_after_it_was_sent(tmp_path):
    world = World(tmp_path, schema=pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))]))
    producer = Producer(world.log())
    record = {"n": 1, "tags": ["a"]}
    producer.send(record)
    record["n"] = "nonsense"
    record["tags"].append(7)
    producer.flush()
    [stored] = Reader(world.log(), "earliest", "latest")
    assert (stored["n"], stored["tags"]) == (1, ["a"])
