"""Owning a subscription in Python and reading it compacted: below the horizon of the newest generation only the last
record of every key comes, above it every record.

A generation has gaps, and below the begin of the log records have no numbers of their own any more. So this consumer
knows records by their positions, and the subscription moves only up to the first one that is not done: what was
acknowledged after it is known to this consumer alone, and comes again to its successor.

No deletion of a key that was delivered is missed (I9). A generation keeps the tombstones at or after the position of
every subscription, so all that are needed come after its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.consumer import READ_RECORDS, Consumer
from pyspark_ledger.cursors.receiving import PERSIST_ACKS, Message
from pyspark_ledger.cursors.revision import SeenRevision
from pyspark_ledger.log import generations, scan
from pyspark_ledger.log.log import View
from pyspark_ledger.log.reader import POLL_S
from pyspark_ledger.log.rows import read_slice
from pyspark_ledger.log.slices import Slice
from pyspark_ledger.log.sources import ReadSource
from pyspark_ledger.metadata.records import Cursor


class CompactedConsumer(Consumer):
    """A :class:`Consumer` of compacted records. Made by ``client.consumer(topic, subscription, read_compacted=True)``.

    The first one that follows the subscription gets the last record of every key that is not deleted, and then every
    change, tombstones too. What was acknowledged out of order comes again after a restart.
    """

    _compacted = True

    def _adopt(self, cursor: Cursor) -> None:
        if cursor.revision != self._revision:
            self._base = self._begin(cursor)
            self._came: dict[Position, int] = {}  # how often each came that is not done
        self._epoch, self._revision = cursor.epoch, cursor.revision  # first: what was read before is outdated
        self._seen = SeenRevision.of(cursor)
        self._queue = deque()
        self._given: dict[Position, bool] = {}  # what was delivered, in its order, from the first that is not done on
        self._away: dict[int, Message] = {}  # what was refused, by the number under which it comes again
        self._refused.clear()
        self._refusals = self._unwritten = 0
        self._written_at = self._log.clock.monotonic()
        self._position, self._ordinal = cursor.mark_delete, cursor.ordinal

    def _begin(self, cursor: Cursor) -> Position:
        """Tombstones before this position are left out. The first one that ever follows the subscription has seen
        nothing that they could have removed."""
        generation = self._log.refresh(sync=True).head.generation
        is_first = cursor.epoch == 1 and cursor.revision == 0
        return max(cursor.mark_delete, generation.horizon) if is_first and generation else cursor.mark_delete

    # -- receiving -----------------------------------------------------------------------------------------

    def _pop(self) -> Message | None:
        for number in self._refused.take_due(self._log.clock.monotonic(), 1):
            message = self._away.pop(number)
            if self._given.get(message.position) is False:
                return self._delivered_again(message)
        return self._delivered_again(self._queue.popleft()) if self._queue else None

    def _delivered_again(self, message: Message) -> Message:
        """For the first time, or again."""
        count = self._came[message.position] = self._came.get(message.position, 0) + 1
        self._given.setdefault(message.position, False)
        return replace(message, delivery_count=count)

    def _fill(self) -> bool:
        if self._node.current(POLL_S).reviser and self._follower.is_under_revision():
            return False
        view = self._log.view(POLL_S)
        source = ReadSource(self._log, view, generations.newest(self._log, view), self._base)
        if self._position >= view.head.end:
            return False
        if source.gone_from(self._position, view.head.end) is not None:
            self._check_trimmed(view.head)  # it is in no generation either
            return True
        lost = source.lost(self._position, view.head.end)
        if lost and lost[0].first <= self._position:
            self._tell_lost(lost[0])
            self._position = lost[0].end
            return True
        limit = lost[0].first if lost else view.head.end
        end, rows = source.advance(self._position, limit, READ_RECORDS)
        messages = [found for piece in source.slices(self._position, end) for found in self._found(piece, view)]
        if self._node.current(POLL_S).reviser:
            return False  # what was read while somebody moves the cursor is not delivered
        self._queue.extend(messages)
        self._position = end if rows else limit
        return True

    def _found(self, piece: Slice, view: View) -> Iterator[Message]:
        for rows in read_slice(self._log.storage, self._log.topic.uuid, piece, self._schema, with_ids=True):
            for fields in rows.records():
                ordinal = fields[6]
                if ordinal is None:  # it was compacted before that was noted
                    ordinal = scan.records_before(self._log, view, fields[0])
                yield Message(*fields[:6], ordinal, fields[7], self._epoch, self._revision, source=self._node.key)

    # -- acknowledging -------------------------------------------------------------------------------------

    def _acknowledge(self, message: Message, *, cumulative: bool) -> bool:
        self._check_ours(message)
        with self._lock:
            self._follow()
            if message.revision != self._revision:
                return False
            at = message.position
            for position in [given for given in self._given if given == at or (cumulative and given < at)]:
                self._given[position] = True
            self._forget_done()
            self._unwritten += 1
            if self._unwritten >= PERSIST_ACKS:
                self.flush()
            return True

    def _forget_done(self) -> None:
        for position in list(self._given):
            if not self._given[position]:
                return
            del self._given[position]
            self._came.pop(position, None)

    def negative_acknowledge(self, message: Message) -> None:
        """Says that a record could not be handled: it comes again, as for a :class:`Consumer`."""
        self._check_ours(message)
        with self._lock:
            self._follow()
            is_current = (message.revision, message.epoch) == (self._revision, self._epoch)
            if is_current and self._given.get(message.position) is False:
                self._away[self._refusals] = message
                self._refused.add(self._refusals, message.delivery_count, self._log.clock.monotonic())
                self._refusals += 1

    def _flush(self) -> None:
        self._check_history()
        following = self._queue[0].position if self._queue else self._position
        cursor = self._follower.acknowledge(next(iter(self._given), following), self._revision, self._seen.reset)
        self._check_revision(cursor)
        if not cursor.reviser:
            self._unwritten, self._written_at = 0, self._log.clock.monotonic()
