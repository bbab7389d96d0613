"""The one append protocol, for the Spark sink, the batch writer and the Python producer.

Files are staged and durable before this module is called. It decides from one version of the head and commits in one
transaction. If the answer is lost it finds out what happened, and never guesses (I14). It never deletes a file: only gc
does.

A writer that loses the race for the head again and again waits for its turn (``turn``), and so gets it (I17).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pyspark_ledger.append import loose, tally, turn
from pyspark_ledger.append.admission import StagedBatch, TopicState, Verdict
from pyspark_ledger.append.combining import Companions
from pyspark_ledger.append.prepared import (
    AppendResult,
    Draft,
    PreparedCommit,
    SideFiles,
    draft,
    finish,
    prepared,
    result,
)
from pyspark_ledger.append.turn import Queued, Turn
from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.dedup.producers import Producers
from pyspark_ledger.errors import CorruptData, InvalidInput, LedgerError, OutcomeUnknown, Unavailable
from pyspark_ledger.log import seal
from pyspark_ledger.log.log import FRESH_S, Log, View
from pyspark_ledger.log.queue import Answer
from pyspark_ledger.metadata.port import Op, RequestKey
from pyspark_ledger.metadata.records import Commit
from pyspark_ledger.metadata.transactions import Look, RolledBack

logger = logging.getLogger(__name__)

UnderWay = PreparedCommit | Queued


def append(log: Log, batch: StagedBatch, under_way: Callable[[UnderWay | None], None] = lambda _: None) -> AppendResult:
    """Returns when the batch is in the log, or was there before. ``under_way`` is told of every commit before it is
    sent, and None once it is known not to be in the log: whoever is interrupted can :func:`resolve` it later."""
    return _Append(log, batch, under_way).run()


class _Append:
    """One call of :func:`append`."""

    def __init__(self, log: Log, batch: StagedBatch, under_way: Callable[[UnderWay | None], None]) -> None:
        self._log, self._batch, self._under_way = log, batch, under_way
        self._deadline = Deadline(log.clock, log.limits.append_deadline_s)
        self._side_files = SideFiles(log)
        self._looked_again = False
        self._lost_races = 0
        self._turn: Turn | None = None  # once it has queued
        self._queued: Queued | None = None  # what it would commit, if somebody else did it

    def run(self) -> AppendResult:
        try:
            while True:
                appended = self._waited() or self._attempt()
                if appended is not None:
                    return appended
        except LedgerError as error:
            appended = self._given_up(error)
            if appended is None:
                raise
            return appended
        except BaseException:
            if self._queued is not None:
                turn.leave_later(self._log, self._queued)
            raise

    # -- deciding ------------------------------------------------------------------------------------------

    def _attempt(self) -> AppendResult | None:
        """One try; None if there has to be another."""
        log, batch = self._log, self._batch
        view, producers = log.producers()
        if seal.is_full(log, view):
            seal.seal(log)
            return None
        try:
            verdict = batch.admission.judge(batch, TopicState(log, view, producers))
            if verdict.is_duplicate and self._looked_again:
                return self._nothing_added(view, verdict)
            own = None if verdict.is_duplicate else draft(log, view.head, batch, verdict, self._side_files)
        except LedgerError as error:
            if self._looked_again or isinstance(error, RolledBack):
                raise
            own = None
        if own is None:
            # Acceptance is validated by the versions of head and policies. A rejection is not, and neither is the
            # answer that nothing of the batch is new: so read again before giving it.
            log.refresh(sync=True)
            self._looked_again = True
            return None
        return self._commit_or_queue(view, producers, own)

    def _commit_or_queue(self, view: View, producers: Producers, own: Draft) -> AppendResult | None:
        queue = self._log.queue
        if self._turn is not None and self._turn.is_queued:
            companions = self._companions(view, producers, own, self._turn.key)
            return None if companions is None else self._commit_for_all(own, view, companions)
        if self._lost_races < self._log.limits.races and not queue.busy:
            free = queue.check()
            if free is not None:
                return self._send(prepared(self._log, view, self._with_file(view, own), also=lambda _: [free]))
            if queue.leads:
                companions = self._companions(view, producers, own, None)
                if companions is None:
                    return None
                if companions.are_all:  # nobody is overtaken
                    return self._commit_for_all(own, view, companions)
        self._queue(view, own)
        return None

    def _companions(self, view: View, producers: Producers, own: Draft, key: RequestKey | None) -> Companions | None:
        """Who can be taken along. None: the log in memory was so old that gc has deleted a file which it names, and it
        was read again."""
        try:
            return Companions.gather(self._log, view, producers, own, key)
        except CorruptData:
            if self._looked_again:
                raise
            self._log.refresh(sync=True)
            self._looked_again = True
            return None

    def _nothing_added(self, view: View, verdict: Verdict) -> AppendResult:
        """The log has all of the batch."""
        logger.info(
            "duplicate topic=%s producer=%s dropped=%d: nothing of it is new",
            self._log.topic.name, self._batch.producer, verdict.dropped,
        )  # fmt: skip
        return AppendResult(view.head.end, 0, True, view.head.last_publish_ms, verdict.dropped)

    # -- committing ----------------------------------------------------------------------------------------

    def _with_file(self, view: View, own: Draft, companions: Companions | None = None) -> Draft:
        """Writes the file for loose records: its own, and those of others who are taken along."""
        batch = self._batch
        share = (companions or Companions()).write(self._log, view.head.gc_epoch, batch.loose)
        if share is None:
            return own
        self._batch = replace(batch, entries=(loose.placed(batch.entries[0], share),), loose=None)
        return own.with_file(share)

    def _send(self, sent: PreparedCommit) -> AppendResult | None:
        self._under_way(sent if self._queued is None else replace(self._queued, sent=sent))
        if _commit(self._log, sent, self._deadline, judged_again=True):
            self._batch.admission.committed()
            return finish(self._log, sent)
        self._under_way(self._queued)
        self._lost_races += 1
        self._batch.admission.lost()
        self._log.clock.sleep(self._log.clock.jitter(0.002))
        self._log.refresh()
        return None

    def _commit_for_all(self, own: Draft, view: View, companions: Companions) -> AppendResult | None:
        """Commits, and takes along those who wait."""
        log = self._log

        leaving = self._turn.leave_ops() if self._turn is not None and self._turn.is_queued else []

        def also(placed: Sequence[Commit]) -> Iterable[Op]:
            return [*leaving, *companions.ops(log, placed)]

        log.queue.leads = False  # unless it goes well
        own = self._with_file(view, own, companions)
        appended = self._send(prepared(log, view, own, companions.commits, also))
        if appended is None:
            return None
        if companions.waiting:
            log.queue.has_led()
        else:
            log.queue.was_alone()
        waited_s = None if self._turn is None else self._turn.waited_s
        tally.add(log.topic.name, turns=1, combined=len(companions.commits), waited_s=waited_s)
        logger.info(
            "in turn topic=%s waited_ms=%d combined=%d of %d who waited",
            log.topic.name, (waited_s or 0) * 1000, len(companions.commits), companions.waiting,
        )  # fmt: skip
        return appended

    # -- waiting -------------------------------------------------------------------------------------------

    def _queue(self, view: View, own: Draft) -> None:
        """With its records, if they are loose and somebody else can judge them."""
        brings = None
        if self._batch.loose is not None and not turn.needs_its_writer(own):
            brings = loose.pack(self._batch.loose, self._log.limits)
        if brings is None:
            own = self._with_file(view, own)
        else:
            self._log.gc_epoch(FRESH_S)  # who was idle learns how far the log is, as for a file
        self._turn = self._turn or Turn(self._log, self._batch.id, self._log.queue.next_number(view.head.next_commit))
        self._queued = self._turn.under_way(own)
        self._under_way(self._queued)
        try:
            self._turn.join(own, *(brings or ()))
        finally:
            self._queued = self._turn.under_way(own)

    def _waited(self) -> AppendResult | None:
        """What somebody else has committed for us. None if it is our turn, or there is nothing to wait for."""
        if self._turn is None or self._queued is None or not self._turn.is_queued:
            return None
        place = self._turn.wait()
        if place is None:
            self._log.refresh()
            return None
        self._batch.admission.committed()
        tally.add(self._log.topic.name, waited_s=self._turn.waited_s)
        return _elsewhere(self._log, self._queued, place)

    def _given_up(self, error: LedgerError) -> AppendResult | None:
        """The append has failed, and its request must not be committed after that was said. If it was committed
        before, all is well. If that cannot be known, that is what has to be said (I14)."""
        queued = self._queued
        if queued is None:
            return None
        try:
            place = turn.withdraw(self._log, queued)
        except LedgerError:
            turn.leave_later(self._log, queued)
            raise OutcomeUnknown(
                f"topic '{self._log.topic.name}': the batch waited for its turn, and whether somebody else has "
                f"committed it is not known: {error.message}"
            ) from None
        if place is not None:
            return _elsewhere(self._log, queued, place)
        return None


def _elsewhere(log: Log, queued: Queued, place: Answer | Commit) -> AppendResult:
    """Somebody else has committed it."""
    return result(log, turn.with_place(queued.draft, place), queued.draft.verdict)


def resolve(log: Log, under_way: UnderWay) -> AppendResult | None:
    """What became of a commit that was sent by an append that raised: where it is, or None if it is not in the log and
    never will be. As long as it still may arrive, it is sent again; the result is a duplicate if that was not needed.
    """
    sent = under_way.sent if isinstance(under_way, Queued) else under_way
    what = f"topic '{log.topic.name}': a commit was sent, and what became of it cannot be found out yet"
    try:
        appended = None if sent is None else _resolve_sent(log, sent)
        if appended is not None or isinstance(under_way, PreparedCommit):
            return appended
        place = turn.withdraw(log, under_way)
    except (Unavailable, CorruptData) as error:
        raise OutcomeUnknown(f"{what}: {error.message}") from None
    return None if place is None else replace(_elsewhere(log, under_way, place), duplicate=True)


def _resolve_sent(log: Log, sent: PreparedCommit) -> AppendResult | None:
    look = look_for(log, sent)
    was_applied = look()
    if was_applied is None:
        if _commit(log, sent, Deadline(log.clock, log.limits.append_deadline_s)):
            return finish(log, sent)
        was_applied = look()  # refused, perhaps because it had arrived in the meantime
    return replace(finish(log, sent), duplicate=True) if was_applied else None


def preparing(log: Log, batch: StagedBatch) -> Callable[[], PreparedCommit | None]:
    """For one topic's part in a transaction over several topics (:mod:`pyspark_ledger.append.several`): each call
    decides it anew from the log in memory. None if nothing of the batch is new."""
    side_files = SideFiles(log)

    def prepare() -> PreparedCommit | None:
        view, producers = log.producers()
        while seal.is_full(log, view):
            seal.seal(log)
            view, producers = log.producers()
        verdict = batch.admission.judge(batch, TopicState(log, view, producers))
        if verdict.is_duplicate:
            return None
        return prepared(log, view, draft(log, view.head, batch, verdict, side_files))

    return prepare


def look_for(log: Log, sent: PreparedCommit, *, judged_again: bool = False) -> Look:
    """Whether a commit that was sent is in the log. If retention has given up that part of the log meanwhile, only the
    state of ids and tokens knows: ``judged_again`` says that the batch is compared with it, if the answer is no."""
    number = sent.commit.number

    def look() -> bool | None:
        view = log.refresh(sync=True)
        if view.version == sent.version:
            return None
        # The head has another version now, so a commit that is not in the log yet will be refused.
        if view.head.trim is not None and number < view.head.trim.commit:
            if judged_again and _is_known_by_state(sent):
                return False
            raise OutcomeUnknown(
                f"topic '{log.topic.name}': commit {number} was sent, and before its answer was found the topic's "
                "retention gave up that part of the log. It may or may not have been applied"
            )
        found = log.commit(view, number)
        return found is not None and found.id == sent.commit.id

    return look


def _is_known_by_state(sent: PreparedCommit) -> bool:
    """Whether the topic's producers, or its tokens, remember a commit that is no longer in the log."""
    commit = sent.commit
    return commit.sequence is not None or bool(commit.sequence_column or sent.verdict.token_ops)


def _commit(log: Log, sent: PreparedCommit, deadline: Deadline, *, judged_again: bool = False) -> bool:
    """True if the commit is in the log, False if it is not and never will be."""
    try:
        what = f"topic '{log.topic.name}': commit {sent.commit.number}"
        look = look_for(log, sent, judged_again=judged_again)
        return log.transactions.carry_out(sent.ops, look, what, deadline)
    except InvalidInput as error:
        if error.code != "LEDGER_TOO_LARGE" or not sent.verdict.token_ops:
            raise
        raise InvalidInput(
            f"topic '{log.topic.name}': the tokens of this batch are in too many places to be consumed at once: "
            f"{error.message}. Write smaller batches (maxRowsPerTrigger of the source), or mint tokens in blocks, as "
            "a thousand at once instead of one a thousand times",
            error.code,
        ) from None
