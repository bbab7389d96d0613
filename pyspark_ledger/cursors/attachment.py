"""Owning a subscription: one owner at a time, epochs and fencing (PIP-84).

The cursor says who attached last, and under which epoch. An owner that lost its session is fenced if somebody else has
attached since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pyspark_ledger.base.names import this_process
from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors import shares
from pyspark_ledger.cursors.follower import Follower
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import SeenRevision
from pyspark_ledger.errors import Fenced
from pyspark_ledger.log import lost, scan
from pyspark_ledger.metadata.records import Cursor, Head, Holder

SubscriptionType = Literal["exclusive", "failover"]


class Attachment(Follower):
    """One owner of a subscription, or one that waits to become it."""

    def __init__(
        self, node: CursorNode, kind: SubscriptionType = "exclusive", name: str = "", *, compacted: bool = False
    ) -> None:
        super().__init__(node, node.owner_key, node.log.clock.new_id(), name or this_process())
        self.kind, self._compacted = kind, compacted

    @property
    def waits_for_owner(self) -> bool:
        return self.kind == "failover"

    def _in_the_way(self, cursor: Cursor, followers: Sequence[Holder]) -> bool:
        return bool(followers)

    def _take(self, seen: Cursor, followers: Sequence[Holder]) -> None:
        def take(cursor: Cursor) -> Cursor | None:
            if cursor.epoch != seen.epoch or cursor.reviser:
                return None  # it was applied when it was sent before, or somebody else was faster
            if [each.id for each in cursor.members] != [each.id for each in seen.members]:
                return None  # one who shares it has joined, and is alive
            return replace(
                shares.disbanded(cursor),
                owner=self._id,
                owner_name=self._name,
                epoch=cursor.epoch + 1,
                compacted=self._compacted,
                abandoned=False,
            )

        self.node.update(take, lambda _: self._holding.create_ops())

    def _left(self, cursor: Cursor) -> Cursor | None:
        return replace(cursor, owner=b"", owner_name="") if cursor.owner == self._id else None

    # -- while attached ------------------------------------------------------------------------------------

    def acknowledge(
        self, position: Position, revision: int, reset: bytes = b"", *, around_lost: bool = False
    ) -> Cursor:
        """Acknowledges everything before a position that was read under a revision, which that ``reset`` has made (if
        it is known). Does nothing if the cursor has another revision by now. A position past the end is refused: from
        there new records would be skipped later. ``around_lost``: damaged entries that were given up were not read, and
        their records are counted as lost."""
        seen = SeenRevision(revision, reset)

        def forward(cursor: Cursor) -> Cursor | None:
            self._check_in(cursor)
            if cursor.revision != revision or cursor.reviser or position <= cursor.mark_delete:
                return None
            if not seen.is_of(cursor):
                return None  # another reset has the number of one that was lost in a rollback
            view = self._log.view()
            if position > view.head.end:
                view = self._log.refresh(sync=True)
            self._log.check_not_past_end(view, position)
            # Before where the log begins all positions have as many records before them as that has.
            ordinal = max(cursor.ordinal, scan.records_before(self._log, view, position))
            moved = self.node.moved(cursor, ordinal, self.node.acks(cursor), position)
            return replace(moved, lost=cursor.lost + self._lost(cursor, ordinal, view.head)) if around_lost else moved

        cursor = self.node.current(60.0)
        if cursor.revision == revision and not cursor.reviser and position <= cursor.mark_delete:
            return cursor  # nothing new: no request is needed
        return self.node.update(forward)

    def _lost(self, cursor: Cursor, ordinal: int, head: Head) -> int:
        """How many records before an ordinal were not acknowledged yet, and cannot be read any more."""
        if head.lost is None or cursor.compacted:  # a generation has the records of such entries
            return 0
        lost_entries = lost.fetch(self._log.files, head)
        known = ((start, min(stop, ordinal)) for start, stop in self.node.acks(cursor))
        return lost.count(lost_entries, cursor.ordinal, ordinal) - sum(lost.count(lost_entries, *run) for run in known)

    def _check_in(self, cursor: Cursor) -> None:
        if cursor.owner != self._id:
            raise Fenced(
                f"subscription '{self.node.name}' of topic '{self._log.topic.name}' was taken over by "
                f"{cursor.owner_name or 'somebody who has left since'} under epoch {cursor.epoch}: this owner "
                f"({self._name}) was away for longer than its ZooKeeper session. It must stop; nothing was changed",
                "LEDGER_SUBSCRIPTION_FENCED",
            )
