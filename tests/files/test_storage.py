"""Storage: durable before it is named, and an error is never swallowed."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading

import pytest

from pyspark_ledger.errors import CorruptData, InvalidInput, Unavailable
from pyspark_ledger.files import storage as module
from pyspark_ledger.files.storage import LocalStorage, Storage, normalise_uri, open_storage


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
    sink = open_storage(str(tmp_path / "root")).create("a/b/file")
    sink.write(b"x")
    file, *folders = ((tmp_path / name).stat().st_ino for name in ("root/a/b/file", "root/a/b", "root/a", "root", "."))
    assert file not in disk.synced()
    sink.close()
    assert disk.synced()[-2:] == [file, folders[0]]
    assert set(folders) <= set(disk.synced())
    assert {call for call, _ in disk.calls} == {"fsync" if sys.platform == "linux" else "F_FULLFSYNC"}


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
    with pytest.raises(OSError, match="the disk is broken"):
        open_storage(str(tmp_path)).write("file", b"x")
    assert disk.calls == []


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_an_error_of_a_sync_in_the_background_fails_the_write_I1(tmp_path, monkeypatch, call):
    """The sync in the background is fdatasync, or fsync where there is none."""
    syncing = threading.Event()

    def broken(fd):
        syncing.set()
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(module._LocalSink, "SYNC_EVERY_BYTES", 10)
    monkeypatch.setattr(os, call, broken, raising=False)
    if call == "fsync":
        monkeypatch.delattr(os, "fdatasync", raising=False)
    sink = open_storage(str(tmp_path)).create("file")
    sink.write(b"x" * 100)
    assert syncing.wait(30)
    monkeypatch.undo()  # the disk tells it once
    with pytest.raises(OSError, match="the disk is broken"):
        sink.close()


def test_a_file_is_never_overwritten(tmp_path):
    storage = open_storage(str(tmp_path))
    storage.create("file").close()
    with pytest.raises(FileExistsError):
        storage.create("file")


# -- what is not as it should be -----------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "s3"])
def storage(request, tmp_path) -> Storage:
    return open_storage(str(tmp_path / "root") if request.param == "folder" else request.getfixturevalue("s3_root"))


def test_a_file_that_is_not_there_is_an_error_that_names_it(storage):
    looks = [lambda: storage.size("a/b"), lambda: storage.read("a/b", 0, 1)]
    if isinstance(storage, LocalStorage):
        looks.append(lambda: storage.map("a/b"))
    for look in looks:
        with pytest.raises(CorruptData, match=r"LEDGER_FILE_MISSING.*/a/b is missing, but ZooKeeper names it"):
            look()
    assert list(storage.list("a")) == []
    storage.delete("a/b")  # what is gone may be deleted


def test_a_storage_that_refuses_is_unavailable_and_not_taken_for_damage(s3_root, monkeypatch):
    class Refusing:
        def open_input_file(self, path):
            raise OSError(f"access to {path} denied")

    storage = open_storage(s3_root)
    monkeypatch.setattr(storage, "_fs", Refusing())
    with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_UNAVAILABLE.*cannot read s3://.*/a/b: access to .* denied"):
        storage.read("a/b", 0, 1)


def test_a_folder_that_cannot_be_made_is_unavailable_by_name(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_UNAVAILABLE.*cannot make the folder .*/file: .*"):
        open_storage(str(tmp_path / "file")).create("a/b")


def test_a_write_that_fails_is_an_error_and_closes_its_file(tmp_path, monkeypatch):
    def full(fd, data):
        raise OSError(errno.ENOSPC, "the disk is full")

    before = len(os.listdir("/dev/fd"))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="the disk is full"):
        open_storage(str(tmp_path)).write("a/b", b"x")
    monkeypatch.undo()
    assert len(os.listdir("/dev/fd")) == before
