"""Writes records from Python: one flush, one entry, one commit."""

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
from pyspark_ledger.log import folders
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.records import Entry

FLUSH_ROWS = 10_000
FLUSH_BYTES = 16 << 20
_STAGINGS = 5
FRESH_S = 5.0  # how old the cached head may be when a file is staged under its gc epoch
COMPRESSIONS: dict[str, str | None] = {"lz4": "lz4", "zstd": "zstd", "none": None}


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a record: where it is, or that it was in the log already."""

    sequence_id: int | None
    position: Position | None
    duplicate: bool = False


class Receipt:
    """Says where one record is, once it was flushed; :meth:`result` flushes if that has not happened yet."""

    __slots__ = ("_producer", "_sent", "sequence_id")

    def __init__(self, producer: Producer, sequence_id: int | None, sent: Sent | None = None) -> None:
        self._producer, self.sequence_id, self._sent = producer, sequence_id, sent

    def done(self) -> bool:
        return self._sent is not None

    def result(self) -> Sent:
        """Returns when the record is in the log; raises what the flush raises, and may then be asked again."""
        if self._sent is None:
            self._producer.flush()
        if self._sent is None:
            raise InvalidInput("the record was discarded before it was in the log", "LEDGER_DISCARDED")
        return self._sent

    def _confirm(self, sent: Sent) -> None:
        self._sent = sent


@dataclass(slots=True)
class _Waiting:
    """Records that were sent and are not confirmed, in the order in which they were sent."""

    records: list[Mapping[str, Any]] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    bytes: int = 0
    arrow: list[pa.RecordBatch] = field(default_factory=list)  # instead of records
    tried: bool = False  # a flush failed: some of it may be in the log


class Producer:
    """Gathers records and appends them at :meth:`flush`, at :meth:`close`, and whenever 10,000 or about 16 MB of them
    are waiting. For one thread at a time.

    Everything sent before a flush returns is in the log, once; what was sent after the last flush is not yet. A
    producer with a name, or whose records bring their own sequence ids, is deduplicated: a flush that failed may be
    repeated, by this process or by its successor, and adds nothing twice.

    Two ids tell what has become of a record (PIP-6): at or below ``last_sequence_id`` it is in the log; above that and
    not above the last one sent it is under way, and a flush finds out; above both it is new.
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
        self.name = name or f"producer-{log.clock.new_id().hex()}"
        self._compression = COMPRESSIONS[compression]
        self._mints = mint_tokens
        self._numbered = name is not None or initial_sequence_id is not None
        self._explicit: bool | None = None  # whether the application brings ids: decided by the first record
        self._persisted: int | None = self._recover() if self._numbered else None
        self._pushed = self._start_at(initial_sequence_id)
        self._waiting = _Waiting()
        self._in_doubt: LedgerError | None = None
        self._closed = False

    def _recover(self) -> int | None:
        """The last id in the log, from the dedup state: what a producer needs to go on after a crash."""
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
    def last_sequence_id(self) -> int | None:
        """The highest id of this producer that is known to be in the log; None if there is none."""
        return self._persisted

    # -- sending -------------------------------------------------------------------------------------------

    def send(self, record: Mapping[str, Any], sequence_id: int | None = None) -> Receipt:
        """Takes one record, as column -> value; a column that is left out is null. Ids must rise, holes are fine; all
        records have one, or none."""
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
        """Appends Arrow data at once, in one commit, after what is waiting. If it raises, the data is waiting too."""
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
        """Returns when everything sent so far is in the log; None if there was nothing to do. If it raises, what was
        sent is still waiting: flush again, or :meth:`discard` it."""
        self._check_open()
        if self._in_doubt is not None:
            raise self._in_doubt
        waiting = self._waiting
        if not waiting.records and not waiting.arrow:
            return None
        batches = waiting.arrow or [schemas.from_records(waiting.records, self._schema(), self._log.topic.name)]
        appended = self._append(batches, self._ids(waiting))
        self._waiting = _Waiting()
        self._persisted = self._pushed
        _confirm(waiting.receipts, appended)
        return appended

    def _ids(self, waiting: _Waiting) -> pa.Array | None:
        if not self._numbered:
            return None
        if waiting.arrow:
            return pa.arange(self._next_id - sum(batch.num_rows for batch in waiting.arrow), self._next_id)
        return pa.array([receipt.sequence_id for receipt in waiting.receipts], pa.int64())

    @property
    def _next_id(self) -> int:
        return 0 if self._pushed is None else self._pushed + 1

    def discard(self) -> None:
        """Forgets what was sent and not flushed: the way on after a record that does not fit. What a failed flush
        left in doubt may be in the log all the same; its ids tell when it is sent again."""
        self._waiting = _Waiting()
        self._in_doubt = None
        if self._numbered:
            self._persisted = self._pushed = self._recover()

    def close(self) -> None:
        if not self._closed:
            self.flush()
            self._closed = True

    # -- behind it -----------------------------------------------------------------------------------------

    def _append(self, batches: list[pa.RecordBatch], ids: pa.Array | None) -> AppendResult:
        target = self._target(batches[0].schema)
        for attempt in range(_STAGINGS):
            try:
                return self._try_append([schemas.conform(batch, target) for batch in batches], target, ids)
            except OutcomeUnknown as error:
                self._waiting.tried = True
                if self._numbered:
                    raise
                # Sent again, it could be in the log twice.
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
    """Says for every record of a flush where it is. Its entry is the only one of its commit, if there is a commit."""
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
