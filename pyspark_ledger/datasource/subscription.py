"""A query that follows a subscription: cursors as streaming offsets.

Spark's checkpoint says which batches were planned; the cursor says what was acknowledged and where to continue. Offsets
contain the cursor's revision. If a batch has another revision than the one before it, it begins at its ``from`` instead
of where the last batch ended. They also contain the cursor's id, as one that is deleted and made again is another one,
and the id of the reset that made the revision, as another reset gets the same number after a rollback of ZooKeeper.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from functools import partial

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.names import this_process
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.cursors import loss
from pyspark_ledger.cursors.attachment import Attachment
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import SeenRevision, under_revision
from pyspark_ledger.datasource.logs import fencing_told
from pyspark_ledger.datasource.offsets import Offset
from pyspark_ledger.datasource.options import ReadOptions
from pyspark_ledger.errors import Conflict, CursorUnderRevision, DataLoss
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.places import SEEN_BYTES, Place
from pyspark_ledger.metadata.records import Cursor, Head

logger = logging.getLogger(__name__)

_WAIT_S = 0.05


@dataclass(frozen=True, slots=True)
class BatchStart:
    """Where the next batch begins. ``start`` is set if that is not where the last one ended."""

    position: Position
    start: Position | None = None
    revision: int = 0
    epoch: int = 0
    reset: bytes = b""  # which has made the revision

    @classmethod
    def of(cls, cursor: Cursor, position: Position, start: Position | None) -> BatchStart:
        return cls(position, start, cursor.revision, cursor.epoch, SeenRevision.of(cursor).reset)


class Subscription:
    """Attached to a cursor for as long as the query runs."""

    def __init__(self, log: Log, options: ReadOptions, start: Place) -> None:
        self._log = log
        self._fail_on_data_loss = options.fail_on_data_loss
        compacted = options.read_compacted
        node = CursorNode(log, options.subscription)
        node.ensure(start, compacted=compacted)
        name = f"a query in {this_process()}"
        self._attachment = Attachment(node, options.subscription_type, name, compacted=compacted)
        self._attached = self._attachment.attach()  # the cursor at that moment
        self._warned = False
        self._attached_under: int | None = self._attached.epoch  # None: the checkpoint was compared with it
        self._being_reset: _BeingReset | None = None  # set while batches wait for the end of a reset

    @property
    def cursor_id(self) -> bytes:
        """How offsets say of which cursor they are; empty if the cursor was made before cursors had ids."""
        return self._attached.id[:SEEN_BYTES]

    @fencing_told()
    def next_start(self, at: Offset | None, *, last_chance: bool = False) -> BatchStart | None:
        """Where the next batch begins, of a query that has finished everything before ``at``.

        None while the cursor is being reset: the query then repeats its last answer. If it has none yet, or would end
        by repeating it (``last_chance``), this waits for the end of the reset instead, and raises if there is none."""
        cursor = self._unrevised(at, last_chance)
        self._check_identity(at)
        while cursor is not None and cursor.evicted:
            self._go_on_after_eviction(at, cursor)
            cursor = self._unrevised(at, last_chance)
        if cursor is None:
            return None
        if at is not None and at.revision == cursor.revision:
            cursor = self._acknowledge(at) or cursor
        if at is not None:
            self._check_revision(at, cursor)
        if at is not None and at.revision == cursor.revision:
            return self._go_on(at, cursor)
        begin = cursor.mark_delete
        if at is not None and at.revision >= cursor.last_backward_revision:  # later revisions only moved it forward
            begin = max(begin, at.position)
        return BatchStart.of(cursor, begin, begin)

    def _unrevised(self, at: Offset | None, last_chance: bool) -> Cursor | None:
        """The cursor while nobody resets it; None if somebody does, and the query can repeat its last answer."""
        cursor = self._attachment.verified()
        being_reset = _BeingReset(self._attachment)
        while cursor.reviser and self._attachment.is_under_revision():
            if at is not None and not last_chance:
                self._being_reset = self._being_reset or being_reset
                self._being_reset.log()
                return None
            being_reset.wait(cursor)
            cursor = self._attachment.verified()
        self._being_reset = None
        return cursor

    def _go_on_after_eviction(self, at: Offset | None, cursor: Cursor) -> None:
        """A query that had read what a backlog quota took from the subscription has lost nothing."""
        unread = partial(_unread, at)
        if self._fail_on_data_loss and unread(cursor):
            raise loss.evicted(self._attachment.node, cursor, unread(cursor), "failOnDataLoss=false")
        with contextlib.suppress(CursorUnderRevision):  # then this waits for the end of that
            loss.count_evicted(self._attachment, cursor, unread)

    def go_on_from_begin(self, head: Head) -> None:
        """Moves the cursor, if it is before where the log begins, and counts what is lost."""
        with contextlib.suppress(CursorUnderRevision):  # then it is moved by somebody else
            loss.count_trimmed(self._attachment, head)

    def _go_on(self, at: Offset, cursor: Cursor) -> BatchStart:
        """Where the checkpoint says, unless others followed the subscription meanwhile: what they had acknowledged when
        this query attached is not delivered again."""
        acknowledged = self._attached.mark_delete
        if at.position >= acknowledged or at.revision != self._attached.revision:
            return BatchStart.of(cursor, at.position, None)
        if not self._warned:
            self._warned = True
            logger.warning(
                "topic=%s subscription=%s: the checkpoint is at %s, and others have acknowledged everything before %s: "
                "going on from there", self._log.topic.name, cursor.name, at.position, acknowledged,
            )  # fmt: skip
        return BatchStart.of(cursor, acknowledged, acknowledged)

    def _check_identity(self, at: Offset | None) -> None:
        """By the cursor's id; where that is not known, by its epoch. Epochs only grow, and attaching has raised this
        one's: a checkpoint that was written before and knows this epoch, or a later one, is of another cursor."""
        if at is not None and at.cursor and self.cursor_id:
            return  # planning has compared the ids when the query started
        attached_under = self._attached_under
        if at is not None and attached_under is not None and at.epoch >= attached_under and not self._is_past_end(at):
            raise self._recreated(f"epoch {at.epoch}", f"was at {attached_under - 1}")
        self._attached_under = None  # what comes next was planned by this query itself

    def check_cursor(self, at: Offset) -> None:
        """Raises if an offset says that it is of another cursor than the attached one."""
        if at.cursor and self.cursor_id and at.cursor != self.cursor_id:
            raise self._recreated(f"the id {at.cursor.hex()}", f"has the id {self.cursor_id.hex()}")

    def _check_revision(self, at: Offset, cursor: Cursor) -> None:
        """Raises if the query follows a reset that the cursor has never seen: where a later one has put it, under the
        same number, would be ignored."""
        seen = SeenRevision(at.revision, at.reset)
        if not seen.is_of(cursor):
            raise self._recreated(str(seen), f"is at {SeenRevision.of(cursor)}")

    def _is_past_end(self, at: Offset) -> bool:
        """Then ZooKeeper was rolled back, the cursor's epoch too, and planning says so."""
        return at.position > self._log.refresh(sync=True).head.end

    def _recreated(self, known: str, found: str) -> Conflict:
        return Conflict(
            f"the checkpoint knows {known} of subscription '{self._attachment.node.name}', which {found}: it was "
            "deleted and recreated, the checkpoint belongs to another subscription, or ZooKeeper was rolled back. "
            "Start with a new checkpoint",
            "LEDGER_CURSOR_RECREATED",
        )

    @fencing_told()
    def done(self, end: Offset) -> None:
        self._check_identity(end)
        self._acknowledge(end)

    def _acknowledge(self, done: Offset) -> Cursor | None:
        """None if it was refused, because the offset is past the end: planning the next batch then fails by name, or
        with failOnDataLoss=false goes on from the end."""
        try:
            around_lost = not self._fail_on_data_loss
            return self._attachment.acknowledge(done.position, done.revision, done.reset, around_lost=around_lost)
        except DataLoss as error:
            logger.warning("subscription=%s: not acknowledged: %s", self._attachment.node.name, error)
            return None

    @fencing_told()
    def is_void(self, end: Offset) -> bool:
        return is_void(self._attachment.verified(), end)

    def leave(self) -> None:
        self._attachment.detach()


def is_void(cursor: Cursor, end: Offset) -> bool:
    """Whether a reset has discarded the batch that ends here before it finished."""
    if end.revision >= cursor.void_below:
        return False
    finished = (past.finished for past in cursor.past_revisions if past.revision == end.revision)
    return end.position > next(finished, EARLIEST)


def _unread(at: Offset | None, cursor: Cursor) -> int:
    """How many of the records that a backlog quota took from a cursor a query has not read, at most."""
    if at is None or at.records is None or at.revision < cursor.last_backward_revision:
        return cursor.evicted
    return min(cursor.evicted, max(0, cursor.ordinal - at.records))


class _BeingReset:
    """A query that cannot continue because somebody is resetting its cursor: it writes a log line now and then, and
    does not wait for ever."""

    def __init__(self, attachment: Attachment) -> None:
        self._node = attachment.node
        self._log = attachment.node.log
        grace = self._log.metadata.session_timeout_s + self._log.limits.attach_grace_s
        self._deadline = Deadline(self._log.clock, grace)  # the node of a resetter that died is deleted by then
        self._next_line = Deadline(self._log.clock, self._log.limits.waiting_log_s)

    def wait(self, cursor: Cursor) -> None:
        reviser = self._node.reviser(cursor)
        if self._deadline.passed and reviser is not None:
            raise under_revision(self._node, reviser, cursor)
        self._log.clock.sleep(_WAIT_S)

    def log(self) -> None:
        if self._next_line.passed:
            logger.warning("no new batches for %s: it is being reset, and that does not end", self._node.what)
            self._next_line = Deadline(self._log.clock, self._log.limits.waiting_log_s)
