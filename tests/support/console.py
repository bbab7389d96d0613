"""A console that runs in this process, asked over HTTP like any other."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPMessage
from typing import Any
from urllib.parse import urlencode

from pyspark_ledger.console.server import ConsoleServer
from pyspark_ledger.console.settings import Settings
from pyspark_ledger.log.namespace import OpenNamespace

TOKEN = "a token of forty characters, or about so"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))


@dataclass
class Answer:
    status: int
    headers: HTTPMessage
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> str:
        """Of an error."""
        return self.json["error"]["code"]


@dataclass
class Console:
    server: ConsoleServer
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.server.url

    def ask(self, path: str, data: bytes | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in {**self.headers, **headers}.items()}
        request = urllib.request.Request(self.url + path, data, named)
        try:
            with _OPENER.open(request, timeout=60) as response:
                return Answer(response.status, response.headers, response.read().decode())
        except urllib.error.HTTPError as refused:
            with refused:
                return Answer(refused.code, refused.headers, refused.read().decode())

    def api(self, path: str, **query: object) -> Answer:
        return self.ask(f"/api/v1{path}{'?' + urlencode(query) if query else ''}")

    def post(self, path: str, body: object, token: str = TOKEN, **headers: str) -> Answer:
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        data = json.dumps(body).encode()
        return self.ask(f"/api/v1{path}", data, **{"Content-Type": "application/json", **bearer, **headers})

    def form(self, path: str, **fields: str) -> Answer:
        data = urlencode(fields).encode()
        return self.ask(path, data, **{"Content-Type": "application/x-www-form-urlencoded"})


@contextmanager
def running(namespace: OpenNamespace, **settings: Any) -> Iterator[Console]:
    """On a free port; looks at the namespace several times a second."""
    server = ConsoleServer(namespace, Settings(**{"port": 0, "look_every_s": 0.3, **settings}))
    ready = threading.Event()
    thread = threading.Thread(target=server.run, args=(ready.set,), name="console")
    thread.start()
    try:
        assert ready.wait(60)
        yield Console(server)
    finally:
        server.stop()
        thread.join(30)
    assert not thread.is_alive()
