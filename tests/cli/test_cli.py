"""The command line, as a user calls it."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from pyspark_ledger.base import clock
from pyspark_ledger.cli import main
from pyspark_ledger.cli import topics as cli_topics
from pyspark_ledger.cli.topics import _sentence
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.compaction import plan
from pyspark_ledger.compaction.run import compacting
from pyspark_ledger.errors import NotFound
from pyspark_ledger.metadata.port import HeadKey
from pyspark_ledger.metadata.records import Policies
from pyspark_ledger.zk_metadata import paths
from tests.support import REPOSITORY, interruptible

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture
def client(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA, key="k")
        with client.producer("orders") as producer:
            for n in range(100):
                producer.send({"k": f"k{n % 10}", "v": n})
        yield client


def run(client, *arguments):
    return CliRunner().invoke(main, ["--zookeeper", client.zookeeper, *arguments])


def answer(client, *arguments):
    done = run(client, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_topics_are_listed(client):
    client.create_topic("empty", SCHEMA)
    listed = answer(client, "topics", "list")
    assert [(row["topic"], row["records"], row["end"], row["key"]) for row in listed] == [
        ("empty", 0, "0:0:0", ""),
        ("orders", 100, "0:1:0", "k"),
    ]
    lines = run(client, "topics", "list").stdout.splitlines()
    assert lines[0].split()[:3] == ["topic", "records", "size"]
    assert lines[2].split()[:2] == ["orders", "100"]


def test_a_topic_that_cannot_be_read_is_a_row_with_an_error_and_exit_status_one(client):
    uuid = client.create_topic("broken", SCHEMA).uuid
    zookeeper = KazooClient(client.zookeeper)
    zookeeper.start()
    zookeeper.set(paths.path(HeadKey(uuid)), b"\xff\xff")
    zookeeper.stop()
    listed = run(client, "topics", "list", "--json")
    broken, orders = json.loads(listed.stdout)
    assert (listed.exit_code, orders["records"]) == (1, 100)
    assert "LEDGER_CORRUPT_DATA" in broken["error"]


def test_a_namespace_without_topics_and_one_without_a_server(namespace):
    assert CliRunner().invoke(main, ["topics", "list", "--zookeeper", namespace]).stdout == "no topics\n"
    nobody = CliRunner().invoke(main, ["topics", "list", "--zookeeper", "127.0.0.1:1"])
    assert nobody.exit_code == 1
    assert "pyspark-ledger up" in nobody.stderr


def test_describe_tells_schema_ledgers_rates_deduplication_and_compaction(client):
    client.set_policies("orders", snapshot_commits=2)
    client.create_cursor("orders", "billing")
    for n in range(3):
        time.sleep(0.01)
        with client.producer("orders", name="web") as producer:
            producer.send({"k": "a", "v": n})
    client.compact("orders")
    told = answer(client, "topics", "describe", "orders")
    assert told["schema"] == [
        {"column": "k", "type": "string", "null": True},
        {"column": "v", "type": "bigint", "null": True},
    ]
    assert [(row["ledger"], row["state"], row["commits"], row["records"]) for row in told["ledgers"]] == [
        (0, "sealed", 2, 101),
        (1, "open", 2, 2),
    ]
    assert sum(row["bytes"] for row in told["ledgers"]) == told["bytes"]
    assert (told["rate"]["over_commits"], told["rate"]["over_seconds"] > 0) == (1, True)
    assert (told["deduplication"], told["producers"], told["policies"]["snapshot_commits"]) == (True, 1, 2)
    assert (told["compaction"]["records"], told["compaction"]["records_before"]) == (11, 103)
    assert told["subscriptions"] == ["billing"]
    newest = answer(client, "topics", "describe", "orders", "--ledgers", "1")
    assert [row["ledger"] for row in newest["ledgers"]] == [1]
    assert "sealed" in run(client, "topics", "describe", "orders").stdout


def test_a_topic_is_made_from_sql_types_and_deleted_only_with_yes(client):
    made = answer(client, "topics", "create", "sales", "--schema", "id bigint not null, n decimal(9,2)", "--key", "id")
    assert client.topic("sales").uuid == made["uuid"]
    assert client.topic("sales").key == "id"
    again = run(client, "topics", "create", "sales", "--schema", "id bigint")
    expected = "Error: [LEDGER_TOPIC_EXISTS] topic 'sales' exists already: use it, or choose another name\n"
    assert (again.exit_code, again.stderr) == (1, expected)

    refused = run(client, "topics", "delete", "orders")
    assert (refused.exit_code, "100" in refused.stdout, "add --yes" in refused.stderr) == (1, True, True)
    assert client.topics() == ["orders", "sales"]
    assert answer(client, "topics", "delete", "orders", "--yes")["records"] == 100
    assert client.topics() == ["sales"]


def test_policies_are_shown_and_changed_one_by_one(client):
    told = answer(client, "topics", "config", "get", "orders")
    assert (told["deduplication"], told["snapshot_commits"], told["evict_producers_after"]) == (
        "default",
        "default",
        "never",
    )
    answer(client, "topics", "config", "set", "orders", "--evict-producers-after", "36h")
    told = answer(client, "topics", "config", "set", "orders", "--deduplication", "false", "--snapshot-commits", "50")
    assert (told["deduplication"], told["snapshot_commits"], told["evict_producers_after"]) == (False, 50, "36h")
    assert client.policies("orders") == Policies(False, 50, 36 * 3600 * 1000)
    answer(
        client, "topics", "config", "set", "orders", "--evict-producers-after", "never", "--deduplication", "default"
    )
    assert client.policies("orders") == Policies(None, 50, 0)
    wrong = run(client, "topics", "config", "set", "orders", "--snapshot-commits", "-1")
    assert (wrong.exit_code, "LEDGER_INVALID_POLICY" in wrong.stderr) == (1, True)
    assert run(client, "topics", "config", "set", "orders").exit_code == 2
    assert "did you mean 'orders'?" in run(client, "topics", "config", "get", "order").stderr


def test_a_topic_is_compacted_and_told_of(client):
    done = run(client, "topics", "compact", "orders")
    assert (done.exit_code, done.stdout.splitlines()[-1].startswith("orders: generation 1, 10 of 100 records")) == (
        0,
        True,
    )
    again = run(client, "topics", "compact", "orders", "--json")
    told = json.loads(again.stdout)
    assert (told["generation"], told["records"], told["horizon"]) == (1, 10, "0:1:0")


def test_an_error_is_one_line_and_exit_status_one(client):
    failed = run(client, "topics", "compact", "order")
    assert failed.exit_code == 1
    assert failed.stderr.strip() == (
        "Error: [LEDGER_TOPIC_NOT_FOUND] there is no topic 'order' in this namespace: did you mean 'orders'?"
    )
    wrong = run(client, "topics", "compact", "orders", "--every", "soon")
    assert (wrong.exit_code, "write 30s, 10m, 1h or 7d" in wrong.stderr) == (2, True)
    for option in ("--read-rate", "--write-rate"):
        wrong = run(client, "topics", "compact", "orders", option, "0")
        assert (wrong.exit_code, f"'{option}': 0.0 is not in the range x>0" in wrong.stderr) == (2, True)


def test_an_empty_topic_has_nothing_to_compact(client):
    client.create_topic("empty", SCHEMA, key="k")
    assert run(client, "topics", "compact", "empty").stdout == "empty: nothing to compact\n"
    with compacting(namespace_of(client).log("empty")):  # a first run of another process
        stats = client.compaction("empty")
    assert (stats.generation, _sentence("empty", stats)) == (0, "empty: nothing to compact")


def test_it_runs_again_and_again_until_interrupted(client):
    command = [
        sys.executable,
        "-m",
        "pyspark_ledger.cli",
        "--zookeeper",
        client.zookeeper,
        "topics",
        "compact",
        "orders",
    ]
    daemon = subprocess.Popen(
        [*command, "--every", "0.2s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    assert "generation 1" in daemon.stdout.readline()
    with client.producer("orders") as producer:
        producer.send({"k": "new", "v": 1})
    deadline = time.monotonic() + 30
    while client.compaction("orders").generation < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    daemon.send_signal(signal.SIGINT)
    _, error = daemon.communicate(timeout=30)
    assert daemon.returncode == 1
    assert "Traceback" not in error


def test_it_goes_on_after_there_were_too_many_generations(client, monkeypatch):
    """Until gc has deleted some: with --every that is told, and tried again."""
    rounds = []
    monkeypatch.setattr(plan, "kept", lambda *_: [None] * (1_001 if len(rounds) < 2 else 1))

    class Clock(clock.SystemClock):
        def sleep(self, seconds):
            rounds.append(seconds)
            if len(rounds) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(cli_topics, "SYSTEM_CLOCK", Clock())
    done = run(client, "topics", "compact", "orders", "--every", "10m")
    assert done.stderr.count("[LEDGER_TOO_MANY_GENERATIONS] topic 'orders' has 1000 older compacted generations") == 2
    assert "generation 1" in done.stdout


@pytest.mark.spark
def test_the_spark_engine_compacts_too(spark, client):
    done = run(client, "topics", "compact", "orders", "--engine", "spark", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["records"] == 10


def test_tracebacks_are_for_those_who_ask(client):
    failed = run(client, "topics", "describe", "nothing", "--verbose")
    assert isinstance(failed.exception, NotFound)


def test_no_command_that_needs_no_files_loads_pyarrow_and_none_loads_spark(client):
    program = (
        "import sys; from pyspark_ledger.cli import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "print([name for name in ('pyarrow', 'pyspark', 'pandas', 'rich') if name in sys.modules])"
    )

    def loaded(*arguments):
        command = [sys.executable, "-c", program, "--zookeeper", client.zookeeper, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]

    assert loaded("topics", "list", "--json") == "[]"
    assert loaded("topics", "list") == "['rich']"
    assert loaded("topics", "config", "get", "orders", "--json") == "[]"
    assert loaded("topics", "describe", "orders", "--json") == "['pyarrow']"


DOCUMENTED = [
    (file.name, line)
    for file in sorted((REPOSITORY / "docs").glob("*.md"))
    for line in re.findall(r"^(pyspark-ledger .*)$", file.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize(("file", "line"), DOCUMENTED)
def test_every_command_line_in_the_docs_is_one(file, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("orders.csv", "orders.jsonl", "orders.parquet"):
        (tmp_path / name).touch()
    words = shlex.split(line.partition(" | ")[0], comments=True)[1:]
    command, context = main, click.Context(main)
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(context, words)
        context = click.Context(command, context, info_name=name)
    command.parse_args(context, words)


def test_the_docs_show_every_command():
    shown = {tuple(shlex.split(line, comments=True)[1:]) for _, line in DOCUMENTED}

    def leaves(group, path=()):
        for name, command in group.commands.items():
            yield from leaves(command, (*path, name)) if isinstance(command, click.Group) else [(*path, name)]

    assert [path for path in leaves(main) if not any(line[: len(path)] == path for line in shown)] == []


def test_help_says_what_each_command_does():
    text = CliRunner().invoke(main, ["topics", "compact", "--help"]).stdout
    for word in ("--engine", "--read-rate", "--write-rate", "--every", "readCompacted"):
        assert word in text
