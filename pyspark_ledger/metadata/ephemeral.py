"""Ephemeral nodes, which exist while their holder lives: the owner of a subscription, those who share one, who resets
it, the compactor of a topic, who rewrites its files, the pin of a reader.

ZooKeeper deletes such a node when the session ends that created it. A holder that lives on does not notice by itself.
And a call that failed may leave a node that stays for as long as its process. So every such node has an object here:

- the node is recreated after a lost session, if the record that it belongs to still names its holder;
- its removal is retried in the background until it succeeds;
- a node that a failed call of this process left behind does not count, and the next call replaces it.

A node is ours only if its id *and* its session are ours. One of an earlier session of ours will be deleted when that
session ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, cast

from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.metadata.chores import Chore
from pyspark_ledger.metadata.port import (
    AnyKey,
    Check,
    CompactorKey,
    Create,
    Delete,
    Key,
    MemberKey,
    Metadata,
    Op,
    OwnerKey,
    PinKey,
    Put,
    R,
    RequestKey,
    ReviserKey,
    RewriterKey,
    TransactionLost,
    Versioned,
)
from pyspark_ledger.metadata.records import Holder, NodeRecord, Pin, Request
from pyspark_ledger.metadata.transactions import Transactions

logger = logging.getLogger(__name__)

EphemeralKey = OwnerKey | ReviserKey | MemberKey | CompactorKey | RewriterKey | PinKey | RequestKey
Guard = Callable[[], Check | None]  # checks that the record still names us; None: it does not


class Ephemeral(Generic[R]):
    """One ephemeral node. With a ``guard``, the node is created and deleted by the transactions that change the record
    it belongs to. Without one, it is taken and released by itself."""

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
        self._login = 0  # which one of ours the node was made with
        self._may_arrive = False  # a create was sent, and its answer never came: it may arrive after we have left
        self._lock = threading.RLock()  # the background thread uses this object too

    # -- in transactions that change the record ----------------------------------------------------------------

    def create_ops(self) -> list[Op]:
        """Creates the node, in place of one that was left behind."""
        return [*self._vacate(), self._create()]

    def remove_ops(self) -> list[Op]:
        """Deletes the node, in the transaction in which its holder leaves."""
        self._leaving = True
        return self._vacate()

    def _vacate(self) -> list[Op]:
        self._metadata.sync()  # a stale read could miss a node, which would then be left behind
        found = self._metadata.read(self._key)
        return [] if found is None else [Delete(cast(AnyKey, self._key))]

    def _create(self) -> Create:
        self._login = self._metadata.logins
        return Create(cast(AnyKey, self._key), cast(NodeRecord, self._record), ephemeral=True)

    # -- by itself ---------------------------------------------------------------------------------------------

    def take(self) -> R | None:
        """Creates the node. None if it is ours now; else who has it. One that a failed call of this process left is
        replaced."""
        try:
            other = self._take()
        except LedgerError:
            if self._may_arrive:
                self.abandon(may_arrive=True)
            raise
        if other is None:
            self.keep()
        elif self._may_arrive:  # when whoever has it now has left
            self.abandon(may_arrive=True)
        return other

    def _take(self) -> R | None:
        transactions = Transactions(self._metadata, self._limits, self._clock)
        while True:
            if transactions.carry_out([self._create()], self._is_there, self._what):
                return None
            self._metadata.sync()
            other = self._metadata.read(self._key)
            if other is not None and self._is_ours(other.record):
                return None  # the node of another was there when we looked, and our create has arrived since
            if other is not None and not self._is_leftover(other.record):
                return other.record
            if other is not None:
                self._delete()

    def _is_there(self) -> bool | None:
        self._may_arrive = True
        self._metadata.sync()
        found = self._metadata.read(self._key)
        return None if found is None else self._is_ours(found.record)

    def put(self, record: R) -> None:
        """Changes the content; recreates the node with it if the node is gone."""
        with self._lock:
            self._record = record
            found = self._metadata.read(self._key)
            if found is not None and found.own:
                self._metadata.transact([Put(cast(AnyKey, self._key), cast(NodeRecord, record), found.version)])
                return
        self.keep()

    def release(self) -> None:
        """Deletes the node; if that fails now, in the background."""
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
            self._delete()

    def _delete(self) -> None:
        """At any version: a node that somebody else has made meanwhile begins with the same one."""
        try:
            self._metadata.transact([Delete(cast(AnyKey, self._key))])
        except TransactionLost:
            return  # its session ended

    def abandon(self, remove: Callable[[], None] | None = None, *, may_arrive: bool = False) -> None:
        """For a call of ours that failed. From now on its node does not count, and it is deleted in the background.

        ``remove`` does that if the record has to be changed too. With ``may_arrive``, a request to create the node may
        still be on its way, so deleting goes on for a while."""
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

        self._metadata.chores.add(f"{self._what}: removing it", run, cleans_up=True)

    # -- after a lost session ----------------------------------------------------------------------------------

    def keep(self) -> None:
        """Recreates the node from now on whenever a session was lost. The first look comes only when it has stood for a
        while: most resets are over before that, and a session does not end sooner either."""
        self.forget()
        after_s = self._metadata.session_timeout_s / 5
        self._keeping = self._metadata.chores.add(f"keeping {self._what}", self._look, after_s)

    def forget(self) -> None:
        """Stops recreating the node."""
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
            is_there = found is not None and found.own and self._is_ours(found.record)
            if is_there and self._login in (0, self._metadata.logins):
                return self._metadata.session_timeout_s
            if not self.recreate(found):
                if not self._leaving:
                    logger.warning("%s: lost to another, after a lost session", self._what)
                self._keeping = None
                return None
            return 0.0  # run again at once, to watch the new node

    def recreate(self, found: Versioned[R] | None) -> bool:
        """Recreates the node after a lost session; ``found`` is what is there now. False if somebody else has taken its
        place. Raises if ZooKeeper does not say."""
        ops: list[Op] = []
        if self._guard is not None:
            check = self._guard()
            if check is None:
                return False
            ops.append(check)
        elif found is not None and not self._is_ours(found.record):
            return False
        if found is not None:
            ops.append(Delete(cast(AnyKey, self._key)))
        try:
            self._metadata.transact([*ops, self._create()])
            why = "with a new login" if found is not None and found.own else "after a lost session"
            logger.info("%s: recreated, %s", self._what, why)
        except TransactionLost:
            self._metadata.sync()  # something has changed meanwhile: the next look shows what
        return True

    # -- whose it is -------------------------------------------------------------------------------------------

    def _is_ours(self, record: R) -> bool:
        """A holder's record has an id. A pin and a request have none: their keys belong to one process alone."""
        if isinstance(record, Holder) and isinstance(self._record, Holder):
            return record.id == self._record.id
        return isinstance(record, Pin | Request)

    def _is_leftover(self, record: R) -> bool:
        return isinstance(record, Holder) and record.id in self._metadata.chores.leftovers
