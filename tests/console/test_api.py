"""The API says what is there, and says by name what was asked wrongly."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from unittest.mock import Mock

import pyarrow as pa
import pytest

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.names import this_process
from pyspark_ledger.client import LedgerClient, client_of, namespace_of
from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.console.api import changes, reads
from pyspark_ledger.console.changing import POLICIES
from pyspark_ledger.log import locks
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support.console import TOKEN, Console, running

SCHEMA = pa.schema(
    [("k", pa.string()), ("n", pa.int64()), ("price", pa.decimal128(10, 2)), ("at", pa.timestamp("us", "UTC"))]
)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[LedgerClient]:
    root = str(tmp_path_factory.mktemp("console"))
    namespace = OpenNamespace(MemoryMetadata(MemoryServer()), root, limits=Limits(commits_per_ledger=4))
    with client_of(namespace) as client:
        client.create_topic("orders", SCHEMA, key="k")
        for commit in range(10):
            with client.producer("orders", name="shop") as producer:
                for n in range(10 * commit, 10 * commit + 10):
                    value = {"k": f"k{n % 7}", "n": n, "price": None, "at": NOON + timedelta(minutes=n)}
                    producer.send(value, n)
        client.create_cursor("orders", "billing")
        client.create_cursor("orders", "shipping", "latest")
        client.create_topic("empty", pa.schema([("v", pa.int64())]))
        client.create_topic("versioned", pa.schema([("k", pa.int64()), ("v", pa.string()), ("version", pa.int64())]),
                            key="k", version_column="version")  # fmt: skip
        yield client


@pytest.fixture(scope="module")
def console(client) -> Iterator[Console]:
    with running(namespace_of(client)) as console:
        yield console


def numbers(answer) -> list[int]:
    return [record["value"]["n"] for record in answer.json["records"]]


# -- what is there --------------------------------------------------------------------------------------------------


def test_a_subscription_shows_where_its_dead_letters_are(tmp_path):
    with client_of(OpenNamespace(MemoryMetadata(MemoryServer()), str(tmp_path))) as client:
        client.create_topic("jobs", pa.schema([("n", pa.int64())]))
        client.create_cursor("jobs", "other")
        with client.producer("jobs") as producer:
            producer.send({"n": 7})
        with running(namespace_of(client)) as console:
            assert "No topic here is for dead letters" in console.ask("/topics/jobs/subscriptions/other").text
        with client.consumer("jobs", "work", max_redeliveries=0, dead_letter_topic="dead",
                             redelivery_delay_s=0.0) as consumer:  # fmt: skip
            consumer.negative_acknowledge(consumer.receive(5.0))
            assert consumer.receive(0.5) is None
        with running(namespace_of(client)) as console:
            found = console.api("/topics/jobs/subscriptions/work").json["dead_letter_topics"]
            assert found == [{"topic": "dead", "waiting": 1}]
            page = console.ask("/topics/jobs/subscriptions/work").text
            (link,) = re.findall(r'href="(/topics/dead/records[^"]*)"', page)
            assert json.dumps({"n": 7}) in unescape(console.ask(unescape(link)).text)
            other = console.api("/topics/dead/records", column="subscription", value="other").json
            assert other["records"] == []
            assert console.api("/topics/dead").json["waiting_letters"] == 1


def test_the_overview_counts_and_says_that_nobody_leads_maintenance(console):
    told = console.api("/overview").json
    assert (told["topics"], told["subscriptions"], told["kept_records"]) == (3, 2, 100)
    assert told["zookeeper"]["well"]
    assert told["storage"]["well"]
    assert "MaintenanceNotLeading" in [alarm["code"] for alarm in told["alarms"]]


def test_topics_are_searched_sorted_and_paged(console):
    assert [t["topic"] for t in console.api("/topics").json["topics"]] == ["empty", "orders", "versioned"]
    by_size = console.api("/topics", sort="records", descending="true", limit=1).json
    assert [t["topic"] for t in by_size["topics"]] == ["orders"]
    assert by_size["found"] == 3
    (row,) = console.api("/topics", search="ORD").json["topics"]
    assert row["slowest"]["subscription"] == "billing"
    assert row["slowest"]["backlog_records"] == 100
    assert sum(row["last_hour"]) == 100
    assert row["records_per_second"] == pytest.approx(100 / 300)


def test_topics_that_nobody_looked_at_are_sorted_by_their_rates_too(client):
    with running(namespace_of(client), look_every_s=600.0) as console:
        told = console.api("/topics", sort="rate", descending="true").json["topics"]
        assert told[0]["topic"] == "orders"
        assert told[0]["records_per_second"] > 0


def test_who_compacts_and_how_far_he_is_is_told_while_it_runs(console, client, monkeypatch):
    with compaction.compacting(namespace_of(client).log("orders")) as tell:
        tell("reading", 10, 100)
        told = console.api("/topics/orders/compaction").json
        assert (told["running_by"], told["progress"]) == (this_process(), "")  # it has only just begun
        assert told["running_since"]
        monkeypatch.setattr(locks, "_TOLD_EVERY_S", 0.0)
        tell("writing", 1_000, 20_000)
        told = console.api("/topics/orders/compaction").json
        assert (told["running_by"], told["progress"]) == (this_process(), "writing 1,000 of 20,000 records")
        assert "writing 1,000 of 20,000 records" in console.ask("/topics/orders/compaction").text
    assert console.api("/topics/orders/compaction").json["progress"] is None
    assert console.api("/topics/orders/compaction").json["running_by"] is None


def test_a_topic_is_one_bar_from_its_begin_to_its_end(console):
    bar = console.api("/topics/orders").json["bar"]
    assert (bar["begin"], bar["end"]) == (0, 100)
    assert [(each["from"], each["to"], each["open"]) for each in bar["ledgers"]] == [
        (0, 40, False), (40, 80, False), (80, 100, True)
    ]  # fmt: skip
    assert {mark["subscription"]: mark["at"] for mark in bar["subscriptions"]} == {"billing": 0, "shipping": 100}


@pytest.mark.parametrize("range", ["15m", "1h", "24h", "all"])
def test_what_came_when_adds_up_over_sealed_ledgers_too(console, range):
    buckets = console.api("/topics/orders/rates", range=range, parts=7).json["buckets"]
    assert len(buckets) == 7
    assert sum(bucket["records"] for bucket in buckets) == 100
    assert buckets[-1]["total_records"] == 100


def test_records_go_from_the_newest_backwards_and_from_a_place_forwards(console):
    last = console.api("/topics/orders/records", limit=5)
    assert numbers(last) == [95, 96, 97, 98, 99]
    before = console.api("/topics/orders/records", limit=5, backwards="true", **{"from": last.json["previous"]})
    assert numbers(before) == [90, 91, 92, 93, 94]
    first = console.api("/topics/orders/records", limit=7, **{"from": "earliest"})
    assert numbers(first) == list(range(7))
    assert first.json["previous"] is None
    after = console.api("/topics/orders/records", limit=7, **{"from": first.json["next"]})
    assert numbers(after) == list(range(7, 14))


def test_records_are_found_by_the_time_when_they_were_published(console):
    assert numbers(console.api("/topics/orders/records", limit=1, **{"from": "2000-01-01T00:00:00Z"})) == [0]
    published = console.api("/topics/orders/records/1:2:0").json["publish_time"]
    found = console.api("/topics/orders/records", limit=1, **{"from": published}).json["records"]
    assert [record["publish_time"] for record in found] == [published]


def test_a_page_that_cannot_show_records_says_why_and_not_that_there_are_none(console):
    page = console.ask("/topics/orders/records?column=n&value=one").text
    assert "LEDGER_INVALID_PARAMETER" in page
    assert "No records here" not in page


def test_pages_forwards_and_backwards_have_each_record_once(console):
    for backwards in ("", "true"):
        found, place = [], "latest" if backwards else "earliest"
        while place is not None:
            page = console.api("/topics/orders/records", limit=9, backwards=backwards, **{"from": place}).json
            some = [record["value"]["n"] for record in page["records"]]
            found = [*some, *found] if backwards else [*found, *some]
            place = page["previous" if backwards else "next"]
        assert found == list(range(100))


@pytest.mark.parametrize(
    ("column", "operator", "value", "wanted"),
    [
        ("n", "=", "42", [42]), ("n", ">=", "98", [98, 99]), ("n", "<", "2", [0, 1]), ("k", "=", "k3", [94]),
        ("k", "starts with", "k3", [94]), ("k", "contains", "3", [94]), ("price", "is not null", "", []),
        ("at", "=", "2026-01-31T12:05:00Z", [5]), ("k", "!=", "k3", [99]), ("n", "<=", "0", [0]),
        ("n", ">", "98", [99]),
        ("price", "is null", "", [99]),
    ],
)  # fmt: skip
def test_a_filter_compares_one_column_with_a_value(console, column, operator, value, wanted):
    found = console.api("/topics/orders/records", column=column, operator=operator, value=value)
    assert found.json["looked"] == 100
    assert numbers(found)[-len(wanted) :] == wanted if wanted else numbers(found) == []


def test_a_filtered_page_forwards_goes_on_where_it_ended(console):
    query = {"column": "k", "operator": "=", "value": "k1", "limit": 3}
    one = console.api("/topics/orders/records", **query, **{"from": "earliest"})
    other = console.api("/topics/orders/records", **query, **{"from": one.json["next"]})
    assert numbers(one) == [1, 8, 15]
    assert numbers(other) == [22, 29, 36]


def test_a_record_has_a_link_of_its_own(console):
    record = console.api("/topics/orders/records/0:1:3").json
    assert record["value"]["n"] == 13
    assert (record["producer"], record["sequence_id"], record["ordinal"]) == ("shop", 13, 13)
    assert console.api("/topics/orders/records/9:0:0").code == "LEDGER_RECORD_NOT_FOUND"


def test_commits_are_told_from_the_newest_on(console):
    told = console.api("/topics/orders/commits", limit=4).json
    assert [commit["commit"] for commit in told["commits"]] == [9, 8, 7, 6]
    assert told["commits"][0]["producer"] == "shop"
    assert (told["older"], told["newer"]) == (6, None)
    rest = console.api("/topics/orders/commits", limit=50, before=6).json
    assert [commit["commit"] for commit in rest["commits"]] == [5, 4, 3, 2, 1, 0]
    assert rest["older"] is None


def test_producers_schemas_tokens_and_outboxes_are_told(console, client):
    (producer,) = console.api("/topics/orders/producers").json["producers"]
    assert (producer["producer"], producer["sequence_id"]) == ("shop", 99)
    (schema,) = console.api("/topics/orders/schemas").json
    assert schema["ddl"] == "k string, n bigint, price decimal(10,2), at timestamp"
    client.tokens("orders", "invoices").mint(3)
    (group,) = console.api("/topics/orders/tokens").json["groups"]
    assert (group["group"], group["in_flight"]) == ("invoices", 3)
    assert console.api("/outboxes").json == []


# -- the state of a key ---------------------------------------------------------------------------------------------


def test_the_state_of_a_key_is_its_last_record_before_and_after_a_compaction(console, client):
    wanted = {n % 7: n for n in range(100)}
    for _ in range(2):
        for number, last in wanted.items():
            told = console.api("/topics/orders/key", key=f"k{number}").json
            assert told["record"]["value"]["n"] == last
            assert told["complete"]
        client.compact("orders")
    assert told["generation"] == 1
    assert console.api("/topics/orders/compaction").json["generations"][0]["records"] == 7


def test_a_deleted_key_is_told_and_versions_count_anew_after_it(console, client):
    def send(*values):
        with client.producer("versioned") as producer:
            for value in values:
                producer.send(dict(zip(("k", "v", "version"), value, strict=True)))

    def told():
        return console.api("/topics/versioned/key", key="1").json

    send((1, "new", 7), (1, "late", 3))
    assert told()["record"]["value"]["v"] == "new"
    send((1, None, None))
    assert (told()["record"], told()["deleted"]) == (None, True)
    client.compact("versioned")
    assert told()["record"] is None
    send((1, "again", 1))
    assert told()["record"]["value"]["v"] == "again"


def test_keys_that_are_no_plain_numbers_are_found(console, client):
    client.create_topic("floats", pa.schema([("k", pa.float64()), ("v", pa.string())]), key="k")
    with client.producer("floats") as producer:
        for key, value in ((-0.0, "zero"), (float("nan"), "none")):
            producer.send({"k": key, "v": value})
    for key, value in (("0", "zero"), ("nan", "none")):
        assert console.api("/topics/floats/key", key=key).json["record"]["value"]["v"] == value
    client.delete_topic("floats")


# -- what was asked wrongly -----------------------------------------------------------------------------------------

WRONG = {
    "/nowhere": (404, "LEDGER_NOT_FOUND"),
    "/overview?x=1": (400, "LEDGER_UNKNOWN_PARAMETER"),
    "/topics?sort=size": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics?limit=0": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics?offset=-1": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics?descending=maybe": (400, "LEDGER_INVALID_PARAMETER"),
    "/queries?x=1": (400, "LEDGER_UNKNOWN_PARAMETER"),
    "/outboxes?x=1": (400, "LEDGER_UNKNOWN_PARAMETER"),
    "/topics/oders": (404, "LEDGER_TOPIC_NOT_FOUND"),
    "/topics/..": (400, "LEDGER_INVALID_TOPIC_NAME"),
    "/topics/orders/rates?range=1y": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics/orders/rates?parts=1000": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics/orders/records?from=tomorrow": (400, "LEDGER_INVALID_POSITION"),
    "/topics/orders/records?limit=1e3": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics/orders/records?column=m&value=1": (400, "LEDGER_COLUMN_NOT_FOUND"),
    "/topics/orders/records?column=n&value=one": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics/orders/records?column=n&value=99999999999999999999": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics/orders/records?column=at&value=noon": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics/orders/records?column=n&operator=like&value=1": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics/orders/records?column=n&operator=contains&value=1": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics/orders/records?value=1": (400, "LEDGER_MISSING_PARAMETER"),
    "/topics/orders/records?colum=n": (400, "LEDGER_UNKNOWN_PARAMETER"),
    "/topics/orders/records/17": (400, "LEDGER_INVALID_POSITION"),
    "/topics/orders/key": (400, "LEDGER_MISSING_PARAMETER"),
    "/topics/empty/key?key=1": (400, "LEDGER_NOT_COMPACTABLE"),
    "/topics/orders/commits?before=x": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics/oders/schemas": (404, "LEDGER_TOPIC_NOT_FOUND"),
    "/topics/oders/producers": (404, "LEDGER_TOPIC_NOT_FOUND"),
    "/topics/oders/tokens": (404, "LEDGER_TOPIC_NOT_FOUND"),
    "/topics/oders/compaction": (404, "LEDGER_TOPIC_NOT_FOUND"),
    "/topics/oders/subscriptions": (404, "LEDGER_TOPIC_NOT_FOUND"),
    "/topics/orders/subscriptions/biling": (404, "LEDGER_CURSOR_NOT_FOUND"),
    "/topics/orders/subscriptions/billing/preview": (400, "LEDGER_INVALID_PARAMETER"),
    "/topics/orders/subscriptions/billing/preview?action=reset": (400, "LEDGER_MISSING_PARAMETER"),
    "/topics/orders/subscriptions/billing/preview?action=reset&to=x": (400, "LEDGER_INVALID_POSITION"),
    "/topics/orders/subscriptions/billing/preview?action=skip": (400, "LEDGER_MISSING_PARAMETER"),
    "/topics/orders/subscriptions/billing/preview?action=skip&records=-5": (400, "LEDGER_INVALID_PARAMETER"),
}


@pytest.mark.parametrize("path", WRONG)
def test_what_was_asked_wrongly_is_told_by_name(console, path):
    answer = console.ask(f"/api/v1{path}")
    assert (answer.status, answer.code) == WRONG[path]
    assert len(answer.json["error"]["message"]) > 20


def test_every_endpoint_was_asked_wrongly():
    asked = {path.partition("?")[0] for path in WRONG} | {path for path, *_ in WRONG_CHANGES.values()}
    for template in (*reads(Mock(), Mock()), *changes(Mock())):
        pattern = re.sub(r"\{\w+\}", "*", template)
        assert any(fits(pattern, path) for path in asked), template


def fits(pattern: str, path: str) -> bool:
    ours, theirs = pattern.split("/"), path.split("/")
    return len(ours) == len(theirs) and all(one in ("*", other) for one, other in zip(ours, theirs, strict=True))


# -- changes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def audit(tmp_path):
    return tmp_path / "audit.jsonl"


@pytest.fixture
def changing(client, audit) -> Iterator[Console]:
    client.cursor("orders", "billing").reset("earliest")
    with running(
        namespace_of(client), allow_changes=True, token=TOKEN, audit_log=audit, allow_test_records=True
    ) as console:
        yield console
    client.cursor("orders", "billing").reset("earliest")  # as it was: nothing depends on the order of tests


SUBSCRIPTION = "/topics/orders/subscriptions/billing"


def test_a_reset_is_previewed_confirmed_done_and_noted(changing, client, audit):
    would = changing.api(f"{SUBSCRIPTION}/preview", action="reset", to="1:0:0").json
    assert (would["skipped_records"], would["repeated_records"], would["to"]) == (40, 0, "1:0:0")
    assert client.cursor("orders", "billing").stats().backlog_records >= 100
    body = {"to": "1:0:0", "confirm": "billing", "revision": would["revision"]}
    did = changing.post(f"{SUBSCRIPTION}/reset", body)
    assert did.status == 200
    assert did.json["position"] == "1:0:0"
    assert str(client.cursor("orders", "billing").stats().mark_delete) == "1:0:0"
    assert changing.api(SUBSCRIPTION).json["records_before"] == 40
    begins, done = (json.loads(line) for line in audit.read_text().splitlines())
    assert (begins["outcome"], done["outcome"]) == ("begins", "done")
    assert begins["id"] == done["id"]
    assert done["who"] == "bearer of the token"
    assert (done["topic"], done["subscription"], done["to"], done["position"]) == (
        "orders",
        "billing",
        "1:0:0",
        "1:0:0",
    )
    assert TOKEN not in audit.read_text()


def test_skip_clear_rewind_and_redeliver_do_what_their_preview_says(changing, client):
    for action, body in (("skip", {"records": 7}), ("rewind", {}), ("redeliver", {}), ("clear-backlog", {})):
        before = client.cursor("orders", "billing").stats()
        would = changing.api(f"{SUBSCRIPTION}/preview", action=action, **body).json
        did = changing.post(f"{SUBSCRIPTION}/{action}", {**body, "confirm": "billing"})
        assert did.status == 200
        after = client.cursor("orders", "billing").stats()
        assert before.backlog_records - after.backlog_records == would["skipped_records"]
        assert after.revision == before.revision + 1


def test_the_same_operation_is_done_once(changing, client):
    body = {"records": 5, "confirm": "billing", "operation_id": "ab" * 16, "revision": 0}
    body["revision"] = client.cursor("orders", "billing").stats().revision
    first, second = (changing.post(f"{SUBSCRIPTION}/skip", body).json for _ in range(2))
    assert first == second
    assert client.cursor("orders", "billing").stats().revision == body["revision"] + 1


def test_who_confirms_what_is_no_longer_so_changes_nothing(changing, client):
    seen = changing.api(f"{SUBSCRIPTION}/preview", action="clear-backlog").json["revision"]
    client.cursor("orders", "billing").skip(1)
    refused = changing.post(f"{SUBSCRIPTION}/clear-backlog", {"confirm": "billing", "revision": seen})
    assert (refused.status, refused.code) == (409, "LEDGER_CONSOLE_OUTDATED")
    assert client.cursor("orders", "billing").stats().backlog_records > 0


def test_policies_are_set_in_the_words_of_the_command_line(changing, client, audit):
    given = {"retention_age": "7d", "backlog_quota": "1GB,2d", "compact_after": "1GB"}
    told = changing.post("/topics/orders/policies", {**given, "confirm": "orders"}).json
    assert (told["retention_age"], told["backlog_quota"]) == ("7d", "1GiB,2d")
    assert client.policies("orders").retention_ms == 7 * 86_400_000
    back = dict.fromkeys(given, "never")
    assert changing.post("/topics/orders/policies", {**back, "confirm": "orders"}).status == 200
    changed = [json.loads(line)["changed"] for line in audit.read_text().splitlines() if '"done"' in line]
    assert changed[0]["retention_age"] == ["never", "7d"]
    assert set(told) == set(POLICIES)


def test_a_test_record_is_written_and_has_a_place(changing, client):
    client.create_topic("tried", SCHEMA)
    told = changing.post("/topics/tried/records", {"record": {"k": "x", "n": 1, "price": "9.50"}}).json
    assert changing.api(f"/topics/tried/records/{told['position']}").json["value"]["price"] == "9.50"
    refused = changing.post("/topics/tried/records", {"record": {"m": 1}})
    assert (refused.status, refused.code) == (400, "LEDGER_SCHEMA_MISMATCH")
    client.delete_topic("tried")


WRONG_CHANGES = {
    "unconfirmed": (f"{SUBSCRIPTION}/clear-backlog", {}, 400, "LEDGER_NOT_CONFIRMED"),
    "confirmed otherwise": (f"{SUBSCRIPTION}/reset", {"to": "latest", "confirm": "x"}, 400, "LEDGER_NOT_CONFIRMED"),
    "no place": (f"{SUBSCRIPTION}/reset", {"confirm": "billing"}, 400, "LEDGER_MISSING_PARAMETER"),
    "a wrong place": (f"{SUBSCRIPTION}/reset", {"confirm": "billing", "to": "?"}, 400, "LEDGER_INVALID_POSITION"),
    "no number": (f"{SUBSCRIPTION}/skip", {"confirm": "billing"}, 400, "LEDGER_MISSING_PARAMETER"),
    "a wrong number": (f"{SUBSCRIPTION}/skip", {"confirm": "billing", "records": 1.5}, 400, "LEDGER_INVALID_PARAMETER"),
    "a wrong id": (f"{SUBSCRIPTION}/rewind", {"confirm": "billing", "operation_id": "x"}, 400,
                   "LEDGER_INVALID_PARAMETER"),
    "no action": (f"{SUBSCRIPTION}/delete", {"confirm": "billing"}, 400, "LEDGER_INVALID_PARAMETER"),
    "a field too many": (f"{SUBSCRIPTION}/rewind", {"confirm": "billing", "too": 1}, 400, "LEDGER_UNKNOWN_PARAMETER"),
    "nobody": ("/topics/orders/subscriptions/biling/rewind", {"confirm": "biling"}, 404, "LEDGER_CURSOR_NOT_FOUND"),
    "no policy": ("/topics/orders/policies", {"confirm": "orders"}, 400, "LEDGER_MISSING_PARAMETER"),
    "a wrong policy": ("/topics/orders/policies", {"confirm": "orders", "retention_age": "7"}, 400,
                       "LEDGER_INVALID_POLICY"),
    "a policy alone": ("/topics/orders/policies", {"confirm": "orders", "backlog_action": "evict"}, 400,
                       "LEDGER_INVALID_POLICY"),
    "no record": ("/topics/orders/records", {}, 400, "LEDGER_MISSING_PARAMETER"),
    "no object": ("/topics/orders/records", [1], 400, "LEDGER_INVALID_BODY"),
    "much": ("/topics/orders/records", {"record": {"k": "x" * 2_000_000}}, 413, "LEDGER_BODY_TOO_LARGE"),
}  # fmt: skip


def test_what_is_wrong_with_a_change_is_told_and_nothing_is_changed(changing, client):
    before = client.cursor("orders", "billing").stats(), client.policies("orders"), client.end("orders")
    for name, (path, body, status, code) in WRONG_CHANGES.items():
        answer = changing.post(path, body)
        assert (answer.status, answer.code) == (status, code), name
    after = client.cursor("orders", "billing").stats(), client.policies("orders"), client.end("orders")
    assert before[0].mark_delete == after[0].mark_delete
    assert before[0].revision == after[0].revision
    assert before[1:] == after[1:]


def test_a_failed_change_is_noted_with_its_reason(changing, audit):
    refused = changing.post("/topics/orders/subscriptions/none/rewind", {"confirm": "none"})
    assert refused.status == 404
    begins, failed = (json.loads(line) for line in audit.read_text().splitlines())
    assert (begins["outcome"], failed["outcome"], failed["code"]) == ("begins", "failed", "LEDGER_CURSOR_NOT_FOUND")
