"""Who has its turn commits for others: what it may decide for them, and what is left to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pyspark_ledger.append.admission import ADMIT_ALL, StagedBatch, TopicState
from pyspark_ledger.append.append import append as append_batch
from pyspark_ledger.append.append import resolve
from pyspark_ledger.append.combining import Companions
from pyspark_ledger.append.prepared import SideFiles, draft
from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import InvalidInput, OutcomeUnknown
from pyspark_ledger.lifecycle import gc, termination
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.port import Create, RequestKey
from pyspark_ledger.metadata.records import Request
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults
from tests.support.worlds import SCHEMA, World, append, stage

LATE = 1_000_000  # a number in the queue that comes after all others


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, Limits(), SeededClock())


def wants(log: Log, number: int, *, at: int = LATE, commit: Mapping[str, Any] = {}, **changes: Any) -> RequestKey:
    """A request of a process that does nothing more."""
    view, producers = log.producers()
    batch = StagedBatch(log.clock.new_id(), (stage(log, number),), SCHEMA)
    verdict = ADMIT_ALL.judge(batch, TopicState(log, view, producers))
    wanted = replace(draft(log, view.head, batch, verdict, SideFiles(log)).commit, **commit)
    request = Request(wanted, view.head.next_commit)
    key = RequestKey(log.topic.uuid, at, batch.id)
    log.queue.join(key, replace(request, **changes))
    return key


def append_in_turn(log: Log, number: int) -> None:
    """As a writer that has lost two races."""
    log.queue.was_answered_after(0.01)
    append(log, number)


def test_one_writer_alone_sends_one_transaction_and_reads_nothing(world):
    faults = Faults()
    log = world.log(faults)
    append(log, 1)
    reads = []
    log.metadata._on_call = lambda: reads.append(None)
    before = faults.transacts
    append(log, 2)
    assert (faults.transacts - before, len(reads)) == (1, 1)


def test_who_waits_is_taken_along_and_is_told_where_its_commit_is(world):
    log, other = world.log(), world.log()
    key = wants(other, 7)
    append_in_turn(log, 1)
    assert world.read() == [7, 1]
    assert other.queue.waiting() == []
    answer = other.queue.answer(key.id)
    assert answer is not None
    assert (answer.number, answer.ledger, answer.first_entry) == (0, 0, 0)


def test_a_newcomer_that_has_seen_an_empty_queue_does_not_overtake_I17(world):
    log, other = world.log(), world.log()
    append(log, 1)
    wants(other, 7, at=0)
    before = world.clock.monotonic()
    append(log, 2)
    assert world.read() == [1, 2]  # the other did not take its turn
    assert world.clock.monotonic() - before >= log.limits.turn_s
    assert log.queue.waiting() == []


def test_who_committed_for_others_before_does_not_overtake_one_that_it_cannot_take_along_I17(world):
    log, other = world.log(), world.log()
    wants(other, 7)
    append_in_turn(log, 1)
    assert log.queue.leads
    wants(other, 8, at=1, alone=True)
    before = world.clock.monotonic()
    append(log, 2)
    assert world.read() == [7, 1, 2]
    assert world.clock.monotonic() - before >= log.limits.turn_s  # it has waited for it


@pytest.mark.parametrize(
    "changes", [{"alone": True}, {"moves": 3}, {"since": -1}], ids=["its writer's", "another root", "long ago"]
)
def test_what_only_its_writer_can_judge_is_left_to_it(world, changes):
    log = world.log()
    if changes.get("since"):
        changes = {"since": 0}
        log = Log(log.metadata, log.storage, log.topic, limits=replace(Limits(), commits_per_ledger=2), clock=log.clock)
        for number in range(7):
            append(log, number)
    key = wants(world.log(), 70, **changes)
    append_in_turn(log, 10)
    assert world.read()[-1] == 10
    assert 70 not in world.read()
    assert log.queue.waiting() == [key]


def test_a_batch_that_was_staged_too_long_ago_is_left_to_its_writer_I12(world):
    log, other = world.log(), world.log()
    key = wants(other, 7)
    for epoch in (1, 2):
        log.change_head(lambda head, epoch=epoch: replace(head, gc_epoch=epoch), "gc")
    append_in_turn(log, 1)
    assert world.read() == [1]
    assert log.queue.waiting() == [key]


def test_a_batch_that_consumes_tokens_takes_nobody_along(world):
    """Its transaction may be nearly as large as one can be, and must not be refused because of others."""
    log = world.log()
    key = wants(world.log(), 7)
    view, producers = log.producers()
    batch = StagedBatch(log.clock.new_id(), (stage(log, 1),), SCHEMA)
    own = draft(log, view.head, batch, replace(ADMIT_ALL.judge(batch, None), token_ops=(object(),)), SideFiles(log))
    companions = Companions.gather(log, view, producers, own, None)
    assert (companions.waiting, companions.commits, companions.are_all) == (1, [], False)
    assert log.queue.waiting() == [key]


def test_a_batch_of_another_schema_is_left_to_its_writer(world):
    log, other = world.log(), world.log()
    other.view()
    wider = SCHEMA.append(SCHEMA.field("n").with_name("m"))
    append_batch(log, StagedBatch(log.clock.new_id(), (stage(log, 1),), wider, merge_schema=True))
    key = wants(other, 7)
    append_in_turn(log, 2)
    assert log.queue.waiting() == [key]


def test_a_request_whose_commit_is_in_the_log_is_not_committed_again_I1(world):
    """Its answer was lost, it was sent again, and the first one arrives when all is done."""
    log, other = world.log(), world.log()
    key = wants(other, 7)
    [(_, request)] = other.queue.requests([key])
    append_in_turn(log, 1)
    other.metadata.transact([Create(key, request.record, ephemeral=True)])
    append_in_turn(log, 2)
    assert world.read() == [7, 1, 2]
    assert log.queue.waiting() == []


# -- ids -----------------------------------------------------------------------------------------------------


def queued_by(world: World, name: str, *numbers: int) -> Producer:
    """A producer that stands still after it has queued."""
    producer = Producer(world.log(), name=name)
    log = producer._log
    log.queue.was_answered_after(0.01)
    for number in numbers:
        producer.send({"n": number})
    log.queue.wait_for_answers = stand_still
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    return producer


def stand_still(_: float) -> bool:
    raise KeyboardInterrupt


def test_records_with_ids_are_taken_along_and_their_producer_finds_out_I1_I5(world):
    producer = queued_by(world, "ann", 7, 8)
    append_in_turn(world.log(), 1)
    del producer._log.queue.wait_for_answers
    result = producer.flush()
    assert result is not None
    assert result.duplicate
    assert numbers(world) == [7, 8, 1]
    assert producer.last_sequence_id == 1


def test_ids_that_are_in_the_log_or_about_to_be_are_left_to_their_writer_I5(world):
    """Somebody else uses the producer's name. Its writer has to be told, and is when it is its turn."""
    ids = {"sequence_column": "ledger.sequence", "producer": "ann", "highest": (("ann", 0),)}
    key = wants(world.log(), 7, lowest=0, commit=ids)
    successor = Producer(world.log(), name="ann")
    successor.send({"n": 8}).result()
    assert world.log().queue.waiting() == [key]
    append_in_turn(world.log(), 1)
    assert world.log().queue.waiting() == [key]
    assert numbers(world) == [8, 1]


def test_a_later_request_of_a_producer_does_not_overtake_an_earlier_one_I1(world):
    """Its higher ids would make those of the earlier one duplicates."""
    ids = {"sequence_column": "ledger.sequence", "producer": "ann"}
    first = wants(world.log(), 7, lowest=0, alone=True, commit={**ids, "highest": (("ann", 0),)})
    second = wants(world.log(), 8, at=LATE + 1, lowest=1, commit={**ids, "highest": (("ann", 1),)})
    append_in_turn(world.log(), 1)
    assert world.log().queue.waiting() == [first, second]


def numbers(world: World) -> list[int]:
    return [record["n"] for record in Reader(world.log(), "earliest", "latest")]


# -- what the loser is told ----------------------------------------------------------------------------------


def test_a_refusal_in_turn_is_told_as_it_is_and_leaves_no_request_I14(world):
    log = world.log()
    append(log, 1)
    wants(world.log(), 7, alone=True)
    termination.terminate(world.log())
    with pytest.raises(InvalidInput, match="LEDGER_TOPIC_TERMINATED"):
        append_in_turn(log, 2)
    assert len(log.queue.waiting()) == 1


def test_after_a_lost_answer_a_refusal_is_not_told_as_if_nothing_could_come_I14(world):
    faults = Faults()
    log = world.log(faults)
    append(log, 1)
    log.queue.was_answered_after(0.01)
    faults.next_transact("applied_then_lost")
    join = log.queue.join

    def joined_then_terminated(*args):
        sure = join(*args)
        termination.terminate(world.log())
        return sure

    log.queue.join = joined_then_terminated
    with pytest.raises(OutcomeUnknown):
        append(log, 2)
    assert world.read() == [1]


def test_a_batch_that_was_interrupted_while_it_waited_is_found_out_later_I14(world):
    log, seen = world.log(), []
    log.queue.was_answered_after(0.01)
    log.queue.wait_for_answers = stand_still
    batch = StagedBatch(log.clock.new_id(), (stage(log, 7),), SCHEMA)
    with pytest.raises(KeyboardInterrupt):
        append_batch(log, batch, seen.append)
    assert resolve(log, seen[-1]) is None
    assert log.queue.waiting() == []
    append_in_turn(world.log(), 1)
    assert world.read() == [1]


def test_what_an_interrupted_writer_left_in_the_queue_goes_in_the_background_I16(world):
    log = world.log()
    log.queue.was_answered_after(0.01)
    log.queue.wait_for_answers = stand_still
    with pytest.raises(KeyboardInterrupt):
        append(log, 7)
    log.metadata.chores.run_all()
    assert log.queue.waiting() == []


def test_who_is_slow_to_look_at_the_answers_looks_into_the_log_I14(tmp_path):
    world = World(tmp_path, replace(Limits(), answers=1), SeededClock())
    log, leader, seen = world.log(), world.log(), []
    leader.view()  # so it comes before the other in the queue
    append(log, 0)
    log.queue.was_answered_after(0.01)

    def others_act(_: float) -> bool:
        if not seen:
            seen.append(None)
            wants(world.log(), 8)
            append_in_turn(leader, 1)
        return False

    log.queue.wait_for_answers = others_act
    assert str(append(log, 7).start) == "0:1:0"
    assert world.read() == [0, 7, 8, 1]


def test_answers_come_unasked_to_who_waits_and_to_nobody_else(world):
    log, leader, came = world.log(), world.log(), []
    wants(world.log(), 5)
    append_in_turn(leader, 6)
    assert log.queue.answer(bytes(16)) is None  # from here on it watches them
    log.queue.was_answered_after(0.01)

    def others_act(_: float) -> bool:
        if not came:
            append(leader, 1)
            came.append(log.queue._arrived)
        return True

    log.queue.wait_for_answers = others_act
    append(log, 7)
    assert came != [None]
    wants(world.log(), 8)
    append(leader, 2)
    assert log.queue._arrived is None
    assert world.read() == [5, 6, 7, 1, 8, 2]


def test_who_lost_its_session_while_it_waited_queues_again_I16(world):
    log, seen = world.log(), []
    log.queue.was_answered_after(0.01)

    def expires(_: float) -> bool:
        if not seen:
            seen.append(None)
            log.metadata.expire()
        return False

    log.queue.wait_for_answers = expires
    append(log, 7)
    assert world.read() == [7]


def test_a_batch_of_a_query_waits_too_and_is_committed_by_itself_I5(world):
    log = world.log()
    append(log, 1, batch_id=BatchId(0, "q"), producer="spark")
    log.queue.was_answered_after(0.01)
    append(log, 2, batch_id=BatchId(1, "q"), producer="spark")
    log.queue.was_answered_after(0.01)
    assert append(log, 2, batch_id=BatchId(1, "q"), producer="spark").duplicate
    assert world.read() == [1, 2]
    assert log.queue.waiting() == []


def test_a_writer_that_was_idle_looks_for_its_commit_among_the_newest_only_I14(world, monkeypatch):
    """What others have committed meanwhile may be much, and retention may have given it up."""
    idle, other = world.log(), world.log()
    append_in_turn(idle, 0)
    for number in range(1, 6):
        append(other, number)
    idle.queue.was_answered_after(0.01)  # others committed for it when it last appended
    world.clock.sleep(10.0)
    since, join = [], idle.queue.join
    monkeypatch.setattr(idle.queue, "join", lambda key, request: (since.append(request.since), join(key, request))[1])
    Producer(idle).send({"n": 6}).result()
    assert since == [6]
    assert world.read() == list(range(7))


def test_producers_with_long_names_do_not_make_the_transaction_of_another_too_large_I17(world):
    log, other = world.log(), world.log()
    for number in range(20):
        wants(other, number, commit={"producer": str(number) * 60_000})
    append_in_turn(log, 100)
    assert world.read() == [100]
    assert len(other.queue.waiting()) == 20  # each has its turn


def test_who_led_and_was_idle_for_days_reads_the_log_again_before_it_leads_on_I16(tmp_path):
    """gc has deleted files of the index that the log in its memory names."""
    world = World(tmp_path, Limits(commits_per_ledger=4, index_fanout=3, gc_grace_ms=0), SeededClock())
    log, keeper = world.log(), world.log()
    for number in range(5):
        append(keeper, number)
    wants(world.log(), 5)
    append_in_turn(log, 6)
    assert log.queue.leads
    for number in range(7, 27):
        append(keeper, number)
        gc.collect(keeper)
    wants(world.log(), 100, since=0)
    append(log, 27)
    assert world.read()[-1] == 27


def test_where_calls_are_slow_a_writer_has_more_time_to_take_its_turn_I17(world):
    log, other = world.log(), world.log()
    append(log, 1)
    wants(other, 7, at=0, alone=True)
    log.metadata._on_call = lambda: world.clock.sleep(0.4)
    before = world.clock.monotonic()
    append(log, 2)
    assert world.clock.monotonic() - before >= 20 * 0.4 > 3 * log.limits.turn_s
