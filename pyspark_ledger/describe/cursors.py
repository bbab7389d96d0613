"""What there is to know about subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyspark_ledger.describe.rows import Row
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.metadata.port import CursorKey, PartKey

if TYPE_CHECKING:
    from pyspark_ledger.cursors.handle import CursorStats
    from pyspark_ledger.log.log import Log


def subscription_rows(log: Log) -> list[Row]:
    from pyspark_ledger.cursors.handle import CursorHandle

    rows: list[Row] = []
    log.metadata.sync()
    keys = [
        key for key in log.metadata.children(PartKey(log.topic.uuid, "subscriptions")) if isinstance(key, CursorKey)
    ]
    held = _held_back(log, [key.name for key in keys])
    for key in keys:
        try:
            stats = CursorHandle(log, key.name).stats()
            rows.append({**subscription_row(log.topic.name, stats), **held[key.name]})
        except LedgerError as error:
            rows.append({"topic": log.topic.name, "subscription": key.name, "error": str(error)})
    return rows


def _held_back(log: Log, names: Sequence[str]) -> dict[str, Row]:
    """How much each subscription holds back of what retention would give up."""
    from pyspark_ledger.lifecycle import retention

    try:
        holds = retention.holds(log, log.view(), log.policies().record) if names else []
    except LedgerError as error:
        return {name: {"error": str(error)} for name in names}
    held = {hold.subscription: hold for hold in holds}
    return {
        name: {
            "held_back_records": held[name].records if name in held else 0,
            "held_back_bytes": held[name].bytes if name in held else 0,
        }
        for name in names
    }


def subscription_row(topic: str, stats: CursorStats) -> Row:
    return {
        "topic": topic,
        "subscription": stats.name,
        "position": stats.mark_delete,
        "backlog_records": stats.backlog_records,
        "backlog_bytes": stats.backlog_bytes,
        "backlog_seconds": stats.backlog_seconds,
        "owner": ", ".join(stats.followers),
        "sharing": stats.sharing,
        "epoch": stats.epoch,
        "revision": stats.revision,
    }


def subscription_facts(topic: str, stats: CursorStats) -> dict[str, Any]:
    return {
        **subscription_row(topic, stats),
        "revision_running_seconds": stats.revising_seconds,
        "individual_acks": stats.individual_acks,
        "evicted": stats.evicted,
        "lost": stats.lost,
        "properties": dict(stats.properties),
        "members": [asdict(each) for each in stats.members],
    }
