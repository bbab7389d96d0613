"""What a task of a write costs before its first row: the modules that an executor's Python process imports."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer

from pyspark_ledger.datasource.executor.staging import WritePlan
from pyspark_ledger.datasource.writer import LedgerBatchWriter, LedgerStreamWriter
from pyspark_ledger.dedup.id_ranges import IdColumns
from pyspark_ledger.tokens.ids import TokenColumn

STORAGE_ONLY = {"base", "datasource", "dedup", "errors", "files", "metadata", "tokens"}
OF_DATASOURCE = {"writer", "executor", "executor.staging", "first_line", "logs"}
BEFORE = 53  # modules when writer.py imported the client, and everything with it

TASK = """
import json, sys
from pyspark.serializers import CloudPickleSerializer
write = CloudPickleSerializer().loads(sys.stdin.buffer.read())
import pyarrow as pa
write(iter([pa.record_batch({"n": pa.array([1, 2]), "token": pa.array([%r, %r])})]))
print(json.dumps(sorted(sys.modules)))
"""
PLACE = "00000000-0000-0000-0000-000000000000:0:0"


@pytest.mark.parametrize("kind", [LedgerStreamWriter, LedgerBatchWriter])
@pytest.mark.parametrize("brings", [{}, {"ids": IdColumns("n", producer="p")}, {"tokens": TokenColumn("token")}])
def test_a_task_imports_what_it_needs_to_write_a_file_and_nothing_else(tmp_path, kind, brings):
    (tmp_path / "u").mkdir()
    plan = WritePlan(
        storage=tmp_path.as_uri(), uuid="u", epoch=0, target=pa.schema([("n", pa.int64())]), compression="lz4",
        producer="p", sequence=None, **brings,
    )  # fmt: skip
    writer = kind({"topic": "t"}, plan)
    # Spark pickles a function that calls the writer's write(), and so the writer by reference to its module.
    task = CloudPickleSerializer().dumps(writer.write)
    program = TASK % (f"{PLACE}:0", f"{PLACE}:1")
    done = subprocess.run([sys.executable, "-c", program], input=task, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert len(list(tmp_path.rglob("*.arrow"))) == 1

    imported = json.loads(done.stdout)
    ours = {name for name in imported if name.partition(".")[0] == "pyspark_ledger"}
    assert {name.split(".")[1] for name in ours if "." in name} <= STORAGE_ONLY
    of_datasource = {name.removeprefix("pyspark_ledger.datasource.") for name in ours if "datasource." in name}
    assert of_datasource == OF_DATASOURCE
    assert [name for name in imported if name.partition(".")[0] in ("kazoo", "google")] == []
    assert len(ours) <= 27 < BEFORE, sorted(ours)  # with the limits of what a file may make its reader do, and logs
