"""The queue of a topic's writers, as one process knows it.

While nobody waits, a writer commits at once. Its transaction checks that still nobody waits: the queue's node has the
version at which the queue was seen to be empty. Whoever begins to wait writes that node, so newcomers cannot overtake
it for ever (I17).

A writer that waits has an ephemeral request, which says what it would commit. Whoever's turn it is commits for the
others too, and one transaction deletes their requests and leaves answers that say where their commits are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark_ledger.errors import Conflict
from pyspark_ledger.metadata.port import (
    AnswersKey,
    Check,
    Create,
    Delete,
    Op,
    PartKey,
    Put,
    RequestKey,
    Versioned,
)
from pyspark_ledger.metadata.records import Answer, Answers, Marker, Request

if TYPE_CHECKING:
    from pyspark_ledger.log.log import Log

Waiting = tuple[RequestKey, Versioned[Request]]


class WriteQueue:
    """Who waits to append to a topic."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._key = PartKey(log.topic.uuid, "queue")
        self._answers_key = AnswersKey(log.topic.uuid)
        self._empty_at: tuple[int, int] | None = None  # the connection, and the version at which it was seen empty
        self._suspect = False  # what was read last was not true any more
        self._next_number = 0  # of the commit after the last one that was made for us
        self.busy = False  # others waited when this process last appended: the next one waits at once

    # -- who does not wait ---------------------------------------------------------------------------------

    def check(self) -> Check | None:
        """For a transaction that does not wait for its turn: it is refused if somebody has begun to wait. None if
        somebody waits now."""
        connection = self._log.metadata.connections
        if self._empty_at is None or self._empty_at[0] != connection:
            version = self._version()
            self._empty_at = None if self.waiting() else (connection, version)  # the version first, then who waits
        return None if self._empty_at is None else Check(self._key, self._empty_at[1])

    def changed(self) -> None:
        """Somebody has begun to wait since the queue was seen to be empty."""
        self._empty_at, self._suspect = None, True

    def _version(self) -> int:
        if self._suspect:
            self._log.metadata.sync()  # the server may be behind
            self._suspect = False
        return self._log.make_part("queue").version

    # -- who waits -----------------------------------------------------------------------------------------

    def waiting(self) -> list[RequestKey]:
        """Who waits, in order."""
        below = self._log.metadata.children(self._key)
        return sorted((key for key in below if isinstance(key, RequestKey)), key=lambda key: (key.number, key.id))

    def requests(self, keys: Sequence[RequestKey]) -> list[Waiting]:
        """What they wait for. One that is gone meanwhile is left out."""
        found = self._log.metadata.read_many(keys) if keys else []
        return [(key, request) for key, request in zip(keys, found, strict=True) if request is not None]

    def join(self, key: RequestKey, request: Request) -> bool:
        """Begins to wait. False if that is true, but an answer was lost: then the same request may arrive once more,
        after it was dealt with."""
        ops: list[Op] = [Put(self._key, Marker(), None), Create(key, request, ephemeral=True)]
        is_sure = True

        def look() -> bool | None:
            nonlocal is_sure
            is_sure = False
            return True if self._is_there(key) else None

        what = f"topic '{self._log.topic.name}': waiting for its turn"
        self._empty_at = None
        for _ in range(self._log.limits.change_attempts):
            self._log.ensure_part("queue")
            if self._log.transactions.carry_out(ops, look, what) or self._is_there(key):
                return is_sure
            self._log.make_part("queue")  # raises if the topic is gone
        raise Conflict(f"{what}: that is refused again and again; try again")

    def leave(self, key: RequestKey) -> bool:
        """Withdraws a request. True if it was there until now: then nobody has committed it, and nobody will."""
        known = True

        def look() -> bool | None:
            nonlocal known
            known = False
            return None if self._is_there(key) else True

        what = f"topic '{self._log.topic.name}': waiting no longer"
        return self._log.transactions.carry_out([Delete(key)], look, what) and known

    def _is_there(self, key: RequestKey) -> bool:
        self._log.metadata.sync()
        return self._log.metadata.read(key) is not None

    def next_number(self, seen: int) -> int:
        """The number that the next commit has at least, if ``seen`` is what the head in memory says."""
        return max(seen, self._next_number)

    # -- answers -------------------------------------------------------------------------------------------

    def answers(self) -> Versioned[Answers] | None:
        return self._log.metadata.read(self._answers_key)

    def answer(self, id: bytes) -> Answer | None:
        """Where a commit is that somebody made for us; None if it is not known here."""
        found = self.answers()
        answer = None if found is None else next((a for a in reversed(found.record.answers) if a.id == id), None)
        if found is not None and answer is not None:
            self._next_number = max(self._next_number, answer.number + 1)
            self._log.saw_epoch(found.record.gc_epoch)
        return answer

    def answer_ops(self, new: Sequence[Answer], before: Versioned[Answers] | None, gc_epoch: int) -> list[Op]:
        kept = self._log.limits.answers
        if before is None:
            return [Create(self._answers_key, Answers(tuple(new)[-kept:], gc_epoch))]
        return [Put(self._answers_key, Answers((*before.record.answers, *new)[-kept:], gc_epoch), before.version)]
