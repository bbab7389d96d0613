"""What a producer gives back for a record: a future that says where the record is.

A producer takes a hundred thousand records a second, so a receipt is little more than a number in a part: what became
of the part is known to all of its receipts at once. Only a receipt that somebody waits for gets the lock and the lists
that ``concurrent.futures`` works with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark_ledger.base.position import Position

if TYPE_CHECKING:
    from pyspark_ledger.append.waiting import Part


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a record is in the log, and whether it was there before.

    Attributes:
        sequence_id: the record's sequence id; None if its producer does not number records.
        position: where the record is; None if it is a duplicate that this producer did not write.
        duplicate: True if the log had the record before, by an earlier try or from somebody else: nothing was added.
    """

    sequence_id: int | None
    position: Position | None
    duplicate: bool = False


@dataclass(slots=True, eq=False)
class _Watch:
    """What ``concurrent.futures`` needs of a future that somebody waits for."""

    told: bool  # whether those who wait know that it is done
    condition: threading.Condition = field(default_factory=threading.Condition)
    waiters: list[Any] = field(default_factory=list)
    callbacks: list[Callable[[Future[Sent]], object]] = field(default_factory=list)


class Receipt(Future[Sent]):
    """What :meth:`Producer.send` returns for a record that is not in the log yet: a future, for ``concurrent.futures``
    and for ``await``, from any thread and any event loop. Its result says where the record is.

    >>> with client.producer("orders") as producer:
    ...     receipt = producer.send({"order_id": 4, "amount": 1.0})
    ...     receipt.result()
    Sent(sequence_id=None, position=Position(ledger=0, entry=1, index=0), duplicate=False)

    In a coroutine it is ``sent = await producer.send(record)``.
    """

    # Future's own constructor would make a lock for each record.
    def __init__(self, part: Part, index: int, sequence_id: int | None) -> None:
        self._part, self._index, self._sequence_id = part, index, sequence_id
        self._watch: _Watch | None = None

    @property
    def sequence_id(self) -> int | None:
        """The record's sequence id; None if its producer does not number records."""
        return self._sequence_id

    def done(self) -> bool:
        """Whether it is known what became of the record: it is in the log, or was given up. Does not wait."""
        return self._part.outcome is not None

    def result(self, timeout: float | None = None) -> Sent:
        """Where the record is. Waits for that, at most ``timeout`` seconds (TimeoutError).

        A producer without ``linger_ms`` is flushed, however long that takes: this then raises what
        :meth:`Producer.flush` raises, and may be called again. Otherwise it raises what became of the record if it is
        not in the log: OutcomeUnknown if it may be there all the same, Unavailable or another error if it is not.
        InvalidInput (LEDGER_DISCARDED) if :meth:`Producer.discard` has dropped the record."""
        self._part.wanted()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What :meth:`result` raises, as a value; None if the record is in the log. Waits as that does."""
        self._part.wanted()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """False: a record that was taken is not given back one by one. See :meth:`Producer.discard`."""
        return False

    def __await__(self) -> Generator[Any, None, Sent]:
        import asyncio  # only services that use it pay for it

        if self._part.needs_a_flush:
            return asyncio.get_running_loop().run_in_executor(None, self.result).__await__()
        return asyncio.wrap_future(self).__await__()

    def _tell(self) -> None:
        """Wakes those who wait, after the part has its outcome."""
        with self._condition:
            self._watching().told = True
            for waiter in self._waiters:
                waiter.add_exception(self) if self._exception else waiter.add_result(self)
            self._condition.notify_all()

    def _watching(self) -> _Watch:
        if self._watch is None:
            with self._part.lock:
                if self._watch is None:
                    self._watch = _Watch(told=self._part.outcome is not None)
                    if not self._watch.told:
                        self._part.watched.append(self)
        return self._watch

    # -- what the methods of Future find instead of attributes ---------------------------------------------------

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._watching().condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._watching().waiters

    @property
    def _done_callbacks(self) -> list[Callable[[Future[Sent]], object]]:
        return self._watching().callbacks

    @property
    def _state(self) -> str:  # type: ignore[override]
        # Changes under the lock of whoever waits, so that nobody is told twice.
        is_told = self.done() and (self._watch is None or self._watch.told)
        return "FINISHED" if is_told else "PENDING"

    @property
    def _result(self) -> Sent | None:  # type: ignore[override]
        return self._part.where(self._index, self._sequence_id)

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        return copy(self._part.error)  # each time another one: an error that is raised again and again only grows


def tell(receipts: Iterable[Receipt]) -> None:
    """Wakes all who wait, and then calls what they asked to be called: that may itself wait for another of these."""
    told = list(receipts)
    for receipt in told:
        receipt._tell()
    for receipt in told:
        receipt._invoke_callbacks()  # type: ignore[attr-defined]
