"""What each role may do with each kind of node, as one table.

A namespace has roles once its record says who has them. Then every node gets an access list, which follows from the
kind of the node and that record, and nothing else. An identity may have several roles, and may then do what any of them
may.

ZooKeeper checks *create* and *delete* at the parent of the node that comes or goes. Format 2 therefore gave the nodes
of each role a parent of their own. These rights stop accidents and not attacks: whoever may write the head of a topic
can damage the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

from pyspark_ledger.metadata.port import (
    AnswersKey,
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
    MoverKey,
    NamespaceKey,
    Op,
    OutboxesKey,
    OutboxKey,
    OwnerKey,
    Part,
    PartKey,
    PinKey,
    PoliciesKey,
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
)
from pyspark_ledger.metadata.records import Grant, Marker

Role = Literal["admin", "writer", "reader"]
ROLES: tuple[Role, ...] = get_args(Role)
Right = Literal["read", "write", "create", "delete"]

# Of a namespace with roles. A topic has all its parts from the beginning, so that a reader need make none of them.
PARTS: tuple[Part, ...] = get_args(Part)

# Nodes that have no key: the root of the namespace, the node that is written to learn the time, the parent of all
# topics' nodes, and what a later version may have put there.
Keyless = Literal["root", "clock", "logs", "unknown"]
Kind = type[Key[Any]] | Part | Keyless

Rights = frozenset[Right]

_READ = Rights({"read"})
_WRITE = Rights({"read", "write"})
_FILL = Rights({"read", "create"})
_HOLD = Rights({"read", "create", "delete"})
_ALL = Rights({"read", "write", "create", "delete"})

# Kind of node: what a writer may, what a reader may. An admin may do everything.
_RIGHTS: dict[Kind, tuple[Rights, Rights]] = {
    "root": (_READ, _READ),
    "clock": (_WRITE, _WRITE),
    "logs": (_FILL, _READ),
    "unknown": (_READ, _READ),
    NamespaceKey: (_READ, _READ),
    MaintainerKey: (_READ, _READ),
    MoverKey: (_READ, _READ),
    # A writer makes topics, but not again one that was deleted: the mark on its name is an admin's.
    TopicsKey: (_FILL, _READ),
    TopicKey: (_READ, _READ),
    DeletedsKey: (_READ, _READ),
    DeletedKey: (_READ, _READ),
    CondemnedsKey: (_READ, _READ),
    CondemnedKey: (_READ, _READ),
    SinksKey: (_HOLD, _READ),
    SinkKey: (_ALL, _READ),
    SinkTopicKey: (_WRITE, _READ),
    RootKey: (_FILL, _READ),
    # Appending.
    HeadKey: (_WRITE, _READ),
    DedupKey: (_WRITE, _READ),
    "commits": (_HOLD, _READ),
    TipKey: (_READ, _READ),
    SchemaKey: (_READ, _READ),
    LedgerKey: (_HOLD, _READ),
    CommitKey: (_READ, _READ),
    "queue": (_ALL, _READ),
    RequestKey: (_WRITE, _READ),
    AnswersKey: (_WRITE, _READ),
    "tokens": (_HOLD, _READ),
    TokenGroupKey: (_ALL, _READ),
    TokenChunkKey: (_WRITE, _READ),
    TokenBlockKey: (_WRITE, _READ),
    OutboxesKey: (_FILL, _READ),
    OutboxKey: (_FILL, _READ),
    EntityKey: (_WRITE, _READ),
    # Reading.
    "subscriptions": (_READ, _HOLD),
    CursorKey: (_READ, _WRITE),
    OwnerKey: (_READ, _WRITE),
    ReviserKey: (_READ, _WRITE),
    MemberKey: (_READ, _WRITE),
    "pins": (_READ, _HOLD),
    PinKey: (_READ, _WRITE),
    # Whoever begins to need old records writes it: with a subscription, or with a group of tokens.
    RetentionKey: (_WRITE, _WRITE),
    # An admin's.
    PoliciesKey: (_READ, _READ),
    GcKey: (_READ, _READ),
    "locks": (_READ, _READ),
    CompactorKey: (_READ, _READ),
    RewriterKey: (_READ, _READ),
}


def kind_of(key: Key[Any]) -> Kind:
    return key.part if isinstance(key, PartKey) else type(key)


def kinds() -> Iterator[Kind]:
    return iter(_RIGHTS)


def rights(role: str, kind: Kind) -> Rights:
    """What a role may do with a node of this kind, apart from changing its access list, which is an admin's. A role of
    a later version may do nothing."""
    writer, reader = _RIGHTS.get(kind, _RIGHTS["unknown"])
    return {"admin": _ALL, "writer": writer, "reader": reader}.get(role, Rights())


def roles_with(right: Right, kind: Kind) -> list[Role]:
    """Who may do that, those with the least rights first."""
    return [role for role in reversed(ROLES) if right in rights(role, kind)]


def right_for(op: Op) -> Right:
    """What an operation needs: *create* and *delete* of the parent of its node, the others of the node itself."""
    match op:
        case Create():
            return "create"
        case Delete():
            return "delete"
        case Check():
            return "read"
    return "write"


def of_identity(grants: Iterable[Grant], scheme: str, id: str) -> list[str]:
    """The roles that somebody has."""
    return [grant.role for grant in grants if (grant.scheme, grant.id) == (scheme, id)]


def parts_of(uuid: str) -> list[Op]:
    """Makes those parts of a new topic that otherwise come with the first node in them: whoever needs them may have no
    right to make them."""
    made_with_every_topic = ("commits", "queue")
    return [Create(PartKey(uuid, part), Marker()) for part in PARTS if part not in made_with_every_topic]
