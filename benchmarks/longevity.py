"""What a topic costs when it is old: ``python -m benchmarks.longevity``. Requests and seconds for opening it, giving up
a ledger and gc, with 10, 100 and 1,000 sealed ledgers of a thousand commits each, on a real ZooKeeper.

A million commits one by one would take hours. So the sealed ledgers are written as sealing writes them, by the same
functions, with one small file for the entries of a ledger; the last ledgers are appended for real.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from benchmarks.commits import zookeeper_size
from pyspark_ledger.base.limits import DEFAULT_LIMITS
from pyspark_ledger.client import client_of, open_namespace
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.files.storage import LocalStorage
from pyspark_ledger.lifecycle import gc, retention
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.log.index import Index, stage_leaf
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import DedupKey, Put
from pyspark_ledger.metadata.records import Commit, Entry, FileRef, Head
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

COMMITS = DEFAULT_LIMITS.commits_per_ledger
SCHEMA = pa.schema([("n", pa.int64())])
LIMITS = replace(DEFAULT_LIMITS, gc_grace_ms=1)  # so that each run of gc is one that works


def grow(log: Log, ledgers: int) -> None:
    """Adds sealed ledgers to an empty topic."""
    spine: tuple[FileRef, ...] = ()
    commits: list[Commit] = []
    for ledger in range(ledgers):
        commits = _ledger(log, ledger)
        spine = Index(log.files, spine).extended(stage_leaf(log.files, commits, 0), 0, log.limits.index_fanout)
    dedup = log.metadata.read(DedupKey(log.topic.uuid))
    assert dedup is not None
    last = commits[-1]

    def grown(head: Head) -> Head:
        return replace(
            head, ledger=ledgers, ledger_first_commit=last.number + 1, next_commit=last.number + 1, index=spine,
            records=last.records_before + 1, bytes=last.bytes_before + last.bytes, last_commit=last.id,
            last_publish_ms=last.publish_ms,
        )  # fmt: skip

    snapshot = replace(dedup.record, next_commit=last.number + 1, mark_delete=log.view().head.end)
    log.change_head(grown, "growing old", lambda: [Put(DedupKey(log.topic.uuid), snapshot, dedup.version)])


def _ledger(log: Log, ledger: int) -> list[Commit]:
    rows = pa.RecordBatch.from_pydict({"n": range(ledger * COMMITS, (ledger + 1) * COMMITS)}, schema=SCHEMA)
    whole = stage_entry(log.storage, log.topic.uuid, 0, [rows], "lz4", log.clock)
    size, first = whole.file.length // COMMITS, ledger * COMMITS
    return [_commit(whole, ledger, first + at, at, size) for at in range(COMMITS)]


def _commit(whole: Entry, ledger: int, number: int, at: int, size: int) -> Commit:
    return Commit(
        number=number, id=number.to_bytes(16), ledger=ledger, first_entry=at, entry_count=1, records=1, bytes=size,
        records_before=number, bytes_before=number * size, publish_ms=1_000 + number, schema_id=0,
        entries=(replace(whole, records=1, first_row=at, file_rows=COMMITS),),
        previous=(number - 1).to_bytes(16) if number else b"",
    )  # fmt: skip


# -- measuring --------------------------------------------------------------------------------------------------------


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Requests to ZooKeeper, and reads, listings and deletions of files."""
    counts: Counter[str] = Counter()

    def counting(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[kind] += 1
            return real(*arguments, **options)

        return call

    watched: list[tuple[type, str, str]] = []
    watched += [
        (ZooKeeperMetadata, name, "zookeeper") for name in ("read", "read_many", "children", "transact", "sync")
    ]
    watched += [(LocalStorage, name, "files") for name in ("read", "map", "list", "folders", "delete")]
    patches = [patch.object(kind, name, counting(what, getattr(kind, name))) for kind, name, what in watched]
    for each in patches:
        each.start()
    try:
        yield counts
    finally:
        for each in patches:
            each.stop()


def measure(namespace: OpenNamespace, address: str, ledgers: int) -> dict[str, Any]:
    """Each by a process that has nothing in memory."""
    name = f"old-{ledgers}"
    namespace.create_topic(name, SCHEMA)
    grow(namespace.log(name), ledgers)
    with client_of(namespace).producer(name, linger_ms=None) as producer:
        for _ in range(4):  # so that the epoch that gc judges has files
            for number in range(COMMITS // 2):
                producer.send({"n": number})
                producer.flush()
            gc.collect(namespace.log(name), thorough=False)
    actions: dict[str, Callable[[Log], object]] = {
        "open and read a record": lambda log: next(iter(client_of(namespace).reader(name, end="latest"))),
        "trim of a ledger": lambda log: retention.trim(log, before="1:0:0"),
        "gc": lambda log: gc.collect(log, thorough=False),
        "gc, thorough": lambda log: gc.collect(log, thorough=True),
    }
    found: dict[str, Any] = {"commits": namespace.log(name).view().head.next_commit}
    for what, act in actions.items():
        began = time.perf_counter()
        with counted() as counts:
            act(namespace.log(name))
        found[what] = {**counts, "ms": round((time.perf_counter() - began) * 1e3)}
    return found | {"zookeeper": zookeeper_size(address)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, nargs="+", default=[10, 100, 1_000])
    for ledgers in parser.parse_args().ledgers:
        with tempfile.TemporaryDirectory() as work, LocalZooKeeper() as zookeeper:
            address = f"{zookeeper.address}/longevity"
            namespace = open_namespace(address, str(Path(work) / "storage"), limits=LIMITS)
            print(ledgers, "ledgers:", measure(namespace, address, ledgers), flush=True)
            namespace.close()


if __name__ == "__main__":
    main()
