"""The console in a real browser: every page, live, by keyboard, on narrow screens; and a reset on a query that runs."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from selenium.webdriver.common.keys import Keys

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.client import LedgerClient, client_of, namespace_of, open_namespace
from tests.support.browser import Browser, browser
from tests.support.console import TOKEN, Console, running
from tests.support.query import eventually

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("order_id", pa.int64()), ("customer", pa.string()), ("cents", pa.int64())])
TOPIC = "/topics/orders"
PAGES = [
    "/", "/queries", "/outboxes", "/sign-in", TOPIC, f"{TOPIC}/records", f"{TOPIC}/records?view=json&limit=3",
    f"{TOPIC}/records/0:0:0", f"{TOPIC}/key?key=3", f"{TOPIC}/commits", f"{TOPIC}/schema", f"{TOPIC}/producers",
    f"{TOPIC}/tokens", f"{TOPIC}/compaction", f"{TOPIC}/policies", f"{TOPIC}/subscriptions/billing",
    f"{TOPIC}/subscriptions/billing/preview?action=reset&to=earliest", "/topics/none",
]  # fmt: skip


@pytest.fixture(scope="module")
def client(zookeeper, tmp_path_factory) -> Iterator[LedgerClient]:
    address = f"{zookeeper}/console-{secrets.token_hex(8)}"
    root = str(tmp_path_factory.mktemp("console"))
    with client_of(open_namespace(address, root, limits=Limits(commits_per_ledger=3))) as client:
        client.create_topic("orders", SCHEMA, key="order_id")
        client.create_topic("returns", SCHEMA)
        for _ in range(8):
            send(client, 40)
        client.create_cursor("orders", "billing")
        client.create_cursor("orders", "shipping", "1:0:0")
        client.compact("orders")
        yield client


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    return tmp_path_factory.mktemp("audit") / "audit.jsonl"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def console(client, audit, checkpoints) -> Iterator[Console]:
    settings = {"allow_changes": True, "token": TOKEN, "audit_log": audit, "allow_test_records": True}
    with running(namespace_of(client), checkpoints=(checkpoints,), **settings) as console:
        yield console


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as chromium:
        yield chromium


def send(client: LedgerClient, count: int) -> None:
    with client.producer("orders", name="shop") as producer:
        for n in range(count):
            producer.send({"order_id": n, "customer": f"customer {n % 5}", "cents": 100 * n})


def test_every_page_is_shown_with_nothing_that_is_hard_to_use(console, chromium):
    chromium.open("data:text/html,<title>t</title><img src='x'>")
    assert "image-alt" in str(chromium.hard_to_use())  # it would be found
    chromium.complaints()
    for path in PAGES:
        chromium.look()
        chromium.open(console.url + path)
        assert chromium.text("h1"), path
        assert chromium.hard_to_use() == [], path
        chromium.look(360, 740, "dark")
        assert chromium.run("return document.documentElement.scrollWidth") <= 360, path
        complaints = [said for said in chromium.complaints() if "404" not in said]
        assert complaints == [], path
    for path in ("/", TOPIC, f"{TOPIC}/records", f"{TOPIC}/subscriptions/billing"):
        chromium.look(1200, 900, "dark")
        chromium.open(console.url + path)
        assert chromium.hard_to_use() == [], f"{path}, dark"


def test_the_longest_names_push_nothing_off_a_page(client, console, chromium):
    topic, subscription, column = "t" * 200, "s" * 200, "c" * 200
    client.create_topic(topic, pa.schema([(column, pa.string()), *((f"column{n}", pa.bool_()) for n in range(199))]))
    client.create_cursor(topic, subscription)
    with client.producer(topic, name="p" * 100) as producer:
        producer.send({column: "a long text " * 100, "column0": True})
    place = f"/topics/{topic}"
    moves = f"{place}/subscriptions/{subscription}"
    for path in ("/", place, f"{place}/records", f"{place}/schema", f"{place}/producers", moves,
                 f"{moves}/preview?action=clear-backlog"):  # fmt: skip
        for width in (1200, 360):
            chromium.look(width, 740)
            chromium.open(console.url + path)
            assert chromium.run("return document.documentElement.scrollWidth") <= width, path[:20]
    chromium.look(1200, 740)
    chromium.open(console.url)
    right = chromium.run(
        "return document.querySelector('#live-topics thead th:last-child').getBoundingClientRect().right"
    )
    assert right <= 1200  # all columns of the overview are in sight
    chromium.open(f"{console.url}{place}/records")
    assert chromium.all("tbody td")[2].text == "true"
    client.delete_topic(topic)


def test_a_page_is_live_without_being_loaded_again(client, console, chromium):
    chromium.look()
    chromium.open(f"{console.url}{TOPIC}/subscriptions/shipping")
    chromium.run("window.sameLoad = true")
    before = client.cursor("orders", "shipping").stats().backlog_records
    assert chromium.text(".big") == str(before)
    send(client, 7)
    eventually(lambda: chromium.shows(".big", str(before + 7)))
    assert chromium.text(".live") == "live"
    assert chromium.run("return window.sameLoad") is True


def test_everything_is_reached_by_keyboard_and_works_without_scripts(console, chromium):
    chromium.open(console.url)
    page = chromium.find("body")
    page.send_keys(Keys.TAB)
    assert chromium.driver.switch_to.active_element.text == "Skip to the content"
    chromium.driver.switch_to.active_element.send_keys(Keys.ENTER)
    eventually(lambda: chromium.run("return document.activeElement.id") == "main")
    chromium.find("#theme").send_keys(Keys.ENTER)
    assert chromium.run("return document.documentElement.dataset.theme") == "dark"
    chromium.run("localStorage.clear()")
    chromium.scripts(False)
    try:
        chromium.open(f"{console.url}/?search=ord")
        assert [each.text for each in chromium.all("tbody th")] == ["orders"]
        chromium.open(f"{console.url}{TOPIC}")
        assert len(chromium.all("svg.bar rect.ledger0, svg.bar rect.ledger1, svg.bar rect.open")) >= 3
    finally:
        chromium.scripts(True)


def test_a_reset_in_the_browser_moves_a_query_that_runs(
    client, console, chromium, audit, checkpoints, spark: SparkSession
):
    client.create_topic("paid", SCHEMA)
    with client.producer("paid") as producer:
        for n in range(30):
            producer.send({"order_id": n, "customer": "ann", "cents": n})
    options = {"zookeeper": namespace_of(client).address, "subscription": "till", "startingOffsets": "earliest"}
    source = spark.readStream.format("ledger").options(**options).load("paid")
    query = (
        source.writeStream.format("memory").queryName("read_by_till")
        .option("checkpointLocation", str(checkpoints / "till")).start()
    )  # fmt: skip
    try:
        eventually(lambda: spark.table("read_by_till").count() == 30, seconds=120)
        with client.producer("paid") as producer:  # the query says with the next batch that it has done this one
            producer.send({"order_id": 30, "customer": "ann", "cents": 30})
        eventually(lambda: client.cursor("paid", "till").stats().backlog_records <= 1, seconds=60)

        chromium.open(f"{console.url}/sign-in?to=/topics/paid/subscriptions/till")
        chromium.fill("[name=name]", "ann of operations")
        chromium.fill("[name=token]", TOKEN)
        chromium.find("button.change").click()
        eventually(lambda: chromium.shows("h1", "till"))
        chromium.fill("[name=to]", "earliest")
        chromium.find("[name=action][value=reset] ~ button").click()
        eventually(lambda: chromium.shows("h1", "Preview: reset"))
        repeated = int(chromium.text("#repeated"))
        assert repeated >= 30
        assert chromium.text("#skipped") == "0"
        chromium.fill("[name=confirm]", "till")
        chromium.find("button.change").click()

        eventually(lambda: spark.table("read_by_till").count() >= 31 + repeated, seconds=120)
        assert query.isActive
        eventually(lambda: chromium.shows(".facts", "1\ntimes it was moved"))
        chromium.open(f"{console.url}/queries")
        assert [cell.text for cell in chromium.all("tbody td:nth-of-type(3)")] == ["paid"]
    finally:
        query.stop()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["who"], line["outcome"]) for line in lines] == [
        ("ann of operations", "begins"), ("ann of operations", "done")
    ]  # fmt: skip
