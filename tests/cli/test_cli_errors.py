"""What a user is told who gives bad input, or whose ZooKeeper goes away: a line, a code, what to do and exit status 1.
Nothing was changed then."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient, open_namespace
from pyspark_ledger.local.home import LocalHome
from pyspark_ledger.local.zookeeper import LocalZooKeeper, _free_ports
from tests.support.query import eventually

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
BAD = {
    "topics list --zookeeper a:b": "LEDGER_INVALID_OPTION",
    "topics list --password nocolon": "LEDGER_INVALID_OPTION",
    "topics list --user me": "LEDGER_INVALID_OPTION",
    "topics list --profile none": "LEDGER_INVALID_PROFILE",
    "topics list --set zookeeper.tls.ca": "LEDGER_INVALID_OPTION",
    "topics list --set zookeeper.tsl.ca=x": "LEDGER_UNKNOWN_OPTION",
    "topics list --set zookeeper.sasl.password=x": "LEDGER_INVALID_OPTION",
    "topics list --set zookeeper=a:1": "LEDGER_INVALID_OPTION",
    "topics list --zookeeper 127.0.0.1:1": "LEDGER_UNAVAILABLE",
    "topics create orders --schema id,bigin": "LEDGER_INVALID_SCHEMA",
    "topics create a/b --schema `id`int": "LEDGER_INVALID_TOPIC_NAME",
    "topics create new --schema `id`int --key no": "LEDGER_INVALID_OPTION",
    "topics create new --schema `id`int --storage /elsewhere": "LEDGER_STORAGE_CONFLICT",
    "topics create orders --schema `id`int": "LEDGER_TOPIC_EXISTS",
    "topics describe nope": "LEDGER_TOPIC_NOT_FOUND",
    "topics read nope": "LEDGER_TOPIC_NOT_FOUND",
    "topics read orders --from 99:0:0": "LEDGER_POSITION_PAST_END",
    "topics peek nope": "LEDGER_TOPIC_NOT_FOUND",
    "topics write nope -": "LEDGER_TOPIC_NOT_FOUND",
    "topics write orders -": "LEDGER_INVALID_VALUE",
    "topics delete nope --yes": "LEDGER_TOPIC_NOT_FOUND",
    "topics delete orders": "LEDGER_NOT_CONFIRMED",
    "topics compact nope": "LEDGER_TOPIC_NOT_FOUND",
    "topics config get nope": "LEDGER_TOPIC_NOT_FOUND",
    "topics config set orders --snapshot-commits -5": "LEDGER_INVALID_POLICY",
    "topics config set orders --compact-after 1GB": "LEDGER_INVALID_POLICY",  # it has no key
    "cursors list nope": "LEDGER_TOPIC_NOT_FOUND",
    "cursors create orders a/b": "LEDGER_INVALID_SUBSCRIPTION_NAME",
    "cursors describe orders nope": "LEDGER_CURSOR_NOT_FOUND",
    "cursors delete orders nope --yes": "LEDGER_CURSOR_NOT_FOUND",
    "cursors reset orders nope --to earliest --yes": "LEDGER_CURSOR_NOT_FOUND",
    "cursors reset orders s --to latest": "LEDGER_NOT_CONFIRMED",
    "cursors skip orders s 1": "LEDGER_NOT_CONFIRMED",
    "producers list nope": "LEDGER_TOPIC_NOT_FOUND",
    "producers forget orders nobody --yes": "LEDGER_PRODUCER_NOT_FOUND",
    "tokens stats nope": "LEDGER_TOPIC_NOT_FOUND",
}


@pytest.fixture
def client(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA)
        client.create_cursor("orders", "s")
        with client.producer("orders") as producer:
            producer.send({"id": 1})
        yield client


def run(zookeeper, *arguments, stdin=None):
    return CliRunner().invoke(main, ["--zookeeper", zookeeper, *arguments], input=stdin)


def picture(client):
    return client.topics(), client.end("orders"), client.cursors("orders")[0].mark_delete, client.policies("orders")


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_line_with_a_code_and_changes_nothing_I16(client, command):
    before = picture(client)
    refused = run(client.zookeeper, *command.split(), stdin="no json\n")
    assert refused.exit_code == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"Error: [{BAD[command]}] ")
    assert picture(client) == before


def test_a_storage_that_cannot_be_written_takes_no_namespace(zookeeper, namespace, tmp_path):
    def create(storage):
        return run(namespace, "topics", "create", "orders", "--schema", "id int", "--storage", storage)

    refused = create("/proc/nope")
    assert refused.exit_code == 1
    assert "[LEDGER_STORAGE_UNAVAILABLE] cannot make the folder /proc/nope" in refused.stderr
    assert create(str(tmp_path / "good")).exit_code == 0


def test_up_with_a_storage_that_cannot_be_written_leaves_nothing_running(tmp_path, monkeypatch):
    monkeypatch.setenv("LEDGER_HOME", str(tmp_path / "home"))
    port = str(*_free_ports(1))
    refused = CliRunner().invoke(main, ["up", "--port", port, "--storage", "/proc/nope"])
    assert (refused.exit_code, "[LEDGER_STORAGE_UNAVAILABLE]" in refused.stderr) == (1, True)
    assert LocalHome().pid is None
    try:
        assert CliRunner().invoke(main, ["up", "--port", port]).exit_code == 0
    finally:
        LocalHome().stop()


def test_a_zookeeper_that_goes_away_in_the_middle_of_a_write_is_told_with_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr("pyspark_ledger.append.delivery.FLUSH_ROWS", 10)
    monkeypatch.setitem(open_namespace.__kwdefaults__, "timeout_s", 3.0)
    pipe = tmp_path / "lines"
    os.mkfifo(pipe)
    with LocalZooKeeper(fsync=False) as server:
        with LedgerClient(server.address, str(tmp_path / "storage")) as client:
            client.create_topic("orders", SCHEMA)

        def feed() -> None:
            lines = [json.dumps({"id": n}) + "\n" for n in range(40)]
            with pipe.open("w") as out:
                out.writelines(lines[:21])  # ten are written when the next one comes
                out.flush()
                with suppress(AssertionError):  # then the lines below tell
                    eventually(lambda: _written(server.address) >= 20)
                server.kill()
                out.writelines(lines[21:])

        feeding = threading.Thread(target=feed)
        feeding.start()
        failed = run(server.address, "topics", "write", "orders", str(pipe), "--producer", "f")
        feeding.join()
        assert failed.exit_code == 1
        (line,) = failed.stderr.splitlines()
        assert line.startswith("Error: [LEDGER_")
        assert "What is on lines 1 to 20 is in the log" in line
        server.restart()
        again = tmp_path / "again"
        again.write_text("".join(json.dumps({"id": n}) + "\n" for n in range(40)))
        assert run(server.address, "topics", "write", "orders", str(again), "--producer", "f").exit_code == 0
        assert _written(server.address) == 40


def _written(address: str) -> int:
    with LedgerClient(address) as client:
        return sum(1 for _ in client.reader("orders", end="latest"))
