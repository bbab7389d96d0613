"""The queue of a topic's writers, as one process knows it.

While nobody waits, a writer commits at once. Its transaction checks that still nobody waits: the queue's node has the
version at which the queue was seen to be empty. Whoever begins to wait writes that node, so newcomers cannot overtake
it for ever (I17).

A writer that waits has an ephemeral request, which says what it would commit. Whoever's turn it is commits for the
others too, and one transaction deletes their requests and leaves answers, which say where their commits are. All who
wait watch the answers.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
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
from pyspark_ledger.metadata.records import Answers, Marker, Request

if TYPE_CHECKING:
    from pyspark_ledger.log.log import Log

Waiting = tuple[RequestKey, Versioned[Request]]

_PACKED = struct.Struct("<16sQQQQ")


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a commit is that somebody else made for a writer that waited."""

    id: bytes
    number: int
    ledger: int
    first_entry: int
    publish_ms: int


class WriteQueue:
    """Who waits to append to a topic."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._key = PartKey(log.topic.uuid, "queue")
        self._answers_key = AnswersKey(log.topic.uuid)
        self._empty_at: tuple[int, int] | None = None  # the connection, and the version at which it was seen empty
        self._suspect = False  # what was read last was not true any more
        self._next_number = 0  # of the commit after the last one that was made for us
        self.leads = False  # this process was the last one that committed for others, as far as it knows
        self.patience_s = 0.0  # how long it waits before it looks whether it is first
        self._answered = threading.Event()  # there may be new answers
        self._answered.set()
        self._arrived: Versioned[Answers] | None = None  # the newest ones, if they have come by themselves
        self.is_wanted = False  # they are to do so

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
            return True if self.has(key) else None

        what = f"topic '{self._log.topic.name}': waiting for its turn"
        self._empty_at = None
        for _ in range(self._log.limits.change_attempts):
            self._log.ensure_part("queue")
            if self._log.transactions.carry_out(ops, look, what) or self.has(key):
                return is_sure
            self._log.make_part("queue")  # raises if the topic is gone
        raise Conflict(f"{what}: that is refused again and again; try again")

    def leave(self, key: RequestKey) -> bool:
        """Withdraws a request. True if it was there until now: then nobody has committed it, and nobody will."""
        known = True

        def look() -> bool | None:
            nonlocal known
            known = False
            return None if self.has(key) else True

        what = f"topic '{self._log.topic.name}': waiting no longer"
        return self._log.transactions.carry_out([Delete(key)], look, what) and known

    def has(self, key: RequestKey) -> bool:
        """Whether a request is there, after a synced look."""
        self._log.metadata.sync()
        return self._log.metadata.read(key) is not None

    def saw_next(self, number: int) -> None:
        """The next commit has at least this number: whoever has been idle for long need not look for its commit among
        all that others have made meanwhile, nor in what retention has given up."""
        self._next_number = max(self._next_number, number)

    def next_number(self, seen: int) -> int:
        """The number that the next commit has at least, if ``seen`` is what the head in memory says."""
        return max(seen, self._next_number)

    # -- how many there are --------------------------------------------------------------------------------

    def was_alone(self) -> None:
        """Nobody else waited: the next append tries at once."""
        self.leads, self.patience_s = False, 0.0

    def has_led(self) -> None:
        """We have committed for others: if there are more, the next append does so at once."""
        self.leads, self.patience_s = True, max(self.patience_s, 0.05)

    def was_answered_after(self, seconds: float) -> None:
        """Another has committed for us. If it goes on doing so, the next answer comes within about as much time."""
        self.leads, self.patience_s = False, min(max(2 * seconds, 0.01), self._log.limits.patience_s)

    @property
    def busy(self) -> bool:
        """Whether others committed for us when we last appended: the next append waits at once."""
        return self.patience_s > 0 and not self.leads

    # -- answers -------------------------------------------------------------------------------------------

    def wait_for_answers(self, seconds: float) -> bool:
        """Whether there may be answers that were not read yet."""
        self._log.clock.wait(self._answered, seconds)
        return self._answered.is_set()

    def answer(self, id: bytes) -> Answer | None:
        """Where a commit is that somebody made for us; None if it is not known here. Watches for the next ones."""
        self._answered.clear()
        found, self._arrived = self._arrived, None
        if found is None:
            found = self._log.metadata.read(self._answers_key, self._ask_again, self)
        answer = None if found is None else _find(found.record.packed, id)
        if found is not None and answer is not None:
            self.saw_next(answer.number + 1)
            self._log.saw_epoch(found.record.gc_epoch)
        return answer

    def take(self, found: Versioned[Answers]) -> None:
        """New answers have come by themselves, on another thread."""
        self._arrived = found
        self._answered.set()

    def _ask_again(self) -> None:
        """There may be new ones, or the connection was lost, and what came before that is not watched any more."""
        self._arrived = None
        self._answered.set()

    def answer_ops(self, new: Iterable[Answer], gc_epoch: int) -> list[Op]:
        """Leaves answers, and the last ones before them, for those who are slow to look."""
        before = self._log.metadata.read(self._answers_key)
        packed = b"".join(_PACKED.pack(*astuple(answer)) for answer in new)
        kept = self._log.limits.answers * _PACKED.size
        if before is None:
            return [Create(self._answers_key, Answers(packed[-kept:], gc_epoch))]
        return [Put(self._answers_key, Answers((before.record.packed + packed)[-kept:], gc_epoch), before.version)]


def _find(packed: bytes, id: bytes) -> Answer | None:
    at = packed.rfind(id)
    while at >= 0 and at % _PACKED.size:  # those bytes are something else
        at = packed.rfind(id, 0, at + len(id) - 1)
    return Answer(*_PACKED.unpack_from(packed, at)) if at >= 0 else None
