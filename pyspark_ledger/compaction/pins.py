"""Who still needs a compacted topic's tombstones.

A tombstone may be dropped when nobody who has seen its key can miss it: every subscription and every running reader is
past it, and it was in all generations that are kept, for readers that are neither.
"""

from __future__ import annotations

import contextlib

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.errors import LedgerError, OutcomeUnknown
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import Create, CursorKey, Delete, PinKey, Put, RootKey, TransactionLost
from pyspark_ledger.metadata.records import Pin


def tombstones_from(log: Log, view: View) -> Position:
    """Tombstones before this can go. It only moves forward."""
    kept = view.head.generations
    if len(kept) < log.limits.kept_generations:
        return kept[-1].tombstones_from if kept else EARLIEST
    needed = [kept[0].horizon]
    for key in log.metadata.children(RootKey(log.topic.uuid)):
        if isinstance(key, CursorKey) and (cursor := log.metadata.read(key)) is not None:
            needed.append(cursor.record.mark_delete)
        elif isinstance(key, PinKey) and (pin := log.metadata.read(key)) is not None:
            needed.append(pin.record.position)
    return max(kept[-1].tombstones_from, min(needed))


class Pinned:
    """A running reader's pin: an ephemeral node. It is moved when the reader comes to another generation, which is
    rare: a pin that lags behind keeps more tombstones than necessary, and never too few. It is looked at well within
    the session's time-out, because a session that ends takes it along."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._key = PinKey(log.topic.uuid, log.clock.new_id().hex())
        self._generation: int | None = None
        self._seen_at = 0.0

    def move(self, generation: int, position: Position) -> None:
        """The reader is about to read a generation (0: the log), and has seen everything before a position."""
        lease = self._log.metadata.session_timeout_s / 5
        if generation == self._generation and self._log.clock.monotonic() - self._seen_at < lease:
            return
        found = self._log.metadata.read(self._key)
        with contextlib.suppress(TransactionLost, OutcomeUnknown):  # tried again with the next batch
            if found is None:
                self._log.metadata.transact([Create(self._key, Pin(position), ephemeral=True)])
            elif generation != self._generation:
                self._log.metadata.transact([Put(self._key, Pin(position), found.version)])
            self._generation, self._seen_at = generation, self._log.clock.monotonic()

    def release(self) -> None:
        with contextlib.suppress(LedgerError):
            self._log.metadata.transact([Delete(self._key)])
