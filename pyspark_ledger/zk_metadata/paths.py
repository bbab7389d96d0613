"""The only module that knows node paths.

Below the namespace's root::

    /namespace                                 where the files are
    /topics/<name>                             name -> UUID
    /ledgers/<uuid>                            everything of one topic: a late write can't hit its successor
    /ledgers/<uuid>/head
    /ledgers/<uuid>/dedup
    /ledgers/<uuid>/cursor-<name>              a subscription
    /ledgers/<uuid>/owner-<name>               who is attached to it, ephemeral
    /ledgers/<uuid>/reviser-<name>             who is resetting it, ephemeral
    /ledgers/<uuid>/compactor                  who is compacting it, ephemeral
    /ledgers/<uuid>/pin-<id>                   a running reader of compacted ledgers, ephemeral
    /ledgers/<uuid>/schema-<10 digits>
    /ledgers/<uuid>/tokens-<group>             what a group has consumed of the topic's tokens
    /ledgers/<uuid>/tokens-<group>/chunk-<10 digits>  where that has many gaps
    /ledgers/<uuid>/tokens-<group>/block-<id>  tokens minted for messages from outside
    /ledgers/<uuid>/ledger-<10 digits>/<12 digits>    one commit
    /outboxes/<name>/<entity>                  business state, and what it has yet to dispatch

Numbers are padded, so that the order of names is the order of keys.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

from pyspark_ledger.metadata.port import (
    AnyKey,
    CommitKey,
    CompactorKey,
    CursorKey,
    DedupKey,
    EntityKey,
    HeadKey,
    Key,
    LedgerKey,
    NamespaceKey,
    OutboxKey,
    OwnerKey,
    PinKey,
    ReviserKey,
    RootKey,
    SchemaKey,
    TokenBlockKey,
    TokenChunkKey,
    TokenGroupKey,
    TopicKey,
    TopicsKey,
)

TOPICS = "/topics"
LEDGERS = "/ledgers"
OUTBOXES = "/outboxes"
CONTAINERS = (TOPICS, LEDGERS, OUTBOXES)

_NAME = "([^/]+)"
_PATTERNS = (
    (re.compile("/namespace"), lambda: NamespaceKey()),
    (re.compile(TOPICS), lambda: TopicsKey()),
    (re.compile(f"{TOPICS}/{_NAME}"), lambda name: TopicKey(unquote(name))),
    (re.compile(f"{LEDGERS}/{_NAME}"), lambda uuid: RootKey(unquote(uuid))),
    (re.compile(f"{LEDGERS}/{_NAME}/head"), lambda uuid: HeadKey(unquote(uuid))),
    (re.compile(f"{LEDGERS}/{_NAME}/dedup"), lambda uuid: DedupKey(unquote(uuid))),
    (re.compile(f"{LEDGERS}/{_NAME}/cursor-{_NAME}"), lambda uuid, name: CursorKey(unquote(uuid), unquote(name))),
    (re.compile(f"{LEDGERS}/{_NAME}/owner-{_NAME}"), lambda uuid, name: OwnerKey(unquote(uuid), unquote(name))),
    (re.compile(f"{LEDGERS}/{_NAME}/reviser-{_NAME}"), lambda uuid, name: ReviserKey(unquote(uuid), unquote(name))),
    (re.compile(f"{LEDGERS}/{_NAME}/compactor"), lambda uuid: CompactorKey(unquote(uuid))),
    (re.compile(f"{LEDGERS}/{_NAME}/pin-{_NAME}"), lambda uuid, id: PinKey(unquote(uuid), unquote(id))),
    (re.compile(rf"{LEDGERS}/{_NAME}/schema-(\d+)"), lambda uuid, id: SchemaKey(unquote(uuid), int(id))),
    (re.compile(rf"{LEDGERS}/{_NAME}/ledger-(\d+)"), lambda uuid, n: LedgerKey(unquote(uuid), int(n))),
    (
        re.compile(rf"{LEDGERS}/{_NAME}/ledger-(\d+)/(\d+)"),
        lambda uuid, n, number: CommitKey(unquote(uuid), int(n), int(number)),
    ),
    (re.compile(f"{LEDGERS}/{_NAME}/tokens-{_NAME}"), lambda uuid, group: TokenGroupKey(unquote(uuid), unquote(group))),
    (
        re.compile(rf"{LEDGERS}/{_NAME}/tokens-{_NAME}/chunk-(\d+)"),
        lambda uuid, group, n: TokenChunkKey(unquote(uuid), unquote(group), int(n)),
    ),
    (
        re.compile(f"{LEDGERS}/{_NAME}/tokens-{_NAME}/block-{_NAME}"),
        lambda uuid, group, id: TokenBlockKey(unquote(uuid), unquote(group), unquote(id)),
    ),
    (re.compile(f"{OUTBOXES}/{_NAME}"), lambda outbox: OutboxKey(unquote(outbox))),
    (re.compile(f"{OUTBOXES}/{_NAME}/{_NAME}"), lambda outbox, name: EntityKey(unquote(outbox), unquote(name)[1:])),
)


def path(key: Key[Any]) -> str:
    """Where a record is kept, below the namespace's root."""
    match key:
        case NamespaceKey():
            return "/namespace"
        case TopicsKey():
            return TOPICS
        case TopicKey(name):
            return f"{TOPICS}/{_segment(name)}"
        case RootKey(uuid):
            return f"{LEDGERS}/{_segment(uuid)}"
        case HeadKey(uuid):
            return f"{LEDGERS}/{_segment(uuid)}/head"
        case DedupKey(uuid):
            return f"{LEDGERS}/{_segment(uuid)}/dedup"
        case CursorKey(uuid, name):
            return f"{LEDGERS}/{_segment(uuid)}/cursor-{_segment(name)}"
        case OwnerKey(uuid, name):
            return f"{LEDGERS}/{_segment(uuid)}/owner-{_segment(name)}"
        case ReviserKey(uuid, name):
            return f"{LEDGERS}/{_segment(uuid)}/reviser-{_segment(name)}"
        case CompactorKey(uuid):
            return f"{LEDGERS}/{_segment(uuid)}/compactor"
        case PinKey(uuid, id):
            return f"{LEDGERS}/{_segment(uuid)}/pin-{_segment(id)}"
        case SchemaKey(uuid, id):
            return f"{LEDGERS}/{_segment(uuid)}/schema-{id:010d}"
        case LedgerKey(uuid, ledger):
            return f"{LEDGERS}/{_segment(uuid)}/ledger-{ledger:010d}"
        case CommitKey(uuid, ledger, number):
            return f"{LEDGERS}/{_segment(uuid)}/ledger-{ledger:010d}/{number:012d}"
        case TokenGroupKey(uuid, group):
            return f"{LEDGERS}/{_segment(uuid)}/tokens-{_segment(group)}"
        case TokenChunkKey(uuid, group, chunk):
            return f"{LEDGERS}/{_segment(uuid)}/tokens-{_segment(group)}/chunk-{chunk:010d}"
        case TokenBlockKey(uuid, group, id):
            return f"{LEDGERS}/{_segment(uuid)}/tokens-{_segment(group)}/block-{_segment(id)}"
        case OutboxKey(outbox):
            return f"{OUTBOXES}/{_segment(outbox)}"
        case EntityKey(outbox, entity):  # an entity's name may be empty
            return f"{OUTBOXES}/{_segment(outbox)}/={_segment(entity)}"
    raise TypeError(f"no node is known for {key!r}")


def key(path: str) -> AnyKey | None:
    """What a path names; None if a later version put it there."""
    for pattern, make in _PATTERNS:
        match = pattern.fullmatch(path)
        if match is not None:
            return make(*match.groups())
    return None


def _segment(name: str) -> str:
    """ZooKeeper refuses some characters, and '/', '.' and '..' would lead elsewhere: escape all of them."""
    escaped = quote(name, safe=" ")
    return escaped.replace(".", "%2E") if escaped.strip(".") == "" else escaped
