"""Writing from Python: every flush is one commit with one entry."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from pyspark_ledger.append.admission import ADMIT_ALL, ByRecordIds, StagedBatch, check_deduplicates
from pyspark_ledger.append.append import UnderWay, append, resolve
from pyspark_ledger.append.prepared import STAGED_TOO_LONG_AGO, AppendResult
from pyspark_ledger.append.record_check import RecordCheck
from pyspark_ledger.base.position import Position
from pyspark_ledger.dedup.id_ranges import IdColumns, IdRanges
from pyspark_ledger.dedup.record_ids import RecordIds
from pyspark_ledger.errors import Conflict, Fenced, InvalidInput, LedgerError, OutcomeUnknown, Unavailable
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.files.mask import unpack
from pyspark_ledger.log import folders
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.records import Entry

FLUSH_ROWS = 10_000
FLUSH_BYTES = 16 << 20
_STAGINGS = 5
FRESH_S = 5.0  # how old the cached head may be when a file is staged under its gc epoch
_LOWEST_ID, _HIGHEST_ID = -(1 << 63), (1 << 63) - 1
COMPRESSIONS: dict[str, str | None] = {"lz4": "lz4", "zstd": "zstd", "none": None}


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a record is in the log, and whether it was there before.

    Attributes:
        sequence_id: the record's sequence id; None if its producer does not number records.
        position: where the record is; None if it is a duplicate that this producer did not write.
        duplicate: True if the log had the record before, by an earlier try or from somebody else: nothing was added.
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
            try:
                self._producer.flush()
            except LedgerError:
                if self._sent is None:  # else it was about records that were sent later
                    raise
        if self._sent is None:
            raise InvalidInput("the record was discarded before it was in the log", "LEDGER_DISCARDED")
        return self._sent

    def _confirm(self, sent: Sent) -> None:
        self._sent = sent


@dataclass(slots=True)
class _Part:
    """Records that wait to be stored by one commit, in the order in which they were sent."""

    records: list[dict[str, Any]] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    bytes: int = 0
    arrow: list[pa.RecordBatch] = field(default_factory=list)  # instead of records
    last_id: int | None = None
    under_way: UnderWay | None = None  # it was sent, and nobody knows what became of it

    @property
    def takes_records(self) -> bool:
        return not self.arrow and self.under_way is None

    @property
    def is_full(self) -> bool:
        return len(self.records) >= FLUSH_ROWS or self.bytes >= FLUSH_BYTES

    def ids(self) -> pa.Array | None:
        if self.last_id is None:
            return None
        if self.arrow:
            return pa.arange(self.last_id + 1 - sum(batch.num_rows for batch in self.arrow), self.last_id + 1)
        return pa.array([receipt.sequence_id for receipt in self.receipts], pa.int64())


class Producer:
    """Writes records to a topic, many in one commit. Made by ``client.producer(topic, name)``.

    Records are gathered, and appended by :meth:`flush`, by :meth:`close`, and before it takes another one when 10,000
    of them or about 16 MB are waiting. When a flush has returned, everything sent before it is in the log, once. A
    flush that failed may be repeated and adds nothing twice: the producer knows its commit by an id, and finds out. If
    it has a name, or its records bring their own sequence ids, a successor may repeat it too.

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
        self._pushed = self._start_at(_checked_id(initial_sequence_id))  # the last id that was sent
        self._parts: deque[_Part] = deque()
        self._check: RecordCheck | None = None
        self._fenced: Fenced | None = None
        self._closed = False

    def _recover(self) -> int | None:
        """The last id of this producer in the log: where it continues after a crash."""
        self._log.refresh(sync=True)
        _, producers = self._log.producers()
        check_deduplicates(self._log)
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

        If it raises, this record was not taken, whatever became of those before it: correct it, or send it again. A
        record that was taken fits the topic. Raises InvalidInput if the record does not fit, if the id is not above the
        last one (LEDGER_SEQUENCE_BEHIND), or if the producer is closed; and what :meth:`flush` raises, if it is time
        for one."""
        self._check_usable()
        taken, size = self._checked(record)
        sequence_id = _checked_id(sequence_id)
        self._check_mode(sequence_id)
        if sequence_id is not None and self._pushed is not None and sequence_id <= self._pushed:
            return self._sent_before(sequence_id)
        if self._parts and self._parts[-1].is_full:
            self.flush()
        if not self._parts or not self._parts[-1].takes_records:
            self._parts.append(_Part())
        if self._numbered:
            self._pushed = self._next_id if sequence_id is None else sequence_id
        receipt = Receipt(self, self._pushed)
        part = self._parts[-1]
        part.records.append(taken)
        part.receipts.append(receipt)
        part.bytes += size
        part.last_id = self._pushed
        return receipt

    def _checked(self, record: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        schema = self._schema()
        if self._check is None or self._check.schema is not schema:
            self._check = RecordCheck(schema, self._log.topic.name)
        return self._check.take(record)

    def _sent_before(self, sequence_id: int) -> Receipt:
        if self._persisted is not None and sequence_id <= self._persisted:
            return Receipt(self, sequence_id, Sent(sequence_id, None, duplicate=True))
        # Sent and not confirmed yet: both callers get the same receipt.
        for receipt in chain.from_iterable(part.receipts for part in self._parts):
            if receipt.sequence_id == sequence_id:
                return receipt
        raise InvalidInput(
            f"sequence id {sequence_id} comes after {self._pushed}: the ids of a producer must rise, a lower one would "
            "be taken for a duplicate",
            "LEDGER_SEQUENCE_BEHIND",
        )

    def send_batch(self, batch: pa.RecordBatch | pa.Table) -> AppendResult:
        """Appends an Arrow batch or table at once, in one commit, after the records that are waiting. Returns where it
        is: an :class:`~pyspark_ledger.append.prepared.AppendResult`.

        >>> with client.producer("orders") as producer:
        ...     done = producer.send_batch(pa.table({"order_id": [4, 5], "amount": [1.0, 2.0]}))
        >>> str(done.start), done.records
        ('0:1:0', 2)

        If it raises OutcomeUnknown, the data is waiting, and the next flush finds out what became of it; after any
        other error it was not taken, and may be sent again. Raises InvalidInput if the data has no rows, does not fit
        the topic's schema, or the producer takes sequence ids with each record; and what :meth:`flush` raises."""
        self._check_usable()
        self._check_mode(None)
        if not batch.num_rows:
            raise InvalidInput("there is no row in the batch")
        target = self._target(batch.schema)
        batches = [batch] if isinstance(batch, pa.RecordBatch) else batch.to_batches()
        part = _Part(arrow=[schemas.conform(each, target) for each in batches])
        try:
            self.flush()
        except OutcomeUnknown as error:
            raise Unavailable(
                f"what was sent before is waiting, and what became of it is not known yet: {error.message}. This batch "
                "was not taken: send it again"
            ) from None
        before = self._pushed
        if self._numbered:
            self._pushed = part.last_id = self._next_id + batch.num_rows - 1
        self._parts.append(part)
        try:
            appended = self.flush()
        except LedgerError:
            if part.under_way is None:
                self._parts.remove(part)
                self._pushed = before
            raise
        assert appended is not None
        return appended

    def flush(self) -> AppendResult | None:
        """Returns when everything sent so far is in the log. The result says where; None if nothing was waiting.

        If it raises, the records are still waiting: flush again, or :meth:`discard` them. Raises Fenced
        (LEDGER_PRODUCER_FENCED) if another producer writes with this name; Unavailable if ZooKeeper or the storage does
        not answer; OutcomeUnknown if the records may or may not be in the log: the next flush finds out."""
        self._check_usable()
        appended = None
        while self._parts:
            part = self._parts[0]
            try:
                appended = self._settled(part) or self._append(part)
            except OutcomeUnknown as error:
                raise OutcomeUnknown(f"{error.message}. {self._way_on()}") from None
            self._parts.popleft()
            self._persisted = part.last_id
        return appended

    @property
    def _next_id(self) -> int:
        return 0 if self._pushed is None else self._pushed + 1

    def discard(self) -> None:
        """Forgets the records that are waiting.

        Records of a flush with an unknown outcome may be in the log all the same: their ids are not used for other
        records. A producer that was fenced goes on after the ids of the other one."""
        if self._numbered:
            self._persisted = self._pushed = self._recover()
            if not self._explicit:
                doubtful = [part.last_id for part in self._parts if part.under_way is not None]
                self._pushed = max((id for id in (self._persisted, *doubtful) if id is not None), default=None)
        self._parts.clear()
        self._fenced = None

    def close(self) -> None:
        """Flushes, and refuses further records. Raises what :meth:`flush` raises, and then the producer stays open.
        Closing twice is fine."""
        if not self._closed:
            self.flush()
            self._closed = True

    # -- appending -----------------------------------------------------------------------------------------

    def _way_on(self) -> str:
        way_on = "The records are waiting, and flush() finds out what became of them"
        if self._numbered:
            return way_on
        return (
            f"{way_on}. If this process ends before that, nobody can tell a second copy from the first, because this "
            "producer has no name: give producers a name to make that safe too"
        )

    def _settled(self, part: _Part) -> AppendResult | None:
        """Finds out whether an earlier flush, which failed, stored the part."""
        if part.under_way is None:
            return None
        appended = resolve(self._log, part.under_way)
        part.under_way = None
        if appended is not None:
            _confirm(part.receipts, appended)
        return appended

    def _append(self, part: _Part) -> AppendResult:
        batches = part.arrow or [schemas.from_records(part.records, self._schema(), self._log.topic.name)]
        target = self._target(batches[0].schema)
        batches = [schemas.conform(batch, target) for batch in batches]
        for attempt in range(_STAGINGS):
            try:
                appended = self._try_append(part, batches, target)
                _confirm(part.receipts, appended)
                return appended
            except Conflict as conflict:  # gc ran twice since the file was staged
                if conflict.code != STAGED_TOO_LONG_AGO or attempt == _STAGINGS - 1:
                    raise
                self._log.refresh(sync=True)
            except Fenced as error:
                self._fenced = error
                raise
            except (Unavailable, InvalidInput):  # nothing was sent
                part.under_way = None
                raise
        raise AssertionError("not reached")

    def _try_append(self, part: _Part, batches: list[pa.RecordBatch], target: pa.Schema) -> AppendResult:
        ids = part.ids()
        numbered = batches if ids is None else schemas.with_sequence(batches, ids)
        staged = StagedBatch(
            self._log.clock.new_id(),
            (self._stage(numbered),),
            target,
            producer=self.name,
            mints=self._mints,
            admission=ADMIT_ALL if ids is None else self._by_ids(numbered),
        )

        def under_way(prepared: UnderWay | None) -> None:
            part.under_way = prepared

        return append(self._log, staged, under_way)

    def _by_ids(self, batches: list[pa.RecordBatch]) -> ByRecordIds:
        columns = IdColumns(schemas.SEQUENCE, producer=self.name)
        ranges = IdRanges(columns)
        for batch in batches:
            ranges.add(batch)
        ids = RecordIds(columns, [ranges.table()], self._log.storage, self._log.topic.uuid)
        # Of its own commits a producer knows what became: numbers that it counted itself and that are in the log
        # without them are somebody else's.
        return ByRecordIds(ids, exclusive=not self._explicit)

    def _stage(self, batches: list[pa.RecordBatch]) -> Entry:
        log = self._log
        epoch = log.gc_epoch(FRESH_S)
        folders.prepare(log)
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

    def _check_usable(self) -> None:
        if self._closed:
            raise InvalidInput("this producer is closed", "LEDGER_CLOSED")
        if self._fenced is not None:
            raise self._fenced

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
        self._closed = True


def _checked_id(sequence_id: int | None) -> int | None:
    if sequence_id is None or (type(sequence_id) is int and _LOWEST_ID <= sequence_id <= _HIGHEST_ID):
        return sequence_id
    try:
        number = operator.index(sequence_id)
    except TypeError:
        number = None
    if number is None or isinstance(sequence_id, bool) or not _LOWEST_ID <= number <= _HIGHEST_ID:
        raise InvalidInput(f"the sequence id {sequence_id!r} is not a 64-bit integer", "LEDGER_INVALID_VALUE")
    return number


def _confirm(receipts: list[Receipt], appended: AppendResult) -> None:
    """Tells every receipt of a flush where its record is. A flush is at most one commit with one entry."""
    kept = None
    if appended.dropped:
        entry = next(iter(appended.entries), None)
        kept = unpack(entry.mask, entry.records).to_pylist() if entry else [False] * len(receipts)
    start = appended.start
    for index, receipt in enumerate(receipts):
        if kept is None or kept[index]:
            position = Position(start.ledger, start.entry, index)
            receipt._confirm(Sent(receipt.sequence_id, position, duplicate=appended.duplicate))
        else:
            receipt._confirm(Sent(receipt.sequence_id, None, duplicate=True))
