"""A topic gets a column while a stream runs: no row loses it in silence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace
from pyspark_ledger.datasource.schema_change import SchemaWatch
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.log import seal
from tests.support import examples
from tests.support.query import SMALL_LEDGERS, Query, add, edited, flat
from tests.support.worlds import SCHEMA, SMALL, World, append

CHANGED = r"LEDGER_SCHEMA_CHANGED\] topic 't' got columns that this stream does not have: 'more', from {} on"


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with client_of(open_namespace(namespace, storage_root, limits=SMALL_LEDGERS)) as client:
        client.create_topic("t", SCHEMA)
        yield client


def widen(log, *numbers, column="more") -> None:
    """One commit with another column."""
    wider = SCHEMA.append(pa.field(column, pa.string()))
    rows = pa.RecordBatch.from_pylist([{"n": number, column: "x"} for number in numbers], schema=wider)
    entry = stage_entry(log.storage, log.topic.uuid, log.refresh(sync=True).head.gc_epoch, [rows], "lz4", log.clock)
    protocol.append(log, StagedBatch(log.clock.new_id(), (entry,), wider, merge_schema=True))


def look(query) -> None:
    query.reader._planner.topics[0].log().refresh(sync=True)  # else a watch says so, a moment later


@pytest.mark.parametrize("before", [1, 4, 5, 7, 10])  # the fifth commit is the last of its ledger
@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": "2"}, {"minRowsPerTrigger": "1000"}], ids=str)
def test_the_batch_ends_before_the_first_new_column_and_the_next_one_fails(client, before, limit):
    log = namespace_of(client).log("t")
    query = Query(client, **limit)
    for number in range(before):
        add(client, number)
    widen(log, 100)
    add(client, 101)
    look(query)
    rows = []
    with pytest.raises(Conflict, match=CHANGED.format(f"{before // 5}:{before % 5}:0")) as error:
        while True:
            rows += query.batch()
    assert "start its query again" in str(error.value)
    assert rows == list(range(before))
    with pytest.raises(Conflict):  # for ever
        query.batch()
    restarted = Query(client, offset=query.offset)
    assert flat(restarted.all()) == [100, 101]
    start, end, _ = next(batch for batch in restarted.batches if batch[2])
    columns = [batch.schema.names for part in restarted.reader.partitions(start, end)
               for batch in restarted.reader.read(part)]  # fmt: skip
    assert columns[0] == ["n", "more"]


def test_a_stream_that_was_at_the_end_fails_when_the_column_comes_and_also_across_a_seal(client):
    for number in range(5):
        add(client, number)  # the next commit opens another ledger
    query = Query(client)
    assert query.batch() == list(range(5))
    widen(namespace_of(client).log("t"), 100)
    look(query)
    with pytest.raises(Conflict, match=CHANGED.format("1:0:0")):
        query.plan()


def test_a_logged_batch_is_read_whatever_the_topic_has_got_since_I7(client):
    add(client, 1, 2)
    query = Query(client)
    start, end = query.plan()
    widen(namespace_of(client).log("t"), 3)
    look(query)
    assert query.read(start, end) == [1, 2]
    last = edited(end, pos="0:2:0")  # planned by somebody who ignores it
    assert query.read(start, last) == [1, 2, 3]


@pytest.mark.parametrize(
    "options",
    [{"onSchemaChange": "ignore"}, {"columns": "n"}, {"schema": StructType().add("n", LongType())}],
    ids=["ignore", "columns", ".schema()"],
)
def test_who_ignores_it_or_chose_the_columns_goes_on(client, options):
    add(client, 1)
    query = Query(client, **options)
    assert query.batch() == [1]
    widen(namespace_of(client).log("t"), 2)
    look(query)
    assert query.batch() == [2]


def test_an_available_now_run_ends_at_its_target_if_the_column_came_after_it(client):
    for number in range(5):
        add(client, number)
    query = Query(client)
    query.reader.prepareForTriggerAvailableNow()
    widen(namespace_of(client).log("t"), 100)
    look(query)
    assert flat(query.all()) == list(range(5))
    ends = Query(client, endingOffsets="0:3:0")
    assert flat(ends.all(ReadAllAvailable())) == [0, 1, 2]


def test_a_subscription_that_is_moved_past_a_change_fails_and_one_moved_back_reads_up_to_it(client):
    add(client, 1, 2)
    query = Query(client, subscription="s")
    assert query.batch() == [1, 2]
    query.plan()
    widen(namespace_of(client).log("t"), 3)
    add(client, 4)
    for to, rows in (("0:2:0", None), ("0:0:1", [2]), ("0:1:0", None)):
        client.cursor("t", "s").reset(to)
        query.reader._planner.topics[0]._subscription._attachment.node.refresh(sync=True)
        look(query)
        if rows is None:
            with pytest.raises(Conflict, match=CHANGED.format(r"0:[12]:0")):
                query.plan()
        else:
            assert query.batch() == rows
    query.reader.stop()


def test_at_the_end_of_a_sealed_ledger_there_is_nothing_to_find(tmp_path):
    """As after maintenance has sealed an idle ledger: the next one has no commit yet."""
    world = World(tmp_path, replace(SMALL, commits_per_ledger=1))
    log = world.log()
    append(log, 1)
    widen(log, 2)
    end = log.refresh(sync=True).head.end
    view = seal.seal(log)
    assert view.head.end > end
    assert SchemaWatch(log, SCHEMA).first_change(view, end) is None
    append(log, 3)
    assert SchemaWatch(log, SCHEMA).first_change(log.view(), end) == view.head.end


@pytest.mark.parametrize("options", [{"columns": "n"}, {"schema": StructType().add("n", LongType())}], ids=str)
def test_to_fail_and_to_choose_the_columns_exclude_each_other(client, options):
    with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_OPTION.*'onSchemaChange' is 'fail', and .*columns"):
        Query(client, onSchemaChange="fail", **options)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(commits=st.lists(st.sampled_from(["n", "a", "b"]), min_size=1, max_size=20), known=st.sampled_from(["", "a"]))
def test_the_first_commit_with_a_new_column_is_found_from_anywhere(tmp_path_factory, commits, known):
    world = World(tmp_path_factory.mktemp("w"))
    log, seen, first = world.log(), set(), None
    places = []
    for column in commits:
        places.append(log.refresh(sync=True).head.end)
        append(log, 1) if column == "n" else widen(log, 1, column=column)
        seen |= {column}
        if first is None and seen - {"n", known}:
            first = log.view().open_commits[-1]
    watch = SchemaWatch(log, SCHEMA.append(pa.field(known, pa.string())) if known else SCHEMA)
    view = log.refresh(sync=True)
    for begin in [*places, *reversed(places)]:
        found = watch.first_change(view, begin)
        if first is None:
            assert found is None
        else:
            at = Position(first.ledger, first.first_entry, 0)
            assert found == at if begin <= at else found <= begin


@pytest.mark.spark
def test_a_running_query_stops_by_name_and_goes_on_with_the_column_when_it_is_loaded_again(spark, client, tmp_path):
    add(client, 1)

    def start(**options):
        source = spark.readStream.format("ledger").option("zookeeper", client.zookeeper).options(**options).load("t")
        sink = source.writeStream.format("ledger").option("zookeeper", client.zookeeper).option("mergeSchema", "true")
        return sink.option("checkpointLocation", str(tmp_path / "c")).start("copy")

    query = start()
    query.processAllAvailable()
    widen(namespace_of(client).log("t"), 2)
    with pytest.raises(StreamingQueryException, match="LEDGER_SCHEMA_CHANGED"):
        query.awaitTermination(60)
    query = start()
    query.processAllAvailable()
    query.stop()
    copied = [(record["n"], record["more"]) for record in client.reader("copy", end="latest")]
    assert copied == [(1, None), (2, "x")]
    chosen = spark.readStream.schema("n long").format("ledger").option("zookeeper", client.zookeeper).load("t")
    names = tmp_path / "chosen"
    query = chosen.writeStream.format("noop").option("checkpointLocation", str(names)).start()
    query.processAllAvailable()
    widen(namespace_of(client).log("t"), 3, column="most")
    query.processAllAvailable()
    query.stop()
