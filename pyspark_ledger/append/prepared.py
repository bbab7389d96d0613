"""From a verdict to a transaction: what a commit consists of, where in the log it goes, and what it did.

A *draft* is a commit without a place. It gets one from the version of the head that its transaction checks: the
writer's own draft, or those of others too, if it has its turn and commits for them (``combining``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from pyspark_ledger.append import loose
from pyspark_ledger.append.admission import StagedBatch, Verdict
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.log.log import Log, View, head_ops
from pyspark_ledger.metadata.port import Check, CommitKey, Create, LedgerKey, Op, PoliciesKey, SchemaKey
from pyspark_ledger.metadata.records import Commit, Entry, FileRef, Head, Marker, Schema

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
class Draft:
    """A commit without a place in the log."""

    commit: Commit
    verdict: Verdict
    schema_ops: tuple[Op, ...] = ()

    def with_file(self, share: Entry) -> Draft:
        """Its loose records are there now."""
        commit = with_file(self.commit, share)
        return replace(self, commit=commit, verdict=replace(self.verdict, entries=commit.entries))


def with_file(commit: Commit, share: Entry) -> Commit:
    """A commit of one entry whose records were loose, and are there now."""
    [entry] = commit.entries
    entry = loose.placed(entry, share)
    return replace(commit, entries=(entry,), bytes=entry.bytes)


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A transaction, or one topic's part in it, and what is needed to find out later whether it was applied."""

    version: int  # of the head that it was decided from
    head: Head  # after the commits
    commits: tuple[Commit, ...]  # the writer's own is the last; those before it are of others, who waited
    ops: tuple[Op, ...]
    verdict: Verdict

    @property
    def commit(self) -> Commit:
        return self.commits[-1]


class SideFiles:
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


def draft(log: Log, head: Head, batch: StagedBatch, verdict: Verdict, side_files: SideFiles) -> Draft:
    """What the batch would commit. Raises a LedgerError if the topic does not take it."""
    log.check_not_set_back(head)
    log.check_root(head)
    check_not_terminated(head)
    if batch.loose is None:
        check_epochs(log, head, (entry.file for entry in verdict.entries))
        entries_file = side_files.entries(verdict.entries, head.gc_epoch)
        size = sum(entry.bytes for entry in verdict.entries)
    else:
        entries_file, size = None, batch.loose.rows.nbytes  # until it has a file
    highest_file = side_files.highest(verdict.highest, head.gc_epoch)
    schema_id, schema_ops = _decide_schema(log, head, batch)
    commit = Commit(
        number=0,
        id=batch.id,
        ledger=0,
        first_entry=0,
        entry_count=len(verdict.entries),
        records=sum(entry.kept for entry in verdict.entries),
        bytes=size,
        records_before=0,
        bytes_before=0,
        publish_ms=0,
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
    )
    return Draft(commit, verdict, schema_ops)


Also = Callable[[Sequence[Commit]], Iterable[Op]]  # further operations, from the commits of others with their places


def prepared(
    log: Log, view: View, own: Draft, others: Sequence[Commit] = (), also: Also = lambda _: ()
) -> PreparedCommit:
    """The transaction that commits the own draft, after those of others."""
    head, commits, now_ms = view.head, [], log.now_ms()
    for each in (*others, own.commit):
        assert all(entry.file.uid for entry in each.entries)  # what is named is durable
        commits.append(_placed(head, each, now_ms))
        head = _head_after(head, commits[-1])
    ops = (
        *head_ops(view, head),
        Check(PoliciesKey(head.uuid), log.policies().version),
        *([] if view.open_commits else [Create(LedgerKey(head.uuid, head.ledger), Marker())]),
        *(Create(CommitKey(head.uuid, commit.ledger, commit.number), commit) for commit in commits),
        *own.schema_ops,
        *own.verdict.token_ops,
        *also(commits[:-1]),
    )
    return PreparedCommit(view.version, head, tuple(commits), ops, own.verdict)


def _placed(head: Head, commit: Commit, now_ms: int) -> Commit:
    return replace(
        commit,
        number=head.next_commit,
        ledger=head.ledger,
        first_entry=head.next_entry,
        records_before=head.records,
        bytes_before=head.bytes,
        publish_ms=max(head.last_publish_ms, now_ms),
        tokens_before=head.token_base + head.tokens,
        previous=head.last_commit,
    )


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


def finish(log: Log, done: PreparedCommit) -> AppendResult:
    """To be called after the commit was applied: adds it to the log in memory, and returns where it is."""
    if log.view().version == done.version:
        log.committed(done.head, done.version + 1, done.commits, done.verdict.highest)
    return result(log, done.commit, done.verdict)


def result(log: Log, commit: Commit, verdict: Verdict) -> AppendResult:
    """Where a commit is that was applied, by whomever."""
    logger.info(
        "committed topic=%s commit=%d position=%d:%d:0 records=%d bytes=%d producer=%s sequence=%s dropped=%d",
        log.topic.name, commit.number, commit.ledger, commit.first_entry, commit.records, commit.bytes,
        commit.producer, commit.sequence, commit.dropped,
    )  # fmt: skip
    start = Position(commit.ledger, commit.first_entry, 0)
    return AppendResult(start, commit.records, False, commit.publish_ms, commit.dropped, verdict.entries)


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
