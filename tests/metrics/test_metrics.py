"""What Prometheus is told about a namespace."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from math import inf
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pyspark_ledger.append.admission import ByBatchId, StagedBatch
from pyspark_ledger.append.append import append
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.names import this_process
from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient, client_of, namespace_of
from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.compaction.plan import begin
from pyspark_ledger.compaction.work import survivors_of, write
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.errors import NotFound
from pyspark_ledger.lifecycle import move_storage
from pyspark_ledger.lifecycle.maintenance import Maintenance
from pyspark_ledger.lifecycle.moving import Mover
from pyspark_ledger.log import topics
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import CompactorKey, Create, HeadKey
from pyspark_ledger.metadata.records import Holder
from pyspark_ledger.metrics.collector import OTHERS, LedgerCollector
from pyspark_ledger.metrics.families import FAMILIES
from pyspark_ledger.metrics.maintaining import MaintenanceCollector, exposition
from pyspark_ledger.metrics.requests import TimedMetadata
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from pyspark_ledger.zk_metadata import paths
from tests.support import REPOSITORY, interruptible

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
DASHBOARD = REPOSITORY / "examples" / "grafana-dashboard.json"


@pytest.fixture
def server():
    return MemoryServer()


@pytest.fixture
def client(server, storage_root):
    limits = Limits(commits_per_ledger=4)
    with client_of(OpenNamespace(MemoryMetadata(server), storage_root, limits=limits)) as client:
        client.create_topic("orders", SCHEMA, key="k")
        yield client


@pytest.fixture
def told(client):
    registry = CollectorRegistry()
    registry.register(LedgerCollector(client, max_producers=3))
    return lambda name, topic="orders", **labels: registry.get_sample_value(
        name, {"topic": topic, **labels} if topic else labels
    )


def send(client, name, *numbers, start=None):
    with client.producer("orders", name=name) as producer:
        for at, n in enumerate(numbers):
            producer.send({"k": f"k{n % 3}", "v": n}, None if start is None else start + at)


def test_a_topic_tells_its_totals_and_its_end(client, told):
    assert told("ledger_up", None) == 1
    assert told("ledger_topic_last_publish_timestamp_seconds") is None
    for n in range(6):
        send(client, "web", n, n)
    assert told("ledger_topic_records_total") == 12
    assert told("ledger_topic_bytes_total") == namespace_of(client).log("orders").view().head.bytes
    assert told("ledger_topic_commits_total") == 6
    assert (told("ledger_topic_end_ledger"), told("ledger_topic_end_entry")) == (1, 2)
    assert told("ledger_topic_last_publish_timestamp_seconds") == client.producers("orders")[0].publish_ms / 1000


def test_a_subscription_tells_how_far_behind_it_is_and_how_often_it_was_moved(client, told):
    send(client, "web", *range(10))
    client.create_cursor("orders", "billing")
    cursor = {"subscription": "billing"}
    assert told("ledger_cursor_backlog_records", **cursor) == 10
    assert told("ledger_cursor_backlog_bytes", **cursor) == told("ledger_topic_bytes_total")
    assert 0 <= told("ledger_cursor_backlog_seconds", **cursor) < 60
    client.cursor("orders", "billing").skip(4)
    client.cursor("orders", "billing").redeliver()
    assert told("ledger_cursor_backlog_records", **cursor) == 6
    assert told("ledger_cursor_revisions_total", **cursor) == 2
    assert told("ledger_cursor_revision_running", **cursor) == 0
    assert (told("ledger_cursor_epochs_total", **cursor), told("ledger_cursor_attached", **cursor)) == (1, 0)
    with client.consumer("orders", "billing") as consumer:
        consumer.receive()
        consumer.acknowledge(consumer.receive())
        consumer.flush()
        assert (told("ledger_cursor_epochs_total", **cursor), told("ledger_cursor_attached", **cursor)) == (2, 1)
        assert told("ledger_cursor_individual_acks", **cursor) == 1


def test_duplicates_and_producers_are_counted_over_seals_since_the_exporter_started(client, told):
    for n in range(5):
        send(client, "early", n)
    assert told("ledger_producer_records_total", producer="early") == 1  # the first four commits were sealed by then
    two = [client.producer("orders", name="late") for _ in range(2)]
    for producer, numbers in zip(two, (range(10), range(5, 15)), strict=True):
        for n in numbers:
            producer.send({"v": n}, n)
        producer.flush()
    assert told("ledger_topic_dropped_duplicates_total") == 5
    for n in range(3):  # another ledger is sealed before the next scrape
        send(client, "late", n)
    assert (told("ledger_topic_commits_total"), told("ledger_topic_end_ledger")) == (10, 2)
    assert told("ledger_topic_dropped_duplicates_total") == 5
    assert told("ledger_producer_records_total", producer="late") == 18
    assert told("ledger_topic_records_total") == 23
    assert told("ledger_producer_sequence_id", producer="late") == 17
    assert told("ledger_topic_producers") == 2


def test_only_so_many_producers_are_told_by_name(client, told):
    for n in range(5):
        send(client, f"p{n}", n)
        told("ledger_up", None)
    assert [told("ledger_producer_records_total", producer=f"p{n}") for n in range(5)] == [1, 1, 1, None, None]
    assert told("ledger_producer_records_total", producer=OTHERS) == 2
    assert told("ledger_topic_producers") == 5


def test_tokens_in_flight_are_told_by_group(client, told):
    with client.producer("orders", mint_tokens=True) as producer:
        for number in range(5):
            producer.send({"k": "a", "v": number})
    tokens = [record.token for record in client.reader("orders", end="latest")]
    billing = client.tokens("orders", "billing")
    billing.consume(tokens[:2])
    billing.mint(3)
    assert told("ledger_topic_tokens_total") == 5
    assert told("ledger_tokens_in_flight", group="billing") == 3 + 3
    assert told("ledger_tokens_consumed_total", group="billing") == 2
    assert told("ledger_tokens_nodes", group="billing") == 2


def test_runs_that_were_replaced_are_told_as_fenced(client, told):
    log = namespace_of(client).log("orders")
    for sequence, run in enumerate(("one", "one", "two", "three")):
        numbered = ByBatchId(BatchId(sequence, "q", run))
        append(log, StagedBatch(log.clock.new_id(), producer="spark-q", admission=numbered))
    assert told("ledger_producer_fenced_runs", producer="spark-q") == 2
    assert told("ledger_producer_sequence_id", producer="spark-q") == 3


def test_compaction_tells_its_horizon_its_ratio_and_whether_it_runs(client, told):
    send(client, "web", *range(12))
    assert told("ledger_compaction_ratio") is None
    client.compact("orders")
    send(client, "web", 1)
    assert (told("ledger_compaction_generation"), told("ledger_compaction_ratio")) == (1, 0.25)
    assert (told("ledger_compaction_horizon_ledger"), told("ledger_compaction_horizon_entry")) == (0, 1)
    assert told("ledger_compaction_backlog_records") == 1
    assert (told("ledger_compaction_running"), told("ledger_compaction_running_seconds")) == (0, 0)
    log = namespace_of(client).log("orders")
    holder = Holder(b"x" * 16, "me", log.clock.now_ms() - 5_000)
    namespace_of(client).metadata.transact([Create(CompactorKey(log.topic.uuid), holder, ephemeral=True)])
    assert told("ledger_compaction_running") == 1
    assert 5 <= told("ledger_compaction_running_seconds") < 60


def test_a_compaction_tells_how_long_it_took(client, told):
    send(client, "web", *range(12))
    assert told("ledger_compaction_duration_seconds") is None
    log = namespace_of(client).log("orders")
    work = replace(begin(log), started_ms=log.clock.now_ms() - 5_000)
    compaction.publish(log, work, write(work, survivors_of(work.input)))
    assert 5 <= told("ledger_compaction_duration_seconds") < 60


def test_what_cannot_be_read_is_an_error_and_the_rest_is_told(client, told, storage_root):
    client.create_topic("other", SCHEMA)
    for topic in ("orders", "other"):
        client.create_cursor(topic, "billing")
    for n in range(5):
        send(client, "web", n)
    for file in Path(storage_root).glob(f"{client.topic('orders').uuid}/*/*"):
        file.unlink()  # among them the index of its sealed ledger, in which the subscription is
    assert told("ledger_cursor_backlog_records", "other", subscription="billing") == 0
    assert told("ledger_topic_records_total") == 5
    assert told("ledger_cursor_backlog_records", subscription="billing") is None
    assert told("ledger_scrape_errors_total") >= 1
    assert told("ledger_scrape_errors_total", "other") is None


def test_a_namespace_that_does_not_answer_is_told_too(client, told):
    namespace_of(client).metadata.close()
    assert told("ledger_up", None) == 0
    assert told("ledger_topic_records_total") is None


def test_a_topic_made_again_under_its_name_is_another(client, told):
    send(client, "web", 1, 2)
    assert told("ledger_topic_records_total") == 2
    client.delete_topic("orders")
    client.create_topic("orders", SCHEMA)
    assert [told("ledger_topic_records_total") for _ in range(2)][1] == 0
    assert told("ledger_scrape_errors_total") is None


def test_requests_are_timed_by_operation(server):
    registry = CollectorRegistry()
    metadata = TimedMetadata(MemoryMetadata(server), registry)
    topics.create_topic(metadata, "t", SCHEMA)
    topics.get_topic(metadata, "t")
    with pytest.raises(NotFound):
        topics.get_topic(metadata, "u")  # is looked for again after a sync

    def count(operation):
        return registry.get_sample_value("ledger_zookeeper_request_duration_seconds_count", {"operation": operation})

    assert {name: count(name) for name in ("read", "transact", "children", "sync")} == {
        # One read looks whether a deleted topic had the name, one whether the storage is being moved. "There is no such
        # topic" is said after a synced look.
        "read": 5, "transact": 1, "children": 1, "sync": 1
    }  # fmt: skip


# -- what becomes of old records ------------------------------------------------------------------------------------


def test_retention_tells_what_it_has_given_up_and_what_is_held_back(client, told):
    for n in range(10):
        send(client, "web", n)
    client.create_cursor("orders", "slow", "1:0:0")
    client.set_policies("orders", retention_bytes=1, backlog_quota_bytes=1)
    client.trim("orders")
    head = namespace_of(client).log("orders").view().head
    assert (told("ledger_topic_begin_ledger"), told("ledger_topic_trimmed_records_total")) == (1, 4)
    assert (told("ledger_topic_kept_records"), told("ledger_topic_pending_ranges")) == (6, 1)
    assert told("ledger_topic_trimmed_bytes_total") + told("ledger_topic_kept_bytes") == head.bytes
    slow = {"subscription": "slow"}
    assert told("ledger_cursor_held_records", **slow) == 4  # the open ledger is not given up
    assert told("ledger_cursor_held_bytes", **slow) > 0
    assert told("ledger_cursor_over_quota", **slow) == 1
    assert (told("ledger_cursor_evicted_records", **slow), told("ledger_cursor_lost_records_total", **slow)) == (0, 0)
    client.cursor("orders", "slow").clear_backlog()
    assert (told("ledger_cursor_over_quota", **slow), told("ledger_cursor_held_records", **slow)) == (0, 0)


def test_the_gc_epoch_its_age_and_a_terminated_topic_are_told(client, told):
    assert (told("ledger_topic_gc_epoch"), told("ledger_topic_terminated")) == (0, None)
    assert 0 <= told("ledger_topic_gc_epoch_age_seconds") < 60
    client.terminate("orders")
    assert (told("ledger_topic_terminated"), told("ledger_topic_set_back")) == (1, None)


def test_who_maintains_and_how_many_topics_are_being_deleted_is_told(client, told):
    assert told("ledger_condemned_topics", None) == 0
    client.create_topic("old", SCHEMA)
    client.delete_topic("old")
    maintenance = Maintenance(namespace_of(client))
    assert told("ledger_maintainer", None, process=this_process()) is None
    maintenance.look()
    assert told("ledger_maintainer", None, process=this_process()) == 1
    assert told("ledger_condemned_topics", None) == 1


def test_a_maintainer_tells_what_it_did(client):
    for n in range(5):
        send(client, "web", n)
    client.set_policies("orders", retention_bytes=1)
    maintenance = Maintenance(namespace_of(client))
    registry = CollectorRegistry()
    registry.register(MaintenanceCollector(maintenance))
    assert registry.get_sample_value("ledger_maintenance_leads") == 0
    maintenance.step()
    assert registry.get_sample_value("ledger_maintenance_leads") == 1
    assert registry.get_sample_value("ledger_maintenance_runs_total", {"action": "trim"}) == 1
    done = {"action": "trim", "what": "records"}
    assert registry.get_sample_value("ledger_maintenance_done_total", done) == 4
    assert exposition(maintenance)()[0] == 200


def test_the_age_of_the_backup_is_told_by_who_leads(client):
    maintenance = Maintenance(namespace_of(client))
    registry = CollectorRegistry()
    registry.register(MaintenanceCollector(maintenance))
    assert registry.get_sample_value("ledger_backup_age_seconds") is None  # it does not lead
    maintenance.look()
    assert registry.get_sample_value("ledger_backup_age_seconds") == inf  # none is known
    maintenance.step()
    age_s = registry.get_sample_value("ledger_backup_age_seconds")
    maintenance.stats["backup"].last_success_ms -= 3_600_000
    assert 3600 <= registry.get_sample_value("ledger_backup_age_seconds") <= 3600 + age_s + 60


# -- many topics ----------------------------------------------------------------------------------------------------


class Counted(MemoryMetadata):
    """Counts requests, as ZooKeeper would see them."""

    requests = 0

    def read(self, key, on_change=None, ahead=None):
        self.requests += 1
        return super().read(key, on_change, ahead)

    def read_many(self, keys):
        found = super().read_many(keys)
        self.requests += bool(keys) - len(keys)
        return found

    def children(self, key):
        self.requests += 1
        return super().children(key)

    def children_many(self, keys):
        found = super().children_many(keys)
        self.requests += bool(keys) - len(keys)
        return found


def test_idle_topics_cost_a_share_of_a_page_and_not_a_request_each(client, server, storage_root):
    for number in range(50):
        client.create_topic(f"t{number}", SCHEMA)
        client.create_cursor(f"t{number}", "billing")
    metadata = Counted(server)
    scraped = LedgerCollector(client_of(OpenNamespace(metadata, storage_root)))
    list(scraped.collect())
    metadata.requests = 0
    list(scraped.collect())
    assert metadata.requests <= 10


def test_a_scrape_has_a_limited_time_and_the_next_one_goes_on(client, server, storage_root):
    for number in range(3):
        client.create_topic(f"t{number}", SCHEMA)
    scraped = LedgerCollector(client, details_s=0.0)
    registry = CollectorRegistry()
    registry.register(scraped)
    assert registry.get_sample_value("ledger_scrape_late_topics") == 4
    assert registry.get_sample_value("ledger_topic_records_total", {"topic": "t1"}) == 0
    assert registry.get_sample_value("ledger_topic_producers", {"topic": "t1"}) is None


def test_a_scraper_follows_a_storage_that_moves_and_goes_on_counting(client, told, server, storage_root, tmp_path):
    for n in range(3):
        send(client, "web", n)
    assert told("ledger_topic_producers") == 1
    move_storage.move(Mover(MemoryMetadata(server)), str(tmp_path / "new"))
    shutil.rmtree(storage_root)
    with client_of(OpenNamespace(MemoryMetadata(server), limits=Limits(commits_per_ledger=4))) as writer:
        for n in range(6):
            send(writer, f"other{n}", n)
    assert told("ledger_topic_producers") == 7


# -- the exporter -----------------------------------------------------------------------------------------------


@pytest.fixture
def exporter(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        for name in ("broken", "orders"):
            client.create_topic(name, SCHEMA, key="k")
        send(client, "web", *range(9))
        client.create_cursor("orders", "billing")
        client.compact("orders")
        client.tokens("orders").mint()
        zookeeper = KazooClient(client.zookeeper)
        zookeeper.start()
        zookeeper.set(paths.path(HeadKey(client.topic("broken").uuid)), b"\xff\xff")
        zookeeper.stop()
    command = [
        sys.executable,
        "-m",
        "pyspark_ledger.cli",
        "exporter",
        "--zookeeper",
        namespace,
        "--port",
        "0",
        "--json",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible
    )
    yield json.loads(process.stdout.readline())["url"]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


def test_the_exporter_is_scraped_and_has_everything_that_the_dashboard_shows(exporter):
    assert exporter.startswith("http://127.0.0.1:")
    for _ in range(2):  # the first one's own requests are in the second
        with urllib.request.urlopen(exporter, timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    samples = {sample.name: sample for family in families for sample in family.samples}
    assert samples["ledger_topic_records_total"].value == 9
    assert samples["ledger_scrape_errors_total"].labels == {"topic": "broken"}
    assert samples["ledger_compaction_ratio"].value == 3 / 9
    exported = samples.keys() | {family.name for family in families}  # one that has no value now is there by name
    exported |= {f"{family.name}_total" for family in families if family.type == "counter"}
    assert exported >= FAMILIES.keys()
    assert all(name.startswith("ledger_") for name in samples)
    dashboard = json.loads(DASHBOARD.read_text())
    shown = set(re.findall(r"ledger_\w+", json.dumps([dashboard["panels"], dashboard["templating"]])))
    assert len(shown) > 20
    assert shown <= exported


def test_without_its_extra_the_exporter_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    failed = CliRunner().invoke(main, ["exporter"])
    assert (failed.exit_code, "pip install 'pyspark-ledger[metrics]'" in failed.stderr) == (1, True)
