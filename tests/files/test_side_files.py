"""The small files that nodes name: index files, lists, snapshots, long values. Read whole and verified, or not."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pytest
import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.files import bounds
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.files.entryfile import EntryReader, stage_entry
from pyspark_ledger.files.ipc_layout import buffer_count
from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.files.topicfiles import RowCodec, TopicFiles
from pyspark_ledger.metadata.records import FileRef
from tests.support.held import HeldStorage

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


# -- files whose checksum is right, and which are not ours all the same ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Numbered:
    n: int
    note: str = ""


def held(data: bytes) -> tuple[TopicFiles, FileRef]:
    files = TopicFiles(HeldStorage(data, mapped=True), "topic", SYSTEM_CLOCK)
    return files, FileRef(0, b"u" * 16, len(data), len(data), xxhash.xxh3_64_intdigest(data))


def arrow_file(table: pa.Table, compression: str | None = "zstd") -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_file(buffer, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return buffer.getvalue().to_pybytes()


@pytest.mark.parametrize("number", [-1, -(1 << 32) + 2, 1 << 40, (1 << 63) - 1])
def test_a_file_with_a_wrong_number_anywhere_is_read_or_named_and_the_process_lives(number):
    """Arrow takes a negative number of rows, and ends the process with an assertion where they are looked at."""
    data = arrow_file(pa.table({"n": [1, 2, 3], "note": ["a", "b", "c"]}))
    for at in range(0, len(data) - 8, 8):
        files, ref = held(data[:at] + struct.pack("<q", number) + data[at + 8 :])
        with suppress(CorruptData):
            assert len(files.fetch_records(ref, RowCodec(Numbered))) <= 3


@pytest.mark.parametrize("columns", [{"n": ["1"]}, {"n": [None]}, {"note": ["a"]}, {"n": [1], "note": [None]}, {}])
def test_rows_that_cannot_be_the_records_are_refused_before_they_are_used(columns):
    types = {"n": pa.string() if columns.get("n") == ["1"] else pa.int64(), "note": pa.string()}
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    files, ref = held(arrow_file(table))
    if table.num_rows:
        with pytest.raises(CorruptData, match=r"\.arrow is damaged"):
            files.fetch_records(ref, RowCodec(Numbered))
    else:
        assert files.fetch_records(ref, RowCodec(Numbered)) == []


LARGE = {"rows": pa.repeat(0, 1_000_000), "a dictionary": pa.DictionaryArray.from_arrays([0], ["a" * 8_000_000])}


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
@pytest.mark.parametrize("large", LARGE)
def test_a_small_file_that_becomes_very_large_is_refused_before_it_does(monkeypatch, compression, large):
    files, ref = held(arrow_file(pa.table({"n": LARGE[large]}), compression))
    assert files.fetch_table(ref).num_rows == len(LARGE[large])
    monkeypatch.setattr(bounds, "MOST_TABLE_BYTES", 1_000_000)
    with pytest.raises(CorruptData, match=r"it would need 8\d{6} bytes of memory, and at most 1000000 are taken"):
        files.fetch_table(ref)


def test_a_length_in_a_node_takes_no_memory_that_the_file_does_not_need(storage):
    """A reader asks for as many bytes as the node says, and memory is taken before the file is looked at."""
    storage.write("values/file", b"short")
    assert storage.read("values/file", 0, 1 << 60).to_pybytes() == b"short"
    assert storage.read("values/file", 1 << 60, 5).to_pybytes() == b""


@pytest.mark.parametrize(("length", "tail"), [(0, 0), (100, 0), (100, 101)])
def test_a_tail_that_its_file_cannot_have_is_named(length, tail):
    with pytest.raises(CorruptData, match=f"says that {tail} of {length} bytes are its tail"):
        EntryReader(HeldStorage(bytes(length), mapped=True), "topic", FileRef(0, b"u" * 16, length, tail, 0))


def test_an_arrow_file_of_somebody_else_is_no_entry_file():
    data = arrow_file(pa.table({"n": [1]}))
    ref = FileRef(0, b"u" * 16, len(data), len(data), xxhash.xxh3_64_intdigest(data))
    with pytest.raises(CorruptData, match=r"\.arrow is damaged.*restore it from a copy"):
        EntryReader(HeldStorage(data, mapped=True), "topic", ref)
