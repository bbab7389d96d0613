"""Owning a subscription in Python: receive its records in order, acknowledge them, have them redelivered."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from pyspark_ledger.base.names import this_process
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors.attachment import Attachment, SubscriptionType
from pyspark_ledger.cursors.backoff import DEFAULT_BACKOFF, Backoff, Refused
from pyspark_ledger.cursors.receiving import DONE_ALREADY, PERSIST_ACKS, PERSIST_S, Fetched, Grave, Read, Receiver
from pyspark_ledger.cursors.receiving import Message as Message
from pyspark_ledger.cursors.revision import SeenRevision
from pyspark_ledger.errors import CursorUnderRevision, LedgerError
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.lost import LostEntry
from pyspark_ledger.log.places import PlaceLike
from pyspark_ledger.log.reader import POLL_S
from pyspark_ledger.metadata.records import Cursor

logger = logging.getLogger(__name__)

READ_RECORDS = 1_000


class Consumer(Receiver):
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

    _compacted = False
    _follower: Attachment

    def __init__(
        self,
        log: Log,
        subscription: str,
        kind: SubscriptionType = "exclusive",
        start: PlaceLike = "earliest",
        backoff: Backoff = DEFAULT_BACKOFF,
        *,
        fail_on_data_loss: bool = True,
        grave: Grave | None = None,
    ) -> None:
        super().__init__(log, subscription, fail_on_data_loss=fail_on_data_loss, grave=grave)
        self._node.ensure(start, compacted=self._compacted)
        name = f"a consumer in {this_process()}"
        self._follower = Attachment(self._node, kind, name, compacted=self._compacted)
        self._mark = self._unwritten = 0
        self._acks = Runs()
        self._fresh: set[int] = set()  # acknowledged, and not yet merged into _acks: that takes long with many gaps
        self._refused = Refused(backoff)
        self._delivered = 0  # everything before this ordinal was delivered at least once, or was done before
        self._counts: dict[int, int] = {}  # how often, if more than once and not done
        cursor = self._follower.attach()
        try:
            self._adopt(cursor)
        except BaseException:
            self._follower.detach()
            raise

    def _adopt(self, cursor: Cursor) -> None:
        """Continues from the cursor's position: after attaching, a reset or a redelivery."""
        acks = self._node.acks(cursor)
        if cursor.revision == self._revision:  # acknowledgements that are not written yet still count
            acks |= ((0, self._mark), *self._acks, *Runs.of(self._fresh))
        else:
            self._unwritten = self._delivered = 0
            self._counts = {}
        self._refused.clear()  # they come with everything else
        self._fresh = set()
        self._epoch, self._revision = cursor.epoch, cursor.revision  # first: reads under way are outdated
        self._seen = SeenRevision.of(cursor)
        self._queue = deque()
        self._mark = acks.next_missing(cursor.ordinal)
        self._acks = acks.since(self._mark)
        self._written_at = self._log.clock.monotonic()
        self._position, self._ordinal = cursor.mark_delete, cursor.ordinal

    # -- receiving -----------------------------------------------------------------------------------------

    def _follow(self) -> Cursor:
        """Notices resets, redeliveries and a new owner."""
        self._check_open()
        self._check_history()
        cursor = self._follower.verified()
        self._check_revision(cursor)
        if (cursor.revision, cursor.epoch) != (self._revision, self._epoch):
            self._adopt(cursor)
        if self._unwritten and self._log.clock.monotonic() - self._written_at > PERSIST_S:
            self.flush()
        return cursor

    def _pop(self) -> Message | None:
        """All of them are of this epoch and revision: another one begins with an empty queue, and only reads of its own
        fill it."""
        while self._queue:
            message = self._queue.popleft()
            if not self._is_done(message.ordinal):
                return self._counted(message)
        return None

    def _counted(self, message: Message) -> Message:
        ordinal, count = message.ordinal, self._deliveries(message.ordinal) + 1
        if count == 1:
            self._delivered = ordinal + 1
            return message
        self._counts[ordinal] = count
        return replace(message, delivery_count=count)

    def _deliveries(self, ordinal: int) -> int:
        """They come in order, the first time."""
        return 0 if ordinal >= self._delivered else self._counts.get(ordinal, 1)

    def _fill(self) -> bool:
        read = self._begin_read()
        if read is None:
            return False
        self._carry_out(read)
        return True

    def _begin_read(self) -> Read | None:
        """None if there is nothing to read, or somebody is moving the cursor."""
        view = self._log.view(POLL_S)
        if self._node.current(POLL_S).reviser and self._follower.is_under_revision():
            return None
        due = self._refused.take_due(self._log.clock.monotonic(), READ_RECORDS)
        if due:
            return Read(self._epoch, self._revision, Runs.of(due), self._position, self._ordinal)
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
        return self._fetch_known(read)

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

    def _goes_on(self, cursor: Cursor) -> None:
        self._adopt(cursor)

    def _is_given_up(self, each: LostEntry) -> None:
        self._acks |= ((max(each.ordinal, self._mark), each.ordinal + each.records),)

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
        self._check_ours(message)
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
        self._check_ours(message)
        with self._lock:
            self._follow()
            # One of an earlier epoch or revision comes again in any case.
            is_current = message.revision == self._revision and message.epoch == self._epoch
            if is_current and not self._is_done(message.ordinal):
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
        self._check_not_forked()
        with self._lock:
            self._check_open()
            self.flush()
            self._adopt(self._follower.change(_next_epoch))

    def flush(self) -> None:
        """Writes acknowledgements now. While somebody resets the subscription it does nothing: they are written later,
        if they still count then.

        Raises Fenced if another has taken over; InvalidInput (LEDGER_TOO_MANY_GAPS) if too many records before the
        acknowledged ones are missing; Unavailable or OutcomeUnknown if ZooKeeper does not answer. The acknowledgements
        are then written by the next flush."""
        self._check_not_forked()
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        self._check_history()
        done = self._acks | ((0, self._mark), *Runs.of(self._fresh))
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
            cursor = self._follower.change(write)
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
        self._check_not_forked()
        with self._lock:
            if not self._closed:
                try:
                    self.flush()
                finally:
                    self._closed = True
                    self._follower.detach()

    def _is_done(self, ordinal: int) -> bool:
        return ordinal < self._mark or ordinal in self._fresh or ordinal in self._acks

    # -- acknowledging together with other things ----------------------------------------------------------

    def _judge(self, cursor: Cursor) -> Callable[[int], str]:
        done = self._node.acks(cursor) | ((0, cursor.ordinal),)
        return lambda ordinal: DONE_ALREADY if ordinal in done or self._is_done(ordinal) else ""

    def _with_acknowledged(self, cursor: Cursor, ordinals: Runs) -> Cursor:
        done = self._node.acks(cursor) | ordinals
        return self._node.moved(cursor, done.next_missing(cursor.ordinal), done)

    def _note_acknowledged(self, ordinals: Runs) -> None:
        for ordinal in ordinals.numbers():
            self._fresh.add(ordinal)
            self._counts.pop(ordinal, None)


def _next_epoch(cursor: Cursor) -> Cursor:
    return replace(cursor, epoch=cursor.epoch + 1)
