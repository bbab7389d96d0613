"""The small files of a topic: what is written is what is read, whatever fields a record has now or gets later."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.files.topicfiles import RowCodec, TopicFiles
from pyspark_ledger.log.index import Index, IndexRow, stage_leaf
from pyspark_ledger.metadata.records import Commit, Entry, FileRef, ProducerState
from tests.support.records import a_uuid, filled


@pytest.fixture
def files(tmp_path) -> TopicFiles:
    storage = open_storage(str(tmp_path))
    storage.make_folder(a_uuid(1))
    return TopicFiles(storage, a_uuid(1), SYSTEM_CLOCK)


@pytest.mark.parametrize("kind", [FileRef, Entry, Commit, IndexRow, ProducerState], ids=lambda kind: kind.__name__)
def test_every_field_is_stored(files, kind):
    rows = RowCodec(kind)
    records = [filled(kind), filled(kind, a_uuid)]
    file = files.stage([rows.dump(record) for record in records], rows.schema, 0)
    assert [rows.load(row) for row in files.fetch(file)] == records


def test_a_sealed_commit_keeps_every_field(files):
    commits = [filled(Commit), filled(Commit, a_uuid)]
    assert Index(files, ()).commits(stage_leaf(files, commits, 0)) == commits


@dataclass(frozen=True)
class Shelf:
    name: str
    file: FileRef | None = None


@dataclass(frozen=True)
class LaterShelf:
    name: str
    file: FileRef | None = None
    places: tuple[int, ...] = (7,)


def test_a_file_from_before_a_field_was_added_gives_its_default(files):
    old, new = RowCodec(Shelf), RowCodec(LaterShelf)
    records = [Shelf("a"), Shelf("b", filled(FileRef))]
    file = files.stage([old.dump(record) for record in records], old.schema, 0)
    assert [new.load(row) for row in files.fetch(file)] == [LaterShelf("a"), LaterShelf("b", filled(FileRef))]


def test_a_column_that_came_later_is_passed_over(files):
    old, new = RowCodec(Shelf), RowCodec(LaterShelf)
    file = files.stage([new.dump(LaterShelf("a", filled(FileRef), (1, 2)))], new.schema, 0)
    assert [old.load(row) for row in files.fetch(file)] == [Shelf("a", filled(FileRef))]
