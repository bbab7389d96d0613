"""The faults of the in-memory store do what they say: tests that rely on them rely on this."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from pyspark_ledger.errors import LedgerError, OutcomeUnknown, Unavailable
from pyspark_ledger.metadata.port import Create, NamespaceKey, Put
from pyspark_ledger.metadata.records import Namespace
from pyspark_ledger.testing.memory import Crash, Faults, MemoryMetadata, MemoryServer, TransactFault

KEY = NamespaceKey()
FIRST = Namespace("first", 0)


@pytest.fixture
def server() -> MemoryServer:
    server = MemoryServer()
    MemoryMetadata(server).transact([Create(KEY, FIRST)])
    return server


def put(version: int) -> list[Put]:
    return [Put(KEY, replace(FIRST, created_ms=version + 1), version)]


def version(server: MemoryServer) -> int:
    """As somebody without faults sees it."""
    found = server.value(KEY, server.time)
    assert found is not None
    return found.version


def seen(store: MemoryMetadata) -> int:
    found = store.read(KEY)
    assert found is not None
    return found.version


@pytest.mark.parametrize(("fault", "applied"), [("lost_before", 0), ("applied_then_lost", 1), ("expired", 0)])
def test_an_unknown_outcome_is_either(server: MemoryServer, fault: TransactFault, applied: int) -> None:
    faults = Faults()
    store = MemoryMetadata(server, faults)
    faults.next_transact(fault)
    with pytest.raises(OutcomeUnknown):
        store.transact(put(0))
    assert version(server) == applied
    store.transact(put(applied))  # and later calls work again


def test_an_answer_lost_hides_a_refusal_too(server: MemoryServer) -> None:
    faults = Faults()
    faults.next_transact("applied_then_lost")
    with pytest.raises(OutcomeUnknown):
        MemoryMetadata(server, faults).transact(put(7))
    assert version(server) == 0


def test_a_delayed_transaction_comes_later_even_after_a_sync(server: MemoryServer) -> None:
    faults = Faults(max_delay=1)
    store = MemoryMetadata(server, faults)
    faults.next_transact("delayed")
    with pytest.raises(OutcomeUnknown):
        store.transact(put(0))
    assert version(server) == 0
    store.sync()
    assert version(server) == 1


def test_a_delayed_transaction_is_checked_when_it_comes(server: MemoryServer) -> None:
    faults = Faults(max_delay=100)
    faults.next_transact("delayed", None)
    store = MemoryMetadata(server, faults)
    with pytest.raises(OutcomeUnknown):
        store.transact(put(0))
    store.transact(put(0))
    server.deliver_delayed()
    assert version(server) == 1


def test_a_stale_read_lags_until_a_sync(server: MemoryServer) -> None:
    faults = Faults(max_lag=1)
    store = MemoryMetadata(server, faults)
    store.transact(put(0))
    faults.next_read("stale", "stale")
    assert (seen(store), seen(store)) == (0, 0)
    store.sync()
    faults.next_read("stale")
    assert seen(store) == 1  # never behind a sync
    store.transact(put(1))
    faults.next_read("stale")
    assert seen(store) == 1


def test_a_lagging_reader_catches_up(server: MemoryServer) -> None:
    store = MemoryMetadata(server, faults := Faults(3, max_lag=3))
    for at in range(3):
        store.transact(put(at))
    faults.next_read("stale")
    versions = [seen(store) for _ in range(4)]
    assert versions[0] < 3
    assert versions == sorted(versions)
    assert versions[-1] == 3


def test_a_stale_view_is_one_of_the_whole_server(server: MemoryServer) -> None:
    faults = Faults(max_lag=1)
    store = MemoryMetadata(server, faults)
    faults.next_read("stale", "stale")
    assert store.read(KEY) is None  # created by the last transaction
    assert store.children(KEY) == []


def test_an_expired_session_fails_one_read_and_calls_its_watches(server: MemoryServer) -> None:
    faults = Faults()
    mine, other = threading.Event(), threading.Event()
    store = MemoryMetadata(server, faults)
    store.read(KEY, mine.set)
    MemoryMetadata(server).read(KEY, other.set)
    faults.next_read("expired")
    with pytest.raises(Unavailable):
        store.read(KEY)
    assert mine.is_set()
    assert not other.is_set()
    assert seen(store) == 0


@pytest.mark.parametrize("applied", [False, True])
def test_a_crash_comes_at_its_transaction(server: MemoryServer, applied: bool) -> None:
    faults = Faults()
    store = MemoryMetadata(server, faults)
    store.transact(put(0))
    faults.crash_at(2, applied=applied)
    store.transact(put(1))
    with pytest.raises(Crash):
        store.transact(put(2))
    assert version(server) == (3 if applied else 2)
    MemoryMetadata(server).transact(put(version(server)))  # the others live on


def history(seed: int) -> list[object]:
    server = MemoryServer()
    rates = {"lost_before": 0.1, "applied_then_lost": 0.1, "delayed": 0.1, "stale_read": 0.2, "expired": 0.1}
    store = MemoryMetadata(server, Faults(seed, **rates))
    events: list[object] = []
    for _ in range(200):
        try:
            found = store.read(KEY)
            store.transact([Create(KEY, FIRST)] if found is None else put(found.version))
            events.append(found)
        except LedgerError as error:
            events.append(str(error))
    return [*events, server.value(KEY, server.time)]


def test_a_seed_fixes_everything() -> None:
    assert history(1) == history(1)
    assert history(1) != history(2)


def test_every_rate_is_met() -> None:
    text = " ".join(str(event) for event in history(1))
    for word in ("lost_before", "applied_then_lost", "delayed", "(expired)", "session has expired", "CONFLICT"):
        assert word in text


def test_one_lock_lets_one_of_many_through(server: MemoryServer) -> None:
    won: list[int] = []

    def race(at: int) -> None:
        try:
            MemoryMetadata(server).transact(put(0))
            won.append(at)
        except LedgerError:
            pass

    threads = [threading.Thread(target=race, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
