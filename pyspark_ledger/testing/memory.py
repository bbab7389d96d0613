"""The metadata port in one process, for tests. It answers as ZooKeeper does, and can fail in the ways that ZooKeeper
fails: on demand, or at random from a seed.
"""

from __future__ import annotations

import pickle
import random
import threading
import weakref
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Literal, NoReturn, TypeVar, cast

from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.errors import InvalidInput, OutcomeUnknown, Unavailable
from pyspark_ledger.metadata.chores import Chores
from pyspark_ledger.metadata.port import (
    Ahead,
    AnswersKey,
    AnyKey,
    Check,
    CommitKey,
    CompactorKey,
    CondemnedKey,
    CondemnedsKey,
    Create,
    CursorKey,
    DedupKey,
    Delete,
    DeletedKey,
    DeletedsKey,
    EntityKey,
    GcKey,
    HeadKey,
    Key,
    LedgerKey,
    MaintainerKey,
    MemberKey,
    Metadata,
    MoverKey,
    NamespaceKey,
    Op,
    OutboxesKey,
    OutboxKey,
    OwnerKey,
    PartKey,
    PinKey,
    PoliciesKey,
    Put,
    R,
    RequestKey,
    RetentionKey,
    ReviserKey,
    RewriterKey,
    RootKey,
    SchemaKey,
    SinkKey,
    SinksKey,
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
from pyspark_ledger.metadata.records import Marker

MAX_TRANSACTION_BYTES = 900_000
CALL_TIMEOUT_S = 2.0  # how long a client waits for an answer
_OP_BYTES = 150  # a path, and what is around it

TransactFault = Literal["lost_before", "applied_then_lost", "delayed", "expired", "unavailable"]
ReadFault = Literal["stale", "missing", "expired", "unavailable"]

Value = Versioned[Any] | None
Hint = Callable[[], None]
F = TypeVar("F")


class Crash(BaseException):
    """The process dies here. No ``except Exception`` may stop it."""


class Faults:
    """Which calls fail, and how: by rates from a seed, or one by one.

    - ``lost_before``: the answer to a transaction is unknown, and it was not applied.
    - ``applied_then_lost``: the answer is unknown, and it was applied.
    - ``delayed``: the answer is unknown, and the server tries it at some later call of anybody.
    - ``stale_read``: this client sees the server as it was some transactions ago, until it syncs or, by half of them
      with each read, has caught up.
    - ``missing_read``: the same, and as long ago that what is read was not there yet, if that is possible.
    - ``expired``: the session is gone: a read is Unavailable, a transaction (not applied) unknown.
    - ``unavailable``: the server does not answer this call, nor any other for up to ``outage_s`` seconds. The session
      lives on, so nothing is cleaned up.
    """

    def __init__(
        self,
        seed: int | random.Random = 0,
        *,
        lost_before: float = 0.0,
        applied_then_lost: float = 0.0,
        delayed: float = 0.0,
        stale_read: float = 0.0,
        missing_read: float = 0.0,
        expired: float = 0.0,
        unavailable: float = 0.0,
        outage_s: float = 0.0,
        max_delay: int = 8,
        max_lag: int = 8,
    ) -> None:
        self._random = seed if isinstance(seed, random.Random) else random.Random(seed)
        self._transact_rates: dict[TransactFault, float] = {
            "lost_before": lost_before,
            "applied_then_lost": applied_then_lost,
            "delayed": delayed,
            "expired": expired,
            "unavailable": unavailable,
        }
        self._read_rates: dict[ReadFault, float] = {
            "stale": stale_read,
            "missing": missing_read,
            "expired": expired,
            "unavailable": unavailable,
        }
        self._outage_s = outage_s
        self._max_delay = max_delay
        self._max_lag = max_lag
        self._next_transacts: deque[TransactFault | None] = deque()
        self._next_reads: deque[ReadFault | None] = deque()
        self._crash_at: tuple[int, bool] | None = None
        self.transacts = 0  # how many were begun: what crash_at counts

    def next_transact(self, *faults: TransactFault | None) -> None:
        """What happens to the next transactions, one each; None lets one through."""
        self._next_transacts.extend(faults)

    def next_read(self, *faults: ReadFault | None) -> None:
        self._next_reads.extend(faults)

    def crash_at(self, n: int, *, applied: bool = False) -> None:
        """Crash at the n-th transaction from now, counted from 1: before it is applied, or right after."""
        self._crash_at = (self.transacts + n, applied)

    def stop(self) -> None:
        """From now on nothing fails."""
        self._transact_rates, self._read_rates = {}, {}
        self._next_transacts.clear()
        self._next_reads.clear()
        self._crash_at = None

    # What follows is for the store.

    def of_transact(self) -> TransactFault | None:
        if self._next_transacts:
            return self._next_transacts.popleft()
        return self._draw(self._transact_rates)

    def of_read(self) -> ReadFault | None:
        if self._next_reads:
            return self._next_reads.popleft()
        return self._draw(self._read_rates)

    def of_sync(self) -> bool:
        """Whether it is not answered."""
        rate = self._read_rates.get("unavailable", 0.0)
        return rate > 0.0 and self._random.random() < rate

    def delay(self) -> int:
        return self._random.randint(1, self._max_delay)

    def lag(self) -> int:
        return self._random.randint(1, self._max_lag)

    def outage_s(self) -> float:
        return self._random.uniform(0.0, self._outage_s)

    def crash_point(self, *, applied: bool) -> None:
        if self._crash_at == (self.transacts, applied):
            self._crash_at = None
            raise Crash(f"at transaction {self.transacts}, {'after' if applied else 'before'} it was applied")

    def _draw(self, rates: dict[F, float]) -> F | None:
        if not any(rates.values()):
            return None
        at = self._random.random()
        for fault, rate in rates.items():
            if at < rate:
                return fault
            at -= rate
        return None


@dataclass
class _History:
    """All values a key ever had, by the transaction that brought them."""

    times: list[int] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def at(self, time: int) -> Value:
        found = bisect_right(self.times, time)
        return self.values[found - 1] if found else None

    def add(self, time: int, value: Value) -> None:
        self.times.append(time)
        self.values.append(value)

    def last_missing(self) -> int | None:
        """The last time at which it was not there; None if there is none."""
        for at in range(len(self.values) - 1, -1, -1):
            if self.values[at] is None:
                return self.times[at + 1] - 1 if at + 1 < len(self.times) else self.times[at]
        return self.times[0] - 1 if self.times else None


@dataclass(eq=False)
class Session:
    """A client's session. Its ephemeral records are deleted when it ends."""

    ended: bool = False


class MemoryServer:
    """What all clients share. One lock; everything below expects it to be held. ``clock`` is the server's own."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self.time = 0  # transactions applied
        self._keys: dict[Key[Any], _History] = defaultdict(_History)
        self._below: dict[Key[Any], dict[Key[Any], None]] = defaultdict(dict)  # all that ever were
        self._delayed: list[tuple[int, Sequence[Op], Session]] = []
        self._ephemeral: dict[Key[Any], Session] = {}
        self._watches: dict[Key[Any], dict[tuple[MemoryMetadata, Hint], None]] = defaultdict(dict)
        self._hints: list[Hint] = []
        self._clients: list[weakref.ref[MemoryMetadata]] = []
        self._ever_ephemeral: set[Key[Any]] = set()
        self.restored_at = 0  # what was before is a history that has ended
        for always in (TopicsKey(), DeletedsKey(), CondemnedsKey(), SinksKey(), OutboxesKey()):
            self._keys[always].add(0, Versioned(Marker(), 0))

    def value(self, key: Key[Any], time: int) -> Value:
        history = self._keys.get(key)
        return None if history is None else history.at(time)

    def below(self, key: Key[Any], time: int) -> list[Key[Any]]:
        return [child for child in self._below.get(key, ()) if self.value(child, time) is not None]

    def last_missing(self, key: Key[Any]) -> int | None:
        """The last time at which a key was not there."""
        history = self._keys.get(key)
        return None if history is None else history.last_missing()

    def connected(self, client: MemoryMetadata) -> None:
        self._clients = [known for known in self._clients if known() is not None]
        self._clients.append(weakref.ref(client))

    def restore(self, time: int) -> None:
        """The server comes back from a backup of an earlier time. All sessions have ended, requests that were under way
        are gone, and clients connect anew."""
        with self.lock:
            self._delayed.clear()
            for client in [known() for known in self._clients]:
                if client is not None:
                    client.lose_session()
            self.time += 1
            self.restored_at = self.time
            for key, history in list(self._keys.items()):
                value = None if key in self._ever_ephemeral else history.at(time)
                if value is not self.value(key, self.time):
                    self._set(key, value)

    def holder(self, key: Key[Any]) -> Session | None:
        """Whose ephemeral record it is."""
        return self._ephemeral.get(key)

    def apply(self, ops: Sequence[Op], session: Session) -> None:
        """All or nothing: the ops see each other's changes, everybody else sees them together."""
        if session.ended:
            raise TransactionLost("the session has ended")
        changes: dict[Key[Any], Value] = {}
        for op in ops:
            changes[op.key] = self._changed(op, changes)
        self.time += 1
        for key, value in changes.items():
            if value is not self.value(key, self.time):
                self._set(key, value)
        made: dict[Key[Any], Session] = {op.key: session for op in ops if isinstance(op, Create) and op.ephemeral}
        self._ephemeral |= made
        self._ever_ephemeral |= made.keys()

    def end(self, session: Session) -> None:
        """Ends a session, and deletes its ephemeral records."""
        session.ended = True
        held = [key for key, holder in self._ephemeral.items() if holder is session]
        self.time += 1
        for key in held:
            del self._ephemeral[key]
            if self.value(key, self.time) is not None:
                self._set(key, None)

    def _changed(self, op: Op, changes: dict[Key[Any], Value]) -> Value:
        old = self._now(op.key, changes)
        if isinstance(op, Create):
            parent = _parent(op.key)
            if old is not None:
                _refuse(op, "is there already")
            if parent is not None and self._now(parent, changes) is None:
                _refuse(op, "has no parent")
            return Versioned(op.record, 0, modified_ms=self.clock.now_ms())
        if old is None:
            _refuse(op, "is not there")
        if op.version is not None and op.version != old.version:
            _refuse(op, "has another version")
        if isinstance(op, Put):
            return Versioned(op.record, old.version + 1, modified_ms=self.clock.now_ms())
        if isinstance(op, Delete):
            self._check_empty(op, changes)
            return None
        return old

    def _check_empty(self, op: Delete, changes: dict[Key[Any], Value]) -> None:
        known = self._below.get(op.key, {})
        added = [key for key in changes if key not in known and _parent(key) == op.key]
        if any(self._now(key, changes) is not None for key in (*known, *added)):
            _refuse(op, "still holds others")

    def _now(self, key: Key[Any], changes: dict[Key[Any], Value]) -> Value:
        return changes[key] if key in changes else self.value(key, self.time)

    def _set(self, key: Key[Any], value: Value) -> None:
        self._keys[key].add(self.time, value)
        parent = _parent(key)
        if parent is not None:
            self._below[parent][key] = None
        self._hints += [hint for _, hint in self._watches.pop(key, ())]

    def delay(self, ops: Sequence[Op], calls: int, session: Session) -> None:
        self._delayed.append((calls, tuple(ops), session))

    def deliver_delayed(self) -> None:
        """Try every delayed transaction now."""
        with self.lock:
            late, self._delayed = self._delayed, []
            for _, ops, session in late:
                self.try_apply(ops, session)

    def tick(self) -> None:
        """Counts a call. A delayed transaction is tried after a number of calls."""
        waiting, self._delayed = self._delayed, []
        for calls, ops, session in waiting:
            if calls > 1:
                self._delayed.append((calls - 1, ops, session))
            else:
                self.try_apply(ops, session)

    def try_apply(self, ops: Sequence[Op], session: Session) -> None:
        try:
            self.apply(ops, session)
        except TransactionLost:
            return  # nobody waits for the answer

    def watch(self, client: MemoryMetadata, key: Key[Any], hint: Hint) -> None:
        self._watches[key][client, hint] = None

    def drop_watches(self, client: MemoryMetadata) -> None:
        """A connection is lost: its watches are called, for what they might have missed."""
        for watches in self._watches.values():
            for mine in [watch for watch in watches if watch[0] is client]:
                del watches[mine]
                self._hints.append(mine[1])

    def take_hints(self) -> list[Hint]:
        hints, self._hints = self._hints, []
        return hints


class MemoryMetadata(Metadata):
    """One client of a :class:`MemoryServer`."""

    def __init__(
        self,
        server: MemoryServer,
        faults: Faults | None = None,
        clock: Clock = SYSTEM_CLOCK,
        on_call: Callable[[], None] | None = None,
    ) -> None:
        """``on_call`` is called before every call is sent: it may wait, or raise Crash."""
        self._server = server
        self._faults = faults or Faults()
        self._clock = clock
        self._on_call = on_call
        self._down_until = 0.0
        self._floor = 0  # reads never go back behind this time
        self._behind = 0  # how many transactions this client lags
        self._closed = False
        self._session = Session()
        self._connections = 1
        self._chores = Chores(clock, background=False)
        self._crashed = False
        server.connected(self)

    @property
    def chores(self) -> Chores:
        """They run when a test calls ``chores.run_all()``, so that everything happens in the order of calls."""
        return self._chores

    @property
    def session_timeout_s(self) -> float:
        return 10.0

    @property
    def is_connected(self) -> bool:
        return True

    @property
    def connections(self) -> int:
        return self._connections

    @property
    def logins(self) -> int:
        return 1

    def now_ms(self, *, exact: bool = False) -> int:
        return self._server.clock.now_ms()

    def read(self, key: Key[R], on_change: Hint | None = None, ahead: Ahead[R] | None = None) -> Versioned[R] | None:
        with _Call(self) as server:
            seen = self._seen(key)
            if on_change is not None:
                server.watch(self, key, on_change if ahead is None else _ReadAhead(on_change, ahead, self, key))
            found = server.value(key, seen)
            own = server.holder(key) is self._session
            return None if found is None else cast("Versioned[R]", replace(found, own=own))

    def read_many(self, keys: Sequence[Key[R]]) -> list[Versioned[R] | None]:
        return [self.read(key) for key in keys]

    def children(self, key: AnyKey) -> list[AnyKey]:
        with _Call(self) as server:
            return cast("list[AnyKey]", sorted(server.below(key, self._seen(key)), key=_order))

    def children_many(self, keys: Sequence[AnyKey]) -> list[list[AnyKey]]:
        return [self.children(key) for key in keys]

    def sync(self) -> None:
        with _Call(self) as server:
            if self._faults.of_sync():
                self._go_down()
            self._floor, self._behind = server.time, 0

    def transact(self, ops: Sequence[Op]) -> None:
        if not ops:
            return
        _check_versions(ops)
        _check_size(ops)
        with _Call(self) as server:
            self._faults.transacts += 1
            self._crash_point(applied=False)
            try:
                self._transact(server, ops, self._faults.of_transact())
            finally:
                self._crash_point(applied=True)

    def _crash_point(self, *, applied: bool) -> None:
        try:
            self._faults.crash_point(applied=applied)
        except Crash:
            self._crashed = True  # a dead process does nothing more, not even in its finally clauses
            raise

    def _transact(self, server: MemoryServer, ops: Sequence[Op], fault: TransactFault | None) -> None:
        match fault:
            case None:
                server.apply(ops, self._session)
                return
            case "applied_then_lost":
                server.try_apply(ops, self._session)
            case "delayed":
                server.delay(ops, self._faults.delay(), self._session)
            case "expired":
                self._expire()
            case "unavailable":
                self._go_down()
        raise OutcomeUnknown(f"the answer to a transaction was lost ({fault})")

    def _go_down(self) -> NoReturn:
        self._down_until = self._clock.monotonic() + self._faults.outage_s()
        raise Unavailable("the server does not answer; the session lives")

    def _begin_call(self) -> None:
        """Before a call is sent."""
        if self._on_call is not None:
            self._on_call()
        if self._clock.monotonic() < self._down_until:
            self._clock.sleep(min(CALL_TIMEOUT_S, self._down_until - self._clock.monotonic()))
            raise Unavailable("the server still does not answer; the session lives")

    def close(self) -> None:
        if not self._closed:
            with _Call(self, by_server=True) as server:
                server.end(self._session)
                self._closed = True

    def _seen(self, key: Key[Any]) -> int:
        """The time of the state that a read sees."""
        match self._faults.of_read():
            case "stale":
                self._behind = self._faults.lag()
            case "missing":
                missing = self._server.last_missing(key)
                if missing is not None:
                    self._behind = self._server.time - missing
            case "unavailable":
                self._go_down()
            case "expired":
                self._expire()
                raise Unavailable("the session has expired")
            case None:
                self._behind //= 2
        return max(self._floor, self._server.restored_at, self._server.time - self._behind)

    def expire(self) -> None:
        """The server ends the session, as after a long pause; the next one begins by itself."""
        with _Call(self, by_server=True):
            self._expire()

    def _expire(self) -> None:
        self._server.drop_watches(self)
        self._server.end(self._session)
        self._session = Session()
        self._connections += 1

    def lose_session(self) -> None:
        """The server has come back without its sessions."""
        if not self._closed:
            self._expire()

    def reconnect(self) -> None:
        """The connection is lost and made again, as when the server restarts; the session stays."""
        with _Call(self, by_server=True):
            self._server.drop_watches(self)
            self._connections += 1


@dataclass(frozen=True)
class _ReadAhead:
    """A hint with which the record comes, if it is wanted: as the server has it at that moment, without a call."""

    on_change: Hint
    ahead: Ahead[Any] = field(compare=False)
    client: MemoryMetadata = field(compare=False)
    key: Key[Any] = field(compare=False)

    def __call__(self) -> None:
        server = self.client._server
        with server.lock:
            found = server.value(self.key, server.time)
            lives = not (self.client._crashed or self.client._closed)
            comes = lives and self.ahead.is_wanted and found is not None
            if comes:
                server.watch(self.client, self.key, self)
        if comes and found is not None:
            self.ahead.take(found)
        else:
            self.on_change()


class _Call:
    """One call at the server. Hints go out after the lock was given back: they may call again."""

    def __init__(self, client: MemoryMetadata, *, by_server: bool = False) -> None:
        self._client, self._by_server = client, by_server
        self._server = client._server

    def __enter__(self) -> MemoryServer:
        if not self._by_server:
            if self._client._crashed:
                raise Crash("this process is dead")
            self._client._begin_call()
        self._server.lock.acquire()
        if self._client._closed:
            self._server.lock.release()
            raise InvalidInput("this connection has been closed", "LEDGER_CLOSED")
        self._server.tick()
        return self._server

    def __exit__(self, *_: object) -> None:
        hints = self._server.take_hints()
        self._server.lock.release()
        for hint in hints:
            hint()


def _parent(key: Key[Any]) -> Key[Any] | None:
    """The key that must exist before; None if there is none, or it always exists."""
    match key:
        case TopicKey():
            return TopicsKey()
        case HeadKey(uuid) | DedupKey(uuid) | PoliciesKey(uuid) | RetentionKey(uuid) | GcKey(uuid) | PartKey(uuid, _):
            return RootKey(uuid)
        case CursorKey(uuid, _) | OwnerKey(uuid, _) | ReviserKey(uuid, _) | MemberKey(uuid, _, _):
            return PartKey(uuid, "subscriptions")
        case PinKey(uuid, _):
            return PartKey(uuid, "pins")
        case RequestKey(uuid, _, _) | AnswersKey(uuid):
            return PartKey(uuid, "queue")
        case CompactorKey(uuid) | RewriterKey(uuid):
            return PartKey(uuid, "locks")
        case LedgerKey(uuid, _) | SchemaKey(uuid, _) | TipKey(uuid, _):
            return PartKey(uuid, "commits")
        case CommitKey(uuid, ledger, _):
            return LedgerKey(uuid, ledger)
        case TokenGroupKey(uuid, _):
            return PartKey(uuid, "tokens")
        case TokenChunkKey(uuid, group, _) | TokenBlockKey(uuid, group, _):
            return TokenGroupKey(uuid, group)
        case DeletedKey():
            return DeletedsKey()
        case OutboxKey():
            return OutboxesKey()
        case CondemnedKey():
            return CondemnedsKey()
        case SinkKey():
            return SinksKey()
        case SinkTopicKey(query, _):
            return SinkKey(query)
        case EntityKey(outbox, _):
            return OutboxKey(outbox)
        case NamespaceKey() | MaintainerKey() | MoverKey() | RootKey():
            return None
        case TopicsKey() | DeletedsKey() | CondemnedsKey() | SinksKey() | OutboxesKey():
            return None
    raise TypeError(f"no parent is known for {key!r}")


def _order(key: Key[Any]) -> tuple[Any, ...]:
    return (type(key).__name__, *astuple(key))


def _check_versions(ops: Sequence[Op]) -> None:
    for op in ops:
        if isinstance(op, (Put, Delete, Check)) and op.version is not None and op.version < 0:
            raise InvalidInput(f"{op.version} is no version")


def _check_size(ops: Sequence[Op]) -> None:
    """Roughly what ZooKeeper's records would take."""
    records = sum(len(pickle.dumps(op.record)) for op in ops if isinstance(op, (Create, Put)))
    total = records + _OP_BYTES * len(ops)
    if total > MAX_TRANSACTION_BYTES:
        raise InvalidInput(
            f"a transaction of {total} bytes is over the limit of {MAX_TRANSACTION_BYTES}; nothing was sent",
            "LEDGER_TOO_LARGE",
        )


def _refuse(op: Op, reason: str) -> NoReturn:
    raise TransactionLost(f"{type(op).__name__.lower()} refused: {op.key} {reason}", op)
