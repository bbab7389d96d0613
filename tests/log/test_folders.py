"""A disk that is not mounted is never taken for an empty one, and a namespace has a storage that works."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.errors import Conflict, Unavailable
from pyspark_ledger.files.storage import open_storage
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import NamespaceKey
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def namespace(tmp_path, monkeypatch) -> OpenNamespace:
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    return OpenNamespace(MemoryMetadata(MemoryServer()), str(tmp_path / "root"))


def write(log: Log, n: int) -> None:
    with Producer(log) as producer:
        producer.send({"n": n})


def made_by_an_earlier_version(namespace: OpenNamespace, name: str) -> Log:
    """In ZooKeeper only."""
    topics.create_topic(namespace.metadata, name, SCHEMA)
    return namespace.log(name)


def test_a_topic_has_its_folder_from_the_beginning(namespace, tmp_path):
    topic = namespace.create_topic("t", SCHEMA)
    assert (tmp_path / "root" / topic.uuid).is_dir()
    with pytest.raises(Conflict, match="LEDGER_TOPIC_EXISTS"):
        namespace.create_topic("t", SCHEMA)
    assert [folder.name for folder in (tmp_path / "root").iterdir()] == [topic.uuid]


@pytest.mark.parametrize("mount_point", ["root", "above"])
def test_a_writer_whose_storage_is_not_mounted_refuses_by_name_and_writes_nothing_I1(namespace, tmp_path, mount_point):
    root, away = tmp_path / "root", tmp_path / "away"
    namespace.create_topic("t", SCHEMA)
    log = namespace.log("t")
    write(log, 1)
    root.rename(away)
    if mount_point == "root":
        root.mkdir()  # what a volume is mounted on is there without it
    for again in (log, namespace.log("t")):
        with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_MISSING.*is the storage mounted"):
            write(again, 2)
    with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_MISSING.*is the storage mounted"):
        namespace.create_topic("other", SCHEMA)
    assert topics.list_topics(namespace.metadata) == ["t"]
    assert not root.exists() or not list(root.iterdir())
    if root.exists():
        root.rmdir()
    away.rename(root)
    write(log, 2)
    assert log.refresh(sync=True).head.records == 2


def test_a_topic_of_an_earlier_version_gets_its_folder_with_its_first_record(namespace, tmp_path):
    _ = namespace.storage
    log = made_by_an_earlier_version(namespace, "old")
    (tmp_path / "root").rmdir()  # an earlier version did not make it either
    write(log, 1)
    assert (tmp_path / "root" / log.topic.uuid).is_dir()


def test_a_topic_without_records_does_not_bring_the_root_back_I1(namespace, tmp_path):
    log = made_by_an_earlier_version(namespace, "old")
    namespace.create_topic("t", SCHEMA)
    write(namespace.log("t"), 1)
    (tmp_path / "root").rename(tmp_path / "away")
    with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_MISSING"):
        write(log, 1)
    assert not (tmp_path / "root").exists()


def test_a_storage_that_cannot_be_written_is_not_recorded_I16(tmp_path):
    metadata = MemoryMetadata(MemoryServer())
    (tmp_path / "file").write_text("no folder")
    for bad in ("/proc/nope", str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_UNAVAILABLE"):
            OpenNamespace(metadata, bad).create_topic("t", SCHEMA)
        assert metadata.read(NamespaceKey()) is None
    good = OpenNamespace(metadata, str(tmp_path / "root"))
    good.create_topic("t", SCHEMA)
    write(good.log("t"), 1)


def test_an_object_store_is_proved_too(s3_root):
    namespace = OpenNamespace(MemoryMetadata(MemoryServer()), s3_root)
    assert list(namespace.storage.list("")) == []  # nothing is left of the proof
    namespace.create_topic("t", SCHEMA)
    write(namespace.log("t"), 1)
    bad = MemoryMetadata(MemoryServer())
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_UNAVAILABLE"):
        OpenNamespace(bad, s3_root.replace("s3://ledger/", "s3://no-such-bucket/")).create_topic("t", SCHEMA)
    assert bad.read(NamespaceKey()) is None


def test_two_spellings_of_one_place_are_proved_once(tmp_path):
    metadata = MemoryMetadata(MemoryServer())
    assert topics.storage_root(metadata, str(tmp_path)) == topics.storage_root(metadata, f"file:{tmp_path}/")
    assert list(open_storage(str(tmp_path)).list("")) == []
