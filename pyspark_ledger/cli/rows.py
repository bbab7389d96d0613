"""What is stored, as rows to show. Loads neither pyarrow nor ZooKeeper's client."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark_ledger.cli.arguments import spelled
from pyspark_ledger.cli.output import Row
from pyspark_ledger.metadata.records import Head, Policies, Topic

if TYPE_CHECKING:
    from pyspark_ledger.compaction.run import CompactionStats


def moment(milliseconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None


def summary(topic: Topic, head: Head) -> Row:
    return {
        "topic": topic.name,
        "records": head.records,
        "bytes": head.bytes,
        "end": head.end,
        "last_publish": moment(head.last_publish_ms),
        "key": topic.key,
        "generation": head.generation.number if head.generation else None,
    }


def policies(policies: Policies) -> Row:
    return {
        "deduplication": "default" if policies.deduplication is None else policies.deduplication,
        "snapshot_commits": policies.snapshot_commits or "default",
        "evict_producers_after": spelled(policies.evict_producers_ms / 1000)
        if policies.evict_producers_ms
        else "never",
    }


def compacted(stats: CompactionStats | None) -> Row | None:
    if stats is None:
        return None
    return {
        "generation": stats.generation,
        "horizon": stats.horizon,
        "records": stats.records,
        "records_before": stats.records_before,
        "bytes": stats.bytes,
        "finished": moment(stats.finished_ms),
        "seconds": (stats.finished_ms - stats.started_ms) / 1000,
        "backlog_records": stats.backlog_records,
        "running_since": moment(stats.running_since_ms),
    }
