"""The one append protocol, for the Spark sink, the batch writer and the Python producer.

Files are staged and durable before this module is called. It decides from one version of the head, commits in
one multi, and when the answer is lost it finds out what happened. It never guesses (I14), and it never
deletes a file: only gc does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.position import Position
from pyspark_ledger.dedup import producers as dedup
from pyspark_ledger.dedup.record_ids import Accepted, RecordIds
from pyspark_ledger.errors import Conflict, DataLoss, Fenced, InvalidInput, LedgerError
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.log import seal
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import CommitKey, Create, HeadKey, Op, Put, SchemaKey
from pyspark_ledger.metadata.records import Commit, Entry, FileRef, Head, Schema
from pyspark_ledger.metadata.transactions import carry_out
from pyspark_ledger.tokens.spending import TokenClaims

logger = logging.getLogger(__name__)

STAGED_TOO_LONG_AGO = "LEDGER_STAGED_TOO_LONG_AGO"


@dataclass(frozen=True, slots=True)
class Batch:
    """What a writer wants to make visible at once. Entries are in the order in which they will be read."""

    id: bytes
    entries: tuple[Entry, ...] = ()
    schema: pa.Schema | None = None  # canonical; None if the topic's schema was used as it is
    merge_schema: bool = False
    claim: dedup.Claim | None = None  # the batch has a sequence id
    ids: RecordIds | None = None  # its records have
    exclusive: bool = False  # none of those ids can be in the log, unless somebody else uses the producer's name
    producer: str = ""  # for a writer that brings no sequence id
    expects_replay: bool = False  # the writer knew the sequence id, and wrote no files
    counted: int | None = None  # the records it saw, if it had to count them
    dropped: int = 0  # duplicates that were not even staged,
    known: pa.Table | None = None  # because of these last ids
    forget: bool = False
    mints: bool = False  # its records get tokens
    tokens: TokenClaims | None = None  # its records bring tokens, which are consumed

    @property
    def records(self) -> int:
        return sum(entry.records for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where the batch is in the log. For a duplicate, nothing was added."""

    start: Position
    records: int
    duplicate: bool
    publish_ms: int
    dropped: int = 0  # records that were in the log already
    entries: tuple[Entry, ...] = ()  # as they were added, with their masks


@dataclass(frozen=True, slots=True)
class Attempt:
    """One transaction, or a topic's part in one, and what must be known to tell later whether it was applied."""

    version: int
    head: Head
    commit: Commit
    ops: tuple[Op, ...]


class _SideFiles:
    """What is too long for the commit's node. Staged once, however often the commit is tried."""

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


def append(log: Log, batch: Batch) -> Appended:
    deadline = Deadline(log.clock, log.limits.append_deadline_s)
    side_files = _SideFiles(log)
    looked_again = False
    while True:
        view, producers = log.producers()
        if seal.is_full(log, view):
            seal.seal(log)
            continue
        try:
            if batch.claim is not None or batch.ids is not None:
                check_allowed(log, view)
            if batch.claim is not None and _is_replay(producers, batch, batch.claim, log.topic.name):
                return _replayed(log, view, batch)
            accepted = Accepted(batch.entries)
            if batch.ids is not None:
                _check_still_known(producers, batch, log.topic.name)
                accepted = batch.ids.judge(producers, log.topic.name)
                if accepted.dropped and batch.exclusive:
                    raise _name_in_use(batch.producer, log.topic.name)
                if not accepted.entries:
                    return _all_duplicates(log, view, batch)
            spent: Sequence[Op] = ()
            if batch.tokens is not None:
                accepted, spent = batch.tokens.judge()
                if not accepted.entries:
                    return _all_duplicates(log, view, batch)
            attempt = _decide(log, view, batch, accepted, side_files, spent)
        except LedgerError:
            if looked_again:
                raise
            log.refresh(sync=True)  # a wrong yes is caught by the head's version, a wrong no only here
            looked_again = True
            continue
        if _try_commit(log, batch, attempt, deadline):
            if batch.tokens is not None:
                batch.tokens.committed()
            return _done(log, attempt, accepted)
        if batch.tokens is not None:
            batch.tokens.lost()
        log.clock.sleep(log.clock.jitter(0.002))
        log.refresh()


def prepare(log: Log, batch: Batch) -> Attempt:
    """A topic's part in a transaction over several, for batches without ids and tokens. Before another try,
    ``log.refresh()``."""
    view = log.view()
    while seal.is_full(log, view):
        view = seal.seal(log)
    return _decide(log, view, batch, Accepted(batch.entries), _SideFiles(log), ())


def done(log: Log, attempt: Attempt) -> Appended:
    """It was applied."""
    return _done(log, attempt, Accepted(attempt.commit.entries))


def _check_still_known(producers: dedup.Producers, batch: Batch, topic: str) -> None:
    """Ids only rise, unless a producer is let go: then what its tasks left out is not old any more."""
    if batch.dropped and batch.known is not None:
        now = producers.look_up(batch.known["producer"].combine_chunks(), topic)["last"]
        if not pc.all(pc.fill_null(pc.greater_equal(now, batch.known["sequence"]), False)).as_py():
            raise Conflict(
                f"topic '{topic}': a producer was let go while a batch with its records was written: run it again",
                "LEDGER_RETRY",
            )


def _name_in_use(producer: str, topic: str) -> Fenced:
    return Fenced(
        f"another producer writes to topic '{topic}' with the name '{producer}', and has used sequence ids that this "
        "one was about to use: this one must stop; nothing was changed. Give each its own name",
        "LEDGER_PRODUCER_FENCED",
    )


def check_allowed(log: Log, view: View) -> None:
    if not log.deduplicates(view):
        raise InvalidInput(
            f"deduplication is off for topic '{log.topic.name}', by its own policy or its namespace's: write with "
            "option deduplication=none (a Python producer without a name and without sequence ids), or turn it on with "
            f"client.set_policies('{log.topic.name}', deduplication=True)",
            "LEDGER_DEDUPLICATION_OFF",
        )


def _is_replay(producers: dedup.Producers, batch: Batch, claim: dedup.Claim, topic: str) -> bool:
    counted = batch.counted if batch.expects_replay else batch.records
    producers.check_not_evicted([claim.producer], topic)
    verdict = dedup.judge(producers.get(claim.producer), claim, counted, topic)
    if verdict is dedup.Verdict.NEW and batch.expects_replay:
        raise Conflict(
            f"topic '{topic}': producer '{claim.producer}' was let go while its batch {claim.sequence} was replayed: "
            "run the batch again",
            "LEDGER_RETRY",
        )
    return verdict is dedup.Verdict.REPLAY


def _decide(
    log: Log, view: View, batch: Batch, accepted: Accepted, side_files: _SideFiles, more: Sequence[Op]
) -> Attempt:
    head = view.head
    check_epochs(head, (entry.file for entry in accepted.entries))
    entries_file = side_files.entries(accepted.entries, head.gc_epoch)
    highest_file = side_files.highest(accepted.highest, head.gc_epoch)
    check_epochs(head, (file for file in (entries_file, highest_file) if file is not None))
    schema_id, schema_ops = _decide_schema(log, head, batch)
    claim, columns = batch.claim, batch.ids.columns if batch.ids else None
    commit = Commit(
        number=head.next_commit,
        id=batch.id,
        ledger=head.ledger,
        first_entry=head.next_entry,
        entry_count=len(accepted.entries),
        records=sum(entry.kept for entry in accepted.entries),
        bytes=sum(entry.bytes for entry in accepted.entries),
        records_before=head.records,
        bytes_before=head.bytes,
        publish_ms=max(head.last_publish_ms, log.clock.now_ms()),
        schema_id=schema_id,
        entries=() if entries_file else accepted.entries,
        entries_file=entries_file,
        producer=claim.producer if claim else batch.producer,
        query=claim.query if claim else "",
        run=claim.run if claim else "",
        sequence=claim.sequence if claim else None,
        digest=claim.digest if claim else b"",
        forget=batch.forget,
        sequence_column=columns.sequence if columns else "",
        producer_column=columns.producer_column if columns else "",
        highest=() if accepted.highest is None or highest_file else _pairs(accepted.highest),
        highest_file=highest_file,
        dropped=accepted.dropped + batch.dropped,
        mints=batch.mints,
        tokens_before=head.tokens,
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
        tokens=head.tokens + (commit.records if batch.mints else 0),
    )
    ops = (
        Put(HeadKey(head.uuid), after, view.version),
        Create(CommitKey(head.uuid, commit.ledger, commit.number), commit),
        *schema_ops,
        *more,
    )
    return Attempt(view.version, after, commit, ops)


def _pairs(highest: pa.Table) -> tuple[tuple[str, int], ...]:
    return tuple(zip(highest["producer"].to_pylist(), highest["sequence"].to_pylist(), strict=True))


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


def _try_commit(log: Log, batch: Batch, attempt: Attempt, deadline: Deadline) -> bool:
    try:
        return _commit(log, attempt, deadline)
    except InvalidInput as error:
        if error.code != "LEDGER_TOO_LARGE" or batch.tokens is None:
            raise
        raise InvalidInput(
            f"topic '{log.topic.name}': the tokens of this batch are in too many places to be consumed at once: "
            f"{error.message}. Write smaller batches (maxRowsPerTrigger of the source), or mint tokens in blocks, with "
            "mint(1000) instead of a thousand mint(1)",
            error.code,
        ) from None


def _commit(log: Log, attempt: Attempt, deadline: Deadline) -> bool:
    """True if the attempt is in the log, False if it is not and never will be."""

    def look() -> bool | None:
        view = log.refresh(sync=True)
        if view.version == attempt.version:
            return None
        # The version has moved on: an attempt that is not in the log by now can never be.
        if view.head.next_commit <= attempt.commit.number:
            return False
        return log.commit(view, attempt.commit.number).id == attempt.commit.id

    what = f"topic '{log.topic.name}': commit {attempt.commit.number}"
    return carry_out(log.metadata, attempt.ops, look, what, deadline, log.clock)


def _done(log: Log, attempt: Attempt, accepted: Accepted) -> Appended:
    view = log.view()
    if view.version == attempt.version:
        log.committed(attempt.head, attempt.version + 1, attempt.commit, accepted.highest)
    commit = attempt.commit
    logger.info(
        "committed topic=%s commit=%d position=%d:%d:0 records=%d bytes=%d producer=%s sequence=%s dropped=%d",
        log.topic.name, commit.number, commit.ledger, commit.first_entry, commit.records, commit.bytes,
        commit.producer, commit.sequence, commit.dropped,
    )  # fmt: skip
    start = Position(commit.ledger, commit.first_entry, 0)
    return Appended(start, commit.records, False, commit.publish_ms, commit.dropped, accepted.entries)


def _replayed(log: Log, view: View, batch: Batch) -> Appended:
    logger.info("replayed topic=%s producer=%s: already in the log, nothing added", log.topic.name, batch.claim)
    return Appended(view.head.end, 0, True, view.head.last_publish_ms)


def _all_duplicates(log: Log, view: View, batch: Batch) -> Appended:
    dropped = batch.records + batch.dropped
    logger.info("duplicates topic=%s dropped=%d: all are in the log already", log.topic.name, dropped)
    return Appended(view.head.end, 0, True, view.head.last_publish_ms, dropped)
