"""Retention, gc, the end of a topic and what is left of deleted ones, as a user asks for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.cli import main
from pyspark_ledger.cli.base import Session
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace
from pyspark_ledger.files.nodefile import NodeFile
from pyspark_ledger.metadata.port import GcKey, HeadKey
from pyspark_ledger.metadata.records import Policies
from pyspark_ledger.zk_metadata import paths
from tests.support.commands import run_command
from tests.support.worlds import stage

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def client(namespace, storage_root):
    """Ten commits of one record, in ledgers of two."""
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", SCHEMA, key="k")
        client.set_policies("orders", snapshot_commits=2)
        for n in range(10):
            write(client, n)
        yield client


@pytest.fixture
def at_once(monkeypatch):
    """Commands for which every run of gc raises the epoch."""

    def eager(session: Session, storage: str | None = None) -> LedgerClient:
        return client_of(open_namespace(session.zookeeper, storage, limits=replace(DEFAULT_LIMITS, gc_grace_ms=0)))

    monkeypatch.setattr(Session, "client", eager)


def write(client: LedgerClient, n: int) -> None:
    with client.producer("orders") as producer:
        producer.send({"k": "a", "v": n})


def run(client, *arguments):
    return CliRunner().invoke(main, ["--zookeeper", client.zookeeper, *arguments])


def answer(client, *arguments):
    done = run(client, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def values(client: LedgerClient) -> list[int]:
    return [record["v"] for record in client.reader("orders", end="latest")]


# -- policies -------------------------------------------------------------------------------------------------------


def test_every_policy_is_set_and_shown_in_the_words_that_set_it(client):
    given = {
        "retention-age": "7d",
        "retention-bytes": "500GB",
        "backlog-quota": "100GB,7d",
        "backlog-action": "evict",
        "expire-subscriptions-after": "30d",
        "compact-after": "1g",
        "rewrite-below": "8000000",
    }
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    told = answer(client, "topics", "config", "set", "orders", *words)
    assert client.policies("orders") == Policies(
        snapshot_commits=2, retention_ms=7 * DAY_MS, retention_bytes=500 << 30, backlog_bytes=100 << 30,
        backlog_ms=7 * DAY_MS, evict_backlog=True, expire_subscriptions_ms=30 * DAY_MS, compact_after_bytes=1 << 30,
        rewrite_below_bytes=8_000_000,
    )  # fmt: skip
    shown = {name.replace("_", "-"): value for name, value in told.items() if name.replace("_", "-") in given}
    assert shown == {
        **given, "retention-bytes": "500GiB", "backlog-quota": "100GiB,7d", "compact-after": "1GiB",
        "rewrite-below": "8000000B",
    }  # fmt: skip
    assert answer(client, "topics", "config", "get", "orders") == told
    assert answer(client, "topics", "describe", "orders")["policies"] == told
    again = [word for name, value in shown.items() for word in (f"--{name}", value)]
    assert answer(client, "topics", "config", "set", "orders", *again) == told


def test_every_policy_can_be_taken_back(client):
    client.set_policies("orders", backlog_quota_bytes=1, compact_after_bytes=1)
    never = [
        word
        for name in ("retention-age", "retention-bytes", "backlog-quota", "expire-subscriptions-after", "compact-after",
                     "rewrite-below", "evict-producers-after")
        for word in (f"--{name}", "never")
    ]  # fmt: skip
    answer(client, "topics", "config", "set", "orders", *never)
    assert client.policies("orders") == Policies(snapshot_commits=2)


def test_a_quota_is_a_size_a_time_or_both_and_all_of_it_is_set(client):
    for quota, size, age in (
        ("100GB", 100 << 30, 0),
        ("7d", 0, 7 * DAY_MS),
        ("5m", 0, 300_000),
        ("1h,2MB", 2 << 20, 3_600_000),
        ("12", 12, 0),
    ):
        answer(client, "topics", "config", "set", "orders", "--backlog-quota", quota)
        policies = client.policies("orders")
        assert (policies.backlog_bytes, policies.backlog_ms) == (size, age), quota


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--retention-age", "7", "is no duration"),
        ("--retention-age", "0s", "is no time to keep anything"),
        ("--retention-age", "500GB", "is no duration"),
        ("--retention-age", "999999999d", "is no duration"),
        ("--retention-bytes", "7d", "is no size"),
        ("--retention-bytes", "0", "is no size"),
        ("--retention-bytes", "-5", "is no size"),
        ("--retention-bytes", "9223372036854775808", "is no size"),
        ("--retention-bytes", "8388608TB", "is no size"),
        ("--backlog-quota", "lots", "neither a size nor a time"),
        ("--backlog-quota", "100GB,", "neither a size nor a time"),
        ("--backlog-quota", "7d,never", "neither a size nor a time"),
        ("--backlog-quota", "1GB,2GB", "twice"),
        ("--backlog-quota", "1h,2m", "twice"),
        ("--backlog-action", "drop", "is not one of"),
        ("--expire-subscriptions-after", "soon", "is no duration"),
        ("--compact-after", "1.5GB", "is no size"),
        ("--rewrite-below", "8 PB", "is no size"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_with_its_option_before_anybody_is_asked(option, value, said):
    done = run_command(["topics", "config", "set", "orders", option, value])
    assert (done.exit_code, option in done.stderr, said in done.stderr) == (2, True, True), done.stderr


def test_a_policy_that_the_topic_cannot_have_is_refused_by_name(client):
    done = run(client, "topics", "config", "set", "orders", "--backlog-action", "evict")
    assert (done.exit_code, "LEDGER_INVALID_POLICY" in done.stderr) == (1, True)


# -- trim -----------------------------------------------------------------------------------------------------------


def test_a_trim_that_does_nothing_says_why_in_one_line(client):
    done = run(client, "topics", "trim", "orders")
    assert (done.exit_code, done.stdout) == (
        0,
        "orders: nothing was given up: the topic keeps everything: it has neither a retention age nor a retention "
        "size\n",
    )


def test_a_trim_gives_up_what_the_policies_say_and_names_who_holds_the_rest_I15(client):
    client.create_cursor("orders", "slow", "2:0:0")
    client.create_cursor("orders", "quick", "latest")
    client.set_policies("orders", retention_bytes=1)
    planned = answer(client, "topics", "trim", "orders", "--dry-run")
    assert (planned["records"], planned["dry_run"], values(client)) == (4, True, list(range(10)))
    done = answer(client, "topics", "trim", "orders")
    assert {**done, "dry_run": True} == planned
    assert (done["begin"], done["ledgers"], values(client)) == ("2:0:0", 2, list(range(4, 10)))
    assert [(hold["by"], hold["records"]) for hold in done["holds"]] == [("subscription 'slow'", 4)]
    again = run(client, "topics", "trim", "orders").stdout.splitlines()
    assert again[0] == "orders: nothing was given up: subscription 'slow' holds back 4 records"
    assert again[1].startswith("  subscription 'slow': 4 records, ")


def test_a_trim_by_hand_needs_yes(client):
    refused = run(client, "topics", "trim", "orders", "--before", "3:0:0")
    assert (refused.exit_code, "LEDGER_NOT_CONFIRMED" in refused.stderr, values(client)) == (1, True, list(range(10)))
    assert answer(client, "topics", "trim", "orders", "--before", "3:0:0", "--dry-run")["records"] == 6
    assert answer(client, "topics", "trim", "orders", "--before", "3:0:0", "--yes")["records"] == 6
    assert values(client) == list(range(6, 10))
    nothing = run(client, "topics", "trim", "orders", "--before", "3:0:0")
    assert (nothing.exit_code, "no other sealed ledger" in nothing.stdout) == (0, True)
    wrong = run(client, "topics", "trim", "orders", "--before", "tomorrow")
    assert (wrong.exit_code, "--before" in wrong.stderr) == (2, True)


def test_what_was_given_up_and_what_is_left_is_shown(client):
    head = namespace_of(client).log("orders").view().head
    client.trim("orders", before="2:0:0")
    told = answer(client, "topics", "describe", "orders")
    assert (told["begin"], told["records"], told["trimmed_records"], told["kept_records"]) == ("2:0:0", 10, 4, 6)
    assert told["trimmed_bytes"] + told["kept_bytes"] == told["bytes"] == head.bytes
    assert told["pending_deletion"] == ["ledgers 0 to 1"]
    assert (told["gc_epoch"], told["gc_epoch_age_seconds"] >= 0, told["terminated"]) == (0, True, None)
    assert [row["ledger"] for row in told["ledgers"]] == [2, 3, 4]
    assert "pending deletion" in run(client, "topics", "describe", "orders").stdout
    (row,) = answer(client, "topics", "list")
    assert (row["begin"], row["records"], row["kept_records"]) == ("2:0:0", 10, 6)
    assert row["kept_bytes"] == told["kept_bytes"]
    shown = run(client, "topics", "peek", "orders", "-n", "9", "--json").stdout.splitlines()
    assert [json.loads(line)["v"] for line in shown] == list(range(4, 10))


def test_a_topic_of_which_everything_sealed_was_given_up_is_described(client):
    client.trim("orders", before="latest")
    told = answer(client, "topics", "describe", "orders")
    assert [row["ledger"] for row in told["ledgers"]] == [4]


def test_subscriptions_show_how_much_they_hold_back(client):
    client.create_cursor("orders", "slow", "1:1:0")
    client.create_cursor("orders", "quick", "latest")
    rows = answer(client, "cursors", "list", "orders")
    assert {row["held_back_records"] for row in rows} == {0}
    client.set_policies("orders", retention_bytes=1)
    held = {row["subscription"]: row for row in answer(client, "cursors", "list", "orders")}
    assert (held["slow"]["held_back_records"], held["quick"]["held_back_records"]) == (6, 0)
    assert held["slow"]["held_back_bytes"] > 0
    assert "held back" in run(client, "cursors", "list").stdout


# -- gc -------------------------------------------------------------------------------------------------------------


def test_a_gc_that_comes_too_soon_says_so_in_one_line(client):
    done = run(client, "topics", "gc", "orders")
    assert done.exit_code == 0
    assert done.stdout.startswith("orders: nothing to do yet: gc epoch 0 began ")
    assert answer(client, "topics", "gc", "orders")["is_due"] is False


def test_gc_deletes_what_is_left_behind_and_a_dry_run_shows_it(client, at_once):
    uuid = client.create_topic("logs", SCHEMA).uuid
    file = stage(namespace_of(client).log("logs"), 666).file
    path = f"{uuid}/{file.epoch:08x}/{file.uid.hex()}.arrow"
    assert [answer(client, "topics", "gc", "logs")["deleted"] for _ in range(2)] == [0, 0]
    shown = run(client, "topics", "gc", "logs", "--dry-run")
    assert shown.stdout == f"logs: 1 files would be deleted\n  {path}\n"
    assert answer(client, "topics", "gc", "logs", "--dry-run")["files"] == [path]
    assert run(client, "topics", "gc", "logs").stdout == "logs: 1 files deleted, gc epoch 3 begins\n"


def test_gc_deletes_what_was_given_up_I12(client, at_once):
    client.trim("orders", before="3:0:0")
    deleted = sum(answer(client, "topics", "gc", "orders")["deleted"] for _ in range(4))
    assert deleted >= 6 + 3  # entries and leaves
    assert answer(client, "topics", "describe", "orders")["pending_deletion"] == []
    assert values(client) == list(range(6, 10))


def test_a_thorough_gc_finds_what_was_written_long_after_its_time(client, at_once, storage_root):
    for _ in range(4):
        answer(client, "topics", "gc", "orders")
    late = stage(namespace_of(client).log("orders"), 666, epoch=0).file
    done = answer(client, "topics", "gc", "orders", "--thorough")
    assert [Path(path).stem for path in done["files"]] == [late.uid.hex()]


# -- small files ----------------------------------------------------------------------------------------------------


def test_small_files_are_joined_and_told_of(client):
    shown = run(client, "topics", "rewrite", "orders", "--dry-run").stdout
    assert shown == "orders: 4 ledgers, 8 entries would be rewritten: 8 files become 4 or more\n"
    done = answer(client, "topics", "rewrite", "orders")
    assert (done["ledgers"], done["files_before"], done["files_after"], done["skipped"]) == (4, 8, 4, [])
    assert values(client) == list(range(10))
    again = run(client, "topics", "rewrite", "orders", "--everything", "--below", "1B")
    assert again.stdout == "orders: no ledger has files that are small enough to be worth it\n"


@pytest.mark.parametrize("option", ["--below", "--read-rate"])
@pytest.mark.parametrize("value", ["0", "7d", "never", "9223372036854775808"])
def test_a_size_for_rewriting_that_makes_no_sense_is_refused_with_its_option(option, value):
    done = run_command(["topics", "rewrite", "orders", option, value])
    assert (done.exit_code, option in done.stderr, "is no size" in done.stderr) == (2, True, True), done.stderr


# -- the end of a topic -----------------------------------------------------------------------------------------------


def test_a_topic_is_terminated_only_with_yes_and_once(client):
    refused = run(client, "topics", "terminate", "orders")
    assert (refused.exit_code, "add --yes" in refused.stderr) == (1, True)
    assert answer(client, "topics", "describe", "orders")["terminated"] is None
    assert run(client, "topics", "terminate", "orders", "--yes").stdout == "orders: terminated, it ends at 4:2:0\n"
    assert "was terminated before" in run(client, "topics", "terminate", "orders").stdout
    assert answer(client, "topics", "describe", "orders")["terminated"] is not None
    assert values(client) == list(range(10))


# -- a whole namespace ------------------------------------------------------------------------------------------------


def test_a_namespace_is_collected_and_told_of(client, at_once, storage_root):
    client.create_topic("idle", SCHEMA)
    gone = client.create_topic("gone", SCHEMA).uuid
    client.create_topic("logs", SCHEMA)
    stage(namespace_of(client).log("logs"), 666)
    client.delete_topic("gone")
    stranger = "00000000-0000-4000-8000-000000000000"
    (Path(storage_root) / stranger).mkdir()
    planned = answer(client, "namespace", "gc", "--dry-run")
    assert (planned["topics"], planned["dry_run"]) == (3, True)
    assert [(row["uuid"], row["over"]) for row in planned["deleted_topics"]] == [(gone, True)]
    assert (Path(storage_root) / gone).exists()
    first = run(client, "namespace", "gc")
    assert (first.exit_code, stranger in first.stdout, "--remove-folder" in first.stderr) == (0, True, True)
    assert not (Path(storage_root) / gone).exists()
    answer(client, "namespace", "gc")
    done = answer(client, "namespace", "gc")
    rows = {row["topic"]: row["deleted_files"] for row in done["topics_with_garbage"]}
    assert (rows["logs"], "idle" in rows) == (1, False)
    assert (done["deleted_files"], done["errors"], done["deleted_topics"]) == (sum(rows.values()), 0, [])
    assert done["unknown_folders"] == [{"uuid": stranger}]


def test_a_topic_that_cannot_be_collected_does_not_stop_the_others_and_is_exit_status_one(client, at_once):
    uuid = client.create_topic("broken", SCHEMA).uuid
    zookeeper = KazooClient(client.zookeeper)
    zookeeper.start()
    zookeeper.set(paths.path(GcKey(uuid)), b"\xff\xff")
    zookeeper.stop()
    done = run(client, "namespace", "gc", "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["errors"]) == (1, 1)
    assert "LEDGER_CORRUPT_DATA" in told["topics_with_garbage"][0]["error"]
    assert namespace_of(client).log("orders").refresh(sync=True).head.gc_epoch == 1


def test_an_unknown_folder_is_removed_only_if_it_is_named_and_with_yes_I12(client, storage_root):
    stranger = "00000000-0000-4000-8000-000000000000"
    folder = Path(storage_root) / stranger
    folder.mkdir()
    (folder / "file").write_bytes(b"12345")
    refused = run(client, "namespace", "gc", "--remove-folder", stranger)
    assert (refused.exit_code, "LEDGER_NOT_CONFIRMED" in refused.stderr, "5 B" in refused.stdout) == (1, True, True)
    run(client, "namespace", "gc", "--remove-folder", stranger, "--yes", "--dry-run")
    assert folder.exists()
    assert answer(client, "namespace", "gc", "--remove-folder", stranger, "--yes")["files"] == 1
    assert not folder.exists()
    for name, code in ((client.topic("orders").uuid, "LEDGER_FOLDER_IN_USE"), ("..", "LEDGER_INVALID_FOLDER")):
        refused = run(client, "namespace", "gc", "--remove-folder", name, "--yes")
        assert (refused.exit_code, code in refused.stderr) == (1, True)
    assert values(client) == list(range(10))


# -- many topics ------------------------------------------------------------------------------------------------------


def test_a_long_list_of_topics_can_be_cut_short(client):
    for name in ("a1", "a2", "b1"):
        client.create_topic(name, SCHEMA)

    def listed(*arguments: str) -> list[str]:
        return [row["topic"] for row in answer(client, "topics", "list", *arguments)]

    assert listed() == ["a1", "a2", "b1", "orders"]
    assert listed("--prefix", "a") == ["a1", "a2"]
    assert listed("--limit", "3") == ["a1", "a2", "b1"]
    assert listed("--prefix", "a", "--limit", "1") == ["a1"]
    assert listed("--prefix", "nothing") == []
    for wrong in ("0", "-1", "many"):
        assert run(client, "topics", "list", "--limit", wrong).exit_code == 2


# -- backup -----------------------------------------------------------------------------------------------------------


def test_everything_but_the_data_is_backed_up_into_a_file(client, tmp_path, storage_root):
    client.create_cursor("orders", "billing")
    client.tokens("orders", "group").mint()
    file = tmp_path / "all.ledger-backup"
    done = answer(client, "namespace", "backup", str(file))
    [topic] = done["topics"]
    assert (topic["topic"], topic["last_commit"], topic["records"]) == ("orders", 9, 10)
    assert (topic["subscriptions"], topic["token_groups"], done["entities"]) == (1, 1, 0)
    assert (done["contains_data_files"], done["storage"]) == (False, namespace_of(client).storage.uri)
    found = NodeFile.from_bytes(file.read_bytes(), "it")
    assert f"/logs/{client.topic('orders').uuid}/head" in found.nodes
    refused = run(client, "namespace", "backup", str(file))
    assert (refused.exit_code, "LEDGER_FILE_EXISTS" in refused.stderr) == (1, True)
    said = run(client, "namespace", "backup", str(file), "--overwrite")
    assert (said.exit_code, "does not contain the data files" in said.stderr) == (0, True)


def test_a_backup_of_a_damaged_topic_says_so_and_fails(client, namespace, tmp_path):
    client.create_topic("well", SCHEMA)
    address, _, chroot = namespace.partition("/")
    with_kazoo = KazooClient(address)
    with_kazoo.start()
    head = paths.path(HeadKey(client.topic("orders").uuid))
    with_kazoo.set(f"/{chroot}{head}", b"\xff\xff")
    with_kazoo.stop()
    with_kazoo.close()
    done = run(client, "namespace", "backup", str(tmp_path / "all"), "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert ([each["what"] for each in told["failed"]], [each["topic"] for each in told["topics"]]) == (
        ["orders"],
        ["well"],
    )
