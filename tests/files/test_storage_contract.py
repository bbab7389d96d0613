"""What every storage with folders promises: a real folder, and the disk in memory that stands for it in simulations."""

from __future__ import annotations

import pytest

from pyspark_ledger.errors import CorruptData, Unavailable
from pyspark_ledger.files.storage import LocalStorage, Storage
from pyspark_ledger.testing.disk import Disk, MemoryStorage


@pytest.fixture(params=["folder", "memory"])
def bare(request, tmp_path) -> Storage:
    """Its root is not made yet."""
    marker = "ledger-namespace-1"
    if request.param == "folder":
        return LocalStorage((tmp_path / "root").as_uri(), marker)
    return MemoryStorage(Disk(), marker=marker)


@pytest.fixture
def storage(bare) -> Storage:
    bare.make_folder("")
    bare.write(bare.marker, b"")
    bare.make_folder("topic")
    return bare


def content(storage: Storage, path: str) -> bytes:
    return storage.read(path, 0, 1_000).to_pybytes()


def test_what_is_written_is_read_whole_or_in_part(storage):
    sink = storage.create("topic/00000000/file")
    assert [sink.write(part) for part in (b"abc", memoryview(b"defg"))] == [3, 4]
    sink.close()
    assert content(storage, "topic/00000000/file") == b"abcdefg"
    assert storage.map("topic/00000000/file").to_pybytes() == b"abcdefg"
    assert storage.size("topic/00000000/file") == 7
    parts = [storage.read("topic/00000000/file", *part).to_pybytes() for part in ((2, 3), (5, 9), (7, 1), (99, 1))]
    assert parts == [b"cde", b"fg", b"", b""]


def test_a_file_without_a_byte_is_a_file(storage):
    storage.create("topic/file").close()
    assert (storage.size("topic/file"), content(storage, "topic/file")) == (0, b"")
    assert storage.map("topic/file").to_pybytes() == b""


def test_a_file_is_never_overwritten_I1(storage):
    storage.write("topic/file", b"first")
    with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_UNAVAILABLE.*topic/file.*there is a file of that name"):
        storage.write("topic/file", b"second")
    assert content(storage, "topic/file") == b"first"


def test_a_file_that_was_abandoned_is_left_as_it_is(storage):
    sink = storage.create("topic/file")
    sink.write(b"a part")
    sink.abandon()
    sink.abandon()
    assert list(storage.list("topic")) == ["topic/file"]


def test_a_replaced_file_is_the_new_one_and_nothing_is_left(storage):
    for data in (b"first", b"second"):
        storage.replace("topic/file", data, "topic/temporary")
        assert content(storage, "topic/file") == data
    assert list(storage.list("topic")) == ["topic/file"]


def test_files_are_listed_below_their_folder_and_no_other(storage):
    storage.make_folder("topical")
    paths = ["topic/00000000/a", "topic/00000001/b", "topic/tokens/g/c", "topical/d"]
    for path in paths:
        storage.write(path, b"x")
    assert sorted(storage.list("topic")) == paths[:3]
    assert sorted(storage.list("")) == [storage.marker, *paths]
    assert list(storage.list("nowhere")) == []


def test_what_is_deleted_is_gone_and_may_be_deleted_again(storage):
    storage.write("topic/file", b"x")
    for _ in range(2):
        storage.delete("topic/file")
        assert list(storage.list("topic")) == []
    for look in (storage.size, storage.map, lambda path: storage.read(path, 0, 1)):
        with pytest.raises(CorruptData, match=r"LEDGER_FILE_MISSING.*/topic/file is missing. ZooKeeper named it"):
            look("topic/file")


def test_a_writer_makes_neither_the_root_nor_what_is_right_below_it_I1(bare):
    assert bare.is_bare()
    for call in (lambda: bare.create("topic/file"), lambda: bare.create("file"), lambda: bare.read("topic/file", 0, 1)):
        with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_MISSING.*is not there: is the storage mounted"):
            call()
    assert not bare.has_folder("")


def test_without_its_marker_a_root_is_not_the_right_one_I1(bare):
    bare.make_folder("")
    for call in (bare.check_marked, lambda: bare.make_folder("topic")):
        with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_MISSING.*ledger-namespace-1 is not there"):
            call()
    bare.write(bare.marker, b"")
    bare.check_marked()
    bare.make_folder("topic")
    assert bare.has_folder("topic")
    assert not bare.is_bare()


def test_a_folder_is_removed_only_if_it_has_no_files(storage):
    storage.make_folder("empty")
    storage.write("topic/00000000/file", b"x")
    for folder in ("empty", "topic", "nowhere"):
        storage.remove_folder(folder)
    assert [storage.has_folder(folder) for folder in ("empty", "topic")] == [False, True]
    storage.make_folder("empty")
    storage.write("empty/file", b"x")


def test_a_probe_leaves_nothing(bare):
    bare.prove_usable("probe")
    assert bare.is_bare()
