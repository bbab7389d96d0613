"""A log whose oldest ledgers were given up: where it begins, and what is said to who needs what is gone.

Giving up ledgers changes neither positions nor ordinals nor totals: the log only begins later. The files stay for a
while, so that batches that were planned before can still be read.
"""

from __future__ import annotations

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.errors import DataLoss
from pyspark_ledger.metadata.records import Head, PendingRange


def begin(head: Head) -> Position:
    """The first position that can be read."""
    return head.trim.position if head.trim is not None else EARLIEST


def records_before_begin(head: Head) -> int:
    """How many records were given up."""
    return head.trim.records if head.trim is not None else 0


def first_ledger(head: Head, *, planned: bool = False) -> int:
    """The first ledger that is there; ``planned``: for a batch that was planned before some were given up."""
    there = [pending.first for pending in head.pending if planned and is_readable(pending, head)]
    return min([begin(head).ledger, *there])


def is_readable(pending: PendingRange, head: Head) -> bool:
    """Whether the files of ledgers that were given up are surely there: in the epoch in which that was, and in the next
    one, which lasts for the grace."""
    return pending.epoch >= head.gc_epoch - 1


def is_gone(head: Head, position: Position, *, planned: bool = False) -> bool:
    """Whether records at or after a position, and before where the log begins, were given up; ``planned`` as for
    :func:`first_ledger`."""
    if head.trim is None or position >= head.trim.end:
        return False
    return position < Position(first_ledger(head, planned=planned), 0, 0)


def loss(head: Head, position: Position, records: int | None = None) -> DataLoss:
    """What to tell who wants to read from a position that is gone; ``records`` of the topic are before that position,
    if that is known."""
    gone = records_before_begin(head)
    how_many = f"{gone - records:,} records" if records is not None and records < gone else "the records"
    return DataLoss(
        f"topic '{head.name}': {how_many} from {position} up to {begin(head)} are gone, because the topic's retention "
        f"gave them up: it begins at {begin(head)} now",
        "LEDGER_TRIMMED",
    )
