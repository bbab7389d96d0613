"""Ephemeral nodes on a real server: sessions that end, and a server that goes away while the session lives (I16)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Deadline
from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.compaction.pins import Pinned
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.metadata.port import OwnerKey, PartKey
from tests.support import zookeeper
from tests.support.query import eventually

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture
def clients(namespace, storage_root) -> Iterator[Callable[[], LedgerClient]]:
    """Each client has a session of its own, as a process would: those of one process and one user share one."""
    made: list[LedgerClient] = []

    def client() -> LedgerClient:
        made.append(LedgerClient(namespace, storage_root, password=f"user:{len(made)}" if made else None))
        return made[-1]

    client().create_topic("t", SCHEMA, key="k")
    yield client
    for each in made:
        each.close()


def expire(client: LedgerClient) -> None:
    """The server ends the client's session behind its back."""
    zookeeper.expire(namespace_of(client).metadata._lease.connection(Deadline(SYSTEM_CLOCK, 10)).client)


def test_an_owner_and_a_pin_are_there_again_after_a_lost_session_while_nobody_calls(clients):
    client = clients()
    consumer, pin = client.consumer("t", "s"), Pinned(namespace_of(client).log("t"))
    pin.move(0, Position(0, 0, 0))
    uuid = client.topic("t").uuid

    def nodes() -> tuple[bool, bool]:
        owner = namespace_of(client).metadata.read(OwnerKey(uuid, "s"))
        pins = [
            namespace_of(client).metadata.read(key)
            for key in namespace_of(client).metadata.children(PartKey(uuid, "pins"))
        ]
        return owner is not None and owner.own, any(found is not None and found.own for found in pins)

    assert nodes() == (True, True)
    for _ in range(2):
        expire(client)
        eventually(lambda: nodes() == (True, True))
    consumer.close()
    pin.release()
    assert nodes() == (False, False)


@pytest.mark.parametrize(
    ("call", "owner", "step"),
    [
        (lambda client: client.cursor("t", "s").reset("latest"), RevisionController, "end_revision"),
        (lambda client: client.compact("t"), compaction, "write"),
    ],
    ids=["reset", "compaction"],
)
def test_a_server_that_goes_away_in_the_middle_leaves_nothing_standing(tmp_path, monkeypatch, call, owner, step):
    """It comes back before the session has ended: nothing but its holder can take the node away."""
    with LocalZooKeeper(fsync=False) as server, _client(server, tmp_path) as client:
        client.create_topic("t", SCHEMA, key="k")
        with client.producer("t") as producer:
            producer.send({"k": "a", "v": 1})
        client.create_cursor("t", "s")
        original, comes_back = getattr(owner, step), threading.Timer(3.5, server.restart, (0,))

        def go_away(*arguments):
            namespace_of(client).metadata._timeout_s = 2.0  # until here it has all the time that it needs
            server.kill(0)
            comes_back.start()
            return original(*arguments)

        monkeypatch.setattr(owner, step, go_away)
        with pytest.raises(LedgerError):
            call(client)
        monkeypatch.undo()
        with _client(server, tmp_path, "another:session") as other:
            eventually(lambda: _works(lambda: call(other)))
        comes_back.join()


def _client(server: LocalZooKeeper, folder, password: str | None = None) -> LedgerClient:
    return LedgerClient(f"{server.address}/x", str(folder), password=password)


def _works(call: Callable[[], object]) -> bool:
    try:
        call()
    except LedgerError:
        return False
    return True


def test_the_flag_of_a_living_resetter_stands_through_a_lost_session(clients):
    client = clients()
    client.create_cursor("t", "s")
    controller = RevisionController(CursorNode(namespace_of(client).log("t"), "s"))
    controller.start_revision()
    expire(client)
    eventually(lambda: client.cursor("t", "s").stats().revising_seconds is not None)
    controller.end_revision(lambda cursor: cursor)
    assert client.cursor("t", "s").stats().revision == 1
