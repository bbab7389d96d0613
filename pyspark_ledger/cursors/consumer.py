"""Following a subscription from Python: receive records, acknowledge them, have them redelivered.

Every read carries the epoch and the revision under which it began. If the epoch is greater (PIP-84) or the revision is
another (PIP-269) when the read comes back, its records are thrown away: they would be delivered out of order.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.names import this_process
from pyspark_ledger.base.position import Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors import loss
from pyspark_ledger.cursors.attachment import Attachment, SubscriptionType
from pyspark_ledger.cursors.backoff import DEFAULT_BACKOFF, Backoff, Refused
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import SeenRevision
from pyspark_ledger.errors import CursorUnderRevision, DataLoss, InvalidInput, LedgerError
from pyspark_ledger.log import lost, scan, trimmed
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.lost import LostEntry
from pyspark_ledger.log.places import PlaceLike
from pyspark_ledger.log.reader import POLL_S, WAIT_S, Record
from pyspark_ledger.log.rows import read_slice
from pyspark_ledger.log.slices import LogSlice, joined
from pyspark_ledger.metadata.records import Cursor, Head
from pyspark_ledger.metadata.transactions import RolledBack

logger = logging.getLogger(__name__)

READ_RECORDS = 1_000
PERSIST_S = 1.0
PERSIST_ACKS = 1_000


@dataclass(frozen=True, slots=True)
class Message(Record):
    """A record that was delivered to a :class:`Consumer`.

    Attributes:
        ordinal: how many records of the topic are before it.
        epoch: under which epoch it was read; redeliveries and new consumers raise it.
        revision: under which revision it was read; resets of the subscription raise it.
        delivery_count: how often this consumer has delivered it, this time included, since it was made or the cursor
            was reset.
    """

    ordinal: int
    epoch: int
    revision: int
    delivery_count: int = 1


@dataclass(frozen=True, slots=True)
class Read:
    """A read that has begun, with the epoch and the revision of that moment."""

    epoch: int
    revision: int
    ordinals: Runs | None  # records to deliver again; None: the next records, from the two that follow
    start: Position
    ordinal: int


@dataclass(frozen=True, slots=True)
class Fetched:
    messages: list[Message]
    next_position: Position
    next_ordinal: int


class Consumer:
    """Receives the records of a subscription. Made by ``client.consumer(topic, subscription)``.

    Delivery is at least once: a record that was not acknowledged is delivered again after a crash. One consumer at a
    time owns a subscription; if another takes over, because this one lost its ZooKeeper session, every call raises
    Fenced.

    Acknowledgements are kept in memory and written after a second or a thousand of them, by the next call of
    :meth:`receive` or :meth:`acknowledge`; and by :meth:`flush` and :meth:`close`.

    >>> with client.consumer("orders", "billing") as consumer:
    ...     while (message := consumer.receive(timeout_s=0.1)) is not None:
    ...         print(message.ordinal, message["order_id"])
    ...         assert consumer.acknowledge(message)
    0 1
    1 2
    2 3

    Iterating over a consumer receives without a time-out, for ever.

    Threads may share a consumer: each record goes to one of them, and any of them may acknowledge it. They take turns,
    and wait for each other only while one reads from storage or asks ZooKeeper. What they have in hand at a time is no
    longer in order, so :meth:`acknowledge_cumulative` is for one thread.
    """

    def __init__(
        self,
        log: Log,
        subscription: str,
        kind: SubscriptionType = "exclusive",
        start: PlaceLike = "earliest",
        backoff: Backoff = DEFAULT_BACKOFF,
        *,
        fail_on_data_loss: bool = True,
    ) -> None:
        self._log = log
        self._fail_on_data_loss = fail_on_data_loss
        self._node = CursorNode(log, subscription)
        self._node.ensure(start)
        self._attachment = Attachment(self._node, kind, f"a consumer in {this_process()}")
        self._schema = log.schema(log.refresh(sync=True).head.schema_id)
        self._history = log.histories
        self._lock = threading.RLock()
        self._closed = False
        self._epoch = self._revision = -1
        self._seen = SeenRevision(0)
        self._mark = self._unwritten = 0
        self._acks = Runs()
        self._fresh: set[int] = set()  # acknowledged, and not yet merged into _acks: that takes long with many gaps
        self._refused = Refused(backoff)
        self._delivered = 0  # everything before this ordinal was delivered at least once, or was done before
        self._counts: dict[int, int] = {}  # how often, if more than once and not done
        cursor = self._attachment.attach()
        try:
            self._adopt(cursor)
        except BaseException:
            self._attachment.detach()
            raise

    def _adopt(self, cursor: Cursor) -> None:
        """Continues from the cursor's position: after attaching, a reset or a redelivery."""
        acks = self._node.acks(cursor)
        if cursor.revision == self._revision:  # acknowledgements that are not written yet still count
            acks |= ((0, self._mark), *self._acks, *_runs(self._fresh))
        else:
            self._unwritten = self._delivered = 0
            self._counts = {}
        self._refused.clear()  # they come with everything else
        self._fresh = set()
        self._epoch, self._revision = cursor.epoch, cursor.revision  # first: reads under way are outdated
        self._seen = SeenRevision.of(cursor)
        self._queue: deque[Message] = deque()
        self._mark = acks.next_missing(cursor.ordinal)
        self._acks = acks.since(self._mark)
        self._written_at = self._log.clock.monotonic()
        self._position, self._ordinal = cursor.mark_delete, cursor.ordinal

    # -- receiving -----------------------------------------------------------------------------------------

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next record; None if none came within ``timeout_s`` seconds. Without a time-out it waits for ever.

        Raises Fenced if another consumer or query has taken over the subscription; InvalidInput if this one is closed;
        Unavailable if ZooKeeper or the storage does not answer; and DataLoss, each time, if records were taken from the
        subscription by a backlog quota (LEDGER_EVICTED), are no longer in the log (LEDGER_TRIMMED), or were given up
        because their file is damaged (LEDGER_ENTRY_LOST): then reset it, or make the consumer with
        ``fail_on_data_loss=False``, to go on without them."""
        deadline = None if timeout_s is None else Deadline(self._log.clock, timeout_s)
        while True:
            with self._lock:
                self._check_eviction(self._follow())
                message = self._pop()
                if message is not None:
                    return message
                read = self._begin_read()
                if read is not None:
                    self._carry_out(read)
                    continue
            if deadline is not None and deadline.passed:
                return None
            self._log.clock.sleep(WAIT_S)  # without the lock: others may acknowledge, or close it

    def __iter__(self) -> Iterator[Message]:
        while (message := self.receive()) is not None:
            yield message

    def _follow(self) -> Cursor:
        """Notices resets, redeliveries and a new owner."""
        self._check_open()
        self._check_history()
        cursor = self._attachment.verified()
        self._check_revision(cursor)
        if (cursor.revision, cursor.epoch) != (self._revision, self._epoch):
            self._adopt(cursor)
        if self._unwritten and self._log.clock.monotonic() - self._written_at > PERSIST_S:
            self.flush()
        return cursor

    def _check_eviction(self, cursor: Cursor) -> None:
        """Records are no longer delivered behind a gap of which nobody was told."""
        if not cursor.evicted:
            return
        if self._fail_on_data_loss:
            raise loss.evicted(self._node, cursor, cursor.evicted, "fail_on_data_loss=False")
        with contextlib.suppress(CursorUnderRevision):  # then nothing is read until that has ended
            loss.count_evicted(self._attachment, cursor, lambda now: now.evicted)

    def _check_trimmed(self, head: Head) -> None:
        """The subscription holds what it has not passed. But it may have been followed by readers of compacted ledgers,
        which also have what the log has given up; or ZooKeeper was rolled back."""
        if not trimmed.is_gone(head, self._position):
            return
        gone = trimmed.loss(head, self._position, self._ordinal)
        if self._fail_on_data_loss:
            how = f"To go on from {trimmed.begin(head)}, reset the subscription, or set fail_on_data_loss=False"
            raise DataLoss(f"{self._node.what}: {gone.message}. {how}", gone.code)
        logger.warning("%s: %s; going on from there", self._node.what, gone)
        self._adopt(loss.count_trimmed(self._attachment, head))

    def _check_lost(self, head: Head) -> None:
        """Damaged entries that were given up by name, and that come next, are left behind, or the consumer stops."""
        for each in lost.between(self._log.files, head, self._position, head.end):
            if each.first > self._position:
                return
            self._give_up(each)
            self._position, self._ordinal = each.end, max(self._ordinal, each.ordinal + each.records)

    def _give_up(self, each: LostEntry) -> None:
        gone = each.loss(self._log.topic.name)
        if self._fail_on_data_loss:
            how = "To go on after them, reset the subscription, or set fail_on_data_loss=False"
            raise DataLoss(f"{self._node.what}: {gone.message}. {how}", gone.code)
        logger.warning("%s: %s; going around them", self._node.what, gone)
        loss.count_lost(self._attachment, each)
        self._acks |= ((max(each.ordinal, self._mark), each.ordinal + each.records),)

    def _pop(self) -> Message | None:
        """All of them are of this epoch and revision: another one begins with an empty queue, and only reads of its own
        fill it."""
        while self._queue:
            message = self._queue.popleft()
            if not self._is_done(message):
                return self._counted(message)
        return None

    def _counted(self, message: Message) -> Message:
        if message.ordinal >= self._delivered:  # they come in order, the first time
            self._delivered = message.ordinal + 1
            return message
        count = self._counts[message.ordinal] = self._counts.get(message.ordinal, 1) + 1
        return replace(message, delivery_count=count)

    def _begin_read(self) -> Read | None:
        """None if there is nothing to read, or somebody is moving the cursor."""
        view = self._log.view(POLL_S)
        if self._node.current(POLL_S).reviser and self._attachment.is_under_revision():
            return None
        due = self._refused.take_due(self._log.clock.monotonic(), READ_RECORDS)
        if due:
            return Read(self._epoch, self._revision, Runs(_runs(due)), self._position, self._ordinal)
        if self._ordinal >= view.head.records:
            return None
        self._check_trimmed(view.head)
        try:
            self._check_lost(view.head)
        except CursorUnderRevision:  # then nothing is read until that has ended
            return None
        if self._ordinal >= view.head.records:
            return None
        return Read(self._epoch, self._revision, None, self._position, self._ordinal)

    def _carry_out(self, read: Read) -> None:
        try:
            fetched = self._fetch(read)
        except BaseException:
            self._refused.put_back(read.ordinals or ())
            raise
        self._complete_read(read, fetched)

    def _fetch(self, read: Read) -> Fetched:
        if read.ordinals is None:
            return self._fetch_from(read, read.start, read.ordinal, READ_RECORDS)
        messages: list[Message] = []
        view = self._log.view()
        given_up = lost.fetch(self._log.files, view.head)
        for each in given_up:
            if any(lost.count([each], first, stop) for first, stop in read.ordinals):
                self._give_up(each)
        for first, stop in (part for run in read.ordinals for part in lost.parts(given_up, *run)):
            start = scan.position_at(self._log, view, first)
            messages += self._fetch_from(read, start, first, stop - first).messages
        return Fetched(messages, read.start, read.ordinal)

    def _fetch_from(self, read: Read, start: Position, ordinal: int, records: int) -> Fetched:
        view = self._log.view()
        messages: list[Message] = []
        ahead = lost.between(self._log.files, view.head, start, view.head.end)
        end = ahead[0].first if ahead else view.head.end  # what is lost is met by the next read
        for found in joined(scan.slices(self._log, view, start, end), records):
            piece = found.first(records - len(messages))
            for rows in read_slice(self._log.storage, self._log.topic.uuid, piece, self._schema, with_ids=True):
                for fields in rows.records():
                    number = ordinal + len(messages)
                    messages.append(Message(*fields[:6], number, fields[7], read.epoch, read.revision))
            assert isinstance(piece, LogSlice)
            start = piece.end
            if len(messages) >= records:
                break
        if ahead and len(messages) < records:
            start = end
        return Fetched(messages, start, ordinal + len(messages))

    def _complete_read(self, read: Read, fetched: Fetched) -> bool:
        """False if the read was outdated by the time it came back: then nothing of it is delivered."""
        if read.epoch < self._epoch or read.revision != self._revision or self._node.current(POLL_S).reviser:
            logger.info("subscription=%s: a read of epoch %d is outdated", self._node.name, read.epoch)
            if read.ordinals is not None and read.revision == self._revision and read.epoch == self._epoch:
                self._refused.put_back(read.ordinals)  # the reset that is under way may still fail: deliver them then
            return False
        self._queue.extend(fetched.messages)
        if read.ordinals is None:
            self._position, self._ordinal = fetched.next_position, fetched.next_ordinal
        return True

    # -- acknowledging -------------------------------------------------------------------------------------

    def acknowledge(self, message: Message) -> bool:
        """Says that a record was handled, so that it is not delivered again.

        Returns False if the subscription was reset since the record was read. Then this has no effect, and the record
        is delivered again if it lies after the new position. A reset that comes before the acknowledgement is written
        cancels it in the same way.

        Raises what :meth:`receive` raises, and what :meth:`flush` raises if it is time to write."""
        return self._acknowledge(message, cumulative=False)

    def acknowledge_cumulative(self, message: Message) -> bool:
        """Says that a record and everything before it was handled. Otherwise as :meth:`acknowledge`."""
        return self._acknowledge(message, cumulative=True)

    def _acknowledge(self, message: Message, *, cumulative: bool) -> bool:
        with self._lock:
            self._follow()
            if message.revision != self._revision:
                return False
            if cumulative:
                self._mark = max(self._mark, message.ordinal + 1)
            else:
                self._fresh.add(message.ordinal)
                self._counts.pop(message.ordinal, None)
            self._unwritten += 1
            if self._unwritten >= PERSIST_ACKS:
                self.flush()
            return True

    def negative_acknowledge(self, message: Message) -> None:
        """Says that a record could not be handled: it is delivered again, after a second at the earliest, and each time
        after twice as long, up to a minute (:meth:`LedgerClient.consumer` can set both). Others go on coming meanwhile.
        ``message.delivery_count`` tells when to give up. Raises what :meth:`receive` raises."""
        with self._lock:
            self._follow()
            # One of an earlier epoch or revision comes again in any case.
            is_current = message.revision == self._revision and message.epoch == self._epoch
            if is_current and not self._is_done(message):
                self._refused.add(message.ordinal, message.delivery_count, self._log.clock.monotonic())

    def redeliver_unacknowledged(self) -> None:
        """Delivers everything that was received and not acknowledged again, in order, before anything new. The messages
        have a greater epoch then.

        Raises what :meth:`flush` raises, and CursorUnderRevision if somebody resets the subscription right now.

        >>> with client.consumer("orders", "shipping") as consumer:
        ...     first = consumer.receive()
        ...     consumer.redeliver_unacknowledged()
        ...     again = consumer.receive()
        >>> first.position == again.position, first.epoch < again.epoch
        (True, True)
        """
        with self._lock:
            self._check_open()
            self.flush()
            self._adopt(self._attachment.change(_next_epoch))

    def flush(self) -> None:
        """Writes acknowledgements now. While somebody resets the subscription it does nothing: they are written later,
        if they still count then.

        Raises Fenced if another has taken over; InvalidInput (LEDGER_TOO_MANY_GAPS) if too many records before the
        acknowledged ones are missing; Unavailable or OutcomeUnknown if ZooKeeper does not answer. The acknowledgements
        are then written by the next flush."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        self._check_history()
        done = self._acks | ((0, self._mark), *_runs(self._fresh))
        self._mark = done.next_missing(self._mark)
        self._acks, self._fresh = done.since(self._mark), set()
        self._counts = {ordinal: count for ordinal, count in self._counts.items() if ordinal >= self._mark}
        revision, mark, acks = self._revision, self._mark, self._acks
        writing, self._unwritten = self._unwritten, 0

        def write(cursor: Cursor) -> Cursor | None:
            self._check_revision(cursor)
            if cursor.revision != revision:
                return None  # an old acknowledgement moves nothing (I7)
            done = self._node.acks(cursor) | ((0, max(mark, cursor.ordinal)), *acks)
            ordinal = done.next_missing(cursor.ordinal)
            if ordinal == cursor.ordinal and done.since(ordinal) == self._node.acks(cursor):
                return None
            return self._node.moved(cursor, ordinal, done)

        try:
            cursor = self._attachment.change(write)
        except LedgerError as error:
            self._unwritten += writing
            if not isinstance(error, CursorUnderRevision):
                raise
            return
        self._written_at = self._log.clock.monotonic()
        if writing:
            logger.info(
                "acknowledged topic=%s subscription=%s position=%s revision=%d epoch=%d",
                self._log.topic.name, self._node.name, cursor.mark_delete, cursor.revision, cursor.epoch,
            )  # fmt: skip

    def close(self) -> None:
        """Writes acknowledgements and releases the subscription for others. Closing twice is fine.

        Raises what :meth:`flush` raises. The subscription is released even then, and the records whose acknowledgements
        could not be written are delivered again."""
        with self._lock:
            if not self._closed:
                try:
                    self.flush()
                finally:
                    self._closed = True
                    self._attachment.detach()

    def _is_done(self, message: Message) -> bool:
        ordinal = message.ordinal
        return ordinal < self._mark or ordinal in self._fresh or ordinal in self._acks

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("this consumer is closed", "LEDGER_CLOSED")

    def _check_history(self) -> None:
        """What it has received may be lost, and other records may be in their places by now."""
        if self._log.histories != self._history:
            raise self._rolled_back("may have received what was lost")

    def _check_revision(self, cursor: Cursor) -> None:
        """What it has received under a reset that is lost must not be acknowledged under another of the same number."""
        if not self._seen.is_of(cursor):
            raise self._rolled_back(f"knows {self._seen}, which was lost")

    def _rolled_back(self, why: str) -> RolledBack:
        return RolledBack(
            f"{self._node.what}: ZooKeeper was rolled back to an older state, and this consumer {why}. What it has "
            "acknowledged and not written yet does not count. Close it and make another one, which goes on from where "
            "the subscription is"
        )

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _next_epoch(cursor: Cursor) -> Cursor:
    return replace(cursor, epoch=cursor.epoch + 1)


def _runs(ordinals: Iterable[int]) -> Iterator[tuple[int, int]]:
    return ((ordinal, ordinal + 1) for ordinal in ordinals)
