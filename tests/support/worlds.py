"""Small things that many tests need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import ADMIT_ALL, ByBatchId, ByRecordIds, ForgetProducer, StagedBatch
from pyspark_ledger.append.prepared import AppendResult
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.position import Position
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.dedup.id_ranges import IdColumns, IdRanges
from pyspark_ledger.dedup.record_ids import RecordIds
from pyspark_ledger.errors import Conflict
from pyspark_ledger.files.entryfile import EntryWriter
from pyspark_ledger.files.storage import Storage, open_storage
from pyspark_ledger.log import places, scan, topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.rows import read_slice
from pyspark_ledger.metadata.port import Metadata
from pyspark_ledger.metadata.records import Entry
from pyspark_ledger.testing.memory import Faults, MemoryMetadata, MemoryServer

SCHEMA = pa.schema([pa.field("n", pa.int64())])
SMALL = Limits(commits_per_ledger=4, index_fanout=3, nodes_per_delete=3, inline_entries=2, append_deadline_s=5.0)
EAGER = replace(SMALL, gc_grace_ms=0)  # every run of gc raises the epoch


class World:
    """One server, one storage, and as many processes as a test wants: each ``log()`` is a process of its own."""

    def __init__(
        self,
        folder: Path | Storage,
        limits: Limits = SMALL,
        clock: Clock = SYSTEM_CLOCK,
        schema: pa.Schema = SCHEMA,
        key: str = "",
    ) -> None:
        self.server = MemoryServer(clock)
        self.storage: Storage = folder if isinstance(folder, Storage) else open_storage(str(folder))
        self.storage.make_folder("")  # there is no namespace, and so nothing that marks the root
        self.limits, self.clock = limits, clock
        self.topic = topics.create_topic(self.metadata(), "t", schema, key=key, clock=clock, storage=self.storage)

    def metadata(self, faults: Faults | None = None) -> Metadata:
        return MemoryMetadata(self.server, faults, self.clock)

    def log(self, faults: Faults | None = None, *, watch: bool = False) -> Log:
        return Log(self.metadata(faults), self.storage, self.topic, limits=self.limits, clock=self.clock, watch=watch)

    def read(self) -> list[int]:
        return [n for n, _ in read(self.log())]

    def files(self) -> set[str]:
        return set(self.storage.list(self.topic.uuid))


def stage(log: Log, *numbers: int, epoch: int | None = None) -> Entry:
    """One durable entry file, as a task leaves it."""
    gc_epoch = log.view().head.gc_epoch if epoch is None else epoch
    writer = EntryWriter(log.storage, log.topic.uuid, gc_epoch, SCHEMA, clock=log.clock)
    writer.write(pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA))
    entry = writer.close()
    assert entry is not None
    return entry


def append(log: Log, *numbers: int, batch_id: BatchId | None = None, **batch: Any) -> AppendResult:
    """Stages and appends; a batch that gc overtook is staged again, as writers do."""
    admission = ADMIT_ALL if batch_id is None else ByBatchId(batch_id)
    while True:
        entries = (stage(log, *numbers),)
        try:
            staged = StagedBatch(log.clock.new_id(), entries, SCHEMA, admission=admission, **batch)
            return protocol.append(log, staged)
        except Conflict as conflict:
            if conflict.code != "LEDGER_STAGED_TOO_LONG_AGO":
                raise
            log.refresh(sync=True)


def widen(log: Log, column: str) -> None:
    """The topic gets one more column, of texts: by a commit without records."""
    wider = log.schema(log.refresh(sync=True).head.schema_id).append(pa.field(column, pa.string()))
    protocol.append(log, StagedBatch(log.clock.new_id(), (), wider, merge_schema=True))


def forget(log: Log, producer: str) -> None:
    """Lets a producer's name go."""
    protocol.append(log, StagedBatch(log.clock.new_id(), producer=producer, admission=ForgetProducer()))


def read(log: Log) -> Iterator[tuple[int, Position]]:
    view = log.refresh(sync=True)
    for piece in scan.slices(log, view, places.earliest(view), view.head.end):
        for rows in read_slice(log.storage, log.topic.uuid, piece, SCHEMA):
            for position, value, *_ in rows.records():
                yield value["n"], position


# -- records that bring their own sequence ids --------------------------------------------------------------------

Id = tuple[str, int]  # producer, sequence id
IDS = pa.schema([pa.field("who", pa.string()), pa.field("seq", pa.int64()), pa.field("note", pa.string())])
ID_COLUMNS = IdColumns("seq", "who")


def stage_ids(log: Log, tasks: list[list[Id]], note: str = "", *, known: pa.Table | None = None) -> StagedBatch:
    """One entry for each task that has rows to write."""
    entries, ranges = [], []
    for rows in tasks:
        summary = IdRanges(ID_COLUMNS, known)
        writer = EntryWriter(log.storage, log.topic.uuid, log.view().head.gc_epoch, IDS, clock=log.clock)
        columns = {"who": [who for who, _ in rows], "seq": [seq for _, seq in rows], "note": [note] * len(rows)}
        writer.write(summary.add(pa.RecordBatch.from_pydict(columns, schema=IDS)))
        entry = writer.close()
        if entry is not None:
            entries.append(entry)
            ranges.append(summary.table())
    left_out = sum(map(len, tasks)) - sum(entry.records for entry in entries)
    ids = RecordIds(ID_COLUMNS, ranges, log.storage, log.topic.uuid)
    return StagedBatch(log.clock.new_id(), tuple(entries), IDS, admission=ByRecordIds(ids, left_out, known))


def append_ids(log: Log, tasks: list[list[Id]], note: str = "") -> AppendResult:
    while True:
        batch = stage_ids(log, tasks, note)
        try:
            return protocol.append(log, batch)
        except Conflict as conflict:
            if conflict.code != "LEDGER_STAGED_TOO_LONG_AGO":
                raise
            log.refresh(sync=True)


def read_ids(log: Log, start: Position | None = None, end: Position | None = None) -> list[tuple[str, int, str]]:
    view = log.refresh(sync=True)
    pieces = scan.slices(log, view, start or places.earliest(view), end or view.head.end)
    rows = (rows for piece in pieces for rows in read_slice(log.storage, log.topic.uuid, piece, IDS))
    return [tuple(row.values()) for part in rows for row in part.batch.to_pylist()]
