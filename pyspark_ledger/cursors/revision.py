"""Revisions (PIP-269): moving a cursor in any other way than by acknowledging records.

First the cursor is flagged: from then on nobody reads further, and acknowledgements fail. Then one transaction edits
the cursor, clears the flag and raises the revision. Records that were read, and batches that were planned, under the
old revision are recognised as outdated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark_ledger.base.names import this_process
from pyspark_ledger.cursors import shares
from pyspark_ledger.cursors.node import CursorNode, Edit
from pyspark_ledger.errors import CursorUnderRevision, Fenced, LedgerError, NotFound, OutcomeUnknown, Unavailable
from pyspark_ledger.log.places import SEEN_BYTES
from pyspark_ledger.metadata.port import Op
from pyspark_ledger.metadata.records import Cursor, Holder, PastRevision


@dataclass(frozen=True, slots=True)
class SeenRevision:
    """A revision as somebody knows it: its number, and how the id of the reset that made it begins. After a rollback of
    ZooKeeper another reset may get the number, but not the id."""

    number: int
    reset: bytes = b""  # empty: no reset has made it, or its id is not known

    @classmethod
    def of(cls, cursor: Cursor) -> SeenRevision:
        return cls(cursor.revision, b"".join(cursor.operations[-1:])[:SEEN_BYTES])

    def is_of(self, cursor: Cursor) -> bool:
        """Whether the cursor has this revision, or had it before. If not, it was lost in a rollback."""
        since = cursor.revision - self.number
        # Every reset adds one id. Earlier versions of this package added none for some, so it may also come later.
        remembered = cursor.operations[-1 - since :] if 0 <= since < len(cursor.operations) else ()
        ids = [operation[:SEEN_BYTES] for operation in remembered]
        return since >= 0 and (not self.reset or not ids or self.reset in ids)

    def __str__(self) -> str:
        return f"revision {self.number}" + (f" by the reset {self.reset.hex()}" if self.reset else "")


class RevisionController:
    """Makes one revision of a cursor. Only one at a time can be under way."""

    def __init__(self, node: CursorNode, name: str = "") -> None:
        self._node = node
        self._id = node.log.clock.new_id()
        holder = Holder(self._id, name or this_process(), node.log.clock.now_ms())
        self._holding = node.holding(node.reviser_key, holder)

    @property
    def revision(self) -> int:
        return self._node.refresh(sync=True).revision

    def is_outdated(self, revision: int) -> bool:
        """Whether what was read or planned under a revision may no longer be delivered or acknowledged."""
        cursor = self._node.current()
        return cursor.revision != revision or bool(cursor.reviser)

    def start_revision(self) -> Cursor:
        """Flags the cursor. Fails at once if somebody else has flagged it and is alive; the flag of one who died is
        taken over."""

        def flag(cursor: Cursor) -> Cursor | None:
            if cursor.reviser == self._id:
                return None
            other = self._node.reviser(cursor)
            if other is not None:
                raise under_revision(self._node, other, cursor)
            return replace(cursor, reviser=self._id, revising_since_ms=self._node.log.clock.now_ms())

        try:
            flagged = self._node.update(flag, lambda _: self._holding.create_ops())
        except (CursorUnderRevision, NotFound):
            raise  # it is not flagged by us
        except BaseException:
            self._leave_to_chores(may_arrive=True)
            raise
        self._holding.keep()
        return flagged

    def end_revision(
        self, editor: Edit, operation: bytes = b"", also: Callable[[], Iterable[Op]] = lambda: ()
    ) -> Cursor:
        """Applies the edit, clears the flag and raises the revision, in one transaction; returns the cursor right after
        that. If the editor returns None or raises, the cursor stays as it was. ``also`` gives operations of the same
        transaction.

        The cursor remembers the ``operation``, or else the revision's own id, so that it is known whether this revision
        was applied, whatever others have done since."""

        def finish(cursor: Cursor) -> Cursor | None:
            if cursor.reviser != self._id:
                raise Fenced(
                    f"the revision of subscription '{self._node.name}' was taken over by another, because this one was "
                    "thought dead: nothing was changed, try again",
                    "LEDGER_REVISION_FENCED",
                )
            edited = editor(replace(cursor, reviser=b"", revising_since_ms=0))
            if edited is None:
                return None
            past_revisions = (*cursor.past_revisions, PastRevision(cursor.revision, cursor.mark_delete))
            remembered = past_revisions[-self._node.log.limits.remembered_revisions :]
            return replace(shares.begun_anew(edited), revision=cursor.revision + 1, past_revisions=remembered)

        try:
            revised = self._node.update(
                finish, lambda _: [*self._holding.remove_ops(), *also()], operation=operation or self._id
            )
        except Fenced:
            self._holding.forget()
            raise
        except (Unavailable, OutcomeUnknown):  # ZooKeeper does not answer: clean up later
            self._leave_to_chores()
            raise
        except BaseException:
            self.give_up()
            raise
        if revised.reviser == self._id:  # the editor had nothing to do
            self.give_up()
            return self._node.current(max_age_s=60.0)
        self._holding.forget()
        return revised

    def give_up(self) -> None:
        """Clears the flag and changes nothing else; if that fails now, in the background."""
        self._holding.forget()
        try:
            self._node.unflag(self._id)
        except LedgerError:
            self._leave_to_chores()

    def _leave_to_chores(self, *, may_arrive: bool = False) -> None:
        """Clears the flag in the background. Otherwise a call that failed could leave it set for as long as its process
        lives."""
        node = self._node.twin()

        def clear() -> None:
            with contextlib.suppress(NotFound):
                node.unflag(self._id)

        self._holding.abandon(clear, may_arrive=may_arrive)


def under_revision(node: CursorNode, reviser: Holder, cursor: Cursor) -> CursorUnderRevision:
    since = datetime.fromtimestamp(cursor.revising_since_ms / 1000, UTC)
    return CursorUnderRevision(
        f"subscription '{node.name}' is being reset by {reviser.name}, since {since:%Y-%m-%d %H:%M:%S} UTC: try again"
    )
