"""Storage over a fork: a child shares no connection with its parent, whatever it was handed."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pyspark_ledger.files import storage as storages
from pyspark_ledger.files.storage import Storage, open_storage

SIZE = 1 << 16


class KeepsConnections(BaseHTTPRequestHandler):
    """As much of S3 as reading needs. Unlike moto's it keeps connections open, as S3 does: every file is there and
    holds the first letter of its name, again and again."""

    protocol_version = "HTTP/1.1"
    keys_of: defaultdict[object, set[str]]  # the files asked for over each connection

    def do_HEAD(self) -> None:
        self._answer(200, 0, SIZE)

    def do_GET(self) -> None:
        found = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(found[1]), int(found[2])) if found else (0, SIZE - 1)
        self._answer(206 if found else 200, first, last + 1)

    def _answer(self, status: int, first: int, stop: int) -> None:
        key = self.path.rpartition("/")[2]
        self.keys_of[self.connection].add(key)
        self.send_response(status)
        self.send_header("Content-Length", str(stop - first))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(key[:1].encode() * (stop - first))

    def log_message(self, format: str, *args: object) -> None:
        """Keeps quiet."""


@pytest.fixture
def s3(monkeypatch) -> Iterator[Storage]:
    for name, value in (("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x"), ("EC2_METADATA_DISABLED", "true")):
        monkeypatch.setenv(f"AWS_{name}", value)
    KeepsConnections.keys_of = defaultdict(set)
    with ThreadingHTTPServer(("127.0.0.1", 0), KeepsConnections) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.server_address[:2]
        yield open_storage(f"s3://bucket/root?endpoint_override={host}:{port}&scheme=http&region=us-east-1")
        server.shutdown()


def read_often(storage: Storage, key: str, times: int = 30) -> None:
    for _ in range(times):
        assert storage.read(key, 0, SIZE).to_pybytes() == key.encode() * SIZE
        assert storage.size(key) == SIZE


def in_a_child(work: Callable[[], None]) -> int:
    """Forks; the child's pid. It exits with 0 if the work was done, and is ended after 20 seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_storage_that_came_over_a_fork_shares_no_connection_with_its_parent(s3):
    read_often(s3, "p", 3)  # it has open connections now
    children = [in_a_child(lambda key=key: read_often(s3, key)) for key in "abc"]
    read_often(s3, "p")
    assert [exit_code(child) for child in children] == [0, 0, 0]
    assert [keys for keys in KeepsConnections.keys_of.values() if len(keys) > 1] == []


def test_a_fork_while_another_thread_opens_a_storage_does_not_stop_the_child(tmp_path):
    with storages._opening:
        child = in_a_child(lambda: open_storage(str(tmp_path)).write("f", b"x"))
        assert exit_code(child) == 0


def test_a_child_writes_with_a_storage_that_came_over_a_fork(s3_root):
    storage = open_storage(s3_root)
    storage.write("p", b"parent")
    assert exit_code(in_a_child(lambda: storage.write("c", b"child"))) == 0
    assert storage.read("c", 0, 5).to_pybytes() == b"child"
