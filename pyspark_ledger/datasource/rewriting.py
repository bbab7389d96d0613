"""Rewriting as a Spark job, for topics with more small files than one machine can copy. The same files as in process.

Tasks copy ledgers; each needs storage only. The driver has the lock, plans and publishes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.client import settings_of, shared_namespace
from pyspark_ledger.files.storage import Root
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.lifecycle import rewriting
from pyspark_ledger.lifecycle.rewrite_copy import LedgerCopy, Report, Skipped, copies, copy
from pyspark_ledger.lifecycle.rewrite_plan import LedgerWork
from pyspark_ledger.lifecycle.rewriting import Rewritten


def rewrite(
    spark: SparkSession,
    topic: str,
    *,
    below_bytes: int | None = None,
    everything: bool = False,
    zookeeper: str | None = None,
    storage: str | None = None,
    profile: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Rewritten:
    """As ``client.rewrite``, as a Spark job."""
    settings = settings_of(options, zookeeper, storage, profile=profile)
    log = shared_namespace(settings, pooled=False).log(topic)
    uuid = log.topic.uuid

    def on_executors(group: list[LedgerWork], epoch: int, report: Report) -> Iterable[LedgerCopy | Skipped]:
        found = _copy(spark, log.storage.root, uuid, group, epoch)
        report(sum(each.bytes for each in group))
        return found

    return rewriting.rewrite_with(log, on_executors, below_bytes, everything=everything)


def _copy(
    spark: SparkSession, storage: Root, uuid: str, group: list[LedgerWork], epoch: int
) -> list[LedgerCopy | Skipped]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = TopicFiles(storage.open(), uuid, SYSTEM_CLOCK)
        mine = [group[number] for batch in batches for number in batch.column(0).to_pylist()]
        for done in copies(mine, lambda work: copy(files, work, epoch, SYSTEM_CLOCK)):
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(done)], pa.binary())], ["done"])

    numbers = spark.range(0, len(group), 1, len(group))
    return [pickle.loads(row["done"]) for row in numbers.mapInArrow(run, "done binary").collect()]
