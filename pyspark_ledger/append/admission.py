"""What of a batch may be appended: everything, or what its batch id, its records' ids or its tokens allow.

An admission decides from one version of the topic's head. If the head still has that version when the commit arrives,
the decision was right. If not, the commit is refused, and the admission is asked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.append.loose import Loose
from pyspark_ledger.dedup.batch_ids import BatchId, is_replay
from pyspark_ledger.dedup.producers import Producers
from pyspark_ledger.dedup.record_ids import RecordIds
from pyspark_ledger.errors import Conflict, Fenced, InvalidInput
from pyspark_ledger.files import mask
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import Op
from pyspark_ledger.metadata.records import Entry
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.spending import Spending


@dataclass(frozen=True, slots=True)
class TopicState:
    """The topic at one version of its head, and the producers' state that belongs to it."""

    log: Log
    view: View
    producers: Producers

    @property
    def name(self) -> str:
        return self.log.topic.name


@dataclass(frozen=True, slots=True)
class Verdict:
    """What of a batch becomes visible, and what that adds to its commit and to its transaction."""

    entries: tuple[Entry, ...]  # with a mask where rows are left out
    dropped: int = 0  # records that are left out, because the log has them or their tokens are gone
    is_duplicate: bool = False  # nothing of the batch is new: there is no commit
    # What the commit says about where the batch comes from:
    sequence: int | None = None
    query: str = ""
    run: str = ""
    digest: bytes = b""
    sequence_column: str = ""
    producer_column: str = ""
    highest: pa.Table | None = None  # (producer, sequence, slot in the state) of every producer whose last id rises
    lowest: int | None = None  # the lowest of the records' ids, if they are all of one producer, and it is known
    forgets_producer: bool = False
    token_ops: Sequence[Op] = ()  # operations of the same transaction, which consume the tokens of what is appended


class Admission(Protocol):
    """Decides what of a batch may be appended."""

    def judge(self, batch: StagedBatch, topic: TopicState) -> Verdict:
        """The verdict. Raises a LedgerError if the batch is refused."""
        ...

    def committed(self) -> None:
        """Called when the last verdict is in the log."""
        return

    def lost(self) -> None:
        """Called when somebody else was faster: the commit was refused, and the batch is judged again."""
        return


class AdmitAll(Admission):
    """For a batch that brings no ids and no tokens."""

    def judge(self, batch: StagedBatch, topic: TopicState) -> Verdict:
        return Verdict(batch.entries)


ADMIT_ALL = AdmitAll()


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """What a writer wants to append: its files are durable, and no commit names them yet; or it is one entry of few
    records that no file has yet. Entries are in the order in which they will be read."""

    id: bytes
    entries: tuple[Entry, ...] = ()
    schema: pa.Schema | None = None  # canonical; None if the topic's schema was used as it is
    merge_schema: bool = False
    producer: str = ""
    mints: bool = False  # its records get tokens
    admission: Admission = ADMIT_ALL
    loose: Loose | None = None  # its records, if no file has them

    @property
    def records(self) -> int:
        return sum(entry.records for entry in self.entries)


@dataclass(frozen=True, slots=True)
class ByBatchId(Admission):
    """The batch has a sequence id: it is new, or it is its producer's last batch again."""

    id: BatchId
    skipped_rows: int | None = None  # tasks took the batch for a replay and wrote no files: the rows that they counted

    def judge(self, batch: StagedBatch, topic: TopicState) -> Verdict:
        check_deduplicates(topic.log)
        topic.producers.check_not_evicted([batch.producer], topic.name)
        rows = batch.records if self.skipped_rows is None else self.skipped_rows
        if is_replay(topic.producers.get(batch.producer), self.id, rows, topic.name):
            return Verdict((), is_duplicate=True)
        if self.skipped_rows is not None:
            raise Conflict(
                f"topic '{topic.name}': producer '{batch.producer}' was forgotten while its batch {self.id.sequence} "
                "was replayed: run the batch again",
                "LEDGER_RETRY",
            )
        id = self.id
        return Verdict(batch.entries, sequence=id.sequence, query=id.query, run=id.run, digest=id.digest)


@dataclass(frozen=True, slots=True)
class ByRecordIds(Admission):
    """Every record has a sequence id: those above their producer's last id are new."""

    ids: RecordIds
    left_out: int = 0  # records that tasks did not write, because they are at or below the known ids
    known: pa.Table | None = None  # the ids (producer, sequence) that tasks have relied on to be in the log
    exclusive: bool = False  # none of the ids can be in the log, unless somebody else uses the producer's name

    def judge(self, batch: StagedBatch, topic: TopicState) -> Verdict:
        check_deduplicates(topic.log)
        self._check_still_known(topic)
        new = self.ids.new_records(batch.entries, topic.producers, topic.name)
        if new.dropped and self.exclusive:
            raise Fenced(
                f"another producer writes to topic '{topic.name}' with the name '{batch.producer}', and has used "
                "sequence ids that this one was about to use: this one must stop; nothing was changed. Give each its "
                "own name",
                "LEDGER_PRODUCER_FENCED",
            )
        columns = self.ids.columns
        return Verdict(
            new.entries,
            new.dropped + self.left_out,
            is_duplicate=not new.entries,
            sequence_column=columns.sequence,
            producer_column=columns.producer_column,
            highest=new.highest,
            lowest=self.ids.lowest,
        )

    def _check_still_known(self, topic: TopicState) -> None:
        """Refuses the batch if a producer was forgotten since: then the records that tasks left out are new again."""
        if not self.left_out or self.known is None:
            return
        now = topic.producers.look_up(self.known["producer"].combine_chunks(), topic.name)["last"]
        if not pc.all(pc.fill_null(pc.greater_equal(now, self.known["sequence"]), False)).as_py():
            raise Conflict(
                f"topic '{topic.name}': a producer was forgotten while a batch with its records was written: run it "
                "again",
                "LEDGER_RETRY",
            )


class ByTokens(Admission):
    """Every record has a token, which is consumed in the same transaction; a record whose token is gone is left out.
    ``runs[i]`` are the tokens of the batch's entry i."""

    def __init__(self, groups: Groups, runs: Sequence[pa.Table], *, fan_out: bool = False) -> None:
        self._groups, self._runs, self._fan_out = groups, runs, fan_out
        self._spending: Spending | None = None

    def judge(self, batch: StagedBatch, topic: TopicState) -> Verdict:
        def take(spending: Spending) -> tuple[Spending, tuple[Entry, ...]]:
            return spending, tuple(kept_by_tokens(spending, batch.entries, self._runs, fan_out=self._fan_out))

        self._spending, entries = Spending.decide(self._groups, take)
        dropped = batch.records - sum(entry.kept for entry in entries)
        return Verdict(entries, dropped, is_duplicate=not entries, token_ops=self._spending.ops())

    def committed(self) -> None:
        assert self._spending is not None
        self._spending.committed()

    def lost(self) -> None:
        self._groups.reload()  # perhaps somebody else has consumed tokens


def kept_by_tokens(
    spending: Spending, entries: Sequence[Entry], runs: Sequence[pa.Table], *, fan_out: bool
) -> Iterator[Entry]:
    """Takes the tokens of entries: those that are left of them, with masks for records whose tokens are gone."""
    for entry, tokens in zip(entries, runs, strict=True):
        present = spending.take(tokens, fan_out=fan_out)
        kept = entry if present is None else mask.cut(entry, present)
        if kept is not None:
            yield kept


class ForgetProducer(Admission):
    """The batch has no records: its commit forgets its producer."""

    def judge(self, batch: StagedBatch, topic: TopicState) -> Verdict:
        return Verdict((), forgets_producer=True)


def check_deduplicates(log: Log) -> None:
    """Raises InvalidInput if the topic's or the namespace's policy says that sequence ids are not checked."""
    if not log.deduplicates():
        raise InvalidInput(
            f"deduplication is off for topic '{log.topic.name}', by its own policy or its namespace's: write with "
            "option deduplication=none (a Python producer without a name and without sequence ids), or turn it on with "
            f"'pyspark-ledger topics config set {log.topic.name} --deduplication true'",
            "LEDGER_DEDUPLICATION_OFF",
        )
