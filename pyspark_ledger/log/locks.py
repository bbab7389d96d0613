"""Locks that keep two processes from doing the same work. No promise depends on them, because a lock can be lost
without its holder knowing: whoever publishes what was done checks that it still may."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime

from pyspark_ledger.base import names
from pyspark_ledger.errors import Conflict
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.ephemeral import Ephemeral
from pyspark_ledger.metadata.port import CompactorKey, RewriterKey
from pyspark_ledger.metadata.records import Holder


@contextlib.contextmanager
def only_one(log: Log, key: CompactorKey | RewriterKey, done: str, code: str) -> Iterator[None]:
    """Holds a lock of a topic; a second one is refused at once. ``done`` says what is being done to the topic."""
    mine = Holder(log.clock.new_id(), names.this_process(), log.clock.now_ms())
    what = f"topic '{log.topic.name}': the lock of who has it {done}"
    lock = Ephemeral(log.metadata, log.limits, log.clock, key, mine, what)
    log.ensure_part("locks")
    other = lock.take()
    if other is not None:
        since = datetime.fromtimestamp(other.since_ms / 1000, UTC)
        raise Conflict(
            f"topic '{log.topic.name}' is being {done} by {other.name} since {since:%Y-%m-%d %H:%M:%S} UTC", code
        )
    try:
        yield
    finally:
        lock.release()
