"""A ZooKeeper that has lost its data is not taken for a new one (I16, I18)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_ledger.base import names
from pyspark_ledger.errors import DataLoss, NotFound
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import NamespaceKey
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from tests.support.worlds import SCHEMA

ADDRESS = "zk1:2181,zk2:2181/shop"


@pytest.fixture(autouse=True)
def no_other_storage(monkeypatch):
    monkeypatch.delenv("LEDGER_STORAGE", raising=False)


def open_at(root: Path, address: str = ADDRESS, server: MemoryServer | None = None) -> OpenNamespace:
    return OpenNamespace(MemoryMetadata(server or MemoryServer()), str(root), address=address)


def markers(root: Path) -> list[Path]:
    return sorted(root.glob("ledger-namespace-*"))


@pytest.mark.parametrize("address", [ADDRESS, "zk2/shop", "zk3:2181,zk1:2181/shop/"])
def test_an_empty_zookeeper_at_the_same_address_is_refused_and_nothing_is_made_I16_I18(tmp_path, address):
    open_at(tmp_path).create_topic("t", SCHEMA)
    before, empty = {*tmp_path.rglob("*")}, MemoryServer()
    with pytest.raises(DataLoss, match=r"LEDGER_NAMESPACE_LOST.*namespace rebuild --storage file:") as refused:
        _ = open_at(tmp_path, address, empty).storage
    assert str(markers(tmp_path)[0].name) in str(refused.value)
    assert MemoryMetadata(empty).read(NamespaceKey()) is None
    assert {*tmp_path.rglob("*")} == before


def test_who_looks_for_a_topic_is_told_that_all_are_lost_and_of_a_new_namespace_that_there_is_none_I16(tmp_path):
    open_at(tmp_path).create_topic("t", SCHEMA)
    with pytest.raises(DataLoss, match=r"LEDGER_NAMESPACE_LOST.*namespace rebuild --storage file:"):
        open_at(tmp_path).log("t")
    for namespace in (open_at(tmp_path, "zk1:2181/another"), open_at(tmp_path / "new")):
        with pytest.raises(NotFound, match="LEDGER_TOPIC_NOT_FOUND"):
            namespace.log("t")


@pytest.mark.parametrize("address", ["zk1:2181/another", "zk1:2181", "zk1:2182/shop", "zk3:2181/shop", ""])
def test_another_namespace_may_share_the_root(tmp_path, address):
    open_at(tmp_path).create_topic("t", SCHEMA)
    open_at(tmp_path, address).create_topic("t", SCHEMA)
    assert len(markers(tmp_path)) == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b"[" * 50_000, b'{"zookeeper": 7}'])
def test_markers_that_do_not_say_where_they_were_made_are_ignored(tmp_path, content):
    """Of an earlier version, or made by hand."""
    (tmp_path / names.marker_file(b"n" * 16)).write_bytes(content)
    open_at(tmp_path).create_topic("t", SCHEMA)


def test_who_comes_second_uses_what_the_first_has_made(tmp_path, monkeypatch):
    """Both have found nothing, and the first is done before the second looks into the root."""
    server = MemoryServer()
    second = open_at(tmp_path, server=server)
    real, first = second.metadata.read, []

    def read(key, *watch):
        found = real(key, *watch)
        if key == NamespaceKey() and not first:
            first.append(open_at(tmp_path, server=server))
            _ = first[0].storage
            return None
        return found

    monkeypatch.setattr(second.metadata, "read", read)
    monkeypatch.setattr("pyspark_ledger.log.root.find", lambda metadata, key: metadata.read(key))
    assert second.storage.marker == first[0].storage.marker
    assert len(markers(tmp_path)) == 1


def test_the_marker_has_hosts_and_chroot_and_nothing_secret(tmp_path):
    _ = open_at(tmp_path, "user:secret@zk1,zk2:2182/shop").storage
    [marker] = markers(tmp_path)
    assert json.loads(marker.read_text())["zookeeper"] == "zk1:2181,zk2:2182/shop"
    assert "secret" not in marker.read_text()


def test_it_is_the_same_in_an_object_store(s3_root):
    _ = open_at(s3_root).storage
    with pytest.raises(DataLoss, match="LEDGER_NAMESPACE_LOST"):
        _ = open_at(s3_root).storage
