"""Stores the parts of a producer: stages a file, commits it, and finds out what became of a commit in doubt."""

from __future__ import annotations

import pyarrow as pa

from pyspark_ledger.append.admission import ADMIT_ALL, ByRecordIds, StagedBatch, check_deduplicates
from pyspark_ledger.append.append import UnderWay, append, resolve
from pyspark_ledger.append.loose import Loose, few
from pyspark_ledger.append.prepared import STAGED_TOO_LONG_AGO, AppendResult
from pyspark_ledger.append.record_check import RecordCheck
from pyspark_ledger.append.waiting import Part
from pyspark_ledger.base.given import check_flag
from pyspark_ledger.dedup.id_ranges import IdColumns, IdRanges
from pyspark_ledger.dedup.record_ids import RecordIds
from pyspark_ledger.errors import Conflict, InvalidInput, OutcomeUnknown, Unavailable
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.log import folders
from pyspark_ledger.log.log import FRESH_S, Log
from pyspark_ledger.metadata.records import Entry

_STAGINGS = 5
COMPRESSIONS: dict[str, str | None] = {"lz4": "lz4", "zstd": "zstd", "none": None}


def may_pass(error: Exception) -> bool:
    """Whether the same part may be stored later, without anybody doing anything about it."""
    if isinstance(error, Conflict):
        return error.code == STAGED_TOO_LONG_AGO
    return isinstance(error, Unavailable | OutcomeUnknown)


class Sender:
    """For one thread at a time: so is the log."""

    def __init__(self, log: Log, name: str, compression: str, mints: bool, merges: bool) -> None:
        if compression not in COMPRESSIONS:
            raise InvalidInput(f"compression '{compression}' is not one of {', '.join(COMPRESSIONS)}")
        check_flag("mint_tokens", mints)
        self._log, self._name, self._mints, self._merges = log, name, mints, merges
        self._compression = COMPRESSIONS[compression]

    def recover(self) -> int | None:
        """The last id of this producer in the log: where it continues after a crash."""
        self._log.refresh(sync=True)
        _, producers = self._log.producers()
        check_deduplicates(self._log)
        return producers.last_sequence(self._name, self._log.topic.name)

    def record_check(self, known: RecordCheck | None) -> RecordCheck:
        """For the schema as the log knows it now."""
        schema = self._schema()
        if known is not None and known.schema is schema:
            return known
        return RecordCheck(schema, self._log.topic.name)

    def conform(self, batch: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
        try:
            target = self._target(batch.schema)
        except InvalidInput:  # perhaps others have added columns
            self._log.refresh(sync=True)
            target = self._target(batch.schema)
        batches = [batch] if isinstance(batch, pa.RecordBatch) else batch.to_batches()
        return [schemas.conform(each, target) for each in batches]

    def store(self, part: Part) -> AppendResult:
        """Returns when the part is in the log. After an error ``part.under_way`` says whether it may be there."""
        return self._settled(part) or self._append(part)

    def _settled(self, part: Part) -> AppendResult | None:
        """Finds out whether an earlier try, which failed, stored the part."""
        if part.under_way is None:
            return None
        appended = resolve(self._log, part.under_way)
        part.under_way = None
        return appended

    def _append(self, part: Part) -> AppendResult:
        batches = part.arrow or [schemas.from_records(part.records, self._schema(), self._log.topic.name)]
        target = self._target(batches[0].schema)
        batches = [schemas.conform(batch, target) for batch in batches]
        for attempt in range(_STAGINGS):
            try:
                return self._try_append(part, batches, target)
            except Conflict as conflict:  # gc ran twice since the file was staged
                if conflict.code != STAGED_TOO_LONG_AGO or attempt == _STAGINGS - 1:
                    raise
                self._log.refresh(sync=True)
            except (Unavailable, InvalidInput):  # nothing was sent
                part.under_way = None
                raise
        raise AssertionError("not reached")

    def _try_append(self, part: Part, batches: list[pa.RecordBatch], target: pa.Schema) -> AppendResult:
        ids = part.ids()
        numbered = batches if ids is None else schemas.with_sequence(batches, ids)
        loose = few(numbered, self._compression, self._log.limits)
        batch = StagedBatch(
            self._log.clock.new_id(),
            (self._stage(numbered) if loose is None else loose.entry,),
            target,
            merge_schema=self._merges,
            producer=self._name,
            mints=self._mints,
            admission=ADMIT_ALL if ids is None else self._by_ids(numbered, loose, part.explicit),
            loose=loose,
        )

        def under_way(prepared: UnderWay | None) -> None:
            part.under_way = prepared

        return append(self._log, batch, under_way)

    def _by_ids(self, batches: list[pa.RecordBatch], loose: Loose | None, explicit: bool) -> ByRecordIds:
        columns = IdColumns(schemas.SEQUENCE, producer=self._name)
        ranges = IdRanges(columns)
        for batch in batches:
            ranges.add(batch)
        rows = None if loose is None else loose.rows
        ids = RecordIds(columns, [ranges.table()], self._log.storage, self._log.topic.uuid, rows)
        # Of its own commits a producer knows what became: numbers that it counted itself and that are in the log
        # without them are somebody else's.
        return ByRecordIds(ids, exclusive=not explicit)

    def _stage(self, batches: list[pa.RecordBatch]) -> Entry:
        log = self._log
        epoch = log.gc_epoch(FRESH_S)
        folders.prepare(log)
        return stage_entry(log.storage, log.topic.uuid, epoch, batches, self._compression, log.clock)

    def _target(self, schema: pa.Schema) -> pa.Schema:
        incoming = schemas.canonical(schema)
        return schemas.written(schemas.merge(self._schema(), incoming, may_add=self._merges), incoming)

    def _schema(self) -> pa.Schema:
        return self._log.schema(self._log.view().head.schema_id)
