"""A namespace is told that its files are elsewhere: only if they are, or if it has none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pyspark_ledger.base import names
from pyspark_ledger.client import client_of
from pyspark_ledger.errors import Conflict, Unavailable
from pyspark_ledger.files import storage
from pyspark_ledger.lifecycle import set_storage
from pyspark_ledger.lifecycle.moving import Mover
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import NamespaceKey
from pyspark_ledger.metadata.records import Namespace
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata, MemoryServer
from tests.support.moving import SCHEMA, TOPIC, Movable, whatever_happens


@pytest.fixture
def movable(tmp_path, monkeypatch) -> Movable:
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    monkeypatch.setattr(storage, "_make_durable", lambda _: None)
    return Movable(tmp_path)


def set_to(movable: Movable, to: str, faults: Faults | None = None) -> set_storage.Setting:
    return set_storage.set_storage(movable.mover(faults), to)


def test_a_folder_that_somebody_has_moved_is_found_again_I1(movable):
    before, client = movable.everything(), movable.client()
    producer = client.producer(TOPIC)
    Path(movable.old).rename(movable.new)
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        producer.send({"k": "a", "n": 7}).result()
    assert set_storage.inspect(movable.mover(), movable.new).why == "the files are there"
    set_to(movable, movable.new)
    assert movable.everything() == before
    with pytest.raises(Conflict, match="LEDGER_STORAGE_MOVED"):
        producer.send({"k": "a", "n": 7}).result()
    movable.write(client, 7)
    assert movable.everything()["records"] == [*range(8)]
    assert not os.path.exists(movable.old)


def test_the_former_root_of_a_copy_is_not_taken_for_the_storage_any_more_I1(movable):
    shutil.copytree(movable.old, movable.new)
    set_to(movable, movable.new)
    assert not any(map(names.is_marker_file, os.listdir(movable.old)))
    movable.write(movable.client(), 7)
    with pytest.raises(Conflict, match="LEDGER_NOT_THE_STORAGE"):
        set_to(movable, movable.old)


def test_the_same_place_may_get_another_name_and_keeps_its_marker_I1(movable):
    Path(movable.new).symlink_to(movable.old)
    set_to(movable, movable.new)
    movable.write(movable.client(), 7)
    assert movable.record().storage.endswith("/new")
    assert any(map(names.is_marker_file, os.listdir(movable.old)))
    set_to(movable, movable.old)
    assert movable.everything()["records"] == [*range(8)]


def test_a_copy_that_was_made_too_early_is_refused_and_writing_goes_on_I1(movable):
    shutil.copytree(movable.old, movable.new)
    movable.write(movable.client(), 7)
    with pytest.raises(Conflict, match=r"LEDGER_INCOMPLETE.*topic 't'.*is missing.*copy all files again"):
        set_to(movable, movable.new)
    movable.write(movable.client(), 8)
    assert movable.everything()["records"] == [*range(9)]


def test_what_is_written_while_it_looks_is_not_lost_I1(movable):
    """Complete at the first look, and not any more at the second, when everybody is refused."""
    shutil.copytree(movable.old, movable.new)
    mover, writer = movable.mover(), movable.client()
    real = mover.begin

    def overtaken(known: Namespace, to: str) -> Namespace:
        mover.begin = real  # it is called again, to go back
        movable.write(writer, 7)
        return real(known, to)

    mover.begin = overtaken
    with pytest.raises(Conflict, match="LEDGER_INCOMPLETE"):
        set_storage.set_storage(mover, movable.new)
    assert movable.record().storage.endswith("/old")
    movable.write(movable.client(), 8)
    assert movable.everything()["records"] == [*range(9)]


def test_a_wrong_root_is_refused_and_the_error_says_what_to_do_I1(movable, tmp_path):
    with pytest.raises(Conflict, match=r"LEDGER_NOT_THE_STORAGE.*move-storage --to .*/third --yes.*ledger-namespace-"):
        set_to(movable, str(tmp_path / "third"))
    assert not (tmp_path / "third").exists()
    assert movable.record().moves == 0


def made_with_a_wrong_path(tmp_path: Path) -> MemoryMetadata:
    metadata = MemoryMetadata(MemoryServer())
    client = client_of(OpenNamespace(metadata, str(tmp_path / "wrong")))
    client.create_topic("t", SCHEMA)
    return metadata


def test_a_namespace_without_records_gets_the_right_place_I1(tmp_path):
    metadata = made_with_a_wrong_path(tmp_path)
    shutil.rmtree(tmp_path / "wrong")
    set_storage.set_storage(Mover(metadata), str(tmp_path / "right"))
    client = client_of(OpenNamespace(metadata))
    with client.producer("t") as producer:
        producer.send({"k": "a", "n": 1})
    assert [record["n"] for record in client.reader("t", end="latest")] == [1]
    assert not (tmp_path / "wrong").exists()
    with pytest.raises(Conflict, match="LEDGER_NOT_THE_STORAGE"):
        set_storage.set_storage(Mover(metadata), str(tmp_path / "other"))


def test_a_namespace_that_could_not_even_be_marked_gets_a_place_that_works(tmp_path):
    metadata, faults = MemoryMetadata(MemoryServer()), Faults()
    faults.crash_at(2)
    maker = OpenNamespace(MemoryMetadata(metadata._server, faults), str(tmp_path / "gone"))
    assert whatever_happens(lambda: maker.storage, Crash) is not None
    shutil.rmtree(tmp_path / "gone")
    (tmp_path / "gone").write_text("no folder any more")
    with pytest.raises(Unavailable):
        _ = OpenNamespace(metadata).storage
    set_storage.set_storage(Mover(metadata), str(tmp_path / "right"))
    assert metadata.read(NamespaceKey()).record.marked
    client_of(OpenNamespace(metadata)).create_topic("t", SCHEMA)


@pytest.mark.parametrize("applied", [False, True])
def test_who_is_killed_on_the_way_is_finished_by_the_next_one_I1(movable, applied):
    steps = 0
    while True:
        steps += 1
        movable.reset()
        Path(movable.old).rename(movable.new)
        faults = Faults()
        faults.crash_at(steps, applied=applied)
        mover = movable.mover(faults)
        error = whatever_happens(lambda mover=mover: set_storage.set_storage(mover, movable.new), Crash)
        mover.metadata.close()
        if error is None:
            break
        set_to(movable, movable.new)
        movable.write(movable.client(), 7)
        assert movable.everything()["records"] == [*range(8)]
    assert steps > 5
