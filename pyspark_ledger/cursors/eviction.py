"""Eviction: a subscription that holds back more than the topic's backlog quota allows is moved forward.

That is an ordinary revision. The cursor keeps a mark of how many records were taken from it, so that nobody goes on
behind the gap without being told: see ``loss``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from pyspark_ledger.base.names import this_process
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.metadata.records import Cursor

logger = logging.getLogger(__name__)


def evict(node: CursorNode, ordinal: int, still: Callable[[Cursor], bool]) -> int:
    """Moves a subscription forward to the record that has so many before it, if ``still`` says that it has to go: this
    is asked of the very cursor that is moved. A query that is ahead of that is not moved back. Returns how many records
    were taken from it: those that were not acknowledged.

    Raises CursorUnderRevision if somebody else moves it right now, and NotFound if it was deleted."""
    taken = 0

    def forward(cursor: Cursor) -> Cursor | None:
        nonlocal taken
        taken = 0
        if cursor.ordinal >= ordinal or not still(cursor):
            return None
        acks = node.acks(cursor)
        taken = ordinal - cursor.ordinal - len(acks) + len(acks.since(ordinal))
        moved = node.moved(cursor, acks.next_missing(ordinal), acks)
        return replace(moved, evicted=cursor.evicted + taken)

    if forward(node.refresh(sync=True)) is None:
        return 0  # nobody has to wait for a revision that changes nothing
    controller = RevisionController(node, f"the backlog quota, by {this_process()}")
    controller.start_revision()
    evicted = controller.end_revision(forward)
    if taken:
        logger.warning(
            "evicted topic=%s subscription=%s records=%d position=%s revision=%d",
            node.log.topic.name, node.name, taken, evicted.mark_delete, evicted.revision,
        )  # fmt: skip
    return taken
