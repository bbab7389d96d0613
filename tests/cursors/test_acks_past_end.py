"""ZooKeeper was rolled back: what was acknowledged past the end that is left does not move a cursor (I8, I18).

New records would come to lie before such a cursor, and nobody would ever get them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_ledger.base.position import Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors.attachment import Attachment
from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.datasource import LedgerDataSource, planning
from pyspark_ledger.errors import DataLoss
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.memory import MemoryMetadata
from tests.support.query import INITIAL, fields, version_1
from tests.support.rollback import accept_the_loss, restore, snapshot
from tests.support.worlds import SMALL, World, append

WRITTEN = pytest.mark.parametrize("written", [dict, version_1], ids=["version 2", "version 1"])


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, limits=replace(SMALL, commits_per_ledger=1000))
    CursorNode(world.log(), "s").ensure("earliest")
    for number in range(3):
        append(world.log(), number)
    return world


class RollBack:
    """ZooKeeper comes back from the snapshot of an earlier moment, and writers go on as if nothing had been."""

    def __init__(self, world) -> None:
        self._world, self._backup = world, snapshot(world.server)

    def __call__(self, *then: int) -> None:
        restore(self._world.server, self._backup)
        for number in then:
            append(self._world.log(), number)


def mark(world):
    return CursorHandle(world.log(), "s").stats().mark_delete


class Session:
    """What Spark does with a reader of the subscription, in a process of its own."""

    def __init__(self, world, monkeypatch, **options) -> None:
        session = OpenNamespace(MemoryMetadata(world.server), world.storage.uri)
        monkeypatch.setattr(planning, "shared_namespace", lambda *_: session)
        source = LedgerDataSource({"topic": "t", "subscription": "s", **options})
        self.reader = source.streamReader(source.schema())

    def plan(self, start):
        return self.reader.latestOffset(start, self.reader.getDefaultReadLimit())

    def read(self, start, end):
        parts = self.reader.partitions(start, end)
        return [n for part in parts for batch in self.reader.read(part) for n in batch.column("n").to_pylist()]


def test_a_query_whose_checkpoint_is_past_the_end_does_not_move_the_cursor_there(world, monkeypatch):
    roll_back = RollBack(world)
    for number in range(3, 8):
        append(world.log(), number)
    query = Session(world, monkeypatch)
    end = query.plan(INITIAL)
    assert (query.read(INITIAL, end), fields(end)["pos"]) == (list(range(8)), "0:8:0")
    query.reader.stop()
    roll_back()

    query = Session(world, monkeypatch)
    for call in (query.plan, query.reader.commit):  # Spark may say that it is done, too
        with pytest.raises(DataLoss, match=r"LEDGER_SET_BACK.*commit 7 .*failOnDataLoss=false"):
            call(end)
    query.reader.stop()
    assert mark(world) == Position(0, 0, 0)

    accept_the_loss(world.log())
    careless = Session(world, monkeypatch, failOnDataLoss="false")
    again = careless.plan(end)
    assert (fields(again)["pos"], careless.read(end, again), mark(world)) == ("0:3:0", [], Position(0, 0, 0))
    append(world.log(), 100)
    careless.reader._planner.topics[0].log().refresh(sync=True)
    last = careless.plan(again)
    assert (careless.read(again, last), mark(world)) == ([100], Position(0, 3, 0))
    careless.reader.stop()


def test_a_query_that_lives_through_a_rollback_acknowledges_nothing_in_the_place_of_what_is_lost_I8(world, monkeypatch):
    query = Session(world, monkeypatch)
    roll_back = RollBack(world)
    append(world.log(), 3)
    end = query.plan(INITIAL)
    assert query.read(INITIAL, end) == [0, 1, 2, 3]
    roll_back(100, 101)
    for call in (query.reader.commit, query.plan, query.reader.commit):
        with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
            call(end)
    query.reader.stop()
    assert mark(world) == Position(0, 0, 0)


def test_a_checkpoint_of_version_1_past_the_end_does_not_move_the_cursor_there_either(world, monkeypatch, caplog):
    roll_back = RollBack(world)
    append(world.log(), 3)
    query = Session(world, monkeypatch)
    end = version_1(query.plan(INITIAL))
    query.reader.stop()
    roll_back()
    query = Session(world, monkeypatch)
    with caplog.at_level("WARNING"), pytest.raises(DataLoss, match=r"LEDGER_POSITION_PAST_END.*failOnDataLoss=false"):
        query.plan(end)
    query.reader.commit(end)  # Spark may say so, too
    assert "not acknowledged: [LEDGER_POSITION_PAST_END]" in caplog.text
    query.reader.stop()
    assert mark(world) == Position(0, 0, 0)


@WRITTEN
def test_after_a_refusal_a_new_checkpoint_reads_what_is_written_next(world, monkeypatch, written):
    roll_back = RollBack(world)
    for number in range(3, 8):
        append(world.log(), number)
    query = Session(world, monkeypatch)
    end = query.plan(INITIAL)
    query.reader.stop()
    roll_back()
    query = Session(world, monkeypatch)
    with pytest.raises(DataLoss):
        query.plan(written(end))
    query.reader.stop()
    accept_the_loss(world.log())
    for number in range(100, 107):
        append(world.log(), number)
    fresh = Session(world, monkeypatch)
    assert fresh.read(INITIAL, fresh.plan(INITIAL)) == [0, 1, 2, *range(100, 107)]
    fresh.reader.stop()


@pytest.mark.parametrize("cumulative", [True, False])
def test_a_consumer_that_read_more_than_is_left_does_not_move_the_cursor(world, cumulative):
    consumer = Consumer(world.log(watch=True), "s")
    roll_back = RollBack(world)
    for number in range(3, 6):
        append(world.log(), number)
    messages = [consumer.receive(0) for _ in range(6)]
    roll_back(100, 101)
    # As many changes of the head as before, so that its version does not tell.
    world.log().change_head(lambda head: replace(head, last_publish_ms=head.last_publish_ms + 1), "anything")
    if cumulative:
        consumer.acknowledge_cumulative(messages[5])
    else:
        consumer.acknowledge(messages[5])
    with pytest.raises(DataLoss):
        consumer.flush()
    with pytest.raises(DataLoss):
        consumer.close()
    assert mark(world) == Position(0, 0, 0)
    with Consumer(world.log(), "s") as another:
        assert [another.receive(0)["n"] for _ in range(5)] == [0, 1, 2, 100, 101]


@pytest.mark.parametrize("kind", [Consumer, SharedConsumer])
@pytest.mark.parametrize("then", [(100, 101, 102, 103), (100, 101), ()], ids=["longer", "shorter", "nothing"])
def test_what_was_acknowledged_of_the_lost_history_is_not_taken_for_new_records_I8(world, then, kind):
    """Their numbers are the same."""
    consumer = kind(world.log(watch=True), "s")
    roll_back = RollBack(world)
    for number in range(3, 6):
        append(world.log(), number)
    for message in [consumer.receive(0) for _ in range(6)]:
        consumer.acknowledge(message)
    roll_back(*then)
    for call in (consumer.flush, lambda: consumer.receive(0), consumer.close):
        with pytest.raises(DataLoss, match=r"rolled back|set back"):
            call()
    with kind(world.log(), "s") as another:
        assert [another.receive(0)["n"] for _ in range(3 + len(then))] == [0, 1, 2, *then]


def test_a_position_that_was_acknowledged_of_the_lost_history_is_refused_I8(world):
    log = world.log(watch=True)
    attachment = Attachment(CursorNode(log, "s"))
    attachment.attach()
    roll_back = RollBack(world)
    append(world.log(), 3)
    log.refresh()
    roll_back(100, 101)
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"):
        attachment.acknowledge(Position(0, 4, 0), 0)
    assert mark(world) == Position(0, 0, 0)
    attachment.detach()


def test_an_owner_is_refused_by_name_and_may_go_on(world):
    attachment = Attachment(CursorNode(world.log(), "s"))
    attachment.attach()
    with pytest.raises(DataLoss, match="LEDGER_POSITION_PAST_END"):
        attachment.acknowledge(Position(0, 9, 0), 0)
    assert attachment.acknowledge(Position(0, 3, 0), 0).mark_delete == Position(0, 3, 0)  # the end itself is fine
    attachment.detach()


def test_no_acknowledgement_past_the_end_is_written_whoever_has_it(world):
    node = CursorNode(world.log(), "s")
    cursor = node.refresh(sync=True)
    for ordinal, acks in ((4, None), (1, Runs([(2, 4)]))):
        with pytest.raises(DataLoss, match=r"LEDGER_POSITION_PAST_END.*first 4 records.* has 3"):
            node.moved(cursor, ordinal, acks)
    assert node.moved(cursor, 1, Runs([(2, 3)])).mark_delete == Position(0, 1, 0)
