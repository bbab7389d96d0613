"""Waiting for one's turn to append, and what became of it (I17).

A writer that has lost the race for the head twice queues. The first in the queue has its turn: it commits, and takes
the others along (``combining``). The others wait until their request is gone, and then look where their commit is. If
there is none, somebody has removed the request, or its session has ended: they queue again.

Nobody waits for a writer that stands still: whoever has seen the same one first for two seconds removes its request.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace

from pyspark_ledger.append.prepared import Draft, PreparedCommit
from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.errors import OutcomeUnknown
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.queue import Answer, WriteQueue
from pyspark_ledger.metadata.ephemeral import Ephemeral
from pyspark_ledger.metadata.port import Delete, Op, RequestKey, TransactionLost
from pyspark_ledger.metadata.records import Commit, Request

logger = logging.getLogger(__name__)

_CALLS = 20  # that a turn takes, with a margin


@dataclass(frozen=True, slots=True)
class Queued:
    """An append that has queued, for whoever was interrupted and wants to find out later what became of it."""

    key: RequestKey
    since: int  # no commit before this number has its id
    draft: Draft
    doubt_until: float  # by the monotonic clock: a request whose answer was lost may arrive until then
    sent: PreparedCommit | None = None  # it had its turn, and this was sent


class Turn:
    """One append's place in the queue. ``since`` is the number of the next commit when the batch's id was drawn."""

    def __init__(self, log: Log, id: bytes, since: int) -> None:
        self._log, self._id, self._since = log, id, since
        self._key = RequestKey(log.topic.uuid, since, id)
        self._doubt_until = 0.0
        self._first: tuple[RequestKey, Deadline] | None = None  # who is first, and until when it may stand still
        self._began = log.clock.monotonic()
        self.is_queued = False

    @property
    def key(self) -> RequestKey:
        return self._key

    @property
    def waited_s(self) -> float:
        return self._log.clock.monotonic() - self._began

    def under_way(self, draft: Draft, sent: PreparedCommit | None = None) -> Queued:
        return Queued(self._key, self._since, draft, self._doubt_until, sent)

    def join(self, draft: Draft, rows: bytes = b"", columns: tuple[str, ...] = ()) -> None:
        """``rows``: what the request brings along, because no file has it."""
        moves, lowest = self._log.storage.moves, draft.verdict.lowest
        request = Request(draft.commit, self._since, moves, needs_its_writer(draft), lowest, rows, columns)
        self._doubt_until = self._log.clock.monotonic() + self._log.limits.leftover_s
        if self._log.queue.join(self._key, request):
            self._doubt_until = 0.0
        self.is_queued = True

    def wait(self) -> Answer | Commit | None:
        """Where the commit is that somebody else made. None if it is this writer's turn; or if its request is gone
        (``is_queued``), and it has to queue again.

        While others commit, one look at the answers is all that it costs. Only if nothing happens for a while it looks
        who is first."""
        queue = self._log.queue
        queue.is_wanted = True
        try:
            return self._wait(queue)
        finally:
            queue.is_wanted = False

    def _wait(self, queue: WriteQueue) -> Answer | Commit | None:
        patience_s = queue.patience_s
        while True:
            while queue.wait_for_answers(patience_s):
                if (answer := queue.answer(self._id)) is not None:
                    queue.was_answered_after(self.waited_s)
                    return answer
            began = self._log.clock.monotonic()
            waiting = queue.waiting()
            if self._key not in waiting:
                return self._found()
            if waiting[0] == self._key:
                return None
            self._remove_if_still(waiting[0], self._log.clock.monotonic() - began)
            patience_s = min(2 * patience_s + 0.02, self._log.limits.patience_s)

    def _found(self) -> Answer | Commit | None:
        """The request is gone, or seems to be."""
        answer = self._log.queue.answer(self._id)
        if answer is not None:
            return answer
        if self._log.queue.has(self._key):
            return None  # only a server that is behind did not know it
        self.is_queued = False
        return commit_with(self._log, self._id, self._since)

    def _remove_if_still(self, first: RequestKey, call_s: float) -> None:
        """Removes the request of a writer that does not take its turn. If it lives, it queues again. A turn takes some
        calls: where they are slow (``call_s``) it has more time, or nobody could ever end its turn."""
        if self._first is None or self._first[0] != first:
            limits, session_s = self._log.limits, self._log.metadata.session_timeout_s
            self._first = first, Deadline(self._log.clock, max(limits.turn_s, min(_CALLS * call_s, session_s)))
        elif self._first[1].passed:
            logger.warning("topic '%s': a writer does not take its turn, and is passed over", self._log.topic.name)
            with contextlib.suppress(TransactionLost, OutcomeUnknown):  # the next look shows who is first now
                self._log.metadata.transact([Delete(first)])
            self._first = None

    def leave_ops(self) -> list[Op]:
        """In the transaction that commits the batch."""
        return [Delete(self._key)]


def commit_with(log: Log, id: bytes, since: int) -> Commit | None:
    """The commit with an id, which none before the number ``since`` has; None if there is none."""
    view = log.refresh(sync=True)
    if view.head.trim is not None and since < view.head.trim.commit:
        raise OutcomeUnknown(
            f"topic '{log.topic.name}': a commit was to be made by whoever has its turn, and before it was found the "
            "topic's retention gave up that part of the log. It may or may not have been made"
        )
    return next((commit for commit in log.commits_since(view, since) if commit.id == id), None)


def withdraw(log: Log, queued: Queued) -> Answer | Commit | None:
    """Takes a request back. Where its commit is, if somebody was faster; None if there is none, and never will be."""
    is_out = log.queue.leave(queued.key)
    found = None if is_out else commit_with(log, queued.key.id, queued.since)
    if found is None and log.clock.monotonic() < queued.doubt_until:
        raise OutcomeUnknown(
            f"topic '{log.topic.name}': the answer to a request to queue was lost, and it may still arrive. What comes "
            "of it is known in a minute"
        )
    return found


def leave_later(log: Log, queued: Queued) -> None:
    """Withdraws a request in the background, for an append that was interrupted."""
    Ephemeral(
        log.metadata,
        log.limits,
        log.clock,
        queued.key,
        Request(queued.draft.commit, queued.since),
        f"topic '{log.topic.name}': a request to append",
    ).abandon(may_arrive=True)


def with_place(draft: Draft, place: Answer | Commit) -> Commit:
    """The draft, as it was committed by somebody else."""
    return replace(
        draft.commit,
        number=place.number,
        ledger=place.ledger,
        first_entry=place.first_entry,
        publish_ms=place.publish_ms,
    )


def needs_its_writer(draft: Draft) -> bool:
    """Whether nobody else can judge the batch: from its node alone, by the head and the producers' last ids."""
    commit, verdict = draft.commit, draft.verdict
    by_ids = bool(commit.sequence_column) and (verdict.lowest is None or len(commit.highest) != 1)
    return bool(
        by_ids
        or draft.schema_ops
        or verdict.token_ops
        or verdict.dropped
        or commit.sequence is not None
        or commit.forget
        or commit.entries_file
        or commit.highest_file
    )
