"""What happens between a client and its ZooKeeper: forks, lost answers, lost connections, lost sessions."""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Deadline
from pyspark_ledger.errors import InvalidInput, OutcomeUnknown, Unavailable
from pyspark_ledger.metadata.port import Create, NamespaceKey, Put, Versioned
from pyspark_ledger.metadata.records import Namespace
from pyspark_ledger.zk_metadata import session
from pyspark_ledger.zk_metadata.session import Connection
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata
from pyspark_ledger.zk_metadata.trouble import REFUSED_S
from tests.support.proxy import Proxy
from tests.support.zookeeper import as_user, expire

KEY = NamespaceKey()


@pytest.fixture
def proxy(zookeeper: str) -> Iterator[Proxy]:
    proxy = Proxy(zookeeper)
    yield proxy
    proxy.close()


@pytest.fixture
def direct(namespace: str) -> Iterator[ZooKeeperMetadata]:
    """A namespace made and seen from the side, with no proxy between."""
    store = ZooKeeperMetadata(namespace)
    store.transact([Create(KEY, Namespace("at first", 0))])
    yield store
    store.close()


@pytest.fixture
def store(zookeeper: str, namespace: str, direct: ZooKeeperMetadata, proxy: Proxy) -> Iterator[ZooKeeperMetadata]:
    store = ZooKeeperMetadata(namespace.replace(zookeeper, proxy.address))
    store.transact([Put(KEY, Namespace("proxied", 0), 0)])
    yield store
    store.close()


def connection(store: ZooKeeperMetadata) -> Connection:
    return store._lease.connection(Deadline(SYSTEM_CLOCK, 10))


def storage(store: ZooKeeperMetadata) -> str:
    store.sync()
    found = store.read(KEY)
    assert found is not None
    return found.record.storage


def eventually(condition: Callable[[], bool]) -> None:
    deadline = Deadline(SYSTEM_CLOCK, 20)
    while not condition():
        assert not deadline.passed
        time.sleep(0.02)


# -- one client per process


def in_a_child(work: Callable[[], None]) -> int:
    """Its exit status: 0 if the work was done."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_uses_a_client_of_its_own(direct: ZooKeeperMetadata) -> None:
    inherited = connection(direct).client

    def work() -> None:
        assert connection(direct).client is not inherited
        direct.transact([Put(KEY, Namespace("from the child", 0), 0)])
        direct.close()

    assert in_a_child(work) == 0
    assert connection(direct).client is inherited
    assert direct.read(KEY) == Versioned(Namespace("from the child", 0), 1)


def test_a_fork_in_the_middle_of_work_harms_nobody(direct: ZooKeeperMetadata) -> None:
    stop = threading.Event()

    def read_on() -> None:
        while not stop.is_set():
            direct.read(KEY)

    threads = [threading.Thread(target=read_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert [in_a_child(lambda: storage(direct) and None) for _ in range(10)] == [0] * 10
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert storage(direct) == "at first"


def test_stores_share_a_client_and_the_last_one_closes_it(namespace: str) -> None:
    options = {"session_timeout_s": 9.0}  # nobody else's client
    one, two = ZooKeeperMetadata(namespace, **options), ZooKeeperMetadata(namespace + "/b", **options)
    client = connection(one).client
    assert connection(two).client is client
    one.close()
    assert two.read(KEY) is None
    two.close()
    assert not client.connected


def test_a_store_is_never_pickled(direct: ZooKeeperMetadata) -> None:
    with pytest.raises(TypeError, match="open one in each process"):
        pickle.dumps(direct)


# -- nobody answers


def test_nothing_there_is_unavailable_in_time_and_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(Unavailable, match=rf"{address}.*option zookeeper"):
            ZooKeeperMetadata(address, timeout_s=0.5)
    with pytest.raises(Unavailable, match=address):  # refused by now, not only silent
        ZooKeeperMetadata(address, timeout_s=0.5)


def test_an_address_where_nothing_listens_is_given_up_in_seconds() -> None:
    """Long before the time that the caller has is over."""
    with pytest.raises(Unavailable, match=r"nothing listens at 127.0.0.1:1,no.such.host.invalid:2.*option zookeeper"):
        ZooKeeperMetadata("127.0.0.1:1,no.such.host.invalid:2/ledger", timeout_s=3_600)


def test_a_server_that_is_slow_to_listen_gets_its_time(proxy: Proxy, namespace: str) -> None:
    """It takes connections and says nothing yet: that is no wrong address, however long it lasts."""
    proxy.flowing.clear()
    threading.Timer(REFUSED_S + 2, proxy.flowing.set).start()
    ZooKeeperMetadata(f"{proxy.address}/{namespace.partition('/')[2]}", timeout_s=30).close()


def test_a_server_that_answered_before_gets_all_the_time_when_it_refuses(proxy: Proxy, namespace: str) -> None:
    address = f"{proxy.address}/{namespace.partition('/')[2]}"
    ZooKeeperMetadata(address).close()
    proxy.close()
    started = time.monotonic()
    with pytest.raises(Unavailable, match="does not answer"):
        ZooKeeperMetadata(address, timeout_s=REFUSED_S + 2)
    assert time.monotonic() - started >= REFUSED_S + 2


@pytest.mark.parametrize("hosts", ["", "/only/a/path", "host:port", "host:1/a/../b"])
def test_a_bad_connect_string_is_refused(hosts: str) -> None:
    with pytest.raises(InvalidInput, match=r"option '?zookeeper"):
        ZooKeeperMetadata(hosts)


def test_a_server_that_goes_away_is_unavailable(store: ZooKeeperMetadata, proxy: Proxy) -> None:
    store._timeout_s = 0.5
    proxy.close()
    eventually(lambda: not connection_alive(store))
    with pytest.raises(Unavailable):
        store.read(KEY)
    with pytest.raises(Unavailable):  # and not OutcomeUnknown: it was never sent
        store.transact([Put(KEY, Namespace("never sent", 0), 1)])


def connection_alive(store: ZooKeeperMetadata) -> bool:
    return bool(store._lease._share().client.connected)


def test_no_level_of_the_log_shows_a_password_or_the_secret_of_a_session(namespace: str, caplog) -> None:
    caplog.set_level(1, "pyspark_ledger")  # kazoo has one below debug
    owner = ZooKeeperMetadata(as_user(namespace, "me:do-not-show"))
    owner.sync()
    owner.close()
    assert "Auth(…)" in caplog.text
    assert "Connect(…)" in caplog.text
    assert "do-not-show" not in caplog.text
    assert "passwd" not in caplog.text


def test_a_wrong_password_is_said_to_be_wrong(namespace: str) -> None:
    owner = ZooKeeperMetadata(as_user(namespace, "me:secret"))
    owner.transact([Create(KEY, Namespace("mine", 0))])
    stranger = ZooKeeperMetadata(as_user(namespace, "me:guess"))
    with pytest.raises(InvalidInput, match=r"zookeeper\.password") as info:
        stranger.read(KEY)
    assert "guess" not in str(info.value)
    with pytest.raises(InvalidInput, match=r"zookeeper\.password"):
        stranger.read_many([KEY])
    with pytest.raises(InvalidInput, match=r"zookeeper\.password"):
        stranger.transact([Put(KEY, Namespace("stolen", 0), 0)])
    assert storage(owner) == "mine"
    owner.close()
    stranger.close()


# -- answers get lost


def test_a_lost_answer_is_an_unknown_outcome_and_it_was_applied(store: ZooKeeperMetadata, proxy: Proxy) -> None:
    proxy.drop_reply_of_next_multi = True
    with pytest.raises(OutcomeUnknown):
        store.transact([Put(KEY, Namespace("applied", 0), 1)])
    assert storage(store) == "applied"


def test_a_lost_request_looks_the_same_and_was_not_applied(store: ZooKeeperMetadata, proxy: Proxy) -> None:
    proxy.drop_next_multi = True
    with pytest.raises(OutcomeUnknown):
        store.transact([Put(KEY, Namespace("lost", 0), 1)])
    assert storage(store) == "proxied"


def test_a_request_that_timed_out_may_be_applied_later(
    store: ZooKeeperMetadata, direct: ZooKeeperMetadata, proxy: Proxy
) -> None:
    store._timeout_s = 0.3
    proxy.flowing.clear()
    with pytest.raises(OutcomeUnknown):
        store.transact([Put(KEY, Namespace("zombie", 0), 1)])
    assert storage(direct) == "proxied"
    proxy.flowing.set()
    eventually(lambda: storage(direct) == "zombie")


def test_a_session_survives_a_reconnect(store: ZooKeeperMetadata, proxy: Proxy) -> None:
    session = connection(store).client.client_id
    for _ in range(3):
        proxy.cut()
        assert storage(store) == "proxied"
    assert connection(store).client.client_id == session
    store.transact([Put(KEY, Namespace("as before", 0), 1)])


def test_how_long_zookeeper_was_away_is_said_once_each_way(
    store: ZooKeeperMetadata, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[str]:
        ours = [each for each in caplog.records if each.name == session.__name__ and proxy.address in each.getMessage()]
        return [each.getMessage().replace(proxy.address, "…") for each in ours if each.levelname == "WARNING"]

    storage(store)
    assert lines() == []  # to connect is no news
    proxy.cut()
    assert storage(store) == "proxied"
    away, back = lines()
    assert away == "ZooKeeper at … does not answer: the connection was lost, and is being renewed"
    assert re.fullmatch(r"ZooKeeper at … answers again after \d+\.\d s, with the same session", back)

    expire(connection(store).client)
    assert storage(store) == "proxied"
    eventually(lambda: len(lines()) == 4)
    assert lines()[-1].endswith("with a new session")
    store.close()
    assert len(lines()) == 4  # to leave is no news either


def test_a_lost_connection_is_a_hint_too(store: ZooKeeperMetadata, proxy: Proxy) -> None:
    hint = threading.Event()
    store.read(KEY, hint.set)
    proxy.cut()
    assert hint.wait(10)


def test_polling_with_one_callback_leaves_one_watch(store: ZooKeeperMetadata, direct: ZooKeeperMetadata) -> None:
    calls: list[int] = []
    last = threading.Event()

    def hint() -> None:
        calls.append(1)

    for _ in range(5):
        store.read(KEY, hint)
    store.read(KEY, last.set)
    direct.transact([Put(KEY, Namespace("changed", 0), 1)])
    assert last.wait(10)
    eventually(lambda: calls == [1])


# -- sessions get lost


def test_an_expired_session_is_replaced_and_never_reads_the_past(
    store: ZooKeeperMetadata,
) -> None:
    before = connection(store)
    session = before.client.client_id
    expire(before.client)
    assert storage(store) == "proxied"
    eventually(lambda: before.lost == 1)
    assert before.client.client_id != session
    assert store.read(KEY) is not None
    assert not before.stale
    store.transact([Put(KEY, Namespace("by the new session", 0), 1)])


def test_a_client_that_gave_up_is_replaced(store: ZooKeeperMetadata) -> None:
    dead = connection(store)
    dead.client.stop()
    eventually(lambda: dead.dead)
    assert storage(store) == "proxied"
    assert connection(store) is not dead
