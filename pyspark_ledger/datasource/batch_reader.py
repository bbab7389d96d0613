"""``spark.read.format("ledger")``: a fixed piece of the log as a table."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.datasource.options import ReadOptions
from pyspark_ledger.datasource.planning import (
    LedgerPartition,
    check_asked_schema,
    open_log,
    plan,
    read_partition,
)
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log import places
from pyspark_ledger.log.scan import slices

logger = logging.getLogger(__name__)


class LedgerBatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        if self._options.subscription:
            raise InvalidInput(
                "option 'subscription' is for streams: a batch read acknowledges nothing. Read from a position with "
                "startingOffsets",
                "LEDGER_INVALID_OPTION",
            )
        log = open_log(self._options, watch=False)
        view = log.refresh(sync=True)
        check_asked_schema(log, self._schema, self._options)
        start = places.resolve(log, view, self._options.start)
        end = places.resolve(log, view, self._options.end) if self._options.end else view.head.end
        if start > end:
            raise InvalidInput(
                f"the read would end at {end}, before it starts at {start}: mend the options that say where it "
                "starts and ends",
                "LEDGER_INVALID_OPTION",
            )
        if self._options.read_compacted:
            pieces = compaction.table(log, view, start, end)
        else:
            pieces = list(slices(log, view, start, end))
        parts = plan(log, pieces, self._options.min_partitions)
        logger.info(
            "planned topic=%s start=%s end=%s bytes=%d partitions=%d",
            log.topic.name, start, end, sum(piece.bytes for piece in pieces), len(parts),
        )  # fmt: skip
        # Spark makes up a partition without a value when there is none.
        return list(parts) or [LedgerPartition(log.storage.uri, log.topic.uuid, log.topic.name, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LedgerPartition)
        return read_partition(partition, self._schema)
