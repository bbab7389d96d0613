"""The one way to change a node: read it, edit it, write it at its version, and find out what happened.

An answer can be lost, and then nobody is told what became of the transaction. It is found out, never guessed (I14):

- What was applied is known by the *id of the operation*, which the record keeps. That a record looks as it should, or
  that some number has moved, proves nothing: somebody else may have done it.
- All that a transaction checks are versions, which only grow, and nodes that are made once. So what was refused once
  is refused for ever, and a transaction that is sent twice is applied at most once.
- A "no" (gone, not allowed, nothing to do) may come from a stale read, so it is given only after a synced one. A "yes"
  needs no such care: the version decides.
- Once an outcome is unknown, it stays unknown until somebody has looked: a server that then does not answer makes it
  OutcomeUnknown, never Unavailable, which promises that nothing was changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, cast

from pyspark_ledger.base.clock import Clock, Deadline
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import Conflict, LedgerError, OutcomeUnknown, Unavailable
from pyspark_ledger.metadata.port import AnyKey, Create, Key, Metadata, Op, Put, R, TransactionLost, Versioned
from pyspark_ledger.metadata.records import NodeRecord

logger = logging.getLogger(__name__)

Look = Callable[[], bool | None]  # was it applied? None: it was not, and the versions that it checks still hold


class Node(Protocol[R]):
    """A node as one process knows it. What is in memory may be old; ``newest`` never is."""

    @property
    def key(self) -> Key[R]: ...

    def known(self) -> Versioned[R]:
        """From memory, if there is something to try with."""
        ...

    def newest(self) -> Versioned[R]:
        """After a sync. Raises NotFound, in words for the user, if the node is gone."""
        ...

    def changed(self, now: Versioned[R]) -> None:
        """This process has changed the node: this is what it holds now."""
        ...


@dataclass(frozen=True, slots=True)
class PlainNode(Generic[R]):
    """A node of which nothing is kept in memory."""

    metadata: Metadata
    key: Key[R]
    missing: Callable[[], LedgerError]  # what to say if it is gone

    def known(self) -> Versioned[R]:
        return self.metadata.read(self.key) or self.newest()

    def newest(self) -> Versioned[R]:
        self.metadata.sync()
        found = self.metadata.read(self.key)
        if found is None:
            raise self.missing()
        return found

    def changed(self, now: Versioned[R]) -> None: ...


class Transactions:
    """Changes the nodes of one store, within its limits."""

    def __init__(self, metadata: Metadata, limits: Limits, clock: Clock) -> None:
        self._metadata, self._limits, self._clock = metadata, limits, clock

    def deadline(self) -> Deadline:
        return Deadline(self._clock, self._limits.change_deadline_s)

    # -- one node, edited --------------------------------------------------------------------------------------

    def change(
        self,
        node: Node[R],
        edit: Callable[[R], R | None],
        what: str,
        *,
        operation: bytes = b"",
        also: Callable[[R], Iterable[Op]] = lambda _: (),
    ) -> R:
        """Edits a record, as often as it takes, and returns it as it is then. ``edit`` returns None when there is
        nothing to do, and raises when it is not allowed. ``also`` are the ops that go with it in one transaction.

        With an ``operation``, its id is kept in the record, and the edit is made once however often this is called.
        Without one the edit must be harmless to repeat: when an answer was lost it is tried on what is there then.
        """
        attempt = _Change(self, node, edit, what, operation, also)
        try:
            for _ in range(self._limits.change_attempts):
                done = attempt.step()
                if done is not None:
                    return done
                self._clock.sleep(self._clock.jitter(0.002))
        except Unavailable as error:
            if attempt.in_doubt:
                raise _unknown(what, "ZooKeeper does not answer any more") from error
            raise
        raise Conflict(f"{what}: others change it all the time; try again")

    def remembering(self, record: R, operation: bytes) -> R:
        """The record with one more operation among the last ones that it remembers."""
        operations = (*operations_of(record), operation)[-self._limits.remembered_operations :]
        return cast(R, replace(cast(Any, record), operations=operations))

    # -- a node, made or found ---------------------------------------------------------------------------------

    def make(self, key: Key[R], record: R, what: str, check: Callable[[], object] = lambda: None) -> Versioned[R]:
        """The node that is there, or this one made: whoever comes first. ``check`` is asked when it can neither be
        found nor made, and raises if it knows why."""
        found = self._metadata.read(key)
        if found is not None:
            return found

        def look() -> bool | None:
            nonlocal found
            self._metadata.sync()
            found = self._metadata.read(key)
            return None if found is None else True

        for _ in range(self._limits.change_attempts):
            if self.carry_out([Create(cast(AnyKey, key), cast(NodeRecord, record))], look, what) and found is None:
                return Versioned(record, 0)
            if found is not None or look():
                return cast("Versioned[R]", found)
            check()
        raise Conflict(f"{what}: it can neither be found nor made; try again")

    # -- any transaction ---------------------------------------------------------------------------------------

    def carry_out(self, ops: Sequence[Op], look: Look, what: str, deadline: Deadline | None = None) -> bool:
        """True if the transaction was applied, False if it was not and never will be. ``look`` must see the newest
        state; ``what`` tells people of what the answer was lost."""
        deadline = deadline or self.deadline()
        unknown = False
        while True:
            refused = False
            try:
                self._metadata.transact(ops)
                return True
            except TransactionLost:
                if not unknown:
                    return False
                refused = True  # perhaps because an earlier sending was applied: look
            except OutcomeUnknown as error:
                unknown = True
                logger.info("%s: outcome unknown, resolving: %s", what, error)
            except Unavailable:
                if not unknown:
                    raise
            outcome = self._found_out(look, what, deadline)
            if outcome is not None:
                return outcome
            if refused:
                return False
            if deadline.passed:
                raise _unknown(what, "it was sent again and again, and never answered")

    def _found_out(self, look: Look, what: str, deadline: Deadline) -> bool | None:
        while True:
            try:
                return look()
            except Unavailable:
                if deadline.passed:
                    raise _unknown(what, "it was sent, and ZooKeeper does not answer any more") from None
                self._clock.sleep(self._clock.jitter(0.2))

    def by_id(self, key: Key[R], before: Versioned[R] | None, operation: bytes, what: str) -> Look:
        """A look that knows an operation by its id. ``before`` is what the transaction found; None: no node."""

        def look() -> bool | None:
            self._metadata.sync()
            found = self._metadata.read(key)
            if (None if found is None else found.version) == (None if before is None else before.version):
                return None
            known = () if before is None else operations_of(before.record)
            return self.was_applied(operation, known, () if found is None else operations_of(found.record), what)

        return look

    def was_applied(self, operation: bytes, before: tuple[bytes, ...], now: tuple[bytes, ...], what: str) -> bool:
        """Whether an operation that would have come right after ``before`` is among those that are remembered."""
        if operation in now:
            return True
        if len(now) >= self._limits.remembered_operations and (not before or before[-1] not in now):
            raise _unknown(what, "too much has happened since to tell whether it was applied")
        return False


class _Change(Generic[R]):
    """One call of :meth:`Transactions.change`."""

    def __init__(
        self,
        transactions: Transactions,
        node: Node[R],
        edit: Callable[[R], R | None],
        what: str,
        operation: bytes,
        also: Callable[[R], Iterable[Op]],
    ) -> None:
        self._transactions, self._node, self._edit, self._what = transactions, node, edit, what
        self._operation, self._also = operation, also
        self._deadline = transactions.deadline()
        self._found: Versioned[R] | None = None  # the newest, if somebody has just looked
        self.in_doubt = False  # something was sent, and nobody knows whether it was applied

    def step(self) -> R | None:
        """One try; the record if that was the last one."""
        synced = self._found is not None
        found = self._found or self._node.known()
        if self._is_done(found):
            return found.record
        edited, found = self._edited(found, synced)
        if edited is None or self._is_done(found):
            return found.record
        if self._operation:
            edited = self._transactions.remembering(edited, self._operation)
        self._found = None
        put = Put(cast(AnyKey, self._node.key), cast(NodeRecord, edited), found.version)
        if self._transactions.carry_out([put, *self._also(edited)], self._look(found), self._what, self._deadline):
            made = Versioned(edited, found.version + 1)
            self._node.changed(made if self._found is None or self._found.version <= made.version else self._found)
            return edited
        self._found = self._found or self._node.newest()
        return None

    def _is_done(self, found: Versioned[R]) -> bool:
        """By an earlier call with the same operation."""
        return bool(self._operation) and self._operation in operations_of(found.record)

    def _edited(self, found: Versioned[R], synced: bool) -> tuple[R | None, Versioned[R]]:
        """A "no" that does not come from the newest record is not given yet."""
        if not synced:
            try:
                edited = self._edit(found.record)
            except LedgerError:
                edited = None
            if edited is not None:
                return edited, found
            found = self._node.newest()
        return (None if self._is_done(found) else self._edit(found.record)), found

    def _look(self, before: Versioned[R]) -> Look:
        def look() -> bool | None:
            self.in_doubt = True
            self._found = self._node.newest()
            if self._found.version == before.version:
                return None
            if not self._operation:
                return False  # nobody can tell: tried again on what is there now
            applied = self._transactions.was_applied(
                self._operation, operations_of(before.record), operations_of(self._found.record), self._what
            )
            self.in_doubt = False
            return applied

        return look


def operations_of(record: object) -> tuple[bytes, ...]:
    """The ids of the last operations on a record, newest last."""
    return cast("tuple[bytes, ...]", getattr(record, "operations", ()))


def _unknown(what: str, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{what}: {why}. It may or may not have been applied; a retry with the same tokens, operation id or "
        "sequence id is safe"
    )
