"""Transactions whose answer may be lost: it is found out what became of them, never guessed (I14).

All that a transaction checks are versions, which only grow, and nodes that are made once. So what was refused once
is refused for ever, and a transaction that was sent twice is applied at most once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pyspark_ledger.base.clock import Clock, Deadline
from pyspark_ledger.errors import OutcomeUnknown, Unavailable
from pyspark_ledger.metadata.port import Metadata, Op, TransactionLost

logger = logging.getLogger(__name__)

Look = Callable[[], bool | None]  # was it applied? None: it was not, and the versions that it checks still hold


REMEMBERED = 16  # operations that a node remembers


def remember(operations: tuple[bytes, ...], operation: bytes) -> tuple[bytes, ...]:
    """The last operations on a node, newest last: whoever lost an answer looks here."""
    return (*operations, operation)[-REMEMBERED:]


def forgotten(before: tuple[bytes, ...], now: tuple[bytes, ...]) -> bool:
    """Whether an operation that came right after ``before`` may have dropped out of what is remembered."""
    return len(now) >= REMEMBERED and (not before or before[-1] not in now)


def carry_out(metadata: Metadata, ops: Sequence[Op], look: Look, what: str, deadline: Deadline, clock: Clock) -> bool:
    """True if the transaction was applied, False if it was not and never will be. ``look`` must see the newest state;
    ``what`` tells people of what the answer was lost."""
    unknown = False
    while True:
        refused = False
        try:
            metadata.transact(ops)
            return True
        except TransactionLost:
            if not unknown:
                return False
            refused = True  # or is it the first sending that took the version? Look, never assume
        except OutcomeUnknown as error:
            unknown = True
            logger.info("%s: outcome unknown, resolving: %s", what, error)
        outcome = _found_out(look, what, deadline, clock)
        if outcome is not None:
            return outcome
        if refused:
            return False
        if deadline.passed:
            raise OutcomeUnknown(
                f"{what} was sent again and again, never answered. It may still be applied; a retry with the same "
                "tokens or sequence id is safe"
            )


def _found_out(look: Look, what: str, deadline: Deadline, clock: Clock) -> bool | None:
    while True:
        try:
            return look()
        except Unavailable:
            if deadline.passed:
                raise OutcomeUnknown(
                    f"{what} was sent, and ZooKeeper does not answer any more. It may or may not be applied; a retry "
                    "with the same tokens or sequence id is safe"
                ) from None
            clock.sleep(clock.jitter(0.2))
