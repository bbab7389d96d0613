"""Files, links and records of somebody who means harm: the checksums are right, and what they say is not.

Whoever reads them gets an error of this package, before memory is taken, and nothing outside of the root is touched."""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.base.limits import MOST_TABLE_ROWS
from pyspark_ledger.base.position import Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cli import writing
from pyspark_ledger.cli.output import ConsoleOutput
from pyspark_ledger.errors import CorruptData, InvalidInput, LedgerError
from pyspark_ledger.files import bounds, entryfile, packed_rows
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.files.entryfile import EntryReader, EntryWriter
from pyspark_ledger.files.storage import LocalStorage, ObjectStorage, Storage, open_storage
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.metadata.port import HeadKey
from pyspark_ledger.metadata.records import FileRef, Head
from pyspark_ledger.zk_metadata import codec
from tests.support.held import HeldStorage

UUID = "0a1b2c3d-0000-4000-8000-000000000001"
OUTSIDE = "LEDGER_OUTSIDE_STORAGE"
SMALL, LARGE = 1_000, 300_000  # an entry file of few bytes is looked at in another way


# -- sizes ---------------------------------------------------------------------------------------------------------


def entry_file(tmp_path: Path, rows: pa.RecordBatch, codec: str, lie: Callable[[dict], None]) -> tuple[bytes, int]:
    """An entry file whose tail says something else than what was written; and how long its tail is."""

    def dumps(tail: dict, **_: object) -> str:
        lie(tail)
        return json.JSONEncoder().encode(tail)

    storage = open_storage(str(tmp_path))
    storage.make_folder(UUID)
    writer = EntryWriter(storage, UUID, 0, rows.schema, codec)
    with mock.patch.object(entryfile.json, "dumps", dumps):
        for start in range(0, rows.num_rows, 2):
            writer.write(rows.slice(start, 2))
            writer.end_batch()
        entry = writer.close()
    assert entry is not None
    path = tmp_path / names.staged_file(UUID, 0, entry.file.uid)
    return path.read_bytes(), entry.file.tail_length


def honest(tail: dict) -> None: ...


def read(data: bytes, tail: int, *, mapped: bool, checked: bool) -> int:
    """How many rows a reader gets. ``checked``: with the checksums of the batches, which are in the tail."""
    ref = FileRef(0, b"u" * 16, len(data), tail, xxhash.xxh3_64_intdigest(data[-tail:]))
    reader = EntryReader(HeldStorage(data, mapped=mapped), UUID, ref)
    trusting = mock.patch.object(EntryReader, "_verify", lambda self, number, batch: self._fetch(batch))
    with mock.MagicMock() if checked else trusting:
        return sum(batch.num_rows for _, batch in reader.batches(0, 1 << 40))


def random_rows(length: int, count: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(range(count)), "b": [os.urandom(length) for _ in range(count)]})


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("length", [SMALL, LARGE])
def test_a_column_that_says_it_becomes_an_exabyte_is_refused_before_memory_is_taken_I21(tmp_path, length, mapped):
    data, tail = entry_file(tmp_path, random_rows(length), "zstd", honest)
    claim = struct.pack("<q", length)
    at = data.rindex(claim, 0, len(data) - tail)
    lying = data[:at] + struct.pack("<q", 1 << 60) + data[at + 8 :]
    with pytest.raises(CorruptData, match=r"would need 11529\d+ bytes of memory, and at most 4294967296 are taken"):
        read(lying, tail, mapped=mapped, checked=False)
    assert pa.default_memory_pool().max_memory() < 1 << 32
    assert read(data, tail, mapped=mapped, checked=True) == 1


@pytest.mark.parametrize("mapped", [True, False])
def test_a_column_that_becomes_more_than_is_taken_is_refused_and_others_are_read_I21(tmp_path, monkeypatch, mapped):
    rows = pa.RecordBatch.from_pydict({"n": [1], "b": [bytes(1 << 20)], "noise": [os.urandom(LARGE)]})
    data, tail = entry_file(tmp_path, rows, "zstd", honest)
    monkeypatch.setattr(bounds, "MOST_TABLE_BYTES", 1 << 20)
    with pytest.raises(CorruptData, match="bytes of memory, and at most 1048576 are taken"):
        read(data, tail, mapped=mapped, checked=True)
    ref = FileRef(0, b"u" * 16, len(data), tail, xxhash.xxh3_64_intdigest(data[-tail:]))
    reader = EntryReader(HeldStorage(data, mapped=mapped), UUID, ref, ["n", "noise"])
    assert [batch.num_columns for _, batch in reader.batches(0, 9)] == [2]


@pytest.mark.parametrize(
    "wrong", [0.0, 1.5, 1e308, True, "7", None, -1, 1 << 70], ids=lambda wrong: f"{type(wrong).__name__} {wrong}"
)
@pytest.mark.parametrize("place", ["offset", "header", "rows", "column"])
def test_a_number_in_a_tail_that_is_none_is_refused_by_name_I21(tmp_path, place, wrong):
    def lie(tail: dict) -> None:
        if place == "column":
            tail["batches"][0][3][1] = wrong
        else:
            tail["batches"][0][("offset", "header", "rows").index(place)] = wrong

    data, tail = entry_file(tmp_path, random_rows(10), "lz4", lie)
    for mapped in (True, False):
        with pytest.raises(CorruptData):
            read(data, tail, mapped=mapped, checked=True)


def test_a_tail_that_says_batches_are_elsewhere_than_its_footer_is_refused_I21(tmp_path):
    """What the checksums cover must be what Arrow reads."""

    def swap(tail: dict) -> None:
        tail["batches"].reverse()

    data, tail = entry_file(tmp_path, random_rows(LARGE, 4), "lz4", swap)
    with pytest.raises(CorruptData, match="its tail says that batches are elsewhere than its footer does"):
        read(data, tail, mapped=True, checked=True)


def table_file(table: pa.Table, compression: str | None = None) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_file(buffer, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return buffer.getvalue().to_pybytes()


def fetch(data: bytes) -> object:
    files = TopicFiles(HeldStorage(data, mapped=True), UUID, SYSTEM_CLOCK)
    return files.fetch(FileRef(0, b"u" * 16, len(data), len(data), xxhash.xxh3_64_intdigest(data)))


def test_too_many_rows_of_nothing_are_not_made_into_a_list_I21():
    nothing = pa.Array.from_buffers(pa.null(), MOST_TABLE_ROWS + 1, [None])
    data = table_file(pa.table({"n": nothing}))
    assert len(data) < 1_000
    with pytest.raises(CorruptData, match="it would have 33554433 rows, and at most 33554432 are taken"):
        fetch(data)


def test_messages_that_overlap_are_refused_I21():
    """A footer of many rows that all name the same long message would take hours."""
    table = pa.concat_tables([pa.table({"n": [number]}) for number in range(20)])
    data = table_file(table)
    blocks = bounds.batch_blocks(memoryview(data))
    assert len(blocks) == 20
    lying = data
    for offset, header in blocks[1:]:
        first = struct.pack("<qi", blocks[0][0], len(data) // 15)
        lying = lying.replace(struct.pack("<qi", offset, header), first)
    with pytest.raises(CorruptData, match="its footer names messages that overlap"):
        fetch(lying)


def test_a_schema_of_a_million_columns_is_refused_before_it_is_read_I21(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "MOST_FOOTER_BYTES", 4_000)
    monkeypatch.setattr(entryfile, "MOST_FOOTER_BYTES", 4_000)
    columns = {f"c{number}": [1] for number in range(100)}
    with pytest.raises(CorruptData, match=r"footer would have \d+ bytes, and at most 4000 are taken"):
        fetch(table_file(pa.table(columns)))
    data, tail = entry_file(tmp_path, pa.RecordBatch.from_pydict(columns), "lz4", honest)
    with pytest.raises(CorruptData, match=r"footer would have \d+ bytes, and at most 4000 are taken"):
        read(data, tail, mapped=True, checked=True)


def test_a_file_that_says_to_have_a_terabyte_is_not_read_whole_I21(tmp_path):
    storage = open_storage(str(tmp_path))
    file = FileRef(0, b"u" * 16, 1 << 40, 1 << 40, 1)
    for path in (names.staged_file(UUID, 0, file.uid), names.versioned_file(UUID, 0, file.uid)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        with open(tmp_path / path, "wb") as sparse:
            sparse.truncate(1 << 40)
    readers = (
        lambda: TopicFiles(storage, UUID, SYSTEM_CLOCK).fetch(file),
        lambda: Blobs(storage, UUID, SYSTEM_CLOCK).fetch(file),
        lambda: storage.read_whole(names.versioned_file(UUID, 0, file.uid)),
        lambda: EntryReader(storage, UUID, file),
    )
    for reader in readers:
        with pytest.raises(CorruptData, match=r"1099511627776"):
            reader()


def test_a_head_that_counts_more_commits_than_any_ledger_has_is_refused_I21():
    """Whoever reads the topic would ask ZooKeeper for each of them."""
    head = Head(UUID, "t", 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, b"")
    key = HeadKey(UUID)
    assert codec.decode(key, codec.encode(key, head), "/head") == head
    for lying in (replace(head, next_commit=1 << 60), replace(head, schema_id=1 << 60)):
        with pytest.raises(CorruptData, match=r"node /head holds no valid Head: .* and none has more than"):
            codec.decode(key, codec.encode(key, lying), "/head")


def test_a_set_of_a_trillion_numbers_is_not_taken_one_by_one_I21():
    runs = Runs.unpack(Runs([(0, 1 << 40)]).pack(0), 0)
    assert len(runs) == 1 << 40
    with pytest.raises(CorruptData, match="at most 16777216 are taken one by one"):
        runs.numbers()


def test_rows_of_nothing_in_a_request_are_bounded_I21():
    schema = pa.schema([("n", pa.null())])
    count = 1 << 40
    nothing = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.null(), (1 << 31) - 1, [None])], schema=schema)
    packed = packed_rows.pack(nothing)
    lying = packed.replace(struct.pack("<q", (1 << 31) - 1), struct.pack("<q", count))
    assert lying != packed
    with pytest.raises(CorruptData):
        packed_rows.unpack(lying, schema, count, "a request")


def test_a_line_without_an_end_is_refused_I21(monkeypatch):
    monkeypatch.setattr(writing, "MOST_LINE_BYTES", 1_000)
    assert list(writing._Source(io.BytesIO(b"x" * 999 + b"\ny"))) == ["x" * 999 + "\n", "y"]
    with pytest.raises(InvalidInput, match="it has more than 1000 bytes"):
        list(writing._Source(io.BytesIO(b"x" * 1_001)))


# -- names ---------------------------------------------------------------------------------------------------------

NOT_NAMES = (
    "", ".", "..", "../x", "a/b", "/a", "a\\b", "a\n", "a\0", "a\x1b[2J", ".hidden", "-x", "a b", "x" * 201, "~", "a:b",
    "\u043erders", "\uff41", "a\u202eb", "\u2025", "caf\u00e9", "a\u200b", "\U0001d41a", "\u0661",
)  # fmt: skip
CHECKS = (names.check_topic_name, names.check_subscription_name, names.check_group_name, names.check_outbox_name)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", NOT_NAMES, ids=ascii)
def test_a_name_that_leads_elsewhere_or_looks_like_another_is_refused_I21(check, name):
    with pytest.raises(InvalidInput, match="cannot be a"):
        check(name)


LEADING_OUT = ("../victim", f"{UUID}/../../victim", "a/..", "..", "/etc/passwd", "a\0b", "../victim/kept.txt")


def doings(storage: Storage, path: str) -> dict[str, Callable[[], object]]:
    return {
        "make_folder": lambda: storage.make_folder(path),
        "remove_folder": lambda: storage.remove_folder(path),
        "create": lambda: storage.create(path),
        "write": lambda: storage.write(path, b"new"),
        "replace": lambda: storage.replace(path, b"new", f"{path}-new"),
        "size": lambda: storage.size(path),
        "read": lambda: storage.read(path, 0, 10),
        "map": lambda: storage.map(path),
        "list": lambda: list(storage.list(path)),
        "folders": lambda: storage.folders(path),
        "files": lambda: storage.files(path),
        "delete": lambda: storage.delete(path),
        "delete_many": lambda: storage.delete_many([path]),
        "delete_folder": lambda: storage.delete_folder(path),
    }


@pytest.fixture
def root(tmp_path) -> Path:
    """A root, and beside it what is nobody's business here."""
    (tmp_path / "root" / UUID / "00000000").mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "kept.txt").write_text("kept")
    return tmp_path / "root"


def outside(root: Path) -> dict[str, str]:
    found = (path for path in root.parent.rglob("*") if path.is_file() and not path.is_relative_to(root))
    return {str(path): path.read_text() for path in found}


@pytest.mark.parametrize("path", LEADING_OUT, ids=ascii)
def test_a_record_that_names_a_file_outside_of_the_root_is_refused_I21(root, path):
    storage, before = LocalStorage(root.as_uri()), outside(root)
    for name, do in doings(storage, path).items():
        with pytest.raises(CorruptData, match=rf"\[{OUTSIDE}\].*outside of the storage root"):
            do()
            pytest.fail(name)
    assert outside(root) == before


@pytest.mark.parametrize("path", LEADING_OUT, ids=ascii)
def test_and_so_it_is_in_an_object_store_I21(root, path):
    storage = ObjectStorage("s3://bucket/root?region=eu-west-1")
    for name in ("create", "size", "read", "list", "folders", "files", "delete", "delete_folder"):
        with pytest.raises(CorruptData, match=rf"\[{OUTSIDE}\]"):
            doings(storage, path)[name]()


def test_names_with_dots_are_taken(root):
    storage = LocalStorage(root.as_uri())
    storage.make_folder("outboxes")
    storage.write("outboxes/a..b/file...", b"x")
    assert list(storage.list("outboxes")) == ["outboxes/a..b/file..."]


# -- links ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [UUID, f"{UUID}/00000000"])
def test_nothing_is_read_written_or_deleted_through_a_link_in_the_root_I21(root, at):
    link = root / at
    for folder in sorted(link.rglob("*"), reverse=True):
        folder.rmdir()
    link.rmdir()
    link.symlink_to(root.parent / "victim")
    storage, before = LocalStorage(root.as_uri()), outside(root)
    below = doings(storage, f"{at}/kept.txt")
    for name in ("create", "write", "replace", "size", "read", "map", "delete", "delete_many"):
        with pytest.raises(CorruptData, match=rf"\[{OUTSIDE}\] .*{link.name} is a link"):
            below[name]()
    there = doings(storage, at)
    for name in ("make_folder", "remove_folder", "list", "folders", "files", "delete_folder"):
        with pytest.raises(CorruptData, match=rf"\[{OUTSIDE}\] .*{link.name} is a link"):
            there[name]()
    assert outside(root) == before
    assert link.name not in storage.folders("" if at == UUID else UUID)


def test_a_root_that_is_a_link_is_taken(root):
    link = root.parent / "mounted"
    link.symlink_to(root)
    storage = LocalStorage(link.as_uri())
    storage.write(f"{UUID}/00000000/file", b"x")
    assert (root / UUID / "00000000" / "file").read_bytes() == b"x"


def test_a_file_that_is_a_link_is_not_read_and_only_the_link_is_deleted_I21(root):
    storage, path = LocalStorage(root.as_uri()), f"{UUID}/secret"
    (root / path).symlink_to(root.parent / "victim" / "kept.txt")
    for read_it in (lambda: storage.read(path, 0, 10), lambda: storage.map(path)):
        with pytest.raises(LedgerError, match="secret"):
            read_it()
    storage.delete(path)
    assert outside(root) != {}


def test_a_pipe_in_the_root_makes_nobody_wait_I21(root):
    storage, path = LocalStorage(root.as_uri()), f"{UUID}/pipe"
    os.mkfifo(root / path)
    with pytest.raises(LedgerError, match="pipe"):
        storage.read(path, 0, 10)


# -- what is shown -------------------------------------------------------------------------------------------------


def test_a_name_that_gives_commands_to_the_terminal_is_spelled_I21(capsys):
    evil = "\x1b]0;owned\x07\x9b2J\u202egpj\r"
    output = ConsoleOutput()
    output.rows([{"name": evil, "position": Position(1, 2, 3)}], "none")
    output.rows([{"name": evil}] * 600, "none")
    output.facts({"name": evil, "below": [{"name": evil}]})
    output.done(f"deleted {evil}", {})
    output.record("1:2:3", {evil: evil})
    output.note(evil)
    said = "".join(capsys.readouterr())
    assert not set(said) & set(evil) - set("]0;owned2Jgpj")
    assert "\\u001b]0;owned\\u0007" in said
