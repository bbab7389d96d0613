"""How far a query is behind: from Spark's progress alone, and with a look at the topics."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import urllib.request
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.listener import StreamingQueryProgress

from pyspark_ledger.client import LedgerClient, client_of, namespace_of
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.datasource.lag_topics import TopicsAtHand
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.spark import LagListener, lag
from pyspark_ledger.testing.clock import SeededClock
from tests.support.query import WorldQuery, edited, eventually, version_1
from tests.support.said import said
from tests.support.worlds import SCHEMA, World, append

SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"  # for name()
NOWHERE = "127.0.0.1:1"  # nothing listens there


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path / "storage", clock=SeededClock())


@pytest.fixture
def client(world) -> LedgerClient:
    return client_of(OpenNamespace(world.metadata(), world.storage, limits=world.limits, clock=world.clock))


def source(query: WorldQuery, start=None, end=None) -> dict:
    """What Spark says of a source whose query has just finished a batch: offsets as text."""
    offsets = {
        "startOffset": start,
        "endOffset": end or query.offset,
        "latestOffset": query.reader.reportLatestOffset(),
    }
    return {name: offset and json.dumps(offset) for name, offset in offsets.items()}


def progress(*sources: dict, batch: int = 0, run: str = "r1") -> dict:
    return {"id": "q1", "runId": run, "name": "billing", "batchId": batch, "sources": list(sources)}


def event(told: dict) -> SimpleNamespace:
    return SimpleNamespace(progress=told, runId=told["runId"])


# -- from the progress alone --------------------------------------------------------------------------------------


def test_the_difference_of_two_offsets_is_the_lag(world):
    for number in range(10):
        append(world.log(), number)  # over several ledgers
    query = WorldQuery(world, maxRowsPerTrigger="4")
    behind = []
    for number in range(3):
        query.batch()
        behind.append(lag(progress(source(query), batch=number)).records)
    assert behind == [6, 2, 0]

    append(world.log(), 10, 11, 12)
    assert (
        query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit()) != query.offset
    )  # and so it sees it
    (one,) = lag(progress(source(query))).topics
    assert (one.topic, one.position, one.read, one.records) == ("t", "2:2:0", 10, 3)
    assert (one.bytes, one.seconds) == (None, None)  # an offset does not say


def test_a_topic_that_was_taken_out_of_the_list_is_nothing_to_be_behind_of(world, client):
    """Its place stays in the checkpoint. Nobody reads it, so what it gets is no lag."""
    client.create_topic("left", SCHEMA)
    append(namespace_of(client).log("left"), 0)
    both = WorldQuery(world, topics="t,left")
    both.batch()
    append(world.log(), 1)
    append(namespace_of(client).log("left"), 2, 3, 4)
    query = WorldQuery(world, topics="t", offset=both.offset)
    query.batch()
    assert query.offset["topics"].keys() == {"t", "left"}
    for found in (lag(progress(source(query))), lag(progress(source(query)), client)):
        assert ([each.topic for each in found.topics], found.records) == (["t"], 0)


def test_after_a_reset_and_over_what_a_read_may_not_take_it_counts_the_records_of_the_log(world):
    for number in range(6):
        append(world.log(), number)
    query = WorldQuery(world, subscription="s", maxRowsPerTrigger="4", endingOffsets="1:1:0")
    assert query.all() == [[0, 1, 2, 3], [4]]
    assert lag(progress(source(query))).records == 1  # past endingOffsets, where the query will not go
    CursorHandle(world.log(), "s").reset("earliest")
    assert lag(progress(source(query))).records == 1  # Spark says the same until the next batch
    query.batch()
    assert lag(progress(source(query))).records == 2


def test_a_compacted_read_is_behind_by_the_records_of_the_log_at_most(world):
    told = {"topics": {"t": {"id": "u", "pos": "3:0:0", "records": 70, "gen": 2, "base": "3:0:0"}}, "v": 2}
    end = edited(told, pos="4:0:0", records=100)
    assert lag(progress({"endOffset": told, "latestOffset": end})).records == 30


def test_offsets_of_the_first_version_still_parse(world, client):
    append(world.log(), 1, 2, 3)
    query = WorldQuery(world, maxRowsPerTrigger="2")
    query.batch()
    old = source(query, end=version_1(query.offset))
    assert [(each.topic, each.records) for each in lag(progress(old)).topics] == [("t", None)]
    assert lag(progress(old)).records is None
    assert lag(progress(old), client).records == 1
    query.batch()
    assert lag(progress(source(query, end=version_1(query.offset)))).records == 0  # where the topic ends


def test_all_ledgers_of_a_query_count_and_nothing_else_does():
    one = {"topics": {"a": {"id": "1", "pos": "0:1:0", "records": 5}, "b": {"id": "2", "pos": "0:0:0", "records": 0}}}
    two = {"topics": {"a": {"id": "1", "pos": "0:3:0", "records": 8}, "b": {"id": "2", "pos": "0:2:0", "records": 40}}}
    ledger = {"endOffset": {**one, "v": 2}, "latestOffset": {**two, "v": 2}}
    others = (
        "17",
        '{"clicks":{"0":23}}',
        '{"logOffset":0}',
        '{"v":2}',
        '{"v":2,"topics":7}',
        "no JSON",
        None,
        12,
        '{"v":2,"topics":{"a":{"id":[],"pos":"x"}}}',
        '{"v":2,"topics":{"a":{"id":"1","pos":"x","records":"y"}}}',
    )
    rest = [{"endOffset": offset, "latestOffset": offset} for offset in others]
    found = lag(progress(*rest[:4], ledger, *rest[4:]))
    assert [(each.source, each.topic, each.records) for each in found.topics] == [(4, "a", 3), (4, "b", 40)]
    assert (found.name, found.records, found.bytes) == ("billing", 43, None)
    assert lag(progress(*rest)).records == 0


def test_a_query_that_has_said_little_yet_is_behind_by_nobody_knows_what(world, client):
    append(world.log(), 1, 2)
    query = WorldQuery(world)
    query.batch()
    assert lag(SimpleNamespace(lastProgress=None)) is None
    first = {**source(query), "endOffset": None}
    assert lag(progress(first)).records is None
    assert lag(progress({**first, "startOffset": '{"initial": true}'})).records is None
    replayed = {**source(query), "latestOffset": None}  # planned before a restart
    assert lag(progress(replayed)).records is None
    assert lag(progress(replayed), client).records == 0


# -- with the topics at hand --------------------------------------------------------------------------------------


def test_with_a_client_it_is_how_far_behind_the_query_is_now_also_in_seconds_and_bytes(world, client):
    for number in range(10):
        append(world.log(), number)
        world.clock.sleep(60)
    query = WorldQuery(world, maxRowsPerTrigger="4", subscription="s")
    query.batch()
    told = progress(source(query))
    append(world.log(), 10)
    (one,) = lag(told, client).topics
    assert (one.records, one.seconds, one.subscription) == (7, 360.0, "s")  # the fifth record is six minutes old
    assert one.bytes == 7 * world.log().view().head.bytes // 11
    while query.batch():
        pass
    assert [(each.records, each.bytes, each.seconds) for each in lag(progress(source(query)), client).topics] == [
        (0, 0, 0)
    ]


def test_a_topic_that_was_recreated_is_not_the_one_that_the_query_reads(world, client):
    append(world.log(), 1)
    query = WorldQuery(world)
    query.batch()
    told = source(query)
    client.delete_topic("t")
    client.create_topic("t", SCHEMA)
    assert [(each.records, each.seconds) for each in lag(progress(told), client).topics] == [(0, None)]


def test_where_a_query_stays_is_looked_up_once(world, client):
    append(world.log(), *range(10))
    query = WorldQuery(world, maxRowsPerTrigger="4")
    topics, told = TopicsAtHand(namespace_of(client)), []
    for _ in range(2):
        query.batch()
        told.append(lag(progress(source(query))))
    with patch.object(Log, "commit_at_ordinal", autospec=True, side_effect=Log.commit_at_ordinal) as looked:
        assert [topics.measured(each).records for each in (*[told[0]] * 3, *[told[1]] * 3)] == [6, 6, 6, 2, 2, 2]
    assert looked.call_count == 2


# -- the listener -------------------------------------------------------------------------------------------------


def lines(caplog) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith("lag ")]


def test_the_listener_logs_and_exports_until_the_query_ends(world, client, caplog):
    caplog.set_level(logging.INFO, "pyspark_ledger.datasource.lag_listener")
    append(world.log(), *range(10))
    query = WorldQuery(world, maxRowsPerTrigger="4", subscription="s")
    query.batch()
    listener = LagListener(client, every_s=0.01, port=0)
    try:
        listener.onQueryStarted(event(progress()))
        listener.onQueryProgress(event(progress(source(query))))
        eventually(lambda: [each.seconds for each in listener.lags] == [0.0])
        append(world.log(), 10)  # a query that is stuck says nothing more, and is watched all the same
        world.clock.sleep(90)
        eventually(lambda: [(each.records, each.seconds) for each in listener.lags] == [(7, 90.0)])
        labels = '{query="billing",source="0",subscription="s",topic="t"}'
        shown = urllib.request.urlopen(listener.url).read().decode()
        assert f"ledger_query_lag_records{labels} 7.0" in shown
        assert f"ledger_query_lag_seconds{labels} 90.0" in shown
        assert f"ledger_query_lag_bytes{labels}" in shown

        listener.onQueryTerminated(event(progress()))
        assert listener.lags == ()
        assert "billing" not in urllib.request.urlopen(listener.url).read().decode()
    finally:
        listener.close()
    assert lines(caplog)[0].startswith("lag query=billing batch=0 source=0 topic=t subscription=s records=6 bytes=")
    assert not any(thread.name == "ledger-lag" for thread in threading.enumerate())


def test_without_zookeeper_the_offsets_are_enough_and_nobody_waits(world, caplog):
    append(world.log(), *range(10))
    query = WorldQuery(world, maxRowsPerTrigger="4")
    query.batch()
    registry = CollectorRegistry()
    listener = LagListener(NOWHERE, every_s=0.01, registry=registry)
    caplog.set_level(logging.INFO, "pyspark_ledger.datasource.lag_listener")
    try:
        with patch("pyspark_ledger.datasource.lag_listener._TRY_AGAIN_S", 0.0):
            for number in range(3):
                listener.onQueryProgress(event(progress(source(query), batch=number)))
                assert [each.records for each in listener.lags] == [6]  # at once
            eventually(lambda: len(lines(caplog)) >= 2)
        expected = r"lag query=billing batch=[012] source=0 topic=t subscription= records=6 bytes=None seconds=None"
        assert re.fullmatch(expected, lines(caplog)[0])  # its thread may be slow
        (warning,) = said(caplog)
        assert warning.startswith("how far queries are behind is said from their offsets alone, in records: ")
        assert (
            registry.get_sample_value(
                "ledger_query_lag_records", {"query": "billing", "source": "0", "topic": "t", "subscription": ""}
            )
            == 6
        )
    finally:
        listener.close()
    assert list(registry.collect()) == []


def test_progress_that_cannot_be_read_harms_nobody(caplog):
    LagListener().onQueryProgress(event({"runId": "r", "id": "q"}))
    assert said(caplog) == ["the progress of a query could not be read"]


def test_metrics_without_prometheus_client_and_a_port_that_is_taken_are_refused(monkeypatch):
    with pytest.raises(InvalidInput, match="LEDGER_PORT_IN_USE"):
        taken = LagListener(port=0)
        LagListener(port=int(taken.url.split(":")[2].partition("/")[0]))
    taken.close()
    taken.close()  # does no harm
    shared = CollectorRegistry(auto_describe=True)  # as prometheus_client.REGISTRY is
    first = LagListener(registry=shared)
    with pytest.raises(InvalidInput, match="from another LagListener"):
        LagListener(registry=shared)
    first.close()
    monkeypatch.delitem(sys.modules, "pyspark_ledger.metrics.queries")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidInput, match=r"LEDGER_NOT_INSTALLED.*pyspark-ledger\[metrics\]"):
        LagListener(port=0)
    LagListener()  # not asked for, not needed


@pytest.mark.parametrize(
    "wrong",
    [
        {"every_s": 0},
        {"every_s": -1},
        {"every_s": "10"},
        {"every_s": float("nan")},
        {"zookeeper": 9465},
        {"port": "9465"},
        {"registry": 9465},
    ],
)
def test_a_listener_that_would_never_rest_or_look_elsewhere_is_refused(wrong):
    with pytest.raises(InvalidInput, match=f"LEDGER_INVALID_INPUT.*{next(iter(wrong))} is"):
        LagListener(**wrong)
    with pytest.raises(InvalidInput, match=r"LEDGER_PORT_IN_USE.*0-65535"):
        LagListener(port=99_999)


def test_what_is_no_query_is_told_and_a_query_without_progress_has_no_lag():
    assert lag(None) is None  # as lastProgress is before the first batch
    assert lag(SimpleNamespace(lastProgress=None)) is None
    with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_INPUT.*lag\(\): client is 'zk:2181': give a LedgerClient"):
        lag(SimpleNamespace(lastProgress=None), "zk:2181")
    for wrong in ({}, "billing", 7):
        with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_INPUT.*lag\(\): "):
            lag(wrong)


# -- on Spark -----------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_lag_of_a_query_over_two_topics_and_a_folder(spark, namespace, storage_root, tmp_path):
    (tmp_path / "in").mkdir()
    with LedgerClient(namespace, storage_root) as client:
        for topic in ("a", "b"):
            client.create_topic(topic, SCHEMA)
            with client.producer(topic) as producer:
                for number in range(3):
                    producer.send({"n": number})
        spark.conf.set(SOURCE_EVOLUTION, "true")
        listener = LagListener(client, every_s=0.05)
        spark.streams.addListener(listener)
        try:
            left = spark.readStream.format("ledger").options(zookeeper=namespace, subscription="s")
            right = spark.readStream.format("ledger").options(zookeeper=namespace, maxRowsPerTrigger="2")
            folder = spark.readStream.name("folder").text(str(tmp_path / "in")).selectExpr("CAST(value AS long)")
            joined = (
                left.name("left")
                .load("a")
                .union(right.name("right").load("b"))
                .union(folder)
                .writeStream.format("noop")
            )
            query = joined.queryName("billing").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            query.processAllAvailable()
            first, *_, last = [lag(each) for each in query.recentProgress]
            assert sorted((each.topic, each.records) for each in first.topics) == [("a", 0), ("b", 1)]
            assert (last.name, last.records, last) == ("billing", 0, lag(query))
            assert lag(StreamingQueryProgress.fromJson(json.loads(query.lastProgress.json))) == last  # Connect's
            eventually(lambda: [each.records for each in listener.lags] == [0])
            (live,) = listener.lags
            assert {(each.topic, each.subscription, each.seconds) for each in live.topics} == {
                ("a", "s", 0.0),
                ("b", "", 0.0),
            }
            query.stop()
            eventually(lambda: listener.lags == ())
        finally:
            spark.streams.removeListener(listener)
            spark.conf.unset(SOURCE_EVOLUTION)
            listener.close()
