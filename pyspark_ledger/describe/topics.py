"""What there is to know about a topic."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.describe import ddl
from pyspark_ledger.describe.policies import policies
from pyspark_ledger.describe.rows import Row, compacted, given_up, moment
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.trimmed import begin
from pyspark_ledger.metadata.port import CursorKey, GcKey, PartKey
from pyspark_ledger.metadata.records import Commit, Head

RATE_COMMITS = 100


def description(log: Log, ledgers: int) -> dict[str, Any]:
    view, producers = log.producers()
    head, topic = view.head, log.topic
    subscriptions = [
        key.name for key in log.metadata.children(PartKey(topic.uuid, "subscriptions")) if isinstance(key, CursorKey)
    ]
    return {
        "topic": topic.name,
        "uuid": topic.uuid,
        "created": moment(topic.created_ms),
        "files": log.storage.where(topic.uuid),
        "key": topic.key,
        "version_column": topic.version_column,
        "records": head.records,
        "bytes": head.bytes,
        "commits": head.next_commit,
        "begin": begin(head),
        "end": head.end,
        "last_publish": moment(head.last_publish_ms),
        "terminated": moment(head.terminated_ms),
        **_lifecycle(log, head),
        "rate": rate(newest_commits(log, view)),
        "subscriptions": subscriptions,
        "deduplication": log.deduplicates(),
        "producers": len(producers),
        "evicted_producers": producers.evicted,
        "compaction": compacted(compaction.stats(log)),
        "policies": policies(log.policies().record),
        "schema": [
            {"column": field.name, "type": ddl.type_name(field.type), "null": field.nullable}
            for field in log.schema(head.schema_id)
        ],
        "ledgers": _ledgers(log, view, ledgers),
    }


def _lifecycle(log: Log, head: Head) -> dict[str, Any]:
    """What was given up, what is left, and what gc has yet to do."""
    records, size = given_up(head)
    epoch = log.metadata.read(GcKey(log.topic.uuid))
    age_ms = log.metadata.now_ms() - epoch.modified_ms if epoch is not None else None
    return {
        "trimmed_records": records,
        "trimmed_bytes": size,
        "kept_records": head.records - records,
        "kept_bytes": head.bytes - size,
        "pending_deletion": [f"ledgers {each.first} to {each.end - 1}" for each in head.pending],
        "gc_epoch": head.gc_epoch,
        "gc_epoch_age_seconds": None if age_ms is None else max(0, age_ms) / 1000,
    }


def newest_commits(log: Log, view: View) -> list[Commit]:
    """Those of the open ledger; if it is too young to tell a rate, those of the one before."""
    commits = list(view.open_commits)
    if len(commits) < 2 and view.head.ledger_first_commit > 0:
        index = log.index(view)
        leaf = next(index.leaves(lambda row: row.first_commit, view.head.ledger_first_commit - 1), None)
        commits = [*(index.commits(leaf) if leaf is not None else ()), *commits]
    return commits[-RATE_COMMITS:]


def rate(commits: list[Commit]) -> Row | None:
    """What came per second from the first of these commits to the last; None if that is no time at all."""
    milliseconds = commits[-1].publish_ms - commits[0].publish_ms if commits else 0
    if not milliseconds:
        return None
    seconds = milliseconds / 1000
    return {
        "records_per_second": sum(commit.records for commit in commits[1:]) / seconds,
        "bytes_per_second": sum(commit.bytes for commit in commits[1:]) / seconds,
        "over_commits": len(commits) - 1,
        "over_seconds": seconds,
    }


def _ledgers(log: Log, view: View, count: int) -> list[Row]:
    """The newest ones, from their first commits."""
    head, index = view.head, log.index(view)
    sealed: list[Commit] = []
    if head.index and count > 1:
        leaves = index.leaves(lambda row: row.ledger, head.ledger - count + 1)
        sealed = [index.commits(leaf)[0] for leaf in leaves]
    starts = [(c.ledger, c.number, c.records_before, c.bytes_before, c.publish_ms) for c in sealed]
    first = view.open_commits[0] if view.open_commits else None
    before = (first.records_before, first.bytes_before) if first else (head.records, head.bytes)
    opened = (head.ledger, head.ledger_first_commit, *before, head.ledger_opened_ms)
    end = (head.ledger + 1, head.next_commit, head.records, head.bytes, 0)
    return [
        {
            "ledger": ledger,
            "state": "open" if ledger == head.ledger else "sealed",
            "since": moment(began),
            "commits": following[1] - number,
            "records": following[2] - records,
            "bytes": following[3] - size,
        }
        for (ledger, number, records, size, began), following in pairwise([*starts, opened, end])
    ]
