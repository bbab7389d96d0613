"""Puts the console together and serves it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from pyspark_ledger.client import client_of
from pyspark_ledger.console import api
from pyspark_ledger.console.audit import AuditLog
from pyspark_ledger.console.changing import Changing
from pyspark_ledger.console.guard import Guard
from pyspark_ledger.console.looking import Looking
from pyspark_ledger.console.pages import Pages
from pyspark_ledger.console.reader import NamespaceReader
from pyspark_ledger.console.settings import Settings
from pyspark_ledger.console.visitors import Visitors
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log.namespace import OpenNamespace

_GRACE_S = 1  # for answers that are under way, when it ends


class ConsoleServer:
    """Serves one namespace, which stays the caller's to close. :meth:`run` ends with a signal, or after
    :meth:`stop`."""

    def __init__(self, namespace: OpenNamespace, settings: Settings) -> None:
        settings.check()
        audit = AuditLog(settings.audit_log, namespace.clock)
        self._socket = _listen(settings)
        self.reader = NamespaceReader(namespace, settings.look_every_s)
        visitors = Visitors(settings, namespace.clock)
        looking = Looking(namespace, self.reader, settings)
        changing = Changing(client_of(namespace), self.reader, settings, audit)
        pages = Pages(looking, changing, settings, visitors, namespace.clock)
        static = Mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
        routes = [static, *api.routes(looking, changing, self.reader, visitors), *pages.routes()]
        config = uvicorn.Config(
            Guard(Starlette(routes=routes), settings), log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=_GRACE_S, lifespan="off", forwarded_allow_ips="127.0.0.1",
        )  # fmt: skip
        self._server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """``ready`` is called when the namespace was looked at for the first time."""
        try:
            self.reader.snapshot()
            ready()
            self._server.run(sockets=[self._socket])
        finally:
            self.reader.close()
            self._socket.close()

    def stop(self) -> None:
        self._server.should_exit = True


def _listen(settings: Settings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        return socket.create_server((settings.host, settings.port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"cannot listen on {settings.host}:{settings.port} ({error}): choose another --port or --host",
            "LEDGER_PORT_IN_USE",
        ) from None
