"""The Python producer's sequence ids (PIP-6): pushed, persisted, and what lies between is resolved, never guessed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.position import Position
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import Conflict, Fenced, InvalidInput, OutcomeUnknown
from pyspark_ledger.log import policies
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults
from tests.support.worlds import SCHEMA, World, append, widen


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, clock=SeededClock())


def records(world):
    return [(record["n"], record.producer, record.sequence_id) for record in Reader(world.log(), "earliest", "latest")]


def lose_answers(faults, *, applied):
    """The next transaction's answer is lost, and ZooKeeper stays out of reach until the deadline."""
    faults.next_transact("applied_then_lost" if applied else "lost_before")
    faults._read_rates["expired"] = 1.0


def back(faults):
    faults._read_rates["expired"] = 0.0


def test_a_named_producer_numbers_its_records_and_goes_on_after_a_crash(world):
    first = Producer(world.log(), name="p")
    assert first.last_sequence_id is None
    receipts = [first.send({"n": n}) for n in range(3)]
    assert first.last_sequence_id is None  # sent, not stored
    first.flush()
    assert [receipt.result().position for receipt in receipts] == [Position(0, 0, n) for n in range(3)]
    assert first.last_sequence_id == 2
    first.send({"n": 99})  # and the process dies

    second = Producer(world.log(), name="p")
    assert second.last_sequence_id == 2
    second.send({"n": 3})
    second.flush()
    assert records(world) == [(n, "p", n) for n in range(4)]


def test_names_that_are_assigned_are_unique_and_leave_no_state(world):
    one, two = Producer(world.log()), Producer(world.log())
    assert one.name != two.name
    for producer in (one, two):
        producer.send({"n": 1}).result()
    assert world.log().producers()[1].all() == []


def test_ids_of_the_application_have_holes_and_duplicates_are_confirmed_without_a_copy(world):
    producer = Producer(world.log(), name="file-1")
    for offset in (0, 100, 250):
        producer.send({"n": offset}, sequence_id=offset)
    producer.flush()
    again = Producer(world.log(), name="file-1")
    assert again.last_sequence_id == 250
    receipts = [again.send({"n": offset}, sequence_id=offset) for offset in (0, 100, 250, 300)]
    assert [receipt.result().duplicate for receipt in receipts] == [True, True, True, False]
    assert records(world) == [(n, "file-1", n) for n in (0, 100, 250, 300)]


def test_initial_sequence_id_is_that_of_the_first_record(world):
    with Producer(world.log(), name="p", initial_sequence_id=1_000) as producer:
        assert producer.send({"n": 1}).sequence_id == 1_000
    with pytest.raises(InvalidInput, match=r"LEDGER_SEQUENCE_BEHIND.*initial_sequence_id is 1000.*has written 1000"):
        Producer(world.log(), name="p", initial_sequence_id=1_000)


def test_all_records_have_an_id_or_none(world):
    producer = Producer(world.log(), name="p")
    producer.send({"n": 1}, sequence_id=1)
    for mixing in (lambda: producer.send({"n": 2}), lambda: producer.send_batch(pa.table({"n": [2]}))):
        with pytest.raises(InvalidInput, match="LEDGER_MIXED_SEQUENCE_IDS"):
            mixing()
    producer.flush()
    assert records(world) == [(1, "p", 1)]


def test_a_lower_id_that_is_not_in_the_log_is_an_error_not_a_silent_drop(world):
    producer = Producer(world.log(), name="p")
    first = producer.send({"n": 5}, sequence_id=5)
    with pytest.raises(InvalidInput, match=r"LEDGER_SEQUENCE_BEHIND.*sequence id 3 comes after 5"):
        producer.send({"n": 3}, sequence_id=3)
    assert producer.send({"n": 5}, sequence_id=5) is first  # under way: one promise, not a duplicate
    assert not first.done()
    assert first.result() == first.result()
    assert records(world) == [(5, "p", 5)]


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("explicit", [True, False])
def test_a_flush_of_unknown_outcome_is_resolved_by_the_next_never_dropped_nor_doubled_pulsar_5218_21892(
    world, applied, explicit
):
    """#5218 recorded the id before the data was durable, and dropped the retry; #21892 stayed stuck until a restart."""
    faults = Faults()
    producer = Producer(world.log(faults), name="p")
    producer.send({"n": 0}, 0 if explicit else None).result()
    receipt = producer.send({"n": 1}, 1 if explicit else None)
    lose_answers(faults, applied=applied)
    with pytest.raises(OutcomeUnknown):
        producer.flush()
    assert (receipt.done(), producer.last_sequence_id) == (False, 0)
    back(faults)
    later = producer.send({"n": 2}, 2 if explicit else None)
    producer.flush()
    assert receipt.result().duplicate == applied
    assert later.result().duplicate is False
    assert records(world) == [(n, "p", n) for n in range(3)]
    assert producer.last_sequence_id == 2


@pytest.mark.parametrize("applied", [True, False])
def test_a_successor_learns_what_became_of_the_last_flush_I14(world, applied):
    faults = Faults()
    producer = Producer(world.log(faults), name="p")
    producer.send({"n": 0}, sequence_id=0).result()
    producer.send({"n": 1}, sequence_id=1)
    lose_answers(faults, applied=applied)
    with pytest.raises(OutcomeUnknown):
        producer.flush()
    successor = Producer(world.log(), name="p")
    assert successor.last_sequence_id == (1 if applied else 0)
    assert successor.send({"n": 1}, sequence_id=1).result().duplicate == applied
    assert records(world) == [(n, "p", n) for n in range(2)]


@pytest.mark.parametrize("applied", [True, False])
def test_a_producer_without_a_name_never_sends_twice_what_may_be_in_the_log_I14(world, applied):
    faults = Faults()
    producer = Producer(world.log(faults))
    producer.send({"n": 0}).result()
    producer.send({"n": 1})
    lose_answers(faults, applied=applied)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match=r"no name: give producers a name"):
            producer.flush()
    back(faults)
    producer.flush()  # it knows its own commit, name or not
    producer.send({"n": 2}).result()
    assert [n for n, _, _ in records(world)] == [0, 1, 2]


def test_a_producer_without_a_name_may_discard_what_is_in_doubt_and_go_on_I16(world):
    faults = Faults()
    producer = Producer(world.log(faults))
    producer.send({"n": 0}).result()
    doubtful = producer.send({"n": 1})
    lose_answers(faults, applied=True)
    with pytest.raises(OutcomeUnknown):
        producer.flush()
    back(faults)
    producer.discard()
    producer.send({"n": 2}).result()
    with pytest.raises(InvalidInput, match="LEDGER_DISCARDED"):
        doubtful.result()
    assert [n for n, _, _ in records(world)] == [0, 1, 2]


def test_after_discard_a_producer_goes_on_from_what_the_log_has(world):
    faults = Faults()
    producer = Producer(world.log(faults), name="p")
    producer.send({"n": 0}).result()
    producer.send({"n": 1})
    lose_answers(faults, applied=True)
    with pytest.raises(OutcomeUnknown):
        producer.flush()
    back(faults)
    producer.discard()
    assert producer.last_sequence_id == 1
    producer.send({"n": 2}).result()
    assert records(world) == [(n, "p", n) for n in range(3)]


def test_two_producers_that_number_by_themselves_under_one_name_are_told_apart_I6(world):
    one, two = Producer(world.log(), name="p"), Producer(world.log(), name="p")
    one.send({"n": 1}).result()
    two.send({"n": 2})
    with pytest.raises(Fenced, match=r"LEDGER_PRODUCER_FENCED.*another producer.*'p'"):
        two.flush()
    assert records(world) == [(1, "p", 0)]


def test_two_producers_that_bring_the_same_ids_add_each_once_I5(world):
    one, two = Producer(world.log(), name="p"), Producer(world.log(), name="p")
    for offset in range(5):
        one.send({"n": offset}, sequence_id=offset)
    receipts = [two.send({"n": offset}, sequence_id=offset) for offset in range(3, 8)]
    one.flush()
    two.flush()
    assert [receipt.result().duplicate for receipt in receipts] == [True, True, False, False, False]
    assert [receipt.result().position for receipt in receipts[2:]] == [Position(0, 1, index) for index in (2, 3, 4)]
    assert records(world) == [(n, "p", n) for n in range(8)]


@pytest.mark.parametrize("applied", [True, False])
def test_arrow_data_is_numbered_too_and_waits_when_its_outcome_is_unknown(world, applied):
    faults = Faults()
    producer = Producer(world.log(faults), name="p")
    producer.send({"n": 0})
    producer.send_batch(pa.table({"n": [1, 2]}))
    lose_answers(faults, applied=applied)
    with pytest.raises(OutcomeUnknown):
        producer.send_batch(pa.table({"n": [3, 4]}))
    back(faults)
    producer.send_batch(pa.table({"n": [5]}))
    assert records(world) == [(n, "p", n) for n in range(6)]


def test_a_name_that_numbers_batches_is_not_a_producers(world):
    append(world.log(), 1, producer="nightly", batch_id=BatchId(4))
    with pytest.raises(Conflict, match="LEDGER_PRODUCER_OWNED"):
        Producer(world.log(), name="nightly")


def test_a_topic_without_deduplication_takes_only_producers_that_do_not_ask_for_it(world):
    policies.change(world.log(), policies.Changes(deduplication=False))
    with pytest.raises(InvalidInput, match="LEDGER_DEDUPLICATION_OFF"):
        Producer(world.log(), name="p")
    plain = Producer(world.log())
    with pytest.raises(InvalidInput, match="LEDGER_DEDUPLICATION_OFF"):
        plain.send({"n": 1}, sequence_id=1)
    plain.send({"n": 2})
    plain.flush()
    assert [n for n, _, _ in records(world)] == [2]


def test_the_column_for_ids_is_in_the_files_and_in_no_schema(world):
    Producer(world.log(), name="p").send({"n": 1}).result()
    log = world.log()
    assert log.schema(log.view().head.schema_id).names == SCHEMA.names
    with pytest.raises(InvalidInput, match=r"'ledger\.sequence' is reserved"):
        Producer(world.log()).send_batch(pa.table({"n": [1], "ledger.sequence": [1]}))


def test_columns_that_others_have_added_are_taken_and_unknown_ones_still_refused_I14(world):
    producer = Producer(world.log())
    producer.send({"n": 1}).result()
    widen(world.log(), "extra")
    with pytest.raises(InvalidInput, match="has no column 'extar'"):
        producer.send({"n": 2, "extar": "x"})
    producer.send({"n": 2, "extra": "x"}).result()
    widen(world.log(), "more")
    producer.send_batch(pa.table({"n": [3], "more": ["y"]}))
    assert [record.value for record in Reader(world.log(), "earliest", "latest")] == [
        {"n": 1, "extra": None, "more": None},
        {"n": 2, "extra": "x", "more": None},
        {"n": 3, "extra": None, "more": "y"},
    ]


def test_a_batch_may_bring_the_ids_of_its_rows_and_what_is_in_the_log_is_left_out_I5(world):
    first = Producer(world.log(), name="p")
    assert first.send_batch(pa.table({"n": [0, 1, 2]}), pa.array([0, 5, 7])).dropped == 0
    again = first.send_batch(pa.table({"n": [0, 1, 2]}), pa.array([0, 5, 7], pa.uint8()))
    assert (again.duplicate, again.dropped) == (True, 3)
    successor = Producer(world.log(), name="p")
    assert successor.last_sequence_id == 7
    more = successor.send_batch(pa.table({"n": [2, 3]}), pa.chunked_array([[7], [9]]))
    assert (more.records, more.dropped, successor.last_sequence_id) == (1, 1, 9)
    assert records(world) == [(0, "p", 0), (1, "p", 5), (2, "p", 7), (3, "p", 9)]
    with pytest.raises(InvalidInput, match="either all records"):
        successor.send_batch(pa.table({"n": [4]}))


@pytest.mark.parametrize("ids", [[1], [1, 1], [2, 1], [1, None], [1.0, 2.0], "12"])
def test_ids_of_rows_that_cannot_be_are_refused_and_nothing_is_taken(world, ids):
    producer = Producer(world.log(), name="p")
    with pytest.raises(InvalidInput, match="2 integers without null, one for each row"):
        producer.send_batch(pa.table({"n": [0, 1]}), ids if ids == "12" else pa.array(ids))
    producer.send_batch(pa.table({"n": [0, 1]}))
    assert records(world) == [(0, "p", 0), (1, "p", 1)]


def test_a_batch_with_ids_whose_answer_was_lost_is_found_I14(tmp_path):
    for applied in (True, False):
        world = World(tmp_path / str(applied), clock=SeededClock())
        faults = Faults(1)
        producer = Producer(world.log(faults), name="p")
        producer.send_batch(pa.table({"n": [9]}), pa.array([2]))
        lose_answers(faults, applied=applied)
        with pytest.raises(OutcomeUnknown):
            producer.send_batch(pa.table({"n": [0, 1]}), pa.array([3, 4]))
        back(faults)
        producer.flush()
        assert records(world) == [(9, "p", 2), (0, "p", 3), (1, "p", 4)]
