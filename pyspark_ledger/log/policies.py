"""What the owner of a topic or of a namespace may set while it is in use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any

from pyspark_ledger.base.sizes import MOST_BYTES
from pyspark_ledger.errors import InvalidInput, NotFound
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import Metadata, NamespaceKey, PoliciesKey
from pyspark_ledger.metadata.records import Namespace, Policies
from pyspark_ledger.metadata.transactions import PlainNode, Transactions

MOST_SNAPSHOT_COMMITS = 10_000  # every commit of the open ledger is a node in ZooKeeper
BACKLOG_ACTIONS = ("hold", "evict")


class Unchanged(Enum):
    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be changed of a topic's policies, as people give it; see ``client.set_policies``."""

    deduplication: bool | Unchanged | None = UNCHANGED
    snapshot_commits: int | Unchanged = UNCHANGED
    evict_producers_after: timedelta | Unchanged | None = UNCHANGED
    retention_age: timedelta | Unchanged | None = UNCHANGED
    retention_bytes: int | Unchanged | None = UNCHANGED
    backlog_quota_age: timedelta | Unchanged | None = UNCHANGED
    backlog_quota_bytes: int | Unchanged | None = UNCHANGED
    backlog_action: str | Unchanged = UNCHANGED
    expire_subscriptions_after: timedelta | Unchanged | None = UNCHANGED
    compact_after_bytes: int | Unchanged | None = UNCHANGED
    rewrite_below_bytes: int | Unchanged | None = UNCHANGED


# What is a time or a number of bytes, and the field that it is kept in; None stands for "never".
_TIMES = {
    "evict_producers_after": "evict_producers_ms",
    "retention_age": "retention_ms",
    "backlog_quota_age": "backlog_ms",
    "expire_subscriptions_after": "expire_subscriptions_ms",
}
_SIZES = {
    "retention_bytes": "retention_bytes",
    "backlog_quota_bytes": "backlog_bytes",
    "compact_after_bytes": "compact_after_bytes",
    "rewrite_below_bytes": "rewrite_below_bytes",
}


def change(log: Log, changes: Changes) -> Policies:
    """Changes a topic's policies. Commits that were decided by the old ones are refused, because they check the node's
    version."""

    if not log.topic.key and changes.compact_after_bytes not in (UNCHANGED, None):
        raise InvalidInput(
            f"compact_after_bytes: topic '{log.topic.name}' has no key, so it cannot be compacted. A topic gets its "
            "key when it is made",
            "LEDGER_INVALID_POLICY",
        )

    def edit(policies: Policies) -> Policies | None:
        wanted = _changed(policies, changes)
        return None if wanted == policies else wanted

    node = PlainNode(log.metadata, PoliciesKey(log.topic.uuid), log.gone)
    return log.transactions.change(node, edit, f"topic '{log.topic.name}': a change of its policies")


def _changed(policies: Policies, changes: Changes) -> Policies:
    found: dict[str, Any] = {}
    for given, field in _TIMES.items():
        value = getattr(changes, given)
        if value is not UNCHANGED:
            found[field] = _milliseconds(given, value)
    for given, field in _SIZES.items():
        value = getattr(changes, given)
        if value is not UNCHANGED:
            found[field] = _size(given, value)
    policies = _with_words(replace(policies, **found), changes)
    if policies.evict_backlog and not (policies.retention_ms or policies.retention_bytes):
        raise InvalidInput(
            "backlog_action 'evict' needs retention_age or retention_bytes: a topic that keeps everything has nothing "
            "to give up",
            "LEDGER_INVALID_POLICY",
        )
    return policies


def _with_words(policies: Policies, changes: Changes) -> Policies:
    """What is neither a time nor a number of bytes."""
    deduplication, commits, action = changes.deduplication, changes.snapshot_commits, changes.backlog_action
    if not isinstance(deduplication, Unchanged):
        if deduplication is not None and not isinstance(deduplication, bool):
            raise _invalid("deduplication", deduplication, "True, False, or None for what the namespace says")
        policies = replace(policies, deduplication=deduplication)
    if not isinstance(commits, Unchanged):
        if type(commits) is not int or not 0 <= commits <= MOST_SNAPSHOT_COMMITS:
            wanted = f"a whole number from 1 to {MOST_SNAPSHOT_COMMITS}, or 0 for the default"
            raise _invalid("snapshot_commits", commits, wanted)
        policies = replace(policies, snapshot_commits=commits)
    if not isinstance(action, Unchanged):
        if action not in BACKLOG_ACTIONS:
            raise _invalid("backlog_action", action, " or ".join(BACKLOG_ACTIONS))
        policies = replace(policies, evict_backlog=action == "evict")
    return policies


def _milliseconds(name: str, time: timedelta | None) -> int:
    if time is None:
        return 0
    milliseconds = time // timedelta(milliseconds=1) if isinstance(time, timedelta) else 0
    if milliseconds <= 0:
        raise _invalid(name, time, "a timedelta of a millisecond or more, or None for never")
    return milliseconds


def _size(name: str, size: int | None) -> int:
    if size is None:
        return 0
    if type(size) is not int or not 0 < size <= MOST_BYTES:
        raise _invalid(name, size, "a number of bytes above 0, or None for never")
    return size


def _invalid(name: str, value: object, wanted: str) -> InvalidInput:
    return InvalidInput(f"{name} is {value!r}: it must be {wanted}", "LEDGER_INVALID_POLICY")


def check_namespace(deduplication: bool) -> None:
    if not isinstance(deduplication, bool):
        raise _invalid("deduplication", deduplication, "True or False")


def change_namespace(transactions: Transactions, metadata: Metadata, deduplication: bool) -> None:
    def edit(namespace: Namespace) -> Namespace | None:
        wanted = replace(namespace, deduplication=deduplication)
        return None if wanted == namespace else wanted

    node = PlainNode(metadata, NamespaceKey(), lambda: NotFound("the namespace is not there"))
    transactions.change(node, edit, "the namespace's policies")
