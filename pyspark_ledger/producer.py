"""Writes records from Python: one flush, one entry, one commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pyspark_ledger import schema as schemas
from pyspark_ledger.append import STAGED_TOO_LONG_AGO, Appended, Batch, append
from pyspark_ledger.entryfile import EntryWriter
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.log import Log
from pyspark_ledger.records import Entry

FLUSH_ROWS = 10_000
FLUSH_BYTES = 16 << 20
_STAGINGS = 5
FRESH_S = 5.0  # how old the cached head may be when a file is staged under its gc epoch
COMPRESSIONS: dict[str, str | None] = {"lz4": "lz4", "zstd": "zstd", "none": None}


class Producer:
    """Gathers records and appends them at :meth:`flush`, at :meth:`close`, and whenever 10,000 or about 16 MB of them
    are waiting. For one thread at a time.

    Everything sent before a flush returns is in the log, once; what was sent after the last flush is not yet.
    """

    def __init__(self, log: Log, *, name: str | None = None, compression: str = "lz4") -> None:
        if compression not in COMPRESSIONS:
            raise InvalidInput(f"compression '{compression}' is not one of {', '.join(COMPRESSIONS)}")
        self._log = log
        self.name = name or f"producer-{log.clock.new_id().hex()}"
        self._compression = COMPRESSIONS[compression]
        self._records: list[Mapping[str, Any]] = []
        self._bytes = 0
        self._closed = False

    def send(self, record: Mapping[str, Any]) -> None:
        """Takes one record, as column -> value; a column that is left out is null."""
        self._check_open()
        schema = self._schema()
        unknown = record.keys() - set(schema.names)
        if unknown:
            raise InvalidInput(
                f"topic '{self._log.topic.name}' has no column '{min(unknown)}': {', '.join(schema.names)}",
                "LEDGER_SCHEMA_MISMATCH",
            )
        self._records.append(record)
        self._bytes += sum(len(value) for value in record.values() if isinstance(value, str | bytes))
        if len(self._records) >= FLUSH_ROWS or self._bytes >= FLUSH_BYTES:
            self.flush()

    def send_batch(self, batch: pa.RecordBatch | pa.Table) -> Appended:
        """Appends Arrow data at once, in one commit, after what is waiting."""
        self._check_open()
        self.flush()
        return self._append([batch] if isinstance(batch, pa.RecordBatch) else batch.to_batches(), batch.schema)

    def flush(self) -> Appended | None:
        """Returns when everything sent so far is in the log; None if there was nothing to do."""
        self._check_open()
        if not self._records:
            return None
        schema = self._schema()
        try:
            batch = pa.RecordBatch.from_pylist([dict(record) for record in self._records], schema=schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InvalidInput(
                f"a record does not fit topic '{self._log.topic.name}': {error}", "LEDGER_INVALID_VALUE"
            ) from None
        appended = self._append([batch], schema)
        self.discard()
        return appended

    def discard(self) -> None:
        """Forgets what was sent and not flushed: the way on after a record that does not fit."""
        self._records, self._bytes = [], 0

    def close(self) -> None:
        if not self._closed:
            self.flush()
            self._closed = True

    def _append(self, batches: list[pa.RecordBatch], schema: pa.Schema) -> Appended:
        incoming = schemas.canonical(schema)
        target = schemas.written(schemas.merge(self._schema(), incoming, may_add=False), incoming)
        for attempt in range(_STAGINGS):
            try:
                entry = self._stage(batches, target)
                return append(self._log, Batch(self._log.clock.new_id(), (entry,), target, producer=self.name))
            except Conflict as conflict:  # gc ran twice since the file was staged
                if conflict.code != STAGED_TOO_LONG_AGO or attempt == _STAGINGS - 1:
                    raise
                self._log.refresh(sync=True)
        raise AssertionError("not reached")

    def _stage(self, batches: list[pa.RecordBatch], target: pa.Schema) -> Entry:
        epoch = self._log.view(FRESH_S).head.gc_epoch
        writer = EntryWriter(self._log.storage, self._log.topic.uuid, epoch, target, self._compression, self._log.clock)
        try:
            for batch in batches:
                writer.write(schemas.conform(batch, target))
            entry = writer.close()
        except BaseException:
            writer.abandon()
            raise
        if entry is None:
            raise InvalidInput("there is no row in the batch")
        return entry

    def _schema(self) -> pa.Schema:
        return self._log.schema(self._log.view().head.schema_id)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("this producer is closed", "LEDGER_CLOSED")

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
        self._closed = True
