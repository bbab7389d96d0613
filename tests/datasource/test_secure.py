"""A stream whose ZooKeeper takes only TLS, certificates and SASL: exactly once, and nothing of it shows. And one whose
keys for the storage change while it runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.client import LedgerClient
from pyspark_ledger.files import access
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from tests.support.jobs import environment
from tests.support.query import eventually

RECORDS = 40
PATIENCE_S = 400.0  # with Spark, on a machine that is busy with other tests
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
@pytest.mark.timeout(900)
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
            eventually(lambda: len(written()) >= 8, PATIENCE_S)
        finally:
            kill(driver)
        assert 8 <= len(written()) < RECORDS
        driver = start(tmp_path)
        try:
            assert driver.wait(PATIENCE_S) == 0, (tmp_path / "driver.log").read_text()[-4000:]
        finally:
            kill(driver)
        assert written() == [*range(RECORDS)]
    secret = server.options["zookeeper.sasl.password"].encode()
    kept = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "config.toml"]
    assert {"driver.log", "metadata"} <= {file.name for file in kept}
    assert [file for file in kept if secret in file.read_bytes()] == []


# -- keys that change --------------------------------------------------------------------------------------------------

FOLLOW = """
import pathlib, sys, time
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]")
for option in ("spark.ui.enabled=false", "spark.log.level=ERROR", "spark.sql.shuffle.partitions=2"):
    builder = builder.config(*option.split("="))
spark = builder.getOrCreate()
folder = pathlib.Path(sys.argv[1])
stream = spark.readStream.format("ledger").option("profile", "prod").load("in")
sink = stream.writeStream.format("ledger").option("profile", "prod").option("checkpointLocation", folder / "checkpoint")
query = sink.trigger(processingTime="100 milliseconds").start("out")
while not (folder / "stop").exists() and query.isActive:
    time.sleep(0.1)
assert query.exception() is None, query.exception()
query.stop()
"""


class Store:
    """An S3 that notes whose keys each request is signed with."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self.seen: list[str] = []  # the method, and the key's name
        app = DomainDispatcherApplication(create_backend_app)

        def noting(environ: dict[str, Any], start_response: Any) -> Any:
            key = re.search("Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
            self.seen.append(f"{environ['REQUEST_METHOD']} {key[1] if key else 'nobody'}")
            return app(environ, start_response)

        self._server = make_server("127.0.0.1", 0, noting, threaded=True)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_query_that_runs_takes_new_keys_of_the_storage_from_its_profile_and_no_old_one_is_used_after_I19(
    namespace, tmp_path
):
    store = Store()

    def settings(key: str) -> dict[str, str]:
        place = {"storage.endpoint": store.address, "storage.scheme": "http", "storage.region": "us-east-1"}
        return {**place, "storage.accessKey": key, "storage.secretKey": f"secret-of-{key}"}

    def put(key: str) -> None:
        values = {"zookeeper": namespace, "storage": "s3://ledger/root", **settings(key)}
        new = tmp_path / "config.new"
        new.touch(mode=0o600)
        new.write_text("\n".join(["[prod]", *(f'"{name}" = "{value}"' for name, value in values.items())]))
        new.rename(tmp_path / "config.toml")

    put("FORMER")
    client, _ = access.file_system("s3://ledger/root?allow_bucket_creation=true", settings("OURS"))
    client.create_dir("ledger")
    driver = None
    with closing(store), LedgerClient(namespace, "s3://ledger/root", options=settings("OURS")) as ours:
        for topic in ("in", "out"):
            ours.create_topic(topic, SCHEMA)
        sent: list[int] = []

        def more() -> None:
            """Another record has come through."""
            with ours.producer("in") as producer:
                producer.send({"n": len(sent)})
            sent.append(len(sent))
            eventually(lambda: [each["n"] for each in ours.reader("out", end="latest")] == sent, PATIENCE_S)

        try:
            with (tmp_path / "driver.log").open("ab") as log:
                driver = subprocess.Popen(
                    [sys.executable, "-c", FOLLOW, str(tmp_path)], stdout=log, stderr=log, start_new_session=True,
                    env=environment() | {"LEDGER_CONFIG": str(tmp_path / "config.toml")},
                )  # fmt: skip
            more()
            assert {"GET FORMER", "PUT FORMER"} <= {*store.seen}
            assert {each.partition(" ")[2] for each in store.seen} == {"OURS", "FORMER"}
            put("NEW")
            more()  # its batch may have been planned before
            store.seen.clear()
            more()
            more()
            assert {"GET NEW", "PUT NEW"} <= {*store.seen}
            assert {each.partition(" ")[2] for each in store.seen} == {"OURS", "NEW"}
            (tmp_path / "stop").touch()
            assert driver.wait(PATIENCE_S) == 0, (tmp_path / "driver.log").read_text()[-4000:]
        finally:
            if driver is not None:
                kill(driver)
    kept = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "config.toml"]
    assert [file for file in kept if b"secret-of-" in file.read_bytes()] == []
