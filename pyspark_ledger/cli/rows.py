"""What is stored, as rows to show. Loads neither pyarrow nor ZooKeeper's client."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.cli.arguments import NEVER, bytes_or_never, time_or_never
from pyspark_ledger.cli.output import Row
from pyspark_ledger.metadata.records import Head, Policies, Topic

if TYPE_CHECKING:
    from pyspark_ledger.compaction.run import CompactionStats


def moment(milliseconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None


def given_up(head: Head) -> tuple[int, int]:
    """Records and bytes that retention has given up."""
    return (head.trim.records, head.trim.bytes) if head.trim else (0, 0)


def summary(topic: Topic, head: Head) -> Row:
    records, size = given_up(head)
    return {
        "topic": topic.name,
        "records": head.records,
        "bytes": head.bytes,
        "kept_records": head.records - records,
        "kept_bytes": head.bytes - size,
        "begin": head.trim.position if head.trim else EARLIEST,
        "end": head.end,
        "last_publish": moment(head.last_publish_ms),
        "key": topic.key,
        "generation": head.generation.number if head.generation else None,
    }


def policies(policies: Policies) -> Row:
    return {
        "deduplication": "default" if policies.deduplication is None else policies.deduplication,
        "snapshot_commits": policies.snapshot_commits or "default",
        "evict_producers_after": time_or_never(policies.evict_producers_ms),
        "retention_age": time_or_never(policies.retention_ms),
        "retention_bytes": bytes_or_never(policies.retention_bytes),
        "backlog_quota": _quota(policies),
        "backlog_action": "evict" if policies.evict_backlog else "hold",
        "expire_subscriptions_after": time_or_never(policies.expire_subscriptions_ms),
        "compact_after": bytes_or_never(policies.compact_after_bytes),
        "rewrite_below": bytes_or_never(policies.rewrite_below_bytes),
    }


def _quota(policies: Policies) -> str:
    limits = bytes_or_never(policies.backlog_bytes), time_or_never(policies.backlog_ms)
    return ",".join(limit for limit in limits if limit != NEVER) or NEVER


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
