"""What becomes of subscriptions that hold back too much, and of those that nobody uses.

A subscription holds back the ledgers that it has not passed: one that was forgotten fills the storage for ever. So a
topic may have a *backlog quota*, by stored bytes and by age. One that is over it is either only reported, or *evicted*:
moved forward to where the topic would begin without it, with a mark, so that whoever follows it is told (I15).

And a topic may let subscriptions *expire* that nobody uses. Every use writes the subscription's node: attaching,
acknowledging, moving it. For one whose followers only wait, maintenance writes the node anew; and once more when it
notices that they have died, so that the time counts from then on, however long nobody did any maintenance.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyspark_ledger.cursors.eviction import evict
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import CursorUnderRevision, NotFound, OutcomeUnknown
from pyspark_ledger.lifecycle import retention
from pyspark_ledger.log import scan
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import CursorKey, PartKey, Put, TransactionLost, Versioned
from pyspark_ledger.metadata.records import Cursor, Policies

logger = logging.getLogger(__name__)


# -- who holds back too much ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OverQuota:
    """A subscription that holds back more than its topic's backlog quota.

    Attributes:
        name: the subscription.
        bytes: stored bytes after its position.
        seconds: age of the oldest record that is not acknowledged.
        why: in words, what is too much.
        evicted: records that were taken from it.
    """

    name: str
    bytes: int
    seconds: float
    why: str
    evicted: int = 0


def over_quota(log: Log, view: View) -> list[OverQuota]:
    """The subscriptions that hold back too much."""
    policies = log.policies().record
    if not has_quota(policies):
        return []
    return [found for cursor in retention.subscriptions(log) if (found := judged(log, view, policies, cursor))]


def has_quota(policies: Policies) -> bool:
    return bool(policies.backlog_bytes or policies.backlog_ms)


def judged(log: Log, view: View, policies: Policies, cursor: Cursor) -> OverQuota | None:
    """None if a subscription holds back no more than it may."""
    if cursor.ordinal >= view.head.records:
        return None
    stored = view.head.bytes - scan.bytes_before(log, view, cursor.mark_delete)
    age_ms = max(0, _now_ms(log) - log.commit_at_ordinal(view, cursor.ordinal).publish_ms)
    why = []
    if policies.backlog_bytes and stored > policies.backlog_bytes:
        why.append(f"{stored:,} bytes are more than {policies.backlog_bytes:,}")
    if policies.backlog_ms and age_ms > policies.backlog_ms:
        why.append(f"its oldest record is older than {policies.backlog_ms / 1000:,.0f} s")
    return OverQuota(cursor.name, stored, age_ms / 1000, " and ".join(why)) if why else None


def enforce_quota(log: Log) -> list[OverQuota]:
    """Evicts those that hold back too much, if the topic's policies say so; returns all of them."""
    view = log.refresh(sync=True)
    log.check_not_set_back(view.head)
    policies, found = log.policies().record, over_quota(log, view)
    if not found or not policies.evict_backlog:
        return found
    if retention.waits_for_compaction(log, view, policies):
        return found  # nothing would be given up that they are made to lose
    ordinal = retention.start_of_wanted(log, view, policies).records
    if view.head.generation is not None:
        ordinal = min(ordinal, view.head.generation.read)
    return [replace(each, evicted=_evict(log, view, policies, each.name, ordinal)) for each in found]


def _evict(log: Log, view: View, policies: Policies, name: str, ordinal: int) -> int:
    """One that is ahead of what retention wants to give up stays where it is, and so does one that somebody moves right
    now, or that has caught up meanwhile."""
    try:
        return evict(CursorNode(log, name), ordinal, lambda cursor: judged(log, view, policies, cursor) is not None)
    except (CursorUnderRevision, NotFound):
        return 0


def _now_ms(log: Log) -> int:
    """The smaller of two clocks: because of one that is ahead nobody loses anything."""
    return min(log.clock.now_ms(), log.metadata.now_ms())


# -- whom nobody uses -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expired:
    """What became of subscriptions that were not used for a while: the names of those that were deleted, and how many
    were written anew because somebody follows them."""

    deleted: tuple[str, ...] = ()
    renewed: int = 0


def is_old(now_ms: int, policies: Policies, cursor: Versioned[Cursor]) -> bool:
    """Whether a subscription has to be looked at: nobody has written its node for a quarter of the time."""
    after = policies.expire_subscriptions_ms
    return bool(after) and now_ms - cursor.modified_ms >= after / 4


def expire(log: Log) -> Expired:
    """Deletes subscriptions that nobody has used for as long as the topic's policies say."""
    log.check_not_set_back(log.refresh(sync=True).head)
    policies = log.policies().record
    deleted, renewed = [], 0
    for cursor in _versioned(log):
        if not is_old(_now_ms(log), policies, cursor):
            continue
        node = CursorNode(log, cursor.record.name)
        if node.followers(cursor.record) or node.reviser(cursor.record) is not None:
            renewed += _renew(log, cursor, abandoned=False)
        elif (cursor.record.owner or cursor.record.members) and not cursor.record.abandoned:
            renewed += _renew(log, cursor, abandoned=True)
        elif _now_ms(log) - cursor.modified_ms >= policies.expire_subscriptions_ms and _delete(node, cursor):
            deleted.append(node.name)
            days = policies.expire_subscriptions_ms / 86_400_000
            logger.warning(
                "expired topic=%s subscription=%s position=%s: nobody has used it for %.3g days",
                log.topic.name, node.name, cursor.record.mark_delete, days,
            )  # fmt: skip
    return Expired(tuple(deleted), renewed)


def _versioned(log: Log) -> Iterable[Versioned[Cursor]]:
    keys = log.metadata.children(PartKey(log.topic.uuid, "subscriptions"))
    found = log.metadata.read_many([key for key in keys if isinstance(key, CursorKey)])
    return [cursor for cursor in found if cursor is not None]


def _renew(log: Log, cursor: Versioned[Cursor], *, abandoned: bool) -> bool:
    """Who follows it may wait for weeks, and die then: that is not to be the end of the subscription."""
    record = replace(cursor.record, abandoned=abandoned)
    try:
        log.metadata.transact([Put(CursorKey(log.topic.uuid, record.name), record, cursor.version)])
    except (TransactionLost, OutcomeUnknown):  # somebody else has written it, or the next run will
        return False
    return True


class _Used(Exception):
    """Somebody has used it meanwhile."""


def _delete(node: CursorNode, seen: Versioned[Cursor]) -> bool:
    """At the version that was seen: whoever has used it since keeps it."""

    def check(cursor: Cursor) -> None:
        if node.known().version != seen.version or node.followers(cursor) or node.reviser(cursor):
            raise _Used

    try:
        node.remove(check)
    except (_Used, NotFound):
        return False
    return True
