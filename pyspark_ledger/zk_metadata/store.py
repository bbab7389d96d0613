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
from pyspark_ledger.base.settings import Settings
from pyspark_ledger.errors import CorruptData, InvalidInput, LedgerError, NotAllowed, OutcomeUnknown, Unavailable
from pyspark_ledger.metadata import roles
from pyspark_ledger.metadata.chores import Chores
from pyspark_ledger.metadata.port import (
    AnyKey,
    Check,
    Create,
    Delete,
    Key,
    Metadata,
    NamespaceKey,
    Op,
    Put,
    R,
    TransactionLost,
    Versioned,
)
from pyspark_ledger.metadata.records import Grant, Namespace
from pyspark_ledger.metadata.roles import Right
from pyspark_ledger.zk_metadata import codec, paths
from pyspark_ledger.zk_metadata.access import AccessLists, Identity, KnownRoles, kind_at, who_we_are
from pyspark_ledger.zk_metadata.logging_in import not_let_in
from pyspark_ledger.zk_metadata.multiread import Node, get_children_many, get_many
from pyspark_ledger.zk_metadata.raw import NodeAt
from pyspark_ledger.zk_metadata.refusals import not_allowed
from pyspark_ledger.zk_metadata.session import Address, Connection, Lease, split_connect_string

# ZooKeeper closes the connection without an answer if a request has 1,048,575 bytes or more.
MAX_TRANSACTION_BYTES = 900_000
SESSION_S = 10.0  # how long a session outlives its client
_OP_OVERHEAD_BYTES = 64  # header, lengths, an access list without roles

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
    """A namespace in ZooKeeper, given by settings or by a connect string such as ``host:2181,host:2181/prod/ledger``.

    ``timeout_s`` limits every call. ``answered`` says that the address has answered another process, so that it gets
    all that time also when nothing listens there at first. With a login what is created belongs to that user
    alone. An instance may be used from several threads and after a fork; it can't be
    pickled.
    """

    def __init__(
        self,
        where: Settings | str,
        *,
        timeout_s: float = 30.0,
        session_timeout_s: float = SESSION_S,
        answered: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        settings = Settings.of({"zookeeper": where}) if isinstance(where, str) else where
        servers, self._root = split_connect_string(settings.zookeeper)
        login = settings.login()
        self._timeout_s = timeout_s
        self._clock = clock
        self._roles = KnownRoles(CREATOR_ALL_ACL if login.owns else OPEN_ACL_UNSAFE)
        self._has_containers = False
        self._asked_time: tuple[int, float] | None = None  # ZooKeeper's, and by the monotonic clock when that was
        self._lease = Lease(Address(servers, settings.who(), session_timeout_s), answered)
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
        looks_at_roles, begun = on_change is None and isinstance(key, NamespaceKey), 0
        if looks_at_roles:
            on_change = self._roles.hint
            begun = self._roles.begin()
        watch = None if on_change is None else _Watch(on_change)
        found, client, session = self._retry(
            path, lambda client, deadline: (_get(client, path, watch, deadline), client, client.client_id)
        )
        record = _decode(key, path, found, session)
        if looks_at_roles:
            self._roles.saw(client, cast("Versioned[Namespace] | None", record), begun)
        return record

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

    @property
    def logins(self) -> int:
        return self._lease.logins

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
            path,
            lambda client, deadline: client.set_async(path, codec.MARKER).get(timeout=deadline.remaining),
            needs="write",
        )
        return stat.mtime, self._clock.monotonic()

    def sync(self) -> None:
        self._retry(self._root or "/", self._sync)

    def _sync(self, client: Any, deadline: Deadline) -> None:
        client.sync_async(self._root or "/").get(timeout=deadline.remaining)

    def _retry(self, path: str, attempt: Callable[[Any, Deadline], T], *, needs: Right = "read") -> T:
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
            except NoAuthError as error:
                if not connection.take_up_login():
                    raise self._not_allowed(path, needs) from error
            except AuthFailedError as error:
                raise self._not_let_in() from error
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
        self._ensure_containers()
        deadline = self._deadline()
        makes_nodes = any(isinstance(op, Create) for op in ops)
        lists = self._lists(deadline) if makes_nodes else self._roles.lists
        while True:
            guard = self._guard(lists) if makes_nodes else []
            requests = [*guard, *(self._request(op, lists) for op in ops)]
            _check_size(requests, lists.bytes)
            connection = self._lease.connection(deadline)
            results = self._commit(connection.client, requests, deadline)  # from here on it may reach the server
            if any(isinstance(each, NoAuthError) for each in results) and connection.take_up_login():
                continue
            if not guard or not isinstance(results[0], BadVersionError | NoNodeError):
                break
            self.sync()
            lists = self._lists(deadline, anew=True)  # nothing was done: somebody has got a role, or lost one
        for op, result in zip(ops, results[len(guard) :], strict=True):
            # kazoo returns errors: 'rolled back' before the culprit, 'inconsistent' after it.
            if isinstance(result, Exception) and not isinstance(result, (RolledBackError, RuntimeInconsistency)):
                raise self._refusal(op, result) from result

    def _lists(self, deadline: Deadline, *, anew: bool = False) -> AccessLists:
        """For nodes that are made now."""
        client = self._lease.connection(deadline).client
        if anew or not self._roles.is_known_to(client):
            begun = self._roles.begin()
            try:
                self.read(NamespaceKey())
            except (CorruptData, InvalidInput) as error:
                if isinstance(error, NotAllowed) or error.code == "LEDGER_NEWER_FORMAT":
                    raise
                # Of an older format, or damaged: who mends that is not to be kept out.
                self._roles.saw(client, None, begun)
        return self._roles.lists

    def _guard(self, lists: AccessLists) -> list[Any]:
        """Where there are roles: no node is made with a list that is outdated."""
        return [protocol.CheckVersion(self._path(NamespaceKey()), lists.version)] if lists.has_roles else []

    def _request(self, op: Op, lists: AccessLists) -> Any:
        """As kazoo sends it. Its own way to put transactions together looks at every argument and path again, which is
        a good part of what a commit costs."""
        path = self._path(op.key)
        match op:
            case Create(key, record, ephemeral):
                return protocol.Create(
                    path, codec.encode(key, record), lists.of(key, ephemeral=ephemeral), int(ephemeral)
                )
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
        except AuthFailedError as error:
            raise self._not_let_in() from error
        except (KazooException, KazooTimeoutError) as error:
            raise OutcomeUnknown(
                f"ZooKeeper at {self._lease.address.servers} did not answer a transaction ({_name(error)}): "
                "it may have been applied, or still be"
            ) from error

    def _ensure_containers(self) -> None:
        """Created before the first write, so that only reading from a wrong address leaves nothing there."""
        if not self._has_containers:
            lists = self._lists(self._deadline())
            self._retry(self._root or "/", lambda client, deadline: self._create_containers(client, lists, deadline))
            self._has_containers = True

    def _create_containers(self, client: Any, lists: AccessLists, deadline: Deadline) -> None:
        if self._root and not lists.has_roles:
            client.ensure_path_async(self._root).get(timeout=deadline.remaining)
        requests = [
            client.create_async(self._root + path, codec.MARKER, acl=lists.of_kind(kind_at(path)))
            for path in paths.CONTAINERS
        ]
        # Where there are roles an admin has made all of them, and others may not even try.
        ends_well = (NodeExistsError, NoAuthError) if lists.has_roles else (NodeExistsError,)
        for request in requests:
            _unless(ends_well, request, deadline)

    def forbid_children(self, key: AnyKey) -> None:
        """From now on nobody makes a node below this one. Those that are there can be changed and deleted. Where
        ZooKeeper keeps no access lists, or this user may not change them, nothing changes."""
        path = self._path(key)
        self._retry(path, lambda client, deadline: _forbid_children(client, path, deadline))

    # -- for the rest of this room

    @property
    def root(self) -> str:
        """The path of the namespace's root; empty if that is ZooKeeper's own."""
        return self._root

    def ask(self, path: str, attempt: Callable[[Any, Deadline], T]) -> T:
        """Requests that change nothing, or may be done twice. ``path`` is below the root, and only for messages."""
        return self._retry(self._root + path, attempt)

    def newest_lists(self) -> AccessLists:
        """The access lists that nodes should have now."""
        self.sync()
        return self._lists(self._deadline(), anew=True)

    # -- refusals

    def _refusal(self, op: Op, error: Exception) -> Exception:
        path, reason = self._path(op.key), _LOST_BECAUSE.get(type(error))
        if reason is not None:
            return TransactionLost(f"{type(op).__name__.lower()} refused: node {path} {reason}", op)
        if isinstance(error, NoAuthError):
            right = roles.right_for(op)
            return self._not_allowed(path.rpartition("/")[0] if right in ("create", "delete") else path, right)
        return Unavailable(f"ZooKeeper refused to change node {path}: {_name(error)}; nothing was changed")

    def _not_allowed(self, path: str, right: Right) -> NotAllowed:
        """Says who this process is, and what is missing, as far as that can be found out."""
        who: Sequence[Identity] = ()
        grants: Sequence[Grant] | None = None
        deadline = self._deadline()
        with contextlib.suppress(KazooException, KazooTimeoutError, LedgerError):
            who = who_we_are(self._lease.connection(deadline).client, deadline.remaining)
            if right != "read" or path != self._path(NamespaceKey()):
                grants = self._lists(deadline, anew=True).grants
        return not_allowed(self._root, path, right, who, grants, self._lease.login)

    # -- small things

    def _path(self, key: Key[Any]) -> str:
        return self._root + paths.path(key)

    def _deadline(self) -> Deadline:
        return Deadline(self._clock, self._timeout_s)

    def _not_let_in(self) -> InvalidInput:
        return not_let_in(self._lease.address.servers, self._lease.login)

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


def _unless(expected: type[KazooException] | tuple[type[KazooException], ...], request: Any, deadline: Deadline) -> Any:
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


def _check_size(requests: Sequence[Any], list_bytes: int) -> None:
    """``list_bytes`` is the size of one access list."""
    lists = sum(isinstance(request, protocol.Create) for request in requests) * list_bytes
    total = lists + sum(
        _OP_OVERHEAD_BYTES + len(request.path) + len(getattr(request, "data", b"")) for request in requests
    )
    if total > MAX_TRANSACTION_BYTES:
        raise InvalidInput(
            f"a transaction of {total} bytes is over the limit of {MAX_TRANSACTION_BYTES}; nothing was sent",
            "LEDGER_TOO_LARGE",
        )


def _name(error: BaseException) -> str:
    return type(error).__name__
