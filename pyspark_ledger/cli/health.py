"""Health and metrics of a process that runs for long, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

from pyspark_ledger.errors import InvalidInput

Answer = tuple[int, str, bytes]  # status, type, what there is to say
Page = Callable[[], Answer]

_TIMEOUT_S = 5.0  # of one request: one at a time is answered


def text(ok: bool, said: str) -> Answer:
    return 200 if ok else 503, "text/plain; charset=utf-8", f"{said}\n".encode()


class HealthServer:
    """Answers one request at a time, in a thread, so that nobody can make it do much."""

    def __init__(self, host: str, port: int, pages: dict[str, Page]) -> None:
        try:
            self._server = HTTPServer((host, port), _handler(pages))
        except OSError as error:
            raise InvalidInput(
                f"cannot listen on {host}:{port} ({error}): choose another --port or --host", "LEDGER_PORT_IN_USE"
            ) from None
        self.url = f"http://{host}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, name="ledger-health", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(pages: dict[str, Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            status, kind, said = page() if page is not None else (404, "text/plain", " ".join(pages).encode())
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: it is asked every few seconds."""

    return Handler
