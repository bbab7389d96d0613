"""readCompacted through Spark's eyes: the current value of every key, then the tail, in one query (I9)."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace
from pyspark_ledger.errors import DataLoss, InvalidInput
from tests.support import examples
from tests.support.query import Query, fields

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with client_of(
        open_namespace(namespace, storage_root, limits=Limits(commits_per_ledger=5, index_fanout=3, gc_grace_ms=0))
    ) as client:
        client.create_topic("t", SCHEMA, key="k")
        yield client


def put(client, *rows, topic="t"):
    with client.producer(topic) as producer:
        for key, value in rows:
            producer.send({"k": key, "v": value})


def compact_and_collect(client):
    """Deletions are dropped only once gc has collected the first generation: two of its epochs after the second."""
    client.compact("t")
    client.gc("t")


class Follower(Query):
    """A readCompacted stream that keeps the map it has been told of."""

    def __init__(self, client, topic="t", **options) -> None:
        super().__init__(client, topic, readCompacted="true", **options)
        self.map: dict[str, int] = {}
        self.log: list[tuple[dict, dict, list]] = []

    def rows(self, start, end):
        parts = self.reader.partitions(start, end)
        return [(r["k"], r["v"]) for part in parts for batch in self.reader.read(part) for r in batch.to_pylist()]

    def step(self) -> bool:
        self.reader._planner.topics[0].log().refresh(sync=True)  # else a watch says so, a moment later
        start, end = self.plan()
        if start == end:
            return False
        rows = self.rows(start, end)
        self.log.append((start, end, rows))
        for key, value in rows:
            self.map.pop(key, None)
            if value is not None:
                self.map[key] = value
        return True

    def drain(self):
        while self.step():
            pass
        return self.map


def full(client, topic="t", start="earliest"):
    found: dict[str, int] = {}
    for record in client.reader(topic, start, "latest"):
        found.pop(record["k"], None)
        if record["v"] is not None:
            found[record["k"]] = record["v"]
    return found


def test_the_current_value_of_every_key_then_the_tail_pulsar_11287_12429_12464_13629(client):
    """Their cursors were set to the raw ledgers that were left, past the compacted ones."""
    put(client, *[(f"k{n % 10}", n) for n in range(100)])
    put(client, ("k3", None))
    client.compact("t")
    put(client, ("k4", 1000), ("k5", None))
    query = Follower(client)
    assert query.drain() == full(client)
    assert sum(len(rows) for _, _, rows in query.log) == 9 + 2  # nine keys and the tail, not a hundred records
    put(client, ("k6", 7))
    assert query.drain() == full(client)
    assert len(query.log[-1][2]) == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_limits_hold_in_the_compacted_part_and_replays_are_exact_over_generations_I7(client, limit):
    put(client, *[(f"k{n % 10}", n) for n in range(50)])
    client.compact("t")
    query = Follower(client, maxRowsPerTrigger=str(limit))
    for round_ in range(3):
        query.step()
        put(client, (f"k{round_}", None), (f"new{round_}", round_))
        client.compact("t")  # the rest of the read moves to another generation
    assert query.drain() == full(client)
    assert all(len(rows) <= limit for _, _, rows in query.log)
    generations = [fields(end)["gen"] for _, end, _ in query.log]
    assert generations == sorted(generations)
    recent = [entry for entry in query.log if fields(entry[1])["gen"] >= 2]
    for start, end, rows in recent:  # the last three generations are kept
        assert query.rows(start, end) == rows


def test_a_batch_planned_on_a_generation_that_is_gone_is_an_error_by_name(client):
    put(client, ("a", 1))
    client.compact("t")
    query = Follower(client)
    query.step()
    for value in range(4):
        put(client, ("a", value))
        compact_and_collect(client)
    with pytest.raises(DataLoss, match=r"LEDGER_GENERATION_GONE.*generation 1"):
        Follower(client).rows(*query.log[0][:2])


def test_a_query_that_comes_back_after_its_deletions_were_dropped_is_told_so(client):
    put(client, ("a", 1), ("b", 1))
    query = Follower(client)
    query.drain()
    query.reader.stop()
    put(client, ("a", None))
    for value in range(6):
        put(client, ("b", value))
        compact_and_collect(client)
    with pytest.raises(DataLoss, match=r"LEDGER_DELETIONS_DROPPED.*new checkpoint"):
        Follower(client, offset=query.offset).step()
    assert Follower(client).drain() == full(client) == {"b": 5}


def test_a_running_query_keeps_the_deletions_that_it_has_not_seen_pulsar_26190(client):
    put(client, *[(f"k{n}", n) for n in range(6)])
    client.compact("t")
    query = Follower(client, maxRowsPerTrigger="1")
    query.step()
    query.step()
    put(client, ("k0", None))
    for value in range(6):
        put(client, ("k5", value))
        compact_and_collect(client)
    assert query.drain() == full(client)
    assert "k0" not in query.map
    query.reader.stop()


def test_a_stream_that_ends_before_the_horizon_ends_with_the_state_at_its_end_I9(client):
    put(client, ("a", 1), ("b", 1))
    end = client.end("t")
    wanted = full(client)
    put(client, ("a", 2), ("b", None))
    client.compact("t")
    assert Follower(client, endingOffsets=str(end)).drain() == wanted


def test_an_available_now_run_ends_with_the_state_at_its_target_whatever_is_compacted_meanwhile_I9(client):
    put(client, ("a", 1), ("b", 1))
    query = Follower(client, maxRowsPerTrigger="1")
    query.reader.prepareForTriggerAvailableNow()
    query.step()
    wanted = full(client)
    put(client, ("b", 2))
    client.compact("t")
    assert query.drain() == wanted


def test_a_query_that_began_before_the_first_compaction_keeps_its_deletions_too(client):
    put(client, *[(f"k{n}", n) for n in range(6)])
    query = Follower(client, maxRowsPerTrigger="3")
    query.step()
    put(client, ("k0", None))
    for value in range(6):  # while a long batch runs
        put(client, ("k5", value))
        compact_and_collect(client)
    assert query.drain() == full(client)
    query.reader.stop()


def test_a_reset_into_the_compacted_range_shows_every_deletion_since(client):
    put(client, ("a", 1), ("b", 1), ("c", 1))
    query = Follower(client, subscription="s")
    query.drain()
    put(client, ("a", None), ("b", 2))
    client.compact("t")
    client.cursor("t", "s").reset(Position(0, 0, 1))
    assert query.drain() == full(client) == {"b": 2, "c": 1}
    assert ("a", None) in query.log[-1][2]
    query.reader.stop()


def with_deletions_dropped(client, subscription=""):
    """Six generations, each with a new key, of which the last ones have dropped deletions."""
    for number in range(6):
        put(client, (f"k{number}", number), ("gone", number), ("gone", None))
        if subscription:
            client.cursor("t", subscription).clear_backlog()
        compact_and_collect(client)
    assert namespace_of(client).log("t").view().head.generation.tombstones_from > Position(0, 2, 0)


@pytest.mark.parametrize("start", ["0:0:0", "0:0:1", "0:1:0", "0:2:0", "1:0:0"])
def test_a_fresh_query_begins_anywhere_in_a_generation_that_dropped_deletions_I9(client, start):
    with_deletions_dropped(client)
    first = Position.parse(start)
    wanted = {r["k"]: r["v"] for r in client.reader("t", first, "latest", compacted=True)}
    query = Follower(client, startingOffsets=start)
    assert query.drain() == wanted
    assert all(value is not None for _, _, rows in query.log for _, value in rows)  # it never saw what was deleted
    put(client, ("k5", None), ("new", 1))
    for value in range(5):
        put(client, ("new", value))
        compact_and_collect(client)
    del wanted["k5"]
    assert query.drain() == {**wanted, "new": 4}
    query.reader.stop()


def test_a_fresh_query_begins_at_a_time_in_a_generation_that_dropped_deletions(client):
    with_deletions_dropped(client)
    published = [record.publish_time for record in client.reader("t", end="latest")]
    query = Follower(client, startingTimestamp=published[1].isoformat())
    assert query.drain() == full(client)


def test_a_subscription_that_was_reset_serves_a_query_without_a_checkpoint(client):
    client.create_cursor("t", "s", "earliest")
    with_deletions_dropped(client, "s")
    client.cursor("t", "s").reset("0:1:0")
    query = Follower(client, subscription="s")
    assert query.drain() == {key: value for key, value in full(client).items() if key != "k0"}
    query.reader.stop()


@pytest.mark.parametrize("to", ["earliest", "0:0:1", "0:3:0"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_live_query_can_be_reset_to_where_deletions_were_dropped_and_misses_none_I9(client, to, restarted):
    """Also those that were written, and compacted, after what it had read before the reset."""
    put(client, ("a", 1), ("doomed", 1))
    query = Follower(client, subscription="s")
    query.drain()
    for number in range(8):
        put(client, (f"k{number}", number), ("gone", number), ("gone", None))
        compact_and_collect(client)
        query.drain()
    put(client, ("doomed", None), ("k0", None))
    client.compact("t")
    client.cursor("t", "s").reset(to)
    if restarted:
        query.reader.stop()
        query, before = Follower(client, subscription="s", offset=query.offset), query
        query.map = before.map
    assert query.drain() == full(client)
    assert not {"doomed", "k0"} & query.map.keys()
    query.reader.stop()


def test_nothing_that_happens_to_cursors_loses_the_compacted_ledger_pulsar_12698_21865_25803_25862(client):
    put(client, *[(f"k{n % 3}", n) for n in range(30)])
    query = Follower(client, subscription="s")
    query.drain()
    before = client.compact("t")
    for to in ("latest", "earliest", Position(0, 0, 7)):
        client.cursor("t", "s").reset(to)
    client.cursor("t", "s").clear_backlog()
    client.gc("t")
    client.gc("t")
    client.gc("t")
    assert client.compaction("t") == before
    assert Follower(client).drain() == full(client)
    query.reader.stop()


def test_a_stream_without_a_key_is_refused(client):
    client.create_topic("plain", SCHEMA)
    with pytest.raises(InvalidInput, match="LEDGER_NOT_COMPACTABLE"):
        Follower(client, "plain")


ACTS = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 9))), min_size=1, max_size=4),
        st.sampled_from(["compact", "step", "step", "gc"]),
        st.tuples(st.sampled_from(["start", "reset"]), st.integers(0, 30)),
    ),
    max_size=20,
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS, limit=st.integers(1, 3))
def test_readers_that_start_anywhere_and_cross_any_generations_end_with_the_full_map_I9(client, acts, limit):
    topic = f"t-{secrets.token_hex(8)}"
    client.create_topic(topic, SCHEMA, key="k")
    put(client, ("a", 0), topic=topic)
    subscribed = Follower(client, topic, maxRowsPerTrigger=str(limit), subscription="s")
    readers = [(Position(0, 0, 0), subscribed)]
    for act in acts:
        if act == "compact":
            client.compact(topic)
        elif act == "gc":
            client.gc(topic)
        elif act == "step":
            for _, reader in readers:
                reader.step()
        elif isinstance(act, tuple):
            what, number = act
            positions = [record.position for record in client.reader(topic, end="latest")]
            if what == "start":
                start = positions[number % len(positions)]
                options = {"startingOffsets": str(start), "maxRowsPerTrigger": str(limit)}
                readers.append((start, Follower(client, topic, **options)))
            else:  # back to anything that it has read
                done = client.cursor(topic, "s").stats().mark_delete
                read = [position for position in positions if position <= done]
                client.cursor(topic, "s").reset(read[number % len(read)] if read else "earliest")
        else:
            put(client, *act, topic=topic)
    for start, reader in readers:
        assert reader.drain() == full(client, topic, start)
        reader.reader.stop()


# -- on real Spark ----------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_batch_read_is_the_topic_as_a_table(spark, client):
    put(client, *[(f"k{n % 10}", n) for n in range(100)], (None, 5))
    read = spark.read.format("ledger").option("zookeeper", client.zookeeper)

    def table():
        rows = read.option("readCompacted", "true").load("t").collect()
        assert len(rows) == len(full(client))  # each key once, and the one record without a key
        return {row["k"]: row["v"] for row in rows if row["k"] is not None}

    wanted = {key: value for key, value in full(client).items() if key is not None}
    assert table() == wanted  # also before the first compaction
    client.compact("t")
    put(client, ("k1", None), ("k2", 500), ("k2", 501))
    wanted = {key: value for key, value in full(client).items() if key is not None}
    assert table() == wanted
    frame = read.option("readCompacted", "true").option("includeMetadata", "true").load("t")
    places = {row["k"]: row["_metadata"] for row in frame.where("k IN ('k2', 'k9')").collect()}
    assert (places["k9"]["index"], places["k9"]["topic"]) == (99, "t")
    records = {str(r.position): r for r in client.reader("t", end="latest")}
    for key, place in places.items():
        record = records[f"{place['ledgerId']}:{place['entryId']}:{place['index']}"]
        assert (record["k"], record.publish_time.timestamp()) == (key, place["publishTime"].timestamp())


@pytest.mark.spark
def test_compaction_while_a_writer_and_a_compacted_stream_run_I9(spark, client, tmp_path):
    put(client, *[(f"k{n % 50}", n) for n in range(500)])
    client.compact("t")
    source = spark.readStream.format("ledger").option("zookeeper", client.zookeeper).option("readCompacted", "true")
    sink = source.option("maxRowsPerTrigger", "40").load("t").writeStream.format("ledger")
    query = sink.option("zookeeper", client.zookeeper).option("checkpointLocation", str(tmp_path / "c")).start("copy")
    stop = threading.Event()

    def compact_again_and_again():
        with LedgerClient(client.zookeeper) as other:
            while not stop.wait(2.5):
                other.compact("t")

    compactor = threading.Thread(target=compact_again_and_again)
    compactor.start()
    try:
        for n in range(40):
            put(client, (f"k{n}", None if n % 3 == 0 else 1000 + n), (f"late{n % 7}", n))
            time.sleep(0.1)
    finally:
        stop.set()
        compactor.join()
    client.compact("t")
    query.processAllAvailable()
    query.stop()
    assert full(client, "copy") == full(client)
    assert client.compaction("t").generation >= 2


@pytest.mark.spark
@pytest.mark.parametrize("version", ["", "version"])
def test_compaction_as_a_spark_job_gives_the_same_records(spark, client, monkeypatch, version):
    from pyspark_ledger.base.position import EARLIEST
    from pyspark_ledger.datasource import compaction
    from pyspark_ledger.log.generations import newest
    from pyspark_ledger.log.rows import read_slice
    from pyspark_ledger.log.sources import ReadSource

    monkeypatch.setattr(compaction, "RECORDS_PER_TASK", 60)
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("version", pa.float64())])
    chance = random.Random(3)
    names = ("local", "spark")
    for name in names:
        client.create_topic(name, schema, key="k", version_column=version)

    def compacted(name):
        log = namespace_of(client).log(name)
        view = log.refresh(sync=True)
        pieces = ReadSource(log, view, newest(log, view)).slices(EARLIEST, view.head.end)
        rows = [rows for piece in pieces for rows in read_slice(log.storage, log.topic.uuid, piece, schema)]
        return [(*place, row["k"], row["v"]) for r in rows
                for place, row in zip(zip(*(c.to_pylist() for c in r.positions()), strict=True), r.batch.to_pylist(),
                                      strict=True)]  # fmt: skip

    for _ in range(2):
        for _ in range(6):
            rows = [
                {"k": chance.choice([*"abcdefgh", None]), "v": chance.choice([None, *range(9)]),
                 "version": chance.choice([None, 0.0, 1.0, 2.0, float("nan")])}
                for _ in range(40)
            ]  # fmt: skip
            for name in names:
                with client.producer(name) as producer:
                    producer.send_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
        client.compact("local")
        stats = compaction.compact(spark, "spark", zookeeper=client.zookeeper)
        assert compacted("spark") == compacted("local")
        assert (stats.records, stats.records_before) == (client.compaction("local").records, stats.records_before)
    assert stats.generation == 2


@pytest.mark.spark
def test_a_spark_job_judges_widened_topics_and_keys_of_fractions_as_a_fold_in_process_does(spark, client, storage_root):
    """Both engines: a column that comes later deletes nothing, both zeros are one key, and so are all NaNs."""
    from pyspark_ledger.datasource import compaction

    nan = float("nan")
    for engine in ("local", "spark"):
        for versioned in (False, True):
            name = f"{engine}-{versioned}"
            options = {"zookeeper": client.zookeeper, "keyColumn": "k", "mergeSchema": "true"}
            options |= {"versionColumn": "n"} if versioned else {}

            def write(rows, columns, name=name, options=options):
                frame = spark.createDataFrame(rows, columns).coalesce(1)
                frame.write.format("ledger").options(**options).mode("append").save(name)

            write([(0.5, 1), (0.0, 1), (-0.0, 2), (nan, 1), (-nan, 2)], "k double, n long")
            write([(1.5, 1, "web"), (2.5, 1, "web"), (2.5, 2, None)], "k double, n long, source string")
            if engine == "local":
                client.compact(name)
            else:
                compaction.compact(spark, name, zookeeper=client.zookeeper)
            state = [(str(r["k"]), r["n"], r["source"]) for r in client.reader(name, end="latest", compacted=True)]
            # Without a version column n is a value, so that 2.5 is not deleted.
            left = [] if versioned else [("2.5", 2, None)]
            assert state == [("0.5", 1, None), ("-0.0", 2, None), ("nan", 2, None), ("1.5", 1, "web"), *left]
            assert client.compaction(name).records == len(state) + (1 if versioned else 0)  # and a tombstone
