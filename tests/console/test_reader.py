"""One reader for all who look, which costs little where there is much, and says what is wrong now."""

from __future__ import annotations

import json
import threading
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime
from time import sleep
from unittest.mock import Mock

import pyarrow as pa
import pytest

from pyspark_ledger.base.position import Position
from pyspark_ledger.client import client_of, namespace_of, open_namespace
from pyspark_ledger.console import charts, words
from pyspark_ledger.console.checkpoints import queries_in
from pyspark_ledger.console.reader import NamespaceReader
from pyspark_ledger.console.state import Details, Health, alarms
from pyspark_ledger.errors import Unavailable
from pyspark_ledger.lifecycle.backup import Backup
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.records import Holder, SetBack
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support.console import running

SCHEMA = pa.schema([("v", pa.int64())])


class Counting(MemoryMetadata):
    """Counts requests."""

    requests = 0

    def read_many(self, keys):
        self.requests += 1
        return super().read_many(keys)


@pytest.fixture
def metadata():
    return Counting(MemoryServer())


@pytest.fixture
def client(metadata, tmp_path):
    with client_of(OpenNamespace(metadata, str(tmp_path / "root"))) as client:
        client.create_topic("orders", SCHEMA)
        with client.producer("orders") as producer:
            producer.send({"v": 1})
        client.create_cursor("orders", "billing")
        yield client


@pytest.fixture
def reader(client):
    reader = NamespaceReader(namespace_of(client), 0.1)
    yield reader
    reader.close()


def test_viewers_share_what_was_read(reader, metadata):
    reader.snapshot()
    before, made = metadata.requests, []
    found = [reader.once("what", lambda: made.append(1) or len(made)) for _ in range(50)]
    assert metadata.requests - before < 50
    assert len(made) < 50
    assert found == sorted(found)


def test_a_page_after_a_change_shows_it(reader, client):
    assert reader.snapshot().topics["orders"].subscriptions[0].behind == 1
    client.cursor("orders", "billing").clear_backlog()
    assert reader.look_again().topics["orders"].subscriptions[0].behind == 0


def test_a_namespace_that_cannot_be_read_is_told_and_what_was_known_stays(reader, metadata, monkeypatch):
    reader.snapshot()

    def away(self):
        raise Unavailable("nobody answers")

    monkeypatch.setattr(Counting, "sync", away)
    now = reader.look_again()
    assert list(now.topics) == ["orders"]
    assert "nobody answers" in now.zookeeper.error
    assert now.alarms[0].code == "ZooKeeperAway"


def test_what_is_wrong_now_is_an_alarm(reader):
    now = reader.snapshot()
    (topic,) = now.topics.values()
    hour = 3_600_000

    def codes(topic=topic, **changes):
        return {alarm.code for alarm in alarms(replace(now, topics={"orders": topic}, **changes))}

    assert codes() == {"MaintenanceNotLeading"}
    assert "StorageAway" in codes(storage=Health(error="no disk"))
    assert "TopicUnreadable" in codes(unreadable={"x": "damaged"})
    late = replace(topic, details=Details(oldest_ms={"billing": now.taken_ms - 2 * hour}))
    assert "Lag" in codes(late)
    back = replace(topic.head, set_back=SetBack(0, "somebody", "it went back"))
    seen = replace(topic.seen, head=replace(topic.seen.head, record=back))
    assert "SetBack" in codes(replace(topic, seen=seen))
    quota = replace(topic.seen, policies=replace(topic.seen.policies, record=replace(topic.policies, backlog_ms=hour)))
    assert "BacklogQuota" in codes(replace(late, seen=quota))
    (subscription,) = topic.subscriptions
    taken = replace(subscription, cursor=replace(subscription.cursor, evicted=5))
    assert "RecordsEvicted" in codes(replace(topic, subscriptions=(taken,)))
    long = replace(subscription, revising_since_ms=now.taken_ms - hour)
    assert "RevisionRunsLong" in codes(replace(topic, subscriptions=(long,)))


def test_an_old_backup_is_an_alarm_only_if_it_lacks_something(reader):
    now, minute = reader.snapshot(), 60_000
    leader = Holder(bytes(16), "maintain", now.taken_ms - 300 * minute)

    def is_late(backup, unsaved=None):
        """Minutes ago."""
        then = [None if each is None else now.taken_ms - each * minute for each in (backup, unsaved)]
        found = alarms(replace(now, leader=leader, backup_ms=then[0], unsaved_since_ms=then[1]))
        return "BackupTooOld" in [alarm.code for alarm in found]

    assert not is_late(backup=50)  # nothing was written since
    assert not is_late(backup=50, unsaved=2)  # that is what the next round is for
    assert not is_late(backup=5, unsaved=5)
    assert is_late(backup=16, unsaved=4)
    assert is_late(backup=130)
    assert is_late(backup=None)


def test_a_backup_that_has_only_what_changed_is_the_newest(client, monkeypatch):
    """In a round that finds nothing new in the namespace, snapshots of topics are written."""
    monkeypatch.setattr("pyspark_ledger.console.reader._STORAGE_EVERY_S", -1.0)
    monkeypatch.setattr("pyspark_ledger.console.reader._BACKUP_EVERY_S", -1.0)
    reader, backup = NamespaceReader(namespace_of(client), 0.1), Backup(namespace_of(client))
    try:
        assert reader.snapshot().unsaved_since_ms is not None
        pace = Pace(namespace_of(client).clock, lambda _: None)
        assert backup.run(pace).namespaces == 1
        first = reader.look_again()
        assert first.unsaved_since_ms is None
        sleep(0.01)
        with client.producer("orders") as producer:
            producer.send({"v": 2})
        assert reader.look_again().unsaved_since_ms is not None
        done = backup.run(pace)
        assert (done.namespaces, done.logs) == (0, 1)
        last = reader.look_again()
        assert last.backup_ms > first.backup_ms
        assert last.unsaved_since_ms is None
    finally:
        reader.close()


def test_events_tell_of_every_look(client):
    with running(namespace_of(client)) as console:
        with urllib.request.urlopen(f"{console.url}/api/v1/events", timeout=30) as stream:
            numbers = []
            while len(numbers) < 3:
                line = stream.readline().decode()
                if line.startswith("data: "):
                    numbers.append(json.loads(line[6:])["number"])
    assert numbers == sorted(set(numbers))


def test_nobody_looks_when_nobody_asks(client, metadata, monkeypatch):
    monkeypatch.setattr("pyspark_ledger.console.reader._WATCHED_S", 0.2)
    reader = NamespaceReader(namespace_of(client), 0.01)
    try:
        reader.snapshot()
        looked = -1
        for _ in range(100):  # a look every hundredth of a second would be seen
            before, looked = looked, metadata.requests
            if before == looked:
                break
            sleep(0.3)
        assert before == looked
    finally:
        reader.close()
    assert not any(thread.name == "ledger-console-reader" for thread in threading.enumerate())


def test_a_page_of_a_thousand_topics_looks_closer_only_at_those_that_it_shows(namespace, storage_root):
    """What it takes does not grow with the topics: those that are not on the page cost nothing."""
    opened = open_namespace(namespace, storage_root)
    with client_of(opened) as client:
        for n in range(1_000):
            client.create_topic(f"topic-{n:04}", SCHEMA)
        for n in range(0, 1_000, 20):
            with client.producer(f"topic-{n:04}") as producer:
                producer.send({"v": n})
            client.create_cursor(f"topic-{n:04}", "reader", "latest")
        with running(opened, look_every_s=600.0) as console:
            told = console.api("/overview").json
            assert (told["topics"], told["subscriptions"], told["kept_records"]) == (1_000, 50, 50)
            asked = Mock(wraps=opened.metadata.read_many)
            opened.metadata.read_many = asked
            for query, wanted in {"": "topic-0049", "?search=99": "topic-0990", "?offset=950": "topic-0999"}.items():
                assert wanted in console.ask(f"/{query}").text
            assert asked.call_count < 20
            assert "topic-0050" not in console.ask("/").text


# -- what is drawn and said -------------------------------------------------------------------------------------------


def test_flags_that_would_overlap_are_in_different_lanes():
    marks = [{"subscription": f"s{n}", "at": at, "behind": 100 - at, "position": "0:0:0", "followed": True}
             for n, at in enumerate([0, 1, 50, 51, 100])]  # fmt: skip
    ledgers = [{"ledger": 3, "from": 10, "to": 60, "open": False}, {"ledger": 4, "from": 60, "to": 100, "open": True}]
    bar = charts.bar({"begin": 10, "end": 100, "ledgers": ledgers, "horizon": 40, "horizon_position": "3:1:0",
                      "subscriptions": marks})  # fmt: skip
    assert charts._lanes([0, 1, 50, 51, 100]) == [0, 1, 0, 1, 0]
    for part in ("given up by retention: 10 records", "ledger 4: 40 records, open", "s3 at 0:0:0: 49 records behind"):
        assert part in bar
    assert "style=" not in bar
    assert [charts.letter(n) for n in (0, 25, 26, 51)] == ["A", "Z", "AA", "AZ"]


def test_an_empty_topic_is_drawn_too():
    ledgers = [{"ledger": 0, "from": 0, "to": 0, "open": True}]
    assert "<svg" in charts.bar({"begin": 0, "end": 0, "ledgers": ledgers, "horizon": None, "subscriptions": []})
    assert "<svg" in charts.over_time([], "records", "short", "none")


def test_a_chart_of_sizes_says_what_its_lowest_line_is():
    hours = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(4)]
    buckets = [
        {"from": begin, "to": end, "size": size}
        for begin, end, size in zip(hours[:-1], hours[1:], (100, 300, 500), strict=True)
    ]
    drawn = charts.over_time(buckets, "size", "short", "sizes", "area")
    assert all(f">{size}<" in drawn for size in (100, 300, 500))
    assert ">100<" in charts.over_time(buckets[:1], "size", "short", "sizes", "area")
    assert ">0<" not in charts.over_time(buckets, "size", "short", "sizes", "bars")


@pytest.mark.parametrize(
    ("way", "value", "said"),
    [
        ("count", 1234567, "1\u202f234\u202f567"), ("count", None, "–"), ("short", 12345, "12.3\u202fk"),
        ("short", 3.3333, "3.33"), ("short", 0, "0"), ("size", 0, "0\u202fB"), ("size", 1536, "1.5\u202fKiB"),
        ("size", 1023, "1023\u202fB"), ("duration", 0.25, "250\u202fms"), ("duration", 3725, "1\u202fh 2\u202fmin"),
        ("duration", None, "–"), ("duration", 0.0001, "<1\u202fms"),
    ],
)  # fmt: skip
def test_values_are_said_briefly(way, value, said):
    assert words.WAYS[way](value) == said


def test_what_a_checkpoint_says_of_a_query(tmp_path):
    for folder, files in {"offsets": ("0", "1"), "commits": ("0",)}.items():
        (tmp_path / "query" / folder).mkdir(parents=True)
        for file in files:
            offset = {"v": 2, "topics": {"orders": {"id": "u-1", "pos": str(Position(0, int(file), 0))}}}
            text = f'v1\n{{}}\n{json.dumps(offset)}\n{{"logOffset":7}}\n'
            (tmp_path / "query" / folder / file).write_text(text)
    (tmp_path / "query" / "metadata").write_text('{"id": "q-1"}')
    (tmp_path / "broken" / "offsets").mkdir(parents=True)
    (tmp_path / "broken" / "metadata").write_text("{")
    (tmp_path / "nothing").mkdir()
    broken, query = queries_in([tmp_path])
    assert "JSONDecodeError" in broken["error"]
    assert (query["query"], query["planned_batch"], query["finished_batch"]) == ("q-1", 1, 0)
    ledger, other = query["sources"]
    assert (ledger["uuid"], ledger["position"]) == ("u-1", "0:1:0")
    assert other["offset"] == '{"logOffset":7}'
