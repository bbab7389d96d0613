"""``topicColumn``: each row goes to the topic that it names, all topics of a batch in one transaction, once. Without
Spark: see ``tests/support/sinks``."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.base.names import STAGING_TOPIC
from pyspark_ledger.datasource.executor.routing import split
from pyspark_ledger.datasource.executor.staging import Staged
from pyspark_ledger.errors import Conflict, Fenced, InvalidInput, LedgerError, NotFound
from pyspark_ledger.lifecycle import gc, old_sinks
from pyspark_ledger.metadata.port import SinkKey
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata
from tests.support.sinks import COLUMNS, Place, Query

DAY_S = 24 * 3600


class Routed(Query):
    """Rows are (topic, number), or a number for a query with one topic."""

    schema = StructType([StructField("to", StringType()), StructField("n", LongType())])

    def __init__(self, place: Place, query: str = "q", **options) -> None:
        options = {"topicColumn": "to", **options} if "topic" not in options else options
        if "topic" in options:
            self.schema = StructType([StructField("n", LongType())])
        super().__init__(place, query, **options)

    def rows(self, rows) -> pa.RecordBatch:
        columns = [("to", pa.string()), ("n", pa.int64())]
        found = [row if isinstance(row, tuple) else ("", row) for row in rows]
        batch = pa.RecordBatch.from_pylist([{"to": to, "n": n} for to, n in found], schema=pa.schema(columns))
        return batch if "topicColumn" in self.options else batch.drop_columns(["to"])


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def found(place: Place, *names: str) -> dict[str, list[int]]:
    there = place.client.topics()
    return {name: place.numbers(name) for name in names or there if name in there and name != STAGING_TOPIC}


def claim(place: Place, query: str = "q"):
    return MemoryMetadata(place.server).read(SinkKey(query)).record


# -- routing ---------------------------------------------------------------------------------------------------------


def test_each_row_goes_to_the_topic_that_it_names_in_order_and_the_name_is_not_stored_I2(place):
    query = Routed(place)
    query.write(("a", 1), ("b", 2), ("a", 3), ("c", 4), ("a", 5))
    query.write(("c", 6), ("b", 7), ("b", 8))
    assert found(place) == {"a": [1, 3, 5], "b": [2, 7, 8], "c": [4, 6]}
    assert place.client._namespace.log("a").schema(0).names == ["n"]
    assert place.client._namespace.log(STAGING_TOPIC).view().head.next_commit == 0


def test_all_of_a_batch_is_one_transaction_I3(place):
    query = Routed(place)
    query.write(("a", 1), ("b", 2))
    writer = query.plan()
    staged = query.stage(writer, ("a", 3), ("b", 4))
    before = place.server.time
    query.commit(writer, staged)
    assert place.server.time == before + 1


def test_a_topic_that_tasks_know_is_staged_for_in_place_and_others_are_brought_there(place):
    place.client.create_topic("a", COLUMNS)
    query = Routed(place)
    uuid, staging = place.client.topic("a").uuid, None
    writer = query.plan()
    staged = query.stage(writer, ("a", 1), ("b", 2))
    staging = place.client.topic(STAGING_TOPIC).uuid
    assert {part.topic: part.uuid for part in staged[0].parts} == {"a": uuid, "b": staging}
    query.commit(writer, staged)
    [second] = query.stage(query.plan(), ("b", 3))  # what was made by the first batch is known to the second
    assert {part.uuid for part in second.parts} == {place.client.topic("b").uuid}
    assert found(place) == {"a": [1], "b": [2]}


def test_tasks_follow_one_another_in_each_topic_I2(place):
    query = Routed(place)
    writer = query.plan()
    staged = [*query.stage(writer, ("b", 1), ("a", 2)), *query.stage(writer), *query.stage(writer, ("a", 3), ("b", 4))]
    query.commit(writer, staged)
    assert found(place) == {"a": [2, 3], "b": [1, 4]}


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=50))
def test_a_split_keeps_all_rows_and_their_order_I2(names):
    batch = pa.RecordBatch.from_pydict(
        {"to": pa.array(names, pa.string()), "n": pa.array(range(len(names)), pa.int64())}
    )
    parts = {name: rows["n"].to_pylist() for name, rows in split(batch, "to")}
    wanted: dict = {}
    for number, name in enumerate(names):
        wanted.setdefault(name, []).append(number)
    assert parts == wanted


def test_empty_batches_write_nothing(place):
    query = Routed(place)
    before = place.server.time
    query.write()
    assert found(place) == {}
    query.write(("a", 1))
    assert found(place) == {"a": [1]}
    assert place.server.time > before


# -- once (models/h_claims) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knows", [True, False], ids=["foreseen", "a surprise"])
@pytest.mark.parametrize("again", ["ab", "a", "bc", "c"])
def test_a_replay_adds_nothing_and_makes_nothing_whatever_it_names_I5(place, again, knows):
    query = Routed(place, knows=knows)
    query.write(("a", 1), ("b", 2))
    query.replay(*((name, 1) for name in again), *[("a", 1)] * (2 - len(again)))
    assert found(place) == {"a": [1], "b": [2]}
    query.write(("c", 3))
    assert found(place) == {"a": [1], "b": [2], "c": [3]}


def test_a_replay_that_the_driver_foresees_writes_no_file_I13(place):
    query = Routed(place)
    query.write(("a", 1))
    query.restart()
    query.number -= 1
    [staged] = query.stage(query.plan(), ("a", 1))
    assert (staged.skipped, staged.parts) == (True, ())


def test_an_older_checkpoint_and_an_older_run_are_refused_I5_I6(place):
    query = Routed(place)
    for number in range(3):
        query.write(("ab"[number % 2], number))
    query.number = 1
    query.restart()
    with pytest.raises(Conflict, match=r"LEDGER_SEQUENCE_BEHIND.*has written sequence id 2 to its topics"):
        query.write(("c", 1))
    zombie = Routed(place)
    zombie.number, zombie.run = 3, 1
    with pytest.raises(Fenced, match=r"LEDGER_PRODUCER_FENCED.*run-1"):
        query.number, query.run = 3, 2
        query.write(("a", 9))
        zombie.write(("b", 9))
    assert found(place) == {"a": [0, 2, 9], "b": [1]}


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("step", range(1, 16))
def test_a_driver_that_dies_at_any_transaction_leaves_all_or_nothing_I1_I3(place, step, applied):
    """Then the batch is replayed, with its rows routed elsewhere."""
    query = Routed(place)
    query.write(("a", 0), ("b", 0))
    faults = Faults()
    query.restart(committer=faults)
    writer = query.plan()
    staged = query.stage(writer, ("a", 1), ("b", 1), ("c", 1))
    faults.crash_at(step, applied=applied)
    try:
        query.commit(writer, staged)
        query.number -= 1
    except Crash:
        pass
    done = {name: 1 in numbers for name, numbers in found(place).items()}
    assert set(done.values()) | {done.get("c", False)} in ({True}, {False})
    query.restart()
    query.write(("d", 1), ("e", 1), ("d", 1))
    rows = [number for numbers in found(place).values() for number in numbers]
    assert rows.count(1) == 3
    query.write(("a", 2))
    assert place.numbers("a")[-1] == 2


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "expired"])
def test_lost_answers_are_found_out_I14(place, fault):
    query = Routed(place)
    query.write(("a", 0), ("b", 0))
    faults = Faults()
    query.restart(committer=faults)
    query.write(("a", 1), ("b", 1))
    faults.next_transact(fault)
    query.write(("a", 2), ("b", 2))
    assert found(place) == {"a": [0, 1, 2], "b": [0, 1, 2]}


def test_without_deduplication_a_replay_is_written_again(place):
    query = Routed(place, deduplication="none")
    query.write(("a", 1))
    query.replay(("a", 1))
    assert found(place) == {"a": [1, 1]}
    assert claim(place).sequence is None


@pytest.mark.parametrize("again", ["a", "b"])
def test_ids_of_records_are_judged_in_each_topic_I5(place, again):
    query = Routed(place, sequenceColumn="n", producerName="p")
    query.write(("a", 1), ("b", 1), ("a", 2))
    query.replay(("a", 1), ("b", 1), ("a", 2), (again, 3))
    assert found(place) == {"a": [1, 2, 3], "b": [1]} if again == "a" else {"a": [1, 2], "b": [1, 3]}
    assert claim(place).sequence is None


# -- from one topic to several and back ------------------------------------------------------------------------------


def test_a_query_may_go_on_with_several_topics_and_with_one_again_and_doubles_nothing_I5(place):
    """On one checkpoint. Each time the last batch is replayed first."""
    one = Routed(place, topic="one")
    one.write(1)
    several = Routed(place)
    several.number, several.run = 0, 1
    several.restart()
    several.write(("a", 1))
    assert found(place) == {"one": [1]}
    several.write(("a", 2), ("one", 2))
    back = Routed(place, topic="one")
    back.number, back.run = 1, 2
    back.restart()
    back.write(2, 2)
    assert found(place) == {"a": [2], "one": [1, 2]}
    back.write(3)
    back.replay(3)
    again = Routed(place)
    again.number, again.run = 2, 4
    again.restart()
    again.write(("a", 3))
    again.write(("a", 4))
    assert found(place) == {"a": [2, 4], "one": [1, 2, 3]}


# -- batch jobs ------------------------------------------------------------------------------------------------------


def job(place: Place, sequence: int, *rows, name: str = "job") -> None:
    Routed(place, "", batch=True, producerName=name, sequenceId=str(sequence)).write(*rows)


def test_a_batch_job_is_known_by_its_producer_s_name_I5(place):
    job(place, 1, ("a", 1), ("b", 1))
    job(place, 1, ("c", 1), ("b", 1))
    assert found(place) == {"a": [1], "b": [1]}
    with pytest.raises(Conflict, match=r"LEDGER_SEQUENCE_REUSED.*1 records, the log has 2 records"):
        job(place, 1, ("c", 1))
    job(place, 2, ("a", 2))
    with pytest.raises(Conflict, match="LEDGER_SEQUENCE_BEHIND"):
        job(place, 1, ("a", 1), ("b", 1))
    job(place, 1, ("a", 9), name="another")
    place.client.forget_producer("a", "job")
    job(place, 1, ("c", 1))
    assert found(place) == {"a": [1, 2, 9], "b": [1], "c": [1]}


def test_a_batch_job_without_a_number_is_not_deduplicated(place):
    for _ in range(2):
        Routed(place, "", batch=True).write(("a", 1))
    assert found(place) == {"a": [1, 1]}


# -- topics that are deleted, or may not be made ---------------------------------------------------------------------


def test_a_topic_that_was_deleted_under_the_query_is_not_made_again_nor_replaced_I1_I16(place):
    query = Routed(place)
    query.write(("a", 1), ("b", 1))
    place.client.delete_topic("b")
    for made in (False, True):
        if made:
            place.client.create_topic("b", COLUMNS)
        for _ in range(2):
            with pytest.raises(LedgerError, match=r"LEDGER_TOPIC_(DELETED|RECREATED).*'b'.*query q writes to") as told:
                query.write(("a", 2), ("b", 2))
            assert "pyspark-ledger producers forget b spark-q --yes" in str(told.value)
            query.restart()
    assert found(place) == {"a": [1], "b": []}
    place.client.forget_producer("b", "spark-q")
    query.replay(("a", 1), ("b", 1))  # it is still known what was written
    query.write(("a", 2), ("b", 2))
    assert found(place) == {"a": [1, 2], "b": [2]}


@pytest.mark.parametrize("made_again", [False, True])
def test_a_topic_that_goes_between_plan_and_commit_refuses_all_I3(place, made_again):
    query = Routed(place)
    query.write(("a", 1), ("b", 1))
    writer = query.plan()
    staged = query.stage(writer, ("a", 2), ("b", 2))
    place.client.delete_topic("b")
    if made_again:
        place.client.create_topic("b", COLUMNS)
    with pytest.raises(LedgerError, match=r"LEDGER_TOPIC_(DELETED|RECREATED).*'b'"):
        query.commit(writer, staged)
    assert place.numbers("a") == [1]


def test_the_name_of_a_deleted_topic_is_made_again_only_by_who_says_so(place):
    place.client.create_topic("b", COLUMNS)
    place.client.delete_topic("b")
    with pytest.raises(NotFound, match=r"LEDGER_TOPIC_DELETED.*topic 'b' was deleted, and a write.*createTopic=true"):
        Routed(place).write(("a", 1), ("b", 1))
    assert place.numbers("a") == []
    Routed(place, "another", createTopic="true").write(("b", 1))
    assert place.numbers("b") == [1]


def test_who_says_that_no_topic_is_to_be_made_is_told_which_one_is_missing(place):
    place.client.create_topic("a", COLUMNS)
    query = Routed(place, createTopic="false")
    with pytest.raises(NotFound, match=r"LEDGER_TOPIC_NOT_FOUND.*no topic 'b'.*option 'createTopic' is false"):
        query.write(("a", 1), ("b", 1))
    query.write(("a", 1))
    assert found(place) == {"a": [1]}


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "words"),
    [
        (None, r"LEDGER_NO_TOPIC.*1 rows cannot be stored: no topic in column 'to'.*deadLetterTopic"),
        ("", r"LEDGER_INVALID_TOPIC_NAME.*'' cannot be a topic's name"),
        ("a/b", r"LEDGER_INVALID_TOPIC_NAME.*'a/b' cannot be a topic's name"),
        (STAGING_TOPIC, r"LEDGER_INVALID_TOPIC_NAME.*is there for something else"),
    ],
)
def test_a_row_that_names_no_topic_is_refused_by_name(place, to, words):
    with pytest.raises(InvalidInput, match=words):
        Routed(place).write(("a", 1), (to, 2))
    assert found(place) == {}


def test_a_topic_with_another_schema_refuses_its_rows_and_names_itself(place):
    place.client.create_topic("b", pa.schema([("m", pa.string())]))
    query = Routed(place)
    query.write(("a", 1))
    for _ in range(2):  # known to the tasks or not
        with pytest.raises(InvalidInput, match=r"LEDGER_SCHEMA_MISMATCH\] topic 'b': the schema does not fit"):
            query.write(("a", 2), ("b", 2))
    Routed(place, "another", mergeSchema="true").write(("b", 3))
    assert found(place, "a") == {"a": [1]}
    assert place.numbers("b") == [3]


def test_too_many_topics_are_refused_by_the_tasks_and_by_the_commit(tmp_path):
    place = Place(tmp_path, replace(DEFAULT_LIMITS, topics_together=3))
    query = Routed(place)
    writer = query.plan()
    with pytest.raises(InvalidInput, match=r"LEDGER_TOO_MANY_TOPICS.*more than 3 topics.*maxRowsPerTrigger"):
        query.stage(writer, *((name, 1) for name in "abcd"))
    staged = [*query.stage(writer, ("a", 1), ("b", 1)), *query.stage(writer, ("c", 1), ("d", 1))]
    with pytest.raises(InvalidInput, match=r"LEDGER_TOO_MANY_TOPICS\] 4 topics at once.*3 at most"):
        query.commit(writer, staged)
    assert found(place) == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topicColumn": "too"}, r"topicColumn 'too' is not a column: to, n \(did you mean 'to'\?\)"),
        ({"topicColumn": "n"}, "topicColumn 'n' is of type int64: it must be a string"),
        ({"topicColumn": "to", "path": "x"}, "'topicColumn' and 'topic' .or a path. exclude each other"),
        ({"deduplication": "token", "tokenColumn": "to"}, "need 'tokenGroup'"),
        ({"sequenceColumn": "m", "producerName": "p"}, "sequenceColumn 'm' is not a column"),
    ],
)
def test_options_that_cannot_be_are_named(place, options, words):
    with pytest.raises(InvalidInput, match=words):
        Routed(place, **options).plan()


# -- files and nodes -------------------------------------------------------------------------------------------------


def test_what_is_left_in_the_place_for_unknown_topics_goes_and_never_what_is_needed_I12(place):
    query = Routed(place)
    query.write(("a", 1))
    staging = place.client._namespace.log(STAGING_TOPIC)
    assert len(list(staging.storage.list(staging.topic.uuid))) == 1  # copied, and needed no more
    writer = query.plan()
    staged = query.stage(writer, ("b", 2))
    place.clock.sleep(1.5 * DAY_S)
    place.client.gc(STAGING_TOPIC)  # a batch may take as long as the grace
    query.commit(writer, staged)
    late = query.stage(writer, ("c", 3))
    for _ in range(4):
        place.clock.sleep(1.5 * DAY_S)
        place.client.gc(STAGING_TOPIC)
    assert list(staging.storage.list(staging.topic.uuid)) == []
    with pytest.raises(Conflict, match="LEDGER_STAGED_TOO_LONG_AGO"):
        query.commit(writer, late)
    assert found(place, "a", "b") == {"a": [1], "b": [2]}


def test_a_claim_that_is_used_stays_and_one_that_is_not_goes_after_90_days_I13(place):
    query = Routed(place)
    for day in range(3):
        query.write(("a", day))
        place.clock.sleep(60 * DAY_S)
        assert old_sinks.remove_unused(place.client._namespace) == 0
    query.replay(("a", 2))
    assert place.numbers("a") == [0, 1, 2]
    place.clock.sleep(91 * DAY_S)
    old_sinks.remove_unused(place.client._namespace)
    assert MemoryMetadata(place.server).read(SinkKey("q")) is None


def test_a_claim_outlives_its_topics_I5(place):
    """A query whose topics nobody has asked for, because it had no rows for them, still knows its last batch."""
    query = Routed(place)
    query.write(("a", 1))
    place.client.forget_producer("a", "spark-q")
    place.clock.sleep(60 * DAY_S)
    old_sinks.remove_unused(place.client._namespace)
    query.replay(("a", 1))
    assert place.numbers("a") == [1]


def test_files_staged_for_a_topic_are_not_committed_to_the_one_made_since_I1(place):
    """Also if the query is not bound to it yet."""
    place.client.create_topic("a", COLUMNS)
    query = Routed(place)
    writer = query.plan()
    staged = query.stage(writer, ("a", 1))
    place.client.delete_topic("a")
    place.client.create_topic("a", COLUMNS)
    with pytest.raises(Conflict, match="LEDGER_TOPIC_RECREATED"):
        query.commit(writer, staged)
    query.write(("a", 1))
    assert found(place) == {"a": [1]}


def test_messages_of_tasks_are_small(place):
    query = Routed(place)
    [staged] = query.stage(query.plan(), *itertools.repeat(("a", 1), 1_000))
    assert isinstance(staged, Staged)
    assert len(staged.parts) == 1
    assert staged.parts[0].entry.records == 1_000
    gc.collect(place.client._namespace.log(STAGING_TOPIC))
