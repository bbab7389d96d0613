"""Prometheus itself, for tests: its programs, and a server that lives for a few seconds."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.local.zookeeper import _free_ports
from tests.support import REPOSITORY
from tests.support.query import eventually


def program(name: str) -> str:
    """``prometheus`` or ``promtool``: of the system, or what ``make prometheus`` has unpacked."""
    found = shutil.which(name) or shutil.which(name, path=str(REPOSITORY / ".venv" / "prometheus" / "usr" / "bin"))
    if found is None:
        pytest.fail(f"{name} is not here: 'make prometheus' gets it")
    return found


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: str) -> Any:
        """What its HTTP API answers; an error is an exception."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}{query}", timeout=10) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        assert told["status"] == "success", told
        assert not told.get("warnings"), told
        return told["data"]

    def query(self, expression: str) -> list[Any]:
        found = self.ask("query", query=expression)
        return found["result"]  # type: ignore[no-any-return]


@contextlib.contextmanager
def running(config: Path, folder: Path) -> Iterator[Prometheus]:
    """A server with this configuration, on this machine alone."""
    port = _free_ports(1)[0]
    command = [
        program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")

        def answers() -> bool:
            assert server.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{prometheus.url}/-/ready", timeout=10):
                return True
            return False

        eventually(answers)
        yield prometheus
    finally:
        server.kill()
        server.wait()
