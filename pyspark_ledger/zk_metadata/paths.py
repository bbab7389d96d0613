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
    /ledgers/<uuid>/ledger-<10 digits>/<12 digits>    one commit

Numbers are padded, so that the order of names is the order of keys.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

from pyspark_ledger.port import (
    AnyKey,
    CommitKey,
    CompactorKey,
    CursorKey,
    DedupKey,
    HeadKey,
    Key,
    LedgerKey,
    NamespaceKey,
    OwnerKey,
    PinKey,
    ReviserKey,
    RootKey,
    SchemaKey,
    TopicKey,
    TopicsKey,
)

TOPICS = "/topics"
LEDGERS = "/ledgers"
CONTAINERS = (TOPICS, LEDGERS)

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
