"""What is saved of a namespace besides the logs of its topics (these: ``log.snapshots``), and how it is read.

The *readers* of a topic are its subscriptions and its token groups. The *namespace* is its own record, which topics
there are and which were deleted, what queries write to, and the entities of outboxes. Long values that are kept in
files are saved with their nodes: the next change of a node deletes its file.

A namespace changes while it is read, and there is no way to read all of it at one moment. So the order counts (I1,
I11): first the readers, then entities, and the logs last. Whoever puts it back then has no subscription past the end of
its log, and no token that is consumed while its effect, in an entity or in a log, is missing. The other way round is
possible: a token that is there again although its effect is in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.paging import by_halves, pages
from pyspark_ledger.errors import Conflict, CorruptData, LedgerError
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.log import topics
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import (
    AnyKey,
    CondemnedsKey,
    CursorKey,
    DeletedsKey,
    EntityKey,
    Key,
    NamespaceKey,
    OutboxesKey,
    OutboxKey,
    Part,
    PartKey,
    SinksKey,
    TokenChunkKey,
    TokenGroupKey,
    TopicKey,
    Versioned,
)
from pyspark_ledger.metadata.records import Entity, FileRef, Namespace, NodeRecord, Sink, TokenChunk, TokenGroup, Topic
from pyspark_ledger.outbox import entities
from pyspark_ledger.zk_metadata import exporting, paths

Records = dict[AnyKey, NodeRecord]


@dataclass(frozen=True, slots=True)
class Saved:
    """Some nodes, as they are in ZooKeeper, and the files that they name."""

    nodes: Mapping[str, bytes]
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def mark(self) -> bytes:
        """A hash of the nodes. Who names a file knows its hash, so this stands for the files too."""
        digest = xxhash.xxh3_128()
        for path, data in sorted(self.nodes.items()):
            digest.update(f"{path}\n{len(data)}\n".encode())
            digest.update(data)
        return digest.digest()

    @property
    def bytes(self) -> int:
        return sum(map(len, (*self.nodes, *self.nodes.values(), *self.files.values())))


class Saving:
    """Reads what is saved, in pages. What is damaged is noted in ``failed``, by the name of the topic or the path of
    the node, and the rest is read all the same."""

    def __init__(self, namespace: OpenNamespace) -> None:
        self._namespace, self._metadata, self._limits = namespace, namespace.metadata, namespace.limits
        self.failed: dict[str, LedgerError] = {}
        self.unreadable: set[AnyKey] = set()  # nodes of the namespace

    # -- topics ------------------------------------------------------------------------------------------------

    def topics(self) -> list[Topic]:
        self._metadata.sync()
        keys = [TopicKey(name) for name in topics.list_topics(self._metadata)]
        return [cast(Topic, record) for record in self._read(keys).values()]

    def readers(self, some: Sequence[Topic]) -> dict[str, Records]:
        """By UUID, of a page of topics."""
        return dict(by_halves(some, self._readers, self._topic_failed)) if some else {}

    def _topic_failed(self, topic: Topic, error: LedgerError) -> list[tuple[str, Records]]:
        self.failed[topic.name] = error
        return []

    def _readers(self, some: Sequence[Topic]) -> list[tuple[str, Records]]:
        found: dict[str, Records] = {topic.uuid: {} for topic in some}
        cursors = [key for key in self._below(some, "subscriptions") if isinstance(key, CursorKey)]
        for key, cursor in zip(cursors, self._metadata.read_many(cursors), strict=True):
            if cursor is not None:
                found[key.uuid][key] = cursor.record
        left = [key for key in self._below(some, "tokens") if isinstance(key, TokenGroupKey)]
        for _ in range(self._limits.look_attempts):
            if not left:
                break
            left = self._groups(left, found)
        for group in left:
            found.pop(group.uuid, None)
            name = next(topic.name for topic in some if topic.uuid == group.uuid)
            self.failed[name] = Conflict(f"token group '{group.group}' changes faster than it can be read: try again")
        return list(found.items())

    def _below(self, some: Sequence[Topic], part: Part) -> list[AnyKey]:
        below = self._metadata.children_many([PartKey(topic.uuid, part) for topic in some])
        return [key for each in below for key in each]

    def _groups(self, keys: Sequence[TokenGroupKey], found: dict[str, Records]) -> list[TokenGroupKey]:
        """Puts groups with their chunks and blocks into ``found``. Returns those that somebody has changed meanwhile:
        every consumption changes the group's own node, so its version shows that what was read belongs together."""
        groups = self._metadata.read_many(keys)
        below = self._metadata.children_many(keys)
        parts = [key for each in below for key in each]
        nodes = dict(zip(parts, self._metadata.read_many(cast("list[Key[NodeRecord]]", parts)), strict=True))
        checked = [key for key, group, each in zip(keys, groups, below, strict=True) if each or _has_chunks(group)]
        now = dict(zip(checked, self._metadata.read_many(checked), strict=True))
        changed = []
        for key, group, each in zip(keys, groups, below, strict=True):
            if key in now and now[key] != group:
                changed.append(key)
            elif group is not None:
                found[key.uuid][key] = group.record
                found[key.uuid] |= {part: node.record for part in each if (node := nodes[part]) is not None}
        return changed

    # -- the namespace -------------------------------------------------------------------------------------------

    def namespace(self, some: Iterable[Topic]) -> Records:
        """Of these topics, and all that is no topic's own. Entities come last."""
        queries = self._metadata.children(SinksKey())
        sinks = [key for each in self._metadata.children_many(queries) for key in each]
        others = [*self._metadata.children(DeletedsKey()), *self._metadata.children(CondemnedsKey()), *sinks]
        found: Records = {TopicKey(topic.name): topic for topic in some}
        found |= {key: claim for key, claim in self._read(queries).items() if claim != Sink()}
        found |= self._read([NamespaceKey(), *others])
        own = found.get(NamespaceKey())
        if isinstance(own, Namespace):  # whoever makes it anew gives roles anew; their hashes of passwords stay here
            found[NamespaceKey()] = replace(own, roles=())
        outboxes = [key for key in self._metadata.children(OutboxesKey()) if isinstance(key, OutboxKey)]
        states = [key for each in self._metadata.children_many(outboxes) for key in each]
        return found | self._read([*outboxes, *states])

    def _read(self, keys: Sequence[AnyKey]) -> Records:
        """Those that are there."""

        def look(some: Sequence[AnyKey]) -> list[tuple[AnyKey, NodeRecord]]:
            nodes = self._metadata.read_many(cast("Sequence[Key[NodeRecord]]", some))
            return [(key, node.record) for key, node in zip(some, nodes, strict=True) if node is not None]

        found: Records = {}
        for page in pages(keys, self._limits.topics_at_once):
            found |= by_halves(page, look, self._node_failed)
        return found

    def _node_failed(self, key: AnyKey, error: LedgerError) -> list[tuple[AnyKey, NodeRecord]]:
        self.unreadable.add(key)
        self.failed[key.name if isinstance(key, TopicKey) else paths.path(key)] = error
        return []

    # -- with their files ------------------------------------------------------------------------------------------

    def with_files(self, records: Records) -> Saved:
        """An entity whose file is gone has been changed meanwhile, and is read again; if its file is damaged, that is
        noted. The nodes of a token group belong together: to read them again is the caller's work.

        :raises CorruptData: a file of a token group is damaged or missing.
        """
        now, files = dict(records), {}
        for key in records:
            while (kept := file_of(key, now[key])) is not None:
                folder, file = kept
                try:
                    blobs = Blobs(self._namespace.storage, folder, self._namespace.clock)
                    files[path_of_file(key, now[key])] = blobs.fetch(file)
                    break
                except CorruptData as error:
                    if not isinstance(key, EntityKey):
                        raise
                    self._metadata.sync()
                    again = self._metadata.read(key)
                    if again is None or again.record.file == file:
                        self._node_failed(key, error)
                        del now[key]
                        break
                    now[key] = again.record
        return Saved(exporting.dump(now.items()), files)

    def readers_with_files(self, topic: Topic, records: Records) -> Saved | None:
        """None if it cannot be read; that is noted."""
        for _ in range(self._limits.look_attempts):
            try:
                return self.with_files(records)
            except CorruptData as error:
                self._metadata.sync()
                now = self.readers([topic]).get(topic.uuid)
                if now is None or now == records:
                    self.failed.setdefault(topic.name, error)
                    return None
                records = now
        self.failed[topic.name] = Conflict("its token groups change faster than they can be read: try again")
        return None


def file_of(key: AnyKey, record: NodeRecord) -> tuple[str, FileRef] | None:
    """The folder and the file in which a node's long value is kept; None if it is in the node."""
    if isinstance(key, TokenChunkKey) and isinstance(record, TokenChunk) and record.file is not None:
        return names.token_folder(key.uuid, key.group, key.chunk), record.file
    if isinstance(key, EntityKey) and isinstance(record, Entity) and record.file is not None:
        return entities.folder_of(key.outbox, key.entity), record.file
    return None


def path_of_file(key: AnyKey, record: NodeRecord) -> str:
    """Where in storage that is; empty if there is no file."""
    kept = file_of(key, record)
    return names.versioned_file(kept[0], kept[1].epoch, kept[1].uid) if kept is not None else ""


def _has_chunks(group: Versioned[TokenGroup] | None) -> bool:
    return group is not None and bool(group.record.spilled)
