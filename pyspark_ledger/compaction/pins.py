"""Who still needs a compacted topic's tombstones.

A tombstone may be dropped when every reader that may have seen its key has also seen the tombstone: when every
subscription and every running reader is past it, and, for readers that are neither, it was in all generations that are
kept. While the first one is kept, so is every tombstone: before it there were readers of the log alone.
"""

from __future__ import annotations

import contextlib

from pyspark_ledger.base.names import this_process
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.errors import OutcomeUnknown
from pyspark_ledger.log import generations
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.ephemeral import Ephemeral
from pyspark_ledger.metadata.port import CursorKey, Part, PartKey, PinKey, TransactionLost
from pyspark_ledger.metadata.records import Pin

_HOLDERS: tuple[Part, ...] = ("subscriptions", "pins")


def tombstones_from(log: Log, view: View) -> Position:
    """Tombstones before this position can be dropped. It only moves forward."""
    kept = generations.kept(log.files, view.head)
    if not kept or kept[0].number in (1, view.head.last_generation + 1):
        return EARLIEST
    below = [key for part in _HOLDERS for key in log.metadata.children(PartKey(log.topic.uuid, part))]
    cursors = log.metadata.read_many([key for key in below if isinstance(key, CursorKey)])
    pins = log.metadata.read_many([key for key in below if isinstance(key, PinKey)])
    needed = [kept[0].horizon]
    needed += [cursor.record.mark_delete for cursor in cursors if cursor is not None]
    needed += [pin.record.position for pin in pins if pin is not None]
    return max(kept[-1].tombstones_from, min(needed))


class Pinned:
    """A running reader's pin: an ephemeral node, recreated after a lost session. It is moved only when the reader comes
    to another generation: a pin that lags behind keeps more tombstones than necessary, and never too few."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._key = PinKey(log.topic.uuid, log.clock.new_id().hex())
        self._generation: int | None = None
        self._node: Ephemeral[Pin] | None = None

    def move(self, generation: int, position: Position) -> None:
        """Called when the reader begins to read a generation (0: the log) and has seen everything before a position."""
        if generation == self._generation:
            return
        with contextlib.suppress(TransactionLost, OutcomeUnknown):  # tried again with the next batch
            if self._node is None:
                node = Ephemeral(
                    self._log.metadata, self._log.limits, self._log.clock, self._key, Pin(position),
                    f"topic '{self._log.topic.name}': the pin of {this_process()}",
                )  # fmt: skip
                self._log.ensure_part("pins")
                node.take()
                self._node = node
            else:
                self._node.put(Pin(position))
            self._generation = generation

    def release(self) -> None:
        if self._node is not None:
            self._node.release()
