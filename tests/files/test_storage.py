"""Storage: durable before it is named, and an error is never swallowed."""

from __future__ import annotations

import errno
import os

import pytest

from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.files import storage as module
from pyspark_ledger.files.storage import normalise_uri, open_storage


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


def test_an_unknown_storage_is_an_error_by_name():
    with pytest.raises(InvalidInput, match=r"LEDGER_INVALID_STORAGE.*floppy://a"):
        open_storage("floppy://a/b")


def test_file_and_folders_are_synced_before_close_returns_I1(tmp_path, monkeypatch):
    synced: list[str] = []
    original = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), original(fd))[1])
    sink = open_storage(str(tmp_path / "root")).create("a/b/file")
    sink.write(b"x")
    assert str(tmp_path / "root/a/b/file") not in synced
    sink.close()
    assert synced[-2:] == [str(tmp_path / "root/a/b/file"), str(tmp_path / "root/a/b")]
    assert {str(tmp_path), str(tmp_path / "root"), str(tmp_path / "root/a")} <= set(synced)


def test_an_error_of_a_sync_in_the_background_fails_the_write_I1(tmp_path, monkeypatch):
    def broken(fd):
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(module._LocalSink, "SYNC_EVERY_BYTES", 10)
    monkeypatch.setattr(os, "fdatasync", broken)
    sink = open_storage(str(tmp_path)).create("file")
    sink.write(b"x" * 100)
    with pytest.raises(OSError, match="the disk is broken"):
        sink.close()


def test_a_file_is_never_overwritten(tmp_path):
    storage = open_storage(str(tmp_path))
    storage.create("file").close()
    with pytest.raises(FileExistsError):
        storage.create("file")
