"""Around every answer: which names of a host are answered, and what a browser may do with a page.

A page of another site can have its own name point at this machine (DNS rebinding), and a browser would then let it read
all that is here. So names that are not ours are refused. Pages may load nothing from elsewhere and run no script or
style that is written into them.
"""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyspark_ledger.console.settings import LOOPBACK, Settings

_POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
_HEADERS = {
    b"content-security-policy": _POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


class Guard:
    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        checked = settings.is_local or bool(settings.host_names)
        self._names = {*LOOPBACK, settings.host, *(name.lower() for name in settings.host_names)} if checked else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *((k, v) for k, v in _HEADERS.items() if k not in there)]
            await send(message)

        if self._names is not None and _host(scope) not in self._names:
            await _refuse(guarded, 421, b"This console does not answer to that host name: --host-name adds one.\n")
        elif not scope["query_string"].isascii():  # not every server looks, and reading it would fail
            await _refuse(guarded, 400, b"An address has ASCII only: all else is written as %C3%A9.\n")
        else:
            await self._app(scope, receive, guarded)


def _host(scope: Scope) -> str:
    """Without the port."""
    given: Any = next((value for name, value in scope["headers"] if name == b"host"), b"")
    text = given.decode("latin-1").strip().lower()
    if text.startswith("["):
        return str(text[1:].partition("]")[0])
    return str(text.partition(":")[0])


async def _refuse(send: Send, status: int, said: bytes) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(said)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": said})
