"""One ZooKeeper client per process and address, shared by everybody who asks.

A client has threads and a socket, neither of which survives ``fork``: clients are therefore kept by process id, and one
that was inherited is neither used nor closed. Clients reconnect in the background, for ever; callers wait with a
deadline.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import threading
from dataclasses import dataclass
from typing import Any, NoReturn

from kazoo.client import KazooClient, KazooState
from kazoo.hosts import collect_hosts
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.serialization import SASL, Auth, Connect
from kazoo.protocol.states import KeeperState
from kazoo.security import CREATOR_ALL_ACL

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Deadline
from pyspark_ledger.base.login import Login
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.errors import InvalidInput, LedgerError
from pyspark_ledger.zk_metadata.logging_in import LoginHandler, auth_data, check_sasl, not_let_in, sasl_options
from pyspark_ledger.zk_metadata.tls import context_of
from pyspark_ledger.zk_metadata.trouble import LOOK_EVERY_S, Trouble

logger = logging.getLogger(__name__)


class _NoSecrets(logging.Filter):
    """At level debug kazoo logs its requests as they are, also the one with the password. Whoever reads a log is not to
    have that, nor what would let him go on with a session."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(f"{type(each).__name__}(…)" if _is_secret(each) else each for each in record.args)
        return "session_passwd" not in str(record.msg)


def _is_secret(shown: object) -> bool:
    return isinstance(shown, Auth | Connect | SASL)


_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.addFilter(_NoSecrets())

# How often a process looks whether its profile has got another login.
_LOGIN_SEEN_S = 5.0

# A server that comes back is noticed within this time; kazoo's own default is a minute.
_RECONNECT_MAX_S = 2.0

# An address that has never answered this process is given up early: it is most likely wrong. One that has answered
# before is being restarted, and gets all the time that the caller has.
# The servers of every address that has answered this process, or the one it was forked from; and as whom.
_answered: set[str] = set()
_let_in: set[tuple[str, Settings]] = set()

# Servers that do not answer: since when, and what had the connection, with how many sessions lost by then. Not kept by
# the connection, because one of Spark's processes may take a new one for its next batch.
_away: dict[str, tuple[float, Connection, int]] = {}


@dataclass(frozen=True, slots=True)
class Address:
    """Which servers, and as whom. The chroot is not part of it: namespaces share a client."""

    servers: str
    who: Settings  # whose login is looked up anew whenever a connection is made
    session_timeout_s: float = 10.0


def split_connect_string(text: str) -> tuple[str, str]:
    """``host:port,host:port/some/root`` -> servers and root, the latter as "" or "/some/root"."""
    servers, _, root = text.strip().partition("/")
    segments = [segment for segment in root.split("/") if segment]
    if any(segment in (".", "..") for segment in segments):
        _refuse(text, "a path may not contain '.' or '..'")
    try:
        collect_hosts(servers)
    except ValueError as error:
        _refuse(text, str(error))
    return servers, "".join(f"/{segment}" for segment in segments)


def _refuse(text: str, why: str) -> NoReturn:
    raise InvalidInput(
        f"option zookeeper: '{text}' is no connect string ({why}): write host:port[,host:port…][/path]",
        "LEDGER_INVALID_OPTION",
    )


def is_listening(connect_string: str, timeout_s: float = 3.0) -> bool:
    """Whether any of the servers takes connections at all."""
    servers, _ = split_connect_string(connect_string)
    for server in collect_hosts(servers)[0]:
        with contextlib.suppress(OSError), socket.create_connection(server, timeout_s):
            return True
    return False


class Connection:
    """A client that was started, and what is known about its sessions."""

    def __init__(self, address: Address, lost: int = 0) -> None:
        self._address = address
        self.login = login = address.who.login()  # as it was last used
        if login.tls is not None:
            context_of(login.tls)  # what is wrong with files is told at once
        check_sasl(login.sasl)
        self.logins = 1  # that were shown to ZooKeeper so far, one after another
        self._login_lock = threading.Lock()
        self._login_seen_at = SYSTEM_CLOCK.monotonic()
        self.users: set[Lease] = set()
        self.connected = 0  # how often
        self.lost = lost  # sessions lost so far: a new one may be served by a follower that lags
        self.synced = lost
        self.dead = False
        self.refused = False  # the login, by a server
        self.trouble = Trouble(address.servers)
        self._servers = address.servers
        self.client: Any = KazooClient(
            hosts=address.servers,
            timeout=address.session_timeout_s,
            auth_data=auth_data(login),
            sasl_options=sasl_options(login),
            default_acl=CREATOR_ALL_ACL if login.owns else None,
            use_ssl=login.tls is not None,  # for its log: the handler encrypts
            logger=_kazoo_logger,
            handler=LoginHandler(self._renewed_login),
            connection_retry={"max_tries": -1, "max_delay": _RECONNECT_MAX_S},
        )
        self.client.add_listener(self._state_changed)
        self._live: threading.Event = self.client.start_async()

    def wait(self, seconds: float) -> bool:
        return self._live.wait(seconds)

    def _renewed_login(self) -> Login:
        """For a connection that is being made, on kazoo's thread: what a profile has got meanwhile counts from there
        on."""
        try:
            login = self._address.who.login()
        except LedgerError as error:  # somebody writes the file at this moment, say
            logger.warning("the login for ZooKeeper at %s stays as it was: %s", self._servers, error)
            return self.login
        if login != self.login:
            self.client.auth_data = set(auth_data(login) or ())
            self.client._connection.sasl_options = sasl_options(login)
            self._use(login)
        return login

    def _use(self, login: Login) -> None:
        logger.info("the login for ZooKeeper at %s has changed: %s", self._servers, login.who)
        self.login = login
        self.logins += 1

    def look_for_login(self) -> None:
        """Now and then, where a profile may have got another one: :meth:`take_up_login`."""
        if SYSTEM_CLOCK.monotonic() - self._login_seen_at > _LOGIN_SEEN_S:
            self.take_up_login()

    def take_up_login(self) -> bool:
        """Shows ZooKeeper the login that the profile has got meanwhile; False if it has got none. A user of the digest
        scheme then counts beside the former one. With any other login the connection is made anew; the session stays.
        Requests that come after this are judged by the new login."""
        with self._login_lock:
            self._login_seen_at = SYSTEM_CLOCK.monotonic()
            before = self.login
            with contextlib.suppress(LedgerError):  # somebody writes the file at this moment, say
                login = self._address.who.login()
                if login == before:
                    return False
                if login.digest and (login.tls, login.sasl) == (before.tls, before.sasl):
                    self.client.add_auth_async("digest", login.digest)
                    self._use(login)
                else:
                    self.client._call(_CONNECTION_DROP, self.client.handler.async_result())
                return True
        return False

    @property
    def stale(self) -> bool:
        """Whether a session was lost since the last sync, so that reads may go back in time."""
        return self.synced != self.lost

    def stop(self) -> None:
        # Waits for kazoo's threads, for many seconds if a server hangs: only a live session is worth that.
        if self.client.connected:
            self._stop()
        else:
            threading.Thread(target=self._stop, daemon=True).start()

    def _stop(self) -> None:
        self.client.stop()
        self.client.close()

    def _state_changed(self, state: str) -> None:
        # Runs on kazoo's connection thread, before the requests of the lost session fail: must not block.
        if state == KazooState.CONNECTED:
            self.connected += 1
            _answered.add(self._servers)
            _let_in.add((self._servers, self._address.who))
            self._tell_back()
        if state == KazooState.SUSPENDED:
            self._tell_away()
        if state == KazooState.LOST:
            self.lost += 1
            self.refused = self.client.client_state == KeeperState.AUTH_FAILED
            self.dead = self.refused or self.client.client_state == KeeperState.CLOSED

    def _tell_away(self) -> None:
        if self._servers not in _away:
            _away[self._servers] = SYSTEM_CLOCK.monotonic(), self, self.lost
            logger.warning(
                "ZooKeeper at %s does not answer: the connection was lost, and is being renewed", self._servers
            )

    def _tell_back(self) -> None:
        since, connection, lost = _away.pop(self._servers, (0.0, None, 0))
        if connection is not None:
            is_same = connection is self and self.lost == lost
            session = "with the same session" if is_same else "with a new session"
            away_s = SYSTEM_CLOCK.monotonic() - since
            logger.warning("ZooKeeper at %s answers again after %.1f s, %s", self._servers, away_s, session)


class Lease:
    """One user's share of the process's connection to an address. ``answered``: the address has answered another
    process that works on the same thing, and so is not wrong."""

    def __init__(self, address: Address, answered: bool = False) -> None:
        self.address, self._answered = address, answered
        self._closed = False

    def connection(self, deadline: Deadline) -> Connection:
        """Connected at this moment, or Unavailable when the deadline passes: then nothing was sent."""
        connection = self._share()
        while not connection.wait(min(LOOK_EVERY_S, deadline.remaining)):
            if connection.refused:
                raise not_let_in(self.address.servers, connection.login)
            if deadline.passed:
                raise connection.trouble.at_last(connection.login.tls, connected=bool(connection.connected))
            if not self._answered and (self.address.servers, self.address.who) not in _let_in:
                connection.trouble.look(connection.login.tls, is_known=self.address.servers in _answered)
            if connection.dead:
                connection = self._share()
        connection.look_for_login()
        return connection

    @property
    def is_connected(self) -> bool:
        with _registry.lock:
            found = _registry.find(self)
        return found is not None and bool(found.client.connected)

    @property
    def login(self) -> Login:
        """As whom the process was last connected."""
        with _registry.lock:
            found = _registry.find(self)
        return found.login if found is not None else self.address.who.login()

    @property
    def logins(self) -> int:
        """How many logins the process has shown so far."""
        return self._share().logins

    @property
    def connections(self) -> int:
        """How often this process was connected to the address."""
        return self._share().connected

    def _share(self) -> Connection:
        with _registry.lock:
            if self._closed:
                raise InvalidInput("this connection to ZooKeeper has been closed", "LEDGER_CLOSED")
            return _registry.share(self)

    def close(self) -> None:
        with _registry.lock:
            self._closed = True
            last = _registry.release(self)
        if last is not None:
            last.stop()


def _replacement(dead: Connection, address: Address) -> Connection:
    """kazoo gave up on a client, so its session is gone: the next one must sync before it reads."""
    dead.stop()
    successor = Connection(address, lost=dead.lost)
    successor.users, successor.synced, successor.connected = dead.users, -1, dead.connected
    successor.logins += dead.logins
    return successor


class _Registry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._connections: dict[tuple[int, Address], Connection] = {}

    def share(self, lease: Lease) -> Connection:
        key = (os.getpid(), lease.address)
        found = self._connections.get(key)
        if found is None:
            found = self._connections[key] = Connection(lease.address)
        elif found.dead:
            found = self._connections[key] = _replacement(found, lease.address)
        found.users.add(lease)
        return found

    def find(self, lease: Lease) -> Connection | None:
        return self._connections.get((os.getpid(), lease.address))

    def release(self, lease: Lease) -> Connection | None:
        """The connection, if that was its last user."""
        key = (os.getpid(), lease.address)
        found = self._connections.get(key)
        if found is None:
            return None
        found.users.discard(lease)
        return None if found.users else self._connections.pop(key)

    def forget_in_child(self) -> None:
        for connection in self._connections.values():
            atexit.unregister(connection.client.handler.stop)


_registry = _Registry()
# Keeps inherited clients reachable, so that no destructor in the child touches the parent's sockets.
_inherited: list[_Registry] = []


def _after_fork_in_child() -> None:
    global _registry
    _registry.forget_in_child()
    _inherited.append(_registry)
    _registry = _Registry()
    _away.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
