"""Sharing a subscription: joining those who do, leaving them, and finding out who has died.

No process is in charge. A member that is gone is removed by whoever needs records, and what it had in hand goes to the
others. If it was only away, it finds out with its next call: it joins again, and is somebody new.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark_ledger.cursors import shares
from pyspark_ledger.cursors.follower import Follower
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.shares import Sharing
from pyspark_ledger.errors import Conflict, Fenced
from pyspark_ledger.metadata.records import Cursor, Holder, Member

logger = logging.getLogger(__name__)


class Removed(Fenced):
    """The others thought that it was dead, and have its records by now."""

    default_code = "LEDGER_SUBSCRIPTION_FENCED"


class Membership(Follower):
    """One of those who share a subscription, or one that is about to join them."""

    waits_for_owner = False

    def __init__(self, node: CursorNode, sharing: Sharing, name: str) -> None:
        id = node.log.clock.new_id()
        super().__init__(node, node.member_key(id), id, name)
        self._sharing: Sharing = sharing
        self._alive: dict[bytes, float] = {}  # others, and when each was seen alive; a watch takes out who is gone

    @property
    def id(self) -> bytes:
        return self._id

    def _in_the_way(self, cursor: Cursor, followers: Sequence[Holder]) -> bool:
        return bool(followers) and cursor.sharing != self._sharing

    def _take(self, seen: Cursor, followers: Sequence[Holder]) -> None:
        living = {each.id for each in followers}
        dead = {each.id for each in seen.members if each.id not in living}
        limits = self._log.limits

        def join(cursor: Cursor) -> Cursor | None:
            if cursor.reviser or cursor.owner != seen.owner or shares.member(cursor, self._id) is not None:
                return None
            left = shares.removed(cursor, dead, limits, died=True)
            if left.members and left.sharing != self._sharing:
                return None  # others were faster
            if len(left.members) >= limits.members:
                raise Conflict(
                    f"{self.node.what} is shared by {len(left.members)} consumers already, and more cannot: let each "
                    "process do more with threads, or use another topic for some of the records",
                    "LEDGER_TOO_MANY_MEMBERS",
                )
            return shares.joined(left, self._sharing, Member(self._id, self._name, self._log.clock.now_ms()))

        self.node.update(join, lambda _: self._holding.create_ops())

    def _left(self, cursor: Cursor) -> Cursor | None:
        if shares.member(cursor, self._id) is None:
            return None
        return shares.removed(cursor, [self._id], self._log.limits, died=False)

    def _check_in(self, cursor: Cursor) -> None:
        if cursor.sharing != self._sharing:
            raise Fenced(
                f"{self.node.what} is no longer shared by consumers of type '{self._sharing}': "
                f"{cursor.owner_name or 'somebody else'} has taken it while this one ({self._name}) was away for "
                "longer than its ZooKeeper session. It must stop; nothing was changed",
                "LEDGER_SUBSCRIPTION_FENCED",
            )
        if shares.member(cursor, self._id) is None:
            raise Removed(
                f"{self.node.what}: {self._name} was away for longer than its ZooKeeper session, and what it had in "
                "hand is others' by now"
            )

    def rejoin(self) -> Cursor | None:
        """Joins without waiting for anybody: for one that was away. None if somebody resets the cursor right now."""
        try:
            for _ in range(self._log.limits.change_attempts):
                cursor = self.node.refresh(sync=True)
                followers = self.node.followers(cursor)
                if any(each.id == self._id for each in followers):
                    return self._now_in(cursor)
                if self._in_the_way(cursor, followers):
                    self._check_in(cursor)
                if self.node.living_reviser(cursor) is not None:
                    return None
                self._take(cursor, followers)
        except BaseException as error:
            self._failed(error)
            raise
        raise Conflict(f"{self.node.what}: others change it all the time; try again")

    def forget(self) -> None:
        """Leaves nothing behind of one that was removed."""
        self._holding.release()

    def dead(self, cursor: Cursor) -> list[bytes]:
        """The others whose sessions have ended. While no watch says anything they are asked after now and then only."""
        now, metadata = self._log.clock.monotonic(), self._log.metadata
        others = [each.id for each in cursor.members if each.id != self._id]
        seen = {id: at for id in others if (at := self._alive.get(id)) is not None}
        unsure = [id for id in others if now - seen.get(id, -1e9) > metadata.session_timeout_s]
        if not unsure:
            return []
        metadata.sync()  # in a stale answer somebody who is alive could look dead
        self._alive = seen
        return [id for id in unsure if not self._is_alive(id, now)]

    def _is_alive(self, id: bytes, now: float) -> bool:
        self._alive[id] = now  # first: the watch may speak before its read has returned

        def gone() -> None:
            self._alive.pop(id, None)

        is_leftover = id in self._log.metadata.chores.leftovers
        if is_leftover or self._log.metadata.read(self.node.member_key(id), gone) is None:
            gone()
            return False
        return True
