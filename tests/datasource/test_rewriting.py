"""Rewriting as a Spark job, and what Spark reads after it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_ledger import LedgerClient
from pyspark_ledger.client import namespace_of
from pyspark_ledger.datasource import rewriting


@pytest.mark.spark
def test_a_spark_job_rewrites_and_spark_reads_what_it_read_I1_I2(spark, namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("t", pa.schema([("n", pa.int64()), ("text", pa.string())]))
        client.set_policies("t", snapshot_commits=5)
        for name in (None, "p"):
            with client.producer("t", name=name, mint_tokens=name is not None) as producer:
                for n in range(12):
                    producer.send({"n": n, "text": f"{name} {n}"})
                    producer.flush()

        def seen() -> list[object]:
            options = {"zookeeper": namespace, "includeMetadata": "true", "minPartitions": "3"}
            rows = spark.read.format("ledger").options(**options).load("t").collect()
            return [row.asDict(recursive=True) for row in rows]

        before, records = seen(), list(client.reader("t", end="latest"))
        expected = client.rewrite("t", dry_run=True)
        done = rewriting.rewrite(spark, "t", zookeeper=namespace)
        # Entries with ids and without do not share a file, and one ledger has both.
        assert (done.ledgers, done.entries, done.files_after) == (4, 20, 5)
        assert replace(done, bytes_after=0, files_after=4) == expected
        assert seen() == before
        assert list(client.reader("t", end="latest")) == records
        log = namespace_of(client).log("t")
        assert (
            len({entry.file.uid for c in log.commits_from(log.view(), records[0].position) for entry in log.entries(c)})
            == 9
        )
