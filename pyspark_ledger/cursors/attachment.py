"""Owning a subscription: one owner at a time, epochs and fencing (PIP-84).

The owner has an ephemeral node, which is deleted with its session. The cursor says who attached last, and under which
epoch. An owner that lost its session reads the cursor: if nobody else has attached it recreates its node, otherwise it
is fenced. Every change that an owner makes to the cursor checks this in the same transaction.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import Literal

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.names import this_process
from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.node import CursorNode, Edit
from pyspark_ledger.cursors.revision import SeenRevision, under_revision
from pyspark_ledger.errors import Conflict, CursorUnderRevision, Fenced, LedgerError, NotFound
from pyspark_ledger.log import lost, scan
from pyspark_ledger.metadata.records import Cursor, Head, Holder

logger = logging.getLogger(__name__)

SubscriptionType = Literal["exclusive", "failover"]
# Errors of an attach that has changed nothing; after any other one the cursor may name us.
_NEVER_OWNER = {
    "LEDGER_SUBSCRIPTION_BUSY",
    "LEDGER_CURSOR_UNDER_REVISION",
    "LEDGER_CURSOR_NOT_FOUND",
    "LEDGER_TOPIC_DELETED",
}


class Attachment:
    """One owner of a subscription, or one that waits to become it."""

    def __init__(
        self, node: CursorNode, kind: SubscriptionType = "exclusive", name: str = "", *, compacted: bool = False
    ) -> None:
        self.node, self.kind, self._compacted = node, kind, compacted
        self._log = node.log
        self._id = self._log.clock.new_id()
        self._name = name or this_process()
        self._holding = node.holding(node.owner_key, Holder(self._id, self._name, self._log.clock.now_ms()))
        self._verified_at = 0.0

    # -- coming and going ----------------------------------------------------------------------------------

    def attach(self) -> Cursor:
        """Becomes the owner, under a new epoch. Waits until a dead owner's session has ended; with failover, also until
        a living owner leaves."""
        try:
            return self._attach()
        except BaseException as error:
            if getattr(error, "code", "") not in _NEVER_OWNER:
                self._leave_to_chores(may_arrive=True)
            raise

    def _attach(self) -> Cursor:
        waiting = _Waiting(self)
        while True:
            cursor = self.node.refresh(sync=True)
            owner = self.node.owner(cursor)
            if owner is not None and owner.id == self._id:
                return self._now_owner(cursor)
            if owner is not None:
                waiting.for_owner(owner)
            elif (reviser := self.node.living_reviser(cursor)) is not None:
                waiting.for_reviser(reviser, cursor)
            else:
                self._take(cursor)

    def _take(self, seen: Cursor) -> None:
        """Tries to become the owner. The next read of the cursor shows whether it worked."""

        def take(cursor: Cursor) -> Cursor | None:
            if cursor.epoch != seen.epoch or cursor.reviser:
                return None  # it was applied when it was sent before, or somebody else was faster
            return replace(
                cursor,
                owner=self._id,
                owner_name=self._name,
                epoch=cursor.epoch + 1,
                compacted=self._compacted,
                abandoned=False,
            )

        self.node.update(take, lambda _: self._holding.create_ops())

    def _now_owner(self, cursor: Cursor) -> Cursor:
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
        def leave(cursor: Cursor) -> Cursor | None:
            return replace(cursor, owner=b"", owner_name="") if cursor.owner == self._id else None

        node.update(leave, lambda _: self._holding.remove_ops())

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
        """The cursor, if we still own it, else Fenced. Taken from memory if it was verified much less than a session's
        time-out ago."""
        lease = self._log.metadata.session_timeout_s / 5
        cursor = self.node.current(lease)
        self._check_owner(cursor)
        while self._log.clock.monotonic() - self._verified_at > lease:
            looked_at = self._log.clock.monotonic()
            holder = self._log.metadata.read(self.node.owner_key)
            if holder is not None and holder.own and holder.record.id == self._id:
                self._verified_at = looked_at
            elif not self._holding.recreate(holder):  # our session ended, and somebody else attached
                cursor = self.node.refresh(sync=True)
                self._check_owner(cursor)
        return cursor

    def is_under_revision(self) -> bool:
        """Whether somebody is resetting the cursor right now. One who died while doing so does not count."""
        return self.node.is_being_revised(self.node.current(self._log.metadata.session_timeout_s / 5))

    def acknowledge(
        self, position: Position, revision: int, reset: bytes = b"", *, around_lost: bool = False
    ) -> Cursor:
        """Acknowledges everything before a position that was read under a revision, which that ``reset`` has made (if
        it is known). Does nothing if the cursor has another revision by now. A position past the end is refused: from
        there new records would be skipped later. ``around_lost``: damaged entries that were given up were not read, and
        their records are counted as lost."""
        seen = SeenRevision(revision, reset)

        def forward(cursor: Cursor) -> Cursor | None:
            self._check_owner(cursor)
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

    def change(self, edit: Edit) -> Cursor:
        """Any other change by the owner; CursorUnderRevision while somebody resets the cursor."""

        def checked(cursor: Cursor) -> Cursor | None:
            self.check_may_change(cursor)
            return edit(cursor)

        return self.node.update(checked)

    def check_may_change(self, cursor: Cursor) -> None:
        """Raises unless it is ours, and nobody is resetting it."""
        self._check_owner(cursor)
        if cursor.reviser:
            raise CursorUnderRevision(f"subscription '{self.node.name}' is being reset: try again")

    def _check_owner(self, cursor: Cursor) -> None:
        if cursor.owner != self._id:
            raise Fenced(
                f"subscription '{self.node.name}' of topic '{self._log.topic.name}' was taken over by "
                f"{cursor.owner_name or 'somebody who has left since'} under epoch {cursor.epoch}: this owner "
                f"({self._name}) was away for longer than its ZooKeeper session. It must stop; nothing was changed",
                "LEDGER_SUBSCRIPTION_FENCED",
            )


class _Waiting:
    """Waiting for whoever holds the subscription: not for ever, and with a log line now and then."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment, self._node = attachment, attachment.node
        self._log = attachment.node.log
        grace = self._log.metadata.session_timeout_s + self._log.limits.attach_grace_s
        self._deadline = Deadline(self._log.clock, grace)  # the node of a dead holder is deleted by then
        self._next_line = Deadline(self._log.clock, self._log.limits.waiting_log_s)

    def for_owner(self, owner: Holder) -> None:
        if self._attachment.kind == "exclusive" and self._deadline.passed:
            raise Conflict(
                f"subscription '{self._node.name}' of topic '{self._log.topic.name}' belongs to {owner.name}, which "
                "is alive. Stop that first, choose another subscription, or use subscriptionType=failover to wait "
                "for it. (One query that reads a subscription twice, as in a self-join, needs two.)",
                "LEDGER_SUBSCRIPTION_BUSY",
            )
        self._wait(f"it belongs to {owner.name}")

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
