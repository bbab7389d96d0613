"""Entry files: what was written is read back, or the damage is named. On a folder and on S3 (a moto server)."""

from __future__ import annotations

import contextlib
import os

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.base import names
from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.files import entryfile, entrysource
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import EntryReader, EntryWriter
from pyspark_ledger.files.storage import LocalStorage, ObjectStorage, Opened, Storage, open_storage
from tests.support import examples

ROWS = 1000
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "text": pa.array([None if i % 7 == 0 else f"row {i}" for i in range(ROWS)]),
        "payload": pa.array([os.urandom(20) for _ in range(ROWS)]),
        "nothing": pa.nulls(ROWS),
        "tags": pa.array([[f"t{j}" for j in range(i % 4)] for i in range(ROWS)]),
        "point": pa.array([{"x": i, "y": None if i % 2 else 0.5} for i in range(ROWS)]),
        "attributes": pa.array([[("k", i)] for i in range(ROWS)], pa.map_(pa.string(), pa.int64())),
        "flag": pa.array([i % 3 == 0 for i in range(ROWS)]),
    }
)
SCHEMA = schemas.canonical(TABLE.schema)


@pytest.fixture(params=["folder", "s3", "s3 by ranges"])
def storage(request, tmp_path, monkeypatch) -> Storage:
    if request.param == "s3 by ranges":  # as large files are read
        monkeypatch.setattr(ObjectStorage, "whole_bytes", 0)
    return open_storage(str(tmp_path) if request.param == "folder" else request.getfixturevalue("s3_root"))


def write(storage: Storage, table: pa.Table = TABLE, chunk: int = 90, compression: str | None = "lz4"):
    storage.make_folder("topic")
    writer = EntryWriter(storage, "topic", 0, schemas.canonical(table.schema), compression)
    for batch in table.to_batches(chunk):
        writer.write(schemas.conform(batch, schemas.canonical(table.schema)))
    return writer.close()


def read(storage: Storage, entry, columns=None, start=0, stop=None) -> pa.Table:
    reader = EntryReader(storage, "topic", entry.file, columns)
    batches = [batch for _, batch in reader.batches(start, entry.records if stop is None else stop)]
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
def test_what_was_written_is_read_back(storage, compression):
    entry = write(storage, compression=compression)
    assert entry.records == ROWS
    assert read(storage, entry).equals(TABLE.cast(SCHEMA))


def test_any_piece_of_any_columns_is_read_back(storage, monkeypatch):
    monkeypatch.setattr(entryfile, "BATCH_ROWS", 128)
    entry = write(storage)
    expected = TABLE.cast(SCHEMA).select(["text", "point"]).slice(100, 333)
    assert read(storage, entry, ["point", "text"], 100, 433).equals(expected)
    assert read(storage, entry, []).num_rows == ROWS


def test_any_arrow_tool_reads_the_file(tmp_path):
    entry = write(open_storage(str(tmp_path)))
    path = tmp_path / names.staged_file("topic", 0, entry.file.uid)
    with pa.OSFile(str(path)) as file:
        assert pa.ipc.open_file(file).read_all().equals(TABLE.cast(SCHEMA))


def test_small_batches_are_gathered_and_large_ones_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(entryfile, "BATCH_ROWS", 300)
    for chunk in (7, 1000):
        entry = write(open_storage(str(tmp_path)), chunk=chunk)
        reader = EntryReader(open_storage(str(tmp_path)), "topic", entry.file)
        assert [batch.num_rows for _, batch in reader.batches(0, ROWS)] == [300, 300, 300, 100]


def test_no_row_leaves_no_file(tmp_path):
    storage = open_storage(str(tmp_path))
    storage.make_folder("topic")
    writer = EntryWriter(storage, "topic", 0, SCHEMA)
    writer.write(TABLE.slice(0, 0).to_batches()[0] if TABLE.slice(0, 0).to_batches() else entryfile._no_rows(SCHEMA))
    assert writer.close() is None
    assert list(storage.list("")) == []


def test_a_column_read_reads_and_verifies_only_its_columns(storage, monkeypatch):
    """Damage in one column is found by whoever reads it, and nobody else; bytes of other columns are not asked for."""
    monkeypatch.setattr(entrysource, "_coalesce", lambda parts: (part for part in parts if part[1]))
    entry = write(storage)
    reader = EntryReader(storage, "topic", entry.file)
    payload = reader._batches[0].columns[SCHEMA.get_field_index("payload")]
    asked: list[tuple[int, int]] = []
    opened = storage.open

    def open_watched(path: str) -> Opened:
        file = opened(path)
        read_part = file.read
        file.read = lambda at, length: (asked.append((at, length)), read_part(at, length))[1]
        return file

    monkeypatch.setattr(storage, "open", open_watched)
    read(storage, entry, ["id", "text"])
    assert (len(asked) > 1) is (storage.whole_bytes == 0 and not isinstance(storage, LocalStorage))
    if storage.whole_bytes:  # so small a file is fetched whole
        return
    assert all(at + length <= payload[0] or at >= payload[0] + payload[1] for at, length in asked)
    if isinstance(storage, LocalStorage):
        monkeypatch.undo()
        _flip(storage, entry, payload[0] + 5)
        assert read(storage, entry, ["id", "text"]).num_rows == ROWS
        with pytest.raises(CorruptData, match="batch 0"):
            read(storage, entry, ["payload"])


def _flip(storage: LocalStorage, entry, at: int) -> None:
    path = storage._root / names.staged_file("topic", 0, entry.file.uid)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@settings(max_examples=examples(150), deadline=None)
@given(where=st.floats(0, 1, exclude_max=True))
def test_a_flipped_bit_is_found_or_does_not_matter(tmp_path_factory, where):
    """Padding between buffers is not hashed; everything that reaches a reader is."""
    storage = open_storage(str(tmp_path_factory.mktemp("flip")))
    entry = write(storage, TABLE.slice(0, 50))
    _flip(storage, entry, int(where * entry.file.length))
    with contextlib.suppress(CorruptData):
        assert read(storage, entry).equals(TABLE.slice(0, 50).cast(SCHEMA))


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_file_is_named(tmp_path, keep):
    storage = open_storage(str(tmp_path))
    entry = write(storage)
    path = tmp_path / names.staged_file("topic", 0, entry.file.uid)
    os.truncate(path, keep if keep >= 0 else entry.file.length - 1)
    with pytest.raises(CorruptData, match=f"{path.name}.*bytes"):
        read(storage, entry)


def test_a_missing_file_is_named(storage):
    entry = write(storage)
    storage.delete(names.staged_file("topic", 0, entry.file.uid))
    with pytest.raises(CorruptData, match=f"LEDGER_FILE_MISSING.*{entry.file.uid.hex()}"):
        read(storage, entry)


def test_a_file_of_another_write_is_not_taken_for_this_one(tmp_path):
    storage = open_storage(str(tmp_path))
    one, two = write(storage), write(storage, TABLE.slice(0, 999))
    folder = tmp_path / "topic" / "00000000"
    (folder / f"{one.file.uid.hex()}.arrow").write_bytes((folder / f"{two.file.uid.hex()}.arrow").read_bytes())
    with pytest.raises(CorruptData):
        read(storage, one)


def test_a_newer_format_is_refused_by_name(tmp_path, monkeypatch):
    storage = open_storage(str(tmp_path))
    monkeypatch.setattr(entryfile, "FORMAT", 2)
    entry = write(storage)
    monkeypatch.undo()
    with pytest.raises(InvalidInput, match=r"LEDGER_NEWER_FORMAT.*format 2.*knows 1.*upgrade"):
        read(storage, entry)
