"""The one way to change a node: read it, edit it, write it at its version, and find out what happened.

The answer to a transaction can get lost. What happened is then found out, never guessed (I14):

- Whether a change was applied is known by the *id of the operation*, which the record keeps. A record that looks as
  expected, or a counter that has moved, proves nothing: somebody else may have done that.
- A transaction checks only versions, which only grow, and nodes that are created once. So a transaction that was
  refused once is always refused, and one that is sent twice is applied at most once.
- Acceptance is validated by the version. A rejection (gone, not allowed, nothing to do) is not, and may come from a
  stale read: so the record is read again, after a sync, before rejecting.
- An outcome stays unknown until somebody has looked. If the server does not answer that look either, the error is
  OutcomeUnknown, never Unavailable, which promises that nothing was changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, cast

from pyspark_ledger.base.clock import Clock, Deadline
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import (
    Conflict,
    CorruptData,
    DataLoss,
    LedgerError,
    NotAllowed,
    OutcomeUnknown,
    Unavailable,
)
from pyspark_ledger.metadata.port import AnyKey, Create, Key, Metadata, Op, Put, R, TransactionLost, Versioned
from pyspark_ledger.metadata.records import NodeRecord

logger = logging.getLogger(__name__)

Look = Callable[[], bool | None]  # was it applied? None: not yet, and the versions that it checks are still current


class RolledBack(DataLoss):
    """The store was rolled back to an older state, and this process knows what was lost. It is told once, and what it
    has in memory is dropped: so who tries again after this error would silently go on without what was lost."""

    default_code = "LEDGER_SET_BACK"


def find(metadata: Metadata, key: Key[R]) -> Versioned[R] | None:
    """A record. None only after a synced look: what a stale server has not seen yet is there."""
    found = metadata.read(key)
    if found is None:
        metadata.sync()
        found = metadata.read(key)
    return found


class Node(Protocol[R]):
    """A node as one process knows it."""

    @property
    def key(self) -> Key[R]: ...

    def known(self) -> Versioned[R]:
        """What is in memory, if there is something; it may be outdated."""
        ...

    def newest(self) -> Versioned[R]:
        """What is stored, read after a sync. Raises an error for the user if the node is gone."""
        ...

    def changed(self, now: Versioned[R]) -> None:
        """Takes note of what this process has just written to the node."""
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


def _nothing(_: TransactionLost) -> None: ...


class Transactions:
    """Changes the nodes of one store, within its limits. ``refused`` is told of every refusal; it may raise."""

    def __init__(
        self, metadata: Metadata, limits: Limits, clock: Clock, refused: Callable[[TransactionLost], None] = _nothing
    ) -> None:
        self._metadata, self._limits, self._clock, self._refused = metadata, limits, clock, refused

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
        """Edits a record, tries again if somebody else was faster, and returns the edited record. ``edit`` returns None
        if there is nothing to do, and raises if the change is not allowed. ``also`` gives the operations that belong to
        the same transaction.

        With an ``operation``, its id is kept in the record, and the edit is made once, however often this is called.
        Without one the edit must be harmless to repeat: if an answer was lost, it is made on what is stored then.
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
        except NotAllowed as error:
            if attempt.in_doubt:
                raise _unknown(what, "it was sent, and is not allowed any more") from error
            raise
        raise Conflict(f"{what}: others change it all the time; try again")

    def remembering(self, record: R, operation: bytes) -> R:
        """The record with one more operation among the last ones that it remembers."""
        operations = (*operations_of(record), operation)[-self._limits.remembered_operations :]
        return cast(R, replace(cast(Any, record), operations=operations))

    # -- a node, made or found ---------------------------------------------------------------------------------

    def make(self, key: Key[R], record: R, what: str, check: Callable[[], object] = lambda: None) -> Versioned[R]:
        """Creates a node unless it exists, and returns what it holds. ``check`` is called when it can neither be found
        nor created, and raises if it knows why."""
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
        """True if the transaction was applied, False if it was not and never will be. ``look`` finds out after a lost
        answer, and must read the newest state; ``what`` names the change in messages."""
        deadline = deadline or self.deadline()
        unknown = False
        while True:
            refused = False
            denied: NotAllowed | None = None
            try:
                self._metadata.transact(ops)
                return True
            except TransactionLost as error:
                self._refused(error)
                if not unknown:
                    return False
                refused = True  # perhaps because it was applied when it was sent before: look
            except OutcomeUnknown as error:
                unknown = True
                logger.info("%s: outcome unknown, resolving: %s", what, error)
            except NotAllowed as error:
                if not unknown:
                    raise
                denied = error  # but it was allowed when it was sent before, and may have been applied then
            except Unavailable:
                if not unknown:
                    raise
            outcome = self._found_out(look, what, deadline)
            if denied is not None and not outcome:
                raise denied
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
            except NotAllowed:
                raise _unknown(what, "it was sent, and whoever sent it may not even read any more") from None
            except CorruptData as error:  # an index file, perhaps: the damage says nothing of this transaction
                raise _unknown(what, f"it was sent, and what became of it cannot be read: {error.message}") from None

    def by_id(self, key: Key[R], before: Versioned[R] | None, operation: bytes, what: str) -> Look:
        """A look that finds an operation by its id. ``before`` is what the transaction was decided from; None: no
        node."""

        def look() -> bool | None:
            self._metadata.sync()
            found = self._metadata.read(key)
            if (None if found is None else found.version) == (None if before is None else before.version):
                return None
            known = () if before is None else operations_of(before.record)
            return self.was_applied(operation, known, () if found is None else operations_of(found.record), what)

        return look

    def was_applied(self, operation: bytes, before: tuple[bytes, ...], now: tuple[bytes, ...], what: str) -> bool:
        """Whether an operation is among those that the record remembers ``now``. ``before`` are those that it
        remembered when the operation was sent."""
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
        self._found: Versioned[R] | None = None  # the newest record, if it was just read
        self.in_doubt = False  # a transaction was sent, and it is not known whether it was applied

    def step(self) -> R | None:
        """One attempt; the record if there is nothing left to do."""
        synced = self._found is not None
        found = self._found or self._node.known()
        if self._is_done(found):
            return found.record
        edited, found = self._edited(found, synced)
        if edited is None:
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
        """Whether an earlier call with the same operation made the edit."""
        return bool(self._operation) and self._operation in operations_of(found.record)

    def _edited(self, found: Versioned[R], synced: bool) -> tuple[R | None, Versioned[R]]:
        """The edited record; None if there is nothing to do. A rejection counts only if it comes from the newest
        record."""
        if not synced:
            try:
                edited = self._edit(found.record)
            except RolledBack:  # that is true in any case, and the next try would know nothing of it
                raise
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
                return False  # it cannot be known: the edit is made again on what is stored now
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
