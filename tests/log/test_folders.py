"""A disk that is not mounted is never taken for an empty one, and a namespace has a storage that works."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base import names
from pyspark_ledger.client import client_of
from pyspark_ledger.errors import Conflict, Unavailable
from pyspark_ledger.files.storage import LocalStorage, open_storage
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.log import folders, root, topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import Create, NamespaceKey, Put
from pyspark_ledger.metadata.records import Namespace
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata, MemoryServer

SCHEMA = pa.schema([("n", pa.int64())])
KEYED = pa.schema([("n", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def namespace(tmp_path, monkeypatch) -> OpenNamespace:
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)
    return OpenNamespace(MemoryMetadata(MemoryServer()), str(tmp_path / "root"))


def write(log: Log, n: int) -> None:
    with Producer(log) as producer:
        producer.send({"n": n})


def marker(namespace: OpenNamespace) -> str:
    found = namespace.metadata.read(NamespaceKey())
    assert found.record.marked
    return f"ledger-namespace-{found.record.id.hex()}"


def in_root(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "root").iterdir()}


def made_by_an_earlier_version(namespace: OpenNamespace, name: str) -> Log:
    """In ZooKeeper only."""
    topics.create_topic(namespace.metadata, name, SCHEMA)
    return namespace.log(name)


def test_a_topic_has_its_folder_from_the_beginning(namespace, tmp_path):
    topic = namespace.create_topic("t", SCHEMA)
    assert (tmp_path / "root" / topic.uuid).is_dir()
    with pytest.raises(Conflict, match="LEDGER_TOPIC_EXISTS"):
        namespace.create_topic("t", SCHEMA)
    assert in_root(tmp_path) == {topic.uuid, marker(namespace)}


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
    log = made_by_an_earlier_version(namespace, "old")
    write(log, 1)
    assert (tmp_path / "root" / log.topic.uuid).is_dir()


@pytest.mark.parametrize("mount_point", ["root", "above"])
def test_a_topic_without_records_does_not_bring_the_root_back_I1(namespace, tmp_path, mount_point):
    log = made_by_an_earlier_version(namespace, "old")
    (tmp_path / "root").rename(tmp_path / "away")
    if mount_point == "root":
        (tmp_path / "root").mkdir()
    with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_MISSING"):
        write(log, 1)
    assert not (tmp_path / "root").exists() or in_root(tmp_path) == set()


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


def test_an_object_store_is_proved_and_marked_too(s3_root):
    namespace = OpenNamespace(MemoryMetadata(MemoryServer()), s3_root)
    assert list(namespace.storage.list("")) == [marker(namespace)]  # nothing is left of the proof
    namespace.create_topic("t", SCHEMA)
    write(namespace.log("t"), 1)
    bad = MemoryMetadata(MemoryServer())
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_UNAVAILABLE"):
        OpenNamespace(bad, s3_root.replace("s3://ledger/", "s3://no-such-bucket/")).create_topic("t", SCHEMA)
    assert bad.read(NamespaceKey()) is None


def test_two_spellings_of_one_place_are_proved_once(tmp_path):
    metadata = MemoryMetadata(MemoryServer())
    opened = [root.open_root(metadata, spelling) for spelling in (str(tmp_path), f"file:{tmp_path}/")]
    assert opened[0] is opened[1]
    assert list(opened[0].list("")) == [opened[0].marker]


# -- the marker file ---------------------------------------------------------------------------------------------


def test_the_marker_file_tells_a_person_what_it_is(namespace, tmp_path):
    _ = namespace.storage
    said = json.loads((tmp_path / "root" / marker(namespace)).read_text())
    assert said.keys() == {"what", "namespace", "created"}
    assert said["namespace"] == namespace.metadata.read(NamespaceKey()).record.id.hex()
    assert in_root(tmp_path) == {marker(namespace)}


def everything_that_writes_or_deletes(namespace: OpenNamespace) -> dict[str, Callable[[], object]]:
    client = client_of(namespace)
    log = namespace.log("t")
    return {
        "a write": lambda: write(log, 2),
        "a plan of a write": lambda: folders.prepare(log),
        "a new topic": lambda: namespace.create_topic("other", KEYED, key="n"),
        "gc": lambda: gc.collect(log),
        "a dry run of gc": lambda: gc.collect(log, dry_run=True),
        "compaction": lambda: client.compact("t"),
        "deletion": lambda: client.delete_topic("t"),
    }


def test_nobody_writes_or_deletes_in_a_root_without_its_marker_and_reading_goes_on_I1_I16(namespace, tmp_path):
    """A copy of the topic's folder without the marker is no storage of this namespace."""
    namespace.create_topic("t", KEYED, key="n")
    write(namespace.log("t"), 1)
    (tmp_path / "root" / marker(namespace)).unlink()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "root").rglob("*")}
    for what, call in everything_that_writes_or_deletes(namespace).items():
        with pytest.raises(Unavailable, match=r"LEDGER_STORAGE_MISSING.*is the storage mounted.*make an empty one"):
            call()
        assert topics.list_topics(namespace.metadata) == ["t"], what
        assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "root").rglob("*")}, what
    assert [record["n"] for record in client_of(namespace).reader("t", end="latest")] == [1]
    (tmp_path / "root" / marker(namespace)).touch()  # as the error says
    for call in everything_that_writes_or_deletes(namespace).values():
        call()


def test_entities_of_an_outbox_are_not_written_to_a_root_without_its_marker_either_I1(namespace, tmp_path):
    _ = namespace.storage
    (tmp_path / "root" / marker(namespace)).unlink()
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        namespace.storage.make_folder(names.OUTBOXES_FOLDER)
    assert in_root(tmp_path) == set()


def test_two_namespaces_share_a_root_and_each_has_its_marker_I1(tmp_path):
    one, other = (OpenNamespace(MemoryMetadata(MemoryServer()), str(tmp_path / "root")) for _ in range(2))
    for namespace in (one, other):
        namespace.create_topic("t", SCHEMA)
    assert marker(one) != marker(other)
    assert {marker(one), marker(other)} < in_root(tmp_path)
    (tmp_path / "root" / marker(one)).unlink()
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        write(one.log("t"), 1)
    write(other.log("t"), 1)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("step", [1, 2])
def test_a_namespace_whose_maker_was_killed_at_zookeeper_is_finished_by_the_next_one_I1(tmp_path, step, applied):
    server, faults = MemoryServer(), Faults()
    faults.crash_at(step, applied=applied)
    with pytest.raises(Crash):
        _ = OpenNamespace(MemoryMetadata(server, faults), str(tmp_path / "root")).storage
    check_is_finished_by_the_next_one(server, tmp_path)


@pytest.mark.parametrize("step", ["write", "_read_back"])
@pytest.mark.parametrize("after", [False, True])
def test_a_namespace_whose_maker_was_killed_at_the_disk_is_finished_by_the_next_one_I1(
    tmp_path, monkeypatch, step, after
):
    server, real = MemoryServer(), getattr(LocalStorage, step)

    def killed(storage, path, data):
        if data.startswith(b"{"):  # the marker, and not the proof
            if after:
                real(storage, path, data)
            raise Crash(step)
        real(storage, path, data)

    monkeypatch.setattr(LocalStorage, step, killed)
    with pytest.raises(Crash):
        _ = OpenNamespace(MemoryMetadata(server), str(tmp_path / "root")).storage
    monkeypatch.undo()
    assert not MemoryMetadata(server).read(NamespaceKey()).record.marked
    check_is_finished_by_the_next_one(server, tmp_path)


def check_is_finished_by_the_next_one(server: MemoryServer, tmp_path: Path) -> None:
    before = MemoryMetadata(server).read(NamespaceKey())
    successor = OpenNamespace(MemoryMetadata(server), None if before else str(tmp_path / "root"))
    successor.create_topic("t", SCHEMA)
    write(successor.log("t"), 1)
    assert before is None or successor.metadata.read(NamespaceKey()).record.id == before.record.id
    assert marker(successor) in in_root(tmp_path)


def test_two_who_finish_a_namespace_at_once_agree(tmp_path, monkeypatch):
    """The second one comes while the first one has written the file, and not yet its note."""
    server = MemoryServer()
    first, second = (OpenNamespace(MemoryMetadata(server), str(tmp_path / "root")) for _ in range(2))
    real = LocalStorage.replace

    def overtaken(storage, *arguments):
        monkeypatch.undo()
        real(storage, *arguments)
        _ = second.storage

    monkeypatch.setattr(LocalStorage, "replace", overtaken)
    assert first.storage is second.storage
    assert in_root(tmp_path) == {marker(first)}


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired"])
@pytest.mark.parametrize("step", [0, 1])
def test_lost_answers_leave_one_id_and_its_marker_I14(tmp_path, fault, step):
    faults = Faults()
    faults.next_transact(*[None] * step, fault)
    namespace = OpenNamespace(MemoryMetadata(MemoryServer(), faults), str(tmp_path / "root"))
    _ = namespace.storage
    assert in_root(tmp_path) == {marker(namespace)}


def as_an_upgrade_leaves_it(tmp_path: Path) -> MemoryMetadata:
    metadata = MemoryMetadata(MemoryServer())
    metadata.transact([Create(NamespaceKey(), Namespace((tmp_path / "root").as_uri(), 0))])
    return metadata


def test_a_namespace_without_an_id_is_given_one_and_a_root_I1(tmp_path):
    metadata = as_an_upgrade_leaves_it(tmp_path)
    topics.create_topic(metadata, "old", SCHEMA)
    storage = open_storage(str(tmp_path / "root"))
    made = root.finish_namespace(metadata, storage)
    assert made == metadata.read(NamespaceKey()).record == root.finish_namespace(metadata, storage)
    namespace = OpenNamespace(metadata)
    assert in_root(tmp_path) == {marker(namespace)}
    write(namespace.log("old"), 1)


def test_an_upgrade_without_its_volume_does_not_mark_the_empty_mount_point_I1(tmp_path):
    metadata = as_an_upgrade_leaves_it(tmp_path)
    namespace = OpenNamespace(metadata)
    namespace.create_topic("t", SCHEMA)
    write(namespace.log("t"), 1)
    found = metadata.read(NamespaceKey())
    metadata.transact([Put(NamespaceKey(), replace(found.record, id=b"", marked=False), found.version)])
    (tmp_path / "root").rename(tmp_path / "away")
    (tmp_path / "root").mkdir()
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        _ = OpenNamespace(metadata).storage
    assert in_root(tmp_path) == set()


def test_a_namespace_that_is_marked_is_never_marked_again_I1(namespace, tmp_path):
    """Or an empty mount point would become its root."""
    _ = namespace.storage
    (tmp_path / "root").rename(tmp_path / "away")
    (tmp_path / "root").mkdir()
    root.finish_namespace(namespace.metadata, open_storage(str(tmp_path / "root")))
    _ = OpenNamespace(namespace.metadata).storage
    assert in_root(tmp_path) == set()


def test_an_object_store_without_its_marker_is_refused_too_I1(s3_root):
    server = MemoryServer()
    maker = OpenNamespace(MemoryMetadata(server), s3_root)
    maker.create_topic("t", SCHEMA)
    write(maker.log("t"), 1)
    maker.storage.delete(maker.storage.marker)
    write(maker.log("t"), 2)  # a process looks once
    other_process = type(maker.storage)(maker.storage.uri, maker.storage.marker)
    with pytest.raises(Unavailable, match="LEDGER_STORAGE_MISSING"):
        other_process.check_marked()


def test_why_a_topic_was_not_made_is_told_also_if_its_folder_cannot_be_removed(namespace, monkeypatch):
    namespace.create_topic("t", SCHEMA)

    def fail(name: str) -> None:
        raise Unavailable("the disk is gone")

    monkeypatch.setattr(namespace.storage, "remove_folder", fail)
    with pytest.raises(Conflict, match="LEDGER_TOPIC_EXISTS"):
        namespace.create_topic("t", SCHEMA)
