"""Queries that follow a subscription: live resets, exact replays, progress that everybody sees (I6, I7, I8)."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException

from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.datasource.executor.reading import METADATA
from pyspark_ledger.errors import Conflict, CursorUnderRevision, Fenced, NotFound
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.metadata.port import RootKey
from pyspark_ledger.testing.clock import SeededClock
from tests.support import examples
from tests.support.query import INITIAL, SMALL_LEDGERS, Query, add, eventually, fields, flat, version_1
from tests.support.said import said
from tests.support.worlds import SCHEMA


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with client_of(open_namespace(namespace, storage_root, limits=SMALL_LEDGERS)) as client:
        client.create_topic("t", SCHEMA)
        yield client


@pytest.fixture
def log(client):
    """Ten entries of three records each, over two sealed ledgers and an open one."""
    for number in range(0, 30, 3):
        add(client, number, number + 1, number + 2)
    return namespace_of(client).log("t")


class Follower(Query):
    """A query on the subscription "s" that can be restarted from its checkpoint, and replayed."""

    def __init__(self, client, **options) -> None:
        super().__init__(client, subscription="s", **{"maxRowsPerTrigger": "4", **options})

    def plan(self, limit=None) -> tuple[dict, dict]:
        self.reader._planner.topics[0].log().refresh(sync=True)  # else a watch says so, a moment later
        if self.reader._planner.topics[0]._subscription is not None:
            self.reader._planner.topics[0]._subscription._attachment.node.refresh(sync=True)
        return super().plan(limit)

    def stop(self) -> None:
        self.reader.stop()

    def check_replays(self, client) -> None:
        """I7: every batch that was logged reads what it read, whatever happened since."""
        again = Query(client)
        for start, end, rows in self.batches:
            if start != end:
                assert again.read(start, end) == rows


def mark(client) -> Position:
    return client.cursor("t", "s").stats().mark_delete


# -- progress ----------------------------------------------------------------------------------------------------


def test_a_batch_is_acknowledged_as_soon_as_spark_says_that_it_is_done(client, log):
    query = Follower(client)
    assert client.cursor("t", "s").stats().backlog_records == 30
    assert query.batch() == [0, 1, 2, 3]
    assert mark(client) == Position(0, 0, 0)  # planned and read, not done
    assert query.batch() == [4, 5, 6, 7]
    assert client.cursor("t", "s").stats().backlog_records == 26
    query.all()
    assert client.cursor("t", "s").stats().backlog_records == 0  # the last one too, while idle
    query.stop()


def test_spark_s_commit_acknowledges_too(client, log):
    query = Follower(client)
    _, end = query.plan()
    query.reader.commit(end)
    assert client.cursor("t", "s").stats().backlog_records == 26
    query.stop()


def test_nothing_new_gives_the_start_back_byte_for_byte(client, log):
    query = Follower(client)
    query.all()
    start, end = query.plan()
    assert start is end
    query.stop()


def test_without_a_checkpoint_a_query_goes_on_after_what_was_acknowledged(client, log):
    first = Follower(client)
    rows = first.batch() + first.batch() + first.batch()
    first.stop()
    second = Follower(client)
    assert second.offset == INITIAL
    assert flat(second.all()) == list(range(8, 30))  # the third batch was not known to be done
    assert rows[:8] == list(range(8))
    second.stop()


def turn(client, checkpoint, batches, **options):
    """One query comes, does some batches, acknowledges them and leaves: (what it delivered, itself)."""
    query = Follower(client, offset=checkpoint, **options)
    rows = flat(query.batch() for _ in range(batches))
    query.reader.commit(query.offset)
    query.stop()
    return rows, query


def test_who_comes_back_is_not_given_what_another_has_acknowledged_I7_I8(client, log, caplog):
    first, a = turn(client, None, 2)
    second, b = turn(client, None, 3)
    assert (first, second) == (list(range(8)), list(range(8, 20)))
    with caplog.at_level("WARNING"):
        third, back = turn(client, a.offset, 1)
    assert third == [20, 21, 22, 23]
    assert fields(back.offset)["from"] == fields(b.offset)["pos"] == str(Position(1, 1, 2))
    assert f"the checkpoint is at {fields(a.offset)['pos']}" in caplog.text
    assert turn(client, back.offset, 2)[0] == [24, 25, 26, 27, 28, 29]
    for query in (a, b, back):
        query.check_replays(client)


def test_without_a_jump_there_is_no_from_and_nothing_to_say(client, log, caplog):
    _, query = turn(client, None, 2)
    with caplog.at_level("WARNING"):
        rows, query = turn(client, query.offset, 1)
    assert (rows, "from" in fields(query.offset), said(caplog)) == ([8, 9, 10, 11], False, [])


def test_who_comes_back_when_nothing_is_left_waits_at_its_own_offset(client, log):
    _, a = turn(client, None, 1)
    turn(client, None, 8)
    query = Follower(client, offset=a.offset)
    start, end = query.plan()
    assert start is end
    add(client, 30)
    assert query.batch() == [30]
    assert query.batch() == []
    assert query.reader.partitions(query.offset, query.offset) == []  # a batch without data, for a query with state
    query.stop()


def test_a_reset_after_coming_back_counts_more_than_what_was_acknowledged_before(client, log):
    _, a = turn(client, None, 1)
    turn(client, None, 4)
    query = Follower(client, offset=a.offset)
    client.cursor("t", "s").reset("earliest")
    assert flat(query.all()) == list(range(30))
    query.stop()


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=8), limit=st.integers(1, 5))
def test_alternating_checkpoints_deliver_everything_that_was_acknowledged_once_and_in_order(client, turns, limit):
    topic = f"t-{secrets.token_hex(8)}"
    client.create_topic(topic, SCHEMA)
    checkpoints, delivered = {}, []
    for number, (who, batches) in enumerate(turns):
        add(client, *range(4 * number, 4 * number + 4), topic=topic)
        rows, query = turn(client, checkpoints.get(who), batches, topic=topic, maxRowsPerTrigger=str(limit))
        delivered += rows
        checkpoints[who] = query.offset
    assert delivered == list(range(len(delivered)))


def test_a_new_subscription_starts_where_the_options_say_and_an_old_one_where_it_is(client, log):
    query = Follower(client, startingOffsets="latest")
    add(client, 30)
    assert flat(query.all()) == [30]
    query.stop()
    query = Follower(client, startingOffsets="earliest")
    assert flat(query.all()) == []
    query.stop()


def test_epoch_and_revision_are_on_every_record(client, log):
    query = Follower(client, includeMetadata="true")
    query.stop()
    query = Follower(client, includeMetadata="true")
    client.cursor("t", "s").reset("latest")
    add(client, 30)
    start, end = query.plan()
    (part,) = query.reader.partitions(start, end)
    (row,) = (row for batch in query.reader.read(part) for row in batch.to_pylist())
    assert (row["n"], row[METADATA]["epoch"], row[METADATA]["revision"]) == (30, 2, 1)
    query.stop()


# -- live resets ---------------------------------------------------------------------------------------------------


def test_a_running_query_goes_on_from_the_new_position_within_one_trigger_I7(client, log):
    query = Follower(client)
    query.batch()
    query.batch()
    cursor = client.cursor("t", "s")
    moved = cursor.reset(Position(1, 0, 1))
    assert query.batch() == [16, 17, 18, 19]
    end = fields(query.batches[-1][1])
    assert (end["rev"], end["from"]) == (1, str(moved.position))
    assert query.batch() == [20, 21, 22, 23]
    assert "from" not in query.batches[-1][1]
    cursor.reset("earliest")
    assert flat(query.all()) == list(range(30))
    query.check_replays(client)
    query.stop()


def test_several_resets_between_two_batches_are_the_last_one(client, log):
    query = Follower(client)
    query.batch()
    for to in ("latest", "earliest", Position(0, 3, 0), "earliest", Position(0, 2, 0)):
        client.cursor("t", "s").reset(to)
    assert query.batch() == [6, 7, 8, 9]
    assert fields(query.batches[-1][1])["rev"] == 5
    query.stop()


def test_a_logged_batch_reads_its_interval_also_when_a_reset_came_before_it_ran_I7(client, log):
    query = Follower(client)
    query.batch()
    start, end = query.plan()
    client.cursor("t", "s").reset("earliest")
    assert query.read(start, end) == [4, 5, 6, 7]
    assert query.batch() == [0, 1, 2, 3]
    assert mark(client) == Position(0, 0, 0)  # nothing that was done under the old revision counts
    query.batch()
    assert mark(client) == Position(0, 1, 1)
    query.stop()


def test_a_reset_while_the_query_is_down_is_followed_after_its_restart(client, log):
    query = Follower(client)
    query.batch()
    query.batch()
    query.stop()
    client.cursor("t", "s").reset(Position(0, 1, 0))
    again = Follower(client, offset=query.offset)
    assert again.batch() == [3, 4, 5, 6]
    query.check_replays(client)
    again.stop()


def test_while_the_cursor_is_being_moved_no_batch_is_planned(client, log):
    query = Follower(client)
    query.batch()
    controller = RevisionController(CursorNode(namespace_of(client).log("t"), "s"))
    controller.start_revision()
    eventually(lambda: query.batch() == [])
    start, end = query.plan()
    assert start is end
    controller.end_revision(lambda cursor: cursor)
    eventually(lambda: query.batch() != [])
    query.stop()


def test_an_available_now_query_does_not_end_because_its_cursor_is_being_moved_I16(client, log):
    """It would find nothing new and count as a success, with all its backlog left."""
    query = Follower(client)
    query.batch()
    controller = RevisionController(CursorNode(namespace_of(client).log("t"), "s"))
    controller.start_revision()
    query.reader._planner.topics[0]._subscription._attachment.node.refresh(sync=True)
    query.reader.prepareForTriggerAvailableNow()
    threading.Timer(0.5, controller.end_revision, (lambda cursor: cursor,)).start()
    assert query.batch() != []
    query.stop()


def test_an_available_now_query_whose_cursor_is_moved_without_an_end_says_by_whom_I16(client, log):
    query = Follower(client)
    query.batch()
    RevisionController(CursorNode(namespace_of(client).log("t"), "s"), "a stuck resetter").start_revision()
    query.reader._planner.topics[0]._subscription._attachment.node.refresh(sync=True)
    query.reader.prepareForTriggerAvailableNow()
    query.reader._planner.topics[0].log().clock = SeededClock()  # on which a quarter of a minute passes quickly
    with pytest.raises(CursorUnderRevision, match="being reset by a stuck resetter"):
        query.plan()


def test_skip_and_clear_backlog_never_move_a_running_query_back(client, log):
    query = Follower(client)
    query.batch()
    query.batch()
    query.plan()
    client.cursor("t", "s").skip(2)  # the query is past that
    assert query.batch() == [12, 13, 14, 15]
    client.cursor("t", "s").clear_backlog()
    assert query.batch() == []
    add(client, 30)
    assert query.batch() == [30]
    query.stop()


def test_a_reset_to_the_end_leaves_nothing_to_read_until_something_comes(client, log):
    query = Follower(client)
    query.batch()
    client.cursor("t", "s").reset("latest")
    assert query.all() == []
    add(client, 30)
    assert query.all() == [[30]]
    query.check_replays(client)
    query.stop()


def test_rewind_reads_again_what_is_not_acknowledged(client, log):
    query = Follower(client)
    query.batch()
    query.batch()
    client.cursor("t", "s").rewind()
    assert query.batch() == [4, 5, 6, 7]
    assert client.cursor("t", "s").redeliver().revision == 2
    assert query.batch() == [4, 5, 6, 7]
    assert fields(query.batches[-1][1])["epoch"] == 2
    query.stop()


def test_discarded_batches_read_nothing_for_ever_and_finished_ones_what_they_read(client, log):
    query = Follower(client)
    query.batch()
    query.batch()
    poison = query.plan()
    client.cursor("t", "s").reset(Position(1, 0, 0), discard_planned=True)
    eventually(lambda: query.read(*poison) == [])
    assert query.batch() == [15, 16, 17, 18]
    query.stop()
    again = Follower(client, offset=query.offset)
    assert again.read(*poison) == []
    assert again.read(*query.batches[0][:2]) == [0, 1, 2, 3]
    assert again.read(*query.batches[-1][:2]) == [15, 16, 17, 18]
    again.stop()


def test_a_subscription_that_was_made_again_is_told_from_the_old_one(client, log):
    query = Follower(client)
    query.batch()
    client.cursor("t", "s").reset("earliest")
    query.batch()
    query.stop()
    client.cursor("t", "s").delete()
    with pytest.raises(Conflict, match="LEDGER_CURSOR_RECREATED"):
        Follower(client, offset=query.offset).batch()


def test_a_subscription_that_was_made_again_at_the_same_revision_is_told_from_the_old_one(client, log):
    """Epochs only grow, and every query that attaches raises them: a checkpoint that knows the epoch under which its
    query now attaches knows another cursor."""
    query = Follower(client)
    query.batch()
    query.batch()
    query.stop()
    client.cursor("t", "s").delete()
    client.create_cursor("t", "s", Position(1, 0, 0))  # at another place: to go on at the old one would be silent
    again = Follower(client, offset=version_1(query.offset))  # of version 2, it knows the cursor's id
    for call in (again.batch, again.batch, lambda: again.reader.commit(version_1(query.offset))):
        with pytest.raises(Conflict, match=r"LEDGER_CURSOR_RECREATED.*'s'.*recreated.*new checkpoint"):
            call()
    again.stop()
    assert mark(client) == Position(1, 0, 0)  # and nothing was acknowledged
    fresh = Follower(client)
    assert fresh.batch() == [15, 16, 17, 18]
    fresh.stop()


def test_a_subscription_made_again_that_others_have_used_as_often_is_told_from_the_old_one_by_its_id(client, log):
    query = Follower(client)
    query.batch()
    query.batch()
    query.stop()
    client.cursor("t", "s").delete()
    for _ in range(2):
        Follower(client).stop()  # others attach, and raise the epoch past the old one's
    again = Follower(client, offset=query.offset)
    start, end, _ = query.batches[-1]
    for call in (again.batch, lambda: again.read(start, end), lambda: again.reader.commit(end)):
        with pytest.raises(Conflict, match=r"LEDGER_CURSOR_RECREATED.*'s'.*recreated.*new checkpoint"):
            call()
    again.stop()
    assert mark(client) == Position(0, 0, 0)
    # A checkpoint of version 1 does not know the id: its query goes on there, and the new cursor moves along.
    again = Follower(client, offset=version_1(query.offset))
    assert again.batch() == [8, 9, 10, 11]
    again.stop()
    assert mark(client) == Position(0, 2, 2)


def test_restarts_and_another_checkpoint_in_between_are_not_taken_for_another_subscription(client, log):
    first = Follower(client)
    first.batch()
    for _ in range(3):
        first.stop()
        other = Follower(client)
        other.batch()
        other.stop()
        client.cursor("t", "s").redeliver()
        first = Follower(client, offset=first.offset)
        first.batch()
    first.stop()


def test_a_topic_deleted_under_a_query_is_an_error_by_name_and_leaves_no_node(client, log):
    query = Follower(client)
    query.batch()
    client.delete_topic("t")
    assert namespace_of(client).metadata.children(RootKey(log.topic.uuid)) == []
    with pytest.raises(NotFound, match="LEDGER_TOPIC_DELETED"):
        eventually(lambda: query.batch() is None)
    query.stop()


# -- owners that stop, die, hang ------------------------------------------------------------------------------------

FOLLOW = """
import sys, time
from pyspark_ledger.cursors import attachment
from pyspark_ledger import client
from pyspark_ledger.datasource import LedgerDataSource
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata
session_s = float(sys.argv[3])
attachment._GRACE_S = session_s / 2
client._connect = lambda zookeeper, *_: ZooKeeperMetadata(zookeeper, session_timeout_s=session_s)
options = dict(zookeeper=sys.argv[1], topic="t", subscription="s", subscriptionType=sys.argv[2], maxRowsPerTrigger="1")
source = LedgerDataSource(options)
reader = source.streamReader(source.schema())
offset = reader.initialOffset()
print("attached", flush=True)
try:
    while True:
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        if end != offset:
            for part in reader.partitions(offset, end):
                for batch in reader.read(part):
                    print(*batch.column("n").to_pylist(), flush=True)
        offset = end
        time.sleep(0.05)
except Exception as error:
    print(error, flush=True)
    sys.exit(3)
"""


class Process:
    """A query's driver-side process: what Spark starts, and ends with SIGTERM. How long it is thought alive after its
    death is how long its successors wait."""

    def __init__(self, client: LedgerClient, kind: str, session_s: float) -> None:
        arguments = [sys.executable, "-c", FOLLOW, client.zookeeper, kind, str(session_s)]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self.lines.append(line.strip())

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        code = self._process.wait(60)
        self._reading.join(10)
        self._process.stdout.close()
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self.exit_code()


@pytest.fixture
def start(client) -> Iterator:
    started: list[Process] = []

    def start_one(kind: str = "exclusive", session_s: float = 4.0) -> Process:
        started.append(Process(client, kind, session_s))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()


def test_sigterm_frees_the_subscription_at_once(client, log, start):
    first = start(session_s=10.0)
    eventually(lambda: "5" in first.lines)
    first.signal(signal.SIGTERM)
    assert first.exit_code() == 0
    assert client.cursor("t", "s").stats().owner == ""  # so nobody has to wait for a dead one
    second = start()
    eventually(lambda: "attached" in second.lines)


def test_a_killed_owners_successor_waits_and_goes_on_and_a_third_is_refused_by_name_I6(client, log, start):
    first = start()
    eventually(lambda: "5" in first.lines)
    first.signal(signal.SIGKILL)
    first.exit_code()
    second = start()
    eventually(lambda: "29" in second.lines, 60)
    done = [int(line) for line in second.lines if line.isdigit()]
    assert done == list(range(done[0], 30))
    assert done[0] <= int(first.lines[-1]) + 1  # nothing lies between what the first did and what the second reads
    third = start()
    assert third.exit_code() != 0
    assert client.cursor("t", "s").stats().owner.startswith("a query in process")


def test_a_failover_owner_that_hangs_is_replaced_fenced_and_changes_nothing_I6(client, log, start):
    first, second = start("failover"), None
    eventually(lambda: "29" in first.lines)
    second = start("failover")
    time.sleep(1)
    assert second.lines == []  # it waits
    first.signal(signal.SIGSTOP)
    eventually(lambda: "attached" in second.lines, 60)
    add(client, 30)
    eventually(lambda: "30" in second.lines)
    eventually(lambda: client.cursor("t", "s").stats().backlog_records == 0)
    before = client.cursor("t", "s").stats()
    first.signal(signal.SIGCONT)
    assert first.exit_code() == 3
    assert "LEDGER_SUBSCRIPTION_FENCED" in first.lines[-1]
    assert "30" not in first.lines
    after = client.cursor("t", "s").stats()
    assert (after.owner, after.epoch, after.mark_delete) == (before.owner, before.epoch, before.mark_delete)


def test_a_query_survives_a_restart_of_zookeeper(storage_root):
    with LocalZooKeeper(fsync=False) as server, LedgerClient(f"{server.address}/ns", storage_root) as client:
        client.create_topic("t", SCHEMA)
        add(client, 1, 2, 3)
        query = Follower(client)
        assert query.batch() == [1, 2, 3]
        server.kill()
        server.restart()
        add(client, 4)
        eventually(lambda: query.batch() == [4])
        eventually(lambda: query.batch() == [] and client.cursor("t", "s").stats().backlog_records == 0)
        query.stop()


def test_a_fenced_query_says_who_replaced_it(client, log):
    query = Follower(client)
    node = CursorNode(namespace_of(client).log("t"), "s")
    node.refresh(sync=True)
    node.update(lambda cursor: replace(cursor, owner=b"x" * 16, owner_name="another", epoch=cursor.epoch + 1))
    with pytest.raises(Fenced, match="taken over by another"):
        eventually(lambda: query.batch() is None)
    query.stop()


# -- on real Spark ---------------------------------------------------------------------------------------------------

RESETTER = """
import random, sys, time
from pyspark_ledger import LedgerClient
from pyspark_ledger.errors import CursorUnderRevision
chance = random.Random(int(sys.argv[2]))
positions, end = [], "earliest"
def look():
    global end
    reader = client.reader("t", end, "latest", columns=[])
    positions.extend(record.position for record in reader)
    end = reader.position
with LedgerClient(sys.argv[1]) as client:
    cursor = client.cursor("t", "s")
    for _ in range(50):
        act = chance.choice(["reset", "reset", "reset", "skip", "rewind", "redeliver", "clear"])
        look()
        if act == "reset":
            cursor.reset(chance.choice(positions))
        elif act == "clear":
            cursor.clear_backlog()
        else:
            getattr(cursor, act)(*([chance.randrange(20)] if act == "skip" else []))
        time.sleep(chance.uniform(0, 0.25))
    print(cursor.reset(positions[-50:][0]).position)
"""


def assert_freed_at_once(client) -> None:
    """The owner said goodbye: nobody had to wait for its session to end."""
    eventually(lambda: client.cursor("t", "s").stats().owner == "", namespace_of(client).metadata.session_timeout_s / 2)


@pytest.mark.spark
def test_fifty_resets_of_a_running_query_from_another_process_I6_I7_I8(spark, client, tmp_path):
    add(client, *range(20))
    client.create_cursor("t", "s")
    source = spark.readStream.format("ledger").option("zookeeper", client.zookeeper).option("subscription", "s")
    source = source.option("includeMetadata", "true").option("maxRowsPerTrigger", "7").load("t")
    rows = source.selectExpr("n", "_metadata.revision AS revision", "_metadata.epoch AS epoch")
    sink = rows.writeStream.format("ledger").option("zookeeper", client.zookeeper)
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start("out")
    try:
        eventually(lambda: client.cursor("t", "s").stats().backlog_records == 0, 60)
        resetter = subprocess.Popen(
            [sys.executable, "-c", RESETTER, client.zookeeper, "7"], stdout=subprocess.PIPE, text=True
        )
        number = 20
        while resetter.poll() is None:
            add(client, number, number + 1)
            number += 2
            time.sleep(0.05)
        last = Position.parse(resetter.stdout.read().strip())
        resetter.stdout.close()
        assert resetter.returncode == 0
        add(client, number)
        eventually(lambda: client.cursor("t", "s").stats().backlog_records == 0, 60)
        assert query.exception() is None
    finally:
        query.stop()
    out = [(r["revision"], r["epoch"], r["n"]) for r in client.reader("out", end="latest")]
    assert out == sorted(out, key=lambda row: row[:2])  # I7: nothing of an old revision after something of a new one
    by_revision: dict[int, list[int]] = {}
    for revision, _, n in out:
        by_revision.setdefault(revision, []).append(n)
    for numbers in by_revision.values():  # under one revision: the log, without a gap and without a repetition
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert max(by_revision) == 51
    wanted = [record["n"] for record in client.reader("t", last, "latest")]
    assert by_revision[51] == wanted
    assert_freed_at_once(client)


@pytest.mark.spark
def test_a_poison_record_is_passed_by_discarding_the_batch_that_holds_it(spark, client, tmp_path):
    add(client, 1, 2, 3)

    def start():
        source = spark.readStream.format("ledger").option("zookeeper", client.zookeeper).option("subscription", "s")
        rows = source.load("t").selectExpr("IF(n = 2, raise_error('poison'), n) AS n")
        sink = rows.writeStream.format("ledger").option("zookeeper", client.zookeeper)
        return sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start("out")

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="poison"):
            start().awaitTermination()
        client.cursor("t", "s").reset(Position(0, 0, 2))  # alone it does not help: the batch is logged
    client.cursor("t", "s").reset(Position(0, 0, 2), discard_planned=True)
    start().awaitTermination()
    add(client, 4)
    start().awaitTermination()
    assert [record["n"] for record in client.reader("out", end="latest")] == [3, 4]


@pytest.mark.spark
def test_a_second_query_on_the_subscription_is_refused_and_the_last_available_now_batch_is_acknowledged(
    spark, client, tmp_path
):
    add(client, 1, 2, 3)

    def start(name, **trigger):
        source = spark.readStream.format("ledger").option("zookeeper", client.zookeeper).option("subscription", "s")
        sink = source.load("t").writeStream.format("ledger").option("zookeeper", client.zookeeper)
        return sink.option("checkpointLocation", str(tmp_path / name)).trigger(**trigger).start(name)

    start("one", availableNow=True).awaitTermination()
    assert client.cursor("t", "s").stats().backlog_records == 0
    assert_freed_at_once(client)
    running = start("one", processingTime="0 seconds")
    try:
        eventually(lambda: client.cursor("t", "s").stats().owner != "", 60)
        with pytest.raises(StreamingQueryException, match=r"LEDGER_SUBSCRIPTION_BUSY.*a query in process"):
            start("two", availableNow=True).awaitTermination()
        add(client, 4)
        eventually(lambda: client.cursor("t", "s").stats().backlog_records == 0, 60)
    finally:
        running.stop()
    assert [record["n"] for record in client.reader("one", end="latest")] == [1, 2, 3, 4]
