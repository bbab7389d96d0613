"""``topics repair``, after somebody has noticed that ZooKeeper was rolled back."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.errors import DataLoss
from pyspark_ledger.metadata.records import SetBack

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture
def client(namespace, storage_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # reports go there
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA, key="k")
        with client.producer("orders") as producer:
            producer.send({"k": "a", "v": 1})
        yield client


def run(client: LedgerClient, *arguments: str):
    return CliRunner().invoke(main, ["--zookeeper", client.zookeeper, "topics", "repair", "orders", *arguments])


def notice(client: LedgerClient) -> None:
    noted = SetBack(1_700_000_000_000, "process 7 on spark-1", "its commit 4 is another one now", next_commit=5)
    namespace_of(client).log("orders").change_head(lambda head: replace(head, set_back=noted), "a note")


def test_a_topic_that_needs_no_repair_is_left_alone(client):
    done = run(client, "--accept-loss", "--yes")
    assert (done.exit_code, done.stdout.strip()) == (0, "orders: needs no repair")


def test_what_is_known_is_shown_and_nothing_is_changed(client):
    notice(client)
    shown = run(client)
    assert shown.exit_code == 1
    for part in ("process 7 on spark-1", "its commit 4 is another one now", "lost commits", "4"):
        assert part in shown.stdout
    assert "LEDGER_SET_BACK" in shown.stderr
    assert "--accept-loss" in shown.stderr
    assert run(client, "--accept-loss").exit_code == 1, "it asks for --yes"
    assert client.damage("orders") is not None


def test_the_loss_is_accepted_by_name_and_writers_go_on(client):
    notice(client)
    with pytest.raises(DataLoss, match="LEDGER_SET_BACK"), client.producer("orders") as producer:
        producer.send({"k": "b", "v": 2})
    done = run(client, "--accept-loss", "--yes", "--json")
    assert (done.exit_code, json.loads(done.stdout)["lost_commits"]) == (0, 4)
    with client.producer("orders") as producer:
        producer.send({"k": "b", "v": 2})
    assert [record["v"] for record in client.reader("orders", end="latest")] == [1, 2]
