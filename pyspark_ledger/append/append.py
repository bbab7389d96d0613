"""The one append protocol, for the Spark sink, the batch writer and the Python producer.

Files are staged and durable before this module is called. It decides from one version of the head and commits in one
transaction. If the answer is lost it finds out what happened, and never guesses (I14). It never deletes a file: only gc
does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from pyspark_ledger.append.admission import StagedBatch, TopicState, Verdict
from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import Conflict, CorruptData, InvalidInput, LedgerError, OutcomeUnknown, Unavailable
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.log import seal
from pyspark_ledger.log.log import Log, View, head_ops
from pyspark_ledger.metadata.port import Check, CommitKey, Create, LedgerKey, Op, PoliciesKey, SchemaKey
from pyspark_ledger.metadata.records import Commit, Entry, FileRef, Head, Marker, Schema
from pyspark_ledger.metadata.transactions import Look, RolledBack

logger = logging.getLogger(__name__)

STAGED_TOO_LONG_AGO = "LEDGER_STAGED_TOO_LONG_AGO"


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did.

    Attributes:
        start: the position of the first record; of a duplicate, the end of the log.
        records: how many records were added.
        duplicate: True if the log had all of the batch before, so that nothing was added.
        publish_ms: the publish time, in milliseconds since 1970; of a duplicate, that of the last commit.
        dropped: how many records were left out because the log had them before.
        entries: the entries that were added, with masks for the records that were left out.
    """

    start: Position
    records: int
    duplicate: bool
    publish_ms: int
    dropped: int = 0
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A transaction, or one topic's part in it, and what is needed to find out later whether it was applied."""

    version: int  # of the head that it was decided from
    head: Head  # after the commit
    commit: Commit
    ops: tuple[Op, ...]
    verdict: Verdict


class _SideFiles:
    """Files for what is too long for the commit's node. Staged once, however often the commit is tried: they are never
    older than the entries, whose epochs every try checks."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._entries: tuple[tuple[Entry, ...], FileRef] | None = None
        self._highest: tuple[pa.Table, FileRef] | None = None

    def entries(self, entries: tuple[Entry, ...], epoch: int) -> FileRef | None:
        limits = self._log.limits
        masks = sum(len(entry.mask) for entry in entries)
        if len(entries) <= limits.inline_entries and masks <= limits.inline_mask_bytes:
            return None
        if self._entries is None or self._entries[0] != entries:
            self._entries = (entries, self._log.files.stage_entries(entries, epoch))
        return self._entries[1]

    def highest(self, highest: pa.Table | None, epoch: int) -> FileRef | None:
        if highest is None or highest.num_rows <= self._log.limits.inline_entries:
            return None
        stored = highest.select(["producer", "sequence"])
        if self._highest is None or not self._highest[0].equals(stored):
            self._highest = (stored, self._log.files.stage_table(stored, epoch, "lz4"))
        return self._highest[1]


def append(
    log: Log, batch: StagedBatch, under_way: Callable[[PreparedCommit | None], None] = lambda _: None
) -> AppendResult:
    """Returns when the batch is in the log, or was there before. ``under_way`` is told of every commit before it is
    sent, and None once it is known not to be in the log: whoever is interrupted can :func:`resolve` it later."""
    deadline = Deadline(log.clock, log.limits.append_deadline_s)
    side_files = _SideFiles(log)
    looked_again = False
    while True:
        view, producers = log.producers()
        if seal.is_full(log, view):
            seal.seal(log)
            continue
        try:
            verdict = batch.admission.judge(batch, TopicState(log, view, producers))
            if verdict.is_duplicate and looked_again:
                return _nothing_added(log, view, batch, verdict)
            prepared = None if verdict.is_duplicate else _prepare(log, view, batch, verdict, side_files)
        except LedgerError as error:
            if looked_again or isinstance(error, RolledBack):
                raise
            prepared = None
        if prepared is None:
            # Acceptance is validated by the versions of head and policies. A rejection is not, and neither is the
            # answer that nothing of the batch is new: so read again before giving it.
            log.refresh(sync=True)
            looked_again = True
            continue
        under_way(prepared)
        if _commit(log, prepared, deadline, judged_again=True):
            batch.admission.committed()
            return finish(log, prepared)
        under_way(None)
        batch.admission.lost()
        log.clock.sleep(log.clock.jitter(0.002))
        log.refresh()


def resolve(log: Log, prepared: PreparedCommit) -> AppendResult | None:
    """What became of a commit that was sent by an append that raised: where it is, or None if it is not in the log and
    never will be. As long as it still may arrive, it is sent again; the result is a duplicate if that was not needed.
    """
    look = look_for(log, prepared)
    try:
        was_applied = look()
        if was_applied is None:
            if _commit(log, prepared, Deadline(log.clock, log.limits.append_deadline_s)):
                return finish(log, prepared)
            was_applied = look()  # refused, perhaps because it had arrived in the meantime
    except (Unavailable, CorruptData) as error:
        raise OutcomeUnknown(
            f"topic '{log.topic.name}': commit {prepared.commit.number} was sent, and what became of it cannot be "
            f"found out yet: {error.message}"
        ) from None
    return replace(finish(log, prepared), duplicate=True) if was_applied else None


def preparing(log: Log, batch: StagedBatch) -> Callable[[], PreparedCommit | None]:
    """For one topic's part in a transaction over several topics (:mod:`pyspark_ledger.append.several`): each call
    decides it anew from the log in memory. None if nothing of the batch is new."""
    side_files = _SideFiles(log)

    def prepare() -> PreparedCommit | None:
        view, producers = log.producers()
        while seal.is_full(log, view):
            seal.seal(log)
            view, producers = log.producers()
        verdict = batch.admission.judge(batch, TopicState(log, view, producers))
        return None if verdict.is_duplicate else _prepare(log, view, batch, verdict, side_files)

    return prepare


def finish(log: Log, prepared: PreparedCommit) -> AppendResult:
    """To be called after the commit was applied: adds it to the log in memory, and returns where it is."""
    commit, verdict = prepared.commit, prepared.verdict
    if log.view().version == prepared.version:
        log.committed(prepared.head, prepared.version + 1, commit, verdict.highest)
    logger.info(
        "committed topic=%s commit=%d position=%d:%d:0 records=%d bytes=%d producer=%s sequence=%s dropped=%d",
        log.topic.name, commit.number, commit.ledger, commit.first_entry, commit.records, commit.bytes,
        commit.producer, commit.sequence, commit.dropped,
    )  # fmt: skip
    start = Position(commit.ledger, commit.first_entry, 0)
    return AppendResult(start, commit.records, False, commit.publish_ms, commit.dropped, verdict.entries)


def _nothing_added(log: Log, view: View, batch: StagedBatch, verdict: Verdict) -> AppendResult:
    logger.info(
        "duplicate topic=%s producer=%s dropped=%d: nothing of it is new",
        log.topic.name, batch.producer, verdict.dropped,
    )  # fmt: skip
    return AppendResult(view.head.end, 0, True, view.head.last_publish_ms, verdict.dropped)


def _prepare(log: Log, view: View, batch: StagedBatch, verdict: Verdict, side_files: _SideFiles) -> PreparedCommit:
    head, policies = view.head, log.policies()
    log.check_not_set_back(head)
    log.check_root(head)
    check_not_terminated(head)
    check_epochs(log, head, (entry.file for entry in verdict.entries))
    entries_file = side_files.entries(verdict.entries, head.gc_epoch)
    highest_file = side_files.highest(verdict.highest, head.gc_epoch)
    schema_id, schema_ops = _decide_schema(log, head, batch)
    commit = Commit(
        number=head.next_commit,
        id=batch.id,
        ledger=head.ledger,
        first_entry=head.next_entry,
        entry_count=len(verdict.entries),
        records=sum(entry.kept for entry in verdict.entries),
        bytes=sum(entry.bytes for entry in verdict.entries),
        records_before=head.records,
        bytes_before=head.bytes,
        publish_ms=max(head.last_publish_ms, log.now_ms()),
        schema_id=schema_id,
        entries=() if entries_file else verdict.entries,
        entries_file=entries_file,
        producer=batch.producer,
        query=verdict.query,
        run=verdict.run,
        sequence=verdict.sequence,
        digest=verdict.digest,
        forget=verdict.forgets_producer,
        sequence_column=verdict.sequence_column,
        producer_column=verdict.producer_column,
        highest=() if verdict.highest is None or highest_file else _pairs(verdict.highest),
        highest_file=highest_file,
        dropped=verdict.dropped,
        mints=batch.mints,
        tokens_before=head.token_base + head.tokens,
        previous=head.last_commit,
    )
    after = _head_after(head, commit)
    ops = (
        *head_ops(view, after),
        Check(PoliciesKey(head.uuid), policies.version),
        *([] if view.open_commits else [Create(LedgerKey(head.uuid, head.ledger), Marker())]),
        Create(CommitKey(head.uuid, commit.ledger, commit.number), commit),
        *schema_ops,
        *verdict.token_ops,
    )
    return PreparedCommit(view.version, after, commit, ops, verdict)


def _head_after(head: Head, commit: Commit) -> Head:
    return replace(
        head,
        schema_id=commit.schema_id,
        ledger_bytes=head.ledger_bytes + commit.bytes,
        next_commit=head.next_commit + 1,
        next_entry=head.next_entry + commit.entry_count,
        last_publish_ms=commit.publish_ms,
        records=head.records + commit.records,
        bytes=head.bytes + commit.bytes,
        tokens=head.tokens + (commit.records if commit.mints else 0),
        last_change=commit.id,
        last_commit=commit.id,
    )


def _pairs(highest: pa.Table) -> tuple[tuple[str, int], ...]:
    return tuple(zip(highest["producer"].to_pylist(), highest["sequence"].to_pylist(), strict=True))


def _decide_schema(log: Log, head: Head, batch: StagedBatch) -> tuple[int, tuple[Op, ...]]:
    if batch.schema is None:
        return head.schema_id, ()
    current = log.schema(head.schema_id)
    merged = schemas.merge(current, batch.schema, may_add=batch.merge_schema)
    if merged is current:
        return head.schema_id, ()
    wider = Schema(head.schema_id + 1, schemas.to_bytes(merged))
    return wider.id, (Create(SchemaKey(head.uuid, wider.id), wider),)


def check_not_terminated(head: Head) -> None:
    if head.terminated_ms:
        when = datetime.fromtimestamp(head.terminated_ms / 1000, UTC)
        raise InvalidInput(
            f"topic '{head.name}' was terminated, {when:%Y-%m-%d %H:%M:%S} UTC: it can be read, and takes no more "
            "records",
            "LEDGER_TOPIC_TERMINATED",
        )


def check_epochs(log: Log, head: Head, files: Iterable[FileRef]) -> None:
    """Refuses files of epochs before the last but one: gc may have deleted them, because nothing named them (I12)."""
    for file in files:
        if file.epoch < head.gc_epoch - 1:
            raise Conflict(
                f"topic '{head.name}': the batch was staged in gc epoch {file.epoch}, it is {head.gc_epoch} now, and "
                "its files may be gone: write it again",
                STAGED_TOO_LONG_AGO,
            )
        if file.epoch > head.gc_epoch:
            raise log.later_epoch("a file that was staged", file.epoch, head)


def look_for(log: Log, prepared: PreparedCommit, *, judged_again: bool = False) -> Look:
    """Whether a commit that was sent is in the log. If retention has given up that part of the log meanwhile, only the
    state of ids and tokens knows: ``judged_again`` says that the batch is compared with it, if the answer is no."""
    number = prepared.commit.number

    def look() -> bool | None:
        view = log.refresh(sync=True)
        if view.version == prepared.version:
            return None
        # The head has another version now, so a commit that is not in the log yet will be refused.
        if view.head.trim is not None and number < view.head.trim.commit:
            if judged_again and _is_known_by_state(prepared):
                return False
            raise OutcomeUnknown(
                f"topic '{log.topic.name}': commit {number} was sent, and before its answer was found the topic's "
                "retention gave up that part of the log. It may or may not have been applied"
            )
        found = log.commit(view, number)
        return found is not None and found.id == prepared.commit.id

    return look


def _is_known_by_state(prepared: PreparedCommit) -> bool:
    """Whether the topic's producers, or its tokens, remember a commit that is no longer in the log."""
    commit = prepared.commit
    return commit.sequence is not None or bool(commit.sequence_column or prepared.verdict.token_ops)


def _commit(log: Log, prepared: PreparedCommit, deadline: Deadline, *, judged_again: bool = False) -> bool:
    """True if the commit is in the log, False if it is not and never will be."""
    try:
        what = f"topic '{log.topic.name}': commit {prepared.commit.number}"
        look = look_for(log, prepared, judged_again=judged_again)
        return log.transactions.carry_out(prepared.ops, look, what, deadline)
    except InvalidInput as error:
        if error.code != "LEDGER_TOO_LARGE" or not prepared.verdict.token_ops:
            raise
        raise InvalidInput(
            f"topic '{log.topic.name}': the tokens of this batch are in too many places to be consumed at once: "
            f"{error.message}. Write smaller batches (maxRowsPerTrigger of the source), or mint tokens in blocks, with "
            "mint(1000) instead of a thousand mint(1)",
            error.code,
        ) from None
