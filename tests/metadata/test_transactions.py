"""The one way to change a node: what was applied is known by an operation's id, and nobody is told what is not true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import Conflict, NotAllowed, NotFound, OutcomeUnknown, Unavailable
from pyspark_ledger.metadata.port import Create, EntityKey, NamespaceKey, OutboxKey, Put
from pyspark_ledger.metadata.records import Entity, Marker, Namespace
from pyspark_ledger.metadata.transactions import PlainNode, Transactions
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import Faults, MemoryMetadata, MemoryServer
from tests.support.flaky import Flaky

KEY = EntityKey("box", "e")
LIMITS = Limits(change_deadline_s=5.0, change_attempts=20, remembered_operations=4)
CLOCK = SeededClock()


@pytest.fixture
def server() -> MemoryServer:
    server = MemoryServer()
    MemoryMetadata(server).transact([Create(OutboxKey("box"), Marker()), Create(KEY, Entity(b""))])
    return server


class Client:
    """One process that adds letters to a record."""

    def __init__(
        self, server: MemoryServer, faults: Faults | None = None, metadata: MemoryMetadata | None = None
    ) -> None:
        self.metadata = metadata or MemoryMetadata(server, faults, CLOCK)
        self.transactions = Transactions(self.metadata, LIMITS, CLOCK)
        self.node = PlainNode(self.metadata, KEY, lambda: NotFound("it is gone"))

    def add(self, letter: bytes, operation: bytes = b"", before=lambda: None) -> Entity:
        def edit(entity: Entity) -> Entity:
            before()
            return replace(entity, content=entity.content + letter)

        return self.transactions.change(self.node, edit, "adding a letter", operation=operation)


def content(server: MemoryServer) -> bytes:
    return MemoryMetadata(server).read(KEY).record.content


@pytest.mark.parametrize("fault", ["lost_before", "applied_then_lost", "delayed", "expired"])
@pytest.mark.parametrize("again", [None, "lost_before", "applied_then_lost", "delayed", "expired"])
def test_an_edit_with_an_operation_id_is_made_once_whatever_happens_to_the_answers_I14(server, fault, again):
    faults = Faults()
    client = Client(server, faults)
    faults.next_transact(fault, again)
    client.add(b"a", b"1" * 16)
    server.deliver_delayed()
    client.add(b"a", b"1" * 16)  # a caller that repeats it
    assert content(server) == b"a"


def test_an_operation_whose_answer_was_lost_is_known_by_its_id_and_not_by_what_others_did_since_I14(server):
    faults = Faults()
    client, rival = Client(server, faults), Client(server)
    faults.next_transact("applied_then_lost")
    found = client.metadata.sync
    client.metadata.sync = lambda: (rival.add(b"x", b"x" * 16), found())  # somebody is faster than our look
    assert client.add(b"a", b"1" * 16).content == b"a"  # what we did, not what it is by now
    client.metadata.sync = found
    assert content(server)[:2] == b"ax"


def test_an_operation_that_lost_its_place_among_the_remembered_ones_is_unknown_never_guessed_I14(server):
    faults = Faults()
    client, rival = Client(server, faults), Client(server)
    faults.next_transact("applied_then_lost")
    sync = client.metadata.sync

    def busy() -> None:
        for number in range(5):
            rival.add(b"x", bytes([number]) * 16)
        sync()

    client.metadata.sync = busy
    with pytest.raises(OutcomeUnknown, match="too much has happened since"):
        client.add(b"a", b"1" * 16)


def test_a_no_is_given_only_after_a_synced_read_I14(server):
    faults = Faults(max_lag=1)
    client, seen = Client(server, faults), []
    Client(server).add(b"a")
    faults.next_read("stale")

    def only_after_a(entity: Entity) -> Entity | None:
        seen.append(entity.content)
        if not entity.content:
            raise Conflict("not allowed yet")
        return replace(entity, content=entity.content + b"b")

    client.transactions.change(client.node, only_after_a, "adding b")
    assert seen == [b"", b"a"]
    assert content(server) == b"ab"


def test_unavailable_after_an_unknown_outcome_is_an_unknown_outcome_I14(server):
    faults = Faults()
    client = Client(server, metadata=(flaky := Flaky(server, faults, CLOCK)))
    faults.next_transact("applied_then_lost")
    flaky.down_after = lambda _: True
    with pytest.raises(OutcomeUnknown, match="ZooKeeper does not answer any more"):
        client.add(b"a")
    assert content(server) == b"a"


def test_unavailable_after_a_look_that_could_not_tell_is_an_unknown_outcome_too_I14(server):
    """Without an id the edit is made again, and whether it was made before is not known."""
    faults, edits = Faults(), []
    client = Client(server, metadata=(flaky := Flaky(server, faults, CLOCK)))
    faults.next_transact("applied_then_lost")

    def away_the_second_time() -> None:
        edits.append(b"a")
        flaky.down = len(edits) == 2

    with pytest.raises(OutcomeUnknown, match="ZooKeeper does not answer any more"):
        client.add(b"a", before=away_the_second_time)


def test_an_operation_that_is_repeated_is_not_made_again_because_a_server_is_behind_I14(server):
    faults = Faults(max_lag=1)
    client = Client(server, faults)
    Client(server).add(b"a", b"1" * 16)
    faults.next_read("stale")

    def only_after_a(entity: Entity) -> Entity:
        if not entity.content:
            raise Conflict("not allowed yet")
        return replace(entity, content=entity.content + b"b")

    client.transactions.change(client.node, only_after_a, "adding b", operation=b"1" * 16)
    assert content(server) == b"a"


def test_unavailable_before_anything_was_sent_says_that_nothing_was_changed_I14(server):
    client = Client(server, metadata=(flaky := Flaky(server)))
    flaky.down = True
    with pytest.raises(Unavailable):
        client.add(b"a")
    assert content(server) == b""


def test_who_loses_every_race_is_told_to_try_again(server):
    client, rival = Client(server), Client(server)
    with pytest.raises(Conflict, match="adding a letter: others change it all the time; try again"):
        client.add(b"a", before=lambda: rival.add(b"x"))
    assert set(content(server)) == set(b"x")


@pytest.mark.parametrize("fault", [None, "lost_before", "applied_then_lost", "delayed", "expired"])
def test_a_node_is_made_once_and_found_by_the_others_I14(server, fault):
    faults = Faults()
    first, second = Client(server, faults), Client(server)
    faults.next_transact(fault)
    made = first.transactions.make(NamespaceKey(), Namespace("mine", 0), "the namespace")
    assert (made.record.storage, made.version) == ("mine", 0)
    assert second.transactions.make(NamespaceKey(), Namespace("other", 0), "the namespace").record.storage == "mine"


def test_a_node_that_can_neither_be_found_nor_made_says_why(server):
    def gone() -> None:
        raise NotFound("the outbox is gone")

    with pytest.raises(NotFound, match="the outbox is gone"):
        Client(server).transactions.make(EntityKey("no box", "e"), Entity(), "an entity", gone)


def test_a_refused_resend_is_not_taken_for_somebody_elses_race_I14(server):
    """The first sending was applied, its answer lost; the second is refused because of the first."""
    faults = Faults()
    client = Client(server, faults)
    before = client.node.newest()
    faults.next_transact("delayed")
    put = Put(KEY, client.transactions.remembering(Entity(b"a"), b"1" * 16), before.version)
    look = client.transactions.by_id(KEY, before, b"1" * 16, "a change")
    send = client.metadata.transact
    client.metadata.transact = lambda ops: (server.deliver_delayed(), send(ops))
    assert client.transactions.carry_out([put], look, "a change") is True


def before_it_writes(client: Client, rival, times: int = 1) -> None:
    """Does something right before a transaction, counted from 1."""
    transact, count = client.metadata.transact, 0

    def overtaken(ops):
        nonlocal count
        count += 1
        if count == times:
            rival()
        transact(ops)

    client.metadata.transact = overtaken


def test_a_resend_that_is_not_sent_because_zookeeper_is_away_is_followed_by_another_look_I14(server):
    faults = Faults(max_delay=1_000)
    client = Client(server, faults)
    faults.next_transact("delayed")

    def away() -> None:
        server.deliver_delayed()
        raise Unavailable("ZooKeeper does not answer")

    before_it_writes(client, away, times=2)
    assert client.add(b"a", b"1" * 16).content == content(server) == b"a"


def test_a_zookeeper_that_is_away_for_a_moment_leaves_no_outcome_unknown_I14(server):
    faults = Faults()
    client = Client(server, faults)
    faults.next_transact("applied_then_lost")
    sync = client.metadata.sync

    def away() -> None:
        client.metadata.sync = sync
        raise Unavailable("ZooKeeper does not answer")

    client.metadata.sync = away
    assert client.add(b"a", b"1" * 16).content == content(server) == b"a"


def test_a_node_that_another_makes_meanwhile_is_found_I14(server):
    mine, other = Client(server), Client(server)
    before_it_writes(mine, lambda: other.transactions.make(NamespaceKey(), Namespace("other", 0), "the namespace"))
    assert mine.transactions.make(NamespaceKey(), Namespace("mine", 0), "the namespace").record.storage == "other"


class Forbidden(MemoryMetadata):
    """Loses the first answer, and then does not let the client do it any more: it has lost its role in between."""

    reads_too = False

    def transact(self, ops) -> None:
        if self._faults.transacts:
            raise NotAllowed("no role any more")
        super().transact(ops)

    def read(self, key, on_change=None, ahead=None):
        if self.reads_too and self._faults.transacts:
            raise NotAllowed("no role any more")
        return super().read(key, on_change, ahead)


def forbidden(server: MemoryServer, fault: str, *, reads_too: bool = False) -> Client:
    faults = Faults()
    faults.next_transact(fault)
    metadata = Forbidden(server, faults, CLOCK)
    metadata.reads_too = reads_too
    return Client(server, metadata=metadata)


def test_who_loses_the_right_after_a_lost_answer_learns_what_became_of_it_I14(server):
    assert forbidden(server, "applied_then_lost").add(b"a", b"1" * 16).content == b"a"
    with pytest.raises(OutcomeUnknown):  # without an id of the operation nobody can tell
        forbidden(server, "applied_then_lost").add(b"b")
    with pytest.raises(OutcomeUnknown, match="may not even read any more"):
        forbidden(server, "applied_then_lost", reads_too=True).add(b"c", b"2" * 16)
    lost = forbidden(server, "lost_before").transactions
    with pytest.raises(NotAllowed):  # it was not applied, and never will be
        lost.carry_out([Put(KEY, Entity(b"d"), 3)], lambda: None, "a change")
    seen = iter([None, True])  # it arrives only after it was sent again, and refused
    sent = forbidden(server, "applied_then_lost").transactions
    assert sent.carry_out([Put(KEY, Entity(b"e"), None)], lambda: next(seen), "a change")
    assert content(server) == b"e"
