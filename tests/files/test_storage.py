"""Storage: durable before it is named, and an error is never swallowed."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading

import pyarrow as pa
import pytest

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.errors import CorruptData, InvalidInput, Unavailable
from pyspark_ledger.files import storage as module
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.files.storage import LocalStorage, ObjectStorage, Storage, normalise_uri, open_storage


@pytest.mark.parametrize(
    ("spelling", "uri"),
    [
        ("/data/ledger", "file:///data/ledger"),
        ("/data/ledger/", "file:///data/ledger"),
        ("file:/data/ledger", "file:///data/ledger"),
        ("file:///data/a%20b", "file:///data/a%20b"),
        ("s3a://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket/p?region=eu", "s3://bucket/p?region=eu"),
    ],
)
def test_one_place_has_one_spelling(spelling, uri):
    assert normalise_uri(spelling) == uri


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_storage_is_an_error_by_name(text):
    with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_STORAGE.*empty: give a folder or a URI"):
        normalise_uri(text)


def test_an_unknown_storage_is_an_error_by_name():
    with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_STORAGE.*floppy://a"):
        open_storage("floppy://a/b")


class Disk:
    """Who was synced, and by which call; as on Linux, or as on macOS, wherever the test runs."""

    F_FULLFSYNC = 51

    def __init__(self, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, int]] = []
        self.refuses: OSError | None = None
        self._fsync = os.fsync
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", self.F_FULLFSYNC, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", self.fcntl)
        if platform == "darwin":
            monkeypatch.delattr(os, "fdatasync", raising=False)

    def fsync(self, fd: int) -> None:
        self.calls.append(("fsync", os.fstat(fd).st_ino))
        self._fsync(fd)

    def fcntl(self, fd: int, command: int) -> None:
        assert command == self.F_FULLFSYNC
        if self.refuses:
            raise self.refuses
        self.calls.append(("F_FULLFSYNC", os.fstat(fd).st_ino))

    def synced(self) -> list[int]:
        return [inode for _, inode in self.calls]


@pytest.fixture(params=["linux", "darwin"])
def disk(request, monkeypatch) -> Disk:
    return Disk(request.param, monkeypatch)


def test_file_and_folders_are_synced_before_close_returns_I1(tmp_path, disk):
    storage = open_storage(str(tmp_path / "root"))
    storage.make_folder("")
    storage.make_folder("a")
    sink = storage.create("a/b/file")
    sink.write(b"x")
    file, *folders = ((tmp_path / name).stat().st_ino for name in ("root/a/b/file", "root/a/b", "root/a", "root", "."))
    assert file not in disk.synced()
    sink.close()
    assert disk.synced()[-2:] == [file, folders[0]]
    assert set(folders) <= set(disk.synced())
    assert {call for call, _ in disk.calls} == {"fsync" if sys.platform == "linux" else "F_FULLFSYNC"}


def test_a_folder_that_another_process_made_and_did_not_sync_is_synced_I1(tmp_path, disk):
    """The other one may have crashed between making it and syncing it."""
    (tmp_path / "root/topic/00000001").mkdir(parents=True)
    LocalStorage((tmp_path / "root").as_uri()).write("topic/00000001/file", b"x")
    above = ("root/topic/00000001", "root/topic", "root", ".")
    assert {(tmp_path / name).stat().st_ino for name in above} <= set(disk.synced())


def test_folders_are_synced_once_in_a_process(tmp_path, disk):
    storage = LocalStorage(tmp_path.as_uri())
    storage.make_folder("topic")
    storage.write("topic/00000001/first", b"x")
    before = len(disk.calls)
    storage.write("topic/00000001/second", b"x")
    file, folder = (tmp_path / name for name in ("topic/00000001/second", "topic/00000001"))
    assert disk.synced()[before:] == [file.stat().st_ino, folder.stat().st_ino]


def test_a_file_that_is_replaced_is_durable_under_its_own_name_I16(tmp_path, disk):
    storage = LocalStorage(tmp_path.as_uri())
    storage.replace("marker", b"x", "temporary")
    file, folder = (path.stat().st_ino for path in (tmp_path / "marker", tmp_path))
    assert disk.synced()[-3:] == [file, folder, folder], "after it was written, and after it was renamed"


def test_a_storage_that_does_not_keep_what_is_written_is_refused_I1(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalStorage, "read", lambda *_: pa.py_buffer(b"something else"))
    with pytest.raises(Unavailable, match="is not the same"):
        LocalStorage(tmp_path.as_uri()).prove_usable("probe")


def test_long_files_are_synced_on_the_way_and_at_the_end_I1(tmp_path, monkeypatch, disk):
    monkeypatch.setattr(module._LocalSink, "SYNC_EVERY_BYTES", 10)
    sink = open_storage(str(tmp_path)).create("file")
    for _ in range(10):
        sink.write(b"x" * 100)
    sink.close()
    assert (tmp_path / "file").read_bytes() == b"x" * 1_000
    assert disk.synced()[-2:] == [(tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino]


def test_a_file_system_without_a_full_sync_gets_an_ordinary_one_I1(tmp_path, monkeypatch):
    disk = Disk("darwin", monkeypatch)
    disk.refuses = OSError(errno.ENOTSUP, "not supported")
    open_storage(str(tmp_path)).write("file", b"x")
    assert disk.calls[-2:] == [("fsync", (tmp_path / "file").stat().st_ino), ("fsync", tmp_path.stat().st_ino)]


def test_an_error_of_a_full_sync_fails_the_write_I1(tmp_path, monkeypatch):
    """An ordinary sync afterwards would succeed: a lost page is reported only once."""
    disk = Disk("darwin", monkeypatch)
    disk.refuses = OSError(errno.EIO, "the disk is broken")
    with pytest.raises(Unavailable, match="the disk is broken"):
        open_storage(str(tmp_path)).write("file", b"x")
    assert disk.calls == []


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_an_error_of_a_sync_in_the_background_fails_the_write_I1(tmp_path, monkeypatch, call):
    """The sync in the background is fdatasync, or fsync where there is none."""
    syncing = threading.Event()

    def broken(fd):
        syncing.set()
        raise OSError(errno.EIO, "the disk is broken")

    sink = open_storage(str(tmp_path)).create("file")
    monkeypatch.setattr(module._LocalSink, "SYNC_EVERY_BYTES", 10)
    monkeypatch.setattr(os, call, broken, raising=False)
    if call == "fsync":
        monkeypatch.delattr(os, "fdatasync", raising=False)
    sink.write(b"x" * 100)
    assert syncing.wait(30)
    monkeypatch.undo()  # the disk tells it once
    with pytest.raises(Unavailable, match="the disk is broken"):
        sink.close()


def test_a_file_is_never_overwritten(tmp_path):
    storage = open_storage(str(tmp_path))
    storage.create("file").close()
    with pytest.raises(Unavailable, match="File exists"):
        storage.create("file")


# -- what is not as it should be -----------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "s3"])
def storage(request, tmp_path) -> Storage:
    uri = str(tmp_path / "root") if request.param == "folder" else request.getfixturevalue("s3_root")
    storage = open_storage(uri)
    for folder in ("", "a"):
        storage.make_folder(folder)
    return storage


def test_a_file_that_is_not_there_is_an_error_that_names_it(storage):
    looks = [lambda: storage.size("a/b"), lambda: storage.read("a/b", 0, 1)]
    if isinstance(storage, LocalStorage):
        looks.append(lambda: storage.map("a/b"))
    for look in looks:
        with pytest.raises(CorruptData, match=r"LEDGER_FILE_MISSING.*/a/b is missing. ZooKeeper named it"):
            look()
    assert list(storage.list("a")) == []
    storage.delete("a/b")  # what is gone may be deleted


def test_a_write_that_fails_is_an_error_and_closes_its_file(tmp_path, monkeypatch):
    def full(fd, data):
        raise OSError(errno.ENOSPC, "the disk is full")

    storage = open_storage(str(tmp_path))
    storage.make_folder("a")
    before = len(os.listdir("/dev/fd"))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Unavailable, match="the disk is full"):
        storage.write("a/b", b"x")
    monkeypatch.undo()
    assert len(os.listdir("/dev/fd")) == before


# -- what the disk says ------------------------------------------------------------------------------------------

CALLS = {
    "create": lambda storage: storage.create("folder/new"),
    "write": lambda storage: storage.write("folder/new", b"x"),
    "size": lambda storage: storage.size("folder/file"),
    "read": lambda storage: storage.read("folder/file", 0, 1),
    "map": lambda storage: storage.map("folder/file"),
    "list": lambda storage: list(storage.list("folder")),
    "delete": lambda storage: storage.delete("folder/file"),
}


def told(storage: Storage, call: str) -> str:
    """What is said when the call fails; empty if it does not."""
    try:
        CALLS[call](storage)
    except Unavailable as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "No space left on device; make room there"),
        (errno.EACCES, "Permission denied; give the user of this process access"),
        (errno.EROFS, "Read-only file system; mount it for writing"),
        (errno.EIO, "Input/output error; see to the disk"),
    ],
)
@pytest.mark.parametrize("call", CALLS)
def test_what_a_disk_refuses_has_a_code_the_file_and_what_to_do_I16(tmp_path, monkeypatch, call, number, advice):
    storage = LocalStorage(tmp_path.as_uri())
    storage.make_folder("folder")
    storage.write("folder/file", b"x")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "folder"))

    broken = {
        "create": "open",
        "write": "write",
        "size": "stat",
        "read": "pread",
        "list": "scandir",
        "delete": "unlink",
    }
    with monkeypatch.context() as patch:
        if call == "map":
            patch.setattr("mmap.mmap", refuse)
        else:
            patch.setattr(os, broken[call], refuse)
        said = told(storage, call)
    assert said.startswith("[LEDGER_STORAGE_UNAVAILABLE] cannot ")
    assert str(tmp_path / "folder") in said
    assert advice in said


def test_a_full_disk_is_told_through_arrow_I16(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    (tmp_path / "topic").mkdir()
    rows = pa.RecordBatch.from_pydict({"n": [1]})
    with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_UNAVAILABLE.*topic/00000000/.*make room"):
        stage_entry(LocalStorage(tmp_path.as_uri()), "topic", 0, [rows], "lz4", SYSTEM_CLOCK)


def test_a_file_in_place_of_a_folder_is_told_I16(tmp_path):
    (tmp_path / "root").write_text("a file")
    storage = LocalStorage((tmp_path / "root").as_uri())
    for call in ("create", "write"):
        assert told(storage, call).startswith("[LEDGER_STORAGE_MISSING]"), call
    for call in ("size", "read", "list"):
        assert told(storage, call).startswith("[LEDGER_STORAGE_UNAVAILABLE]"), call
    with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_UNAVAILABLE.*there is a file of that name: move that"):
        storage.prove_usable("probe")


@pytest.mark.parametrize("call", [call for call in CALLS if call != "map"])
def test_what_an_object_store_refuses_has_a_code_and_the_object_I16(call, monkeypatch):
    class Refusing:
        def __getattr__(self, name: str) -> object:
            raise OSError("AWS Error ACCESS_DENIED")

    storage = ObjectStorage("s3://bucket/prefix?region=eu-west-1")
    monkeypatch.setattr(ObjectStorage, "_fs", Refusing())
    said = told(storage, call)
    assert said.startswith("[LEDGER_STORAGE_UNAVAILABLE]")
    assert "s3://bucket/prefix" in said
    assert "ACCESS_DENIED; see to the credentials" in said


def test_an_object_is_named_without_the_settings_of_its_store():
    """An error may ask a person to make it, or to restore it; and settings may be secret."""
    storage = ObjectStorage("s3://bucket/prefix?region=eu-west-1&scheme=http")
    assert storage.where("folder/file") == "s3://bucket/prefix/folder/file"


def test_an_upload_that_fails_has_a_code_and_the_object_I16():
    class Stream:
        def write(self, data: bytes) -> None: ...

        def close(self) -> None:
            raise OSError("AWS Error NETWORK_CONNECTION")

    sink = module._ObjectSink(Stream(), "s3://bucket/prefix/file")
    with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_UNAVAILABLE.*s3://bucket/prefix/file.*NETWORK"):
        sink.close()
    sink.abandon()


def test_a_file_that_is_named_and_not_there_is_missing(tmp_path):
    storage = LocalStorage(tmp_path.as_uri())
    storage.make_folder("folder")
    for call in (storage.size, storage.map, lambda path: storage.read(path, 0, 1)):
        with pytest.raises(CorruptData, match="LEDGER_FILE_MISSING"):
            call("folder/file")


# -- a disk that is not mounted -----------------------------------------------------------------------------------


def test_a_writer_makes_neither_the_root_nor_what_is_right_below_it_I1(tmp_path):
    """Else a volume that is not mounted would be taken for an empty one, and the log split over two disks."""
    root = tmp_path / "root"
    storage = LocalStorage(root.as_uri())
    with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_MISSING.*root/topic is not there: is the storage mounted"):
        storage.create("topic/00000000/file")
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        storage.make_folder("topic")
    assert not root.exists()


def test_a_disk_that_is_unmounted_under_a_process_is_noticed_I1(tmp_path):
    root, away = tmp_path / "root", tmp_path / "away"
    storage = LocalStorage(root.as_uri())
    storage.make_folder("")
    storage.make_folder("topic")
    storage.write("topic/00000000/first", b"x")
    root.rename(away)
    for _ in range(2):
        with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
            storage.write("topic/00000000/second", b"x")
        with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
            storage.read("topic/00000000/first", 0, 1)
    assert not root.exists()
    away.rename(root)
    storage.write("topic/00000000/second", b"x")
    assert sorted(storage.list("topic")) == ["topic/00000000/first", "topic/00000000/second"]
