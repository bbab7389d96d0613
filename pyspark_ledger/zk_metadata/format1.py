"""A namespace of format 1: where its nodes are, and what they hold. Only the upgrade to format 2 reads it.

Most records have only got more fields since, and are read as they are; the head was another one. Its paths::

    /namespace                                 as now
    /topics/<name>                             as now
    /ledgers/<uuid>/head
    /ledgers/<uuid>/dedup
    /ledgers/<uuid>/cursor-<name>              a subscription
    /ledgers/<uuid>/owner-<name>               who is attached to it, ephemeral
    /ledgers/<uuid>/reviser-<name>             who is resetting it, ephemeral
    /ledgers/<uuid>/compactor                  who is compacting it, ephemeral
    /ledgers/<uuid>/pin-<id>                   a running reader of compacted ledgers, ephemeral
    /ledgers/<uuid>/schema-<10 digits>
    /ledgers/<uuid>/tokens-<group>
    /ledgers/<uuid>/tokens-<group>/chunk-<10 digits>
    /ledgers/<uuid>/tokens-<group>/block-<id>
    /ledgers/<uuid>/ledger-<10 digits>/<12 digits>    one commit
    /outboxes/<name>/<entity>
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast
from urllib.parse import unquote

from pyspark_ledger.metadata.port import (
    AnyKey,
    Check,
    CommitKey,
    CompactorKey,
    CursorKey,
    DedupKey,
    Delete,
    EntityKey,
    HeadKey,
    Key,
    LedgerKey,
    NamespaceKey,
    OutboxKey,
    OwnerKey,
    PinKey,
    Put,
    ReviserKey,
    RootKey,
    SchemaKey,
    TokenBlockKey,
    TokenChunkKey,
    TokenGroupKey,
    TopicKey,
    TopicsKey,
)
from pyspark_ledger.metadata.records import Commit, DedupSnapshot, FileRef, Generation, Namespace, Topic
from pyspark_ledger.zk_metadata import codec, format1_pb2, mapping, paths
from pyspark_ledger.zk_metadata.raw import NodeAt, Raw
from pyspark_ledger.zk_metadata.store import ZooKeeperMetadata

FORMAT = 1

# Field 1 of every record is its format, and of a field that is there twice protobuf takes the last one. So a record of
# format 1 with these bytes at its end is the same record, of format 2: the code of format 1 refuses it by name.
_IS_FORMAT_2 = b"\x08\x02"

_LEDGERS, _OUTBOXES = "/ledgers", "/outboxes"
_NAME = "([^/]+)"
_NUMBER = "([0-9]{1,18})"
_LOG = f"{_LEDGERS}/{_NAME}"
_PATTERNS: tuple[tuple[re.Pattern[str], Any], ...] = tuple(
    (re.compile(pattern), make)
    for pattern, make in (
        (paths.NAMESPACE, lambda: NamespaceKey()),
        (paths.TOPICS, lambda: TopicsKey()),
        (f"{paths.TOPICS}/{_NAME}", lambda name: TopicKey(unquote(name))),
        (_LOG, lambda uuid: RootKey(unquote(uuid))),
        (f"{_LOG}/head", lambda uuid: HeadKey(unquote(uuid))),
        (f"{_LOG}/dedup", lambda uuid: DedupKey(unquote(uuid))),
        (f"{_LOG}/cursor-{_NAME}", lambda uuid, name: CursorKey(unquote(uuid), unquote(name))),
        (f"{_LOG}/owner-{_NAME}", lambda uuid, name: OwnerKey(unquote(uuid), unquote(name))),
        (f"{_LOG}/reviser-{_NAME}", lambda uuid, name: ReviserKey(unquote(uuid), unquote(name))),
        (f"{_LOG}/compactor", lambda uuid: CompactorKey(unquote(uuid))),
        (f"{_LOG}/pin-{_NAME}", lambda uuid, id: PinKey(unquote(uuid), unquote(id))),
        (rf"{_LOG}/schema-{_NUMBER}", lambda uuid, id: SchemaKey(unquote(uuid), int(id))),
        (rf"{_LOG}/ledger-{_NUMBER}", lambda uuid, n: LedgerKey(unquote(uuid), int(n))),
        (rf"{_LOG}/ledger-{_NUMBER}/{_NUMBER}", lambda uuid, n, number: CommitKey(unquote(uuid), int(n), int(number))),
        (f"{_LOG}/tokens-{_NAME}", lambda uuid, group: TokenGroupKey(unquote(uuid), unquote(group))),
        (
            rf"{_LOG}/tokens-{_NAME}/chunk-{_NUMBER}",
            lambda uuid, group, n: TokenChunkKey(unquote(uuid), unquote(group), int(n)),
        ),
        (
            f"{_LOG}/tokens-{_NAME}/block-{_NAME}",
            lambda uuid, group, id: TokenBlockKey(unquote(uuid), unquote(group), unquote(id)),
        ),
        (f"{_OUTBOXES}/{_NAME}", lambda outbox: OutboxKey(unquote(outbox))),
        (f"{_OUTBOXES}/{_NAME}/{_NAME}", lambda outbox, name: EntityKey(unquote(outbox), unquote(name)[1:])),
    )
)
EPHEMERAL = (OwnerKey, ReviserKey, CompactorKey, PinKey)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OldPolicies:
    deduplication: bool | None = None
    snapshot_commits: int = 0
    evict_producers_ms: int = 0


@dataclass(frozen=True, slots=True)
class OldHead:
    """The head as it was: with the policies, and with a list of the generations that are kept, oldest first."""

    uuid: str
    name: str
    schema_id: int
    ledger: int
    ledger_first_commit: int
    ledger_opened_ms: int
    ledger_bytes: int
    next_commit: int
    next_entry: int
    last_publish_ms: int
    records: int
    bytes: int
    gc_epoch: int
    gc_floor: int
    gc_marks: tuple[int, ...]
    index: tuple[FileRef, ...]
    gc_kept: tuple[FileRef, ...]
    gc_kept_before: tuple[FileRef, ...]
    policies: OldPolicies
    generations: tuple[Generation, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class OldNode(Generic[T]):
    """A node where format 1 had it. It is *frozen* if it is marked as format 2: then no old code takes it any more."""

    path: str
    key: AnyKey
    record: T
    version: int
    data: builtins.bytes

    @property
    def format(self) -> int:
        return codec.format_of(self.data, self.path)

    @property
    def is_frozen(self) -> bool:
        return self.format > FORMAT

    def freeze(self) -> Put:
        return Put(_at(self.path), cast(Any, Raw(self.data + _IS_FORMAT_2)), self.version)

    def leave_mark(self) -> Put:
        """All that is left of the node says that it is of format 2: old code that comes back to it is told so. Where it
        is not there, the old code would draw conclusions: that a topic was deleted, that a token is consumed."""
        return Put(_at(self.path), cast(Any, Raw(_IS_FORMAT_2)), self.version)

    def delete(self) -> Delete:
        return Delete(_at(self.path), self.version)

    def check(self) -> Check:
        return Check(_at(self.path), self.version)


@dataclass(frozen=True, slots=True)
class OldPath:
    """Where a node is, and the key of what it holds; None if format 1 had no such node."""

    path: str
    key: AnyKey | None

    def delete(self) -> Delete:
        return Delete(_at(self.path))


class Format1:
    """What is left of format 1 in a namespace. Reads only: what it gives is changed by transactions of the caller."""

    def __init__(self, metadata: ZooKeeperMetadata) -> None:
        self._metadata = metadata

    # -- where format 2 has them too ---------------------------------------------------------------------------------

    def namespace(self) -> OldNode[Namespace] | None:
        """Of either format."""
        return self.read(_old_path(paths.NAMESPACE))

    def topic(self, name: str) -> OldNode[Topic] | None:
        """None if it is brought over already."""
        found = self.read(_old_path(paths.path(TopicKey(name))))
        return None if found is None or found.is_frozen else found

    def topics(self) -> list[OldNode[Topic]]:
        """Those that are not brought over yet."""
        names = [key.name for key in self._metadata.children(TopicsKey()) if isinstance(key, TopicKey)]
        return [topic for topic in map(self.topic, names) if topic is not None]

    # -- where only format 1 has them --------------------------------------------------------------------------------

    def roots(self) -> list[OldPath]:
        """One for each topic that is not brought over completely, or not deleted completely."""
        return self._below(_LEDGERS)

    def outboxes(self) -> list[OldPath]:
        return self._below(_OUTBOXES)

    def root(self, uuid: str) -> OldPath:
        return _old_path(f"{_LEDGERS}/{paths.segment(uuid)}")

    def below(self, parent: OldPath) -> list[OldPath]:
        return self._below(parent.path)

    def head(self, uuid: str) -> OldNode[OldHead] | None:
        return self.read(_old_path(f"{self.root(uuid).path}/head"))

    def dedup(self, uuid: str) -> OldNode[DedupSnapshot] | None:
        return self.read(_old_path(f"{self.root(uuid).path}/dedup"))

    def open_commits(self, head: OldHead) -> list[Commit] | None:
        """None if some are missing: then the ledger was sealed since the head was read."""
        ledger = f"{self.root(head.uuid).path}/ledger-{head.ledger:010d}"
        numbers = range(head.ledger_first_commit, head.next_commit)
        found = self.read_many([_old_path(f"{ledger}/{number:012d}") for number in numbers])
        return [node.record for node in found] if len(found) == len(numbers) else None

    def read(self, node: OldPath) -> OldNode[Any] | None:
        found = self.read_many([node])
        return found[0] if found else None

    def read_many(self, nodes: Sequence[OldPath]) -> list[OldNode[Any]]:
        """Those that are there."""
        found = self._metadata.read_many([NodeAt(node.path) for node in nodes])
        return [
            _old_node(node, each.record.data, each.version)
            for node, each in zip(nodes, found, strict=True)
            if each is not None
        ]

    def close_containers(self) -> None:
        """From now on no old code makes a topic or an outbox. Both nodes stay, empty: if they were missing, a process
        of the old code would make them again before its first write."""
        for path in (_LEDGERS, _OUTBOXES):
            self._metadata.forbid_children(_at(path))

    def close(self, node: OldPath) -> None:
        """From now on nobody makes a node below this one."""
        self._metadata.forbid_children(_at(node.path))

    def _below(self, path: str) -> list[OldPath]:
        return [_old_path(cast(NodeAt, key).path) for key in self._metadata.children(_at(path))]


def _at(path: str) -> AnyKey:
    return cast(AnyKey, NodeAt(path))


def _old_path(path: str) -> OldPath:
    for pattern, make in _PATTERNS:
        match = pattern.fullmatch(path)
        if match is not None:
            return OldPath(path, make(*match.groups()))
    return OldPath(path, None)


def key(path: str) -> AnyKey | None:
    """What a path named in format 1, as the key that it has now; None if format 1 had no such node."""
    return _old_path(path).key


def decode(path: str, data: bytes) -> tuple[AnyKey, Any]:
    """What the node at a path holds, and the key that it has in format 2."""
    node = _old_path(path)
    assert node.key is not None, path
    return node.key, _decode(node.key, data, path)


def _old_node(node: OldPath, data: bytes, version: int) -> OldNode[Any]:
    assert node.key is not None
    return OldNode(node.path, node.key, _decode(node.key, data, node.path), version, data)


def _decode(key: AnyKey, data: bytes, path: str) -> Any:
    if isinstance(key, HeadKey):
        convert = mapping.converter(OldHead, format1_pb2.Head.DESCRIPTOR).load
        return codec.load(format1_pb2.Head, convert, data, path, FORMAT)
    return codec.decode(cast(Key[Any], key), data, path, FORMAT)
