"""A sink knows its topic: what a query has run on is never replaced by a topic made since, nor made again by the query.

Without Spark: plans and commits are made as Spark has them made, each in a process of its own (here: a client of its
own)."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_ledger.datasource import LedgerDataSource
from pyspark_ledger.datasource.executor.staging import TaskOrigin, stage
from pyspark_ledger.errors import Conflict, InvalidInput, LedgerError, NotFound
from pyspark_ledger.log import topics
from pyspark_ledger.metadata.port import Create, Delete, DeletedKey, SinkKey, SinkTopicKey
from pyspark_ledger.metadata.records import Deleted, Marker
from pyspark_ledger.metadata.transactions import Transactions
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata
from tests.support.flaky import Behind, StaysBehind
from tests.support.sinks import COLUMNS, Place, Query, in_process

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


DELETED = r"LEDGER_TOPIC_DELETED.*which query q writes to, was deleted, and the query does not make it again"
RECREATED = r"LEDGER_TOPIC_RECREATED.*which query q writes to, was deleted, and the topic of that name is another one"
MARKED = r"LEDGER_TOPIC_DELETED.*topic 'out' was deleted on \d{4}-.*topics create out.*createTopic=true"

# How a query may write, with what it then brings from Spark.
WAYS = {
    "batch ids": {},
    "a producer name": {"producerName": "p"},
    "ids of records": {"sequenceColumn": "n", "producerName": "p"},
    "no deduplication": {"deduplication": "none"},
    "foreachBatch": {"batch": True},
    "an unknown query": {"knows": False},
}


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def query(place, request) -> Query:
    place.make()  # what foreachBatch writes to is made by hand here, and so for all
    return Query(place, **request.param)


# -- the topic is deleted, and perhaps made again ------------------------------------------------------------------


@pytest.mark.parametrize("first", [(), (1,)], ids=["an empty batch", "rows"])
def test_what_a_query_has_run_on_is_not_replaced_by_a_topic_made_since_I1_I16(place, query, first):
    query.write(*first)
    assert place.noted() == place.uuid()
    place.client.delete_topic("out")
    place.make()
    for restart in (False, True):
        if restart:
            query.restart()
        with pytest.raises(Conflict, match=RECREATED) as caught:
            query.write(2)
        assert "new checkpoint" in str(caught.value)
        assert "pyspark-ledger producers forget out spark-q --yes" in str(caught.value)
        assert place.numbers() == []


@pytest.mark.parametrize("first", [(), (1,)], ids=["an empty batch", "rows"])
def test_a_query_does_not_make_its_deleted_topic_again_I1_I16(place, query, first):
    query.write(*first)
    place.client.delete_topic("out")
    for restart in (False, True):
        if restart:
            query.restart()
        with pytest.raises(NotFound, match=DELETED if "checkpointLocation" in query.options else MARKED):
            query.write(2)
        assert place.uuid() is None


@pytest.mark.parametrize("remade", [False, True])
@pytest.mark.parametrize("rows", [(), (2,)], ids=["an empty batch", "rows"])
def test_a_topic_deleted_between_plan_and_commit_gets_nothing_and_is_not_made_again_I1(place, query, remade, rows):
    query.write(1)
    writer = query.plan()
    staged = query.stage(writer, *rows)
    place.client.delete_topic("out")
    if remade:
        place.make()
    refused = pytest.raises(LedgerError, match=r"LEDGER_TOPIC_(DELETED|RECREATED)")
    with refused if rows else contextlib.suppress(LedgerError):  # an empty batch may pass: it brings nothing
        query.commit(writer, staged)
    assert place.uuid() is None or place.numbers() == []
    assert (place.uuid() is None) is not remade


def test_files_staged_for_a_topic_are_never_committed_to_the_one_made_since_I1(place):
    """Also in a query's first batch, in a process that has not planned it: nothing but the tasks knows the topic."""
    query = Query(place)
    writer = query.plan()
    staged = query.stage(writer, 1)
    place.client.delete_topic("out")
    place.make()
    with pytest.raises(Conflict, match=r"LEDGER_TOPIC_RECREATED.*while the batch was written: run it again"):
        query.commit(writer, staged)
    assert place.noted() is None
    query.write(1)  # as it says
    assert place.numbers() == [1]


def test_another_query_makes_the_topic_again_and_the_old_one_stays_refused(place):
    old = Query(place)
    old.write(1)
    place.client.delete_topic("out")
    Query(place, "new").write(2)
    with pytest.raises(Conflict, match=RECREATED):
        old.write(3)
    assert place.numbers() == [2]


@pytest.mark.parametrize("way", WAYS)
def test_forgetting_the_query_lets_it_go_on_in_the_next_topic(place, way):
    place.make()
    query = Query(place, **WAYS[way])
    query.write(1)
    place.client.delete_topic("out")
    place.make()
    with pytest.raises(Conflict, match=RECREATED):
        query.write(2)
    place.client.forget_producer("out", "spark-q")
    assert MemoryMetadata(place.server).read(SinkKey("q")) is None
    query.write(2)
    assert place.numbers() == [2]
    assert place.noted() == place.uuid()


def test_a_query_that_was_forgotten_makes_its_topic_again(place):
    query = Query(place)
    query.write(1)
    place.client.delete_topic("out")
    place.client.forget_producer("out", "spark-q")
    query.write(2)
    assert place.numbers() == [2]
    place.client.forget_producer("out", "spark-q")  # the producer itself
    with pytest.raises(InvalidInput, match="LEDGER_PRODUCER_NOT_FOUND"):
        place.client.forget_producer("out", "spark-q")
    with pytest.raises(NotFound, match="LEDGER_TOPIC_NOT_FOUND"):
        place.client.forget_producer("nothing", "spark-q")


def test_what_one_query_writes_to_is_kept_for_each_topic(place):
    for topic in ("out", "other"):
        place.client.create_topic(topic, COLUMNS)
        Query(place, batch=True, topic=topic).write(1)
    place.client.forget_producer("out", "spark-q")
    keys = MemoryMetadata(place.server).children(SinkKey("q"))
    assert keys == [SinkTopicKey("q", "other")]


# -- who makes a topic ---------------------------------------------------------------------------------------------


def deleted(place: Place) -> None:
    place.make()
    place.client.delete_topic("out")
    assert MemoryMetadata(place.server).read(DeletedKey("out")) is not None


@pytest.mark.parametrize(
    "new", [{}, {"knows": False, "createTopic": "true"}, {"batch": True, "createTopic": "true"}], ids=str
)
def test_the_name_of_a_deleted_topic_is_made_by_a_new_query_or_who_says_so(place, new):
    deleted(place)
    Query(place, **new).write(1)
    assert place.numbers() == [1]
    assert MemoryMetadata(place.server).read(DeletedKey("out")) is None


@pytest.mark.parametrize("new", [{"knows": False}, {"batch": True}, {"query": "", "batch": True}], ids=str)
def test_the_name_of_a_deleted_topic_is_not_made_by_the_way(place, new):
    deleted(place)
    query = Query(place, **new)
    with pytest.raises(NotFound, match=MARKED):
        query.write(1)
    assert place.uuid() is None
    place.make()
    query.write(1)
    assert place.numbers() == [1]


@pytest.mark.parametrize("new", [{}, {"knows": False}, {"batch": True}], ids=str)
def test_a_name_that_is_new_is_made_by_everybody_but_who_says_no(place, new):
    with pytest.raises(NotFound, match=r"LEDGER_TOPIC_NOT_FOUND.*option 'createTopic' is false.*topics create out"):
        Query(place, createTopic="false", **new).write(1)
    assert place.uuid() is None
    Query(place, **new).write(1)
    Query(place, "r", createTopic="false", **new).write(2)
    assert place.numbers() == [1, 2]


def test_an_option_does_not_bring_back_what_a_query_has_run_on_I1(place):
    query = Query(place, createTopic="true")
    query.write(1)
    place.client.delete_topic("out")
    with pytest.raises(NotFound, match=DELETED):
        query.write(2)
    assert place.uuid() is None


# -- the node --------------------------------------------------------------------------------------------------------


class Counting(MemoryMetadata):
    """Knows what it was asked."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.server, None, place.clock)
        self.asked: list[object] = []

    def read(self, key, on_change=None):
        self.asked.append(key)
        return super().read(key, on_change)

    def sync(self) -> None:
        self.asked.append("sync")
        super().sync()

    def transact(self, ops) -> None:
        self.asked += [op.key for op in ops]
        super().transact(ops)

    def about_sinks(self) -> int:
        about = sum(asked == "sync" or isinstance(asked, SinkKey | SinkTopicKey) for asked in self.asked)
        self.asked.clear()
        return about


def counted(place: Place, query: Query) -> tuple[Counting, Counting]:
    stores = Counting(place), Counting(place)
    query.planner, query.committer = map(place.process_with, stores)
    return stores


def test_after_a_query_s_first_batch_nobody_is_asked_which_topic_it_writes_to(place, query):
    planner, committer = counted(place, query)
    query.write(1)
    assert committer.about_sinks() > 0
    query.write(2)
    planner.about_sinks()
    assert committer.about_sinks() == 0
    for rows in ((3,), (), (4,)):
        query.write(*rows)
        assert (planner.about_sinks(), committer.about_sinks()) == (0, 0)
    assert place.numbers() == [1, 2, 3, 4]


def test_the_node_is_read_again_every_day_and_kept_young_I13(place):
    query = Query(place)
    _, committer = counted(place, query)
    metadata = MemoryMetadata(place.server)
    query.write(1)
    made = metadata.read(SinkTopicKey("q", "out"))
    for day in range(1, 4):
        place.clock.sleep(24 * 3600)
        committer.about_sinks()
        query.write()
        assert committer.about_sinks() > 0
        found = metadata.read(SinkTopicKey("q", "out"))
        assert found.record == made.record
        assert found.modified_ms - made.modified_ms >= day * DAY_MS
    assert place.limits.sink_kept_ms >= 30 * place.limits.sink_look_ms  # one lost write does no harm


def test_a_new_process_reads_the_node_and_does_not_write_it_again_the_same_day_I13(place):
    query = Query(place)
    query.write(1)
    query.restart()
    query.write(2)
    assert MemoryMetadata(place.server).read(SinkTopicKey("q", "out")).version == 0


def test_a_connection_that_was_lost_is_a_reason_to_look_again_I18(place):
    """ZooKeeper may have been rolled back meanwhile to a state without the node."""
    query = Query(place)
    query.write(1)
    MemoryMetadata(place.server).transact([Delete(SinkTopicKey("q", "out"))])
    query.committer.metadata.reconnect()
    query.write(2)
    assert place.noted() == place.uuid()


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired"])
@pytest.mark.parametrize("step", [0, 1])
def test_a_lost_answer_to_the_note_is_found_out_I14(place, fault, step):
    query = Query(place)
    writer = query.plan()
    staged = query.stage(writer, 1)
    faults = Faults()
    query.restart(committer=faults)
    faults.next_transact(*[None] * step, fault)
    query.commit(writer, staged)
    assert place.noted() == place.uuid()
    assert place.numbers() == [1]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_commit_that_is_killed_has_noted_the_topic_before_it_appends_I1(place, step, applied):
    query = Query(place)
    writer = query.plan()
    staged = query.stage(writer, 1)
    faults = Faults()
    query.restart(committer=faults)
    faults.crash_at(step, applied=applied)
    with pytest.raises(Crash):
        query.commit(writer, staged)
    appended = place.numbers() == [1]
    assert place.noted() == place.uuid() or not appended
    query.restart()
    query.write(1)
    assert place.numbers() == [1]
    assert place.noted() == place.uuid()


def test_a_topic_deleted_at_the_moment_of_the_note_is_not_noted(place, monkeypatch):
    query = Query(place)
    writer = query.plan()
    staged = query.stage(writer, 1)
    real = Transactions.make

    def deleted_meanwhile(transactions, key, *rest):
        if isinstance(key, SinkKey):
            place.client.delete_topic("out")
        return real(transactions, key, *rest)

    monkeypatch.setattr(Transactions, "make", deleted_meanwhile)
    with pytest.raises(NotFound, match="LEDGER_TOPIC_DELETED"):
        query.commit(writer, staged)
    assert place.noted() is None


def test_two_runs_that_begin_at_once_agree_on_one_topic_I6(place):
    """The old run has planned on a topic that was replaced before the new one planned."""
    old, new = Query(place), Query(place)
    writer = old.plan()
    staged = old.stage(writer, 1)
    place.client.delete_topic("out")
    new.write(2)
    with pytest.raises(LedgerError, match=r"LEDGER_TOPIC_(RECREATED|DELETED)"):
        old.commit(writer, staged)
    assert place.numbers() == [2]


@pytest.mark.parametrize("lags", ["planner", "committer"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_stale_server_does_not_refuse_a_query_that_was_let_go(place, lags, batch):
    place.make()
    query = Query(place, batch=batch)
    query.write(0)
    for behind in range(1, 12):
        place.client.delete_topic("out")
        place.make()
        place.client.forget_producer("out", "spark-q")
        query.restart(**{lags: StaysBehind(behind)})
        query.write(behind)
        assert place.numbers() == [behind]


def test_nobody_is_refused_on_the_word_of_a_server_that_is_behind(place):
    place.make()
    place.process().sinks.remember("q", place.client.topic("out"))
    place.client.delete_topic("out")
    place.make()
    place.client.forget_producer("out", "spark-q")
    topic = place.client.topic("out")
    for behind in range(1, 5):
        place.process(Behind(behind)).sinks.check("q", "out", topic)
    place.process(Behind(1)).sinks.remember("q", topic)
    assert place.noted() == topic.uuid


def test_the_deletion_of_a_topic_whose_name_is_marked_already_marks_it_anew_I14(place):
    """Left there by who made the topic without seeing the mark, from a server that was behind."""
    metadata = MemoryMetadata(place.server)
    for behind in (None, Behind(2)):
        place.make()
        uuid = place.uuid()
        metadata.transact([Create(SinkKey(uuid), Marker())])  # anything: a session catches up with every read
        metadata.transact([Create(DeletedKey("out"), Deleted("before", 1))])
        topics.delete_topic(MemoryMetadata(place.server, behind), "out")
        assert metadata.read(DeletedKey("out")).record.uuid == uuid


# -- everything in any order (models/g_sink) -----------------------------------------------------------------------


class SinkMachine(RuleBasedStateMachine):
    """One query, its restarts and empty batches; the topic is deleted, and made again by hand, at any time. What must
    happen is said by a few lines that know everything."""

    knows = True

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.place = Place(Path(self.folder.name))
        self.query = Query(self.place, knows=self.knows)
        self.ran_on: str | None = None  # what the query has committed to
        self.marked = False
        self.planned = None
        self.written: dict[str, list[int]] = {}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @property
    def topic(self) -> str | None:
        return self.place.uuid()

    @precondition(lambda self: self.topic is not None)
    @rule()
    def delete(self) -> None:
        self.place.client.delete_topic("out")
        self.marked = True

    @precondition(lambda self: self.topic is None)
    @rule()
    def make_by_hand(self) -> None:
        self.place.make()
        self.marked = False

    @rule()
    def restart(self) -> None:
        self.query.restart()
        self.planned = None

    @precondition(lambda self: self.ran_on is not None)
    @rule()
    def forget(self) -> None:
        self.place.client.forget_producer("out", "spark-q")
        self.ran_on = self.planned = None
        self.query.restart()
        self.query.number += 1

    @precondition(lambda self: self.planned is None)
    @rule()
    def plan(self) -> None:
        before = self.topic
        if before is None:
            refused = self.ran_on is not None if self.knows else self.marked
            code = "LEDGER_TOPIC_DELETED"
        else:
            refused = self.knows and self.ran_on not in (None, before)
            code = "LEDGER_TOPIC_RECREATED"
        if refused:
            with pytest.raises(LedgerError, match=code):
                self.query.plan()
            assert self.topic == before
            return
        self.planned = self.query.plan()
        assert before in (None, self.topic)
        self.marked = False if before is None else self.marked
        assert self.ran_on is None or before is not None

    @precondition(lambda self: self.planned is not None)
    @rule(is_empty=st.booleans())
    def commit(self, is_empty: bool) -> None:
        writer, self.planned = self.planned, None
        number, uuid, before = self.query.number, writer._plan.uuid, self.topic
        staged = self.query.stage(writer, *([] if is_empty else [number]))
        if before != uuid or self.ran_on not in (None, uuid):
            with pytest.raises(LedgerError, match=r"LEDGER_TOPIC_(DELETED|RECREATED)"):
                self.query.commit(writer, staged)
                assert is_empty  # this may pass: it brings nothing
                raise NotFound("", "LEDGER_TOPIC_DELETED")
        else:
            self.query.commit(writer, staged)
            self.ran_on = uuid
            if not is_empty:
                self.written.setdefault(uuid, []).append(number)
        assert self.topic == before

    @invariant()
    def every_topic_has_what_was_committed_to_it(self) -> None:
        if hasattr(self, "place") and self.topic is not None:
            assert self.place.numbers() == self.written.get(self.topic, [])
            assert (MemoryMetadata(self.place.server).read(DeletedKey("out")) is not None) == (self.marked)


class SinkOfAnUnknownQueryMachine(SinkMachine):
    knows = False


FEW = settings(max_examples=60, stateful_step_count=20)
TestSinkMachine = SinkMachine.TestCase
TestSinkMachine.settings = FEW
TestSinkOfAnUnknownQueryMachine = SinkOfAnUnknownQueryMachine.TestCase
TestSinkOfAnUnknownQueryMachine.settings = FEW


# -- what is told, and when ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later_s", [0, 60], ids=["from memory", "looked at again"])
@pytest.mark.parametrize("made_again", [False, True], ids=["deleted", "made again"])
def test_foreach_batch_whose_topic_goes_while_it_writes_is_told_how_to_go_on_I16(place, made_again, later_s):
    place.make()
    query = Query(place, batch=True)
    query.write(1)
    writer = query.plan()
    staged = query.stage(writer, 2)
    place.client.delete_topic("out")
    if made_again:
        place.make()
    place.clock.sleep(later_s)
    with pytest.raises(LedgerError, match=RECREATED if made_again else DELETED):
        query.commit(writer, staged)


def test_who_asks_for_deduplication_where_it_is_off_is_told_before_tasks_run_I16(place):
    place.make()
    place.client.set_policies("out", deduplication=False)
    with pytest.raises(InvalidInput, match="LEDGER_DEDUPLICATION_OFF"):
        Query(place).plan()


def test_who_was_refused_because_deduplication_was_off_is_not_refused_after_it_was_turned_on_I14(place):
    """By the same process, which has the policies of that time in memory."""
    place.make()
    query = Query(place)
    place.client.set_policies("out", deduplication=False)
    with pytest.raises(InvalidInput, match="LEDGER_DEDUPLICATION_OFF"):
        query.plan()
    place.client.set_policies("out", deduplication=True)
    query.write(1)
    assert place.numbers() == [1]


@pytest.mark.parametrize("batch", [False, True], ids=["a stream", "foreachBatch"])
def test_records_that_tasks_left_out_are_not_lost_when_their_producer_is_forgotten_meanwhile_I1(place, batch):
    place.make()
    query = Query(place, batch=batch, sequenceColumn="n", producerName="p")
    query.write(1, 2)
    writer = query.plan()
    staged = query.stage(writer, 1, 2, 3)
    place.client.forget_producer("out", "p")
    with pytest.raises(Conflict, match="LEDGER_RETRY"):
        query.commit(writer, staged)


def test_a_producer_that_is_forgotten_beside_others_is_noticed_by_a_process_that_plans_only_to_commit_I1(place):
    """What its own plan knows has nothing of that producer any more: the tasks say what they relied on."""
    place.client.create_topic("out", pa.schema([("who", pa.string()), ("n", pa.int64())]))
    columns = StructType([StructField("who", StringType()), StructField("n", LongType())])
    options = {"topic": "out", "sequenceColumn": "n", "producerColumn": "who"}
    planner, committer = place.process(), place.process()

    def write(number: int, rows: list[tuple[str, int]], meanwhile=lambda: None) -> None:
        with in_process(planner, commits=False):
            plan = LedgerDataSource(options).streamWriter(columns, False)._plan
        batch = pa.RecordBatch.from_pylist([{"who": who, "n": n} for who, n in rows])
        staged = stage(plan, iter([batch]), TaskOrigin("q", "run", number), "spark-q", number)
        meanwhile()
        place.clock.sleep(0.01)
        with in_process(committer, commits=True):
            LedgerDataSource(options).streamWriter(columns, False).commit([staged], number)

    write(0, [("a", 1), ("b", 1)])
    place.clock.sleep(0.01)
    with pytest.raises(Conflict, match="LEDGER_RETRY"):
        write(1, [("a", 2), ("b", 1)], lambda: place.client.forget_producer("out", "b"))
    write(1, [("a", 2), ("b", 1)])
    assert len(list(place.client.reader("out", end="latest"))) == 4
