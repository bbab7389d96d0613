"""``deadLetterTopic``: rows that cannot be stored go there with the reason, in the same transaction, once. Without
Spark: see ``tests/support/sinks``."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_ledger.errors import InvalidInput, LedgerError, NotFound
from pyspark_ledger.files import dead_letters
from pyspark_ledger.testing.memory import Crash, Faults
from tests.support.sinks import COLUMNS, Place, Query

DEAD = {"deadLetterTopic": "dead"}


class Sink(Query):
    """Rows are dicts; columns that are left out are null."""

    schema = StructType(
        [StructField("to", StringType()), StructField("n", LongType()), StructField("who", StringType())]
    )

    def __init__(self, place: Place, *, nullable: bool = True, **options: str) -> None:
        if "topicColumn" not in options:
            fields = [field for field in self.schema.fields if field.name != "to"]
            self.schema = StructType([StructField(f.name, f.dataType, nullable) for f in fields])
        if "tokenColumn" in options:
            self.schema = StructType([*self.schema.fields, StructField("token", StringType())])
        super().__init__(place, **options)

    def rows(self, rows) -> pa.RecordBatch:
        kinds = {"to": pa.string(), "n": pa.int64(), "who": pa.string(), "token": pa.string()}
        schema = pa.schema([(name, kinds[name]) for name in self.schema.names])
        return pa.RecordBatch.from_pylist(list(rows), schema=schema)


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def dead(place: Place, topic: str = "dead") -> list[tuple]:
    """Why, where to, and what."""
    records = place.client.reader(topic, end="latest")
    return [(record["reason"], record["topic"], json.loads(record["record"])) for record in records]


# -- which rows die, and what is kept of them ------------------------------------------------------------------------


def test_rows_without_a_topic_go_there_with_the_reason_and_the_others_go_on_I3(place):
    query = Sink(place, topicColumn="to", **DEAD)
    query.write({"to": "a", "n": 1}, {"n": 2, "who": "x"}, {"to": "a/b", "n": 3}, {"to": "a", "n": 4}, {"to": "dead"})
    assert place.numbers("a") == [1, 4]
    assert dead(place) == [
        (
            "'a/b' cannot be a topic's name: use 1 to 200 letters, digits, '_', '-' and '.', starting with a letter, a "
            "digit or '_' (a topic has a name, not a path)",
            "a/b",
            {"n": 3, "who": None},
        ),
        ("topic 'dead' is there for something else", "dead", {"n": None, "who": None}),
        ("no topic in column 'to'", None, {"n": 2, "who": "x"}),
    ]
    [*_, record] = place.client.reader("dead", end="latest")
    assert (record["query"], record["batch"]) == ("q", 0)
    assert abs((record["failed_at"] - datetime.now(UTC)).total_seconds()) < 60


def test_rows_for_a_topic_that_may_not_be_made_go_there(place):
    place.client.create_topic("a", pa.schema([("n", pa.int64()), ("who", pa.string())]))
    place.client.create_topic("gone", COLUMNS)
    place.client.delete_topic("gone")
    Sink(place, topicColumn="to", createTopic="true", **DEAD).write()  # makes the topic for dead letters
    query = Sink(place, topicColumn="to", createTopic="false", **DEAD)
    query.write({"to": "a", "n": 1}, {"to": "b", "n": 2}, {"to": "b", "n": 3})
    assert place.numbers("a") == [1]
    assert [(topic, row["n"]) for _, topic, row in dead(place)] == [("b", 2), ("b", 3)]
    assert dead(place)[0][0] == "there is no topic 'b' in this namespace, and option 'createTopic' is false"
    other = Sink(place, query="other", topicColumn="to", **DEAD)
    other.write({"to": "gone", "n": 4})
    assert dead(place)[2][0].startswith("topic 'gone' was deleted, and a write does not make it again unasked")
    assert sorted(place.client.topics()) == ["_staging", "a", "dead"]


def test_a_topic_that_the_query_has_written_to_and_that_is_gone_refuses_all_the_same_I16(place):
    query = Sink(place, topicColumn="to", **DEAD)
    query.write({"to": "a", "n": 1})
    place.client.delete_topic("a")
    with pytest.raises(NotFound, match=r"LEDGER_TOPIC_DELETED.*query q writes to"):
        query.write({"to": "a", "n": 2})
    assert dead(place) == []


MODES = {
    "ids": {"sequenceColumn": "n", "producerColumn": "who"},
    "ids, several topics": {"sequenceColumn": "n", "producerColumn": "who", "topicColumn": "to"},
    "tokens": {"deduplication": "token", "tokenColumn": "token", "tokenGroup": "g"},
    "tokens, several topics": {
        "deduplication": "token", "tokenColumn": "token", "tokenGroup": "g", "topicColumn": "to"
    },
}  # fmt: skip


def good_and_bad(place: Place, mode: str) -> tuple[list[dict], list[tuple[str, int | None]]]:
    """Rows of which each but the first lacks something, and what is to be said of them."""
    place.client.create_topic("minted", COLUMNS)
    [token] = place.client.tokens("minted", "g").mint()
    if mode.startswith("ids"):
        rows = [{"n": 1, "who": "x"}, {"n": None, "who": "x"}, {"n": 3}]
        return rows, [("no sequence id in column 'n'", None), ("no producer in column 'who'", 3)]
    return [{"n": 1, "token": token}, {"n": 2}], [("no token in column 'token'", 2)]


@pytest.mark.parametrize("mode", MODES)
def test_rows_without_an_id_a_producer_or_a_token_go_there_once_I5_I11(place, mode):
    rows, told = good_and_bad(place, mode)
    options = MODES[mode]
    topic = "a" if "topicColumn" in options else "out"
    rows = [{**row, "to": topic} for row in rows] if "topicColumn" in options else rows
    with pytest.raises(InvalidInput, match=r"LEDGER_NO_(SEQUENCE_ID|TOKEN)"):
        Sink(place, query="strict", **options).write(*rows)
    query = Sink(place, **options, **DEAD)
    query.write(*rows)
    for _ in range(2):
        assert place.numbers(topic) == [1]
        assert [(reason, row["n"]) for reason, _, row in dead(place)] == told
        assert {to for _, to, _ in dead(place)} == {topic}
        query.replay(*rows)
    query.write(rows[-1])
    assert len(dead(place)) == len(told) + 1


@pytest.mark.parametrize("mode", ["ids", "tokens"])
def test_an_older_checkpoint_is_no_trouble_where_records_are_known_by_themselves(place, mode):
    rows, told = good_and_bad(place, mode)
    query = Sink(place, **MODES[mode], **DEAD)
    query.write(*rows)
    query.write(*rows[1:])
    query.number = 0
    query.restart()
    query.write(*rows)
    assert place.numbers("out") == [1]
    assert len(dead(place)) == 3 * len(told)  # better twice than not at all


def test_a_null_where_the_topic_allows_none_goes_there_I3(place):
    place.client.create_topic("out", pa.schema([pa.field("n", pa.int64(), False), pa.field("who", pa.string())]))
    rows = [{"n": 1}, {"n": None, "who": "x"}, {"n": 3}]
    with pytest.raises(InvalidInput, match="LEDGER_NULL_NOT_ALLOWED"):
        Sink(place, query="strict").write(*rows)
    query = Sink(place, **DEAD)
    query.write(*rows)
    query.replay(*rows)
    assert place.numbers("out") == [1, 3]
    assert dead(place) == [("null in column 'n', where the topic allows none", "out", {"n": None, "who": "x"})]


@pytest.mark.parametrize("columns", [{}, {"topicColumn": "to"}], ids=["one topic", "several"])
def test_a_batch_that_is_committed_a_second_time_adds_no_dead_letters_I5(place, columns):
    """Planned before its twin was committed: nobody could foresee it."""
    schema = pa.schema([pa.field("n", pa.int64(), False), pa.field("who", pa.string())])
    place.client.create_topic("out", schema)
    query = Sink(place, **columns, **DEAD)
    writer = query.plan()
    staged = query.stage(writer, {"to": "out", "n": 1}, {"to": "out", "who": "x"})
    for _ in range(2):
        query.commit(writer, staged)
        query.number = 0
    assert (place.numbers("out"), len(dead(place))) == ([1], 1)


# -- once, also if the option comes and goes -------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("step", range(1, 5))
@pytest.mark.parametrize("alive", [True, False])
def test_a_driver_that_dies_leaves_all_or_nothing_I1_I3(place, step, applied, alive):
    place.client.create_topic("out", pa.schema([pa.field("n", pa.int64(), False), pa.field("who", pa.string())]))
    faults = Faults()
    query = Sink(place, **DEAD)
    query.write({"n": 0})
    query.restart(committer=faults)
    rows = [{"n": 1}, {"who": "x"}] if alive else [{"who": "x"}]
    writer = query.plan()
    staged = query.stage(writer, *rows)
    faults.crash_at(step, applied=applied)
    try:
        query.commit(writer, staged)
        query.number -= 1
    except Crash:
        pass
    assert len(dead(place)) == (len(place.numbers("out")) - 1 if alive else len(dead(place)))
    query.restart()
    query.write(*rows)
    assert place.numbers("out") == ([0, 1] if alive else [0])
    assert len(dead(place)) == 1


@pytest.mark.parametrize("first", [{}, DEAD])
@pytest.mark.parametrize("then", [{}, DEAD])
@pytest.mark.parametrize("others", ["", "all rows die"])
def test_the_option_may_come_and_go_on_one_checkpoint_and_nothing_is_doubled_or_lost_I1_I5(place, first, then, others):
    place.client.create_topic("out", pa.schema([pa.field("n", pa.int64(), False), pa.field("who", pa.string())]))
    rows = [{"who": "x"}] if others and first else [{"n": 1}, {"who": "x"}] if first else [{"n": 1}, {"n": 2}]
    before = Sink(place, **first)
    before.write(*rows)
    kept = place.numbers("out")
    query = Sink(place, **then)
    query.number, query.run = 0, before.run
    query.restart()
    if then or not first:  # without it such rows are refused, before anything could be doubled
        query.write(*rows)
    else:
        query.number = 1
    assert place.numbers("out") == kept
    query.write({"n": 3})
    assert place.numbers("out") == [*kept, 3]
    if first or then:
        assert len(dead(place)) == (1 if first else 0)


def test_another_topic_for_dead_letters_adds_nothing_to_a_replay_I5(place):
    query = Sink(place, topicColumn="to", **DEAD)
    rows = [{"to": "a", "n": 1}, {"n": 2}]
    query.write(*rows)
    query.options["deadLetterTopic"] = "morgue"
    query.replay(*rows)
    assert (len(dead(place)), len(dead(place, "morgue"))) == (1, 0)
    query.write(*rows)
    assert (len(dead(place)), len(dead(place, "morgue"))) == (1, 1)


# -- the topic itself ------------------------------------------------------------------------------------------------


def test_it_is_made_when_it_is_named_and_has_always_the_same_columns(place):
    Sink(place, **DEAD).plan()
    log = place.client._namespace.log("dead")
    assert log.schema(0).names == dead_letters.SCHEMA.names


def test_a_topic_that_is_none_for_dead_letters_is_refused(place):
    place.client.create_topic("dead", COLUMNS)
    with pytest.raises(
        InvalidInput, match=r"LEDGER_SCHEMA_MISMATCH.*option 'deadLetterTopic': topic 'dead' is none for"
    ):
        Sink(place, **DEAD).plan()


def test_options_that_cannot_be_are_named(place):
    with pytest.raises(InvalidInput, match=r"option 'deadLetterTopic' is 'out': it must be another topic"):
        Sink(place, deadLetterTopic="out").plan()
    with pytest.raises(InvalidInput, match="LEDGER_INVALID_TOPIC_NAME"):
        Sink(place, deadLetterTopic="a/b").plan()
    with pytest.raises(
        NotFound, match=r"option 'deadLetterTopic' is 'dead', there is no such topic, and option 'create"
    ):
        Sink(place, topicColumn="to", createTopic="false", **DEAD).plan()


def test_a_topic_for_dead_letters_that_goes_between_plan_and_commit_refuses_all_I3(place):
    query = Sink(place, topicColumn="to", **DEAD)
    writer = query.plan()
    staged = query.stage(writer, {"to": "a", "n": 1}, {"n": 2})
    place.client.delete_topic("dead")
    with pytest.raises(LedgerError, match=r"LEDGER_TOPIC_(DELETED|NOT_FOUND)"):
        query.commit(writer, staged)
    query.write({"to": "a", "n": 1}, {"n": 2})
    assert (place.numbers("a"), len(dead(place))) == ([1], 1)


def test_every_type_is_kept_as_json_that_can_be_read_back():
    rows = pa.RecordBatch.from_pydict(
        {
            "bytes": pa.array([b"\x00\xff"]),
            "time": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
            "nested": pa.array([{"list": [1, None], "map": [("k", 1.5)]}], pa.struct(
                [("list", pa.list_(pa.int64())), ("map", pa.map_(pa.string(), pa.float64()))])),
            "not a number": pa.array([float("nan")]),
        }
    )  # fmt: skip
    [letter] = dead_letters.letters(rows, "why", None, "", None, 0).to_pylist()
    assert json.loads(letter["record"]) == {
        "bytes": "AP8=",
        "time": "2026-01-01T00:00:00+00:00",
        "nested": {"list": [1, None], "map": {"k": 1.5}},
        "not a number": "NaN",
    }
