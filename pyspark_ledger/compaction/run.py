"""Topic compaction (PIP-14): the last record of every key, written to a ledger of its own.

Phase one folds everything up to a fixed end, the previous generation first and then the log since. Phase two writes the
survivors with their original positions. Then one transaction publishes the generation and its horizon, only if nobody
else has published one meanwhile. Whatever is cut off before that leaves files that nothing names, for gc.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark_ledger.append.append import check_epochs
from pyspark_ledger.base import names
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.compaction.plan import begin
from pyspark_ledger.compaction.work import Progress, Work, survivors_of, write
from pyspark_ledger.errors import Conflict, InvalidInput, LedgerError, OutcomeUnknown
from pyspark_ledger.log.generations import CompactedBatch, newest, stage_manifest
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import CompactorKey, Create, Delete, HeadKey, Put, TransactionLost
from pyspark_ledger.metadata.records import FileRef, Generation, Holder

logger = logging.getLogger(__name__)


def compact(
    log: Log,
    progress: Progress = lambda *_: None,
    read_rate: float | None = None,
    write_rate: float | None = None,
) -> Generation | None:
    """One run; None if nothing was written since the last one. Rates are records per second."""
    _check_rates(read_rate=read_rate, write_rate=write_rate)
    with compacting(log):
        work = begin(log)
        if work is None:
            return None
        survivors = survivors_of(work.input, _throttled(log, progress, read_rate))
        return publish(log, work, write(work, survivors, _throttled(log, progress, write_rate)))


def _check_rates(**rates: float | None) -> None:
    for name, rate in rates.items():
        if rate is not None and (not isinstance(rate, (int, float)) or not rate > 0):
            raise InvalidInput(
                f"{name} is {rate!r}: it must be a number of records per second above 0, or None for no limit"
            )


def _throttled(log: Log, progress: Progress, rate: float | None) -> Progress:
    """Tells progress, and waits where the work is ahead of its rate."""
    started = log.clock.monotonic()

    def told(phase: str, done: int, total: int) -> None:
        progress(phase, done, total)
        if rate is not None:
            log.clock.sleep(max(0.0, done / rate - (log.clock.monotonic() - started)))

    return told


@contextlib.contextmanager
def compacting(log: Log) -> Iterator[None]:
    """One compactor at a time, so that nobody works for nothing: a second one is refused at once. It is not this that
    keeps generations in order, but their publication: a lock can be lost without its holder knowing."""
    key = CompactorKey(log.topic.uuid)
    mine = Holder(log.clock.new_id(), names.this_process(), log.clock.now_ms())
    try:
        log.metadata.transact([Create(key, mine, ephemeral=True)])
    except (TransactionLost, OutcomeUnknown):
        log.metadata.sync()
        other = log.metadata.read(key)
        if other is not None and other.record.id != mine.id:
            since = datetime.fromtimestamp(other.record.since_ms / 1000, UTC)
            raise Conflict(
                f"topic '{log.topic.name}' is being compacted by {other.record.name} since "
                f"{since:%Y-%m-%d %H:%M:%S} UTC",
                "LEDGER_COMPACTION_RUNNING",
            ) from None
    try:
        yield
    finally:
        with contextlib.suppress(LedgerError):
            log.metadata.sync()  # or a node that was not seen would stay as long as this session
            held = log.metadata.read(key)
            if held is not None and held.record.id == mine.id:
                log.metadata.transact([Delete(key)])


def publish(log: Log, work: Work, batches: list[CompactedBatch]) -> Generation:
    """Names what was written in the head."""
    files = list(dict.fromkeys(batch.file for batch in batches))
    generation = Generation(
        number=work.generation,
        horizon=work.horizon,
        manifest=stage_manifest(log.files, batches, work.epoch),
        records=sum(batch.rows for batch in batches),
        bytes=sum(file.length for file in files),
        read=work.read,
        finished_ms=log.clock.now_ms(),
        started_ms=work.started_ms,
        tombstones_from=work.tombstones_from,
    )
    _publish(log, generation, files)
    logger.info(
        "compacted topic=%s generation=%d horizon=%s records=%d of %d", log.topic.name, generation.number,
        generation.horizon, generation.records, generation.read,
    )  # fmt: skip
    return generation


def _publish(log: Log, generation: Generation, files: list[FileRef]) -> None:
    """Forward only (I10): a compactor that was overtaken changes nothing (I6)."""
    while True:
        view = log.refresh(sync=True)
        last = newest(view)
        if last == generation:
            return  # an earlier sending did it
        if (last.number if last else 0) != generation.number - 1:
            raise Conflict(
                f"topic '{log.topic.name}' was compacted by another process meanwhile: nothing was changed",
                "LEDGER_COMPACTION_FENCED",
            )
        check_epochs(view.head, [*files, generation.manifest])
        kept = (*view.head.generations, generation)[-log.limits.kept_generations :]
        try:
            log.metadata.transact([Put(HeadKey(log.topic.uuid), replace(view.head, generations=kept), view.version)])
        except (TransactionLost, OutcomeUnknown):
            continue  # an append was faster, or the head tells that it was us
        log.refresh(sync=True)
        return


@dataclass(frozen=True, slots=True)
class CompactionStats:
    """What is known of a topic's compaction."""

    generation: int  # 0: the first run has not finished
    horizon: Position
    records: int
    records_before: int
    bytes: int
    started_ms: int
    finished_ms: int
    backlog_records: int  # written since
    running_since_ms: int | None  # of a run that has not finished


def stats(log: Log) -> CompactionStats | None:
    """None if the topic was never compacted and is not being compacted."""
    view = log.refresh(sync=True)
    running = log.metadata.read(CompactorKey(log.topic.uuid))
    since = running.record.since_ms if running else None
    records, last = view.head.records, newest(view)
    if last is None:
        return CompactionStats(0, EARLIEST, 0, 0, 0, 0, 0, records, since) if running else None
    return CompactionStats(
        last.number, last.horizon, last.records, last.read, last.bytes, last.started_ms, last.finished_ms,
        records - last.read, since,
    )  # fmt: skip
