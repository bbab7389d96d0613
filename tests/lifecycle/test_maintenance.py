"""Maintenance: what is due is done, by one that leads; what fails stops nobody; all of it may be done twice, by two at
once, or be interrupted anywhere (I12, I15, I16)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

from pyspark_ledger.client import LedgerClient, client_of
from pyspark_ledger.errors import CorruptData, LedgerError, Unavailable
from pyspark_ledger.lifecycle import gc, retention, rewriting
from pyspark_ledger.lifecycle.actions import ACTIONS, Action, Done, NamespaceAction, TopicAction
from pyspark_ledger.lifecycle.maintenance import Maintenance
from pyspark_ledger.lifecycle.rounds import Stopped
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import CondemnedsKey, GcKey, HeadKey, MaintainerKey, Put, RootKey, TopicKey
from pyspark_ledger.metadata.records import SetBack
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata, MemoryServer
from tests.support.said import said
from tests.support.worlds import SMALL

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
LIMITS = replace(SMALL, topics_at_once=3)
MINUTES, HOUR, DAY = 300.0, 3600.0, 86_400.0


class Space:
    """A namespace in memory: each maintainer is a process of its own."""

    def __init__(self, root: str) -> None:
        self.clock = SeededClock(1)
        self.server = MemoryServer(self.clock)
        self.root = root
        self.client: LedgerClient = client_of(self.namespace())

    def namespace(self, faults: Faults | None = None, limits=LIMITS) -> OpenNamespace:
        metadata = MemoryMetadata(self.server, faults, self.clock)
        return OpenNamespace(metadata, self.root, limits=limits, clock=self.clock)

    def maintainer(self, *actions: Action, faults: Faults | None = None) -> Maintenance:
        return Maintenance(self.namespace(faults), actions=actions or ACTIONS)

    def write(self, topic: str, numbers: range, seconds_between: float = 0.0) -> None:
        if topic not in self.client.topics():
            self.client.create_topic(topic, SCHEMA, key="k")
        for number in numbers:
            with self.client.producer(topic) as producer:
                producer.send({"k": str(number % 3), "v": number})
            self.clock.sleep(seconds_between)

    def head(self, topic: str):
        return self.namespace().log(topic).refresh(sync=True).head

    def values(self, topic: str) -> list[int]:
        return [record["v"] for record in self.client.reader(topic, end="latest")]

    def run(self, maintainer: Maintenance, seconds: float, pause: float = 0.1) -> None:
        """It asks for a step every two seconds. Over days those that find nothing due take long: a longer pause."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.sleep(max(pause, maintainer.step()))


@pytest.fixture
def space(tmp_path) -> Iterator[Space]:
    space = Space(str(tmp_path / "storage"))
    yield space
    space.client.close()


def action(name: str, run: Callable[[str], None], every_s: float = 60.0) -> TopicAction:
    """One that is always due, for the topics that it is told of."""

    def on_topic(log, _pace) -> Done:
        run(log.topic.name)
        return Done()

    return TopicAction(name, lambda _: every_s, lambda *_: True, on_topic, lambda _: None)


# -- what is due ----------------------------------------------------------------------------------------------------


def test_an_idle_ledger_is_sealed_trimmed_and_its_files_are_deleted_after_the_grace(space):
    space.write("t", range(3))
    space.client.set_policies("t", retention_age=timedelta(days=3))
    maintainer = space.maintainer()
    space.run(maintainer, 2 * HOUR)
    assert space.head("t").ledger == 0
    space.run(maintainer, 8 * HOUR)  # a tenth of what the topic keeps
    assert (space.head("t").ledger, space.values("t")) == (1, [0, 1, 2])
    space.clock.sleep(4 * DAY)
    space.run(maintainer, HOUR)
    assert (space.head("t").trim.records, space.values("t")) == (3, [])
    for _ in range(5):
        space.clock.sleep(DAY)
        space.run(maintainer, HOUR)
    files = list(space.namespace().storage.list(space.client.topic("t").uuid))
    assert len(files) <= 3  # an index without ledgers, and who has written
    done = {name: dict(stats.done) for name, stats in maintainer.stats.items()}
    assert (done["seal"]["ledgers"], done["trim"]["records"]) == (1, 3)
    assert done["gc"]["files"] > 3


def test_a_topic_is_compacted_when_enough_was_written_since(space):
    space.write("t", range(6))
    a_record = space.head("t").bytes // 6
    space.client.set_policies("t", compact_after_bytes=a_record * 5)
    maintainer = space.maintainer()
    maintainer.step()
    assert space.head("t").generation.read == 6
    space.write("t", range(6, 9))
    space.run(maintainer, 200)
    assert space.head("t").generation.number == 1
    space.write("t", range(9, 12))
    space.run(maintainer, 200)
    assert (space.head("t").generation.number, space.head("t").generation.read) == (2, 12)


def test_a_small_topic_is_compacted_before_it_is_trimmed_for_the_first_time_I9(space):
    """However little was written to it: otherwise the state of keys that are seldom written would be lost."""
    space.write("t", range(2))
    space.client.set_policies("t", retention_age=timedelta(days=2), compact_after_bytes=1 << 30)
    maintainer = space.maintainer()
    space.run(maintainer, DAY, MINUTES)
    assert (space.head("t").generation, space.head("t").trim) == (None, None)  # nothing is old enough
    space.run(maintainer, 2 * DAY, MINUTES)
    assert (space.head("t").generation.read, space.head("t").trim.records) == (2, 2)
    compacted = space.client.reader("t", end="latest", compacted=True)
    assert {record["k"]: record["v"] for record in compacted} == {"0": 0, "1": 1}


def test_a_topic_is_compacted_when_only_the_horizon_holds_back_what_is_too_old(space):
    """However little was written since: otherwise retention would wait for it."""
    space.write("t", range(1))
    space.client.set_policies("t", retention_age=timedelta(days=2), compact_after_bytes=1 << 30)
    maintainer = space.maintainer()
    for day in range(12):
        space.write("t", range(2 * day, 2 * day + 2))
        space.run(maintainer, DAY, MINUTES)
    head = space.head("t")
    assert head.generation.number > 1
    assert head.records - head.trim.records <= 8
    compacted = space.client.reader("t", end="latest", compacted=True)
    assert {record["v"] for record in compacted} == {21, 22, 23}  # the last of each of three keys


def test_who_trims_and_does_not_compact_says_why_nothing_is_given_up(space, caplog):
    space.write("t", range(6))
    space.client.set_policies("t", retention_age=timedelta(hours=1), compact_after_bytes=1 << 30)
    space.clock.sleep(DAY)
    space.run(space.maintainer(*(each for each in ACTIONS if each.name == "trim")), DAY, MINUTES)
    assert space.head("t").trim is None
    assert said(caplog) == [
        "topic=t action=trim: nothing is given up before the topic was compacted for the first time"
    ]


def test_small_files_are_joined_if_the_topic_says_so_and_left_alone_then(space, monkeypatch):
    space.write("t", range(9))
    space.client.set_policies("t", rewrite_below_bytes=1 << 20)
    maintainer = space.maintainer()
    maintainer.step()
    assert maintainer.stats["rewrite"].done["ledgers"] == 2
    assert space.values("t") == list(range(9))
    monkeypatch.setattr(rewriting, "rewrite", lambda *_, **__: pytest.fail("nothing has changed"))
    space.run(maintainer, HOUR)
    assert maintainer.stats["rewrite"].failures == 0


def test_what_is_left_of_deleted_topics_goes(space):
    space.write("t", range(3))
    space.client.delete_topic("t")
    space.clock.sleep(3 * DAY)
    maintainer = space.maintainer()
    assert maintainer.once()
    assert maintainer.stats["condemned"].done["topics"] == 1
    assert space.namespace().metadata.children(CondemnedsKey()) == []


def test_subscriptions_are_evicted_before_the_topic_is_trimmed(space, caplog):
    space.write("t", range(10), HOUR)
    space.client.create_cursor("t", "slow")
    space.client.set_policies("t", retention_age=timedelta(hours=2), backlog_quota_age=timedelta(hours=2))
    caplog.set_level(logging.WARNING)
    maintainer = space.maintainer()
    space.run(maintainer, HOUR)
    assert space.head("t").trim is None
    held, over = (line for line in caplog.messages if line.startswith("topic=t action="))
    assert ("quota" in held, "over its backlog quota" in held) == (True, True)
    assert "subscription 'slow' holds back 8 records" in over  # each is said once, however often it is seen
    space.client.set_policies("t", backlog_action="evict")
    assert maintainer.once()
    assert (space.head("t").trim.records, maintainer.stats["quota"].done["evicted_records"]) == (10, 10)


def test_once_does_everything_that_is_due(space):
    space.write("a", range(3))
    space.write("b", range(3))
    space.client.set_policies("a", retention_age=timedelta(hours=1))
    space.clock.sleep(2 * DAY)
    assert space.maintainer().once()
    assert (space.head("a").trim.records, space.head("b").ledger) == (3, 1)
    assert [space.head(topic).gc_epoch for topic in "ab"] == [1, 1]


def test_done_twice_it_is_done_once(space):
    space.write("t", range(10), HOUR)
    space.client.set_policies("t", retention_age=timedelta(hours=3), compact_after_bytes=1)
    space.clock.sleep(2 * DAY)
    space.maintainer().once()
    space.maintainer().once()
    before = space.head("t")
    space.maintainer().once()
    assert space.head("t") == before


def test_each_action_has_an_interval_of_its_own(space):
    space.write("t", range(1))
    runs: list[str] = []
    quick, slow = (action(name, lambda _, name=name: runs.append(name), s) for name, s in (("q", 10.0), ("s", 100.0)))
    space.run(space.maintainer(quick, slow), 1000)
    assert 80 <= runs.count("q") <= 100
    assert 8 <= runs.count("s") <= 10


# -- topics where nothing is due ------------------------------------------------------------------------------------


class Counted(MemoryMetadata):
    """Counts what is asked of it, as ZooKeeper would see it."""

    requests = 0

    def read(self, key, on_change=None, ahead=None):
        Counted.requests += 1
        return super().read(key, on_change, ahead)

    def read_many(self, keys):
        found = super().read_many(keys)
        Counted.requests += bool(keys) - len(keys)
        return found

    def children_many(self, keys):
        found = super().children_many(keys)
        Counted.requests += bool(keys) - len(keys)
        return found

    def children(self, key):
        Counted.requests += 1
        return super().children(key)

    def transact(self, ops):
        Counted.requests += 1
        super().transact(ops)

    def sync(self):
        Counted.requests += 1
        super().sync()


def test_idle_topics_cost_a_share_of_a_page_and_not_a_request_each(space):
    for number in range(60):
        space.client.create_topic(f"t{number}", SCHEMA)
        space.client.set_policies(
            f"t{number}", retention_age=timedelta(days=7), expire_subscriptions_after=timedelta(9)
        )
    limits = replace(LIMITS, topics_at_once=20)
    namespace = OpenNamespace(Counted(space.server, None, space.clock), space.root, limits=limits, clock=space.clock)
    maintainer = Maintenance(namespace)
    maintainer.step()
    space.clock.sleep(2 * HOUR)
    Counted.requests = 0
    maintainer.step()
    # For each of the two threads: three pages of heads, policies and subscriptions, and a few for the whole. For the
    # backup: three pages of names, subscriptions, token groups, heads and policies.
    assert Counted.requests < 3 * 3 * 5 + 20
    assert all(stats.runs == 2 for name, stats in maintainer.stats.items() if name != "sinks")


def test_a_trim_that_had_nothing_to_do_waits_for_the_time_when_it_has(space, monkeypatch):
    space.write("t", range(4))
    space.clock.sleep(HOUR)
    space.write("t", range(4, 5))  # the ledger before is sealed by then
    space.client.set_policies("t", retention_age=timedelta(hours=10))
    trims: list[float] = []
    trim = retention.trim
    monkeypatch.setattr(retention, "trim", lambda log: (trims.append(space.clock.monotonic()), trim(log))[1])
    maintainer = space.maintainer()
    started = space.clock.monotonic()
    space.run(maintainer, 12 * HOUR)
    assert space.head("t").trim.records == 5
    assert len(trims) <= 4
    assert trims[-1] - started > 8 * HOUR


def test_a_topic_that_nobody_writes_to_is_collected_seldom_and_has_few_nodes(space):
    space.write("t", range(6))
    maintainer = space.maintainer()
    for _ in range(40):
        space.clock.sleep(DAY)
        space.run(maintainer, HOUR)
    head = space.head("t")
    assert head.gc_epoch < 12
    assert (head.next_commit == head.ledger_first_commit, head.going, head.pending) == (True, None, ())
    assert len(nodes_of(space, "t")) <= 11


def nodes_of(space: Space, topic: str) -> list[object]:
    """All nodes that there are for a topic."""
    metadata = space.namespace().metadata

    def below(key) -> Iterator[object]:
        yield key
        for child in metadata.children(key):
            yield from below(child)

    return [TopicKey(topic), *below(RootKey(space.client.topic(topic).uuid))]


def test_topics_come_and_go(space):
    maintainer = space.maintainer()
    maintainer.step()
    for number in range(4):
        space.write(f"t{number}", range(3))
    space.clock.sleep(2 * DAY)
    maintainer.step()
    assert [space.head(f"t{n}").ledger for n in range(4)] == [1, 1, 1, 1]
    space.client.delete_topic("t1")
    space.client.delete_topic("t2")
    space.write("t2", range(3))
    space.clock.sleep(2 * DAY)
    space.run(maintainer, 1000)
    assert space.head("t2").ledger == 1
    assert not any(stats.failures for stats in maintainer.stats.values())


# -- who leads ------------------------------------------------------------------------------------------------------


def leads(*maintainers: Maintenance) -> list[bool]:
    for maintainer in maintainers:
        maintainer.step()
    return [maintainer.health.leads for maintainer in maintainers]


def test_one_leads_and_another_takes_over_when_it_is_gone(space):
    first, second = space.maintainer(), space.maintainer()
    assert leads(first, second) == [True, False]
    assert first.health.leader == second.health.leader
    first.close()
    assert leads(second) == [True]
    assert leads(first, second) == [False, True]


def test_a_leader_that_loses_its_session_stands_by_or_leads_again(space):
    first, second = space.maintainer(), space.maintainer()
    assert leads(first, second) == [True, False]
    first._namespace.metadata.expire()
    assert leads(second, first) == [True, False]  # the other one was faster
    second._namespace.metadata.expire()
    assert leads(second, first) == [True, False]  # it has found nobody in its place
    assert space.namespace().metadata.read(MaintainerKey()).record == second._leadership.leader


def test_without_zookeeper_it_is_not_ready_and_goes_on_when_it_is_there(space):
    faults = Faults()
    maintainer = space.maintainer(faults=faults)
    assert not maintainer.health.ready
    maintainer.step()
    assert (maintainer.health.ready, maintainer.health.error) == (True, "")
    faults.next_read("unavailable")
    maintainer.step()
    assert (maintainer.health.ready, maintainer.health.alive) == (False, True)
    assert "LEDGER_UNAVAILABLE" in maintainer.health.error
    maintainer.step()
    assert maintainer.health.ready


def test_a_lead_whose_answer_was_lost_is_found_or_taken_anew(space):
    for fault in ("applied_then_lost", "lost_before"):
        faults = Faults()
        maintainer = space.maintainer(faults=faults)
        faults.next_transact(fault)
        space.run(maintainer, 10)
        assert maintainer.health.leads
        maintainer.close()


# -- what fails -----------------------------------------------------------------------------------------------------


def test_a_topic_that_fails_stops_nobody_and_is_tried_less_and_less_often(space, caplog):
    for name in "abc":
        space.client.create_topic(name, SCHEMA)
    tried: list[str] = []
    error: LedgerError | None = CorruptData("a file is missing")

    def run(topic: str) -> None:
        tried.append(topic)
        if topic == "b" and error is not None:
            raise error

    maintainer = space.maintainer(action("gc", run))
    caplog.set_level(logging.INFO)
    space.run(maintainer, 10 * HOUR)
    assert tried.count("a") == tried.count("c") > 400
    assert 5 < tried.count("b") < 25
    assert maintainer.stats["gc"].failures == tried.count("b")
    assert maintainer.stats["gc"].failing == 1
    assert [line for line in caplog.messages if "failed action=gc topic=b" in line] == [
        "failed action=gc topic=b: [LEDGER_CORRUPT_DATA] a file is missing"
    ]
    error = Unavailable("the disk")
    space.run(maintainer, 2 * HOUR)
    error = None
    space.run(maintainer, 2 * HOUR)
    assert (maintainer.stats["gc"].failing, "works again action=gc topic=b" in caplog.messages) == (0, True)
    assert len([line for line in caplog.messages if "failed action=gc" in line]) == 2
    assert maintainer.stats["gc"].last_success_ms > 0


def test_what_nobody_expected_does_not_end_it_either(space):
    space.client.create_topic("a", SCHEMA)

    def broken(_: object) -> Done:
        raise ZeroDivisionError

    maintainer = space.maintainer(NamespaceAction("sinks", lambda _: 60.0, lambda *_: broken), *ACTIONS[:1])
    assert maintainer.once() is False
    space.run(maintainer, 100)
    assert (maintainer.stats["sinks"].failing, maintainer.stats["seal"].failures) == (1, 0)


def test_a_topic_that_was_set_back_is_left_for_a_person_I18(space):
    space.write("t", range(3))
    log = space.namespace().log("t")
    log.change_head(lambda head: replace(head, set_back=SetBack(1, "a test", "because")), "a note")
    before = space.head("t")
    space.clock.sleep(2 * DAY)
    maintainer = space.maintainer()
    assert maintainer.once() is False
    assert space.head("t") == before
    assert maintainer.stats["gc"].failing == 1


# -- stopping, crashing, two at once --------------------------------------------------------------------------------


def test_it_stops_between_two_steps(space):
    space.write("a", range(4))
    space.write("b", range(4))
    maintainer = space.maintainer(action("gc", lambda _: maintainer.stop()))
    with pytest.raises(Stopped):
        maintainer.step()
    assert maintainer.stats["gc"].runs == 0


def busy(space: Space) -> None:
    """Everything is due."""
    space.write("t", range(10), HOUR)
    space.client.create_cursor("t", "slow")
    space.client.create_cursor("t", "forgotten", "latest")
    space.client.set_policies(
        "t",
        retention_age=timedelta(hours=3),
        backlog_quota_age=timedelta(hours=3),
        backlog_action="evict",
        expire_subscriptions_after=timedelta(days=30),
        compact_after_bytes=1,
    )
    space.clock.sleep(20 * DAY)
    space.client.cursor("t", "slow").reset("earliest")
    space.clock.sleep(11 * DAY)


def check(space: Space) -> None:
    """It is as after one run of everything."""
    head = space.head("t")
    assert (head.trim.records, head.ledger, head.generation.read) == (10, 3, 10)
    assert [cursor.name for cursor in space.client.cursors("t")] == ["slow"]
    assert space.client.cursor("t", "slow").stats().backlog_records == 0
    assert space.values("t") == []
    assert {record["k"]: record["v"] for record in space.client.reader("t", end="latest", compacted=True)} == {
        "0": 9,
        "1": 7,
        "2": 8,
    }
    assert space.head("t").gc_epoch == 1


def test_everything_at_once(space):
    busy(space)
    for _ in range(3):  # what is given up waits for the compaction, and that for nobody
        assert space.maintainer().once()
    check(space)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("at", range(1, 14))
def test_a_crash_anywhere_leaves_it_to_the_next_one_I16(space, at, applied):
    busy(space)
    faults = Faults()
    maintainer = space.maintainer(faults=faults)
    faults.crash_at(at, applied=applied)
    try:
        maintainer.once()
    except Crash:
        maintainer._namespace.metadata.expire()
    for _ in range(3):
        assert space.maintainer().once()
    check(space)


@pytest.mark.parametrize("seed", range(20))
def test_two_at_once_with_answers_that_are_lost(space, seed):
    busy(space)
    faults = [Faults(seed * 2 + n, lost_before=0.05, applied_then_lost=0.05, stale_read=0.2) for n in range(2)]
    two = [space.maintainer(faults=each) for each in faults]
    for _ in range(3):
        for maintainer in two:
            try:
                maintainer.once()
            except LedgerError:
                maintainer._namespace.metadata.chores.run_all()
    for each in faults:
        each.stop()
    space.clock.sleep(HOUR)
    for maintainer in two:
        maintainer._namespace.metadata.chores.run_all()
    for _ in range(3):
        assert space.maintainer().once()
    check(space)


# -- rates ----------------------------------------------------------------------------------------------------------


def test_what_is_compacted_is_read_no_faster_than_allowed(space):
    space.write("t", range(40))
    space.client.set_policies("t", compact_after_bytes=1)
    space.write("t", range(40, 80))
    stored = space.head("t").bytes
    started = space.clock.monotonic()
    compacting = [each for each in ACTIONS if each.name == "compact"]
    Maintenance(space.namespace(), actions=compacting, read_rate=stored / 30).once()
    assert space.head("t").generation is not None
    assert 25 < space.clock.monotonic() - started < 40


def test_gc_says_nothing_and_does_nothing_before_it_is_time(space, monkeypatch):
    space.write("t", range(4))
    monkeypatch.setattr(gc, "collect", lambda *_, **__: pytest.fail("it was not due"))
    space.run(space.maintainer(), 3 * HOUR)
    assert space.namespace().metadata.read(HeadKey(space.client.topic("t").uuid)) is not None


def test_an_epoch_that_begins_in_the_future_is_mended(space):
    """ZooKeeper's clock was ahead for a while: gc does not wait until it is there again."""
    space.write("t", range(1))
    key = GcKey(space.client.topic("t").uuid)
    metadata = space.namespace().metadata
    ahead, space.clock.now_ms = space.clock.now_ms, lambda: ahead() + int(100 * DAY * 1000)
    node = metadata.read(key)
    metadata.transact([Put(key, node.record, node.version)])
    space.clock.now_ms = ahead
    maintainer = space.maintainer()
    space.run(maintainer, HOUR)
    space.run(maintainer, 2 * DAY, MINUTES)
    assert space.head("t").gc_epoch > 0


def test_a_topic_that_can_be_read_again_fails_no_more(space, monkeypatch):
    space.write("t", range(1))
    maintainer = space.maintainer()
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_ledger.lifecycle.looking.Look._page", damaged)
        space.run(maintainer, 200)
    assert maintainer.stats["look"].failing == 1
    space.run(maintainer, 200)
    assert maintainer.stats["look"].failing == 0


def damaged(*_: object) -> None:
    raise CorruptData("a node is damaged")
