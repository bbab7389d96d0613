"""A query that follows a subscription: cursors as streaming offsets.

Spark's checkpoint says which batches were planned, the cursor says what is done and where to go on. They meet in the
offsets, which carry the cursor's revision: a batch planned under another revision begins at its ``from``.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.names import this_process
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.cursors.attachment import Attachment, SubscriptionType
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import under_revision
from pyspark_ledger.datasource.offsets import Offset
from pyspark_ledger.errors import Conflict
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.places import PlaceLike
from pyspark_ledger.metadata.records import Cursor

logger = logging.getLogger(__name__)

_GOODBYE_S = 3.0
_WAIT_S = 0.05


@dataclass(frozen=True, slots=True)
class BatchStart:
    """Where the next batch begins. ``start`` is set if that is not where the last one ended."""

    position: Position
    start: Position | None = None
    revision: int = 0
    epoch: int = 0


class Subscription:
    """Attached to a cursor for as long as the query runs."""

    def __init__(self, log: Log, name: str, kind: SubscriptionType, start: PlaceLike) -> None:
        self._log = log
        node = CursorNode(log, name)
        node.ensure(start)
        self._attachment = Attachment(node, kind, f"a query in {this_process()}")
        self._attached_under: int | None = self._attachment.attach().epoch  # None: the checkpoint was compared with it
        self._restore_signal = _on_sigterm(self._attachment.detach)
        self._moving: _Moving | None = None  # since a batch was last wanted while the cursor is being moved

    def next_start(self, at: Offset | None, *, last_chance: bool = False) -> BatchStart | None:
        """Where a query goes on that has finished everything before ``at``. While the cursor is being moved: None, so
        that the query repeats its last answer. A query that has none waits, and so does one that would end by
        repeating it (``last_chance``); a reset that takes no end is an error."""
        cursor = self._attachment.verified()
        self._check_identity(at)
        moving = _Moving(self._attachment)
        while cursor.reviser and self._attachment.is_under_revision():
            if at is not None and not last_chance:
                self._moving = self._moving or moving
                self._moving.say_so()
                return None
            moving.wait(cursor)
            cursor = self._attachment.verified()
        self._moving = None
        if at is not None and at.revision == cursor.revision:
            cursor = self._attachment.acknowledge(at.position, at.revision)
            if at.revision == cursor.revision:
                return BatchStart(at.position, None, cursor.revision, cursor.epoch)
        if at is not None and at.revision > cursor.revision:
            raise self._recreated(f"revision {at.revision}", f"is at {cursor.revision}")
        begin = cursor.mark_delete
        if at is not None and at.revision >= cursor.last_backward_revision:  # later revisions only moved it forward
            begin = max(begin, at.position)
        return BatchStart(begin, begin, cursor.revision, cursor.epoch)

    def _check_identity(self, at: Offset | None) -> None:
        """Offsets do not say of which cursor they are. But epochs only grow, and attaching has raised this one's: a
        checkpoint that was written before and knows this epoch, or a later one, is of another cursor."""
        attached_under = self._attached_under
        if at is not None and attached_under is not None and at.epoch >= attached_under:
            raise self._recreated(f"epoch {at.epoch}", f"was at {attached_under - 1}")
        self._attached_under = None  # what comes next was planned by this query itself

    def _recreated(self, known: str, found: str) -> Conflict:
        return Conflict(
            f"the checkpoint knows {known} of subscription '{self._attachment.node.name}', which {found}: it was "
            "deleted and made again, or the checkpoint belongs to another subscription. Start with a new checkpoint",
            "LEDGER_CURSOR_RECREATED",
        )

    def done(self, end: Offset) -> None:
        self._check_identity(end)
        self._attachment.acknowledge(end.position, end.revision)

    def is_void(self, end: Offset) -> bool:
        """Whether a reset has discarded the batch that ends here, before it had finished."""
        cursor = self._attachment.verified()
        if end.revision >= cursor.void_below:
            return False
        finished = (past.finished for past in cursor.past_revisions if past.revision == end.revision)
        return end.position > next(finished, EARLIEST)

    def leave(self) -> None:
        self._restore_signal()
        self._attachment.detach()


class _Moving:
    """A query that cannot go on because somebody is moving its cursor: it says so, and does not wait for ever."""

    def __init__(self, attachment: Attachment) -> None:
        self._node = attachment.node
        self._log = attachment.node.log
        grace = self._log.metadata.session_timeout_s + self._log.limits.attach_grace_s
        self._deadline = Deadline(self._log.clock, grace)  # a reset takes no time, and a dead resetter is gone by then
        self._next_word = Deadline(self._log.clock, self._log.limits.waiting_log_s)

    def wait(self, cursor: Cursor) -> None:
        reviser = self._node.reviser(cursor)
        if self._deadline.passed and reviser is not None:
            raise under_revision(self._node, reviser, cursor)
        self._log.clock.sleep(_WAIT_S)

    def say_so(self) -> None:
        if self._next_word.passed:
            logger.warning("no new batches for %s: it is being reset, and that does not end", self._node.what)
            self._next_word = Deadline(self._log.clock, self._log.limits.waiting_log_s)


def _on_sigterm(goodbye: Callable[[], None]) -> Callable[[], None]:
    """Spark ends the process of a stopped query with SIGTERM, and calls nothing before. Returns what undoes this."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    def leave(_signal: int, _frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it comes twice
        # Not in this thread: the signal may have come in the middle of a request, with its locks held.
        farewell = threading.Thread(target=goodbye, daemon=True)
        farewell.start()
        farewell.join(_GOODBYE_S)
        os._exit(0)

    previous = signal.signal(signal.SIGTERM, leave)
    return lambda: _restore(previous)


def _restore(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
