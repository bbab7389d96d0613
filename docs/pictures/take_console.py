"""Takes the pictures of docs/console.md again, in Chromium, of a namespace in memory in which an hour has passed. Run
by hand, in the folder of the repository, half a minute:

    python -m docs.pictures.take_console

Needs the extra dev, and Chromium with its driver (make browser).
"""

from __future__ import annotations

import math
import random
import tempfile
import threading
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from pyspark_ledger.base.clock import SystemClock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.client import LedgerClient, client_of, namespace_of
from pyspark_ledger.lifecycle.maintenance import Maintenance
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support.browser import Browser, browser
from tests.support.console import TOKEN, Console, running
from tests.support.query import eventually

HERE = Path(__file__).parent / "console"
ORDERS = pa.schema(
    [("order_id", pa.int64()), ("customer", pa.string()), ("status", pa.string()), ("cents", pa.int64())]
)
OTHERS = ("customers", "dead-orders", "invoices", "payments", "returns", "shipments", "stock", "web-clicks")
LONG_MS = 3_300_000  # what is told in the pictures has taken so long


class HourAgo(SystemClock):
    """Shows a time of the last hour, until it has caught up."""

    behind_ms = LONG_MS

    def now_ms(self) -> int:
        return super().now_ms() - self.behind_ms


def fill(client: LedgerClient, clock: HourAgo) -> None:
    """Orders come in waves; other topics get a little."""
    draw = random.Random(7)
    client.create_topic("orders", ORDERS, key="order_id")
    for name in OTHERS:
        client.create_topic(name, pa.schema([("id", pa.int64()), ("what", pa.string())]))
    cursors = {name: client.create_cursor("orders", name) for name in ("billing", "fraud-model", "shipping")}
    step = 20_000
    number = 0
    for at in range(LONG_MS // step):
        clock.behind_ms = LONG_MS - at * step
        number = orders(client, draw, number, round(40 + 30 * math.sin(at / 19) + 12 * draw.random()))
        for place, name in enumerate(OTHERS[2:], 2):
            if at % (place * 3) == 0:
                with client.producer(name, name=f"{name}-job", linger_ms=None) as producer:
                    for n in range(draw.randint(1, 60)):
                        producer.send({"id": n, "what": "x" * 40})
        if at % 4 == 0:
            cursors["billing"].clear_backlog()
        if at % 25 == 0 and at < 140:
            cursors["shipping"].clear_backlog()
        if at == 60:
            cursors["fraud-model"].clear_backlog()
        if at == 110:
            client.compact("orders")
        if at == 70:
            client.set_policies("orders", retention_age=timedelta(minutes=15))
            client.trim("orders")
    clock.behind_ms = 0


def orders(client: LedgerClient, draw: random.Random, number: int, count: int) -> int:
    with client.producer("orders", name="web-shop", linger_ms=None) as producer:
        for n in range(number, number + count):
            status = draw.choice(("new", "new", "paid", "sent"))
            producer.send(
                {"order_id": n, "customer": f"c-{draw.randint(1, 900):04}", "status": status, "cents": 95 * n % 20_000}
            )
    return number + count


def take(chromium: Browser, console: Console, path: str, name: str, width: int, height: int, theme: str) -> None:
    chromium.look(width, height, theme)
    chromium.open(console.url + path)
    eventually(lambda: chromium.shows(".live", "live"))
    chromium.driver.save_screenshot(str(HERE / f"{name}.png"))


def main() -> None:
    HERE.mkdir(exist_ok=True)
    clock = HourAgo()
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        limits = Limits(commits_per_ledger=12)
        metadata = MemoryMetadata(MemoryServer(clock))
        client = stack.enter_context(client_of(OpenNamespace(metadata, root, limits=limits, clock=clock)))
        fill(client, clock)
        maintenance = Maintenance(namespace_of(client))
        threading.Thread(target=maintenance.run, daemon=True).start()
        stack.callback(maintenance.stop)
        stack.enter_context(client.consumer("orders", "billing"))
        for _ in range(2):
            stack.enter_context(client.consumer("orders", "shipping", "shared"))
        settings = {"allow_changes": True, "token": TOKEN, "allow_test_records": True}
        console = stack.enter_context(running(namespace_of(client), **settings))
        chromium = stack.enter_context(browser())
        chromium.open(f"{console.url}/sign-in")
        chromium.fill("[name=name]", "ann")
        chromium.fill("[name=token]", TOKEN)
        chromium.find("button.change").click()
        eventually(lambda: chromium.shows(".who", "ann"))
        eventually(lambda: console.api("/overview").json["maintenance"]["last_backup"], seconds=60)
        topic = "/topics/orders"
        take(chromium, console, "/", "overview", 1200, 760, "light")
        take(chromium, console, topic, "topic", 1200, 900, "light")
        take(chromium, console, topic, "topic-dark", 1200, 900, "dark")
        take(chromium, console, f"{topic}/records?column=status&value=paid", "records", 1200, 620, "light")
        preview = f"{topic}/subscriptions/fraud-model/preview?action=reset&to=latest"
        take(chromium, console, preview, "preview", 1200, 470, "light")
        take(chromium, console, topic, "narrow", 360, 900, "light")


if __name__ == "__main__":
    main()
