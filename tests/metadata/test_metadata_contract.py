"""What the core may rely on, whichever store is below: the same promises in memory and on ZooKeeper."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import get_args

import pytest
from kazoo.client import KazooClient

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Deadline
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import CorruptData, InvalidInput
from pyspark_ledger.metadata.port import (
    AnyKey,
    Check,
    CommitKey,
    CompactorKey,
    Create,
    CursorKey,
    DedupKey,
    Delete,
    DeletedKey,
    EntityKey,
    GcKey,
    HeadKey,
    LedgerKey,
    MemberKey,
    Metadata,
    MoverKey,
    NamespaceKey,
    Op,
    OutboxKey,
    OwnerKey,
    Part,
    PartKey,
    PinKey,
    PoliciesKey,
    Put,
    RetentionKey,
    ReviserKey,
    RewriterKey,
    RootKey,
    SchemaKey,
    SinkKey,
    SinkTopicKey,
    TipKey,
    TokenBlockKey,
    TokenChunkKey,
    TokenGroupKey,
    TopicKey,
    TopicsKey,
    TransactionLost,
    Versioned,
)
from pyspark_ledger.metadata.records import (
    Commit,
    Cursor,
    DedupSnapshot,
    Deleted,
    Entity,
    Entry,
    FileRef,
    GcEpoch,
    Generation,
    Head,
    Holder,
    Marker,
    Member,
    Moving,
    Namespace,
    NodeRecord,
    PastRevision,
    PendingRange,
    Pin,
    Policies,
    ProducerState,
    Schema,
    SetBack,
    Sink,
    SinkTopic,
    TokenBlock,
    TokenChunk,
    TokenGroup,
    Topic,
    Trim,
)
from pyspark_ledger.testing.clock import SeededClock
from pyspark_ledger.testing.memory import MemoryMetadata, MemoryServer
from pyspark_ledger.zk_metadata import codec, paths
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

UUID = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
FILE = FileRef(epoch=3, uid=b"f" * 16, length=123_456, tail_length=900, tail_hash=2**64 - 1)
COMMIT = Commit(
    number=41_007,
    id=b"c" * 16,
    ledger=41,
    first_entry=812,
    entry_count=1,
    records=10_000,
    bytes=123_456,
    records_before=410_000_000,
    bytes_before=5_000_000_000,
    publish_ms=1_700_000_000_000,
    schema_id=2,
    entries=(Entry(FILE, 10_000),),
    producer=f"spark-{UUID}",
    query=UUID,
    run="0b5d6a7e-97b5-4c4c-9d2f-1f6f0e4b9a11",
    sequence=41_007,
    digest=b"d" * 16,
    mints=True,
    tokens_before=77,
)
HEAD = Head(
    uuid=UUID,
    name="orders",
    schema_id=2,
    ledger=41,
    ledger_first_commit=41_000,
    ledger_opened_ms=1_700_000_000_000,
    ledger_bytes=1_000_000,
    next_commit=41_008,
    next_entry=813,
    last_publish_ms=1_700_000_000_000,
    records=410_010_000,
    bytes=5_000_123_456,
    gc_epoch=3,
    index=(FILE, FILE),
    last_change=b"l" * 16,
    last_commit=b"c" * 16,
    operations=(b"1" * 16, b"l" * 16),
    gc_kept=(FILE,),
    generation=Generation(3, Position(1, 2, 3), FILE, 5, 6, 7, 8, 4, Position(0, 1, 2)),
    replaced=FILE,
    tokens=88,
    token_base=1_000,
    trim=Trim(Position(7, 0, 0), 7_000, 70_000, 700_000),
    pending=(PendingRange(5, 7, 2),),
    set_back=SetBack(9, "somebody", "its head is older than it was before", 41_010, 41, 3, 90),
    repaired=12,
)
PRODUCER = ProducerState("p", -1, "a query", UUID, (UUID, "", "a run"), b"", 0, 0)
DEVICE = ProducerState("d", 5, "", "", (), b"", 0, 9, per_record=True)
CURSOR = Cursor(
    name="billing",
    mark_delete=Position(3, 17, 2),
    ordinal=41,
    created_ms=1,
    properties=(("a", -1), ("b", 2**40)),
    acks=b"\x01\x02",
    epoch=3,
    owner=b"o" * 16,
    owner_name="a query",
    revision=2,
    last_backward_revision=1,
    reviser=b"r" * 16,
    revising_since_ms=7,
    operations=(b"1" * 16, b"2" * 16),
    past_revisions=(PastRevision(1, Position(0, 1, 2)),),
    void_below=2,
    id=b"i" * 16,
    sharing="key_shared",
    members=(Member(b"m" * 16, "a consumer", 8, b"\x02\x03", b"\x04\x05", b"\x06\x07"),),
    deliveries=((1, b"\x01\x01"), (4, b"\x00\x01")),
)

ROOT, HEAD_KEY, LEDGER = RootKey(UUID), HeadKey(UUID), LedgerKey(UUID, 41)
PARTS: list[AnyKey] = [PartKey(UUID, part) for part in get_args(Part)]
NODES: list[tuple[AnyKey, NodeRecord]] = [
    (
        NamespaceKey(),
        Namespace(
            "s3://bucket/root", 1, False, b"n" * 16, True, True, 3, Moving("/data", 4, "somebody"), "/data/before"
        ),
    ),
    (MoverKey(), Holder(b"m" * 16, "somebody", 7)),
    (TopicKey("orders"), Topic("orders", UUID, "id", "", 1)),
    (DeletedKey("orders of old"), Deleted(UUID, 5)),
    (SinkKey("a query"), Sink(7, "a query", "a run", ("a run before",), b"digest", 3, b"t" * 16)),
    (SinkTopicKey("a query", "orders"), SinkTopic(UUID)),
    (ROOT, Marker()),
    *((part, Marker()) for part in PARTS),
    (HEAD_KEY, HEAD),
    (TipKey(UUID, b"l" * 16), Marker()),
    (PoliciesKey(UUID), Policies(False, 10, 1_000)),
    (RetentionKey(UUID), Marker()),
    (GcKey(UUID), GcEpoch(3)),
    (SchemaKey(UUID, 2), Schema(2, b"\x00arrow")),
    (DedupKey(UUID), DedupSnapshot(7, Position(1, 2, 3), (PRODUCER, DEVICE), None, 2, FILE)),
    (LEDGER, Marker()),
    (CursorKey(UUID, "billing"), CURSOR),
    (OwnerKey(UUID, "billing"), Holder(b"o" * 16, "a query", 5)),
    (CompactorKey(UUID), Holder(b"c" * 16, "somebody", 5)),
    (RewriterKey(UUID), Holder(b"w" * 16, "somebody else", 6)),
    (PinKey(UUID, "a-reader"), Pin(Position(4, 5, 6))),
    (ReviserKey(UUID, "billing"), Holder(b"r" * 16, "somebody", 5)),
    (MemberKey(UUID, "bill-ing/ä", bytes(range(16))), Holder(bytes(range(16)), "a worker", 5)),
    (CommitKey(UUID, 41, 41_007), COMMIT),
    (TokenGroupKey(UUID, "invoices"), TokenGroup(1 << 20, b"\x01\x02", ((7, b"bits"),), b"\x03\x04", 9, (b"o" * 16,))),
    (TokenChunkKey(UUID, "invoices", 3), TokenChunk(file=FILE)),
    (TokenBlockKey(UUID, "invoices", "b" * 32), TokenBlock(5, b"bits", 6)),
    (OutboxKey("billing"), Marker()),
    (EntityKey("billing", "a/b ?"), Entity(b"{}", None, (b"o" * 16,))),
    (EntityKey("billing", ""), Entity(b"", FILE)),
]


@pytest.fixture(params=["memory", "zookeeper"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[[], Metadata]]:
    """Opens one more client of the same, at first empty, namespace."""
    stores: list[Metadata] = []
    server = MemoryServer()
    address = "" if request.param == "memory" else f"{request.getfixturevalue('zookeeper')}/t-{secrets.token_hex(4)}"

    def open_one(session_timeout_s: float = 10.0) -> Metadata:
        """Clients of one process share a session, unless they want another time-out."""
        store: Metadata = MemoryMetadata(server)
        if address:
            store = ZooKeeperMetadata(address, session_timeout_s=session_timeout_s)
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(connect: Callable[[], Metadata]) -> Metadata:
    return connect()


@pytest.fixture
def topic(store: Metadata) -> Metadata:
    made: list[AnyKey] = [ROOT, *PARTS, LEDGER]
    store.transact([*(Create(key, Marker()) for key in made), Create(HEAD_KEY, HEAD)])
    return store


def refused(store: Metadata, *ops: Op) -> Op | None:
    """The op that made the store refuse them all."""
    with pytest.raises(TransactionLost) as info:
        store.transact(ops)
    return info.value.op


def test_an_empty_namespace_can_be_looked_at(store: Metadata) -> None:
    assert store.read(NamespaceKey()) is None
    assert store.read_many([HEAD_KEY]) == [None]
    assert store.children(TopicsKey()) == []
    assert store.children(ROOT) == []
    store.sync()


def test_every_record_comes_back_as_it_was_written(store: Metadata) -> None:
    store.transact([Create(key, record) for key, record in NODES])
    for key, record in NODES:
        assert store.read(key) == Versioned(record, 0)


@pytest.mark.parametrize(
    "commit",
    [
        replace(COMMIT, sequence=None),
        replace(COMMIT, sequence=0),
        replace(COMMIT, sequence=-5),
        replace(COMMIT, entries=(), entries_file=FILE),
        replace(COMMIT, query=UUID.upper(), run="nightly", forget=True),
        replace(COMMIT, query="", run="", digest=b"", producer=""),
        replace(COMMIT, entries=(Entry(FILE, 10, 3, b"mask"),), dropped=3),
        replace(COMMIT, sequence_column="s", producer_column="p", highest=(("a", -1), ("b", 2**60))),
        replace(COMMIT, sequence_column="s", highest_file=FILE),
    ],
)
def test_a_commit_loses_nothing(topic: Metadata, commit: Commit) -> None:
    key = CommitKey(UUID, 41, commit.number)
    topic.transact([Create(key, commit)])
    assert topic.read(key) == Versioned(commit, 0)


def test_versions_count_the_changes(topic: Metadata) -> None:
    for version in range(3):
        topic.transact([Put(HEAD_KEY, replace(HEAD, next_commit=version), version)])
    assert topic.read(HEAD_KEY) == Versioned(replace(HEAD, next_commit=2), 3)


def test_a_put_at_another_version_is_refused(topic: Metadata) -> None:
    put = Put(HEAD_KEY, replace(HEAD, next_commit=0), 1)
    assert refused(topic, put) is put
    assert topic.read(HEAD_KEY) == Versioned(HEAD, 0)


def test_only_one_of_two_writers_passes_the_same_version(topic: Metadata, connect: Callable[[], Metadata]) -> None:
    topic.transact([Put(HEAD_KEY, HEAD, 0), Create(CommitKey(UUID, 41, 0), COMMIT)])
    put = Put(HEAD_KEY, HEAD, 0)
    assert refused(connect(), put, Create(CommitKey(UUID, 41, 1), COMMIT)) is put


def test_a_key_is_created_once(topic: Metadata) -> None:
    create = Create(HEAD_KEY, HEAD)
    assert refused(topic, create) is create


def test_a_parent_must_be_there_before(store: Metadata) -> None:
    create = Create(HEAD_KEY, HEAD)
    assert refused(store, create) is create
    store.transact([Create(ROOT, Marker()), create])


def test_what_is_not_there_can_not_be_changed_checked_or_deleted(store: Metadata) -> None:
    for op in (Put(HEAD_KEY, HEAD, 0), Check(HEAD_KEY, 0), Delete(HEAD_KEY)):
        assert refused(store, op) is op


def test_a_check_holds_or_refuses(topic: Metadata) -> None:
    topic.transact([Check(HEAD_KEY, 0)])
    check = Check(HEAD_KEY, 1)
    assert refused(topic, check) is check
    assert topic.read(HEAD_KEY) == Versioned(HEAD, 0)


def test_delete_at_a_version_or_whatever_it_is(topic: Metadata) -> None:
    assert refused(topic, Delete(HEAD_KEY, 5)) == Delete(HEAD_KEY, 5)
    topic.transact([Delete(HEAD_KEY, 0), Delete(LEDGER)])
    assert topic.children(ROOT) == PARTS
    assert topic.children(PartKey(UUID, "commits")) == []


def test_a_parent_can_not_go_before_its_children(topic: Metadata) -> None:
    topic.transact([Create(CommitKey(UUID, 41, 0), COMMIT)])
    assert refused(topic, Delete(LEDGER)) == Delete(LEDGER)
    topic.transact([Delete(CommitKey(UUID, 41, 0)), Delete(LEDGER)])
    assert topic.read(LEDGER) is None


def test_a_created_child_keeps_its_parent_in_the_same_transaction(topic: Metadata) -> None:
    assert refused(topic, Create(CommitKey(UUID, 41, 0), COMMIT), Delete(LEDGER)) == Delete(LEDGER)


def test_nothing_of_a_refused_transaction_remains(topic: Metadata) -> None:
    culprit = Check(HEAD_KEY, 9)
    first, last = CommitKey(UUID, 41, 0), CommitKey(UUID, 41, 1)
    ops = [Create(first, COMMIT), Put(HEAD_KEY, HEAD, 0), culprit, Delete(LEDGER), Create(last, COMMIT)]
    assert refused(topic, *ops) is culprit
    assert topic.read_many([first, last]) == [None, None]
    assert topic.read(HEAD_KEY) == Versioned(HEAD, 0)


def test_ops_of_one_transaction_see_each_other(topic: Metadata) -> None:
    topic.transact([Put(HEAD_KEY, HEAD, 0), Check(HEAD_KEY, 1), Put(HEAD_KEY, HEAD, 1)])
    assert topic.read(HEAD_KEY) == Versioned(HEAD, 2)


def test_a_recreated_key_counts_anew(topic: Metadata) -> None:
    topic.transact([Put(HEAD_KEY, HEAD, 0)])
    topic.transact([Delete(HEAD_KEY), Create(HEAD_KEY, HEAD)])
    assert topic.read(HEAD_KEY) == Versioned(HEAD, 0)


@pytest.mark.parametrize("op", [Put(HEAD_KEY, HEAD, -1), Check(HEAD_KEY, -1), Delete(HEAD_KEY, -1)])
def test_no_version_means_any(topic: Metadata, op: Op) -> None:
    with pytest.raises(InvalidInput):
        topic.transact([op])


def test_a_transaction_of_nothing_does_nothing(store: Metadata) -> None:
    store.transact([])


def test_children_come_in_order(topic: Metadata) -> None:
    commits: list[AnyKey] = [CommitKey(UUID, 41, number) for number in (9, 10, 100_000, 999_999_999_999)]
    schemas: list[AnyKey] = [SchemaKey(UUID, id) for id in (2, 10)]
    topics: list[AnyKey] = [TopicKey(name) for name in ("a", "b")]
    topic.transact([Create(key, COMMIT) for key in reversed(commits)])
    topic.transact([Create(key, Schema(0, b"")) for key in reversed(schemas)])
    topic.transact([Create(key, Topic("", "", "", "", 0)) for key in reversed(topics)])
    assert topic.children(LEDGER) == commits
    assert sorted(map(str, topic.children(ROOT))) == sorted(map(str, [HEAD_KEY, *PARTS]))
    assert topic.children(PartKey(UUID, "commits")) == [LEDGER, *schemas]
    assert topic.children(TopicsKey()) == topics
    assert topic.children(HEAD_KEY) == []


@pytest.mark.parametrize("name", ["orders", "a b", "ä/ö", "..", ".", "100%", "a\x00b", "%2E"])
def test_any_name_finds_its_topic(store: Metadata, name: str) -> None:
    record = Topic(name, UUID, "", "", 1)
    store.transact([Create(TopicKey(name), record)])
    assert store.read(TopicKey(name)) == Versioned(record, 0)
    assert store.children(TopicsKey()) == [TopicKey(name)]


def test_many_reads_answer_in_order_with_gaps(topic: Metadata) -> None:
    keys = [CommitKey(UUID, 41, number) for number in range(500)]
    topic.transact([Create(key, replace(COMMIT, number=key.number)) for key in keys if key.number % 2])
    found = topic.read_many(keys)
    assert [item and item.record.number for item in found] == [n if n % 2 else None for n in range(500)]
    assert topic.read_many([]) == []


def test_many_lists_of_children_answer_in_order_with_gaps(topic: Metadata) -> None:
    below = {number: [CommitKey(UUID, number, at) for at in range(number % 3)] for number in range(300, 520)}
    ledgers = [LedgerKey(UUID, number) for number in below]
    topic.transact([Create(key, Marker()) for key in ledgers if key.ledger % 5])
    topic.transact([Create(key, COMMIT) for keys in below.values() for key in keys if key.ledger % 5])
    assert topic.children_many(ledgers) == [keys if number % 5 else [] for number, keys in below.items()]
    assert topic.children_many([]) == []


@pytest.mark.parametrize(
    "change", [Put(HEAD_KEY, HEAD, 0), Delete(HEAD_KEY), None], ids=["changed", "deleted", "created"]
)
def test_a_change_is_hinted_at(topic: Metadata, connect: Callable[[], Metadata], change: Op | None) -> None:
    watched = CommitKey(UUID, 41, 0) if change is None else HEAD_KEY
    hint = threading.Event()
    topic.read(watched, hint.set)
    assert not hint.is_set()
    connect().transact([change or Create(CommitKey(UUID, 41, 0), COMMIT)])
    assert hint.wait(10)


def test_a_hint_comes_once(topic: Metadata) -> None:
    calls: list[int] = []
    topic.read(HEAD_KEY, lambda: calls.append(1))
    last = threading.Event()
    topic.transact([Put(HEAD_KEY, HEAD, 0)])
    topic.read(HEAD_KEY, last.set)
    topic.transact([Put(HEAD_KEY, HEAD, 1)])
    assert last.wait(10)
    assert calls == [1]


class Wants:
    """Somebody who wants a record as soon as it has changed."""

    def __init__(self) -> None:
        self.is_wanted = True
        self.came = threading.Event()
        self.taken: list[int] = []  # the versions that came

    def take(self, found: Versioned[Head]) -> None:
        self.taken.append(found.version)
        self.came.set()


def test_a_record_that_is_wanted_comes_in_place_of_the_hint_whenever_it_has_changed(
    topic: Metadata, connect: Callable[[], Metadata]
) -> None:
    wants, hint, other = Wants(), threading.Event(), connect()
    topic.read(HEAD_KEY, hint.set, wants)
    for version in range(3):
        other.transact([Put(HEAD_KEY, HEAD, version)])
        assert wants.came.wait(10)
        wants.came.clear()
    assert wants.taken == [1, 2, 3]
    assert not hint.is_set()
    wants.is_wanted = False
    other.transact([Put(HEAD_KEY, HEAD, 3)])
    assert hint.wait(10)
    assert wants.taken == [1, 2, 3]


def test_that_a_record_which_is_wanted_was_deleted_is_hinted_at(
    topic: Metadata, connect: Callable[[], Metadata]
) -> None:
    wants, hint = Wants(), threading.Event()
    topic.read(HEAD_KEY, hint.set, wants)
    connect().transact([Delete(HEAD_KEY)])
    assert hint.wait(10)
    assert not wants.taken


def test_sync_shows_what_others_were_told_was_done(topic: Metadata, connect: Callable[[], Metadata]) -> None:
    other = connect()
    for version in range(5):
        topic.transact([Put(HEAD_KEY, replace(HEAD, next_commit=version), version)])
        other.sync()
        assert other.read(HEAD_KEY) == Versioned(replace(HEAD, next_commit=version), version + 1)


def test_what_is_ephemeral_goes_with_its_session_and_nothing_else_does(
    topic: Metadata, connect: Callable[..., Metadata]
) -> None:
    holder, owner = Holder(b"h" * 16, "me", 1), OwnerKey(UUID, "billing")
    session = connect(9.0)
    session.transact([Create(CursorKey(UUID, "billing"), CURSOR), Create(owner, holder, ephemeral=True)])
    topic.sync()
    assert topic.read(owner) == Versioned(holder, 0)
    assert isinstance(refused(topic, Create(owner, holder, ephemeral=True)), Create)
    changed = threading.Event()
    topic.read(owner, changed.set)
    session.close()
    assert changed.wait(5)
    topic.sync()
    assert topic.read(owner) is None
    assert topic.read(CursorKey(UUID, "billing")) == Versioned(CURSOR, 0)


def test_what_is_ephemeral_can_be_given_up(topic: Metadata) -> None:
    owner = OwnerKey(UUID, "billing")
    topic.transact([Create(owner, Holder(b"h" * 16, "me", 1), ephemeral=True)])
    topic.transact([Delete(owner)])
    assert topic.read(owner) is None


# -- the store's clock, and its connections


def test_a_record_says_when_it_was_last_written_by_the_clock_of_the_store(topic: Metadata) -> None:
    before = topic.now_ms(exact=True)
    topic.transact([Put(HEAD_KEY, HEAD, 0)])
    first = topic.read(HEAD_KEY)
    SYSTEM_CLOCK.sleep(0.05)
    topic.transact([Check(HEAD_KEY, 1), Create(CommitKey(UUID, 41, 0), COMMIT)])  # leave it as it is
    assert first is not None
    assert topic.read(HEAD_KEY).modified_ms == first.modified_ms >= before  # type: ignore[union-attr]
    topic.transact([Put(HEAD_KEY, HEAD, 1)])
    (second,) = topic.read_many([HEAD_KEY])
    assert second is not None
    assert first.modified_ms + 50 <= second.modified_ms <= topic.now_ms(exact=True)


def test_the_time_is_that_of_the_store_for_every_client_and_goes_on(connect: Callable[[], Metadata]) -> None:
    one, other = connect(), connect()
    for exact in (True, False):
        before, theirs, after = one.now_ms(exact=exact), other.now_ms(exact=True), one.now_ms(exact=exact)
        assert before - 5 <= theirs <= after + 5  # reckoned times may be rounded
    asked = one.now_ms()
    SYSTEM_CLOCK.sleep(0.1)
    assert 90 <= one.now_ms() - asked < 5_000


def test_a_new_connection_is_counted_and_what_was_there_still_is(topic: Metadata) -> None:
    holder, owner = Holder(b"h" * 16, "me", 1), OwnerKey(UUID, "billing")
    topic.transact([Create(owner, holder, ephemeral=True)])
    for _ in range(2):
        before = topic.connections
        assert topic.connections == before
        reconnect(topic)
        found = topic.read(owner)
        assert found is not None
        assert found.own  # the session is the same
        assert topic.connections == before + 1


def reconnect(store: Metadata) -> None:
    """The connection breaks, and another one is made."""
    if isinstance(store, MemoryMetadata):
        store.reconnect()
        return
    assert isinstance(store, ZooKeeperMetadata)
    before = store.connections
    client = store._lease.connection(Deadline(SYSTEM_CLOCK, 10)).client
    client._connection._socket.shutdown(socket.SHUT_RDWR)
    deadline = Deadline(SYSTEM_CLOCK, 10)
    while store.connections == before and not deadline.passed:
        SYSTEM_CLOCK.sleep(0.01)


def test_too_large_is_refused_before_it_is_sent(topic: Metadata) -> None:
    big = Create(SchemaKey(UUID, 0), Schema(0, bytes(900_001)))
    with pytest.raises(InvalidInput, match="LEDGER_TOO_LARGE"):
        topic.transact([big])
    many = [Create(SchemaKey(UUID, id), Schema(id, bytes(100_000))) for id in range(9)]
    with pytest.raises(InvalidInput, match="LEDGER_TOO_LARGE"):
        topic.transact(many)
    topic.transact(many[:8])  # and the connection is as good as ever


def test_a_closed_store_says_so(store: Metadata) -> None:
    store.close()
    store.close()
    with pytest.raises(InvalidInput, match="LEDGER_CLOSED"):
        store.read(HEAD_KEY)


# What only ZooKeeper can show: the bytes in its nodes.


@pytest.fixture
def on_zookeeper(namespace: str) -> Iterator[tuple[ZooKeeperMetadata, KazooClient]]:
    store = ZooKeeperMetadata(namespace)
    store.transact([Create(ROOT, Marker()), Create(HEAD_KEY, HEAD)])
    client = KazooClient(namespace)
    client.start()
    yield store, client
    client.stop()
    client.close()
    store.close()


def test_a_newer_format_is_refused_by_name(on_zookeeper: tuple[ZooKeeperMetadata, KazooClient]) -> None:
    store, client = on_zookeeper
    client.set(paths.path(HEAD_KEY), b"\x08\x03" + codec.encode(HEAD_KEY, HEAD)[2:])
    with pytest.raises(InvalidInput, match=rf"NEWER_FORMAT.*{UUID}/head .*format 3.*knows 2.*upgrade pyspark-ledger"):
        store.read(HEAD_KEY)


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", b"\x08\x02\x12\x03\x12\x01\x00"])
def test_bytes_that_are_no_record_are_corrupt(on_zookeeper: tuple[ZooKeeperMetadata, KazooClient], data: bytes) -> None:
    store, client = on_zookeeper
    client.set(paths.path(HEAD_KEY), data)
    with pytest.raises(CorruptData, match=rf"/logs/{UUID}/head"):
        store.read(HEAD_KEY)


def test_the_time_costs_no_request_but_once_in_a_while(
    on_zookeeper: tuple[ZooKeeperMetadata, KazooClient],
) -> None:
    """Every commit needs it."""
    store, client = on_zookeeper
    store.now_ms()
    asked = client.exists(paths.CLOCK).version
    for _ in range(1_000):
        store.now_ms()
    assert client.exists(paths.CLOCK).version == asked
    store.now_ms(exact=True)
    assert client.exists(paths.CLOCK).version == asked + 1


def test_the_time_is_asked_again_before_clocks_have_drifted_apart(namespace: str) -> None:
    clock = SeededClock()
    store = ZooKeeperMetadata(namespace, clock=clock)
    first = store.now_ms()
    clock.sleep(599)
    assert store.now_ms() == first + 599_000  # reckoned: this clock goes much too fast
    clock.sleep(2)
    assert store.now_ms() < first + 60_000
    store.close()


def test_children_of_a_later_version_are_passed_over(
    on_zookeeper: tuple[ZooKeeperMetadata, KazooClient],
) -> None:
    store, client = on_zookeeper
    client.create(f"{paths.path(ROOT)}/invented-later")
    assert store.children(ROOT) == [HEAD_KEY]


def test_looking_leaves_no_traces(zookeeper: str, namespace: str) -> None:
    store = ZooKeeperMetadata(namespace)
    store.read(HEAD_KEY, lambda: None)
    store.sync()
    store.close()
    client = KazooClient(zookeeper)
    client.start()
    assert client.exists(namespace.removeprefix(zookeeper)) is None
    client.stop()
    client.close()


def test_a_root_may_be_deep(namespace: str) -> None:
    store = ZooKeeperMetadata(f"{namespace}/a/b/")
    store.transact([Create(NamespaceKey(), Namespace("/data", 1))])
    assert store.read(NamespaceKey()) == Versioned(Namespace("/data", 1), 0)
    store.close()


def test_records_are_small() -> None:
    assert len(codec.encode(CommitKey(UUID, 0, 0), COMMIT)) < 250
    usual = replace(HEAD, operations=(), gc_kept=(), replaced=None, trim=None, pending=(), set_back=None)
    assert len(codec.encode(HEAD_KEY, usual)) < 300
    assert len(codec.encode(HEAD_KEY, replace(HEAD, operations=(b"o" * 16,) * 16, gc_kept=(FILE,) * 8))) < 4_000


@pytest.mark.parametrize("key", [key for key, _ in NODES] + [TopicsKey()])
def test_a_path_leads_back_to_its_key(key: AnyKey) -> None:
    assert paths.key(paths.path(key)) == key
