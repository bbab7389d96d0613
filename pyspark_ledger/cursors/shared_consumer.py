"""Sharing a subscription in Python: each record goes to one of several processes, in no particular order.

A consumer *claims* records in the cursor before it delivers them, and acknowledges others in the same change. So the
cursor is written about once for as many records as are claimed together, and an idle consumer writes nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from pyspark_ledger.base.names import this_process
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors import receiving, shares
from pyspark_ledger.cursors.backoff import DEFAULT_BACKOFF, Backoff, Refused
from pyspark_ledger.cursors.membership import Membership, Removed
from pyspark_ledger.cursors.receiving import PERSIST_ACKS, PERSIST_S, Fetched, Grave, Message, Read, Receiver
from pyspark_ledger.cursors.revision import SeenRevision
from pyspark_ledger.cursors.shares import Sharing
from pyspark_ledger.errors import Conflict, CursorUnderRevision, InvalidInput
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.lost import LostEntry
from pyspark_ledger.log.places import PlaceLike
from pyspark_ledger.log.reader import POLL_S
from pyspark_ledger.metadata.records import Cursor, Member

logger = logging.getLogger(__name__)

PREFETCH = 1_000
Claim = Callable[[Cursor, Runs], Runs]  # what to claim in addition to some records


def _nothing(cursor: Cursor, keeps: Runs) -> Runs:
    return Runs()


class SharedConsumer(Receiver):
    """Receives some of the records of a subscription that several consumers share, in as many processes. Made by
    ``client.consumer(topic, subscription, "shared")``, or with ``"key_shared"``.

    Each record goes to one of them. Delivery is at least once: what a consumer had in hand when it died goes to the
    others as soon as its ZooKeeper session has ended. A record whose acknowledgement was written is not delivered
    again, unless the subscription is reset. ``shared`` promises no order. With ``key_shared`` the records of one key
    come in order, to one consumer at a time; the topic needs a key.

    Acknowledgements are kept in memory, and written with the next records that are claimed, after a second, or after a
    thousand of them, by the next call of :meth:`receive` or :meth:`acknowledge`; and by :meth:`flush` and
    :meth:`close`.

    >>> with client.consumer("orders", "labels", "shared") as consumer:
    ...     while (message := consumer.receive(timeout_s=0.1)) is not None:
    ...         print(message["order_id"], message.delivery_count)
    ...         assert consumer.acknowledge(message)
    1 1
    2 1
    3 1

    Iterating over a consumer receives without a time-out, for ever. Threads may share one: each record goes to one of
    them, and any of them may acknowledge it.
    """

    _sharing: Sharing = "shared"
    _follower: Membership

    def __init__(
        self,
        log: Log,
        subscription: str,
        start: PlaceLike = "earliest",
        backoff: Backoff = DEFAULT_BACKOFF,
        *,
        prefetch: int = PREFETCH,
        ack_timeout_s: float | None = None,
        fail_on_data_loss: bool = True,
        grave: Grave | None = None,
    ) -> None:
        super().__init__(log, subscription, fail_on_data_loss=fail_on_data_loss, grave=grave)
        self._prefetch, self._ack_timeout_s = prefetch, ack_timeout_s
        self._refused = Refused(backoff)
        self._node.ensure(start)
        self._follower = self._newcomer()
        cursor = self._follower.attach()
        try:
            self._adopt(cursor)
        except BaseException:
            self._follower.detach()
            raise

    def _newcomer(self) -> Membership:
        return Membership(self._node, self._sharing, f"a consumer in {this_process()}")

    def _adopt(self, cursor: Cursor) -> None:
        """Begins anew: after joining, a reset or a redelivery. What was delivered before does not count any more."""
        self._epoch, self._revision = cursor.epoch, cursor.revision  # first: reads under way are outdated
        self._seen = SeenRevision.of(cursor)
        # What it claims is in one of these: not read yet; read; in hand, and since when; refused, and to come again.
        self._unread = Runs()
        self._queue = deque()
        self._hand: dict[int, float] = {}
        self._away: set[int] = set()
        self._done: set[int] = set()  # acknowledged, and not written yet
        self._counts: dict[int, int] = {}  # deliveries so far of what it claims
        self._given_back: dict[int, int] = {}  # the same of what it has claimed and will not deliver
        self._refused.clear()
        self._unwritten = 0
        self._written_at = self._log.clock.monotonic()
        self._nothing_new: tuple[Cursor | None, int] = None, 0  # a cursor and an end with nothing to claim
        self._position, self._ordinal = cursor.mark_delete, cursor.ordinal

    # -- following -----------------------------------------------------------------------------------------

    def _follow(self) -> Cursor | None:
        self._check_open()
        self._check_history()
        try:
            cursor = self._follower.verified()
            self._check_revision(cursor)
            if (cursor.revision, cursor.epoch) != (self._revision, self._epoch):
                self._adopt(cursor)
            self._notice(cursor)
            if self._unwritten and self._log.clock.monotonic() - self._written_at > PERSIST_S:
                self._written_at = self._log.clock.monotonic()
                with contextlib.suppress(Conflict):  # others change it all the time: then later
                    self._exchange()
        except Removed as removed:
            return self._rejoin(removed)
        return cursor

    def _notice(self, cursor: Cursor) -> None:
        """Takes note of what others have done within this epoch and revision."""
        self._position, self._ordinal = cursor.mark_delete, cursor.ordinal

    def _rejoin(self, removed: Removed) -> Cursor | None:
        """None if somebody resets the cursor right now: the next call tries again."""
        logger.warning("%s: it joins again", removed.message)
        newcomer = self._newcomer()
        self._follower.forget()
        cursor = newcomer.rejoin()  # if its outcome is unknown, the next call finds that we were removed once more
        if cursor is not None:
            self._follower = newcomer
            self._check_revision(cursor)
            self._adopt(cursor)
            self._notice(cursor)
        return cursor

    def _goes_on(self, cursor: Cursor) -> None:
        self._position, self._ordinal = cursor.mark_delete, cursor.ordinal

    def _is_given_up(self, each: LostEntry) -> None:
        self._unread -= ((each.ordinal, each.ordinal + each.records),)

    # -- receiving -----------------------------------------------------------------------------------------

    def _pop(self) -> Message | None:
        while self._queue:
            message = self._queue.popleft()
            ordinal = message.ordinal
            if ordinal >= self._node.current(POLL_S).ordinal:
                self._counts[ordinal] = self._deliveries(ordinal) + 1
                self._hand[ordinal] = self._log.clock.monotonic()
                return replace(message, delivery_count=self._counts[ordinal])
            self._is_done(ordinal)  # somebody has acknowledged it from outside
        return None

    def _deliveries(self, ordinal: int) -> int:
        return self._counts.get(ordinal, 0)

    def _fill(self) -> bool:
        try:
            return self._read_more()
        except (Removed, CursorUnderRevision):  # the next call finds out
            return False

    def _read_more(self) -> bool:
        read = self._begin_read()
        if read is None:
            return False
        self._complete_read(read, self._fetch(read))
        return True

    def _begin_read(self) -> Read | None:
        """None if there is nothing to read, or somebody is moving the cursor."""
        if self._node.current(POLL_S).reviser and self._follower.is_under_revision():
            return None
        self._take_due()
        if not self._unread and not self._claim(self._log.view(POLL_S)):
            return None
        ordinals = self._unread.first(self._prefetch, self._log.limits.claim_runs)
        return Read(self._epoch, self._revision, ordinals, self._position, self._ordinal)

    def _take_due(self) -> None:
        """What was refused, and comes again now, is to be read again."""
        now = self._log.clock.monotonic()
        if self._ack_timeout_s is not None:
            overdue = [ordinal for ordinal, since in self._hand.items() if now - since > self._ack_timeout_s]
            for ordinal in overdue:
                self._refuse(ordinal)
        due = [ordinal for ordinal in self._refused.take_due(now, self._prefetch) if ordinal in self._away]
        for ordinal in due:
            self._away.remove(ordinal)
        self._unread |= Runs.of(due)

    def _fetch(self, read: Read) -> Fetched:
        return self._fetch_known(read)

    def _complete_read(self, read: Read, fetched: Fetched) -> bool:
        """False if the read was outdated by the time it came back: then nothing of it is delivered."""
        if not self._is_current(read) or self._node.current(POLL_S).reviser:
            logger.info("subscription=%s: a read of epoch %d is outdated", self._node.name, read.epoch)
            return False
        self._keep(read, fetched)
        return True

    def _keep(self, read: Read, fetched: Fetched) -> None:
        """What came back in time is delivered next."""
        assert read.ordinals is not None
        self._unread -= read.ordinals
        self._queue.extend(fetched.messages)

    def _is_current(self, of: Read | Message | Cursor) -> bool:
        return (of.epoch, of.revision) == (self._epoch, self._revision)

    # -- claiming ------------------------------------------------------------------------------------------

    def _claim(self, view: View) -> bool:
        """Claims records. False if there are none."""
        cursor, end = self._node.current(POLL_S), view.head.records
        if not self._is_current(cursor):
            return False  # the next call adopts it
        dead = self._follower.dead(cursor)
        seen, at = self._nothing_new
        if not dead and seen is cursor and at == end:
            return False

        def some(now: Cursor, keeps: Runs) -> Runs:
            free = shares.unclaimed(now, shares.reachable(now, end, self._log.limits), self._follower.id, keeps)
            return shares.portion(now, free, self._fair(len(free), len(now.members)), self._room(keeps))

        if not dead and not some(cursor, self._claimed()):
            self._nothing_new = cursor, end
            return False
        self._check_trimmed(view.head)
        with contextlib.suppress(Conflict):  # others change it all the time: then later
            self._unread |= self._exchange(some, dead)
        return bool(self._unread)

    def _fair(self, free: int, members: int) -> int:
        """How many records to claim together: near the end of the topic fewer, so that others get some."""
        return min(self._prefetch, free if members == 1 else -(-free // (2 * members)))

    def _room(self, keeps: Runs) -> int:
        """In how many runs it may claim more: the record must stay small (I13)."""
        return max(0, self._log.limits.claim_runs - sum(1 for _ in keeps))

    def _claimed(self) -> Runs:
        """All that it claims and has not acknowledged."""
        in_memory = (*self._hand, *self._away, *(message.ordinal for message in self._queue))
        return (self._unread | Runs.of(in_memory)) - Runs.of(self._done)

    def _exchange(self, claim: Claim = _nothing, dead: Collection[bytes] = (), ready: Runs | None = None) -> Runs:
        """One change of the cursor: acknowledges, and claims more. Returns what is new. To be made twice, because an
        answer was lost, does no harm: it claims what it knows of, and what it is told now, and nothing else.

        :param dead: members who are to be removed.
        :param ready: slots of which nothing is in hand any more.
        """
        done, keeps, notes = Runs.of(self._done), self._claimed(), self._notes()
        limits, id = self._log.limits, self._follower.id

        def edit(cursor: Cursor) -> Cursor | None:
            self._check_revision(cursor)
            if not self._is_current(cursor):
                return None  # what was delivered before does not count any more (I7)
            self._check_claims(cursor, keeps | done)
            now = self._acknowledged(shares.removed(cursor, dead, limits, died=True), done)
            now = shares.noted(now, notes, limits)
            now = shares.claimed(now, id, keeps | claim(now, keeps))
            if ready:
                now = shares.handed_over(now, id, ready)
            return None if now == cursor else now

        try:
            cursor = self._follower.change(edit)
        except CursorUnderRevision:
            return Runs()  # later
        if not self._is_current(cursor):
            return Runs()
        self._done.difference_update(done.numbers())
        self._given_back = {}
        self._unwritten, self._written_at = len(self._done), self._log.clock.monotonic()
        mine = shares.member(cursor, id)
        assert mine is not None
        new = shares.claims(mine) - keeps
        self._counts = {ordinal: count for ordinal, count in self._counts.items() if ordinal in keeps}
        self._counts |= shares.delivery_counts(cursor, new)
        return new

    def _check_claims(self, cursor: Cursor, known: Runs) -> Member:
        """Nobody else takes away what it claims, within an epoch and a revision. So if that is not there, what it has
        received may be lost, and other records may be in their places by now."""
        mine = shares.member(cursor, self._follower.id)
        assert mine is not None
        if known.since(cursor.ordinal) - shares.claims(mine) - shares.acks(cursor):
            self._history = -1  # from now on every call says so
            raise self._rolled_back("has records in hand of which the subscription does not know")
        return mine

    def _acknowledged(self, cursor: Cursor, done: Runs) -> Cursor:
        mine = shares.member(cursor, self._follower.id)
        assert mine is not None
        acks = shares.acks(cursor) | (done & shares.held(cursor, mine))  # nothing else is ours to acknowledge
        ordinal = acks.next_missing(cursor.ordinal)
        if ordinal == cursor.ordinal and acks == shares.acks(cursor):
            return cursor
        return shares.forgotten(self._node.moved(cursor, ordinal, acks), self._log.limits)

    def _notes(self) -> dict[int, int]:
        """How often records were delivered in vain. What it still has is not counted yet: that is done when it dies."""
        kept = {ordinal: count - 1 for ordinal, count in self._counts.items() if count > 1}
        return kept | self._given_back

    # -- acknowledging -------------------------------------------------------------------------------------

    def acknowledge(self, message: Message) -> bool:
        """Says that a record was handled, so that nobody gets it again.

        Returns False if this does not count: the subscription was reset since the record was read, or has it
        redelivered, or this consumer was away for longer than its ZooKeeper session and the record is another's by now.
        Then it is delivered again. The same holds if one of these happens before the acknowledgement is written.

        Raises what :meth:`receive` raises, and what :meth:`flush` raises if it is time to write."""
        self._check_ours(message)
        with self._lock:
            cursor = self._follow()
            if cursor is None or not self._is_current(message):
                return False
            if not self._let_go(message.ordinal):
                ordinal = message.ordinal
                return ordinal in self._done or ordinal < cursor.ordinal or ordinal in shares.acks(cursor)
            if self._unwritten >= PERSIST_ACKS:
                self.flush()
            return True

    def _let_go(self, ordinal: int) -> bool:
        """A record is done. False if it is not this consumer's."""
        if ordinal in self._hand:
            del self._hand[ordinal]
        elif ordinal in self._claimed():  # it was to come again
            self._put_down({ordinal})
        else:
            return False
        self._is_done(ordinal)
        return True

    def _judge(self, cursor: Cursor) -> Callable[[int], str]:
        mine = self._check_claims(cursor, self._claimed() | Runs.of(self._done))
        held, done = shares.held(cursor, mine), shares.acks(cursor) | ((0, cursor.ordinal), *Runs.of(self._done))

        def why_not(ordinal: int) -> str:
            if ordinal in done:
                return receiving.DONE_ALREADY
            return "" if ordinal in held else "another consumer's by now, or was given back"

        return why_not

    def _with_acknowledged(self, cursor: Cursor, ordinals: Runs) -> Cursor:
        return self._acknowledged(cursor, ordinals)

    def _note_acknowledged(self, ordinals: Runs) -> None:
        for ordinal in ordinals.numbers():
            self._let_go(ordinal)

    def _is_done(self, ordinal: int) -> None:
        self._done.add(ordinal)
        self._unwritten += 1

    def _put_down(self, ordinals: set[int]) -> None:
        """Does not deliver these any more, neither for the first time nor again."""
        self._unread -= Runs.of(ordinals)
        self._queue = deque(message for message in self._queue if message.ordinal not in ordinals)
        self._away -= ordinals

    def acknowledge_cumulative(self, message: Message) -> bool:
        """Not for consumers that share a subscription, because the records before are others': raises InvalidInput
        (LEDGER_NOT_CUMULATIVE)."""
        raise InvalidInput(
            f"subscription '{self._node.name}' is shared, and the records before this one are others': acknowledge "
            "each record by itself",
            "LEDGER_NOT_CUMULATIVE",
        )

    def negative_acknowledge(self, message: Message) -> None:
        """Says that a record could not be handled: this consumer delivers it again, after a second at the earliest, and
        each time after twice as long, up to a minute (:meth:`LedgerClient.consumer` can set both). Others go on coming
        meanwhile; with ``key_shared`` none of the same key. ``message.delivery_count`` tells when to give up. Raises
        what :meth:`receive` raises."""
        self._check_ours(message)
        with self._lock:
            if self._follow() is not None and self._is_current(message) and message.ordinal in self._hand:
                self._refuse(message.ordinal)

    def _refuse(self, ordinal: int) -> None:
        del self._hand[ordinal]
        self._away.add(ordinal)
        self._refused.add(ordinal, self._counts[ordinal], self._log.clock.monotonic())
        self._unwritten += 1

    def redeliver_unacknowledged(self) -> None:
        """Delivers everything again that was delivered and not acknowledged, to any of those who share the
        subscription. The messages have a greater epoch then, and acknowledgements of the earlier ones do not count.

        Raises what :meth:`flush` raises, and CursorUnderRevision if somebody resets the subscription right now."""
        self._check_not_forked()
        with self._lock:
            if self._follow() is None:
                raise CursorUnderRevision(f"subscription '{self._node.name}' is being reset: try again")
            self._exchange()
            self._adopt(self._follower.change(lambda cursor: shares.redelivered(cursor, self._log.limits)))

    def flush(self) -> None:
        """Writes acknowledgements now. While somebody resets the subscription it does nothing: they are written later,
        if they still count then.

        Raises Fenced if an owner has taken the subscription alone; InvalidInput (LEDGER_TOO_MANY_GAPS) if too many
        records before the acknowledged ones are missing; Unavailable or OutcomeUnknown if ZooKeeper does not answer.
        The acknowledgements are then written by the next flush."""
        self._check_not_forked()
        with self._lock:
            self._check_history()
            try:
                self._exchange()
            except Removed as removed:
                self._rejoin(removed)

    def close(self) -> None:
        """Writes acknowledgements and leaves; what was delivered and not acknowledged goes to others at once. Closing
        twice is fine.

        Raises what :meth:`flush` raises. It leaves even then, and the records whose acknowledgements could not be
        written are delivered again."""
        self._check_not_forked()
        with self._lock:
            if not self._closed:
                try:
                    self._check_history()
                    self._give_back(self._hand)
                    with contextlib.suppress(Removed):  # then it has nothing in hand
                        self._exchange()
                finally:
                    self._closed = True
                    self._follower.detach()

    def _give_back(self, ordinals: Iterable[int]) -> None:
        """Records that it claims will be delivered by somebody else: they are told how often they were before."""
        delivered = {ordinal: count for ordinal in ordinals if (count := self._counts.get(ordinal, 0))}
        self._given_back |= delivered
