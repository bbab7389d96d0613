"""Revisions (PIP-269): moving a cursor in any other way than forward by acknowledging.

The cursor is flagged, edited, and unflagged with its revision raised, so that whoever holds something read or planned
before can tell that it is outdated. While it is flagged nobody reads on and acknowledgements fail.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from pyspark_ledger.base.names import this_process
from pyspark_ledger.cursors.node import CursorNode, Edit
from pyspark_ledger.errors import CursorUnderRevision, Fenced
from pyspark_ledger.metadata.port import (
    Create,
)
from pyspark_ledger.metadata.records import Cursor, Holder, Past


class RevisionController:
    """PIP-269: one revision of a cursor at a time, and everybody can tell before from after."""

    def __init__(self, node: CursorNode, name: str = "") -> None:
        self._node = node
        self._id = node.log.clock.new_id()
        self._name = name or this_process()

    @property
    def revision(self) -> int:
        return self._node.refresh(sync=True).revision

    def is_outdated(self, revision: int) -> bool:
        """Whether something read or planned under a revision may no longer be delivered or acknowledged."""
        cursor = self._node.current()
        return cursor.revision != revision or bool(cursor.reviser)

    def start_revision(self) -> Cursor:
        """Flags the cursor. Fails at once if somebody else has, and lives; a dead one's flag is taken over."""

        def flag(cursor: Cursor) -> Cursor | None:
            if cursor.reviser == self._id:
                return None
            other = self._node.reviser(cursor)
            if other is not None:
                since = datetime.fromtimestamp(cursor.revising_since_ms / 1000, UTC)
                raise CursorUnderRevision(
                    f"subscription '{self._node.name}' is being reset by {other.name}, since "
                    f"{since:%Y-%m-%d %H:%M:%S} UTC: try again"
                )
            return replace(cursor, reviser=self._id, revising_since_ms=self._node.log.clock.now_ms())

        holder = Holder(self._id, self._name, self._node.log.clock.now_ms())
        key = self._node.reviser_key
        return self._node.update(flag, lambda _: [*self._node.vacate(key), Create(key, holder, ephemeral=True)])

    def end_revision(self, editor: Edit) -> Cursor:
        """Applies the edit, clears the flag and raises the revision, in one transaction. An editor that returns None
        or raises leaves the cursor as it was."""
        before = self._node.refresh(sync=True)

        def finish(cursor: Cursor) -> Cursor | None:
            if cursor.revision == before.revision + 1 and not cursor.reviser:
                return None  # an earlier sending did it
            if cursor.reviser != self._id:
                raise Fenced(
                    f"the revision of subscription '{self._node.name}' was taken over by another, because this one was "
                    "thought dead: nothing was changed, try again",
                    "LEDGER_REVISION_FENCED",
                )
            edited = editor(replace(cursor, reviser=b"", revising_since_ms=0))
            if edited is None:
                return None
            pasts = (*cursor.pasts, Past(cursor.revision, cursor.mark_delete))
            remembered = pasts[-self._node.log.limits.remembered_revisions :]
            return replace(edited, revision=cursor.revision + 1, pasts=remembered)

        try:
            revised = self._node.update(finish, lambda _: self._node.vacate(self._node.reviser_key))
        except Fenced:
            raise
        except Exception:
            self.give_up()
            raise
        if revised.reviser == self._id:  # the editor had nothing to do
            self.give_up()
        return self._node.current(max_age_s=60.0)

    def give_up(self) -> None:
        """Clears the flag and changes nothing."""
        self._node.unflag(self._id)
