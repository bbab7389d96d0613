"""The parsers of what browsers and programs ask the console: addresses, bodies, forms.

Asked as a server asks it, without one, of a namespace in memory with a topic that has a column of every kind. Whatever
comes, the console does not fail: its answer is a page, or says by a code what is wrong with the question."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote, urlencode

from pyspark_ledger.client import client_of
from pyspark_ledger.console.server import ConsoleServer
from pyspark_ledger.console.settings import Settings
from pyspark_ledger.describe import ddl
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.testing.disk import Disk, MemoryStorage
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support.parser_table import COLUMNS, parser

TOKEN = "a token of forty characters, or about so"
_TOPIC, _SUBSCRIPTION = "/topics/odd", "/topics/odd/subscriptions/s"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def taken(self) -> bool:
        """As a parser says it: what is refused has a code, or is a page that says why."""
        assert self.status < 500, self.body
        if self.status >= 400:
            code = "LEDGER_REFUSED"
            if (b"content-type", b"application/json") in self.headers:
                code = json.loads(self.body)["error"]["code"]
            raise InvalidInput(f"refused with {self.status}: {self.body[:200]!r}", code)
        return True


class _Console:
    def __init__(self) -> None:
        storage = MemoryStorage(Disk())
        storage.make_folder("")
        namespace = OpenNamespace(MemoryMetadata(MemoryServer()), storage)
        client = client_of(namespace)
        client.create_topic("odd", ddl.parse(COLUMNS), key="n")
        with client.producer("odd", linger_ms=None) as producer:
            for n in range(3):
                producer.send({"n": n, "t": f"<b>{n}", "flag": True, "tags": ["a"], "point": {"x": 0.5, "y": n}})
        client.create_cursor("odd", "s")
        # Nothing is looked at again by itself: what is asked decides what happens.
        settings = Settings(port=0, look_every_s=1e9, allow_changes=True, allow_test_records=True, token=TOKEN)
        server = ConsoleServer(namespace, settings)
        server._socket.close()
        server.reader.snapshot()
        self._app: Any = server._server.config.app
        self._loop = asyncio.new_event_loop()

    def ask(self, method: str, target: bytes, body: bytes = b"", **headers: bytes) -> Answer:
        return self._loop.run_until_complete(self._ask(method, target, body, headers))

    async def _ask(self, method: str, target: bytes, body: bytes, headers: dict[str, bytes]) -> Answer:
        path, _, query = target.partition(b"?")
        named = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(path.decode("ascii", "ignore")), "raw_path": path, "query_string": query, "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), *named], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        said: list[dict[str, Any]] = []
        asked = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return asked.pop() if asked else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        await self._app(scope, receive, send)
        return Answer(said[0]["status"], said[0]["headers"], b"".join(part.get("body", b"") for part in said[1:]))


@cache
def _console() -> _Console:
    return _Console()


def _records(**query: str) -> str:
    return f"{_TOPIC}/records?{urlencode(query)}"


_VALUES = {"n": "1", "f": "0.5", "price": "1.25", "t": "<b>1", "day": "2026-01-31", "at": "2026-01-31T12:00:00Z",
           "flag": "true", "clock": "12:30:00"}  # fmt: skip
_FILTERS = (
    *(_records(column=column, operator="<=", value=value, limit="3") for column, value in _VALUES.items()),
    _records(column="t", operator="contains", value="b"),
    _records(column="tags", operator="is not null"),
    _records(**{"from": "0:0:1"}),
    _records(**{"from": "earliest"}),
)
_PAGES = ("/", "/queries", "/sign-in?to=/queries", f"{_TOPIC}/records/0:0:0", f"{_TOPIC}/commits?limit=2",
          f"{_TOPIC}/policies?retention_age=7d", f"{_SUBSCRIPTION}/preview?action=reset&to=0:0:1",
          "/?search=o&sort=topic", f"{_TOPIC}?range=1h", f"{_TOPIC}/key?key=1")  # fmt: skip


@parser("console-address", *_FILTERS, *(f"/api/v1{each}" for each in _FILTERS), *_PAGES)
def _address(data: bytes) -> object:
    # A stream of events has no end, and a file is none of ours to parse.
    if b"/events" in data or b"/static" in data:
        return None
    return _console().ask("GET", b"/" + data.lstrip(b"/")).taken()


_CHANGES = (
    ("/policies", {"retention_age": "7d", "backlog_quota": "100GB,7d", "snapshot_commits": "100", "confirm": "odd"}),
    ("/subscriptions/s/reset", {"to": "earliest", "confirm": "s", "operation_id": "0a" * 16}),
    ("/subscriptions/s/skip", {"records": 1, "confirm": "s"}),
    ("/subscriptions/s/clear-backlog", {"confirm": "s", "discard_planned": False}),
    ("/records", {"record": {"n": 1, "t": "x"}}),
    ("/records", {"record": '{"n": 1, "price": "12.50"}'}),
)


@parser("console-change", *(f"{path}\0{json.dumps(body)}" for path, body in _CHANGES))
def _change(data: bytes) -> object:
    """A path and a body, from somebody who knows the token."""
    path, _, body = data.partition(b"\0")
    bearer = b"Bearer " + TOKEN.encode()
    target = f"/api/v1{_TOPIC}".encode() + path
    return _console().ask("POST", target, body, content_type=b"application/json", authorization=bearer).taken()
