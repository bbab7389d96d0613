"""``topics verify`` as a user asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_ledger.base.names import staged_file
from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient, namespace_of
from tests.support.commands import run_command

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # reports go there


@pytest.fixture
def client(namespace, storage_root):
    """Ten commits of one record, in ledgers of two."""
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA, key="k")
        client.create_topic("empty", SCHEMA)
        client.set_policies("orders", snapshot_commits=2)
        for number in range(10):
            with client.producer("orders") as producer:
                producer.send({"k": "a", "v": number})
        yield client


def run(client, *arguments):
    return CliRunner().invoke(main, ["--zookeeper", client.zookeeper, *arguments])


def file_of(client: LedgerClient, storage_root: str, number: int) -> Path:
    log = namespace_of(client).log("orders")
    (entry,) = log.entries(log.commit(log.refresh(), number))
    return Path(storage_root) / staged_file(log.topic.uuid, entry.file.epoch, entry.file.uid)


@pytest.mark.parametrize("options", [[], ["--deep"], ["--sample", "50%"], ["--sample", "0.5"]])
def test_a_topic_that_is_whole_is_told_so_and_the_status_is_0(client, options):
    done = run(client, "topics", "verify", "orders", *options)
    assert done.exit_code == 0, done.output
    assert "orders: 5 ledgers, 10 records" in done.output
    assert "nothing is lost or damaged" in done.output
    facts = json.loads(run(client, "topics", "verify", "orders", *options, "--json").stdout)
    assert facts["is_sound"]
    assert (facts["topic"], facts["end"], facts["records"]) == ("orders", "4:2:0", 10)


def test_what_is_lost_is_told_with_file_and_positions_and_the_status_is_1(client, storage_root):
    lost, cut = (file_of(client, storage_root, number) for number in (3, 6))
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    done = run(client, "topics", "verify", "orders")
    assert done.exit_code == 1
    assert "1 loss, 1 damage" in done.output
    assert f"loss: 1 records from 1:1:0 up to 1:2:0: entry 1:1: file://{lost} is missing" in done.output
    facts = json.loads(run(client, "topics", "verify", "orders", "--json").stdout)
    assert not facts["is_sound"]
    assert [(found["kind"], found["first"], found["end"], found["records"]) for found in facts["findings"][:2]] == [
        ("loss", "1:1:0", "1:2:0", 1),
        ("damage", "3:0:0", "3:1:0", 1),
    ]
    assert facts["findings"][0]["file"] == f"file://{lost}"


def test_what_nothing_names_is_mentioned_and_the_status_is_0(client, storage_root):
    orphan = file_of(client, storage_root, 0)
    (orphan.parent / f"{'ab' * 16}.arrow").write_bytes(b"12345")
    done = run(client, "topics", "verify", "orders")
    assert done.exit_code == 0
    assert "orphan: 4 files with" in done.output  # three nodes of the index were replaced


def test_all_topics_are_looked_at_whatever_is_wrong_with_one(client, storage_root):
    assert run(client, "topics", "verify", "--all").exit_code == 0
    file_of(client, storage_root, 3).unlink()
    client.create_topic("zebras", SCHEMA)
    done = run(client, "topics", "verify", "--all")
    assert done.exit_code == 1
    assert "empty: 0 ledgers" in done.output
    assert "orders: 5 ledgers, 10 records" in done.output
    assert "zebras: 0 ledgers" in done.output
    assert "outboxes: nothing is wrong" in done.output


def test_an_unknown_topic_is_an_error(client):
    done = run(client, "topics", "verify", "oders")
    assert done.exit_code == 1
    assert "LEDGER_TOPIC_NOT_FOUND" in done.output


def test_a_storage_that_is_not_there_is_an_error_and_no_loss(client, storage_root):
    Path(storage_root).rename(f"{storage_root}-elsewhere")
    done = run(client, "topics", "verify", "orders")
    assert done.exit_code == 1
    assert "LEDGER_STORAGE_MISSING" in done.output
    assert "loss" not in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name one topic, or give --all"),
        (["orders", "--all"], "name one topic, or give --all"),
        (["orders", "--sample", "lots"], "is no share"),
        (["orders", "--sample", "0"], "is no share"),
        (["orders", "--sample", "101%"], "is no share"),
        (["orders", "--sample", "1%", "--deep"], "give one of them"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(arguments, said):
    done = run_command(["topics", "verify", *arguments])
    assert done.exit_code == 2
    assert said in done.output


# -- skip-damaged ----------------------------------------------------------------------------------------------------


def test_a_damaged_entry_is_shown_then_given_up_and_taken_back_when_a_copy_was_found(client, storage_root):
    file = file_of(client, storage_root, 3)
    copy = file.read_bytes()
    file.write_bytes(copy[:-1])
    asked = run(client, "topics", "skip-damaged", "orders", "1:1")
    assert asked.exit_code == 1
    assert "this would give up 1 records from 1:1:0 up to 1:2:0 of topic 'orders'" in asked.output
    assert "LEDGER_NOT_CONFIRMED" in asked.output
    assert str(file) in asked.output
    assert run(client, "topics", "verify", "orders").exit_code == 1
    done = run(client, "topics", "skip-damaged", "orders", "1:1", "--reason", "rack 3", "--yes", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["first"], facts["end"], facts["records"], facts["reason"]) == ("1:1:0", "1:2:0", 1, "rack 3")
    [report] = map(json.loads, map(Path.read_text, Path().glob("pyspark-ledger-*.json")))
    assert (report["outcome"], report["lost"]) == ("done", {"records": 1, "reason": "rack 3"})
    known = run(client, "topics", "verify", "orders")
    assert known.exit_code == 0
    assert "given up: 1 records from 1:1:0 up to 1:2:0" in known.output
    assert "LEDGER_ENTRY_LOST" in run(client, "topics", "read", "orders").output
    file.write_bytes(copy)
    assert run(client, "topics", "skip-damaged", "orders", "1:1", "--undo").exit_code == 0
    assert [record["v"] for record in client.reader("orders", end="latest")] == list(range(10))


def test_an_entry_that_is_whole_or_is_none_is_refused(client):
    for entry, code in (("1:1", "LEDGER_ENTRY_WHOLE"), ("9:9", "LEDGER_INVALID_POSITION"), ("x", "INVALID_POSITION")):
        done = run(client, "topics", "skip-damaged", "orders", entry, "--yes")
        assert done.exit_code == 1
        assert code in done.output
