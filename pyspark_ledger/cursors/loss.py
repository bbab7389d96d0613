"""What a subscription has lost: to a backlog quota, because the log no longer reaches back to where it is, or because a
damaged entry was given up by name.

Whoever follows it is told so, each time anew, until a person has reset the subscription, or a reader goes on that was
told to go on without what is lost. The cursor counts these records, in the same transaction: none is counted twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from pyspark_ledger.cursors.follower import Follower
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.errors import DataLoss
from pyspark_ledger.log import trimmed
from pyspark_ledger.log.lost import LostEntry
from pyspark_ledger.metadata.records import Cursor, Head

logger = logging.getLogger(__name__)


def evicted(node: CursorNode, cursor: Cursor, records: int, option: str) -> DataLoss:
    """What to tell who follows a subscription from which a backlog quota took so many records; ``option`` is how its
    reader is made to go on."""
    return DataLoss(
        f"{node.what}: {records:,} records that were not acknowledged were taken from it, because it held back more "
        f"than the topic's backlog quota allows, or for longer: it is at {cursor.mark_delete} now. To go on, reset it "
        f"(to {cursor.mark_delete}, or to earliest for all that is left), or set {option}",
        "LEDGER_EVICTED",
    )


def count_evicted(follower: Follower, seen: Cursor, unread: Callable[[Cursor], int]) -> None:
    """Goes on after an eviction, and counts as lost what its reader has not read. Does nothing if the cursor was moved
    again since it was ``seen``: then there is something else to tell."""

    def accept(cursor: Cursor) -> Cursor | None:
        if not cursor.evicted or cursor.revision != seen.revision:
            return None
        return replace(cursor, evicted=0, lost=cursor.lost + unread(cursor))

    now = follower.change(accept)
    lost = now.lost - seen.lost if now.revision == seen.revision else 0
    if lost:
        logger.warning(
            "%s: %s records are lost to the backlog quota: going on from %s", follower.node.what, f"{lost:,}",
            seen.mark_delete,
        )  # fmt: skip


def count_trimmed(follower: Follower, head: Head) -> Cursor:
    """Moves a cursor that is where the log does not reach any more to where it begins, and counts what is lost."""
    node, gone = follower.node, trimmed.records_before_begin(head)

    def forward(cursor: Cursor) -> Cursor | None:
        if not trimmed.is_gone(head, cursor.mark_delete):
            return None
        acks, ordinal = node.acks(cursor), max(gone, cursor.ordinal)
        lost = ordinal - cursor.ordinal - len(acks) + len(acks.since(ordinal))
        return replace(node.moved(cursor, acks.next_missing(ordinal), acks), lost=cursor.lost + lost)

    return follower.change(forward)


def count_lost(follower: Follower, lost: LostEntry) -> Cursor:
    """Acknowledges the records of a damaged entry that was given up, and counts them as lost; each once, however often
    it is met."""
    node = follower.node

    def past(cursor: Cursor) -> Cursor | None:
        acks = node.acks(cursor)
        done = acks | ((max(lost.ordinal, cursor.ordinal), lost.ordinal + lost.records),)
        more = len(done) - len(acks)
        if not more:
            return None
        return replace(node.moved(cursor, done.next_missing(cursor.ordinal), done), lost=cursor.lost + more)

    return follower.change(past)
