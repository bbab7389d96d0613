"""``namespace rebuild``, ``namespace restore`` and ``namespace repair`` on a real ZooKeeper."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.errors import Unavailable
from pyspark_ledger.lifecycle.backup import Backup
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.log import snapshots

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # reports go there
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)


@pytest.fixture
def client(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA, key="k")
        client.create_topic("idle", SCHEMA)
        send(client, 1, 2, 3)
        client.create_cursor("orders", "billing")
        back_up(client)
        yield client


def send(client: LedgerClient, *values: int) -> None:
    with client.producer("orders") as producer:
        for value in values:
            producer.send({"k": str(value), "v": value})


def back_up(client: LedgerClient) -> None:
    assert not Backup(namespace_of(client)).run(Pace(SYSTEM_CLOCK, lambda _: None)).failed


def values(zookeeper: str) -> list[int]:
    with LedgerClient(zookeeper) as client:
        return [record["v"] for record in client.reader("orders", end="latest")]


def run(zookeeper: str, *arguments: str):
    return CliRunner().invoke(main, ["--zookeeper", zookeeper, "namespace", *arguments])


def test_a_namespace_is_rebuilt_in_another_chroot_and_the_old_one_is_fenced(client, namespace, storage_root):
    new = f"{namespace}-new"
    shown = run(new, "rebuild", "--storage", storage_root, "--dry-run", "--json")
    assert shown.exit_code == 0, shown.output
    assert [topic["topic"] for topic in json.loads(shown.stdout)["topics"]] == ["idle", "orders"]
    asked = run(new, "rebuild", "--storage", storage_root)
    assert (asked.exit_code, "--yes" in asked.stderr) == (1, True)
    send(client, 4)  # after the backup, and so lost
    done = run(new, "rebuild", "--storage", storage_root, "--yes", "--report", "report.json")
    assert done.exit_code == 0, done.output
    assert values(new) == [1, 2, 3]
    report = json.loads(Path("report.json").read_text())
    assert report["outcome"] == "done"
    assert report["lost"]["files_that_nothing_names"] == {"orders": 1}
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        send(client, 5)
    with LedgerClient(new) as again:
        send(again, 6)
        assert [cursor.name for cursor in again.cursors("orders")] == ["billing"]
    assert values(new) == [1, 2, 3, 6]
    refused = run(new, "rebuild", "--storage", storage_root, "--yes")
    assert (refused.exit_code, "LEDGER_NAMESPACE_EXISTS" in refused.stderr) == (1, True)


def test_a_namespace_is_restored_from_a_file(client, namespace, storage_root):
    new = f"{namespace}-new"
    assert run(namespace, "backup", "all.backup").exit_code == 0
    done = run(new, "restore", "all.backup", "--storage", storage_root, "--yes", "--json")
    assert done.exit_code == 0, done.output
    assert [topic["records"] for topic in json.loads(done.stdout)["topics"]] == [0, 3]
    assert values(new) == [1, 2, 3]
    assert run(new, "restore", "nothing.backup", "--storage", storage_root).exit_code == 1


def test_where_the_files_are_must_be_said(namespace):
    refused = run(namespace, "rebuild")
    assert (refused.exit_code, "LEDGER_STORAGE_NOT_SET" in refused.stderr) == (1, True)


def test_all_topics_that_need_it_are_repaired_at_once(client, namespace):
    assert run(namespace, "repair").stdout.strip() == "no topic needs a repair"
    later(client)
    shown = run(namespace, "repair")
    assert (shown.exit_code, "LEDGER_SET_BACK" in shown.stderr) == (1, True)
    assert "orders" in shown.stdout
    assert "idle" not in shown.stdout
    assert run(namespace, "repair", "--bring-back").exit_code == 1, "it asks for --yes"
    done = run(namespace, "repair", "--bring-back", "--yes", "--json")
    assert done.exit_code == 0, done.output
    [row] = json.loads(done.stdout)
    assert (row["topic"], row["outcome"], row["in_storage_records"]) == ("orders", "brought back", 2)
    assert values(namespace) == [1, 2, 3, 4, 5]
    assert run(namespace, "repair").exit_code == 0


def later(client: LedgerClient) -> None:
    """ZooKeeper does not have commits of which storage has a snapshot: as if it was rolled back."""
    log = namespace_of(client).log("orders")
    before = log.refresh(sync=True)
    send(client, 4, 5)
    snapshots.leave(log)
    with closing(namespace_of(LedgerClient(client.zookeeper))) as other:
        rewind = other.log("orders")
        rewind.change_head(lambda head: before.head, "a rollback")


def test_a_topic_is_brought_back_by_name(client, namespace):
    later(client)
    shown = CliRunner().invoke(main, ["--zookeeper", namespace, "topics", "repair", "orders"])
    assert (shown.exit_code, "--bring-back" in shown.stdout, "--accept-loss" in shown.stdout) == (1, True, True)
    both = ["--zookeeper", namespace, "topics", "repair", "orders", "--bring-back", "--accept-loss", "--yes"]
    assert "LEDGER_INVALID_OPTION" in CliRunner().invoke(main, both).stderr
    done = CliRunner().invoke(main, ["--zookeeper", namespace, "topics", "repair", "orders", "--bring-back", "--yes"])
    assert done.exit_code == 0, done.output
    assert values(namespace) == [1, 2, 3, 4, 5]
