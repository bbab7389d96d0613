"""Several topics of a namespace in one transaction: what was staged for them becomes visible in all of them or in none.

Each topic's part is decided from that topic's own head, as if it were appended alone. One transaction commits all of
them, and whatever else must happen with them: the claim of a batch, the consumption of tokens, acknowledgements. Every
part makes a commit with an id of its own, so any one of them shows whether the whole was applied. A topic that was
deleted meanwhile, or that has given up the commit, cannot say: then another one is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.append.append import look_for, preparing
from pyspark_ledger.append.prepared import AppendResult, PreparedCommit, finish
from pyspark_ledger.base.clock import Clock, Deadline
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import (
    Conflict,
    CorruptData,
    InvalidInput,
    LedgerError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import HeadKey, Metadata, Op, TransactionLost
from pyspark_ledger.metadata.transactions import Look, RolledBack, Transactions
from pyspark_ledger.tokens.groups import GroupChanged

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 1.0


@dataclass(frozen=True, slots=True)
class Part:
    """What is appended to one of the topics."""

    log: Log
    batch: StagedBatch
    leads: bool = False  # if nothing of this part is new, then nothing of the others is either


class Beside(Protocol):
    """Something else that the transaction does: with all the appends, or not at all."""

    def begin(self) -> bool:
        """Before the parts are judged, again in each attempt. False: the whole was done before. Raises a LedgerError if
        it is refused."""
        return True

    def ops(self) -> Sequence[Op]:
        """After the parts were judged. Decided from what is in memory: the operations check its versions."""
        ...

    def refresh(self) -> None:
        """Reads the newest state: somebody else was faster, or a refusal is to be believed."""
        ...

    def look(self) -> bool | None:
        """Whether what :meth:`ops` gave last was applied, as a ``Look``. OutcomeUnknown: others have to be asked."""
        raise OutcomeUnknown("this does not tell")

    def committed(self) -> None:
        """The transaction was applied."""
        return


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A transaction, and what is needed to find out later whether it was applied."""

    commits: tuple[PreparedCommit | None, ...]  # of each part; None: nothing of it is new
    ops: tuple[Op, ...]


class Together:
    """Appends to several topics, and does what stands ``beside``, in one transaction. ``what`` names it in messages."""

    def __init__(
        self,
        metadata: Metadata,
        limits: Limits,
        clock: Clock,
        parts: Sequence[Part],
        beside: Sequence[Beside] = (),
        *,
        what: str = "a transaction over several topics",
    ) -> None:
        check_number(len(parts), limits)
        self._metadata, self._limits, self._clock = metadata, limits, clock
        self._parts, self._beside, self._what = parts, beside, what
        self._prepare_part = [preparing(part.log, part.batch) for part in parts]
        self._transactions = Transactions(metadata, limits, clock, self._refused)
        self._under_way: _Prepared | None = None  # it was sent, and nobody knows what became of it

    @property
    def in_doubt(self) -> bool:
        """Whether a call of :meth:`append` has raised, and it may have been applied all the same."""
        return self._under_way is not None

    def append(self) -> list[AppendResult] | None:
        """Returns when all of it is done: what became of each part, or None if the whole was done before. After any
        error it may be called again, and finds out first what became of the last attempt."""
        if self._under_way is not None and (settled := self._settled(self._under_way)) is not None:
            return settled
        deadline = Deadline(self._clock, self._limits.append_deadline_s)
        looked_again, lost = False, 0
        while True:
            try:
                prepared = self._prepare()
            except GroupChanged:
                lost += 1
                self._wait_after(lost, deadline)
                self._refresh(sync=True)
                continue
            except LedgerError as error:
                if looked_again or isinstance(error, RolledBack):
                    raise
                prepared = None
            is_new = prepared is not None and bool(prepared.ops)
            if prepared is not None and is_new and (looked_again or None not in prepared.commits):
                if self._carry_out(prepared, deadline):
                    return self._finish(prepared)
                looked_again, lost = False, lost + 1
                self._wait_after(lost, deadline)
                self._refresh()
                continue
            # Acceptance is validated by versions. A refusal, and the answer that nothing of it is new, are not: so
            # everything is read again before they are given.
            if looked_again:
                return None if prepared is None else self._finish(prepared)
            self._refresh(sync=True)
            looked_again = True

    def prepare(self) -> tuple[Op, ...]:
        """For who has a transaction of its own: the operations that append the parts, decided from the logs in memory.
        Call :meth:`finish` after they were applied."""
        self._under_way = prepared = self._prepare()
        return () if prepared is None else prepared.ops

    def finish(self) -> None:
        assert self._under_way is not None
        self._finish(self._under_way)

    # -- deciding ------------------------------------------------------------------------------------------

    def _prepare(self) -> _Prepared | None:
        """None if the whole was done before."""
        if not all(each.begin() for each in self._beside):
            return None
        commits: list[PreparedCommit | None] = []
        for part, prepare in zip(self._parts, self._prepare_part, strict=True):
            commit = prepare()
            if commit is None and part.leads:
                return None
            commits.append(commit)
        ops = [op for commit in commits if commit is not None for op in commit.ops]
        return _Prepared(tuple(commits), (*ops, *(op for each in self._beside for op in each.ops())))

    def _refresh(self, *, sync: bool = False) -> None:
        """What is outdated is read again; of a hundred topics that is seldom more than one."""
        if sync:
            self._metadata.sync()
        heads = self._metadata.read_many([HeadKey(part.log.topic.uuid) for part in self._parts])
        for part, head in zip(self._parts, heads, strict=True):
            if sync or head is None or head.version != part.log.view().version:
                part.log.refresh(sync=sync or head is None)
            part.batch.admission.lost()
        for each in self._beside:
            each.refresh()

    def _wait_after(self, lost: int, deadline: Deadline) -> None:
        if deadline.passed:
            raise Conflict(
                f"{self._what}: others write to its topics all the time, and were faster {lost} times in "
                f"{self._limits.append_deadline_s:g} s; nothing was changed. Try again"
            )
        self._clock.sleep(self._clock.jitter(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(lost, 20))))

    # -- sending, and finding out --------------------------------------------------------------------------

    def _carry_out(self, prepared: _Prepared, deadline: Deadline) -> bool:
        self._under_way = prepared
        try:
            applied = self._transactions.carry_out(prepared.ops, self._look(prepared), self._what, deadline)
        except (Unavailable, InvalidInput) as error:  # it was never sent
            self._under_way = None
            raise self._too_large(error) if error.code == "LEDGER_TOO_LARGE" else error from None
        if not applied:
            self._under_way = None
        return applied

    def _settled(self, prepared: _Prepared) -> list[AppendResult] | None:
        """What became of an attempt that raised; None if it was not applied and never will be. As long as it still may
        arrive, it is sent again."""
        look = self._look(prepared)
        try:
            applied = look()
            if applied is None:
                applied = self._carry_out(prepared, Deadline(self._clock, self._limits.append_deadline_s)) or look()
        except Unavailable as error:
            self._under_way = prepared
            raise OutcomeUnknown(
                f"{self._what} was sent, and what became of it cannot be found out yet: {error.message}"
            ) from None
        self._under_way = None
        return self._finish(prepared) if applied else None

    def _look(self, prepared: _Prepared) -> Look:
        """Asks one after the other until somebody can tell: none can have been applied without the others."""
        pairs = zip(self._parts, prepared.commits, strict=True)
        witnesses = [look_for(part.log, commit) for part, commit in pairs if commit is not None]
        witnesses += [each.look for each in self._beside]

        def look() -> bool | None:
            why = ""
            for witness in witnesses:
                try:
                    return witness()
                except (NotFound, OutcomeUnknown, CorruptData) as error:
                    why = error.message
            raise OutcomeUnknown(
                f"{self._what} was sent, and its answer was lost. It may or may not have been applied, and none of its "
                f"topics can tell any more: {why}"
            )

        return look

    def _finish(self, prepared: _Prepared) -> list[AppendResult]:
        self._under_way = None
        results = []
        for part, commit in zip(self._parts, prepared.commits, strict=True):
            if commit is None:
                head = part.log.view().head
                results.append(AppendResult(head.end, 0, True, head.last_publish_ms, part.batch.records))
            else:
                part.batch.admission.committed()
                results.append(finish(part.log, commit))
        for each in self._beside:
            each.committed()
        return results

    def _refused(self, refusal: TransactionLost) -> None:
        """Why it was refused is for each of the topics to judge."""
        for part in self._parts:
            part.log.refused(refusal)

    def _too_large(self, error: LedgerError) -> InvalidInput:
        return InvalidInput(
            f"{self._what}: {error.message}. All of it has to fit into one transaction of ZooKeeper: write less, or to "
            "fewer topics, at once (maxRowsPerTrigger of the source)",
            error.code,
        )


def check_number(topics: int, limits: Limits) -> None:
    """Raises InvalidInput if these are more topics than one transaction can append to."""
    if topics > limits.topics_together:
        raise InvalidInput(
            f"{topics} topics at once, and one transaction appends to {limits.topics_together} at most: write to fewer "
            "topics in one batch (maxRowsPerTrigger of the source makes batches smaller), or split the stream into "
            "several queries. A batch that Spark has begun is repeated as it is: for that one, let the query's code "
            "name fewer topics",
            "LEDGER_TOO_MANY_TOPICS",
        )
