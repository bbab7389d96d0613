"""What is stored, as rows to show. Loads neither pyarrow nor ZooKeeper's client."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.metadata.records import Head, Topic

if TYPE_CHECKING:
    from pyspark_ledger.compaction.run import CompactionStats

__all__ = ["Row", "compacted", "given_up", "moment", "summary"]

Row = Mapping[str, Any]


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
