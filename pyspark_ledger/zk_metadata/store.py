"""The metadata port on ZooKeeper.

Reads are repeated until a deadline. A transaction is sent once: only the caller knows whether it is safe to send it
again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, cast

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol import serialization as protocol
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Permissions

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock, Deadline
from pyspark_ledger.errors import InvalidInput, OutcomeUnknown, Unavailable
from pyspark_ledger.metadata.chores import Chores
from pyspark_ledger.metadata.port import (
    AnyKey,
    Check,
    Create,
    Delete,
    Key,
    Metadata,
    Op,
    Put,
    R,
    TransactionLost,
    Versioned,
)
from pyspark_ledger.zk_metadata import codec, paths
from pyspark_ledger.zk_metadata.multiread import Node, get_children_many, get_many
from pyspark_ledger.zk_metadata.raw import NodeAt
from pyspark_ledger.zk_metadata.session import Address, Connection, Lease, split_connect_string

# ZooKeeper closes the connection without an answer if a request has 1,048,575 bytes or more.
MAX_TRANSACTION_BYTES = 900_000
_OP_OVERHEAD_BYTES = 64  # header, lengths, access list

_READ_WINDOW = 200
_RETRY_PAUSE_S = 0.05
_CLOCK_S = 600.0  # for how long ZooKeeper's time is reckoned from what it was: clocks drift by less than a second

_RETRIED = (ConnectionLoss, SessionExpiredError, SessionMovedError, OperationTimeoutError)
_LOST_BECAUSE = {
    BadVersionError: "has another version",
    NodeExistsError: "is there already",
    NoNodeError: "is not there, or its parent is not",
    NotEmptyError: "still holds others",
}

T = TypeVar("T")


class ZooKeeperMetadata(Metadata):
    """A namespace in ZooKeeper, given by a connect string such as ``host:2181,host:2181/prod/ledger``.

    ``timeout_s`` limits every call. ``answered`` says that the address has answered another process, so that it gets
    all that time also when nothing listens there at first. With a ``password`` (``user:password``, scheme digest) what
    is created belongs to that user alone. An instance may be used from several threads and after a fork; it can't be
    pickled.
    """

    def __init__(
        self,
        hosts: str,
        *,
        timeout_s: float = 30.0,
        session_timeout_s: float = 10.0,
        password: str | None = None,
        answered: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        servers, self._root = split_connect_string(hosts)
        if password is not None and ":" not in password:
            raise InvalidInput(
                "option zookeeper.password: the password for ZooKeeper is no user:password", "LEDGER_INVALID_OPTION"
            )
        self._timeout_s = timeout_s
        self._clock = clock
        self._acl = CREATOR_ALL_ACL if password else OPEN_ACL_UNSAFE
        self._has_containers = False
        self._asked_time: tuple[int, float] | None = None  # ZooKeeper's, and by the monotonic clock when that was
        self._lease = Lease(Address(servers, password, session_timeout_s), answered)
        self._chores = Chores(clock, background=True)
        try:
            self._lease.connection(self._deadline())
        except BaseException:
            self._lease.close()
            raise

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection to ZooKeeper can't be pickled: open one in each process")

    def close(self) -> None:
        self._chores.close(connected=self._lease.is_connected)
        self._lease.close()

    @property
    def chores(self) -> Chores:
        return self._chores

    @property
    def session_timeout_s(self) -> float:
        return self._lease.address.session_timeout_s

    # -- reads

    def read(self, key: Key[R], on_change: Callable[[], None] | None = None) -> Versioned[R] | None:
        path = self._path(key)
        watch = None if on_change is None else _Watch(on_change)
        found, session = self._retry(
            path, lambda client, deadline: (_get(client, path, watch, deadline), client.client_id)
        )
        return _decode(key, path, found, session)

    def read_many(self, keys: Sequence[Key[R]]) -> list[Versioned[R] | None]:
        found: list[Versioned[R] | None] = []
        for start in range(0, len(keys), _READ_WINDOW):
            found += self._read_window(keys[start : start + _READ_WINDOW])
        return found

    def _read_window(self, keys: Sequence[Key[R]]) -> list[Versioned[R] | None]:
        names = tuple(self._path(key) for key in keys)
        found = self._retry(names[0], lambda client, deadline: get_many(client, names, deadline.remaining))
        return [_decode(key, path, node) for key, path, node in zip(keys, names, found, strict=True)]

    def children(self, key: AnyKey) -> list[AnyKey]:
        path = self._path(key)
        return _below(key, self._retry(path, lambda client, deadline: _get_children(client, path, deadline)))

    def children_many(self, keys: Sequence[AnyKey]) -> list[list[AnyKey]]:
        found: list[list[AnyKey]] = []
        for start in range(0, len(keys), _READ_WINDOW):
            window = keys[start : start + _READ_WINDOW]
            found += map(_below, window, self._children_window(tuple(self._path(key) for key in window)))
        return found

    def _children_window(self, names: tuple[str, ...]) -> list[list[str]]:
        return self._retry(names[0], lambda client, deadline: get_children_many(client, names, deadline.remaining))

    @property
    def is_connected(self) -> bool:
        return self._lease.is_connected

    @property
    def connections(self) -> int:
        return self._lease.connections

    def now_ms(self, *, exact: bool = False) -> int:
        asked = self._asked_time
        if exact or asked is None or self._clock.monotonic() - asked[1] > _CLOCK_S:
            asked = self._asked_time = self._ask_time()
        return asked[0] + int((self._clock.monotonic() - asked[1]) * 1000)

    def _ask_time(self) -> tuple[int, float]:
        """ZooKeeper's time, and when that was here: it puts it on whatever is written."""
        self._ensure_containers()
        path = self._root + paths.CLOCK
        stat = self._retry(
            path, lambda client, deadline: client.set_async(path, codec.MARKER).get(timeout=deadline.remaining)
        )
        return stat.mtime, self._clock.monotonic()

    def sync(self) -> None:
        self._retry(self._root or "/", self._sync)

    def _sync(self, client: Any, deadline: Deadline) -> None:
        client.sync_async(self._root or "/").get(timeout=deadline.remaining)

    def _retry(self, path: str, attempt: Callable[[Any, Deadline], T]) -> T:
        """For what changes nothing, or may be done twice."""
        deadline = self._deadline()
        while True:
            connection = self._lease.connection(deadline)
            try:
                return self._attempt(connection, attempt, deadline)
            except _RETRIED as error:
                if deadline.passed:
                    raise self._unavailable(error) from error
                self._clock.sleep(min(_RETRY_PAUSE_S, deadline.remaining))
            except (NoAuthError, AuthFailedError) as error:
                raise _access_denied(path) from error
            except (KazooException, KazooTimeoutError) as error:
                raise self._unavailable(error) from error

    def _attempt(self, connection: Connection, attempt: Callable[[Any, Deadline], T], deadline: Deadline) -> T:
        """A new session may be served by a follower that lags behind what the old one saw: sync it first, and
        trust nothing that was read while the session changed."""
        lost = connection.lost
        if connection.stale:
            self._sync(connection.client, deadline)
        result = attempt(connection.client, deadline)
        if connection.lost != lost:
            raise SessionExpiredError
        connection.synced = lost
        return result

    # -- transactions

    def transact(self, ops: Sequence[Op]) -> None:
        if not ops:
            return
        requests = [self._request(op) for op in ops]
        _check_size(requests)
        self._ensure_containers()
        deadline = self._deadline()
        client = self._lease.connection(deadline).client  # from here on the request may reach the server
        _raise_refusal(ops, self._commit(client, requests, deadline), self._path)

    def _request(self, op: Op) -> Any:
        """As kazoo sends it. Its own way to put transactions together looks at every argument and path again, which is
        a good part of what a commit costs."""
        path = self._path(op.key)
        match op:
            case Create(key, record, ephemeral):
                return protocol.Create(path, codec.encode(key, record), self._acl, int(ephemeral))
            case Put(key, record, version):
                return protocol.SetData(path, codec.encode(key, record), -1 if version is None else _exact(version))
            case Delete(_, version):
                return protocol.Delete(path, -1 if version is None else _exact(version))
            case Check(_, version):
                return protocol.CheckVersion(path, _exact(version))

    def _commit(self, client: Any, requests: Sequence[Any], deadline: Deadline) -> list[Any]:
        """kazoo can't tell sent from not sent, and a request that timed out may still be sent later."""
        try:
            answer = client.handler.async_result()
            client._call(protocol.Transaction(requests), answer)
            return cast("list[Any]", answer.get(timeout=deadline.remaining))
        except (KazooException, KazooTimeoutError) as error:
            raise OutcomeUnknown(
                f"ZooKeeper at {self._lease.address.servers} did not answer a transaction ({_name(error)}): "
                "it may have been applied, or still be"
            ) from error

    def _ensure_containers(self) -> None:
        """Created before the first write, so that only reading from a wrong address leaves nothing there."""
        if not self._has_containers:
            self._retry(self._root or "/", self._create_containers)
            self._has_containers = True

    def _create_containers(self, client: Any, deadline: Deadline) -> None:
        if self._root:
            client.ensure_path_async(self._root).get(timeout=deadline.remaining)
        requests = [client.create_async(self._root + path, codec.MARKER) for path in paths.CONTAINERS]
        for request in requests:
            _unless(NodeExistsError, request, deadline)

    def forbid_children(self, key: AnyKey) -> None:
        """From now on nobody makes a node below this one. Those that are there can be changed and deleted. Where
        ZooKeeper keeps no access lists, or this user may not change them, nothing changes."""
        path = self._path(key)
        self._retry(path, lambda client, deadline: _forbid_children(client, path, deadline))

    # -- small things

    def _path(self, key: Key[Any]) -> str:
        return self._root + paths.path(key)

    def _deadline(self) -> Deadline:
        return Deadline(self._clock, self._timeout_s)

    def _unavailable(self, error: BaseException) -> Unavailable:
        return Unavailable(
            f"ZooKeeper at {self._lease.address.servers} did not answer within {self._timeout_s:g} s "
            f"({_name(error)}); option zookeeper"
        )


class _Watch:
    """Calls its callback once. Watches with equal callbacks are equal, so that polling a node sets only one."""

    __slots__ = ("_callback", "_fired")

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._fired = False

    def __call__(self, _event: Any) -> None:
        # kazoo also calls this when the connection is lost, and then forgets the watch: so a change that would go
        # unnoticed is covered too.
        if not self._fired:
            self._fired = True
            self._callback()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Watch) or self._fired or other._fired:  # one that fired will not call again
            return False
        return other._callback == self._callback

    def __hash__(self) -> int:
        return hash(self._callback)


def _get(client: Any, path: str, watch: _Watch | None, deadline: Deadline) -> Node | None:
    while True:
        found = _unless(NoNodeError, client.get_async(path, watch=watch), deadline)
        if found is not None or watch is None:
            return cast("Node | None", found)
        # ZooKeeper sets no watch by a get that finds nothing.
        if client.exists_async(path, watch=watch).get(timeout=deadline.remaining) is None:
            return None


def _below(key: AnyKey, names: Sequence[str]) -> list[AnyKey]:
    """The keys of a node's children, in order."""
    below = [f"{paths.path(key)}/{name}" for name in sorted(names)]
    if isinstance(key, NodeAt):
        return [cast(AnyKey, NodeAt(path)) for path in below]
    keys = [paths.key(path) for path in below]
    return [child for child in keys if child is not None]


def _get_children(client: Any, path: str, deadline: Deadline) -> list[str]:
    return cast("list[str]", _unless(NoNodeError, client.get_children_async(path), deadline) or [])


def _forbid_children(client: Any, path: str, deadline: Deadline) -> None:
    found = _unless(NoNodeError, client.get_acls_async(path), deadline)
    if found is None or not any(acl.perms & Permissions.CREATE for acl in found[0]):
        return
    acls = [ACL(acl.perms & ~Permissions.CREATE, acl.id) for acl in found[0]]
    with contextlib.suppress(NoNodeError, NoAuthError):
        client.set_acls_async(path, acls).get(timeout=deadline.remaining)


def _unless(expected: type[KazooException], request: Any, deadline: Deadline) -> Any:
    """The answer, or None for the one error that is an answer too."""
    try:
        return request.get(timeout=deadline.remaining)
    except expected:
        return None


def _decode(key: Key[R], path: str, node: Node | None, session: Any = None) -> Versioned[R] | None:
    if node is None:
        return None
    data, stat = node
    own = session is not None and stat.ephemeralOwner == session[0]
    return Versioned(codec.decode(key, data or b"", path), stat.version, own, stat.mtime)


def _exact(version: int) -> int:
    if version < 0:  # for ZooKeeper -1 means any
        raise InvalidInput(f"{version} is no version")
    return version


def _check_size(requests: Sequence[Any]) -> None:
    total = sum(_OP_OVERHEAD_BYTES + len(request.path) + len(getattr(request, "data", b"")) for request in requests)
    if total > MAX_TRANSACTION_BYTES:
        raise InvalidInput(
            f"a transaction of {total} bytes is over the limit of {MAX_TRANSACTION_BYTES}; nothing was sent",
            "LEDGER_TOO_LARGE",
        )


def _raise_refusal(ops: Sequence[Op], results: Sequence[Any], path: Callable[[Key[Any]], str]) -> None:
    """kazoo returns errors: 'rolled back' before the culprit, 'inconsistent' after it."""
    for op, result in zip(ops, results, strict=True):
        if isinstance(result, Exception) and not isinstance(result, (RolledBackError, RuntimeInconsistency)):
            raise _refusal(op, result, path(op.key)) from result


def _refusal(op: Op, error: Exception, path: str) -> Exception:
    reason = _LOST_BECAUSE.get(type(error))
    if reason is not None:
        return TransactionLost(f"{type(op).__name__.lower()} refused: node {path} {reason}", op)
    if isinstance(error, NoAuthError):
        return _access_denied(path)
    return Unavailable(f"ZooKeeper refused to change node {path}: {_name(error)}; nothing was changed")


def _access_denied(path: str) -> InvalidInput:
    return InvalidInput(
        f"ZooKeeper denies access to node {path}: check the option zookeeper.password", "LEDGER_ACCESS_DENIED"
    )


def _name(error: BaseException) -> str:
    return type(error).__name__
