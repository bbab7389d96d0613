"""The command line looks after subscriptions and producers."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient, namespace_of

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture
def client(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA)
        for start in (0, 10):
            with client.producer("orders", name="web") as producer:
                for n in range(start, start + 10):
                    producer.send({"v": n})
        client.create_cursor("orders", "billing")
        yield client


def run(client, *arguments):
    return CliRunner().invoke(main, [*arguments, "--zookeeper", client.zookeeper])


def answer(client, *arguments):
    done = run(client, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_subscriptions_are_listed_with_backlog_owner_epoch_and_revision(client):
    client.create_topic("other", SCHEMA)
    with client.consumer("orders", "billing") as consumer:
        for _ in range(3):
            consumer.acknowledge(consumer.receive())
        consumer.flush()
        (row,) = answer(client, "cursors", "list")
        assert (row["topic"], row["subscription"], row["position"]) == ("orders", "billing", "0:0:3")
        assert (row["backlog_records"], row["epoch"], row["revision"]) == (17, 1, 0)
        assert 0 < row["backlog_bytes"] < 20_000
        assert 0 < row["backlog_seconds"] < 60
        assert row["owner"].startswith("a consumer in process")
        assert "billing" in run(client, "cursors", "list", "orders").stdout
    assert answer(client, "cursors", "list", "orders")[0]["owner"] == ""
    assert run(client, "cursors", "list", "other").stdout == "no subscriptions\n"


def test_one_subscription_is_described(client):
    client.cursor("orders", "billing").mark_delete("0:0:5", {"offset": 42})
    told = answer(client, "cursors", "describe", "orders", "billing")
    assert (told["position"], told["properties"], told["individual_acks"]) == ("0:0:5", {"offset": 42}, 0)
    assert told["revision_running_seconds"] is None
    missing = run(client, "cursors", "describe", "orders", "bill")
    assert (missing.exit_code, "LEDGER_CURSOR_NOT_FOUND" in missing.stderr) == (1, True)


def test_a_subscription_is_made_once(client):
    made = answer(client, "cursors", "create", "orders", "audit", "--from", "latest")
    assert (made["made"], made["position"], made["backlog_records"]) == (True, "0:2:0", 0)
    assert answer(client, "cursors", "create", "orders", "audit")["made"] is False


@pytest.mark.parametrize(
    ("command", "shown", "position", "epoch"),
    [
        (["reset", "orders", "billing", "--to", "0:1:4"], "9", "0:1:4", 0),
        (["reset", "orders", "billing", "--to", "latest"], "15", "0:2:0", 0),
        (["reset", "orders", "billing", "--to", "earliest"], "5", "0:0:0", 0),
        (["reset", "orders", "billing", "--to", "2000-01-01T00:00:00+00:00"], "5", "0:0:0", 0),
        (["skip", "orders", "billing", "7"], "15", "0:1:2", 0),
        (["clear-backlog", "orders", "billing"], "15", "0:2:0", 0),
        (["rewind", "orders", "billing"], None, "0:0:5", 0),
        (["redeliver", "orders", "billing"], None, "0:0:5", 1),
    ],
)
def test_a_subscription_is_moved_and_what_skips_or_repeats_records_needs_yes(client, command, shown, position, epoch):
    client.cursor("orders", "billing").mark_delete("0:0:5")
    if shown is not None:
        refused = run(client, "cursors", *command)
        assert (refused.exit_code, shown in refused.stdout.splitlines()[1].split()) == (1, True)
        assert "nothing was changed: add --yes" in refused.stderr
        assert client.cursor("orders", "billing").stats().revision == 0
        command = [*command, "--yes"]
    told = answer(client, "cursors", *command)
    assert (told["position"], told["revision"], told["epoch"]) == (position, 1, epoch)
    assert str(client.cursor("orders", "billing").stats().mark_delete) == position


def test_a_reset_that_would_not_go_where_it_is_sent_says_so_before(client):
    client.cursor("orders", "billing").mark_delete("0:0:5")
    (row,) = json.loads(run(client, "cursors", "reset", "orders", "billing", "--to", "7:0:0", "--json").stdout)
    assert (row["position"], row["to"], row["exact"]) == ("0:0:5", "0:2:0", False)
    assert (row["skipped_records"], row["repeated_records"], row["dropped_acks"], row["owner"]) == (15, 0, 0, "")


def test_a_subscription_is_deleted_only_with_yes_and_not_while_it_is_followed(client):
    assert run(client, "cursors", "delete", "orders", "billing").exit_code == 1
    with client.consumer("orders", "billing"):
        used = run(client, "cursors", "delete", "orders", "billing", "--yes")
        assert (used.exit_code, "LEDGER_CURSOR_IN_USE" in used.stderr) == (1, True)
    assert len(client.cursors("orders")) == 1
    assert (
        run(client, "cursors", "delete", "orders", "billing", "--yes").stdout == "billing: deleted, it was at 0:0:0\n"
    )
    assert client.cursors("orders") == []


def test_tokens_in_flight_are_listed_by_group(client):
    assert answer(client, "tokens", "stats", "orders") == []
    client.tokens("orders", "billing").mint(3)
    (row,) = answer(client, "tokens", "stats", "orders")
    assert (row["group"], row["in_flight"], row["blocks"]) == ("billing", 3, 1)


def test_producers_are_listed_and_a_name_is_let_go_only_with_yes(client):
    (row,) = answer(client, "producers", "list", "orders")
    assert (row["producer"], row["sequence_id"], row["numbers"], row["fenced_runs"]) == ("web", 19, "records", 0)
    refused = run(client, "producers", "forget", "orders", "web")
    assert (refused.exit_code, "web" in refused.stdout, "--yes" in refused.stderr) == (1, True, True)
    assert len(client.producers("orders")) == 1
    assert answer(client, "producers", "forget", "orders", "web", "--yes")["forgotten"] is True
    assert run(client, "producers", "list", "orders").stdout == "no producers\n"
    unknown = run(client, "producers", "forget", "orders", "web")
    assert "LEDGER_PRODUCER_NOT_FOUND" in unknown.stderr


def test_a_query_is_released_from_a_topic_that_was_deleted(client):
    topic, sinks = client.topic("orders"), namespace_of(client).sinks
    sinks.remember("q", topic)
    client.delete_topic("orders")
    refused = run(client, "producers", "forget", "orders", "spark-q")
    assert refused.exit_code == 1
    assert topic.uuid in refused.output + refused.stderr
    assert sinks.uuid_of("q", "orders") == topic.uuid
    assert answer(client, "producers", "forget", "orders", "spark-q", "--yes")["forgotten"] is True
    assert sinks.uuid_of("q", "orders") == ""
    assert run(client, "producers", "forget", "orders", "spark-q", "--yes").exit_code == 1
