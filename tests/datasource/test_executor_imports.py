"""What a task costs before its first row: the modules that an executor's Python process imports."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.datasource.executor.reading import LedgerPartition, read_partition
from pyspark_ledger.datasource.executor.staging import WritePlan
from pyspark_ledger.datasource.writer import LedgerBatchWriter, LedgerStreamWriter
from pyspark_ledger.dedup.id_ranges import IdColumns
from pyspark_ledger.files.storage import Root
from pyspark_ledger.log import scan
from pyspark_ledger.tokens.ids import TokenColumn
from tests.support.worlds import World, append

STORAGE_ONLY = {"base", "datasource", "dedup", "errors", "files", "metadata", "tokens"}
OF_DATASOURCE = {"writer", "executor", "executor.staging", "first_line", "logs"}
SLOW = ("pandas", "pyarrow.compute", "pyarrow.fs")  # 200 ms, 30 and 15 of CPU
BEFORE = 53  # modules when writer.py imported the client, and everything with it

TASK = """
import json, sys
from pyspark.serializers import CloudPickleSerializer
write = CloudPickleSerializer().loads(sys.stdin.buffer.read())
import pyarrow as pa
write(iter([pa.ipc.open_stream(%r).read_next_batch()]))
print(json.dumps(sorted(sys.modules)))
"""


def as_stream(batch: pa.RecordBatch) -> bytes:
    """As Spark hands batches over: to make one of a list, pyarrow would import pandas."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


PLACE = "00000000-0000-0000-0000-000000000000:0:0"


@pytest.mark.parametrize("kind", [LedgerStreamWriter, LedgerBatchWriter])
@pytest.mark.parametrize("brings", [{}, {"ids": IdColumns("n", producer="p")}, {"tokens": TokenColumn("token")}])
def test_a_task_imports_what_it_needs_to_write_a_file_and_nothing_else(tmp_path, kind, brings):
    (tmp_path / "u").mkdir()
    plan = WritePlan(
        storage=Root(tmp_path.as_uri()), uuid="u", epoch=0, target=pa.schema([("n", pa.int64())]), compression="lz4",
        producer="p", sequence=None, **brings,
    )  # fmt: skip
    writer = kind({"topic": "t"}, plan)
    # Spark pickles a function that calls the writer's write(), and so the writer by reference to its module.
    task = CloudPickleSerializer().dumps(writer.write)
    program = TASK % as_stream(pa.record_batch({"n": [1, 2], "token": [f"{PLACE}:0", f"{PLACE}:1"]}))
    done = subprocess.run([sys.executable, "-c", program], input=task, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert len(list(tmp_path.rglob("*.arrow"))) == 1

    imported = json.loads(done.stdout)
    ours = {name for name in imported if name.partition(".")[0] == "pyspark_ledger"}
    assert {name.split(".")[1] for name in ours if "." in name} <= STORAGE_ONLY
    of_datasource = {name.removeprefix("pyspark_ledger.datasource.") for name in ours if "datasource." in name}
    assert of_datasource == OF_DATASOURCE
    assert [name for name in imported if name.partition(".")[0] in ("kazoo", "google")] == []
    assert brings or [name for name in SLOW if name in imported] == []  # of ids and tokens there is more to do
    # With the limits of what a file may make its reader do, what keeps paths inside the root, and logs.
    assert len(ours) <= 31 < BEFORE, sorted(ours)


READING = """
import json, sys
from pyspark.serializers import CloudPickleSerializer
read = CloudPickleSerializer().loads(sys.stdin.buffer.read())
assert sum(batch.num_rows for batch in read()) == 3
print(json.dumps(sorted(sys.modules)))
"""


def test_a_task_that_reads_rows_imports_neither_pandas_nor_arrow_functions_nor_file_systems(tmp_path):
    world = World(tmp_path)
    append(world.log(), 1, 2, 3)
    log = world.log()
    slices = tuple(scan.slices(log, log.view(), EARLIEST, log.view().head.end))
    partition = LedgerPartition(world.storage.root, log.topic.uuid, "t", slices)
    schema = StructType([StructField("n", LongType())])
    task = CloudPickleSerializer().dumps(partial(read_partition, partition, schema))
    done = subprocess.run([sys.executable, "-c", READING], input=task, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    imported = json.loads(done.stdout)
    assert "pyspark_ledger.datasource.executor.reading" in imported
    assert [name for name in (*SLOW, "kazoo", "google") if name in imported] == []
