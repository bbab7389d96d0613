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
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kazoo.client import KazooClient, KazooState
from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Auth, Connect
from kazoo.protocol.states import KeeperState
from kazoo.security import CREATOR_ALL_ACL

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Deadline
from pyspark_ledger.errors import InvalidInput, Unavailable

logger = logging.getLogger(__name__)

# A server that comes back is noticed within this time; kazoo's own default is a minute.
_RECONNECT_MAX_S = 2.0

# An address that has never answered this process, and where every server refuses connections for so long, is given up:
# it is most likely wrong. One that has answered before is being restarted, and gets all the time that the caller has.
_REFUSED_S = 3.0
_LOOK_EVERY_S = 0.5
_answered: set[str] = (
    set()
)  # the servers of every address that has answered this process, or the one it was forked from

# Servers that do not answer: since when, and what had the connection, with how many sessions lost by then. Not kept by
# the connection, because one of Spark's processes may take a new one for its next batch.
_away: dict[str, tuple[float, Connection, int]] = {}


@dataclass(frozen=True, slots=True)
class Address:
    """Which servers, and as whom. The chroot is not part of it: namespaces share a client."""

    servers: str
    password: str | None = field(default=None, repr=False)  # "user:password", scheme digest
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


def _all_refuse(servers: str) -> bool:
    """Whether nothing listens at any of the servers, or they are no hosts at all. A host that only takes its time does
    not refuse."""
    for server in collect_hosts(servers)[0]:
        try:
            socket.create_connection(server, _LOOK_EVERY_S).close()
            return False
        except ConnectionRefusedError:
            continue
        except socket.gaierror as error:
            if error.errno != socket.EAI_NONAME:
                return False
        except OSError:
            return False
    return True


def _tells_no_password(line: logging.LogRecord) -> bool:
    """At level debug kazoo logs every request, also those that have the user's password, or the session's."""
    return not any(isinstance(each, Auth | Connect) for each in line.args or ())


class Connection:
    """A client that was started, and what is known about its sessions."""

    def __init__(self, address: Address, lost: int = 0) -> None:
        self.users: set[Lease] = set()
        self.connected = 0  # how often
        self.lost = lost  # sessions lost so far: a new one may be served by a follower that lags
        self.synced = lost
        self.dead = False
        self._refused_since: float | None = None
        self._servers = address.servers
        kazoo = logging.getLogger(f"{__name__}.kazoo")
        kazoo.addFilter(_tells_no_password)
        self.client: Any = KazooClient(
            hosts=address.servers,
            timeout=address.session_timeout_s,
            auth_data=[("digest", address.password)] if address.password else None,
            default_acl=CREATOR_ALL_ACL if address.password else None,
            logger=kazoo,
            connection_retry={"max_tries": -1, "max_delay": _RECONNECT_MAX_S},
        )
        self.client.add_listener(self._state_changed)
        self._live: threading.Event = self.client.start_async()

    def wait(self, seconds: float) -> bool:
        return self._live.wait(seconds)

    def refused_for_too_long(self) -> bool:
        """Looks, and remembers since when."""
        if not _all_refuse(self._servers):
            self._refused_since = None
            return False
        now = SYSTEM_CLOCK.monotonic()
        self._refused_since = self._refused_since or now
        return now - self._refused_since >= _REFUSED_S

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
            self._tell_back()
        if state == KazooState.SUSPENDED:
            self._tell_away()
        if state == KazooState.LOST:
            self.lost += 1
            self.dead = self.client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)

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
        patient = self._answered or self.address.servers in _answered
        while not connection.wait(deadline.remaining if patient else min(_LOOK_EVERY_S, deadline.remaining)):
            if deadline.passed:
                raise Unavailable(self._why_no_answer(connection))
            if not patient and connection.refused_for_too_long():
                raise Unavailable(
                    f"nothing listens at {self.address.servers}: is ZooKeeper running there, and is the option "
                    "zookeeper right?"
                )
        return connection

    def _why_no_answer(self, connection: Connection) -> str:
        servers = self.address.servers
        if connection.connected and not _all_refuse(servers):
            return (
                f"ZooKeeper at {servers} takes connections, and ends them without an answer: it is starting, its "
                "servers cannot agree, or it was rolled back to a state that is older than what this process has seen. "
                "Then it lets this process in only when it has caught up, or when the process is started anew"
            )
        return f"ZooKeeper at {servers} does not answer: is it running, and is the option zookeeper right?"

    @property
    def is_connected(self) -> bool:
        with _registry.lock:
            found = _registry.find(self)
        return found is not None and bool(found.client.connected)

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
