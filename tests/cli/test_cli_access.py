"""``pyspark-ledger access``: what it says, what it asks before it cuts somebody off, and where passwords come from."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.errors import NotAllowed

SECRET = "a-new-secret"


@pytest.fixture
def made(namespace, storage_root, monkeypatch) -> str:
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    with LedgerClient(namespace, storage_root, password="boss:b") as client:
        client.create_topic("orders", pa.schema([("n", pa.int64())]))
        client.create_cursor("orders", "s")
    return namespace


def run(namespace: str, *arguments: str, login: str = "boss:b", given: str = "", environment: bool = True) -> Result:
    env = {"LEDGER_NEW_PASSWORD": SECRET if environment else "", "LEDGER_ZOOKEEPER_PASSWORD": login}
    return CliRunner().invoke(main, ["--zookeeper", namespace, "access", *arguments], env=env, input=given)


def answer(namespace: str, *arguments: str, **named: str) -> dict:
    done = run(namespace, *arguments, "--json", **named)
    assert done.exit_code == 0, done.output
    assert SECRET not in done.output
    return json.loads(done.stdout)


def test_roles_are_given_shown_and_taken_away(made):
    assert "no roles: whoever may open the namespace may do everything" in run(made, "list").output
    first = run(made, "grant", "reader", "digest:alice")
    assert "LEDGER_NOT_CONFIRMED" in first.output
    assert "only who has one gets in from then on, you as an admin" in first.output
    assert run(made, "list", "--json").stdout == "[]\n"
    given = answer(made, "grant", "reader", "digest:alice", "--yes")
    assert [(each["identity"], each["role"], each["you"]) for each in given["roles"]] == [
        ("digest:boss", "admin", True),
        ("digest:alice", "reader", False),
    ]
    assert given["changed"] > 20
    assert given["refused"] == []
    with LedgerClient(made, password=f"alice:{SECRET}") as client:
        assert client.topics() == ["orders"]
    assert answer(made, "check")["changed"] == 0
    assert "LEDGER_NOT_CONFIRMED" in run(made, "revoke", "reader", "digest:alice").output
    assert len(answer(made, "revoke", "all", "digest:alice", "--yes")["roles"]) == 1
    assert "LEDGER_NOT_FOUND" in run(made, "revoke", "all", "digest:alice", "--yes").output


def test_a_password_comes_from_standard_input_where_nobody_can_be_asked(made):
    done = run(made, "grant", "reader", "digest:alice", "--yes", environment=False)
    assert "set LEDGER_NEW_PASSWORD, or give it on standard input" in done.output
    done = run(made, "grant", "reader", "digest:alice", "--yes", environment=False, given="from a pipe\n")
    assert done.exit_code == 0, done.output
    with LedgerClient(made, password="alice:from a pipe") as client:
        assert client.topics() == ["orders"]


def test_a_password_in_the_command_is_refused_and_not_shown_again(made):
    done = run(made, "grant", "reader", "digest:alice:oh-no", "--yes")
    assert done.exit_code == 1
    assert "never write a password on the command line" in done.output
    assert "oh-no" not in done.output


def test_passing_on_is_finished_only_with_a_yes_while_the_former_identity_is_in_use(made):
    run(made, "grant", "reader", "digest:etl", "--yes", environment=False, given="old\n")
    with pytest.raises(NotAllowed), LedgerClient(made, password="etl:old") as client:
        consumer = client.consumer("orders", "s")
        both = answer(made, "rotate", "digest:etl")["roles"]
        assert [(each["identity"], each["leaving"]) for each in both[1:]] == [
            ("digest:etl", True),
            ("digest:etl", False),
        ]
        refused = run(made, "rotate", "digest:etl", "--finish")
        assert refused.exit_code == 1
        assert "1 nodes are of living processes that are logged in as the former identity only" in refused.output
        assert "/subscriptions/owner-s" in refused.output
        assert len(answer(made, "list")) == 3
        assert len(answer(made, "rotate", "digest:etl", "--finish", "--yes")["roles"]) == 2
        consumer.receive(0.0)
        consumer.close()
    with LedgerClient(made, password=f"etl:{SECRET}") as client:
        assert client.topics() == ["orders"]
    assert "nobody is taking over" in run(made, "rotate", "digest:etl", "--finish").output
    assert "--finish needs no --to" in run(made, "rotate", "digest:etl", "--finish", "--to", "digest:x").output
