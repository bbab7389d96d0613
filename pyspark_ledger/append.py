"""The one append protocol, for the Spark sink, the batch writer and the Python producer.

Files are staged and durable before this module is called. It decides from one version of the head, commits in
one multi, and when the answer is lost it finds out what happened. It never guesses (I14), and it never
deletes a file: only gc does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from pyspark_ledger import dedup, seal
from pyspark_ledger import schema as schemas
from pyspark_ledger.clock import Deadline
from pyspark_ledger.errors import Conflict, DataLoss, LedgerError, OutcomeUnknown, Unavailable
from pyspark_ledger.log import Log, View
from pyspark_ledger.port import CommitKey, Create, HeadKey, Op, Put, SchemaKey, TransactionLost
from pyspark_ledger.position import Position
from pyspark_ledger.records import Commit, Entry, FileRef, Head, Schema

logger = logging.getLogger(__name__)

STAGED_TOO_LONG_AGO = "LEDGER_STAGED_TOO_LONG_AGO"


@dataclass(frozen=True, slots=True)
class Batch:
    """What a writer wants to make visible at once. Entries are in the order in which they will be read."""

    id: bytes
    entries: tuple[Entry, ...] = ()
    schema: pa.Schema | None = None  # canonical; None if the topic's schema was used as it is
    merge_schema: bool = False
    claim: dedup.Claim | None = None
    producer: str = ""  # for a writer that brings no sequence id
    expects_replay: bool = False  # the writer knew the sequence id, and wrote no files
    counted: int | None = None  # the records it saw, if it had to count them
    forget: bool = False

    @property
    def records(self) -> int:
        return sum(entry.records for entry in self.entries)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where the batch is in the log. For a replay, nothing was added."""

    start: Position
    records: int
    duplicate: bool
    publish_ms: int


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One multi, and what must be known to tell later whether it was applied."""

    version: int
    head: Head
    commit: Commit
    ops: tuple[Op, ...]


def append(log: Log, batch: Batch) -> Appended:
    deadline = Deadline(log.clock, log.limits.append_deadline_s)
    entries_file: FileRef | None = None
    looked_again = False
    while True:
        view, producers = log.producers()
        if seal.is_full(log, view):
            seal.seal(log)
            continue
        try:
            if batch.claim is not None and _is_replay(producers, batch, batch.claim, log.topic.name):
                return _replayed(log, view, batch)
            files = [entry.file for entry in batch.entries]
            check_epochs(view.head, files if entries_file is None else [*files, entries_file])
            if entries_file is None and len(batch.entries) > log.limits.inline_entries:
                entries_file = log.files.stage_entries(batch.entries, view.head.gc_epoch)
            attempt = _decide(log, view, batch, entries_file)
        except LedgerError:
            if looked_again:
                raise
            log.refresh(sync=True)  # a wrong yes is caught by the head's version, a wrong no only here
            looked_again = True
            continue
        if _commit(log, attempt, deadline):
            return _done(log, attempt)
        log.clock.sleep(log.clock.jitter(0.002))
        log.refresh()


def _is_replay(producers: dedup.Producers, batch: Batch, claim: dedup.Claim, topic: str) -> bool:
    counted = batch.counted if batch.expects_replay else batch.records
    verdict = dedup.judge(producers.get(claim.producer), claim, counted, topic)
    if verdict is dedup.Verdict.NEW and batch.expects_replay:
        raise Conflict(
            f"topic '{topic}': producer '{claim.producer}' was let go while its batch {claim.sequence} was replayed: "
            "run the batch again",
            "LEDGER_RETRY",
        )
    return verdict is dedup.Verdict.REPLAY


def _decide(log: Log, view: View, batch: Batch, entries_file: FileRef | None) -> _Attempt:
    head = view.head
    schema_id, schema_ops = _decide_schema(log, head, batch)
    claim = batch.claim
    commit = Commit(
        number=head.next_commit,
        id=batch.id,
        ledger=head.ledger,
        first_entry=head.next_entry,
        entry_count=len(batch.entries),
        records=batch.records,
        bytes=batch.bytes,
        records_before=head.records,
        bytes_before=head.bytes,
        publish_ms=max(head.last_publish_ms, log.clock.now_ms()),
        schema_id=schema_id,
        entries=() if entries_file else batch.entries,
        entries_file=entries_file,
        producer=claim.producer if claim else batch.producer,
        query=claim.query if claim else "",
        run=claim.run if claim else "",
        sequence=claim.sequence if claim else None,
        digest=claim.digest if claim else b"",
        forget=batch.forget,
    )
    after = replace(
        head,
        schema_id=schema_id,
        ledger_bytes=head.ledger_bytes + commit.bytes,
        next_commit=head.next_commit + 1,
        next_entry=head.next_entry + commit.entry_count,
        last_publish_ms=commit.publish_ms,
        records=head.records + commit.records,
        bytes=head.bytes + commit.bytes,
    )
    ops = (
        Put(HeadKey(head.uuid), after, view.version),
        Create(CommitKey(head.uuid, commit.ledger, commit.number), commit),
        *schema_ops,
    )
    return _Attempt(view.version, after, commit, ops)


def _decide_schema(log: Log, head: Head, batch: Batch) -> tuple[int, tuple[Op, ...]]:
    if batch.schema is None:
        return head.schema_id, ()
    current = log.schema(head.schema_id)
    merged = schemas.merge(current, batch.schema, may_add=batch.merge_schema)
    if merged is current:
        return head.schema_id, ()
    wider = Schema(head.schema_id + 1, schemas.to_bytes(merged))
    return wider.id, (Create(SchemaKey(head.uuid, wider.id), wider),)


def check_epochs(head: Head, files: Iterable[FileRef]) -> None:
    """gc may delete unnamed files older than the last epoch but one, so they can no longer be named (I12)."""
    for file in files:
        if file.epoch < head.gc_epoch - 1:
            raise Conflict(
                f"topic '{head.name}': the batch was staged in gc epoch {file.epoch}, it is {head.gc_epoch} now, and "
                "its files may be gone: write it again",
                STAGED_TOO_LONG_AGO,
            )
        if file.epoch > head.gc_epoch:
            raise DataLoss(
                f"topic '{head.name}': a file was staged in gc epoch {file.epoch}, but ZooKeeper says "
                f"{head.gc_epoch}: it was set back to an older state. Writers stop until it is repaired",
                "LEDGER_SET_BACK",
            )


def _commit(log: Log, attempt: _Attempt, deadline: Deadline) -> bool:
    """True if the attempt is in the log, False if it is not and never will be."""
    unknown = False
    while True:
        try:
            log.metadata.transact(attempt.ops)
            return True
        except TransactionLost:
            if not unknown:
                return False
            # The first sending may be what took the version: look, never assume.
        except OutcomeUnknown as error:
            unknown = True
            logger.info(
                "topic=%s commit=%d: outcome unknown, resolving: %s",
                log.topic.name,
                attempt.commit.number,
                error,
            )
        outcome = _resolve(log, attempt, deadline)
        if outcome is not None:
            return outcome


def _resolve(log: Log, attempt: _Attempt, deadline: Deadline) -> bool | None:
    """Was it applied? None: it was not, and can still be, so send the same again."""
    while True:
        try:
            view = log.refresh(sync=True)
        except Unavailable:
            if deadline.passed:
                raise OutcomeUnknown(
                    f"topic '{log.topic.name}': commit {attempt.commit.number} was sent, and ZooKeeper does not answer "
                    "any more. It may or may not be in the log; a retry with the same sequence id is safe"
                ) from None
            log.clock.sleep(log.clock.jitter(0.2))
            continue
        if view.version == attempt.version:
            if deadline.passed:
                raise OutcomeUnknown(
                    f"topic '{log.topic.name}': commit {attempt.commit.number} was sent again and again, never "
                    "answered. It may still be applied; a retry with the same sequence id is safe"
                )
            return None
        # The version has moved on: an attempt that is not in the log by now can never be.
        if view.head.next_commit <= attempt.commit.number:
            return False
        return log.commit(view, attempt.commit.number).id == attempt.commit.id


def _done(log: Log, attempt: _Attempt) -> Appended:
    view = log.view()
    if view.version == attempt.version:
        log.committed(attempt.head, attempt.version + 1, attempt.commit)
    commit = attempt.commit
    logger.info(
        "committed topic=%s commit=%d position=%d:%d:0 records=%d bytes=%d producer=%s sequence=%s",
        log.topic.name, commit.number, commit.ledger, commit.first_entry, commit.records, commit.bytes,
        commit.producer, commit.sequence,
    )  # fmt: skip
    return Appended(Position(commit.ledger, commit.first_entry, 0), commit.records, False, commit.publish_ms)


def _replayed(log: Log, view: View, batch: Batch) -> Appended:
    logger.info("replayed topic=%s producer=%s: already in the log, nothing added", log.topic.name, batch.claim)
    return Appended(view.head.end, 0, True, view.head.last_publish_ms)
