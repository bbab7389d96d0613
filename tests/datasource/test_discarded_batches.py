"""A reset with discard_planned voids batches that had not finished. One of them may be in the sink already: the query
died after the sink's commit, and before Spark wrote that the batch is done."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from pyspark_ledger.base.names import spark_producer
from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.datasource import LedgerDataSource
from pyspark_ledger.datasource.executor.staging import TaskOrigin, stage
from pyspark_ledger.errors import Conflict
from tests.support.query import Query, add
from tests.support.worlds import SCHEMA


@pytest.fixture
def client(namespace, storage_root) -> Iterator[LedgerClient]:
    with LedgerClient(namespace, storage_root) as client:
        client.create_topic("t", SCHEMA)
        add(client, *range(10))
        yield client


@pytest.fixture(params=["a checkpoint", "one that the sink cannot read"])
def checkpoint(request, tmp_path) -> str:
    """With the offsets of batches 0 and 1 in it."""
    if request.param != "a checkpoint":
        return "abfs://nowhere/c"
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    for batch in range(2):
        (tmp_path / "c" / "offsets" / str(batch)).write_text(f"the offsets of batch {batch}")
    return str(tmp_path / "c")


def write(client: LedgerClient, checkpoint: str, run: str, batch: int, rows: list[int]) -> None:
    """What Spark does with the sink for one batch. One without rows has a task all the same."""
    source = LedgerDataSource({"zookeeper": client.zookeeper, "topic": "out", "checkpointLocation": checkpoint})
    writer = source.streamWriter(StructType().add("n", LongType()), overwrite=False)
    arrow = iter([pa.RecordBatch.from_pydict({"n": rows}, schema=SCHEMA)] if rows else [])
    staged = stage(writer._plan, arrow, TaskOrigin("q", run, batch), spark_producer("q"), batch)
    writer.commit([staged], batch)


def follow(client: LedgerClient, offset: dict | None = None) -> Query:
    return Query(client, subscription="s", maxRowsPerTrigger="4", offset=offset)


def test_what_a_discarded_batch_had_written_stays_and_the_query_goes_on_I16(client, checkpoint):
    query = follow(client)
    planned = query.plan()
    write(client, checkpoint, "run-1", 0, query.read(*planned))
    query.reader.stop()  # it died here: batch 0 is in the sink, and logged as not done
    client.cursor("t", "s").reset(Position(0, 0, 8), discard_planned=True)

    query = follow(client, offset=planned[1])
    assert query.read(*planned) == []
    write(client, checkpoint, "run-2", 0, [])  # the replay: nothing can be lost or doubled by adding nothing
    write(client, checkpoint, "run-2", 1, query.batch())
    query.reader.stop()
    assert [record["n"] for record in client.reader("out", end="latest")] == [0, 1, 2, 3, 8, 9]


def test_a_replay_with_other_rows_is_still_an_error_where_offsets_cannot_be_compared_I5(client):
    write(client, "abfs://nowhere/c", "run-1", 0, [1, 2])
    with pytest.raises(Conflict, match="LEDGER_SEQUENCE_REUSED"):
        write(client, "abfs://nowhere/c", "run-2", 0, [1])
