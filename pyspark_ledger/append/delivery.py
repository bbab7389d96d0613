"""What a producer has taken gets into the log, in its order, or those who sent it are told what became of it.

Without ``Background`` only whoever asks for it stores anything, and what cannot be stored stays. With it a thread does
that a few milliseconds after the first record, tries again what may pass, and gives up what does not.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

from pyspark_ledger.append import leaving
from pyspark_ledger.append.background import Background
from pyspark_ledger.append.flusher import Flusher
from pyspark_ledger.append.hold import Hold
from pyspark_ledger.append.prepared import AppendResult
from pyspark_ledger.append.receipt import Receipt, tell
from pyspark_ledger.append.record_check import RecordCheck
from pyspark_ledger.append.sender import Sender, may_pass
from pyspark_ledger.append.waiting import Part, Waiting
from pyspark_ledger.base.clock import Clock, Deadline
from pyspark_ledger.base.given import is_number
from pyspark_ledger.errors import Fenced, InvalidInput, LedgerError, OutcomeUnknown, Unavailable

logger = logging.getLogger(__name__)

FLUSH_ROWS = 10_000
FLUSH_BYTES = 16 << 20
SPAN_S = 1.0  # the records of a part are given up together, so they must not be of very different age
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 2.0
_LOOK_S = 0.1  # how often a flush looks whether the background has stored what it waits for


class Delivery:
    """``lock`` guards what waits, and is held for moments. Who needs the ``hold`` on the log too takes that first."""

    def __init__(self, sender: Sender, clock: Clock, background: Background | None, topic: str, name: str) -> None:
        self._sender, self._clock, self._background = sender, clock, background
        self._topic, self._name, self._process = topic, name, os.getpid()
        self.lock = threading.Lock()
        self.hold = Hold()
        self.explicit = False  # whether records bring their own ids
        self.persisted: int | None = None  # the last id known to be in the log
        self.doubtful: int | None = None  # the last id that was given up, and may be in the log all the same
        self.check: RecordCheck | None = None
        self.waiting = self._nothing_waiting()
        self._stopped: LedgerError | None = None  # nothing is taken until somebody has taken notice
        self._given_up: LedgerError | None = None  # what the next flush has to say
        self._untold = 0  # records that were given up when it stopped, and of which nobody has heard yet
        self._refuses = self._is_closed = self._is_forked = False
        self._room = threading.Condition(self.lock)
        self._flusher = Flusher(f"ledger-producer-{name}", self.lock, self._due_in, self._work)
        self._drains = False  # what waits is due now
        self._failures, self._retry_at = 0, 0.0
        leaving.remember(self)

    def _nothing_waiting(self) -> Waiting:
        limits = self._background or Background()
        return Waiting(limits.max_waiting_records, limits.max_waiting_bytes)

    def check_usable(self) -> None:
        if self._is_forked or self._refuses or self._stopped is not None:  # called twice for each record
            self.check_not_forked()
            if self._refuses:
                raise InvalidInput("this producer is closed", "LEDGER_CLOSED")
            self._check_not_stopped()

    def _check_not_stopped(self) -> None:
        if self._stopped is not None:
            self._untold = 0
            raise copy(self._stopped)

    def check_not_forked(self) -> None:
        if self._is_forked:
            raise InvalidInput(
                f"producer '{self._name}' belongs to process {self._process}, from which this one was forked, and its "
                "records are written there: make another producer in this process",
                "LEDGER_FORKED",
            )

    # -- taking ---------------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        if self._background is not None:
            return self.waiting.has_room(size)
        last = self.waiting.last
        return last is None or not _is_full(last)

    def add(self, record: dict[str, Any], size: int, sequence_id: int | None) -> Receipt:
        """With the lock."""
        waiting, lingers = self.waiting, self._background is not None
        part = waiting.last
        wakes = part is None
        if lingers and self._flusher.thread is None:
            self._start_flusher()  # before the record is taken: it may fail
        now = self._clock.monotonic()
        if part is None or not self._may_join(part, now):
            part = self.new_part(now)
            waiting.open(part)
        receipt = waiting.add(part, record, size, sequence_id)
        if lingers and (wakes or _is_full(part)):
            self._flusher.wake()
        return receipt

    def _may_join(self, part: Part, now: float) -> bool:
        if not part.takes_records or _is_full(part):
            return False
        return self._background is None or now - part.since < SPAN_S

    def new_part(self, now: float) -> Part:
        timeout_s = float("inf") if self._background is None else self._background.delivery_timeout_s
        return Part(self, now, now + timeout_s, self.explicit)

    def patience(self) -> Deadline | None:
        """How long a send waits for room."""
        timeout_s = None if self._background is None else self._background.send_timeout_s
        return None if timeout_s is None else Deadline(self._clock, timeout_s)

    def make_room(self, size: int, patience: Deadline | None) -> None:
        """Returns when another record may be taken, perhaps; raises if that takes too long."""
        if self.needs_a_flush:
            self.flush()
            return
        with self.lock:
            while not self.has_room(size):
                self.check_usable()
                if not self._room.wait(None if patience is None else patience.remaining) and not self.has_room(size):
                    raise self._full()

    def _full(self) -> Unavailable:
        limits = self._background or Background()
        return Unavailable(
            f"{self.waiting.records:,} records with {self.waiting.bytes:,} bytes are waiting (max_waiting_records is "
            f"{limits.max_waiting_records:,}, max_waiting_bytes {limits.max_waiting_bytes:,}), and there was no room "
            f"for another one within send_timeout_s={limits.send_timeout_s}. It was not taken: send it again later",
            "LEDGER_PRODUCER_FULL",
        )

    # -- storing --------------------------------------------------------------------------------------------

    @property
    def needs_a_flush(self) -> bool:
        """Whether whoever waits for a part has to store it: nobody else would."""
        return self._background is None or self._flusher.is_me or self._is_forked

    def wanted(self, part: Part) -> None:
        if self.needs_a_flush:
            self.check_not_forked()
            try:
                self._check_not_stopped()
                self._flush()  # also while another thread closes it
            except LedgerError:
                if part.outcome is None:  # else it was about records that were sent later
                    raise

    def flush(self) -> AppendResult | None:
        self.check_usable()
        return self._flush()

    def _flush(self) -> AppendResult | None:
        with self.lock:
            last, given_up, self._given_up = self.waiting.last, self._given_up, None
        if given_up is not None:
            raise given_up
        if last is None:
            return None
        while last.outcome is None:
            with self.hold.within(_LOOK_S) as mine:
                if mine and last.outcome is None:  # else somebody else is about to store it, or has done so
                    self._store_first()
        if isinstance(last.outcome, Exception):
            self._untold = 0
            raise copy(last.outcome)
        return last.outcome

    def store_at_once(self, part: Part, take: Callable[[], None], take_back: Callable[[], None]) -> AppendResult:
        """A part of its own, after everything that waits. ``take`` numbers it, under the lock. If this raises and the
        part is not in doubt, it was not taken, and ``take_back`` was called."""
        with self.hold:
            with self.lock:
                self.check_usable()
                take()
                self.waiting.open(part)
            try:
                while part.outcome is None:
                    self._store_first()
            except LedgerError as error:
                self._take_back(part, error, take_back)
                raise
        assert isinstance(part.outcome, AppendResult)
        return part.outcome

    def _take_back(self, part: Part, error: LedgerError, take_back: Callable[[], None]) -> None:
        with self.lock:
            if self._background is not None:
                self._flusher.wake()
            if part.outcome is not None or part.under_way is not None:
                return
            self.waiting.remove(part)
            part.finish(copy(error))
            take_back()
        if isinstance(error, OutcomeUnknown):
            raise Unavailable(
                f"what was sent before is waiting, and what became of it is not known yet: {error.message}. This batch "
                "was not taken: send it again"
            ) from None

    def _store_first(self) -> None:
        """With the hold. What cannot be stored stays, unless the background knows that it never will be."""
        try:
            self._try_first()
        except OutcomeUnknown as error:
            raise OutcomeUnknown(f"{error.message}. {self._way_on()}") from None
        except Exception as error:
            if self._background is not None and not may_pass(error):
                self._stop(error)
                self._untold = 0  # whoever has called this hears of it
            elif isinstance(error, Fenced):
                self._stopped = copy(error)
            raise

    def _try_first(self) -> None:
        with self.lock:
            part = self.waiting.first
            if part is None:
                return
            part.is_tried = True
        try:
            appended = self._sender.store(part)
        except BaseException as error:
            with self.lock:
                part.is_tried = False
                if self._is_closed:  # without waiting for this
                    self.hold.told += self._give_up(list(self.waiting), _as_ours(error))
            raise
        with self.lock:
            self.waiting.remove(part)
            self.persisted = part.last_id
            self.hold.told += part.finish(appended)
            self._room.notify_all()
        with suppress(LedgerError):  # a column that was added is known a little later then
            self.check = self._sender.record_check(self.check)
        if self._failures:
            logger.info("producer=%s topic=%s stores records again", self._name, self._topic)
            self._failures = 0

    def _way_on(self) -> str:
        way_on = "The records are waiting, and the next flush finds out what became of them"
        first = self.waiting.first
        if first is None or first.last_id is not None:
            return way_on
        return (
            f"{way_on}. If this process ends before that, nobody can tell a second copy from the first, because this "
            "producer has no name: give producers a name to make that safe too"
        )

    # -- in the background ----------------------------------------------------------------------------------

    def _start_flusher(self) -> None:
        if self._flusher.thread is None:
            self._flusher.start()
            leaving.is_needed_at_exit()

    def _due_in(self) -> float | None:
        part = self.waiting.first
        if part is None or (self._background is None and not self._drains):
            return None
        now = self._clock.monotonic()
        due = now
        if self._background is not None and not self._drains and len(self.waiting) == 1 and not _is_full(part):
            due = part.since + self._background.linger_ms / 1000
        return max(due, self._retry_at) - now

    def _work(self) -> None:
        with self.hold:
            try:
                self._try_first()
            except Exception as error:
                if may_pass(error):
                    self._try_later(_as_ours(error))
                else:
                    self._stop(error)

    def _try_later(self, error: LedgerError) -> None:
        now = self._clock.monotonic()
        if not self._failures:
            logger.warning(
                "producer=%s topic=%s: %d records wait, and are tried again in the background: %s",
                self._name, self._topic, self.waiting.records, error,
            )  # fmt: skip
        self._retry_at = now + min(LONGEST_RETRY_S, FIRST_RETRY_S * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        with self.lock:
            late = [part for part in self.waiting if part.deadline <= now]
            if late and self._background is not None:
                self._give_up_late(late, self._background.delivery_timeout_s, error)

    def _give_up_late(self, late: list[Part], timeout_s: float, error: LedgerError) -> None:
        count = sum(part.count for part in late)
        why = f"within delivery_timeout_s={timeout_s:g}: {error.message}"
        told = Unavailable(f"the record was not stored {why}. It was given up", "LEDGER_DELIVERY_TIMEOUT")
        unknown = any(part.under_way is not None for part in late)
        kind = OutcomeUnknown if unknown else Unavailable
        summary = f"{count:,} records were given up, which could not be stored {why}"
        logger.warning("producer=%s topic=%s: %s", self._name, self._topic, summary)
        if late[0].last_id is None:
            self.hold.told += self._give_up(late, told)
            self._given_up = kind(summary, None if unknown else told.code)
        else:
            # What waits behind them would be in the log without them, and last_sequence_id say that all are.
            self.hold.told += self._give_up(list(self.waiting), told)
            self._stopped = kind(
                f"{summary}. So that no gap stays unnoticed, the producer takes nothing more: discard what waits, then "
                "send again what comes after last_sequence_id",
                "LEDGER_PRODUCER_STOPPED",
            )

    # -- giving up ------------------------------------------------------------------------------------------

    def _give_up(self, parts: Sequence[Part], error: LedgerError, doubt: LedgerError | None = None) -> list[Receipt]:
        """With the lock. Returns whom to tell. ``doubt`` is what those are told whose record may be in the log."""
        told: list[Receipt] = []
        doubt = doubt or OutcomeUnknown(
            f"the record was sent, and it was not found out whether it is in the log: {error.message}"
        )
        for part in parts:
            self.waiting.remove(part)
            if part.under_way is None:
                told += part.finish(error)
            else:
                self.doubtful = part.last_id
                told += part.finish(doubt)
        self._room.notify_all()
        return told

    def _stop(self, error: Exception) -> None:
        """With the hold: what waits will never be stored."""
        ours = copy(_as_ours(error))  # the error itself knows its traceback, and that all that this call has in hand
        with self.lock:
            logger.warning(
                "producer=%s topic=%s: %d records given up: %s", self._name, self._topic, self.waiting.records, ours
            )
            self._stopped, records = ours, self.waiting.records
            told = self._give_up(list(self.waiting), ours)
            self._untold += records - len(told)
            self.hold.told += told

    def discard(self) -> None:
        """With the hold and the lock."""
        gone = "the record was discarded before it was"
        self.hold.told += self._give_up(
            list(self.waiting),
            InvalidInput(f"{gone} in the log", "LEDGER_DISCARDED"),
            InvalidInput(f"{gone} known whether it is in the log: it may be there", "LEDGER_DISCARDED"),
        )
        self._stopped = self._given_up = None
        self._untold = 0

    # -- the end --------------------------------------------------------------------------------------------

    def close(self, timeout_s: float | None) -> None:
        if self._is_closed:
            return
        if timeout_s is not None and not (is_number(timeout_s) and 0 <= timeout_s <= threading.TIMEOUT_MAX):
            raise InvalidInput(f"timeout is {timeout_s!r}, and must be a number of seconds, or None to try once")
        self.check_not_forked()
        self._check_not_stopped()
        self._refuses = True
        try:
            if timeout_s is not None and not self._flusher.is_me and not self._drain(timeout_s):
                raise self._left(timeout_s)
            self._flush()  # or it says what has become of the records since
            self._check_not_stopped()
            self._is_closed = True
        finally:
            self._refuses = self._is_closed

    def _drain(self, seconds: float) -> bool:
        """Whether nothing waits any more."""
        with self.lock:
            if not len(self.waiting):
                return True
            self._drains = True
            try:
                self._start_flusher()
                self._flusher.wake()
                return self._room.wait_for(lambda: not len(self.waiting), seconds)
            finally:
                self._drains = False

    def _left(self, timeout_s: float) -> LedgerError:
        with self.lock:
            doubtful = sum(part.count for part in self.waiting if part.under_way is not None)
            left = f"{self.waiting.records:,} records were not stored within the timeout of {timeout_s:g} s"
        way_on = "The producer is still open: close it again, or discard them"
        if doubtful:
            return OutcomeUnknown(f"{left}, and {doubtful:,} of them may be in the log all the same. {way_on}")
        return Unavailable(f"{left}, and none of them is in the log. {way_on}")

    def abandon(self) -> None:
        """What waits is not stored any more. What somebody is storing at this moment may be."""
        if self._is_forked:
            return
        with self.lock:
            self._refuses = self._is_closed = True
            idle = [part for part in self.waiting if not part.is_tried]
            told = self._give_up(
                idle, InvalidInput("the record was not stored before its producer was closed", "LEDGER_CLOSED")
            )
        tell(told)

    def process_ends(self, deadline: Deadline) -> None:
        if self._is_forked:
            return
        if self._background is not None and not self._is_closed:
            with suppress(RuntimeError):  # no thread can be started any more
                self._drain(deadline.remaining)
        lost_records = self.waiting.records + self._untold
        if lost_records:
            why = "" if self._stopped is None else f" ({self._stopped.message})"
            lost = (
                f"the process ends, and {lost_records:,} records are lost that were sent to topic '{self._topic}' and "
                f"not stored{why}: flush or close producers before that"
            )
            logger.warning("producer=%s: %s", self._name, lost)
            warnings.warn(lost, RuntimeWarning, stacklevel=2)  # also seen where nobody has set up a log

    def forked(self) -> None:
        """In the child. Locks may be held by threads that are not here, so none is used any more."""
        self._is_forked = True
        self.waiting = self._nothing_waiting()


def _is_full(part: Part) -> bool:
    return len(part.records) >= FLUSH_ROWS or part.bytes >= FLUSH_BYTES


def _as_ours(error: BaseException) -> LedgerError:
    return error if isinstance(error, LedgerError) else LedgerError(f"{type(error).__name__}: {error}")
