"""Records that have no file yet, in requests of writers that wait: see append/loose.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append import loose
from pyspark_ledger.append.admission import ADMIT_ALL, StagedBatch, TopicState
from pyspark_ledger.append.prepared import AppendResult, SideFiles, draft
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import RequestKey
from pyspark_ledger.metadata.records import Request
from tests.support.worlds import SCHEMA

LATE = 1_000_000  # a number in the queue that comes after all others


def rows(*numbers: int | None, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict.fromkeys(schema.names, number) for number in numbers], schema=schema)


def batch_of(log: Log, batch: pa.RecordBatch) -> StagedBatch:
    few = loose.few([batch], "lz4", log.limits)
    assert few is not None
    return StagedBatch(log.clock.new_id(), (few.entry,), batch.schema, loose=few)


def wants(log: Log, *numbers: int | None, schema: pa.Schema = SCHEMA, **changes: Any) -> RequestKey:
    """A request that brings its records, of a process that does nothing more."""
    view, producers = log.producers()
    batch = batch_of(log, rows(*numbers, schema=schema))
    verdict = ADMIT_ALL.judge(batch, TopicState(log, view, producers))
    wanted = draft(log, view.head, batch, verdict, SideFiles(log)).commit
    brings = loose.pack(batch.loose, log.limits)
    request = Request(wanted, view.head.next_commit, rows=brings[0], columns=brings[1])
    key = RequestKey(log.topic.uuid, LATE, batch.id)
    log.queue.join(key, replace(request, **changes))
    return key


def append_in_turn(log: Log, *numbers: int | None, schema: pa.Schema = SCHEMA) -> AppendResult:
    """As a writer for whom others have committed lately."""
    log.queue.was_answered_after(0.01)
    return protocol.append(log, batch_of(log, rows(*numbers, schema=schema)))
