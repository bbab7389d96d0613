"""A stream whose ZooKeeper takes only TLS, certificates and SASL: exactly once, and nothing of it shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.client import LedgerClient
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from tests.support.jobs import environment
from tests.support.query import eventually

RECORDS = 40
SCHEMA = pa.schema([("n", pa.int64())])
# The profile says all that there is to know.
STREAM = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]")
for option in ("spark.ui.enabled=false", "spark.log.level=ERROR", "spark.sql.shuffle.partitions=2"):
    builder = builder.config(*option.split("="))
spark = builder.getOrCreate()
stream = spark.readStream.format("ledger").option("profile", "prod").option("maxRowsPerTrigger", "4").load("in")
sink = stream.writeStream.format("ledger").option("profile", "prod").option("checkpointLocation", sys.argv[1])
sink.trigger(availableNow=True).start("out").awaitTermination()
"""


@pytest.fixture
def server(tmp_path) -> Iterator[LocalZooKeeper]:
    with LocalZooKeeper(fsync=False, tls=True, client_certificates=True, sasl=True) as server:
        config = tmp_path / "config.toml"
        config.touch(mode=0o600)
        lines = [f'"{name}" = "{value}"' for name, value in server.options.items()]
        config.write_text("\n".join(["[prod]", f'storage = "{tmp_path / "storage"}"', *lines]))
        yield server


def start(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", STREAM, str(folder / "checkpoint")], stdout=log, stderr=log, start_new_session=True,
            env=environment() | {"LEDGER_CONFIG": str(folder / "config.toml")},
        )  # fmt: skip


def kill(driver: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # all of it has ended by itself
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


@pytest.mark.spark
def test_a_stream_over_tls_and_sasl_is_killed_and_goes_on_exactly_once_and_shows_no_secret_I1_I5_I19(server, tmp_path):
    options = {**server.options, "storage": str(tmp_path / "storage")}
    with LedgerClient(options=options) as client:
        client.create_topic("in", SCHEMA)
        client.create_topic("out", SCHEMA)
        for first in range(0, RECORDS, 4):
            with client.producer("in") as producer:
                for number in range(first, min(first + 4, RECORDS)):
                    producer.send({"n": number})

        def written() -> list[int]:
            return [record["n"] for record in client.reader("out", end="latest")]

        driver = start(tmp_path)
        try:
            eventually(lambda: len(written()) >= 8, 120)
        finally:
            kill(driver)
        assert 8 <= len(written()) < RECORDS
        driver = start(tmp_path)
        try:
            assert driver.wait(120) == 0, (tmp_path / "driver.log").read_text()[-4000:]
        finally:
            kill(driver)
        assert written() == [*range(RECORDS)]
    secret = server.options["zookeeper.sasl.password"].encode()
    kept = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "config.toml"]
    assert {"driver.log", "metadata"} <= {file.name for file in kept}
    assert [file for file in kept if secret in file.read_bytes()] == []
