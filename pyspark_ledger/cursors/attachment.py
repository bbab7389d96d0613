"""Being the one that follows a subscription: ownership, epochs and fencing (PIP-84).

The owner is an ephemeral node, gone with its session; the cursor says who attached last, under which epoch. An owner
that was away for longer than its session finds out when it looks at the cursor: if nobody came it attaches again, if
somebody did it is fenced. Whatever it writes to the cursor is checked against that, in the same transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.names import this_process
from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.node import CursorNode, Edit
from pyspark_ledger.errors import Conflict, CursorUnderRevision, Fenced, LedgerError
from pyspark_ledger.log import scan
from pyspark_ledger.metadata.port import Create
from pyspark_ledger.metadata.records import Cursor, Holder

logger = logging.getLogger(__name__)

SubscriptionType = Literal["exclusive", "failover"]
_POLL_S = 0.1
_GRACE_S = 5.0  # a server may take a little longer than the time-out to end a session


class Attachment:
    def __init__(self, node: CursorNode, kind: SubscriptionType = "exclusive", name: str = "") -> None:
        self.node, self._kind = node, kind
        self._log = node.log
        self._id = self._log.clock.new_id()
        self._name = name or this_process()
        self._verified_at = 0.0

    # -- coming and going ----------------------------------------------------------------------------------

    def attach(self) -> Cursor:
        """Returns as the owner, under a new epoch. Waits for a dead owner's session to end, and with failover for a
        live one too."""
        return self._attach(lambda _: None)

    def _attach(self, check: Callable[[Cursor], None]) -> Cursor:
        """``check`` raises if the cursor is no longer one to attach to."""
        deadline = Deadline(self._log.clock, self._log.metadata.session_timeout_s + _GRACE_S)
        while True:
            cursor = self.node.refresh(sync=True)
            check(cursor)
            owner = self.node.owner(cursor)
            if owner is not None and owner.id == self._id:
                return self._now_owner(cursor)
            if owner is None and not self.node.is_being_revised(cursor):
                self._take(cursor)
                continue
            if owner is not None and self._kind == "exclusive" and deadline.passed:
                raise Conflict(
                    f"subscription '{self.node.name}' of topic '{self._log.topic.name}' belongs to {owner.name}, which "
                    "is alive. Stop that first, choose another subscription, or use subscriptionType=failover to wait "
                    "for it. (One query that reads a subscription twice, as in a self-join, needs two.)",
                    "LEDGER_SUBSCRIPTION_BUSY",
                )
            self._log.clock.sleep(_POLL_S)

    def _take(self, seen: Cursor) -> None:
        """Tries; whether it is ours then is for the next look to tell."""
        holder = Holder(self._id, self._name, self._log.clock.now_ms())

        def take(cursor: Cursor) -> Cursor | None:
            if cursor.epoch != seen.epoch or cursor.reviser:
                return None  # an earlier sending did it, or somebody was faster
            return replace(cursor, owner=self._id, owner_name=self._name, epoch=cursor.epoch + 1)

        key = self.node.owner_key
        self.node.update(take, lambda _: [*self.node.vacate(key), Create(key, holder, ephemeral=True)])

    def _now_owner(self, cursor: Cursor) -> Cursor:
        self._verified_at = self._log.clock.monotonic()
        logger.info(
            "attached topic=%s subscription=%s epoch=%d owner=%s", self._log.topic.name, self.node.name, cursor.epoch,
            self._name,
        )  # fmt: skip
        return cursor

    def detach(self) -> None:
        """Lets the subscription go at once."""

        def leave(cursor: Cursor) -> Cursor | None:
            return replace(cursor, owner=b"", owner_name="") if cursor.owner == self._id else None

        try:
            self.node.update(leave, lambda _: self.node.vacate(self.node.owner_key))
        except LedgerError as error:  # its session will end and take the rest along
            logger.info("subscription=%s: could not say goodbye: %s", self.node.name, error)

    # -- while attached ------------------------------------------------------------------------------------

    def verified(self) -> Cursor:
        """The cursor, from memory if it was looked at well within the session's time-out; Fenced if it is another's."""
        lease = self._log.metadata.session_timeout_s / 5
        cursor = self.node.current(lease)
        self._check_owner(cursor)
        if self._log.clock.monotonic() - self._verified_at > lease:
            holder = self._log.metadata.read(self.node.owner_key)
            if holder is None or holder.record.id != self._id:  # our session ended: attach again, unless somebody came
                return self._attach(self._check_owner)
            self._verified_at = self._log.clock.monotonic()
        return cursor

    def is_under_revision(self) -> bool:
        """Whether somebody is moving the cursor right now. One who died over it does not count."""
        return self.node.is_being_revised(self.node.current(self._log.metadata.session_timeout_s / 5))

    def acknowledge(self, position: Position, revision: int) -> Cursor:
        """Everything before a position is done, says whoever read it under a revision. Outdated ones are dropped."""

        def forward(cursor: Cursor) -> Cursor | None:
            self._check_owner(cursor)
            if cursor.revision != revision or cursor.reviser or position <= cursor.mark_delete:
                return None
            view = self._log.view()
            if position > view.head.end:
                view = self._log.refresh(sync=True)
            ordinal = scan.records_before(self._log, view, position)
            return self.node.moved(cursor, ordinal, self.node.acks(cursor), position)

        cursor = self.node.current(60.0)
        if cursor.revision == revision and not cursor.reviser and position <= cursor.mark_delete:
            return cursor  # nothing new: not worth a request
        return self.node.update(forward)

    def change(self, edit: Edit) -> Cursor:
        """Any other change by the owner; fails while the cursor is under revision."""

        def checked(cursor: Cursor) -> Cursor | None:
            self._check_owner(cursor)
            if cursor.reviser:
                raise CursorUnderRevision(f"subscription '{self.node.name}' is being reset: try again")
            return edit(cursor)

        return self.node.update(checked)

    def _check_owner(self, cursor: Cursor) -> None:
        if cursor.owner != self._id:
            raise Fenced(
                f"subscription '{self.node.name}' of topic '{self._log.topic.name}' was taken over by "
                f"{cursor.owner_name or 'somebody who has left since'} under epoch {cursor.epoch}: this owner "
                f"({self._name}) was away for longer than its ZooKeeper session. It must stop; nothing was changed",
                "LEDGER_SUBSCRIPTION_FENCED",
            )
