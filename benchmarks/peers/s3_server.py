"""A moto server on 127.0.0.1, in a process of its own, that lets every request wait before it is answered: `python -m
benchmarks.peers.s3_server --latency-ms 20`. It prints its port, and ends with the pipe of whoever started it.

`GET /requests` says how many there were since the last time, by method.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

HOST, BUCKET = "127.0.0.1", "bench"
# For the environment of whoever writes: moto takes what is not signed as it comes, checksums and all.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


class Delayed:
    """A WSGI application before another one."""

    def __init__(self, application: Callable[..., Iterable[bytes]], latency_s: float) -> None:
        self._application, self._latency_s = application, latency_s
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/requests":
            with self._lock:
                told, self._requests = dict(self._requests), Counter()
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(told).encode()]
        with self._lock:
            self._requests[environ["REQUEST_METHOD"]] += 1
        time.sleep(self._latency_s)
        return self._application(environ, start_response)


class S3:
    """The server, as whoever started it sees it: `with S3(20) as s3: …`"""

    def __init__(self, latency_ms: float) -> None:
        command = [sys.executable, "-m", "benchmarks.peers.s3_server", "--latency-ms", str(latency_ms)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            raise SystemExit("the S3 server did not start: is moto[server,s3] installed?")
        self.address = f"{HOST}:{port}"

    def __enter__(self) -> S3:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def requests(self) -> dict[str, int]:
        """By method, since the last call."""
        with urllib.request.urlopen(f"http://{self.address}/requests") as answer:
            return dict(json.load(answer))

    def filesystem(self) -> Any:
        import pyarrow.fs

        return pyarrow.fs.S3FileSystem(
            endpoint_override=self.address, scheme="http", region="us-east-1", access_key="test", secret_key="test",
            allow_bucket_creation=True,
        )  # fmt: skip

    def root(self, name: str) -> str:
        """A storage root of the ledger."""
        return f"s3://{BUCKET}/{name}?endpoint_override={self.address}&scheme=http&region=us-east-1"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.s3_server")
    parser.add_argument("--latency-ms", type=float, required=True)
    asked = parser.parse_args()
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    WSGIRequestHandler.protocol_version = "HTTP/1.1"  # connections are kept, as S3 does
    WSGIRequestHandler.log_request = lambda *_: None  # type: ignore[method-assign, assignment]
    application = Delayed(DomainDispatcherApplication(create_backend_app), asked.latency_ms / 1e3)
    server = make_server(HOST, 0, application, threaded=True)
    print(server.server_port, flush=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    server.serve_forever()


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would be held when Python ends
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
