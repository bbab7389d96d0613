"""Writing from Python: every flush is one commit with one entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pyspark_ledger.append.admission import ByRecordIds, StagedBatch, check_deduplicates
from pyspark_ledger.append.append import STAGED_TOO_LONG_AGO, AppendResult, append
from pyspark_ledger.base.position import Position
from pyspark_ledger.dedup.id_ranges import IdColumns, IdRanges
from pyspark_ledger.dedup.record_ids import RecordIds
from pyspark_ledger.errors import Conflict, InvalidInput, LedgerError, OutcomeUnknown
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.files.mask import unpack
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.records import Entry

FLUSH_ROWS = 10_000
FLUSH_BYTES = 16 << 20
_STAGINGS = 5
FRESH_S = 5.0  # how old the cached head may be when a file is staged under its gc epoch
COMPRESSIONS: dict[str, str | None] = {"lz4": "lz4", "zstd": "zstd", "none": None}


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a record is in the log, or that it was there before.

    Attributes:
        sequence_id: the record's sequence id; None if its producer does not number records.
        position: where the record is; None if it is a duplicate.
        duplicate: True if the log had a record with this sequence id before, so that nothing was added.
    """

    sequence_id: int | None
    position: Position | None
    duplicate: bool = False


class Receipt:
    """What :meth:`Producer.send` returns for a record that is not in the log yet. After the flush it says where the
    record is.

    >>> with client.producer("orders") as producer:
    ...     receipt = producer.send({"order_id": 4, "amount": 1.0})
    ...     receipt.done()
    ...     receipt.result()
    False
    Sent(sequence_id=None, position=Position(ledger=0, entry=1, index=0), duplicate=False)
    """

    __slots__ = ("_producer", "_sent", "_sequence_id")

    def __init__(self, producer: Producer, sequence_id: int | None, sent: Sent | None = None) -> None:
        self._producer, self._sequence_id, self._sent = producer, sequence_id, sent

    @property
    def sequence_id(self) -> int | None:
        """The record's sequence id; None if its producer does not number records."""
        return self._sequence_id

    def done(self) -> bool:
        """Whether the record is known to be in the log. Does not wait."""
        return self._sent is not None

    def result(self) -> Sent:
        """Where the record is; flushes the producer first if the record is not in the log yet.

        Raises what :meth:`Producer.flush` raises, and may be called again after that; InvalidInput
        (LEDGER_DISCARDED) if :meth:`Producer.discard` has dropped the record."""
        if self._sent is None:
            self._producer.flush()
        if self._sent is None:
            raise InvalidInput("the record was discarded before it was in the log", "LEDGER_DISCARDED")
        return self._sent

    def _confirm(self, sent: Sent) -> None:
        self._sent = sent


@dataclass(slots=True)
class _Unconfirmed:
    """Records that were sent and are not known to be in the log, in the order in which they were sent."""

    records: list[Mapping[str, Any]] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    bytes: int = 0
    arrow: list[pa.RecordBatch] = field(default_factory=list)  # instead of records
    tried: bool = False  # a flush failed with an unknown outcome: the records may be in the log


class Producer:
    """Writes records to a topic, many in one commit. Made by ``client.producer(topic, name)``.

    Records are gathered, and appended by :meth:`flush`, by :meth:`close`, and whenever 10,000 of them or about 16 MB
    are waiting. When a flush has returned, everything sent before it is in the log, once.

    A producer with a name, or whose records bring their own sequence ids, is deduplicated: a flush that failed may be
    repeated, by this process or by its successor with the same name, and adds nothing twice. Sequence ids say what
    happened to a record (PIP-6): up to ``last_sequence_id`` it is in the log; from there to the last one sent it may
    be, and the next flush finds out.

    It is for one thread at a time. Use it with ``with``: the end of the block flushes, unless an exception ended it.

    >>> with client.producer("orders", name="web") as producer:
    ...     first = producer.send({"order_id": 4, "amount": 12.0})
    ...     second = producer.send({"order_id": 5, "amount": 3.5})
    >>> second.result()
    Sent(sequence_id=1, position=Position(ledger=0, entry=1, index=1), duplicate=False)

    After a crash, a producer with the same name continues where the last one stopped:

    >>> client.producer("orders", name="web").last_sequence_id
    1
    """

    def __init__(
        self,
        log: Log,
        *,
        name: str | None = None,
        initial_sequence_id: int | None = None,
        compression: str = "lz4",
        mint_tokens: bool = False,
    ) -> None:
        if compression not in COMPRESSIONS:
            raise InvalidInput(f"compression '{compression}' is not one of {', '.join(COMPRESSIONS)}")
        if name is not None and not name.strip():
            raise InvalidInput("the producer's name is empty", "LEDGER_INVALID_NAME")
        self._log = log
        self._name = name or f"producer-{log.clock.new_id().hex()}"
        self._compression = COMPRESSIONS[compression]
        self._mints = mint_tokens
        self._numbered = name is not None or initial_sequence_id is not None
        self._explicit: bool | None = None  # whether the application brings ids: decided by the first record
        self._persisted: int | None = self._recover() if self._numbered else None  # the last id known to be in the log
        self._pushed = self._start_at(initial_sequence_id)  # the last id that was sent
        self._waiting = _Unconfirmed()
        self._in_doubt: LedgerError | None = None
        self._closed = False

    def _recover(self) -> int | None:
        """The last id of this producer in the log: where it continues after a crash."""
        self._log.refresh(sync=True)
        view, producers = self._log.producers()
        check_deduplicates(self._log, view)
        return producers.last_sequence(self.name, self._log.topic.name)

    def _start_at(self, initial: int | None) -> int | None:
        if initial is None:
            return self._persisted
        if self._persisted is not None and initial <= self._persisted:
            raise InvalidInput(
                f"initial_sequence_id is {initial}, but producer '{self.name}' has written {self._persisted} to topic "
                f"'{self._log.topic.name}' already: leave it out to go on after that, or give sequence_id with each "
                "record to have old ones recognised",
                "LEDGER_SEQUENCE_BEHIND",
            )
        return initial - 1

    @property
    def name(self) -> str:
        """The producer's name: as given, or a unique one."""
        return self._name

    @property
    def last_sequence_id(self) -> int | None:
        """The highest sequence id of this producer that is known to be in the log; None if there is none, or if it
        does not number records."""
        return self._persisted

    # -- sending -------------------------------------------------------------------------------------------

    def send(self, record: Mapping[str, Any], sequence_id: int | None = None) -> Receipt:
        """Takes one record, to be written by the next flush, and returns a :class:`Receipt`.

        ``record`` is a mapping of columns to values; a column that is left out is null. ``sequence_id`` is the
        record's number in its source, such as an offset in a file: ids must rise, gaps are fine, and either all records
        of a producer bring one or none. A record whose id is in the log already is recognised as a duplicate.

        Raises InvalidInput if the record has a column that the topic has not, if the id is not above the last one
        (LEDGER_SEQUENCE_BEHIND), or if the producer is closed; and what :meth:`flush` raises, if it is time for
        one."""
        self._check_open()
        schemas.check_columns(self._schema(), record, self._log.topic.name)
        self._check_mode(sequence_id)
        if sequence_id is not None and self._pushed is not None and sequence_id <= self._pushed:
            return self._sent_before(sequence_id)
        if self._numbered:
            self._pushed = (
                sequence_id if sequence_id is not None else (-1 if self._pushed is None else self._pushed) + 1
            )
        receipt = Receipt(self, self._pushed)
        self._waiting.records.append(record)
        self._waiting.receipts.append(receipt)
        self._waiting.bytes += sum(len(value) for value in record.values() if isinstance(value, str | bytes))
        if len(self._waiting.records) >= FLUSH_ROWS or self._waiting.bytes >= FLUSH_BYTES:
            self.flush()
        return receipt

    def _sent_before(self, sequence_id: int) -> Receipt:
        if self._persisted is not None and sequence_id <= self._persisted:
            return Receipt(self, sequence_id, Sent(sequence_id, None, duplicate=True))
        # Sent and not confirmed yet: both callers get the same receipt.
        for receipt in reversed(self._waiting.receipts):
            if receipt.sequence_id == sequence_id:
                return receipt
        raise InvalidInput(
            f"sequence id {sequence_id} comes after {self._pushed}: the ids of a producer must rise, a lower one would "
            "be taken for a duplicate",
            "LEDGER_SEQUENCE_BEHIND",
        )

    def send_batch(self, batch: pa.RecordBatch | pa.Table) -> AppendResult:
        """Appends an Arrow batch or table at once, in one commit, after the records that are waiting. Returns where it
        is: an :class:`~pyspark_ledger.append.append.AppendResult`.

        >>> with client.producer("orders") as producer:
        ...     done = producer.send_batch(pa.table({"order_id": [4, 5], "amount": [1.0, 2.0]}))
        >>> str(done.start), done.records
        ('0:1:0', 2)

        Raises InvalidInput if the data has no rows, does not fit the topic's schema, or the producer takes sequence ids
        with each record; and what :meth:`flush` raises: then the data is waiting for the next flush."""
        self._check_open()
        self._check_mode(None)
        self.flush()
        if not batch.num_rows:
            raise InvalidInput("there is no row in the batch")
        target = self._target(batch.schema)
        batches = [batch] if isinstance(batch, pa.RecordBatch) else batch.to_batches()
        self._waiting.arrow = [schemas.conform(part, target) for part in batches]
        self._pushed = self._next_id + batch.num_rows - 1 if self._numbered else None
        appended = self.flush()
        assert appended is not None
        return appended

    def flush(self) -> AppendResult | None:
        """Returns when everything sent so far is in the log. The result says where; None if nothing was waiting.

        If it raises, the records are still waiting: flush again, or :meth:`discard` them. Raises InvalidInput if a
        record does not fit the topic's schema; Fenced (LEDGER_PRODUCER_FENCED) if another producer writes with this
        name; Unavailable if ZooKeeper or the storage does not answer; OutcomeUnknown if the records may or may not be
        in the log. After that, a producer that numbers records may flush again; one that does not refuses, because the
        records could then be in the log twice."""
        self._check_open()
        if self._in_doubt is not None:
            raise self._in_doubt
        waiting = self._waiting
        if not waiting.records and not waiting.arrow:
            return None
        batches = waiting.arrow or [schemas.from_records(waiting.records, self._schema(), self._log.topic.name)]
        appended = self._append(batches, self._ids(waiting))
        self._waiting = _Unconfirmed()
        self._persisted = self._pushed
        _confirm(waiting.receipts, appended)
        return appended

    def _ids(self, waiting: _Unconfirmed) -> pa.Array | None:
        if not self._numbered:
            return None
        if waiting.arrow:
            return pa.arange(self._next_id - sum(batch.num_rows for batch in waiting.arrow), self._next_id)
        return pa.array([receipt.sequence_id for receipt in waiting.receipts], pa.int64())

    @property
    def _next_id(self) -> int:
        return 0 if self._pushed is None else self._pushed + 1

    def discard(self) -> None:
        """Forgets the records that are waiting: the way to go on after a record that does not fit.

        Records of a flush with an unknown outcome may be in the log all the same. If they have sequence ids and are
        sent again, they are recognised."""
        self._waiting = _Unconfirmed()
        self._in_doubt = None
        if self._numbered:
            self._persisted = self._pushed = self._recover()

    def close(self) -> None:
        """Flushes, and refuses further records. Raises what :meth:`flush` raises, and then the producer stays open.
        Closing twice is fine."""
        if not self._closed:
            self.flush()
            self._closed = True

    # -- appending -----------------------------------------------------------------------------------------

    def _append(self, batches: list[pa.RecordBatch], ids: pa.Array | None) -> AppendResult:
        target = self._target(batches[0].schema)
        for attempt in range(_STAGINGS):
            try:
                return self._try_append([schemas.conform(batch, target) for batch in batches], target, ids)
            except OutcomeUnknown as error:
                self._waiting.tried = True
                if self._numbered:
                    raise
                # Sending it again could put it into the log twice.
                self._in_doubt = OutcomeUnknown(
                    f"{error.message}. Nobody can tell a second copy from the first, because this producer has no "
                    "name: give producers a name to make retries safe, or discard() and go on",
                )
                raise self._in_doubt from None
            except Conflict as conflict:  # gc ran twice since the file was staged
                if conflict.code != STAGED_TOO_LONG_AGO or attempt == _STAGINGS - 1:
                    raise
                self._log.refresh(sync=True)
        raise AssertionError("not reached")

    def _try_append(self, batches: list[pa.RecordBatch], target: pa.Schema, ids: pa.Array | None) -> AppendResult:
        commit_id = self._log.clock.new_id()
        if ids is None:
            entry = self._stage(batches)
            return append(self._log, StagedBatch(commit_id, (entry,), target, producer=self.name, mints=self._mints))
        columns = IdColumns(schemas.SEQUENCE, producer=self.name)
        numbered = schemas.with_sequence(batches, ids)
        entry = self._stage(numbered)
        ranges = IdRanges(columns)
        for batch in numbered:
            ranges.add(batch)
        record_ids = RecordIds(columns, [ranges.table()], self._log.storage, self._log.topic.uuid)
        return append(
            self._log,
            StagedBatch(
                commit_id,
                (entry,),
                target,
                producer=self.name,
                mints=self._mints,
                admission=ByRecordIds(record_ids, exclusive=not self._explicit and not self._waiting.tried),
            ),
        )

    def _stage(self, batches: list[pa.RecordBatch]) -> Entry:
        log = self._log
        epoch = log.view(FRESH_S).head.gc_epoch
        return stage_entry(log.storage, log.topic.uuid, epoch, batches, self._compression, log.clock)

    def _target(self, schema: pa.Schema) -> pa.Schema:
        incoming = schemas.canonical(schema)
        return schemas.written(schemas.merge(self._schema(), incoming, may_add=False), incoming)

    def _schema(self) -> pa.Schema:
        return self._log.schema(self._log.view().head.schema_id)

    def _check_mode(self, sequence_id: int | None) -> None:
        explicit = sequence_id is not None
        if self._explicit is None:
            if explicit and not self._numbered:
                self._persisted = self._pushed = self._recover()
                self._numbered = True
            self._explicit = explicit
        if explicit != self._explicit:
            raise InvalidInput(
                "either all records of a producer bring a sequence id or none: the first one "
                f"{'did' if self._explicit else 'did not'}",
                "LEDGER_MIXED_SEQUENCE_IDS",
            )

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("this producer is closed", "LEDGER_CLOSED")

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
        self._closed = True


def _confirm(receipts: list[Receipt], appended: AppendResult) -> None:
    """Tells every receipt of a flush where its record is. A flush is at most one commit with one entry."""
    kept = None
    if appended.dropped:
        entry = next(iter(appended.entries), None)
        kept = unpack(entry.mask, entry.records).to_pylist() if entry else [False] * len(receipts)
    start = appended.start
    for index, receipt in enumerate(receipts):
        if kept is None or kept[index]:
            receipt._confirm(Sent(receipt.sequence_id, Position(start.ledger, start.entry, index)))
        else:
            receipt._confirm(Sent(receipt.sequence_id, None, duplicate=True))
