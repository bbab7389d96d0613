"""The small port through which the core sees its metadata store.

A store keeps versioned records under typed keys and changes them only by atomic, version-checked
transactions. ``zk_metadata`` implements it on ZooKeeper, ``memory`` in one process with injected faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pyspark_ledger.errors import Conflict
from pyspark_ledger.metadata.chores import Chores
from pyspark_ledger.metadata.records import (
    Commit,
    Cursor,
    DedupSnapshot,
    Entity,
    Head,
    Holder,
    Marker,
    Namespace,
    NodeRecord,
    Pin,
    Schema,
    TokenBlock,
    TokenChunk,
    TokenGroup,
    Topic,
)

R = TypeVar("R", bound=NodeRecord)


@dataclass(frozen=True, slots=True)
class Key(Generic[R]):
    """Names one record. Subclasses fix which kind of record it is."""


@dataclass(frozen=True, slots=True)
class NamespaceKey(Key[Namespace]): ...


@dataclass(frozen=True, slots=True)
class TopicsKey(Key[Marker]):
    """Parent of every :class:`TopicKey`; always there."""


@dataclass(frozen=True, slots=True)
class TopicKey(Key[Topic]):
    name: str


@dataclass(frozen=True, slots=True)
class RootKey(Key[Marker]):
    """Parent of everything that belongs to one topic, by its UUID."""

    uuid: str


@dataclass(frozen=True, slots=True)
class HeadKey(Key[Head]):
    uuid: str


@dataclass(frozen=True, slots=True)
class SchemaKey(Key[Schema]):
    uuid: str
    id: int


@dataclass(frozen=True, slots=True)
class DedupKey(Key[DedupSnapshot]):
    uuid: str


@dataclass(frozen=True, slots=True)
class LedgerKey(Key[Marker]):
    """Parent of the commits of one ledger."""

    uuid: str
    ledger: int


@dataclass(frozen=True, slots=True)
class CommitKey(Key[Commit]):
    uuid: str
    ledger: int
    number: int


@dataclass(frozen=True, slots=True)
class CursorKey(Key[Cursor]):
    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class OwnerKey(Key[Holder]):
    """Who is attached to a cursor; ephemeral."""

    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class ReviserKey(Key[Holder]):
    """Who is resetting a cursor; ephemeral, so that one who dies cannot block it for ever."""

    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class CompactorKey(Key[Holder]):
    """Who is compacting a topic; ephemeral."""

    uuid: str


@dataclass(frozen=True, slots=True)
class PinKey(Key[Pin]):
    """A running reader of compacted ledgers; ephemeral."""

    uuid: str
    id: str


@dataclass(frozen=True, slots=True)
class TokenGroupKey(Key[TokenGroup]):
    """Parent of the group's chunks and blocks."""

    uuid: str
    group: str


@dataclass(frozen=True, slots=True)
class TokenChunkKey(Key[TokenChunk]):
    uuid: str
    group: str
    chunk: int


@dataclass(frozen=True, slots=True)
class TokenBlockKey(Key[TokenBlock]):
    uuid: str
    group: str
    id: str


@dataclass(frozen=True, slots=True)
class OutboxKey(Key[Marker]):
    """Parent of an outbox's entities."""

    outbox: str


@dataclass(frozen=True, slots=True)
class EntityKey(Key[Entity]):
    outbox: str
    entity: str


AnyKey = (
    NamespaceKey
    | TopicsKey
    | TopicKey
    | RootKey
    | HeadKey
    | SchemaKey
    | DedupKey
    | LedgerKey
    | CommitKey
    | CursorKey
    | OwnerKey
    | ReviserKey
    | PinKey
    | CompactorKey
    | TokenGroupKey
    | TokenChunkKey
    | TokenBlockKey
    | OutboxKey
    | EntityKey
)


@dataclass(frozen=True, slots=True)
class Versioned(Generic[R]):
    record: R
    version: int
    own: bool = field(default=False, compare=False)  # ephemeral, and created by this client's present session


@dataclass(frozen=True, slots=True)
class Create:
    key: AnyKey
    record: NodeRecord
    ephemeral: bool = False  # gone when the session that made it ends


@dataclass(frozen=True, slots=True)
class Put:
    key: AnyKey
    record: NodeRecord
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    key: AnyKey
    version: int | None = None  # None: any version


@dataclass(frozen=True, slots=True)
class Check:
    key: AnyKey
    version: int


Op = Create | Put | Delete | Check


class TransactionLost(Conflict):
    """A transaction was refused, all of it; ``op`` is the operation that was not possible. Nothing was changed."""

    def __init__(self, message: str, op: Op | None = None) -> None:
        super().__init__(message)
        self.op = op


class Metadata(Protocol):
    """Reads may be stale unless :meth:`sync` came before; transactions are decided by versions alone."""

    @property
    def session_timeout_s(self) -> float:
        """How long after its last sign of life a client's ephemeral records may stay."""
        ...

    @property
    def chores(self) -> Chores:
        """What this client has yet to do in the background."""
        ...

    def read(self, key: Key[R], on_change: Callable[[], None] | None = None) -> Versioned[R] | None:
        """The record, or None. ``on_change`` is called at most once, from any thread, as a *hint* that it
        changed (or that the connection did); it may be lost, so poll behind it."""
        ...

    def read_many(self, keys: Sequence[Key[R]]) -> list[Versioned[R] | None]:
        """Several reads in one round of requests; not a snapshot."""
        ...

    def children(self, key: AnyKey) -> list[AnyKey]:
        """The keys below TopicsKey (topics), RootKey (everything of the topic but commits and tokens), LedgerKey
        (commits), TokenGroupKey (chunks and blocks) or OutboxKey (entities), in order. Empty if the parent is not
        there."""
        ...

    def transact(self, ops: Sequence[Op]) -> None:
        """All or nothing. Raises TransactionLost (refused), OutcomeUnknown (sent, no answer), Unavailable
        (never sent) or InvalidInput (too large; never sent)."""
        ...

    def sync(self) -> None:
        """After this, reads see everything that anybody was told is done before this call."""
        ...

    def close(self) -> None: ...
