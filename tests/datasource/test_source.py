"""The source: honest limits, exact intervals, stable offsets, ordered partitions; first without Spark, then with it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base import names
from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace
from pyspark_ledger.datasource import LedgerDataSource
from pyspark_ledger.datasource.executor.reading import METADATA
from pyspark_ledger.errors import CorruptData, DataLoss, InvalidInput, NotFound
from pyspark_ledger.log.slices import CompactedSlice, LogSlice
from pyspark_ledger.testing.clock import SeededClock
from tests.support.query import INITIAL, SMALL_LEDGERS, Query, add, eventually, fields, flat
from tests.support.worlds import SCHEMA, stage

WIDE = pa.schema([pa.field("n", pa.int64()), pa.field("payload", pa.binary())])


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with client_of(open_namespace(namespace, storage_root, limits=SMALL_LEDGERS)) as client:
        client.create_topic("t", SCHEMA)
        yield client


def add_wide(client: LedgerClient, numbers: range, size: int = 1000) -> None:
    """One entry with a payload that does not compress."""
    with client.producer("wide") as producer:
        rows = [{"n": n, "payload": os.urandom(size)} for n in numbers]
        producer.send_batch(pa.RecordBatch.from_pylist(rows, schema=WIDE))


# -- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 4, 100])
def test_max_rows_per_trigger_is_honest_and_splits_entries_I2(client, limit):
    add(client, *range(10))
    add(client, 10)
    add(client, *range(11, 20))
    query = Query(client, maxRowsPerTrigger=str(limit))
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(limit)
    batches = query.all()
    assert flat(batches) == list(range(20))
    assert {len(batch) for batch in batches[:-1]} <= {limit}
    assert len(batches[-1]) <= limit


def test_max_bytes_per_trigger_is_honest_and_splits_a_big_entry_I2(client):
    client.create_topic("wide", WIDE)
    add_wide(client, range(100))
    add_wide(client, range(100, 110))
    query = Query(client, "wide", maxBytesPerTrigger="8k")
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(8 << 10)
    batches = query.all()
    assert flat(batches) == list(range(110))
    for start, end, rows in query.batches[:-1]:
        stored = sum(piece.bytes for part in query.reader.partitions(start, end) for piece in part.slices)
        assert stored <= 8 << 10
        assert len(rows) in (7, 8) or rows[-1] == 109


def test_a_limit_below_the_size_of_a_row_still_gets_on(client):
    client.create_topic("wide", WIDE)
    add_wide(client, range(5))
    assert Query(client, "wide", maxBytesPerTrigger="10").all() == [[0], [1], [2], [3], [4]]


def test_both_limits_hold_at_once(client):
    client.create_topic("wide", WIDE)
    add_wide(client, range(20), size=10)
    add_wide(client, range(20, 40), size=4000)
    batches = Query(client, "wide", maxRowsPerTrigger="15", maxBytesPerTrigger="13k").all()
    assert flat(batches) == list(range(40))
    assert max(map(len, batches)) == 15
    assert all(len(batch) <= 3 for batch in batches if batch[0] > 20)


def test_spark_may_ask_for_everything_whatever_the_limits_are(client):
    add(client, *range(10))
    assert Query(client, maxRowsPerTrigger="3").batch(ReadAllAvailable()) == list(range(10))
    assert Query(client).reader.getDefaultReadLimit() == ReadAllAvailable()


def test_min_rows_per_trigger_waits_for_more_rows(client):
    add(client, 0, 1, 2)
    query = Query(client, minRowsPerTrigger="5", maxTriggerDelay="1h")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(5)
    assert query.batch() == []
    add(client, 3)
    assert query.batch() == []
    add(client, 4, 5)
    eventually(lambda: query.batch() == [0, 1, 2, 3, 4, 5])
    add(client, 6)
    assert query.batch() == []


def test_min_rows_per_trigger_waits_no_longer_than_max_trigger_delay(client):
    add(client, 0)
    query = Query(client, minRowsPerTrigger="5", maxTriggerDelay="10m")
    clock = query.reader._planner.topics[0].log().clock = SeededClock()
    assert query.batch() == []
    clock.sleep(599)
    assert query.batch() == []
    clock.sleep(2)
    assert query.batch() == [0]
    add(client, 1)
    clock.sleep(599)
    assert query.batch() == []
    clock.sleep(2)
    assert query.batch() == [1]


def test_min_and_max_rows_go_together(client):
    query = Query(client, minRowsPerTrigger="3", maxRowsPerTrigger="4", maxTriggerDelay="1h")
    add(client, *range(10))
    query.reader._planner.topics[0].log().refresh(sync=True)
    assert [batch for batch in query.all() if batch] == [[0, 1, 2, 3], [4, 5, 6, 7]]  # 8 and 9 wait for a third


# -- where a query starts and ends -----------------------------------------------------------------------------


def test_available_now_ends_where_the_topic_ended_when_it_began(client):
    add(client, *range(5))
    query = Query(client, maxRowsPerTrigger="2", minRowsPerTrigger="2", maxTriggerDelay="1h")
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == [0, 1]
    add(client, 5, 6, 7)
    query.reader._planner.topics[0].log().refresh(sync=True)
    assert query.all() == [[2, 3], [4]]  # the rest below minRowsPerTrigger is delivered too


def test_nothing_is_delivered_past_ending_offsets(client):
    add(client, *range(5))
    end = client.end("t")
    add(client, *range(5, 10))
    for spelling in (str(end), json.dumps({"pos": str(end), "topic": client.topic("t").uuid, "v": 1})):
        assert flat(Query(client, maxRowsPerTrigger="2", endingOffsets=spelling).all()) == list(range(5))
    assert flat(Query(client, endingOffsets="0:0:3").all()) == [0, 1, 2]
    assert Query(client, endingOffsets="earliest").all() == []
    query = Query(client, endingOffsets="latest")
    add(client, 10)
    assert flat(query.all()) == list(range(10))


@pytest.mark.parametrize("start", ["0:0:2", "0:1:0", "earliest", "latest"])
def test_a_stream_starts_at_the_position_asked_for(client, start):
    add(client, 0, 1, 2)
    add(client, 3, 4)
    expected = {"0:0:2": [2, 3, 4], "0:1:0": [3, 4], "earliest": [0, 1, 2, 3, 4], "latest": []}
    assert flat(Query(client, startingOffsets=start).all()) == expected[start]


@pytest.fixture
def timed(namespace, storage_root) -> Iterator[LedgerClient]:
    """Records 0 to 9, one every second, over two ledgers."""
    clock = SeededClock(start_ms=1_000_000)
    limits = replace(SMALL_LEDGERS, clock_slack_ms=1 << 60)  # this clock is believed, far as it is from ZooKeeper's
    with client_of(open_namespace(namespace, storage_root, limits=limits, clock=clock)) as client:
        client.create_topic("t", SCHEMA)
        for n in range(10):
            add(client, n)
            clock.sleep(1)
        yield client


def test_times_are_publish_times_from_and_until(timed):
    assert flat(Query(timed, startingTimestamp="1003000").all()) == list(range(3, 10))
    assert flat(Query(timed, startingTimestamp="1002001").all()) == list(range(3, 10))
    assert flat(Query(timed, endingTimestamp="1007000").all()) == list(range(7))
    assert flat(Query(timed, endingTimestamp="1006001").all()) == list(range(7))
    both = Query(timed, startingTimestamp="1970-01-01T00:16:42Z", endingTimestamp="1970-01-01T00:16:48Z")
    assert flat(both.all()) == list(range(2, 8))
    assert Query(timed, startingTimestamp="2000000").all() == []


def test_a_stream_reads_on_until_its_ending_timestamp_has_come(timed):
    query = Query(timed, startingOffsets="latest", endingTimestamp="1012000")
    for n in range(10, 15):  # published at 1,010,000 to 1,014,000
        add(timed, n)
        namespace_of(timed).clock.sleep(1)
        query.reader._planner.topics[0].log().refresh(sync=True)
        query.batch()
    assert flat([rows for _, _, rows in query.batches]) == [10, 11]


# -- offsets ---------------------------------------------------------------------------------------------------


def test_an_offset_is_byte_identical_when_nothing_is_new(client):
    add(client, 0)
    query = Query(client)
    query.batch()
    text = json.dumps(query.offset)
    assert text == json.dumps(query.offset, sort_keys=True)
    for limit in (ReadAllAvailable(), ReadMaxRows(1), ReadMaxBytes(1)):
        assert json.dumps(query.reader.latestOffset(json.loads(text), limit)) == text
    fresh = Query(client, offset=json.loads(text))  # after a restart, too
    assert json.dumps(fresh.plan()[1]) == text


def test_an_offset_stays_byte_identical_when_a_ledger_is_sealed_behind_it(client):
    for n in range(5):
        add(client, n)
    query = Query(client)
    assert flat(query.all()) == list(range(5))
    text = json.dumps(query.offset)
    from pyspark_ledger.log import seal

    seal.seal(namespace_of(client).log("t"))
    query.reader._planner.topics[0].log().refresh(sync=True)
    assert json.dumps(query.plan()[1]) == text
    add(client, 5)
    eventually(lambda: query.batch() == [5])


def test_batch_0_replayed_with_starting_offsets_latest_reads_the_same_I7(client):
    add(client, 0, 1)
    query = Query(client, startingOffsets="latest")
    add(client, 2, 3)
    query.reader._planner.topics[0].log().refresh(sync=True)
    start, end = query.plan()
    assert (start, query.read(start, end)) == (INITIAL, [2, 3])
    add(client, 4)
    restarted = Query(client, startingOffsets="latest")  # asks for the initial offset again, and later
    assert restarted.read(INITIAL, end) == [2, 3]
    restarted.offset = end
    assert restarted.batch() == [4]


def test_latest_does_not_move_while_a_query_is_down(client):
    """Spark makes a batch 0 even if nothing is there to read: it fixes where the query began."""
    add(client, 0)
    query = Query(client, startingOffsets="latest")
    start, end = query.plan()
    assert end != start == INITIAL
    assert query.read(start, end) == []
    add(client, 1)
    assert Query(client, startingOffsets="latest", offset=end).batch() == [1]


def test_every_logged_batch_reads_the_same_for_ever_I7(client):
    for n in range(0, 60, 3):
        add(client, n, n + 1, n + 2)
    query = Query(client, maxRowsPerTrigger="7")
    assert flat(query.all()) == list(range(60))
    for n in range(60, 80):
        add(client, n)  # seals go on
    client.gc("t")
    client.gc("t")
    later = Query(client, offset=query.offset)
    for start, end, rows in query.batches:
        assert later.read(start, end) == rows


def test_a_restart_after_every_batch_misses_and_repeats_nothing_across_seals_I1_I2(client):
    offset, rows = None, []
    for n in range(23):
        add(client, 2 * n, 2 * n + 1)
        query = Query(client, offset=offset, maxRowsPerTrigger="3")
        rows += query.batch()
        offset = query.offset
    rows += flat(Query(client, offset=offset).all())
    assert rows == list(range(46))
    assert client.end("t").ledger >= 4


def test_a_recreated_topic_is_an_error_by_name(client):
    add(client, 0)
    query = Query(client)
    query.batch()
    old = client.topic("t").uuid
    client.delete_topic("t")
    with pytest.raises(NotFound, match="LEDGER_TOPIC_DELETED"):
        query.reader._planner.topics[0].log().refresh(sync=True)
    client.create_topic("t", SCHEMA)
    add(client, 1)
    restarted = Query(client, offset=query.offset)
    for call in (lambda: restarted.plan(), lambda: restarted.read(INITIAL, query.offset)):
        with pytest.raises(InvalidInput, match="LEDGER_TOPIC_RECREATED") as caught:
            call()
        assert old in str(caught.value)
        assert client.topic("t").uuid in str(caught.value)
    with pytest.raises(InvalidInput, match="LEDGER_TOPIC_RECREATED"):
        Query(client, startingOffsets=json.dumps(query.offset))


def past_the_end(client: LedgerClient) -> dict:
    return {"epoch": 0, "pos": "0:9:0", "rev": 0, "topic": client.topic("t").uuid, "v": 1}


def test_a_checkpoint_past_the_end_is_data_loss_that_names_the_way_on(client):
    add(client, 0, 1)
    query = Query(client, offset=past_the_end(client))
    with pytest.raises(DataLoss, match=r"LEDGER_POSITION_PAST_END.*0:9:0.*failOnDataLoss=false"):
        query.plan()
    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        query.read(INITIAL, past_the_end(client))


def test_without_fail_on_data_loss_a_query_goes_on_from_the_end(client):
    add(client, 0, 1)
    query = Query(client, offset=past_the_end(client), failOnDataLoss="false")
    start, end = query.plan()
    assert query.read(start, end) == []
    add(client, 2)
    eventually(lambda: query.batch() == [2])


def test_a_picture_that_is_behind_is_not_data_loss(client):
    """After a restart the first answer may come from a server that lags: look again before crying wolf."""
    add(client, 0)
    query = Query(client)
    log = query.reader._planner.topics[0]._opened = namespace_of(client).log("t", watch=False)
    log.refresh()
    add(client, 1)
    end = {**past_the_end(client), "pos": str(client.end("t"))}
    assert log.view().head.end < client.end("t")
    assert query.reader.latestOffset(end, ReadAllAvailable()) == end


def test_an_offset_of_a_newer_format_stops_the_query(client):
    with pytest.raises(InvalidInput, match=r"LEDGER_NEWER_FORMAT.*upgrade"):
        Query(client, offset={**past_the_end(client), "v": 3}).plan()


# -- the cost of asking ----------------------------------------------------------------------------------------


class Counting:
    """Passes everything on to ZooKeeper, and counts."""

    def __init__(self, metadata) -> None:
        self._metadata, self.requests = metadata, 0

    def __getattr__(self, name: str):
        self.requests += 1
        return getattr(self._metadata, name)


def test_latest_offset_is_answered_from_memory_until_a_watch_fires(client):
    add(client, 0)
    query = Query(client)
    assert query.batch() == [0]
    log = query.reader._planner.topics[0].log()
    log.clock = SeededClock()  # stands still: no polling, only the watch
    counting = log.metadata = Counting(log.metadata)
    log.refresh()  # sets the watch
    counting.requests = 0
    for _ in range(1000):
        assert query.batch() == []
        query.reader.reportLatestOffset()
    assert counting.requests == 0
    add(client, 1)
    eventually(lambda: query.batch() == [1])
    assert 0 < counting.requests <= 4
    counting.requests = 0
    query.batch()
    assert counting.requests == 0


def test_a_lost_watch_is_noticed_by_polling(client):
    query = Query(client)
    log = query.reader._planner.topics[0]._opened = namespace_of(client).log("t", watch=False)
    clock = log.clock = SeededClock()
    log.refresh()
    add(client, 0)
    assert query.batch() == []
    clock.sleep(60)
    assert query.batch() == [0]


def test_report_latest_offset_shows_how_far_behind_a_query_is(client):
    add(client, *range(5))
    query = Query(client, maxRowsPerTrigger="2")
    query.batch()
    assert fields(query.offset)["pos"] == "0:0:2"
    assert fields(query.reader.reportLatestOffset())["pos"] == str(client.end("t")) == "0:1:0"


# -- partitions ------------------------------------------------------------------------------------------------


def tiles(parts) -> list[tuple[Position, Position]]:
    return [(piece.begin, piece.end) for part in parts for piece in part.slices]


@pytest.mark.parametrize("wanted", [1, 2, 3, 7])
def test_partitions_are_contiguous_in_order_and_balanced_I2(client, wanted):
    log = namespace_of(client).log("t")
    for first in range(0, 60, 6):  # two entries in every commit, and ledgers in between
        entries = (stage(log, first, first + 1), stage(log, *range(first + 2, first + 6)))
        protocol.append(log, StagedBatch(log.clock.new_id(), entries, SCHEMA))
    query = Query(client, minPartitions=str(wanted))
    parts = query.reader.partitions(*query.plan())
    assert len(parts) == wanted
    begins = [begin for begin, _ in tiles(parts)]
    assert begins == sorted(begins)
    rows = [[n for b in query.reader.read(part) for n in b.column("n").to_pylist()] for part in parts]
    assert flat(rows) == list(range(60))
    assert max(map(len, rows)) - min(map(len, rows)) <= 4


def test_many_small_entries_share_a_task(client):
    for n in range(30):
        add(client, n)
    query = Query(client)
    (part,) = query.reader.partitions(*query.plan())
    assert len(part.slices) == 30


def test_one_big_entry_is_shared_out(client, monkeypatch):
    client.create_topic("wide", WIDE)
    add_wide(client, range(1000))
    query = Query(client, "wide", minPartitions="4")
    parts = query.reader.partitions(*query.plan())
    assert [sum(piece.rows for piece in part.slices) for part in parts] == [250] * 4
    assert all(end == begin for (_, end), (begin, _) in zip(tiles(parts), tiles(parts)[1:], strict=False))


# -- columns ---------------------------------------------------------------------------------------------------


def spoil(client: LedgerClient, topic: str, needle: bytes) -> None:
    """Damages the bytes of one value, where they lie in the entry's file."""
    uuid = client.topic(topic).uuid
    (path,) = namespace_of(client).storage.list(uuid)
    assert names.parse_staged_file(uuid, path)
    file = namespace_of(client).storage._root / path
    data = file.read_bytes()
    assert needle in data
    file.write_bytes(data.replace(needle, needle[::-1]))


def test_a_projection_reads_only_what_is_asked(client):
    """The proof: damage in a column that nobody asked for goes unnoticed, because its bytes are never looked at."""
    client.create_topic("wide", WIDE)
    with client.producer("wide", compression="none") as producer:
        producer.send({"n": 1, "payload": b"a payload that can be found"})
    spoil(client, "wide", b"a payload that can be found")
    assert Query(client, "wide", columns="n").batch() == [1]
    asked = StructType([StructField("n", LongType())])
    assert Query(client, "wide", schema=asked).batch() == [1]
    with pytest.raises(CorruptData, match="checksum"):
        Query(client, "wide").batch()


def test_a_schema_asked_for_must_be_the_topics(client):
    for schema, words in (
        (StructType([StructField("n", IntegerType())]), "asks for 'n' as int32, the topic has it as int64"),
        (StructType([StructField("n", LongType(), False)]), "asks for 'n' as int64 not null, the topic.*nullable"),
        (StructType([StructField("m", StringType())]), "no column 'm': n"),
    ):
        with pytest.raises(InvalidInput, match=words):
            Query(client, schema=schema)


def test_a_stream_that_ignores_a_new_column_keeps_its_own_and_a_new_one_sees_null_in_old_records(client):
    add(client, 0)
    running = Query(client, onSchemaChange="ignore")
    wider = pa.schema([*SCHEMA, pa.field("extra", pa.string())])
    log = namespace_of(client).log("t")
    protocol.append(log, StagedBatch(b"w" * 16, (), wider, merge_schema=True))
    with client.producer("t") as producer:
        producer.send({"n": 1, "extra": "x"})
    assert flat(running.all()) == [0, 1]
    fresh = Query(client)
    (part,) = fresh.reader.partitions(*fresh.plan())
    rows = [row for batch in fresh.reader.read(part) for row in batch.to_pylist()]
    assert rows == [{"n": 0, "extra": None}, {"n": 1, "extra": "x"}]


def test_metadata_says_where_every_record_is_and_where_it_came_from(client):
    with client.producer("t", name="p") as producer:
        for n in range(3):
            producer.send({"n": n})
            producer.flush()
    query = Query(client, includeMetadata="true", minPartitions="2", startingOffsets="0:1:0")
    rows = [
        row
        for part in query.reader.partitions(*query.plan())
        for batch in query.reader.read(part)
        for row in batch.to_pylist()
    ]
    for row, record in zip(rows, client.reader("t", "0:1:0", "latest"), strict=True):
        found = row[METADATA]
        assert (row["n"], Position(found["ledgerId"], found["entryId"], found["index"])) == (
            record["n"],
            record.position,
        )
        assert (found["topic"], found["producer"], found["publishTime"]) == ("t", "p", record.publish_time)
        assert (found["epoch"], found["revision"], found["sequenceId"], found["token"]) == (0, 0, record["n"], None)
        assert record.sequence_id == record["n"]


def test_a_column_that_is_really_called_metadata_is_a_column(client):
    client.create_topic("m", pa.schema([("n", pa.int64()), (METADATA, pa.string())]))
    with client.producer("m") as producer:
        producer.send({"n": 1, METADATA: "mine"})
    query = Query(client, "m")
    (part,) = query.reader.partitions(*query.plan())
    assert [b.to_pylist() for b in query.reader.read(part)] == [[{"n": 1, METADATA: "mine"}]]
    with pytest.raises(InvalidInput, match="column '_metadata' of its own"):
        Query(client, "m", includeMetadata="true")


# -- executors -------------------------------------------------------------------------------------------------

_EXECUTOR = """
import json, pickle, sys
sys.modules["kazoo"] = None  # an import would fail
reader, partition = pickle.load(sys.stdin.buffer)  # as Spark sends them, by the names of their modules
numbers = [n for batch in reader.read(partition) for n in batch.column("n").to_pylist()]
print(json.dumps([numbers, list(sys.modules)]))
"""
DRIVERS_ONLY = [
    "kazoo.client", "google.protobuf", "pyspark_ledger.zk_metadata", "pyspark_ledger.metadata.port",
    "pyspark_ledger.log.log", "pyspark_ledger.client", "pyspark_ledger.cursors", "pyspark_ledger.compaction",
    "pyspark_ledger.append", "pyspark_ledger.datasource.options", "pyspark_ledger.datasource.planning",
]  # fmt: skip


def on_an_executor(reader, partition) -> tuple[list[int], set[str]]:
    """What a task reads, and the modules that its process has imported by then."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LEDGER_")}
    done = subprocess.run(
        [sys.executable, "-c", _EXECUTOR], input=pickle.dumps((reader, partition)), capture_output=True, env=environment
    )
    assert done.returncode == 0, done.stderr.decode()
    numbers, modules = json.loads(done.stdout)
    return numbers, set(modules)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_executors_touch_storage_only_and_import_little(client, kind, compacted):
    client.create_topic("keyed", pa.schema([("n", pa.int64()), ("v", pa.int64())]), key="n")
    with client.producer("keyed") as producer:
        for n in range(5):
            producer.send({"n": n, "v": 1})
    if compacted:
        client.compact("keyed")
    options = {"zookeeper": client.zookeeper, "topic": "keyed", "includeMetadata": "true", "readCompacted": "true"}
    source = LedgerDataSource(options)
    if kind == "batch":
        reader = source.reader(source.schema())
        (part,) = reader.partitions()
    else:
        query = Query(client, "keyed", includeMetadata="true", readCompacted="true")
        reader = query.reader
        (part,) = reader.partitions(*query.plan())
    assert isinstance(part.slices[0], CompactedSlice if compacted else LogSlice)
    numbers, modules = on_an_executor(reader, part)
    assert numbers == [0, 1, 2, 3, 4]
    assert [name for name in DRIVERS_ONLY if name in modules] == []
    ours = {name for name in modules if name.split(".")[0] == "pyspark_ledger"}
    # 54 before reading had a module of its own; four of them are small, and for how to get into an object store.
    assert len(ours) <= 30, sorted(ours)


# -- with Spark ------------------------------------------------------------------------------------------------


def read_stream(spark, client: LedgerClient, topic: str = "t", **options: str):
    return spark.readStream.format("ledger").options(zookeeper=client.zookeeper, **options).load(topic)


def read_batch(spark, client: LedgerClient, topic: str = "t", **options: str):
    return spark.read.format("ledger").options(zookeeper=client.zookeeper, **options).load(topic)


def copy(spark, client: LedgerClient, checkpoint, to: str = "copy", **options: str):
    """Runs a query from one topic to another until it has everything there is."""
    query = (
        read_stream(spark, client, **options)
        .writeStream.format("ledger")
        .option("zookeeper", client.zookeeper)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(to)
    )
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress]


def numbers(client: LedgerClient, topic: str) -> list[int]:
    return [record["n"] for record in client.reader(topic, end="latest")]


@pytest.mark.spark
def test_ledger_to_ledger_keeps_the_order_over_restarts_and_seals_I1_I2(spark, client, tmp_path):
    for n in range(0, 70, 10):
        add(client, *range(n, n + 10))
    progress = copy(spark, client, tmp_path / "c", maxRowsPerTrigger="32", minPartitions="3")
    assert progress == [32, 32, 6]
    for n in range(70, 130, 10):
        add(client, *range(n, n + 10))
    progress = copy(spark, client, tmp_path / "c", minPartitions="2")
    assert progress == [60]
    assert numbers(client, "copy") == list(range(130))
    assert client.end("t").ledger >= 2


@pytest.mark.spark
def test_a_query_that_began_at_latest_on_an_empty_topic_reads_what_came_while_it_was_down_I1(spark, client, tmp_path):
    assert copy(spark, client, tmp_path / "c", startingOffsets="latest") == [0]
    add(client, 1, 2)
    assert copy(spark, client, tmp_path / "c", startingOffsets="latest") == [2]
    assert numbers(client, "copy") == [1, 2]


@pytest.mark.spark
def test_available_now_terminates_at_ending_offsets(spark, client, tmp_path):
    add(client, *range(10))
    assert copy(spark, client, tmp_path / "c", endingOffsets="0:0:7", maxBytesPerTrigger="1g") == [7]
    assert numbers(client, "copy") == list(range(7))


@pytest.mark.spark
def test_a_running_query_sees_what_comes_and_reports_its_lag(spark, client, tmp_path):
    add(client, 0)
    query = (
        read_stream(spark, client, maxRowsPerTrigger="2")
        .writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        for n in (1, 4, 7):
            add(client, n, n + 1, n + 2)
            eventually(lambda n=n: spark.table("seen").count() == n + 3, 60)
        assert [row.n for row in spark.table("seen").collect()] == list(range(10))
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        assert max(progress.numInputRows for progress in batches) <= 2
        assert fields(json.loads(batches[-1].sources[0].latestOffset))["pos"] == str(client.end("t"))
    finally:
        query.stop()


@pytest.mark.spark
def test_a_recreated_topic_stops_a_restarted_query_by_name(spark, client, tmp_path):
    add(client, 0)
    copy(spark, client, tmp_path / "c")
    client.delete_topic("t")
    client.create_topic("t", SCHEMA)
    add(client, 1)
    with pytest.raises(Exception, match="LEDGER_TOPIC_RECREATED"):
        copy(spark, client, tmp_path / "c")
    assert numbers(client, "copy") == [0]


@pytest.mark.spark
def test_a_batch_read_is_a_fixed_piece_of_the_log(spark, client):
    add(client, *range(10))
    assert read_batch(spark, client, minPartitions="3").rdd.getNumPartitions() == 3
    assert sorted(
        row.n for row in read_batch(spark, client, startingOffsets="0:0:2", endingOffsets="0:0:5").collect()
    ) == [
        2,
        3,
        4,
    ]
    assert read_batch(spark, client).count() == 10
    assert read_batch(spark, client, startingOffsets="latest").count() == 0
    row = (
        read_batch(spark, client, includeMetadata="true").where("_metadata.index = 7").select("n", "_metadata").first()
    )
    assert (row.n, row[METADATA].ledgerId, row[METADATA].entryId, row[METADATA].topic) == (7, 0, 0, "t")
    asked = StructType([StructField("n", LongType())])
    with_schema = spark.read.format("ledger").option("zookeeper", client.zookeeper).schema(asked).load("t")
    assert with_schema.agg({"n": "sum"}).first()[0] == 45


@pytest.mark.spark
def test_a_temporary_view_reads_and_writes(spark, client):
    add(client, 1)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW t_view USING ledger OPTIONS (topic 't', zookeeper '{client.zookeeper}')"
    )
    spark.sql("INSERT INTO t_view SELECT 2L")
    assert sorted(row.n for row in spark.sql("SELECT n FROM t_view").collect()) == [1, 2]


@pytest.mark.spark
def test_a_read_that_cannot_be_meant_is_an_error_that_names_it(spark, client):
    add(client, *range(10))
    for options, words in [
        ({"startingOffsets": "0:0:5", "endingOffsets": "0:0:2"}, "before it starts"),
        ({"startingOffsets": "9:0:0"}, "position 9:0:0 is past the end 0:1:0 of topic 't'"),
    ]:
        with pytest.raises(Exception, match=words):
            read_batch(spark, client, **options).count()
    asked = StructType([StructField("n", LongType())])
    both = spark.read.format("ledger").option("zookeeper", client.zookeeper).option("columns", "m").schema(asked)
    with pytest.raises(Exception, match=r"\.schema\(\) has n, option 'columns' has m: give one"):
        both.load("t").count()
