"""A ZooKeeper's nodes and its data folder as they are, without the code under test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.security import CREATOR_ALL_ACL

from pyspark_ledger.base.settings import Settings
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.zk_metadata.session import split_connect_string

Dump = dict[str, tuple[bytes, int, int]]  # path -> data, version, ephemeral owner


def as_user(namespace: str, password: str | None) -> Settings:
    """The namespace, and ``user:password``."""
    return Settings.of({"zookeeper": namespace, "zookeeper.password": password})


@contextmanager
def nodes_of(namespace: str, password: str | None = None) -> Iterator[tuple[KazooClient, str]]:
    """A client, and the path of the namespace's root."""
    servers, root = split_connect_string(namespace)
    client = KazooClient(
        servers,
        auth_data=[("digest", password)] if password else None,
        default_acl=CREATOR_ALL_ACL if password else None,
    )
    client.start()
    try:
        yield client, root
    finally:
        client.stop()
        client.close()


def put_nodes(namespace: str, nodes: Mapping[str, bytes], password: str | None = None) -> None:
    """Makes nodes, given by paths below the namespace's root, parents first."""
    with nodes_of(namespace, password) as (client, root):
        client.ensure_path(root)
        for path, data in nodes.items():
            client.create(root + path, data)


def dump(namespace: str, password: str | None = None) -> Dump:
    """Every node of a namespace."""
    found: Dump = {}
    with nodes_of(namespace, password) as (client, root):
        waiting = [""]
        while waiting:
            path = waiting.pop()
            waiting += [f"{path}/{child}" for child in client.get_children(root + path)]
            data, stat = client.get(root + path)
            found[path] = data, stat.version, stat.ephemeralOwner
    return found


class _EndSession:
    """What a client sends last of all. kazoo does not know it in this form, and so is surprised."""

    type: ClassVar[int] = -11

    def serialize(self) -> bytes:
        return b""

    def deserialize(self, *_: object) -> None: ...


def expire(client: KazooClient) -> None:
    """The server ends the session, and the client learns of it when it connects again. A second client with the same
    session could end it, too; but both would take it from each other meanwhile, and perhaps neither would end it."""
    answer = client.handler.async_result()
    client._call(_EndSession(), answer)
    with suppress(ConnectionLoss):  # the server may hang up first
        answer.get(timeout=30)


class Backups:
    """Of a server's data, taken while it is down."""

    def __init__(self, server: LocalZooKeeper, data: Path, folder: Path) -> None:
        self._server, self._data, self._folder = server, data, folder

    def take(self) -> None:
        self._server.kill()
        shutil.copytree(self._data, self._folder)
        self._server.restart()

    def restore(self) -> None:
        self._server.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._folder, self._data)
        self._server.restart()

    def lose(self) -> None:
        """Everything, and there is no backup."""
        self._server.kill()
        for folder in self._data.glob("*/version-2"):
            shutil.rmtree(folder)
        self._server.restart()
