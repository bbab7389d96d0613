"""Nodes that are there while their holder lives: who owns a subscription, resets it, compacts a topic, pins a reader.

ZooKeeper removes such a node when the session ends that made it. A holder that lives on does not notice by itself, and
one whose call failed leaves a node that stays for as long as its process. So every such node has an owner in memory:

- it is made again after a lost session, if the record that it belongs to still names its holder;
- its removal is retried in the background until it works;
- what a failed call of this process left behind counts for nothing, and the next call takes its place.

A node is ours only if its id *and* its session are ours: one of an old session of ours goes when that ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, cast

from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import LedgerError, OutcomeUnknown
from pyspark_ledger.metadata.chores import Chore
from pyspark_ledger.metadata.port import (
    AnyKey,
    Check,
    CompactorKey,
    Create,
    Delete,
    Key,
    Metadata,
    Op,
    OwnerKey,
    PinKey,
    Put,
    R,
    ReviserKey,
    TransactionLost,
    Versioned,
)
from pyspark_ledger.metadata.records import Holder, NodeRecord, Pin
from pyspark_ledger.metadata.transactions import Transactions

logger = logging.getLogger(__name__)

EphemeralKey = OwnerKey | ReviserKey | CompactorKey | PinKey
Guard = Callable[[], Check | None]  # holds while the record still names us; None: it no longer does


class Ephemeral(Generic[R]):
    """One ephemeral node. With a ``guard`` it comes and goes in the transactions that change its record; without, it
    is taken and released by itself."""

    def __init__(
        self,
        metadata: Metadata,
        limits: Limits,
        clock: Clock,
        key: Key[R],
        record: R,
        what: str,
        guard: Guard | None = None,
    ) -> None:
        self._metadata, self._limits, self._clock = metadata, limits, clock
        self._key, self._record, self._what, self._guard = key, record, what, guard
        self._keeping: Chore | None = None
        self._leaving = False
        self._may_arrive = False  # a create was sent, and its answer never came: it may arrive after we have left
        self._lock = threading.RLock()  # the background looks after it too

    # -- in transactions that change the record ----------------------------------------------------------------

    def create_ops(self) -> list[Op]:
        """Makes it, in the place of whatever was left there."""
        return [*self._vacate(), self._create()]

    def remove_ops(self) -> list[Op]:
        """Removes it, in the transaction in which its holder leaves."""
        self._leaving = True
        return self._vacate()

    def _vacate(self) -> list[Op]:
        self._metadata.sync()  # or a node that was not seen would be left behind
        found = self._metadata.read(self._key)
        return [] if found is None else [Delete(cast(AnyKey, self._key))]

    def _create(self) -> Create:
        return Create(cast(AnyKey, self._key), cast(NodeRecord, self._record), ephemeral=True)

    # -- by itself ---------------------------------------------------------------------------------------------

    def take(self) -> R | None:
        """None if it is ours now; else who has it. What a failed call of this process left there is replaced."""
        transactions = Transactions(self._metadata, self._limits, self._clock)
        while True:
            try:
                if transactions.carry_out([self._create()], self._is_there, self._what):
                    self.keep()
                    return None
            except OutcomeUnknown:
                self.abandon(may_arrive=True)
                raise
            self._metadata.sync()
            other = self._metadata.read(self._key)
            if other is not None and not self._is_leftover(other.record):
                return other.record
            if other is not None:
                self._delete(other)

    def _is_there(self) -> bool | None:
        self._may_arrive = True
        self._metadata.sync()
        found = self._metadata.read(self._key)
        return None if found is None else self._is_ours(found.record)

    def put(self, record: R) -> None:
        """Other content. If the node is gone it is made again with that."""
        with self._lock:
            self._record = record
            found = self._metadata.read(self._key)
            if found is not None and found.own:
                self._metadata.transact([Put(cast(AnyKey, self._key), cast(NodeRecord, record), found.version)])
                return
        self.keep()

    def release(self) -> None:
        """Removes it; if that does not work now, as soon as it does."""
        self.forget()
        try:
            with self._lock:
                self._remove()
        except LedgerError:
            self.abandon(may_arrive=self._may_arrive)
            return
        if self._may_arrive:
            self.abandon(may_arrive=True)

    def _remove(self) -> None:
        self._metadata.sync()
        found = self._metadata.read(self._key)
        if found is not None and self._is_ours(found.record):
            self._delete(found)

    def _delete(self, found: Versioned[R]) -> None:
        try:
            self._metadata.transact([Delete(cast(AnyKey, self._key), found.version)])
        except TransactionLost:
            return  # its session ended, or it changed hands

    def abandon(self, remove: Callable[[], None] | None = None, *, may_arrive: bool = False) -> None:
        """A call of ours failed, and its node may be there, or even arrive later: it counts for nothing from now on,
        and is removed as soon as that works. ``remove`` does it together with what the record says."""
        self.forget()
        deadline = self._clock.monotonic() + (self._limits.leftover_s if may_arrive else 0.0)
        leftovers = self._metadata.chores.leftovers
        if isinstance(self._record, Holder):
            leftovers.add(self._record.id)

        def run() -> float | None:
            (remove or self._remove)()
            if self._clock.monotonic() < deadline:
                return 1.0
            if isinstance(self._record, Holder):
                leftovers.discard(self._record.id)
            return None

        self._metadata.chores.add(f"{self._what}: taking it back", run)

    # -- after a lost session ----------------------------------------------------------------------------------

    def keep(self) -> None:
        """From now on it is made again when a session was lost."""
        self.forget()
        self._keeping = self._metadata.chores.add(f"keeping {self._what}", self._look)

    def forget(self) -> None:
        """It is nobody's business here any more."""
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    def _hint(self) -> None:
        keeping = self._keeping
        if keeping is not None:
            keeping.wake()

    def _look(self) -> float | None:
        with self._lock:
            if self._keeping is None:
                return None
            found = self._metadata.read(self._key, self._hint)
            if found is not None and found.own and self._is_ours(found.record):
                return self._metadata.session_timeout_s
            if not self.recreate(found):
                if not self._leaving:
                    logger.warning("%s: lost to another, after a lost session", self._what)
                self._keeping = None
                return None
            return 0.0  # once more, to watch the new node

    def recreate(self, found: Versioned[R] | None) -> bool:
        """False if somebody else has taken its place. Raises if that could not be found out."""
        ops: list[Op] = []
        if self._guard is not None:
            check = self._guard()
            if check is None:
                return False
            ops.append(check)
        elif found is not None and not self._is_ours(found.record):
            return False
        if found is not None:
            ops.append(Delete(cast(AnyKey, self._key), found.version))
        try:
            self._metadata.transact([*ops, self._create()])
            logger.info("%s: made again, after a lost session", self._what)
        except TransactionLost:
            self._metadata.sync()  # something has changed meanwhile: the next look tells what
        return True

    # -- whose it is -------------------------------------------------------------------------------------------

    def _is_ours(self, record: R) -> bool:
        """A pin's key is nobody else's; what others may hold too carries the holder's id."""
        if isinstance(record, Holder) and isinstance(self._record, Holder):
            return record.id == self._record.id
        return isinstance(record, Pin)

    def _is_leftover(self, record: R) -> bool:
        return isinstance(record, Holder) and record.id in self._metadata.chores.leftovers
