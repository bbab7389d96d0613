"""Topic compaction (PIP-14): the last record of every key, written to a ledger of its own.

Phase one folds everything up to a fixed end: the previous generation first, and then the log since. Phase two writes
the survivors with their original positions. Then one transaction publishes the generation and its horizon, unless
somebody else has published one meanwhile. A run that ends before that leaves files that nothing names; gc deletes them.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from pyspark_ledger.append.prepared import check_epochs
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.compaction.plan import begin
from pyspark_ledger.compaction.work import Progress, Work, survivors_of, write
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.log.generations import (
    CompactedBatch,
    fetch_replaced,
    is_collected,
    last_number,
    newest,
    stage_manifest,
    stage_replaced,
)
from pyspark_ledger.log.locks import only_one
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import CompactorKey
from pyspark_ledger.metadata.records import FileRef, Generation, Head, Replaced

logger = logging.getLogger(__name__)


def compact(
    log: Log,
    progress: Progress = lambda *_: None,
    read_rate: float | None = None,
    write_rate: float | None = None,
) -> Generation | None:
    """Compacts the topic; None if nothing was written since the last time. Rates are records per second."""
    _check_rates(read_rate=read_rate, write_rate=write_rate)
    with compacting(log) as tell:
        work = begin(log)
        if work is None:
            return None

        def both(phase: str, done: int, total: int) -> None:
            tell(phase, done, total)
            progress(phase, done, total)

        survivors = survivors_of(work.input, _throttled(log, both, read_rate))
        return publish(log, work, write(work, survivors, _throttled(log, both, write_rate), log.clock))


def _check_rates(**rates: float | None) -> None:
    for name, rate in rates.items():
        if rate is not None and (not isinstance(rate, (int, float)) or not rate > 0):
            raise InvalidInput(
                f"{name} is {rate!r}: it must be a number of records per second above 0, or None for no limit"
            )


def _throttled(log: Log, progress: Progress, rate: float | None) -> Progress:
    """Reports progress, and waits where the work is ahead of its rate."""
    started = log.clock.monotonic()

    def report(phase: str, done: int, total: int) -> None:
        progress(phase, done, total)
        if rate is not None:
            log.clock.sleep(max(0.0, done / rate - (log.clock.monotonic() - started)))

    return report


def compacting(log: Log) -> AbstractContextManager[Progress]:
    """A lock for one compactor at a time. The order of generations does not depend on it: publishing checks that."""
    return only_one(log, CompactorKey(log.topic.uuid), "compacted", "LEDGER_COMPACTION_RUNNING")


def publish(log: Log, work: Work, batches: list[CompactedBatch]) -> Generation:
    """Adds the generation that was written to the head."""
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
    """Generations only move forward (I10): a compactor that was overtaken changes nothing (I6). The one before is kept
    for a while, for batches that were planned on it; gc deletes it."""

    lists: dict[tuple[FileRef | None, int], FileRef | None] = {}  # staged once, however often this is tried

    def edit(head: Head) -> Head:
        log.check_not_set_back(head)
        last = head.generation
        if last_number(head) != generation.number - 1:
            raise Conflict(
                f"topic '{log.topic.name}' was compacted by another process meanwhile: nothing was changed",
                "LEDGER_COMPACTION_FENCED",
            )
        check_epochs(log, head, [*files, generation.manifest])
        if last is None:
            return replace(head, generation=generation)
        known = head.replaced, head.gc_epoch
        if known not in lists:
            replaced = [each for each in fetch_replaced(log.files, head.replaced) if not is_collected(each, head)]
            lists[known] = stage_replaced(log.files, [*replaced, Replaced(last, head.gc_epoch)], head.gc_epoch)
        return replace(head, generation=generation, replaced=lists[known])

    log.change_head(edit, "publishing a compaction")


@dataclass(frozen=True, slots=True)
class CompactionStats:
    """A topic's newest compacted generation, and the run that is under way. Times are milliseconds since 1970.

    Attributes:
        generation: the number of the newest generation; 0 while the first run has not finished.
        horizon: everything before this position was compacted.
        records: records in the generation, tombstones that are kept included.
        records_before: records of the topic before the horizon.
        bytes: size of the generation's files.
        started_ms: when its run started.
        finished_ms: when it was published.
        backlog_records: records written after the horizon.
        running_since_ms: since when a compaction is running; None if there is none.
    """

    generation: int
    horizon: Position
    records: int
    records_before: int
    bytes: int
    started_ms: int
    finished_ms: int
    backlog_records: int
    running_since_ms: int | None


def stats(log: Log) -> CompactionStats | None:
    """None if the topic was never compacted and is not being compacted."""
    view = log.refresh(sync=True)
    running = log.metadata.read(CompactorKey(log.topic.uuid))
    since = running.record.since_ms if running else None
    records, last = view.head.records, newest(log, view)
    if last is None:
        return CompactionStats(0, EARLIEST, 0, 0, 0, 0, 0, records, since) if running else None
    return CompactionStats(
        last.number, last.horizon, last.records, last.read, last.bytes, last.started_ms, last.finished_ms,
        records - last.read, since,
    )  # fmt: skip
