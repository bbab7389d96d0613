"""Following a subscription: alone, as its owner, or as one of several who share it.

A follower has an ephemeral node, which is deleted with its session, and the cursor's record names it. One that lost its
session reads the cursor: if that still names it, it recreates its node. Otherwise somebody thought it dead and took its
place. Every change that a follower makes to the cursor checks this in the same transaction.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.cursors.node import CursorNode, Edit, HolderKey
from pyspark_ledger.cursors.revision import under_revision
from pyspark_ledger.errors import Conflict, CursorUnderRevision, LedgerError, NotFound
from pyspark_ledger.metadata.records import Cursor, Holder

logger = logging.getLogger(__name__)

# Errors of an attach that has changed nothing; after any other one the cursor may name us.
_NEVER_IN = {
    "LEDGER_SUBSCRIPTION_BUSY",
    "LEDGER_TOO_MANY_MEMBERS",
    "LEDGER_CURSOR_UNDER_REVISION",
    "LEDGER_CURSOR_NOT_FOUND",
    "LEDGER_TOPIC_DELETED",
}


class Follower(ABC):
    """One who follows a subscription, or waits to."""

    def __init__(self, node: CursorNode, key: HolderKey, id: bytes, name: str) -> None:
        self.node, self._key, self._id, self._name = node, key, id, name
        self._log = node.log
        self._holding = node.holding(key, Holder(id, name, self._log.clock.now_ms()))
        self._verified_at = 0.0

    @abstractmethod
    def _take(self, seen: Cursor, followers: Sequence[Holder]) -> None:
        """Tries to have the cursor name us. The next read of it shows whether it worked."""

    @abstractmethod
    def _in_the_way(self, cursor: Cursor, followers: Sequence[Holder]) -> bool:
        """Whether those who follow it now have to go first."""

    @abstractmethod
    def _left(self, cursor: Cursor) -> Cursor | None:
        """The cursor without us; None if it does not name us."""

    @abstractmethod
    def _check_in(self, cursor: Cursor) -> None:
        """Raises if the cursor does not name us any more."""

    @property
    @abstractmethod
    def waits_for_owner(self) -> bool:
        """However long it takes."""

    # -- coming and going ----------------------------------------------------------------------------------

    def attach(self) -> Cursor:
        """Begins to follow. Waits until the sessions of those who are dead have ended; with failover, also until a
        living owner leaves."""
        waiting = _Waiting(self)
        try:
            while True:
                cursor = self._attempt(waiting)
                if cursor is not None:
                    return cursor
        except BaseException as error:
            self._failed(error)
            raise

    def _failed(self, error: BaseException) -> None:
        if getattr(error, "code", "") not in _NEVER_IN:
            self._leave_to_chores(may_arrive=True)

    def _attempt(self, waiting: _Waiting) -> Cursor | None:
        """The cursor, if it names us by now."""
        cursor = self.node.refresh(sync=True)
        followers = self.node.followers(cursor)
        if any(each.id == self._id for each in followers):
            return self._now_in(cursor)
        if self._in_the_way(cursor, followers):
            waiting.for_followers(followers, cursor)
        elif (reviser := self.node.living_reviser(cursor)) is not None:
            waiting.for_reviser(reviser, cursor)
        else:
            self._take(cursor, followers)
        return None

    def _now_in(self, cursor: Cursor) -> Cursor:
        self._verified_at = self._log.clock.monotonic()
        self._holding.keep()
        logger.info(
            "attached topic=%s subscription=%s epoch=%d owner=%s", self._log.topic.name, self.node.name, cursor.epoch,
            self._name,
        )  # fmt: skip
        return cursor

    def detach(self) -> None:
        """Releases the subscription at once; if that fails now, in the background."""
        try:
            self._leave(self.node)
        except LedgerError as error:
            logger.info("subscription=%s: could not detach: %s", self.node.name, error)
            self._leave_to_chores()
        finally:
            self._holding.forget()

    def _leave(self, node: CursorNode) -> None:
        node.update(self._left, lambda _: self._holding.remove_ops())

    def _leave_to_chores(self, *, may_arrive: bool = False) -> None:
        """Releases the subscription in the background. Otherwise a call that failed could leave it taken for as long as
        its process lives."""
        node = self.node.twin()

        def leave() -> None:
            with contextlib.suppress(NotFound):
                self._leave(node)

        self._holding.abandon(leave, may_arrive=may_arrive)

    # -- while attached ------------------------------------------------------------------------------------

    def verified(self) -> Cursor:
        """The cursor, if it still names us; else an error. Taken from memory if it was verified much less than a
        session's time-out ago."""
        lease = self._log.metadata.session_timeout_s / 5
        cursor = self.node.current(lease)
        self._check_in(cursor)
        while self._log.clock.monotonic() - self._verified_at > lease:
            looked_at = self._log.clock.monotonic()
            holder = self._log.metadata.read(self._key)
            if holder is not None and holder.own and holder.record.id == self._id:
                self._verified_at = looked_at
            elif not self._holding.recreate(holder):  # our session ended, and somebody else took our place
                cursor = self.node.refresh(sync=True)
                self._check_in(cursor)
        return cursor

    def is_under_revision(self) -> bool:
        """Whether somebody is resetting the cursor right now. One who died while doing so does not count."""
        return self.node.is_being_revised(self.node.current(self._log.metadata.session_timeout_s / 5))

    def change(self, edit: Edit) -> Cursor:
        """A change by a follower; CursorUnderRevision while somebody resets the cursor."""

        def checked(cursor: Cursor) -> Cursor | None:
            self.check_may_change(cursor)
            return edit(cursor)

        return self.node.update(checked)

    def check_may_change(self, cursor: Cursor) -> None:
        """Raises unless it follows the cursor, and nobody is resetting it."""
        self._check_in(cursor)
        if cursor.reviser:
            raise CursorUnderRevision(f"subscription '{self.node.name}' is being reset: try again")


class _Waiting:
    """Waiting for whoever holds the subscription: not for ever, and with a log line now and then."""

    def __init__(self, follower: Follower) -> None:
        self._follower, self._node = follower, follower.node
        self._log = follower.node.log
        grace = self._log.metadata.session_timeout_s + self._log.limits.attach_grace_s
        self._deadline = Deadline(self._log.clock, grace)  # the node of a dead holder is deleted by then
        self._next_line = Deadline(self._log.clock, self._log.limits.waiting_log_s)

    def for_followers(self, followers: Sequence[Holder], cursor: Cursor) -> None:
        names = ", ".join(each.name for each in followers[:3]) + (", …" if len(followers) > 3 else "")
        if cursor.sharing:
            if self._deadline.passed:
                raise self._busy(
                    f"is shared by {len(followers)} living consumers of type '{cursor.sharing}' ({names}). Use the "
                    "same type, stop those first, or choose another subscription"
                )
            self._wait(f"it is shared by {names}")
        else:
            if self._deadline.passed and not self._follower.waits_for_owner:
                raise self._busy(
                    f"belongs to {names}, which is alive. Stop that first, choose another subscription, or use "
                    "subscriptionType=failover to wait for it. (One query that reads a subscription twice, as in a "
                    "self-join, needs two.)"
                )
            self._wait(f"it belongs to {names}")

    def _busy(self, why: str) -> Conflict:
        return Conflict(
            f"subscription '{self._node.name}' of topic '{self._log.topic.name}' {why}", "LEDGER_SUBSCRIPTION_BUSY"
        )

    def for_reviser(self, reviser: Holder, cursor: Cursor) -> None:
        """A reset takes only moments: one that lasts is stuck, and may never end."""
        if self._deadline.passed:
            raise under_revision(self._node, reviser, cursor)
        self._wait(f"it is being reset by {reviser.name}")

    def _wait(self, why: str) -> None:
        if self._next_line.passed:
            logger.warning("waiting to attach to %s: %s", self._node.what, why)
            self._next_line = Deadline(self._log.clock, self._log.limits.waiting_log_s)
        self._log.clock.sleep(self._log.limits.attach_poll_s)
