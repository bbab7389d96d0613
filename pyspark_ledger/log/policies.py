"""What the owner of a topic or of a namespace may set while it is in use."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from enum import Enum

from pyspark_ledger.errors import InvalidInput, NotFound
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import Metadata, NamespaceKey, PoliciesKey
from pyspark_ledger.metadata.records import Namespace, Policies
from pyspark_ledger.metadata.transactions import PlainNode, Transactions

MOST_SNAPSHOT_COMMITS = 10_000  # every commit of the open ledger is a node in ZooKeeper


class Unchanged(Enum):
    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


def change(
    log: Log,
    deduplication: bool | Unchanged | None,
    snapshot_commits: int | Unchanged,
    evict_producers_after: timedelta | Unchanged | None,
) -> Policies:
    """Changes a topic's policies. Commits that were decided by the old ones are refused, because they check the node's
    version."""

    def edit(policies: Policies) -> Policies | None:
        wanted = _changed(policies, deduplication, snapshot_commits, evict_producers_after)
        return None if wanted == policies else wanted

    node = PlainNode(log.metadata, PoliciesKey(log.topic.uuid), log.gone)
    return log.transactions.change(node, edit, f"topic '{log.topic.name}': a change of its policies")


def _changed(
    policies: Policies,
    deduplication: bool | Unchanged | None,
    snapshot_commits: int | Unchanged,
    evict_producers_after: timedelta | Unchanged | None,
) -> Policies:
    if not isinstance(deduplication, Unchanged):
        if deduplication is not None and not isinstance(deduplication, bool):
            raise _invalid("deduplication", deduplication, "True, False, or None for what the namespace says")
        policies = replace(policies, deduplication=deduplication)
    if not isinstance(snapshot_commits, Unchanged):
        if type(snapshot_commits) is not int or not 0 <= snapshot_commits <= MOST_SNAPSHOT_COMMITS:
            wanted = f"a whole number from 1 to {MOST_SNAPSHOT_COMMITS}, or 0 for the default"
            raise _invalid("snapshot_commits", snapshot_commits, wanted)
        policies = replace(policies, snapshot_commits=snapshot_commits)
    if not isinstance(evict_producers_after, Unchanged):
        policies = replace(policies, evict_producers_ms=_milliseconds(evict_producers_after))
    return policies


def _milliseconds(evict_producers_after: timedelta | None) -> int:
    if evict_producers_after is None:
        return 0
    is_time = isinstance(evict_producers_after, timedelta)
    milliseconds = evict_producers_after // timedelta(milliseconds=1) if is_time else 0
    if milliseconds <= 0:
        wanted = "a timedelta of a millisecond or more, or None for never"
        raise _invalid("evict_producers_after", evict_producers_after, wanted)
    return milliseconds


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
