"""The command line lists dead letters, and brings them back once."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_ledger.cli import main, replaying
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.files import dead_letters
from pyspark_ledger.outbox.transaction import Transaction

ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("price", pa.decimal128(10, 2)), ("at", pa.date32())])


@pytest.fixture
def client(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", ORDERS)
        with client.producer("orders") as producer:
            for n in range(3):
                producer.send({"id": n, "price": Decimal(f"{n}.50")})
        with client.consumer("orders", "billing", max_redeliveries=0, dead_letter_topic="dead") as consumer:
            while (message := consumer.receive(0.0)) is not None:
                consumer.negative_acknowledge(message)
        yield client


def add_letters(client, *letters):
    """As a sink does."""
    with client.producer("dead") as producer:
        producer.send_batch(dead_letters.made_of([{"reason": "no topic", **letter} for letter in letters], 0))


def run(client, *arguments):
    return CliRunner().invoke(main, ["deadletters", *arguments, "--zookeeper", client.zookeeper])


def answer(client, *arguments, status=0):
    done = run(client, *arguments, "--json")
    assert done.exit_code == status, done.stderr
    return json.loads(done.stdout)


def orders(client, topic="orders"):
    return [record["id"] for record in client.reader(topic, end="latest")]


def test_letters_are_listed_with_the_reason_and_where_they_came_from(client):
    add_letters(client, {"record": '{"id": 9}'})
    rows = answer(client, "list", "dead")
    assert [row["record"] for row in rows] == [
        *(f'{{"id": {n}, "price": "{n}.50", "at": null}}' for n in range(3)), '{"id": 9}',
    ]  # fmt: skip
    first = {name: rows[0][name] for name in ("letter", "topic", "subscription", "position", "deliveries", "query")}
    assert first == {"letter": "0:0:0", "topic": "orders", "subscription": "billing", "position": "0:0:0",
                     "deliveries": 1, "query": None}  # fmt: skip
    assert [row["record"] for row in answer(client, "list", "dead", "--reason", "no topic")] == ['{"id": 9}']
    shown = run(client, "list", "dead", "--limit", "2")
    assert "there are more than 2" in shown.stderr
    assert "query" not in shown.stdout
    assert "delivered once to subscription 'billing'" in shown.stdout


def test_a_replay_brings_each_letter_back_once(client):
    assert answer(client, "replay", "dead", "--dry-run")["replayed"] == {"orders": 3}
    asked = run(client, "replay", "dead")
    assert asked.exit_code == 1
    assert "LEDGER_NOT_CONFIRMED" in asked.stderr
    assert orders(client) == [0, 1, 2]
    assert answer(client, "replay", "dead", "--yes") == {
        "topic": "dead", "dry_run": False, "replayed": {"orders": 3}, "left": [],
    }  # fmt: skip
    assert orders(client) == [0, 1, 2, 0, 1, 2]
    assert run(client, "replay", "dead", "--yes").stdout == "dead: 0 letters replayed, 0 left\n"
    assert orders(client) == [0, 1, 2, 0, 1, 2]
    assert answer(client, "list", "dead") == []
    assert [row["replayed"] for row in answer(client, "list", "dead", "--all")] == [True] * 3


def test_letters_that_fit_nowhere_are_left_and_told_and_go_with_a_later_replay(client):
    add_letters(
        client,
        {"record": '{"id": 9}'},
        {"record": '{"id": 10}', "topic": "gone"},
        {"record": '{"id": null}', "topic": "orders"},
        {"record": '{"id": 12, "new": 1}', "topic": "orders"},
        {"record": '{"id": 13}', "topic": "dead"},
    )
    left = answer(client, "replay", "dead", "--yes", status=1)
    assert left["replayed"] == {"orders": 3}
    assert [row["letter"] for row in left["left"]] == [f"0:1:{n}" for n in range(5)]
    whys = [row["why"] for row in left["left"]]
    for why, words in zip(whys, ("--to", "'gone'", "column 'id'", "no column 'new'", "cannot go there"), strict=True):
        assert words in why
    client.create_topic("gone", ORDERS)
    again = run(client, "replay", "dead", "--yes")
    assert again.exit_code == 1
    told = "dead: 1 letters replayed (gone 1), 4 left\n  0:1:0: [LEDGER_INVALID_INPUT] it names no topic"
    assert again.stdout.startswith(told)
    client.create_topic("mended", pa.schema([("id", pa.int64()), ("new", pa.int64())]))
    assert answer(client, "replay", "dead", "--to", "mended", "--yes") == {
        "topic": "dead", "dry_run": False, "replayed": {"mended": 4}, "left": [],
    }  # fmt: skip
    assert orders(client, "mended") == [9, None, 12, 13]


def test_letters_for_a_terminated_topic_are_left_and_the_others_come_back_I16(client):
    client.create_topic("others", ORDERS)
    add_letters(client, {"record": '{"id": 9}', "topic": "others"})
    client.terminate("orders")
    assert answer(client, "replay", "dead", "--dry-run", status=1)["replayed"] == {"others": 1}
    done = answer(client, "replay", "dead", "--yes", status=1)
    assert done["replayed"] == {"others": 1}
    assert ["LEDGER_TOPIC_TERMINATED" in row["why"] for row in done["left"]] == [True] * 3
    assert orders(client, "others") == [9]


@pytest.mark.parametrize("applied", [False, True])
def test_a_replay_that_is_killed_and_run_again_brings_each_letter_back_once_I1_I14(client, monkeypatch, applied):
    """Before or after the transaction of the second page."""
    monkeypatch.setattr(replaying, "_PAGE", 1)
    commit, calls = Transaction.commit, []

    def killed(self):
        calls.append(self)
        if len(calls) == 2:
            if applied:
                commit(self)
            raise SystemExit(137)
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", killed)
    run(client, "replay", "dead", "--yes")
    assert orders(client) == [0, 1, 2, 0, *([1] if applied else [])]
    assert answer(client, "replay", "dead", "--yes")["replayed"] == {"orders": 1 if applied else 2}
    assert orders(client) == [0, 1, 2, 0, 1, 2]


def test_what_is_no_topic_of_letters_is_told(client):
    for arguments, words in (
        (("list", "orders"), "topic 'orders' is none for dead letters"),
        (("list", "nothing"), "LEDGER_TOPIC_NOT_FOUND"),
        (("replay", "orders", "--yes"), "topic 'orders' is none for dead letters"),
        (("replay", "dead", "--to", "nothing", "--yes"), "LEDGER_TOPIC_NOT_FOUND"),
        (("replay", "dead", "--to", "dead", "--yes"), "the topic of these letters"),
    ):
        done = run(client, *arguments)
        assert done.exit_code == 1
        assert words in done.stderr
    assert client.cursors("dead") == []
