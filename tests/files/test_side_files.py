"""The small files that nodes name: index files, lists, snapshots, long values. Read whole and verified, or not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.files.ipc_layout import buffer_count
from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.files.topicfiles import TopicFiles

SCHEMA = pa.schema([("n", pa.int64())])
DAMAGE = {
    "flipped": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "short": lambda data: data[:-1],
    "long": lambda data: data + b"x",
    "empty": lambda data: b"",
}


@pytest.fixture
def storage(tmp_path):
    storage = open_storage(str(tmp_path))
    for folder in ("topic", "values"):
        storage.make_folder(folder)
    return storage


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_or_list_is_named_and_not_read(storage, tmp_path, damage):
    files = TopicFiles(storage, "topic", SYSTEM_CLOCK)
    file = files.stage([{"n": 1}, {"n": 2}], SCHEMA, epoch=3)
    path = tmp_path / names.staged_file("topic", 3, file.uid)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.raises(CorruptData, match=rf"LEDGER_CORRUPT_DATA.*{path.name} is damaged.*restore it from a copy"):
        files.fetch(file)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_value_of_a_node_is_named_and_not_read(storage, tmp_path, damage):
    values = Blobs(storage, "values", SYSTEM_CLOCK)
    file = values.stage(b"long", version=3)
    assert values.fetch(file) == b"long"
    (path,) = (tmp_path / "values").iterdir()
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.raises(CorruptData, match=rf"{path.name} is damaged.*restore it from a copy"):
        values.fetch(file)


def test_a_batch_that_cannot_be_written_leaves_nothing_open(storage, monkeypatch):
    abandoned = []
    monkeypatch.setattr("pyspark_ledger.files.entryfile.EntryWriter.abandon", lambda writer: abandoned.append(writer))
    good = pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA)
    other = pa.RecordBatch.from_pydict({"n": ["text"]})
    with pytest.raises(pa.ArrowInvalid):
        stage_entry(storage, "topic", 0, [good, other], "lz4", SYSTEM_CLOCK)
    assert len(abandoned) == 1


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.dense_union([pa.field("a", pa.int64())])])
def test_a_type_that_entry_files_do_not_hold_is_refused_by_column(kind):
    with pytest.raises(InvalidInput, match=r"column 'a\.b' has the type .*, which entry files do not hold"):
        buffer_count(pa.list_(kind), "a.b")
