"""Locks that keep two processes from doing the same work. No promise depends on them, because a lock can be lost
without its holder knowing: whoever publishes what was done checks that it still may."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from pyspark_ledger.base import names
from pyspark_ledger.errors import Conflict, LedgerError
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.ephemeral import Ephemeral
from pyspark_ledger.metadata.port import CompactorKey, RewriterKey
from pyspark_ledger.metadata.records import Holder

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much
_TOLD_EVERY_S = 5.0
_THEN = ": "  # between who holds a lock and how far he is


def split_name(holder: Holder) -> tuple[str, str]:
    """Who holds a lock, and how far he is, if he has told."""
    name, _, progress = holder.name.partition(_THEN)
    return name, progress


@contextlib.contextmanager
def only_one(log: Log, key: CompactorKey | RewriterKey, done: str, code: str) -> Iterator[Progress]:
    """Holds a lock of a topic; a second one is refused at once. ``done`` says what is being done to the topic. What is
    called with the progress shows it to others, now and then."""
    mine = Holder(log.clock.new_id(), names.this_process(), log.clock.now_ms())
    what = f"topic '{log.topic.name}': the lock of who has it {done}"
    lock = Ephemeral(log.metadata, log.limits, log.clock, key, mine, what)
    log.ensure_part("locks")
    other = lock.take()
    if other is not None:
        since = datetime.fromtimestamp(other.since_ms / 1000, UTC)
        who, progress = split_name(other)
        so_far = f" ({progress})" if progress else ""
        raise Conflict(
            f"topic '{log.topic.name}' is being {done} by {who} since {since:%Y-%m-%d %H:%M:%S} UTC{so_far}", code
        )
    try:
        yield _telling(log, lock, mine)
    finally:
        lock.release()


def _telling(log: Log, lock: Ephemeral[Holder], mine: Holder) -> Progress:
    """The first time after a while: most work is done before that."""
    told_at = log.clock.monotonic()

    def tell(what: str, part: int, whole: int) -> None:
        nonlocal told_at
        now = log.clock.monotonic()
        if now - told_at >= _TOLD_EVERY_S:
            told_at = now
            with contextlib.suppress(LedgerError):  # the work itself will notice
                lock.put(replace(mine, name=f"{mine.name}{_THEN}{what} {part:,} of {whole:,} records"))

    return tell
