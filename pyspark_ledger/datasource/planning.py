"""What planning batch and stream reads has in common, on the driver: opening topics, and partitions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_ledger.client import shared_namespace
from pyspark_ledger.datasource.executor.reading import METADATA, LedgerPartition
from pyspark_ledger.datasource.options import ReadOptions
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.scan import share
from pyspark_ledger.log.slices import Slice, joined

PARTITION_BYTES = 128 << 20  # stored bytes for one task, as for Spark's own file sources
SMALL_PARTITION_BYTES = 4 << 20  # below this, one more task costs more than it saves


def open_log(options: ReadOptions, topic: str, *, watch: bool) -> Log:
    """From here on nothing is older than this moment: whoever says that a topic was recreated, or has no such column or
    position, does not have it from a server that is behind."""
    namespace = shared_namespace(options.settings)
    namespace.metadata.sync()
    return namespace.log(topic, watch=watch)


@dataclass(frozen=True, slots=True)
class TopicRead:
    """What a batch reads of one topic."""

    log: Log
    pieces: Sequence[Slice]
    revision: int = 0
    epoch: int = 0


def share_out(reads: Sequence[TopicRead], min_partitions: int) -> list[LedgerPartition]:
    """Partitions for what a read consists of: contiguous and in order, so that ledger to ledger keeps the order of
    records."""
    all_pieces = [list(joined(read.pieces)) for read in reads]
    sizes = [sum(piece.bytes for piece in pieces) for pieces in all_pieces]
    target = _partition_bytes(sum(sizes))
    partitions: list[LedgerPartition] = []
    for read, pieces, size in zip(reads, all_pieces, sizes, strict=True):
        asked = min_partitions if len(reads) == 1 else -(-min_partitions * size // max(sum(sizes), 1))
        partitions += _partitions(read, share(pieces, target, max(asked, 1)))
    return partitions


def _partition_bytes(total: int) -> int:
    cores = os.cpu_count() or 1
    target = min(PARTITION_BYTES, max(SMALL_PARTITION_BYTES, total // cores))
    if total > cores * target:  # whole rounds of tasks, or cores idle in the last one
        rounds = -(-total // (cores * target))
        target = -(-total // (cores * rounds))
    return target


def _partitions(read: TopicRead, parts: Sequence[Sequence[Slice]]) -> list[LedgerPartition]:
    log = read.log
    own = METADATA in log.schema(log.view().head.schema_id).names
    return [
        LedgerPartition(log.storage.root, log.topic.uuid, log.topic.name, tuple(part), read.revision, read.epoch, own)
        for part in parts
    ]
