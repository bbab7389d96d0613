"""The small port through which the core sees its metadata store.

A store keeps versioned records under typed keys and changes them only by atomic, version-checked
transactions. ``zk_metadata`` implements it on ZooKeeper, ``memory`` in one process with injected faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from pyspark_ledger.errors import Conflict
from pyspark_ledger.metadata.chores import Chores
from pyspark_ledger.metadata.records import (
    Answers,
    Commit,
    Cursor,
    DedupSnapshot,
    Deleted,
    Entity,
    GcEpoch,
    Head,
    Holder,
    Marker,
    Namespace,
    NodeRecord,
    Pin,
    Policies,
    Request,
    Schema,
    Sink,
    SinkTopic,
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
class DeletedsKey(Key[Marker]):
    """Parent of every :class:`DeletedKey`; always there."""


@dataclass(frozen=True, slots=True)
class DeletedKey(Key[Deleted]):
    """The mark on the name of a topic that was deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class RootKey(Key[Marker]):
    """Parent of everything that belongs to one topic, by its UUID."""

    uuid: str


# Separate, so that ZooKeeper's access lists can tell roles apart: the right to make a node is its parent's. Whoever
# appends makes commits, schemas and the tip. The other parts are made with the first node in them.
Part = Literal["commits", "locks", "pins", "queue", "subscriptions", "tokens"]


@dataclass(frozen=True, slots=True)
class PartKey(Key[Marker]):
    """Parent of the nodes of one kind that belong to a topic."""

    uuid: str
    part: Part


@dataclass(frozen=True, slots=True)
class HeadKey(Key[Head]):
    uuid: str


@dataclass(frozen=True, slots=True)
class TipKey(Key[Marker]):
    """Named by the id of the head's last change. Whoever changes the head replaces it in the same transaction, so who
    has the head of a history that a rollback has ended is refused."""

    uuid: str
    id: bytes


@dataclass(frozen=True, slots=True)
class PoliciesKey(Key[Policies]):
    uuid: str


@dataclass(frozen=True, slots=True)
class RetentionKey(Key[Marker]):
    """Its version orders those who give up old ledgers and those who begin to need them."""

    uuid: str


@dataclass(frozen=True, slots=True)
class GcKey(Key[GcEpoch]):
    """Set when the gc epoch is raised, so its time is the epoch's birth, by ZooKeeper's clock."""

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
class MemberKey(Key[Holder]):
    """One of those who share a cursor; ephemeral."""

    uuid: str
    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class CompactorKey(Key[Holder]):
    """Who is compacting a topic; ephemeral."""

    uuid: str


@dataclass(frozen=True, slots=True)
class RewriterKey(Key[Holder]):
    """Who is rewriting a topic's small files; ephemeral."""

    uuid: str


@dataclass(frozen=True, slots=True)
class PinKey(Key[Pin]):
    """A running reader of compacted ledgers; ephemeral."""

    uuid: str
    id: str


@dataclass(frozen=True, slots=True)
class RequestKey(Key[Request]):
    """A writer that waits for its turn; ephemeral. In the order of their numbers, which is about the order in which
    they came; ``id`` is that of the commit, so a request that is sent twice is there once."""

    uuid: str
    number: int
    id: bytes


@dataclass(frozen=True, slots=True)
class AnswersKey(Key[Answers]):
    """What was last committed for writers that waited."""

    uuid: str


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
class CondemnedsKey(Key[Marker]):
    """Parent of every :class:`CondemnedKey`; always there."""


@dataclass(frozen=True, slots=True)
class CondemnedKey(Key[Deleted]):
    """A topic that was deleted, and whose files are to be deleted: by its UUID."""

    uuid: str


@dataclass(frozen=True, slots=True)
class MaintainerKey(Key[Holder]):
    """Who looks after the namespace; ephemeral, others stand by."""


@dataclass(frozen=True, slots=True)
class MoverKey(Key[Holder]):
    """Who gives the namespace another storage root; ephemeral, a second one is refused."""


@dataclass(frozen=True, slots=True)
class SinksKey(Key[Marker]):
    """Parent of every :class:`SinkKey`; always there."""


@dataclass(frozen=True, slots=True)
class SinkKey(Key[Sink]):
    """What one Spark query has written to several topics at once, and parent of what is known of its topics."""

    query: str


@dataclass(frozen=True, slots=True)
class SinkTopicKey(Key[SinkTopic]):
    query: str
    topic: str


@dataclass(frozen=True, slots=True)
class OutboxesKey(Key[Marker]):
    """Parent of every :class:`OutboxKey`; always there."""


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
    | DeletedsKey
    | DeletedKey
    | RootKey
    | PartKey
    | HeadKey
    | TipKey
    | PoliciesKey
    | RetentionKey
    | GcKey
    | SchemaKey
    | DedupKey
    | LedgerKey
    | CommitKey
    | CursorKey
    | OwnerKey
    | ReviserKey
    | MemberKey
    | PinKey
    | CompactorKey
    | RewriterKey
    | RequestKey
    | AnswersKey
    | TokenGroupKey
    | TokenChunkKey
    | TokenBlockKey
    | CondemnedsKey
    | CondemnedKey
    | MaintainerKey
    | MoverKey
    | SinksKey
    | SinkKey
    | SinkTopicKey
    | OutboxesKey
    | OutboxKey
    | EntityKey
)


@dataclass(frozen=True, slots=True)
class Versioned(Generic[R]):
    record: R
    version: int
    own: bool = field(default=False, compare=False)  # ephemeral, and created by this client's present session
    modified_ms: int = field(default=0, compare=False)  # when it was last written, by the store's clock


@dataclass(frozen=True, slots=True)
class Create:
    key: AnyKey
    record: NodeRecord
    ephemeral: bool = False  # gone when the session that made it ends


@dataclass(frozen=True, slots=True)
class Put:
    key: AnyKey
    record: NodeRecord
    version: int | None  # None: any version


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


class Ahead(Protocol[R]):
    """Whoever wants a record as soon as it has changed. Called from any thread; must not block, nor use the store."""

    @property
    def is_wanted(self) -> bool: ...

    def take(self, found: Versioned[R]) -> None: ...


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

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at this moment."""
        ...

    @property
    def connections(self) -> int:
        """How often this client was connected. What was read over an earlier connection may be of a history that a
        rollback has ended since: its version is the same as that of another record."""
        ...

    @property
    def logins(self) -> int:
        """How many logins this client has shown, one after another. A node that was made with an earlier one seems to
        be in use by somebody who has only that."""
        ...

    def now_ms(self, *, exact: bool = False) -> int:
        """The store's clock, which is the same for all clients. It is asked now and then; in between its time is
        reckoned from this process's monotonic clock. ``exact``: it is asked now."""
        ...

    def read(
        self, key: Key[R], on_change: Callable[[], None] | None = None, ahead: Ahead[R] | None = None
    ) -> Versioned[R] | None:
        """The record, or None. ``on_change`` is called at most once, from any thread, as a *hint* that it
        changed (or that the connection did); it may be lost, so poll behind it. It must not block, nor use the store.
        ``ahead``, where it is wanted, gets the changed record in place of the hint, and so on: that read has the same
        ``on_change`` and ``ahead``."""
        ...

    def read_many(self, keys: Sequence[Key[R]]) -> list[Versioned[R] | None]:
        """Several reads in one round of requests; not a snapshot."""
        ...

    def children(self, key: AnyKey) -> list[AnyKey]:
        """The keys below TopicsKey (topics), RootKey, PartKey, LedgerKey (commits), TokenGroupKey (chunks and blocks),
        DeletedsKey, CondemnedsKey, SinksKey (queries), SinkKey (topics), OutboxesKey or OutboxKey (entities), in order.
        Empty if the parent is not there."""
        ...

    def children_many(self, keys: Sequence[AnyKey]) -> list[list[AnyKey]]:
        """Several calls of :meth:`children` in one round of requests; not a snapshot."""
        ...

    def transact(self, ops: Sequence[Op]) -> None:
        """All or nothing. Raises TransactionLost (refused), OutcomeUnknown (sent, no answer), Unavailable
        (never sent) or InvalidInput (too large; never sent)."""
        ...

    def sync(self) -> None:
        """After this, reads see everything that anybody was told is done before this call."""
        ...

    def close(self) -> None: ...
