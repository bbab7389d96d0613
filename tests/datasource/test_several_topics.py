"""One query reads several topics: each is delivered once and in order, limits are shared fairly, and the list may
change on one checkpoint (I1, I2, I7)."""

from __future__ import annotations

import json
import random
from collections import defaultdict

import pyarrow as pa
import pytest

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.datasource import offsets
from pyspark_ledger.datasource.fairness import fair_shares
from pyspark_ledger.datasource.options import ReadOptions, WriteOptions
from pyspark_ledger.errors import Conflict, InvalidInput, NotFound
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import EntryWriter
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.testing.clock import SeededClock
from tests.support.query import INITIAL, WorldQuery, version_1
from tests.support.worlds import SCHEMA, World, append


class Shop(World):
    """The topics a, b and c. The numbers of a record say its topic: 100s are a's, 200s b's, 300s c's."""

    def __init__(self, folder, **how) -> None:
        super().__init__(folder, **how)
        self.topics = {name: self.make(name) for name in "abc"}

    def make(self, name: str, schema: pa.Schema = SCHEMA):
        return topics.create_topic(self.metadata(), name, schema, clock=self.clock, storage=self.storage)

    def log_of(self, name: str) -> Log:
        return Log(self.metadata(), self.storage, self.topics[name], limits=self.limits, clock=self.clock)

    def add(self, name: str, *numbers: int) -> None:
        append(self.log_of(name), *numbers)


class ShopQuery(WorldQuery):
    def __init__(self, shop: Shop, names: str = "a,b", **options) -> None:
        super().__init__(shop, topics=names, **options)

    def plan(self, limit=None):
        for topic in self.reader._planner.topics:
            topic.log().refresh(sync=True)
            if topic._subscription is not None:
                topic._subscription._attachment.node.refresh(sync=True)
        return super(WorldQuery, self).plan(limit)

    def read(self, start, end):
        with self.in_world:  # a topic that was taken out of the list is opened now
            return super().read(start, end)

    def records(self) -> dict[str, int]:
        """How many records of each topic the query has read."""
        return {name: part["records"] for name, part in self.offset["topics"].items()}


@pytest.fixture
def shop(tmp_path):
    shop = Shop(tmp_path)
    shop.add("a", 100, 101, 102)
    shop.add("b", 200, 201)
    return shop


# -- a document with a part for each ------------------------------------------------------------------------------


def test_one_document_has_a_part_for_each_topic_and_idle_ones_keep_theirs(shop):
    query = ShopQuery(shop)
    assert query.batch() == [100, 101, 102, 200, 201]
    assert query.records() == {"a": 3, "b": 2}
    first = query.offset
    assert query.plan() == (first, first)
    shop.add("b", 202)
    assert query.batch() == [202]
    assert query.offset["topics"]["a"] == first["topics"]["a"]
    assert json.dumps(query.offset) == json.dumps(query.offset, sort_keys=True)
    assert query.reader.reportLatestOffset()["topics"].keys() == {"a", "b"}


def test_a_logged_batch_reads_the_same_for_ever_I7(shop):
    query = ShopQuery(shop, maxRowsPerTrigger="2")
    query.all()
    shop.add("a", 103)
    shop.add("b", 202)
    again = ShopQuery(shop, offset=query.offset, maxRowsPerTrigger="1")
    for start, end, rows in query.batches:
        assert again.read(start, end) == rows
    assert sorted(row for _, _, rows in query.batches for row in rows) == [100, 101, 102, 200, 201]


def test_each_row_says_its_topic(shop):
    query = ShopQuery(shop, includeMetadata="true")
    parts = query.reader.partitions(*query.plan())
    rows = [row for part in parts for batch in query.reader.read(part) for row in batch.to_pylist()]
    assert [(row["_metadata"]["topic"], row["n"]) for row in rows] == [
        ("a", 100), ("a", 101), ("a", 102), ("b", 200), ("b", 201)
    ]  # fmt: skip


# -- the list changes on one checkpoint ---------------------------------------------------------------------------


def test_a_topic_added_to_the_list_begins_where_the_options_say_and_the_others_go_on(shop):
    one = WorldQuery(shop, topic="a")
    assert one.batch() == [100, 101, 102]
    shop.add("a", 103)
    several = ShopQuery(shop, offset=one.offset)
    assert several.batch() == [103, 200, 201]
    assert several.offset["topics"]["b"]["from"] == "0:0:0"
    late = ShopQuery(shop, "a,b,c", offset=several.offset, startingOffsets="latest")
    assert late.batch() == []  # an empty batch, which fixes where the new topic begins
    assert late.offset["topics"]["c"]["pos"] == "0:0:0"
    shop.add("c", 300)
    assert ShopQuery(shop, "a,b,c", offset=late.offset, startingOffsets="latest").batch() == [300]


def test_a_topic_taken_out_of_the_list_keeps_its_part_and_goes_on_there_when_it_comes_back(shop):
    query = ShopQuery(shop)
    query.batch()
    shop.add("a", 103)
    shop.add("b", 202)
    without = ShopQuery(shop, "a", offset=query.offset)
    assert without.batch() == [103]
    assert without.offset["topics"]["b"] == query.offset["topics"]["b"]
    assert ShopQuery(shop, "b,a", offset=without.offset).batch() == [202]


def test_a_batch_that_was_logged_before_a_topic_was_taken_out_is_read_as_it_was_planned_I7(shop):
    query = ShopQuery(shop, subscription="s")
    start, end = query.plan()
    query.stop()
    without = ShopQuery(shop, "a", offset=end, subscription="s")
    assert without.read(start, end) == [100, 101, 102, 200, 201]
    assert without.reader.partitions(end, end) == []
    without.reader.commit(end)
    assert CursorNode(shop.log_of("a"), "s").refresh(sync=True).ordinal == 3
    assert CursorNode(shop.log_of("b"), "s").refresh(sync=True).ordinal == 0  # nobody follows it any more
    without.stop()


def test_a_batch_of_a_topic_that_was_taken_out_reads_nothing_if_a_reset_has_discarded_it_I7(shop):
    query = ShopQuery(shop, subscription="s")
    start, end = query.plan()
    query.stop()
    CursorHandle(shop.log_of("b"), "s").reset("earliest", discard_planned=True)
    without = ShopQuery(shop, "a", offset=end, subscription="s")
    assert without.read(start, end) == [100, 101, 102]
    without.stop()


@pytest.mark.parametrize("made_again", [False, True])
def test_a_batch_of_a_topic_that_was_taken_out_and_deleted_is_an_error_with_a_way_on(shop, made_again, caplog):
    query = ShopQuery(shop)
    start, end = query.plan()
    topics.delete_topic(shop.metadata(), "b")
    if made_again:
        shop.topics["b"] = shop.make("b")
        shop.add("b", 299)
    with pytest.raises(NotFound, match=r"LEDGER_TOPIC_DELETED.*topic 'b'.*has left.*failOnDataLoss=false"):
        ShopQuery(shop, "a", offset=end).read(start, end)
    assert ShopQuery(shop, "a", offset=end, failOnDataLoss="false").read(start, end) == [100, 101, 102]
    assert "going on without them" in caplog.text


def test_a_checkpoint_of_none_of_the_topics_is_another_query_s(shop):
    query = ShopQuery(shop)
    query.batch()
    with pytest.raises(InvalidInput, match=r"LEDGER_TOPIC_RECREATED.*belongs to the topic 'a'.*this query reads 'c'"):
        ShopQuery(shop, "c", offset=query.offset).plan()


def test_a_topic_that_was_deleted_and_made_again_is_told_by_name(shop):
    query = ShopQuery(shop)
    query.batch()
    other = query.offset["topics"]["b"] | {"id": shop.topics["c"].uuid}
    recreated = offsets.document({**query.offset["topics"], "b": other})
    with pytest.raises(InvalidInput, match=r"LEDGER_TOPIC_RECREATED.*topic 'b'"):
        ShopQuery(shop, offset=recreated).plan()


def test_a_checkpoint_of_version_1_goes_on_with_more_topics(shop):
    one = WorldQuery(shop, topic="b")
    one.batch()
    query = ShopQuery(shop, offset=version_1(one.offset))
    assert query.batch() == [100, 101, 102]
    assert query.records() == {"a": 3, "b": 2}


# -- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "wanted", "shares"),
    [
        (10, [5, 5], [5, 5]),
        (10, [100, 100], [5, 5]),
        (10, [2, 100, 100], [2, 4, 4]),
        (11, [100, 3, 100], [4, 3, 4]),
        (2, [9, 9, 9], [1, 1, 0]),
        (5, [0, 9, 0], [0, 5, 0]),
        (5, [], []),
    ],
)
def test_shares_are_fair(limit, wanted, shares):
    assert fair_shares(limit, wanted) == shares


def test_limits_are_shared_and_nobody_waits_for_a_busier_topic(shop):
    shop.add("a", *range(103, 150))
    query = ShopQuery(shop, maxRowsPerTrigger="4")
    assert query.batch() == [100, 101, 200, 201]
    assert query.batch() == [102, 103, 104, 105]
    one_by_one = ShopQuery(shop, maxRowsPerTrigger="1")
    assert [one_by_one.batch() for _ in range(4)] == [[100], [200], [101], [201]]


def test_a_limit_in_bytes_below_a_row_gives_one_row_at_a_time_of_each_in_turn(shop):
    query = ShopQuery(shop, maxBytesPerTrigger="1")
    assert [query.batch() for _ in range(5)] == [[100], [200], [101], [201], [102]]
    assert query.batch() == []


def test_a_minimum_counts_the_rows_of_all(shop):
    query = ShopQuery(shop, minRowsPerTrigger="6")
    query.batch()
    assert query.records() == {"a": 0, "b": 0}
    shop.add("b", 202)
    assert query.batch() == [100, 101, 102, 200, 201, 202]


def test_at_least_so_many_partitions_over_all_topics(shop):
    query = ShopQuery(shop, minPartitions="4")
    assert len(query.reader.partitions(*query.plan())) >= 4


# -- subscriptions ------------------------------------------------------------------------------------------------


def test_each_topic_has_its_own_subscription_and_a_reset_moves_only_that_one_I7(shop):
    query = ShopQuery(shop, subscription="s")
    query.batch()
    query.reader.commit(query.offset)
    assert [CursorNode(shop.log_of(name), "s").refresh(sync=True).ordinal for name in "ab"] == [3, 2]
    CursorHandle(shop.log_of("b"), "s").reset("earliest")
    assert query.batch() == [200, 201]
    assert (query.offset["topics"]["a"]["rev"], query.offset["topics"]["b"]["rev"]) == (0, 1)
    query.stop()
    assert all(CursorNode(shop.log_of(name), "s").refresh(sync=True).owner == b"" for name in "ab")


def test_while_one_subscription_is_being_reset_the_other_topics_go_on(shop):
    query = ShopQuery(shop, subscription="s")
    query.batch()
    shop.add("a", 103)
    shop.add("b", 202)
    resetter = RevisionController(CursorNode(shop.log_of("b"), "s"))
    resetter.start_revision()
    assert query.batch() == [103]
    resetter.end_revision(lambda cursor: cursor)
    assert query.batch() == [202]
    query.stop()


def test_if_one_subscription_is_taken_the_query_holds_none_I16(tmp_path):
    shop = Shop(tmp_path, clock=SeededClock())
    rival = ShopQuery(shop, "b", subscription="s")
    with pytest.raises(Conflict, match="LEDGER_SUBSCRIPTION_BUSY"):
        ShopQuery(shop, "a,b", subscription="s")
    assert CursorNode(shop.log_of("a"), "s").refresh(sync=True).owner == b""
    rival.stop()


# -- where it begins and ends -------------------------------------------------------------------------------------


def test_an_offset_of_several_topics_says_where_each_begins_and_ends(shop):
    query = ShopQuery(shop)
    query.batch()
    here = json.dumps(query.offset)
    shop.add("a", 103)
    shop.add("b", 202)
    assert ShopQuery(shop, startingOffsets=here).batch() == [103, 202]
    assert ShopQuery(shop, endingOffsets=here).batch() == [100, 101, 102, 200, 201]
    assert WorldQuery(shop, topic="b", startingOffsets=here).batch() == [202]
    CursorNode(shop.log_of("b"), "s").ensure("earliest")
    assert CursorHandle(shop.log_of("b"), "s").reset(here).position == Position(0, 1, 0)


def test_places_that_do_not_fit_several_topics_are_refused(shop):
    query = ShopQuery(shop)
    query.batch()
    here = json.dumps(query.offset)
    with pytest.raises(InvalidInput, match=r"says nothing of topic 'a'.*A position belongs to one topic"):
        ReadOptions.parse({"topics": "a,b", "startingOffsets": "0:1:0"})
    with pytest.raises(InvalidInput, match=r"'startingOffsets': .* is of several topics, a, b: 'c' is not one of them"):
        ReadOptions.parse({"topics": "a,b,c", "startingOffsets": here})
    CursorNode(shop.log_of("c"), "s").ensure("earliest")
    with pytest.raises(InvalidInput, match="several topics, a, b: 'c' is not one of them"):
        CursorHandle(shop.log_of("c"), "s").reset(here)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"topics": "a,,b"}, "each once, with commas between"),
        ({"topics": "a,a"}, "each once, with commas between"),
        ({"topics": ""}, "each once, with commas between"),
        ({"topics": "a,b/c"}, "LEDGER_INVALID_TOPIC_NAME"),
        ({"topics": ",".join(f"t{n}" for n in range(101))}, "101 topics, and a query reads 100 at most"),
        ({"topics": "a,b", "topic": "c"}, "exclude each other"),
        ({"topics": "a,b", "path": "c"}, "exclude each other"),
        ({"topics": "a,b", "paths": '["c"]'}, "exclude each other"),
    ],
)
def test_a_wrong_list_is_refused_by_name(given, problem):
    with pytest.raises(InvalidInput, match=problem):
        ReadOptions.parse(given)


def test_a_write_has_one_topic():
    with pytest.raises(InvalidInput, match="'topics' is for reading: a write goes to one topic"):
        WriteOptions.parse({"topics": "a,b"})


# -- columns ------------------------------------------------------------------------------------------------------

N, S = pa.field("n", pa.int64(), False), pa.field("s", pa.string())


def test_columns_of_several_topics_are_put_together():
    wide = pa.list_(pa.field("element", pa.int64()))
    narrow = pa.list_(pa.field("element", pa.int64(), False))
    one = pa.schema([N, pa.field("list", narrow)])
    other = pa.schema([pa.field("s", pa.string(), False), N, pa.field("list", wide)])
    assert schemas.union({"a": one, "b": other}) == pa.schema([N, pa.field("list", wide), S])


@pytest.mark.parametrize("other", [pa.field("n", pa.string()), pa.field("N", pa.int64()), N.with_metadata({"k": "v"})])
def test_columns_that_do_not_go_together_are_refused_with_both_topics(other):
    with pytest.raises(InvalidInput, match=r"LEDGER_SCHEMA_MISMATCH.*'a' and 'b' cannot be read together.*'columns'"):
        schemas.union({"a": pa.schema([N]), "b": pa.schema([other])})


def test_a_column_that_one_topic_lacks_is_null_and_one_that_clashes_can_be_left_out(shop):
    shop.topics["d"] = shop.make("d", pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.string())]))
    shop.topics["e"] = shop.make("e", pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.int32())]))
    shop.add("d", 400)
    query = ShopQuery(shop, "b,d")
    assert query.batch() == [200, 201, 400]
    assert query.reader._schema.names == ["n", "s"]
    with pytest.raises(InvalidInput, match="'d' and 'e' cannot be read together"):
        ShopQuery(shop, "d,e")
    assert ShopQuery(shop, "d,e", columns="n").batch() == [400]
    with pytest.raises(InvalidInput, match=r"the topics d, e have no column 'x': n, s"):
        ShopQuery(shop, "d,e", columns="n,x")


def test_a_topic_that_gets_a_column_stops_the_query_before_it(shop):
    query = ShopQuery(shop)
    query.batch()
    wider = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.string())])
    _append_with(shop, "b", wider, {"n": [202], "s": ["x"]})
    shop.add("a", 103)
    with pytest.raises(Conflict, match=r"LEDGER_SCHEMA_CHANGED.*topic 'b' got columns.*'s'"):
        query.all()
    assert ShopQuery(shop, offset=query.offset).all() in ([[202]], [[103, 202]])


def _append_with(shop: Shop, name: str, schema: pa.Schema, columns: dict) -> None:
    log = shop.log_of(name)
    writer = EntryWriter(log.storage, log.topic.uuid, log.view().head.gc_epoch, schema, clock=log.clock)
    writer.write(pa.RecordBatch.from_pydict(columns, schema=schema))
    protocol.append(log, StagedBatch(log.clock.new_id(), (writer.close(),), schema, merge_schema=True))


# -- with Spark ---------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_reads_several_topics_and_the_list_may_grow_on_one_checkpoint_I1_I2(
    spark, namespace, storage_root, tmp_path
):
    with LedgerClient(zookeeper=namespace, storage=storage_root) as client:
        for number, topic in enumerate("abc"):
            client.create_topic(topic, pa.schema([N, S] if topic == "b" else [N]))
            with client.producer(topic) as producer:
                for n in range(5):
                    producer.send({"n": 100 * number + n})

        def load(reader, topics: str):
            ledger = reader.format("ledger").options(zookeeper=namespace, topics=topics, maxRowsPerTrigger="4")
            return ledger.option("includeMetadata", "true").load().selectExpr("_metadata.topic", "n")

        def copy(topics: str) -> None:
            sink = load(spark.readStream, topics).writeStream.format("ledger").option("zookeeper", namespace)
            sink = sink.option("checkpointLocation", str(tmp_path / "copy")).trigger(availableNow=True)
            sink.start("copy").awaitTermination()

        copy("a,b")
        copy("c,b,a")
        found = defaultdict(list)
        for record in client.reader("copy", end="latest"):
            found[record["topic"]].append(record["n"])
        assert found == {"a": [0, 1, 2, 3, 4], "b": [100, 101, 102, 103, 104], "c": [200, 201, 202, 203, 204]}
        assert load(spark.read, "a,b").groupBy("topic").count().count() == 2


# -- anything may happen ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_each_topic_is_read_once_and_in_order_I1_I2_I7(tmp_path, seed):
    """Appends, restarts, replays, lists and limits that change: every record is read once, in its topic's order."""
    dice, shop = random.Random(seed), Shop(tmp_path)
    written, found, offset = dict.fromkeys("abc", 0), defaultdict(list), None
    listed: set[str] = set()
    for _ in range(25):
        for name in dice.sample("abc", dice.randrange(4)):
            count = dice.randrange(1, 5)
            shop.add(name, *range(written[name], written[name] + count))
            written[name] += count
        names = dice.sample("abc", dice.randrange(1, 4))
        if offset is not None and not listed & set(names):
            names.append(min(listed))
        options = {"maxRowsPerTrigger": str(dice.randrange(1, 9))} if dice.random() < 0.7 else {}
        query = ShopQuery(shop, ",".join(names), offset=offset, **options)
        listed |= set(names)
        for _ in range(dice.randrange(1, 4)):
            start, end = query.plan()
            for _ in range(dice.randrange(1, 3) if start != end else 0):  # the last time counts, the others are replays
                rows = _by_topic(query, start, end)
            if start != end:
                for name, numbers in rows.items():
                    found[name] += numbers
        offset = None if query.offset == INITIAL else query.offset
        query.stop()
    query = ShopQuery(shop, "c,b,a", offset=offset)
    for name, numbers in _by_topic(query, *query.plan()).items():
        found[name] += numbers
    assert found == {name: list(range(count)) for name, count in written.items() if count}


def _by_topic(query: ShopQuery, start: dict, end: dict) -> dict[str, list[int]]:
    found = defaultdict(list)
    for part in query.reader.partitions(start, end):
        found[part.topic] += [n for batch in query.reader.read(part) for n in batch.column("n").to_pylist()]
    return found
