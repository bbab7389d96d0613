"""Roles in Spark: a query goes on while its login is passed on, and one that may not write is told so by a code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.client import LedgerClient
from pyspark_ledger.lifecycle.access import Access, parse_identity, with_password
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata
from tests.support.jobs import environment
from tests.support.query import eventually
from tests.support.zookeeper import as_user

SCHEMA = pa.schema([("n", pa.int64())])
PATIENCE_S = 400.0  # with Spark, on a machine that is busy with other tests
STREAM = """
import pathlib, sys, time
from pyspark.sql import SparkSession
from pyspark_ledger import spark as ledger
builder = SparkSession.builder.master("local[2]")
for option in ("spark.ui.enabled=false", "spark.log.level=ERROR", "spark.sql.shuffle.partitions=2"):
    builder = builder.config(*option.split("="))
spark = builder.getOrCreate()
folder = pathlib.Path(sys.argv[1])
stream = spark.readStream.format("ledger").option("profile", "etl").option("subscription", "s").load("in")
sink = stream.writeStream.format("ledger").option("profile", "etl").option("checkpointLocation", folder / "checkpoint")
query = sink.trigger(processingTime="100 milliseconds").start("out")
while not (folder / "stop").exists() and query.isActive:
    time.sleep(0.1)
assert query.exception() is None, query.exception()
query.stop()
report = spark.read.format("ledger").option("profile", "report").option("endingOffsets", "latest").load("out")
assert report.count() > 0
try:
    report.write.format("ledger").option("profile", "report").mode("append").save("out")
except Exception as error:
    print(ledger.error(error), flush=True)
"""


def profiles(folder: Path, namespace: str, etl: str) -> None:
    """Written beside and renamed, so that nobody sees half of it."""
    lines = []
    for name, login in (("etl", etl), ("report", "bob:r")):
        user, _, password = login.partition(":")
        lines += [f"[{name}]", f'zookeeper = "{namespace}"']
        lines += [f'"zookeeper.user" = "{user}"', f'"zookeeper.password" = "{password}"']
    new = folder / "config.new"
    new.touch(mode=0o600)
    new.write_text("\n".join(lines))
    new.rename(folder / "config.toml")


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_query_goes_on_while_its_login_is_passed_on_and_a_reader_that_writes_is_told_I20(namespace, tmp_path):
    def who(user: str, password: str) -> tuple[str, str]:
        return with_password(parse_identity(f"digest:{user}"), password)

    profiles(tmp_path, namespace, "etl:old")
    with (
        LedgerClient(namespace, str(tmp_path / "storage"), password="boss:b") as client,
        closing(ZooKeeperMetadata(as_user(namespace, "boss:b"))) as metadata,
    ):
        client.create_topic("in", SCHEMA)
        client.create_topic("out", SCHEMA)
        roles = Access(metadata)
        for role, identity in (
            ("writer", who("etl", "old")),
            ("reader", who("etl", "old")),
            ("reader", who("bob", "r")),
        ):
            roles.grant(role, identity)
        with (tmp_path / "driver.log").open("wb") as log:
            driver = subprocess.Popen(
                [sys.executable, "-c", STREAM, str(tmp_path)], stdout=log, stderr=log, start_new_session=True,
                env=environment() | {"LEDGER_CONFIG": str(tmp_path / "config.toml")},
            )  # fmt: skip
        sent: list[int] = []

        def written() -> list[int]:
            return [record["n"] for record in client.reader("out", end="latest")]

        def more() -> bool:
            """Another record has come through since."""
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-4000:]
            with client.producer("in") as producer:
                producer.send({"n": len(sent)})
            sent.append(len(sent))
            eventually(lambda: written() == sent or driver.poll() is not None, PATIENCE_S)
            return driver.poll() is None

        try:
            assert more()
            roles.rotate(parse_identity("digest:etl"), who("etl", "new"))
            leaving = roles.leaving(parse_identity("digest:etl"))
            assert roles.owners(leaving) != []
            assert more()
            profiles(tmp_path, namespace, "etl:new")
            eventually(lambda: more() and not roles.owners(leaving), PATIENCE_S)
            roles.finish(parse_identity("digest:etl"))
            assert more()
            assert more()
            (tmp_path / "stop").touch()
            assert driver.wait(PATIENCE_S) == 0, (tmp_path / "driver.log").read_text()[-4000:]
        finally:
            with suppress(ProcessLookupError):  # all of it has ended by itself
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        assert written() == sent
    said = (tmp_path / "driver.log").read_text()
    assert "LEDGER_NOT_ALLOWED" in said
    assert "digest:bob has the role reader in this namespace, and may not" in said
    assert "that needs the role writer" in said
