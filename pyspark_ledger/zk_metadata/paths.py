"""The only module that knows node paths.

Below the namespace's root::

    /namespace                                 where the files are
    /clock                                     written to learn ZooKeeper's time
    /topics/<name>                             name -> UUID
    /deleted/<name>                            the name had a topic that was deleted
    /sinks/<query>/<topic>                     which topic a Spark query writes to
    /logs/<uuid>                               everything of one topic: a late write can't hit its successor
    /logs/<uuid>/head
    /logs/<uuid>/policies
    /logs/<uuid>/retention                     orders trimming against those who come
    /logs/<uuid>/gc                            the gc epoch, and by its time when it began
    /logs/<uuid>/dedup
    /logs/<uuid>/commits/<10 digits>/<12 digits>      a ledger, and its commits
    /logs/<uuid>/commits/tip-<id>              the id of the head's last change
    /logs/<uuid>/commits/schema-<10 digits>
    /logs/<uuid>/subscriptions/cursor-<name>   a subscription
    /logs/<uuid>/subscriptions/owner-<name>    who is attached to it, ephemeral
    /logs/<uuid>/subscriptions/reviser-<name>  who is resetting it, ephemeral
    /logs/<uuid>/subscriptions/member-<id>-<name>     one of those who share it, ephemeral
    /logs/<uuid>/locks/compactor               who is compacting the topic, ephemeral
    /logs/<uuid>/pins/<id>                     a running reader of compacted ledgers, ephemeral
    /logs/<uuid>/queue                         written by every writer that begins to wait for its turn
    /logs/<uuid>/queue/<12 digits>-<id>        a writer that waits, ephemeral
    /logs/<uuid>/queue/answers                 what was last committed for writers that waited
    /logs/<uuid>/tokens/<group>                what a group has consumed of the topic's tokens
    /logs/<uuid>/tokens/<group>/chunk-<10 digits>     where that has many gaps
    /logs/<uuid>/tokens/<group>/block-<id>     tokens minted for messages from outside
    /entities/<outbox>/<entity>                business state, and what it has yet to dispatch

Numbers are padded, so that the order of names is the order of keys. Format 1 had other paths: a process that still runs
its code finds nothing there, and can do no harm.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from pyspark_ledger.metadata.port import (
    AnswersKey,
    AnyKey,
    CommitKey,
    CompactorKey,
    CondemnedKey,
    CondemnedsKey,
    CursorKey,
    DedupKey,
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
    OutboxesKey,
    OutboxKey,
    OwnerKey,
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
from pyspark_ledger.zk_metadata.raw import NodeAt

NAMESPACE = "/namespace"
CLOCK = "/clock"
TOPICS = "/topics"
DELETED = "/deleted"
SINKS = "/sinks"
CONDEMNED = "/condemned"
MAINTAINER = "/maintainer"
MOVER = "/mover"
LOGS = "/logs"
ENTITIES = "/entities"
CONTAINERS = (CLOCK, TOPICS, DELETED, CONDEMNED, SINKS, LOGS, ENTITIES)

_NAME = "([^/]+)"
_NUMBER = "([0-9]{1,18})"
_LOG = f"{LOGS}/{_NAME}"
_PATTERNS = tuple(
    (re.compile(pattern), make)
    for pattern, make in (
        # First, because many writers look often who waits.
        (f"{_LOG}/queue/answers", lambda uuid: AnswersKey(unquote(uuid))),
        (
            rf"{_LOG}/queue/{_NUMBER}-((?:[0-9a-f]{{2}})+)",
            lambda uuid, n, id: RequestKey(unquote(uuid), int(n), bytes.fromhex(id)),
        ),
        (NAMESPACE, lambda: NamespaceKey()),
        (TOPICS, lambda: TopicsKey()),
        (f"{TOPICS}/{_NAME}", lambda name: TopicKey(unquote(name))),
        (DELETED, lambda: DeletedsKey()),
        (f"{DELETED}/{_NAME}", lambda name: DeletedKey(unquote(name))),
        (CONDEMNED, lambda: CondemnedsKey()),
        (f"{CONDEMNED}/{_NAME}", lambda uuid: CondemnedKey(unquote(uuid))),
        (MAINTAINER, lambda: MaintainerKey()),
        (MOVER, lambda: MoverKey()),
        (SINKS, lambda: SinksKey()),
        (f"{SINKS}/{_NAME}", lambda query: SinkKey(unquote(query))),
        (f"{SINKS}/{_NAME}/{_NAME}", lambda query, topic: SinkTopicKey(unquote(query), unquote(topic))),
        (_LOG, lambda uuid: RootKey(unquote(uuid))),
        (f"{_LOG}/head", lambda uuid: HeadKey(unquote(uuid))),
        (f"{_LOG}/dedup", lambda uuid: DedupKey(unquote(uuid))),
        (f"{_LOG}/policies", lambda uuid: PoliciesKey(unquote(uuid))),
        (f"{_LOG}/retention", lambda uuid: RetentionKey(unquote(uuid))),
        (f"{_LOG}/gc", lambda uuid: GcKey(unquote(uuid))),
        (
            f"{_LOG}/(commits|locks|pins|queue|subscriptions|tokens)",
            lambda uuid, part: PartKey(unquote(uuid), part),
        ),
        (f"{_LOG}/commits/tip-((?:[0-9a-f]{{2}})+)", lambda uuid, id: TipKey(unquote(uuid), bytes.fromhex(id))),
        (rf"{_LOG}/commits/{_NUMBER}", lambda uuid, n: LedgerKey(unquote(uuid), int(n))),
        (rf"{_LOG}/commits/{_NUMBER}/{_NUMBER}", lambda uuid, n, number: CommitKey(unquote(uuid), int(n), int(number))),
        (rf"{_LOG}/commits/schema-{_NUMBER}", lambda uuid, id: SchemaKey(unquote(uuid), int(id))),
        (f"{_LOG}/subscriptions/cursor-{_NAME}", lambda uuid, name: CursorKey(unquote(uuid), unquote(name))),
        (f"{_LOG}/subscriptions/owner-{_NAME}", lambda uuid, name: OwnerKey(unquote(uuid), unquote(name))),
        (f"{_LOG}/subscriptions/reviser-{_NAME}", lambda uuid, name: ReviserKey(unquote(uuid), unquote(name))),
        (
            f"{_LOG}/subscriptions/member-([0-9a-f]{{32}})-{_NAME}",
            lambda uuid, id, name: MemberKey(unquote(uuid), unquote(name), bytes.fromhex(id)),
        ),
        (f"{_LOG}/locks/compactor", lambda uuid: CompactorKey(unquote(uuid))),
        (f"{_LOG}/locks/rewriter", lambda uuid: RewriterKey(unquote(uuid))),
        (f"{_LOG}/pins/{_NAME}", lambda uuid, id: PinKey(unquote(uuid), unquote(id))),
        (f"{_LOG}/tokens/{_NAME}", lambda uuid, group: TokenGroupKey(unquote(uuid), unquote(group))),
        (
            rf"{_LOG}/tokens/{_NAME}/chunk-{_NUMBER}",
            lambda uuid, group, n: TokenChunkKey(unquote(uuid), unquote(group), int(n)),
        ),
        (
            f"{_LOG}/tokens/{_NAME}/block-{_NAME}",
            lambda uuid, group, id: TokenBlockKey(unquote(uuid), unquote(group), unquote(id)),
        ),
        (ENTITIES, lambda: OutboxesKey()),
        (f"{ENTITIES}/{_NAME}", lambda outbox: OutboxKey(unquote(outbox))),
        (f"{ENTITIES}/{_NAME}/{_NAME}", lambda outbox, name: EntityKey(unquote(outbox), unquote(name)[1:])),
    )
)


@lru_cache(10_000)
def segment(name: str) -> str:
    """ZooKeeper refuses some characters, and '/', '.' and '..' would lead elsewhere: escape all of them."""
    escaped = quote(name, safe=" ")
    return escaped.replace(".", "%2E") if escaped.strip(".") == "" else escaped


@lru_cache(10_000)
def _log(uuid: str) -> str:
    return f"{LOGS}/{segment(uuid)}"


# By the class of the key: a commit needs six paths.
_PATHS: dict[type[Key[Any]], Callable[[Any], str]] = {
    NamespaceKey: lambda key: NAMESPACE,
    TopicsKey: lambda key: TOPICS,
    TopicKey: lambda key: f"{TOPICS}/{segment(key.name)}",
    DeletedsKey: lambda key: DELETED,
    DeletedKey: lambda key: f"{DELETED}/{segment(key.name)}",
    CondemnedsKey: lambda key: CONDEMNED,
    CondemnedKey: lambda key: f"{CONDEMNED}/{segment(key.uuid)}",
    MaintainerKey: lambda key: MAINTAINER,
    MoverKey: lambda key: MOVER,
    SinksKey: lambda key: SINKS,
    SinkKey: lambda key: f"{SINKS}/{segment(key.query)}",
    SinkTopicKey: lambda key: f"{SINKS}/{segment(key.query)}/{segment(key.topic)}",
    RootKey: lambda key: _log(key.uuid),
    PartKey: lambda key: f"{_log(key.uuid)}/{key.part}",
    HeadKey: lambda key: f"{_log(key.uuid)}/head",
    TipKey: lambda key: f"{_log(key.uuid)}/commits/tip-{key.id.hex()}",
    DedupKey: lambda key: f"{_log(key.uuid)}/dedup",
    PoliciesKey: lambda key: f"{_log(key.uuid)}/policies",
    RetentionKey: lambda key: f"{_log(key.uuid)}/retention",
    GcKey: lambda key: f"{_log(key.uuid)}/gc",
    SchemaKey: lambda key: f"{_log(key.uuid)}/commits/schema-{key.id:010d}",
    LedgerKey: lambda key: f"{_log(key.uuid)}/commits/{key.ledger:010d}",
    CommitKey: lambda key: f"{_log(key.uuid)}/commits/{key.ledger:010d}/{key.number:012d}",
    CursorKey: lambda key: f"{_log(key.uuid)}/subscriptions/cursor-{segment(key.name)}",
    OwnerKey: lambda key: f"{_log(key.uuid)}/subscriptions/owner-{segment(key.name)}",
    ReviserKey: lambda key: f"{_log(key.uuid)}/subscriptions/reviser-{segment(key.name)}",
    MemberKey: lambda key: f"{_log(key.uuid)}/subscriptions/member-{key.id.hex()}-{segment(key.name)}",
    CompactorKey: lambda key: f"{_log(key.uuid)}/locks/compactor",
    RewriterKey: lambda key: f"{_log(key.uuid)}/locks/rewriter",
    PinKey: lambda key: f"{_log(key.uuid)}/pins/{segment(key.id)}",
    AnswersKey: lambda key: f"{_log(key.uuid)}/queue/answers",
    RequestKey: lambda key: f"{_log(key.uuid)}/queue/{key.number:012d}-{key.id.hex()}",
    TokenGroupKey: lambda key: f"{_log(key.uuid)}/tokens/{segment(key.group)}",
    TokenChunkKey: lambda key: f"{_log(key.uuid)}/tokens/{segment(key.group)}/chunk-{key.chunk:010d}",
    TokenBlockKey: lambda key: f"{_log(key.uuid)}/tokens/{segment(key.group)}/block-{segment(key.id)}",
    OutboxesKey: lambda key: ENTITIES,
    OutboxKey: lambda key: f"{ENTITIES}/{segment(key.outbox)}",
    EntityKey: lambda key: f"{ENTITIES}/{segment(key.outbox)}/={segment(key.entity)}",  # its name may be empty
    NodeAt: lambda key: key.path,
}


def path(key: Key[Any]) -> str:
    """Where a record is kept, below the namespace's root."""
    return _PATHS[type(key)](key)


def key(path: str) -> AnyKey | None:
    """What a path names; None if a later version put it there."""
    for pattern, make in _PATTERNS:
        match = pattern.fullmatch(path)
        if match is not None:
            return make(*match.groups())
    return None
