"""What all consumers have in common: waiting for records, reading them, and noticing what is lost.

Every read carries the epoch and the revision under which it began. If the epoch is greater (PIP-84) or the revision is
another (PIP-269) when the read comes back, its records are thrown away: they would be delivered out of order.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.forks import OneProcess
from pyspark_ledger.base.given import is_number
from pyspark_ledger.base.position import Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors import loss
from pyspark_ledger.cursors.follower import Follower
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import SeenRevision
from pyspark_ledger.errors import CursorUnderRevision, DataLoss, InvalidInput
from pyspark_ledger.log import lost, scan, trimmed
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.lost import LostEntry
from pyspark_ledger.log.reader import WAIT_S, Record
from pyspark_ledger.log.rows import read_slice
from pyspark_ledger.log.slices import LogSlice, joined
from pyspark_ledger.metadata.port import CursorKey
from pyspark_ledger.metadata.records import Cursor, Head
from pyspark_ledger.metadata.transactions import RolledBack

logger = logging.getLogger(__name__)

PERSIST_S = 1.0
PERSIST_ACKS = 1_000
DONE_ALREADY = "acknowledged already: perhaps it was delivered twice"


@dataclass(frozen=True, slots=True)
class Message(Record):
    """A record that was delivered to a consumer.

    Attributes:
        ordinal: how many records of the topic are before it.
        epoch: under which epoch it was read; redeliveries and new consumers raise it.
        revision: under which revision it was read; resets of the subscription raise it.
        delivery_count: how often this consumer has delivered it, this time included, since it was made or the cursor
            was reset. With the types ``shared`` and ``key_shared``: how often any of those who share the subscription
            has delivered it, or may have, since the cursor was reset.
        source: the subscription that it was delivered to.
    """

    ordinal: int
    epoch: int
    revision: int
    delivery_count: int = 1
    source: CursorKey | None = field(default=None, repr=False)


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


class Grave(Protocol):
    """Where records go that were delivered too often: see ``cursors.dead_letters``."""

    @property
    def max_redeliveries(self) -> int: ...

    def bury(self, consumer: Receiver, messages: Sequence[Message]) -> bool:
        """Moves records there. False if that does not work now: nothing has changed, and it is tried again."""
        ...


class Receiver(ABC):
    """The part of a consumer that receives. Threads may share it: they take turns."""

    _follower: Follower
    _position: Position  # the next one to read,
    _ordinal: int  # and how many records are before it

    def __init__(self, log: Log, subscription: str, *, fail_on_data_loss: bool, grave: Grave | None) -> None:
        self._log = log
        self._grave, self._looked_through = grave, True
        self._fail_on_data_loss = fail_on_data_loss
        self._node = CursorNode(log, subscription)
        self._schema = log.schema(log.refresh(sync=True).head.schema_id)
        self._history = log.histories
        self._lock = threading.RLock()
        self._closed = False
        self._process = OneProcess()
        self._epoch = self._revision = -1
        self._seen = SeenRevision(0)
        self._queue: deque[Message] = deque()

    @abstractmethod
    def _follow(self) -> Cursor | None:
        """Notices resets, redeliveries and whatever else others have done. None if nothing can be received now."""

    @abstractmethod
    def _pop(self) -> Message | None:
        """The next message of those that were read."""

    @abstractmethod
    def _fill(self) -> bool:
        """Reads more. False if there is nothing to read, or somebody is moving the cursor."""

    @abstractmethod
    def _goes_on(self, cursor: Cursor) -> None:
        """The cursor was moved past what is lost."""

    @abstractmethod
    def _is_given_up(self, each: LostEntry) -> None:
        """The records of this entry do not come."""

    @abstractmethod
    def _deliveries(self, ordinal: int) -> int:
        """How often a record was delivered so far."""

    @abstractmethod
    def _judge(self, cursor: Cursor) -> Callable[[int], str]:
        """Says of a record of this epoch and revision why it cannot be acknowledged; empty if it can."""

    @abstractmethod
    def _with_acknowledged(self, cursor: Cursor, ordinals: Runs) -> Cursor:
        """The cursor in which these records, against which :meth:`_judge` says nothing, are acknowledged too."""

    @abstractmethod
    def _note_acknowledged(self, ordinals: Runs) -> None:
        """The cursor says so: they do not come any more."""

    @abstractmethod
    def close(self) -> None: ...

    # -- receiving -----------------------------------------------------------------------------------------

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next record; None if none came within ``timeout_s`` seconds. Without a time-out it waits for ever.

        Raises Fenced if another consumer or query has taken over the subscription; InvalidInput if this one is closed;
        Unavailable if ZooKeeper or the storage does not answer; and DataLoss, each time, if records were taken from the
        subscription by a backlog quota (LEDGER_EVICTED), are no longer in the log (LEDGER_TRIMMED), or were given up
        because their file is damaged (LEDGER_ENTRY_LOST): then reset it, or make the consumer with
        ``fail_on_data_loss=False``, to go on without them."""
        self._check_not_forked()
        if timeout_s is not None and not is_number(timeout_s):
            raise InvalidInput(f"timeout_s is {timeout_s!r}, and must be a number of seconds, or None to wait for ever")
        deadline = None if timeout_s is None else Deadline(self._log.clock, timeout_s)
        while True:
            with self._lock:
                cursor = self._follow()
                if cursor is not None:
                    self._check_eviction(cursor)
                    if self._bury():
                        message = self._pop()
                        if message is not None:
                            return message
                        if self._fill():
                            self._looked_through = False
                            continue
            if deadline is not None and deadline.passed:
                return None
            self._log.clock.sleep(WAIT_S)  # without the lock: others may acknowledge, or close it

    def _bury(self) -> bool:
        """Of what was read, what came too often is not delivered once more. False if that does not work now."""
        if self._grave is None or self._looked_through:
            return True
        dead = [each for each in self._queue if self._deliveries(each.ordinal) > self._grave.max_redeliveries]
        if not dead or self._grave.bury(self, dead):
            self._looked_through = True
        return self._looked_through

    def __iter__(self) -> Iterator[Message]:
        while (message := self.receive()) is not None:
            yield message

    def _check_eviction(self, cursor: Cursor) -> None:
        """Records are no longer delivered behind a gap of which nobody was told."""
        if not cursor.evicted:
            return
        if self._fail_on_data_loss:
            raise loss.evicted(self._node, cursor, cursor.evicted, "fail_on_data_loss=False")
        with contextlib.suppress(CursorUnderRevision):  # then nothing is read until that has ended
            loss.count_evicted(self._follower, cursor, lambda now: now.evicted)

    def _check_trimmed(self, head: Head) -> None:
        """The subscription holds what it has not passed. But it may have been followed by readers of compacted ledgers,
        which also have what the log has given up; or ZooKeeper was rolled back."""
        if not trimmed.is_gone(head, self._position):
            return
        gone = trimmed.loss(head, self._position, self._ordinal)
        if self._fail_on_data_loss:
            how = f"To go on from {trimmed.begin(head)}, {self._ways_on()}"
            raise DataLoss(f"{self._node.what}: {gone.message}. {how}", gone.code)
        logger.warning("%s: %s; going on from there", self._node.what, gone)
        self._goes_on(loss.count_trimmed(self._follower, head))

    def _check_lost(self, head: Head) -> None:
        """Damaged entries that were given up by name, and that come next, are left behind, or the consumer stops."""
        for each in lost.between(self._log.files, head, self._position, head.end):
            if each.first > self._position:
                return
            self._give_up(each)
            self._position, self._ordinal = each.end, max(self._ordinal, each.ordinal + each.records)

    def _give_up(self, each: LostEntry) -> None:
        self._tell_lost(each)
        loss.count_lost(self._follower, each)
        self._is_given_up(each)

    def _tell_lost(self, each: LostEntry) -> None:
        gone = each.loss(self._log.topic.name)
        if self._fail_on_data_loss:
            raise DataLoss(f"{self._node.what}: {gone.message}. To go on after them, {self._ways_on()}", gone.code)
        logger.warning("%s: %s; going around them", self._node.what, gone)

    def _ways_on(self) -> str:
        reset = f"pyspark-ledger cursors reset {self._log.topic.name} {self._node.name} --to earliest"
        return f"reset the subscription ('{reset}', or another place), or set fail_on_data_loss=False"

    def _fetch_known(self, read: Read) -> Fetched:
        """The records that are to be delivered again, or others that are known by their ordinals."""
        assert read.ordinals is not None
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
        """The next records."""
        view = self._log.view()
        messages: list[Message] = []
        passed = 0
        ahead = lost.between(self._log.files, view.head, start, view.head.end)
        end = ahead[0].first if ahead else view.head.end  # what is lost is met by the next read
        for found in joined(scan.slices(self._log, view, start, end), records):
            piece = found.first(records - passed)
            assert isinstance(piece, LogSlice)
            wanted = piece if read.ordinals is not None else self._wanted(piece)
            if wanted is not None:
                messages += self._messages(wanted, read)
            passed += piece.rows
            start = piece.end
            if passed >= records:
                break
        if ahead and passed < records:
            start = end
        return Fetched(messages, start, ordinal + passed)

    def _wanted(self, piece: LogSlice) -> LogSlice | None:
        """What this consumer is to have of a piece of the log that comes next."""
        return piece

    def _messages(self, piece: LogSlice, read: Read) -> Iterator[Message]:
        for rows in read_slice(self._log.storage, self._log.topic.uuid, piece, self._schema, with_ids=True):
            for fields in rows.records():
                ordinal = fields[6]
                assert ordinal is not None  # only of compacted records it may not be known
                yield Message(*fields[:6], ordinal, fields[7], read.epoch, read.revision, source=self._node.key)

    def _check_not_forked(self) -> None:
        """A child would receive and acknowledge as its parent, beside it (I6)."""
        self._process.check(f"{self._node.what}: this consumer")

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("this consumer is closed", "LEDGER_CLOSED")

    def _check_ours(self, message: Message) -> None:
        """Elsewhere the same number is another record, which nobody has handled."""
        self._check_not_forked()
        if not isinstance(message, Message):
            raise InvalidInput(f"{message!r} is no message of a consumer")
        if message.source != self._node.key:
            raise InvalidInput(
                f"{self._node.what}: message {message.position} was delivered to another subscription, or by another "
                "topic: give it to the consumer that has received it. Nothing was changed"
            )

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._process.is_another:  # a child that ends in its parent's block has nothing to close
            self.close()
