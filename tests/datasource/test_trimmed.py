"""What queries see of retention and backlog quotas: the rest of the log from earliest, exact replays for the grace, and
what is gone by name and number (I7, I14, I15)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest

from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace
from pyspark_ledger.compaction.run import compact
from pyspark_ledger.cursors.eviction import evict
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.datasource import LedgerDataSource, planning
from pyspark_ledger.errors import DataLoss
from pyspark_ledger.lifecycle import gc, retention
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.clock import SeededClock
from tests.support.query import SMALL_LEDGERS, WorldQuery, add, fields, flat
from tests.support.said import said
from tests.support.worlds import SCHEMA, SMALL, World, append

GRACE_S = 100.0
GO_ON = {"failOnDataLoss": "false"}


@pytest.fixture
def world(tmp_path) -> World:
    """Eighteen records, four in a ledger."""
    return written(World(tmp_path, replace(SMALL, gc_grace_ms=int(GRACE_S * 1000)), SeededClock(1)))


def written(world: World) -> World:
    for number in range(18):
        append(world.log(), number)
    return world


def trim(world: World, before: str = "2:0:0") -> None:
    retention.trim(world.log(), before=before)


def collect(world: World, times: int = 4) -> None:
    """After four runs nothing is left of what was given up before."""
    for _ in range(times):
        world.clock.sleep(GRACE_S)
        gc.collect(world.log())


def read_batch(world: World, **options: str) -> list[int]:
    session = OpenNamespace(world.metadata(), world.storage.uri, limits=world.limits, clock=world.clock)
    with patch.object(planning, "shared_namespace", lambda *_: session):
        source = LedgerDataSource({"topic": "t", **options})
        reader = source.reader(source.schema())
        return [n for part in reader.partitions() for batch in reader.read(part) for n in batch.column("n").to_pylist()]


# -- without a subscription -----------------------------------------------------------------------------------------


def test_a_read_from_earliest_begins_at_what_is_left(world):
    trim(world)
    collect(world)
    assert flat(WorldQuery(world).all()) == list(range(8, 18))
    assert read_batch(world) == list(range(8, 18))
    assert read_batch(world, startingTimestamp="0") == list(range(8, 18))


def behind(world: World) -> dict:
    """A query has read three records when retention gives up eight."""
    query = WorldQuery(world, maxRowsPerTrigger="3")
    assert query.batch() == [0, 1, 2]
    trim(world)
    return query.offset


def test_a_query_whose_place_is_gone_is_told_which_records_how_many_and_what_to_do_I14(world):
    query = WorldQuery(world, offset=behind(world))
    for _ in range(2):
        with pytest.raises(
            DataLoss,
            match=r"LEDGER_TRIMMED.*'t': 5 records from 0:3:0 up to 2:0:0 are gone.*failOnDataLoss=false "
            r"\(going on from 2:0:0\), or start with a new checkpoint",
        ):
            query.plan()


def test_with_fail_on_data_loss_false_it_goes_on_from_the_begin_says_so_once_and_replays_the_same_I7(world, caplog):
    offset = behind(world)
    query = WorldQuery(world, offset=offset, maxRowsPerTrigger="4", **GO_ON)
    assert query.batch() == [8, 9, 10, 11]
    assert fields(query.offset)["from"] == "2:0:0"
    assert flat(query.all()) == list(range(12, 18))
    assert [line for line in said(caplog) if "5 records from 0:3:0" in line] == said(caplog)
    assert len(said(caplog)) == 1
    trim(world, "4:0:0")
    again = WorldQuery(world, offset=offset, **GO_ON)
    for start, end, rows in query.batches:
        assert start == end or again.read(start, end) == rows


def test_a_query_that_finds_nothing_after_the_gap_repeats_its_answer_and_says_so_once(world, caplog):
    query = WorldQuery(world, maxRowsPerTrigger="17", **GO_ON)
    query.batch()
    append(world.log(), 18), append(world.log(), 19), append(world.log(), 20)  # the last one opens a ledger
    query.reader._planner.topics[0]._target = Position(5, 0, 0)
    trim(world, "5:0:0")
    start = query.offset
    assert query.plan() == (start, start)
    assert query.plan() == (start, start)
    assert len(said(caplog)) == 1


def test_who_has_read_to_the_end_of_what_was_given_up_has_lost_nothing(world):
    query = WorldQuery(world, maxRowsPerTrigger="8")
    assert query.batch() == list(range(8))
    trim(world)
    collect(world)
    assert flat(query.all()) == list(range(8, 18))
    assert flat(WorldQuery(world, offset=query.batches[0][1]).all()) == list(range(8, 18))


def test_a_batch_that_spark_has_logged_reads_the_same_for_the_grace_and_is_data_loss_later_I7(world):
    query = WorldQuery(world, maxRowsPerTrigger="10")
    start, end = query.plan()
    trim(world)
    collect(world, 1)
    assert WorldQuery(world, offset=end).read(start, end) == list(range(10))
    collect(world, 3)
    with pytest.raises(DataLoss, match=r"LEDGER_TRIMMED.*from 0:0:0 up to 2:0:0.*failOnDataLoss=false"):
        WorldQuery(world, offset=end).read(start, end)
    assert WorldQuery(world, offset=end, **GO_ON).read(start, end) == [8, 9]  # what is left of it


def test_starting_offsets_that_are_gone_are_an_error_or_the_begin(world, caplog):
    trim(world)
    told = r"LEDGER_TRIMMED.*from 0:2:0 up to 2:0:0 are gone.*earliest"
    with pytest.raises(DataLoss, match=told):
        WorldQuery(world, startingOffsets="0:2:0").plan()
    with pytest.raises(DataLoss, match=told):
        read_batch(world, startingOffsets="0:2:0")
    assert flat(WorldQuery(world, startingOffsets="0:2:0", **GO_ON).all()) == list(range(8, 18))
    assert read_batch(world, startingOffsets="0:2:0", **GO_ON) == list(range(8, 18))
    assert len([line for line in said(caplog) if "LEDGER_TRIMMED" in line]) == 2
    assert read_batch(world, startingOffsets="1:4:0") == list(range(8, 18))  # right after the last one that is gone


def test_a_read_that_ends_before_the_begin_has_nothing_to_lose(world):
    offset = behind(world)
    query = WorldQuery(world, offset=offset, endingOffsets="0:3:0")
    assert query.plan() == (offset, offset)


# -- with a subscription --------------------------------------------------------------------------------------------


def test_a_subscription_holds_what_its_query_has_not_read_I15(world):
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="6")
    query.batch()
    trim(world)  # nothing of it is acknowledged
    assert flat(query.all()) == list(range(6, 18))
    trim(world)
    for start, end, rows in query.batches:
        assert start == end or query.read(start, end) == rows


def evicted(world: World, to: int = 8) -> int:
    return evict(CursorNode(world.log(), "s"), to, lambda _: True)


def test_an_evicted_query_is_told_until_it_is_reset_and_then_goes_on_without_a_restart(world):
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="3")
    assert query.batch() == [0, 1, 2]
    assert evicted(world) == 8  # as far as the cursor knows: Spark has not said yet that the batch is done
    trim(world)
    for _ in range(2):
        with pytest.raises(DataLoss, match=r"LEDGER_EVICTED.*5 records.*backlog quota.*failOnDataLoss=false"):
            query.plan()
        query.offset = query.batches[-1][1]
    CursorHandle(world.log(), "s").reset("earliest")
    assert flat(query.all()) == list(range(8, 18))
    for start, end, rows in query.batches:
        assert start == end or query.read(start, end) == rows


def test_with_fail_on_data_loss_false_it_goes_on_and_the_subscription_counts_what_was_lost(world, caplog):
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="3", **GO_ON)
    query.batch()
    evicted(world)
    trim(world)
    assert flat(query.all()) == list(range(8, 18))
    stats = CursorHandle(world.log(), "s").stats()
    assert (stats.evicted, stats.lost, stats.backlog_records) == (0, 5, 0)
    assert "5 records are lost to the backlog quota" in caplog.text


def test_a_query_without_a_checkpoint_has_lost_all_that_was_taken(world):
    CursorNode(world.log(), "s").ensure("earliest")
    evicted(world)
    with pytest.raises(DataLoss, match=r"LEDGER_EVICTED.*8 records"):
        WorldQuery(world, subscription="s").plan()


def test_a_query_that_is_ahead_of_an_eviction_has_lost_nothing_and_is_not_moved_back(world):
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="10")
    assert query.batch() == list(range(10))
    evicted(world)
    assert flat(query.all()) == list(range(10, 18))
    stats = CursorHandle(world.log(), "s").stats()
    assert (stats.evicted, stats.lost) == (0, 0)


def test_another_eviction_in_the_middle_of_that_is_told_I14(world):
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="10")
    query.batch()
    evicted(world)
    transact = query.log.metadata.transact

    def later(ops):
        query.log.metadata.transact = transact
        evicted(world, 16)
        transact(ops)

    query.log.metadata.transact = later
    with pytest.raises(DataLoss, match=r"LEDGER_EVICTED.*6 records"):
        query.plan()
    assert CursorHandle(world.log(), "s").stats().lost == 0


def test_a_query_that_was_moved_back_and_then_evicted_is_told_of_everything(world):
    query = WorldQuery(world, subscription="s")
    query.all()
    CursorHandle(world.log(), "s").reset("earliest")
    evicted(world)
    with pytest.raises(DataLoss, match=r"LEDGER_EVICTED.*8 records"):
        query.plan()


# -- compacted reads ------------------------------------------------------------------------------------------------


@pytest.fixture
def compacted(tmp_path) -> World:
    """The same with keys, compacted up to record 12, and trimmed so that the files of the first twelve are gone."""
    world = World(tmp_path, replace(SMALL, gc_grace_ms=int(GRACE_S * 1000)), SeededClock(1), key="n")
    for number in range(12):
        append(world.log(), number)
    compact(world.log())
    for number in range(12, 18):
        append(world.log(), number)
    retention.trim(world.log(), before="latest")
    collect(world)
    assert str(world.log().view().head.trim.position) == "3:0:0"
    return world


COMPACTED = {"readCompacted": "true"}


def test_a_compacted_read_has_what_the_log_has_given_up_I9(compacted):
    assert flat(WorldQuery(compacted, **COMPACTED).all()) == list(range(18))
    assert sorted(read_batch(compacted, **COMPACTED)) == list(range(18))
    assert sorted(read_batch(compacted, startingOffsets="1:2:0", **COMPACTED)) == list(range(6, 18))
    assert sorted(read_batch(compacted, startingTimestamp="0", **COMPACTED)) == list(range(18))
    assert read_batch(compacted) == list(range(12, 18))


def test_a_compacted_query_goes_on_in_the_middle_of_what_was_given_up(compacted):
    query = WorldQuery(compacted, maxRowsPerTrigger="5", **COMPACTED)
    assert query.batch() == [0, 1, 2, 3, 4]
    query.stop()
    assert flat(WorldQuery(compacted, offset=query.offset, **COMPACTED).all()) == list(range(5, 18))


def test_a_subscription_of_compacted_reads_begins_and_is_reset_at_what_was_given_up_pulsar_11287_12429(compacted):
    """Their cursors were set to the raw ledgers that were left, past the compacted ones."""
    query = WorldQuery(compacted, subscription="s", maxRowsPerTrigger="5", **COMPACTED)
    assert str(CursorHandle(compacted.log(), "s").stats().mark_delete) == "0:0:0"
    assert flat(query.all()) == list(range(18))
    handle = CursorHandle(compacted.log(), "s")
    assert str(handle.preview("earliest").position) == "0:0:0"
    assert str(handle.reset("earliest").position) == "0:0:0"
    assert flat(query.all()) == list(range(18))
    assert str(handle.reset("1:2:0").position) == "1:2:0"
    assert flat(query.all()) == list(range(6, 18))


def test_acknowledgements_before_the_begin_keep_their_place_pulsar_13629_25998(compacted):
    """Theirs jumped to the first raw ledger: a reader that came back missed the rest of the compacted ones."""
    query = WorldQuery(compacted, subscription="s", maxRowsPerTrigger="5", **COMPACTED)
    query.batch()
    query.plan()
    stats = CursorHandle(compacted.log(), "s").stats()
    assert (str(stats.mark_delete), stats.backlog_records) == ("1:1:0", 6)
    query.stop()
    lost_checkpoint = WorldQuery(compacted, subscription="s", **COMPACTED)
    assert flat(lost_checkpoint.all()) == list(range(5, 18))
    assert CursorHandle(compacted.log(), "s").stats().backlog_records == 0


def test_a_cursor_before_the_begin_holds_the_rest_of_the_log_I15(compacted):
    WorldQuery(compacted, subscription="s", **COMPACTED)
    append(compacted.log(), 18)
    compact(compacted.log())
    done = retention.trim(compacted.log(), before="latest")
    assert done.ledgers == 0
    assert "subscription 's' holds back" in done.why


def test_a_cursor_that_is_made_for_compacted_reads_begins_there_too(compacted):
    assert str(CursorNode(compacted.log(), "s").ensure("earliest", compacted=True).mark_delete) == "0:0:0"
    assert str(CursorNode(compacted.log(), "log").ensure("earliest").mark_delete) == "3:0:0"


def test_a_reader_of_the_log_on_such_a_subscription_is_told_what_it_would_miss_I14(compacted):
    CursorNode(compacted.log(), "s").ensure("earliest", compacted=True)
    query = WorldQuery(compacted, subscription="s")
    with pytest.raises(DataLoss, match=r"LEDGER_TRIMMED.*from 0:0:0 up to 3:0:0"):
        query.plan()
    query.stop()
    assert flat(WorldQuery(compacted, subscription="s", **GO_ON).all()) == list(range(12, 18))


def test_a_compacted_read_up_to_an_end_whose_state_is_gone_is_data_loss_by_name_I9(compacted):
    """The generation has a later horizon: it has dropped what was the last of its key at that end."""
    with pytest.raises(DataLoss, match="LEDGER_TRIMMED"):
        read_batch(compacted, endingOffsets="1:0:0", **COMPACTED)
    with pytest.raises(DataLoss, match="LEDGER_TRIMMED"):
        WorldQuery(compacted, endingOffsets="1:0:0", **COMPACTED).plan()


# -- on Spark -------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    """Twenty records, five in a ledger."""
    with client_of(open_namespace(namespace, storage_root, limits=SMALL_LEDGERS)) as client:
        client.create_topic("t", SCHEMA)
        for number in range(22):
            add(client, number)
        yield client


def copy(spark, client: LedgerClient, checkpoint, to: str = "copy", **options: str) -> list[int]:
    """Runs a query from one topic to another until it has everything there is, and returns what was copied so far."""
    stream = spark.readStream.format("ledger").options(zookeeper=client.zookeeper, **options).load("t")
    sink = stream.writeStream.format("ledger").option("zookeeper", client.zookeeper)
    sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(to).awaitTermination()
    return [record["n"] for record in client.reader(to, end="latest")]


@pytest.mark.spark
def test_spark_reads_what_is_left_and_a_query_whose_place_is_gone_fails_by_name_and_number(spark, client, tmp_path):
    assert copy(spark, client, tmp_path / "c", endingOffsets="0:3:0") == [0, 1, 2]
    client.trim("t", before="2:0:0")
    with pytest.raises(Exception, match=r"LEDGER_TRIMMED.*7 records from 0:3:0 up to 2:0:0"):
        copy(spark, client, tmp_path / "c")
    assert copy(spark, client, tmp_path / "c", **GO_ON) == [0, 1, 2, *range(10, 22)]
    table = spark.read.format("ledger").options(zookeeper=client.zookeeper).load("t")
    assert sorted(row.n for row in table.collect()) == list(range(10, 22))


@pytest.mark.spark
def test_spark_is_told_of_an_eviction_and_goes_on_after_a_reset(spark, client, tmp_path):
    client.create_cursor("t", "s")
    assert evict(CursorNode(namespace_of(client).log("t"), "s"), 10, lambda _: True) == 10
    with pytest.raises(Exception, match=r"LEDGER_EVICTED.*10 records"):
        copy(spark, client, tmp_path / "c", subscription="s")
    client.cursor("t", "s").reset("2:0:0")
    assert copy(spark, client, tmp_path / "c", subscription="s") == list(range(10, 22))
