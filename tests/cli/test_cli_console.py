"""``pyspark-ledger console``: it starts, says where it is, and ends when it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_ledger.cli import main
from pyspark_ledger.client import LedgerClient
from tests.support import interruptible
from tests.support.console import TOKEN


def test_it_serves_until_it_is_told_to_end_also_while_somebody_looks(namespace, storage_root, tmp_path):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("orders", pa.schema([("v", pa.int64())]))
    (tmp_path / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "pyspark_ledger.cli", "console", "--zookeeper", namespace, "--port", "0"]
    command += ["--allow-changes", "--token-file", str(tmp_path / "token"), "--audit-log", str(tmp_path / "audit")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible
    ) as process:
        said = process.stdout.readline()
        url = said.split()[-1]
        assert url.startswith("http://127.0.0.1:"), said + process.stderr.read()
        assert "orders" in urllib.request.urlopen(f"{url}/", timeout=30).read().decode()
        with urllib.request.urlopen(f"{url}/api/v1/events", timeout=30) as stream:
            assert stream.readline()
            process.send_signal(signal.SIGINT)
            process.wait(60)
        assert TOKEN not in process.stderr.read()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--allow-changes"], "[LEDGER_CONSOLE_OPTIONS] --allow-changes needs --token-file"),
        (["--token-file", "none"], "[LEDGER_STORAGE_UNAVAILABLE] cannot read none"),
        (["--allow-test-records"], "[LEDGER_CONSOLE_OPTIONS] --allow-test-records needs --allow-changes"),
        (["--checkpoints", "none"], "[LEDGER_CONSOLE_OPTIONS] --checkpoints none: there is no such folder"),
        (["--port", "70000"], "70000"),
    ],
)
def test_wrong_options_are_told_before_anything_is_asked(options, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(os.environ, "LEDGER_CONSOLE_TOKEN", raising=False)
    result = CliRunner().invoke(main, ["--zookeeper", "127.0.0.1:1", "console", *options])
    assert result.exit_code != 0
    assert said in result.output
