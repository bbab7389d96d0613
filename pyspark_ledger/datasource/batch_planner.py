"""Plans batch reads, on the driver."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from pyspark.sql.types import StructType

from pyspark_ledger.base.position import Position
from pyspark_ledger.compaction.plan import state_slices
from pyspark_ledger.datasource.executor.reading import LedgerPartition
from pyspark_ledger.datasource.options import ReadOptions, TopicRange
from pyspark_ledger.datasource.planning import TopicRead, open_log, share_out
from pyspark_ledger.datasource.read_schema import check_asked_schema
from pyspark_ledger.errors import DataLoss, InvalidInput
from pyspark_ledger.log import generations, places, trimmed
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.slices import Slice
from pyspark_ledger.log.sources import ReadSource

logger = logging.getLogger(__name__)


def plan_batch(options: ReadOptions, schema: StructType) -> Sequence[LedgerPartition]:
    if options.subscription:
        raise InvalidInput(
            "option 'subscription' is for streams: a batch read acknowledges nothing. Read from a position with "
            "startingOffsets",
            "LEDGER_INVALID_OPTION",
        )
    logs = [open_log(options, topic.name, watch=False) for topic in options.topics]
    views = [log.refresh(sync=True) for log in logs]
    check_asked_schema(logs, schema, options)
    planned = [_plan_topic(*each, options) for each in zip(logs, views, options.topics, strict=True)]
    parts = share_out([read for read, _, _ in planned], options.min_partitions)
    tasks = Counter(part.topic for part in parts)
    for read, start, end in planned:
        name, size = read.log.topic.name, sum(piece.bytes for piece in read.pieces)
        logger.info("planned topic=%s start=%s end=%s bytes=%d partitions=%d", name, start, end, size, tasks[name])
    # Spark makes up a partition without a value when there is none.
    return parts or [LedgerPartition(logs[0].storage.root, logs[0].topic.uuid, logs[0].topic.name, ())]


def _plan_topic(log: Log, view: View, topic: TopicRange, options: ReadOptions) -> tuple[TopicRead, Position, Position]:
    """What is read of a topic, and from where to where that is."""
    start = places.resolve(log, view, topic.start, compacted=options.read_compacted)
    end = places.resolve(log, view, topic.end) if topic.end else view.head.end
    if start > end:
        raise InvalidInput(
            f"the read of topic '{topic.name}' would end at {end}, before it starts at {start}: mend the options that "
            "say where it starts and ends",
            "LEDGER_INVALID_OPTION",
        )
    start = _past_what_is_gone(log, view, start, end, options)
    pieces: list[Slice]
    _check_lost(log, view, start, end, options)
    if options.read_compacted:
        pieces = state_slices(log, view, start, end, around_lost=True)
    else:
        pieces = list(ReadSource(log, view, around_lost=True).slices(start, end))
    return TopicRead(log, pieces), start, end


def _past_what_is_gone(log: Log, view: View, start: Position, end: Position, options: ReadOptions) -> Position:
    """Where the read begins if retention gave up records that would be in it."""
    generation = generations.newest(log, view, end) if options.read_compacted else None
    gone = ReadSource(log, view, generation).gone_from(start, end)
    if gone is None:
        return start
    begin, loss = places.earliest(view), trimmed.loss(view.head, gone)
    if options.fail_on_data_loss:
        instead = "To read what is left, use startingOffsets=earliest, or set failOnDataLoss=false"
        raise DataLoss(f"{loss.message}. {instead}", loss.code)
    logger.warning("%s; reading from %s, because failOnDataLoss is false", loss, begin)
    return begin


def _check_lost(log: Log, view: View, start: Position, end: Position, options: ReadOptions) -> None:
    """Raises if the read would meet damaged entries that were given up by name, or says that it goes around them."""
    generation = generations.newest(log, view, end) if options.read_compacted else None
    for each in ReadSource(log, view, generation).lost(start, end):
        loss = each.loss(log.topic.name)
        if options.fail_on_data_loss:
            raise DataLoss(f"{loss.message}. To read what is left, set failOnDataLoss=false", loss.code)
        logger.warning("%s; reading around them, because failOnDataLoss is false", loss)
