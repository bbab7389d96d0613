"""Makes a namespace again, in a ZooKeeper that knows nothing of it: from what storage has (``rebuild``), or from a
backup file (``restore``).

What came after the last snapshots is lost. Processes, offsets and files may still speak of it, and the old ZooKeeper
may come back with processes that use it. So (I1, I5, I11, I12, I18):

- Each log goes on with numbers that nothing of the lost part can have used: see ``jump``.
- The namespace has a new id, and so a new marker file. The old marker is removed: writers and gc of the old ZooKeeper
  refuse then. A gc that had begun before finds files of later epochs.
- Long values of tokens and entities are copied to new names, which nobody knows who could delete them.

It is made in steps, and each can be repeated. Until the last one the namespace's record says that it is *rebuilding*,
and nobody can use it. Every step checks that record's version, and every run raises it: so of two runs at once only the
later one goes on (I6). A topic's name comes last of its nodes; a topic without one is made again from the beginning.
What was used is marked in its recovery folder, so that it is not taken for the newest state later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.limits import DEFAULT_LIMITS, Limits
from pyspark_ledger.base.paging import pages
from pyspark_ledger.base.uris import check_no_keys
from pyspark_ledger.errors import Conflict, CorruptData, OutcomeUnknown
from pyspark_ledger.files.storage import Storage, normalise_uri, open_storage
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.lifecycle import rebuild_plan
from pyspark_ledger.lifecycle.backup import Backup
from pyspark_ledger.lifecycle.jump import Jump, Known
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.lifecycle.rebuild_plan import RebuildPlan
from pyspark_ledger.lifecycle.rebuild_readers import readers_of
from pyspark_ledger.lifecycle.rebuild_sources import InFile, InStorage, SavedNamespace, SavedTopic
from pyspark_ledger.lifecycle.saving import Records, file_of
from pyspark_ledger.log import root, topics
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import (
    AnyKey,
    Check,
    CondemnedKey,
    Create,
    DeletedKey,
    EntityKey,
    Key,
    Metadata,
    NamespaceKey,
    Op,
    OutboxKey,
    PartKey,
    Put,
    RootKey,
    SchemaKey,
    SinkKey,
    SinkTopicKey,
    TopicKey,
    TopicsKey,
    TransactionLost,
)
from pyspark_ledger.metadata.records import (
    Deleted,
    Entity,
    FileRef,
    Head,
    Marker,
    Namespace,
    NodeRecord,
    Sink,
    TokenChunk,
)
from pyspark_ledger.metadata.transactions import Transactions, find
from pyspark_ledger.zk_metadata import exporting

logger = logging.getLogger(__name__)

_TOGETHER_BYTES, _TOGETHER = 400_000, 200  # nodes of one transaction

Blob = TypeVar("Blob", TokenChunk, Entity)
Progress = Callable[[str, int, int], None]  # what is done, how much of it, and of how much


def from_storage(metadata: Metadata, uri: str, asked: str | None = None, **options: Any) -> Rebuild:
    """From what storage has. ``asked`` is the id of the namespace, if there are several; ``options`` as of
    :class:`Rebuild`."""
    limits, begun = options.get("limits", DEFAULT_LIMITS), find(metadata, NamespaceKey())
    if begun is not None and begun.record.rebuilding and asked in (None, begun.record.rebuilding.hex()):
        source = InStorage(uri, begun.record.rebuilding, limits)  # an earlier run was interrupted
    else:
        source = InStorage.chosen(uri, asked, limits)
    return Rebuild(metadata, uri, source, **options)


def from_file(metadata: Metadata, file: Path, uri: str, **options: Any) -> Rebuild:
    """From a backup file; its data files are in the storage root ``uri``."""
    return Rebuild(metadata, uri, InFile(file, uri, options.get("limits", DEFAULT_LIMITS)), **options)


class Source(Protocol):
    """Where a namespace was saved."""

    def read(self) -> SavedNamespace: ...


class Rebuild:
    """Makes one namespace in the storage root ``uri``, whose files are there. ``address`` is ZooKeeper's connect
    string."""

    def __init__(
        self,
        metadata: Metadata,
        uri: str,
        source: Source,
        *,
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
        address: str = "",
        progress: Progress = lambda *_: None,
    ) -> None:
        self._address = address
        check_no_keys(uri)
        self._metadata, self._uri, self._source = metadata, normalise_uri(uri), source
        self._limits, self._clock, self._progress = limits, clock, progress
        self._transactions = Transactions(metadata, limits, clock)
        self._guards: list[Check] = []

    # -- looking -------------------------------------------------------------------------------------------------------

    def plan(self) -> RebuildPlan:
        """What would be made, and what may be missing. Changes nothing.

        :raises Conflict: there is a namespace at this address already.
        """
        found = self._source.read()
        self._check_empty(found)
        return rebuild_plan.of(open_storage(self._uri), found, self._limits)

    def _check_empty(self, found: SavedNamespace) -> Namespace | None:
        """The record that an interrupted run has made; None if there is none."""
        node = find(self._metadata, NamespaceKey())
        if node is not None and node.record.rebuilding == found.id and node.record.storage == self._uri:
            return node.record
        if node is not None or self._metadata.children(TopicsKey()):
            raise Conflict(
                "there is a namespace at this ZooKeeper address: nothing was changed. Give the address another chroot. "
                "(If it is the one that is damaged, and ZooKeeper was only rolled back to an older state, see "
                "'pyspark-ledger namespace repair')",
                "LEDGER_NAMESPACE_EXISTS",
            )
        return None

    # -- doing ---------------------------------------------------------------------------------------------------------

    def run(self) -> RebuildPlan:
        """Makes the namespace; returns what was made. Can be interrupted, and repeated."""
        storage = self._begin(self._source.read())
        found = self._source.read()  # again: nobody who looks for the old marker adds to it from now on
        plan = rebuild_plan.of(storage, found, self._limits)
        self._make_rest(storage, found)
        for done, topic in enumerate(found.topics):
            self._progress("topics", done, len(found.topics))
            self._make_topic(storage, topic)
        self._progress("topics", len(found.topics), len(found.topics))
        self._finish(storage, found)
        logger.warning("rebuilt namespace=%s as=%s topics=%d", found.id.hex(), storage.marker, len(found.topics))
        return plan

    def _begin(self, found: SavedNamespace) -> Storage:
        """Makes the record and the new marker file, and removes the old one."""
        record = self._check_empty(found)
        if record is None:
            before = found.record
            record = Namespace(
                self._uri,
                before.created_ms if before is not None else self._clock.now_ms(),
                deduplication=before is None or before.deduplication,
                id=self._clock.new_id(),
                rebuilding=found.id,
            )
            record = self._transactions.make(NamespaceKey(), record, "the namespace").record
            if record.rebuilding != found.id:
                raise Conflict("somebody has made a namespace at this address meanwhile: nothing was changed")
        record = root.finish_namespace(self._metadata, open_storage(self._uri), self._clock, address=self._address)
        self._take_over(record)
        storage = open_storage(self._uri, names.marker_file(record.id))
        self._mark(storage, names.made_from_file(storage.marker, found.id))
        storage.delete(names.marker_file(found.id))
        return storage

    def _mark(self, storage: Storage, path: str) -> None:
        """Makes an empty file, unless it is there."""
        folder = path.rpartition("/")[0]
        storage.make_folder(folder)
        if path not in storage.list(folder):
            storage.write(path, b"")

    def _take_over(self, record: Namespace) -> None:
        """From now on every run that had begun before is refused."""
        for _ in range(self._limits.change_attempts):
            self._metadata.sync()
            node = self._metadata.read(NamespaceKey())
            if node is None or not node.record.rebuilding:
                raise Conflict(
                    "somebody else has finished this namespace meanwhile: look at it", "LEDGER_NAMESPACE_EXISTS"
                )
            try:
                self._metadata.transact([Put(NamespaceKey(), node.record, node.version)])
                self._guards = [Check(NamespaceKey(), node.version + 1)]
                return
            except (TransactionLost, OutcomeUnknown):
                continue
        raise Conflict("the namespace's record cannot be changed: others do so all the time; try again")

    def _finish(self, storage: Storage, found: SavedNamespace) -> None:
        """From now on it can be rebuilt itself. Only then what was used is marked, and only then can it be used."""
        self._back_up(storage)
        node = find(self._metadata, NamespaceKey())
        assert node is not None
        self._mark(storage, names.rebuilt_file(names.marker_file(found.id), node.record.id))
        [guard] = self._guards
        done = Put(NamespaceKey(), replace(node.record, rebuilding=b""), guard.version)

        def look() -> bool | None:
            self._metadata.sync()
            now = self._metadata.read(NamespaceKey())
            return None if now is None or now.record.rebuilding else True

        self._send([done], look, "the namespace's record")

    def _back_up(self, storage: Storage) -> None:
        """One round. It changes nothing but files in the recovery folder of the namespace."""
        here = OpenNamespace(self._metadata, storage, address=self._address, limits=self._limits, clock=self._clock)
        done = Backup(here).run(Pace(self._clock, lambda _: None))
        if done.failed:
            raise next(iter(done.failed.values()))

    # -- a topic -------------------------------------------------------------------------------------------------------

    def _make_topic(self, storage: Storage, topic: SavedTopic) -> None:
        name, uuid = topic.log.topic.name, topic.log.head.uuid
        named = find(self._metadata, TopicKey(name))
        if named is None:
            if find(self._metadata, RootKey(uuid)) is not None:  # an earlier run came only so far
                topics.purge(self._metadata, uuid, self._limits, self._guards)
            if not storage.has_folder(names.topic_folder(uuid)):
                storage.make_folder(names.topic_folder(uuid))
            head, ops = self._log_nodes(storage, topic)
            self._create(ops, f"topic '{name}'")
            self._make_readers(storage, topic, head)
            self._create([Create(TopicKey(name), topic.log.topic)], f"topic '{name}'")

    def _log_nodes(self, storage: Storage, topic: SavedTopic) -> tuple[Head, list[Op]]:
        log, uuid = topic.log, topic.log.head.uuid
        files = TopicFiles(storage, uuid, self._clock)
        head = rebuild_plan.without_missing(files, log.head)
        epochs = map(names.parse_epoch_folder, storage.folders(names.topic_folder(uuid)))
        known = topic.known | Known(gc_epoch=max((epoch for epoch in epochs if epoch is not None), default=0))
        jump = Jump(files, self._limits, self._clock.now_ms(), intact=topic.is_newest)
        gone_on = jump.of(head, log.commits, log.dedup, known)
        after = replace(gone_on.head, last_change=self._clock.new_id(), moves=0)  # as of the new namespace
        return after, [
            *topics.nodes_of(after, log.policies, gone_on.dedup),
            *(Create(SchemaKey(uuid, schema.id), schema) for schema in log.schemas),
        ]

    def _make_readers(self, storage: Storage, topic: SavedTopic, head: Head) -> None:
        uuid, what = head.uuid, f"topic '{head.name}'"
        nodes = readers_of(topic, head, self._limits, self._clock)
        blobs = _Blobs(storage, topic.readers.files, self._limits)
        parts = [Create(PartKey(uuid, "subscriptions"), Marker())] if nodes.cursors else []
        parts += [Create(PartKey(uuid, "tokens"), Marker())] if nodes.groups else []
        self._create(
            [*parts, *_creations(nodes.cursors.items()), *_creations(nodes.groups.items())], f"{what}: its readers"
        )
        chunks = {key: blobs.moved(key, record) for key, record in nodes.chunks.items()}
        self._create([*_creations(chunks.items()), *_creations(nodes.blocks.items())], f"{what}: its tokens")

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _make_rest(self, storage: Storage, found: SavedNamespace) -> None:
        nodes, blobs = found.rest.nodes, _Blobs(storage, found.rest.files, self._limits)
        entities = {key: record for key, record in nodes.items() if isinstance(key, EntityKey)}
        outboxes = {key.outbox for key in nodes if isinstance(key, EntityKey | OutboxKey)}
        queries = {key.query for key in nodes if isinstance(key, SinkKey | SinkTopicKey)}
        parents: Records = {OutboxKey(outbox): Marker() for outbox in sorted(outboxes)}
        parents |= {key: nodes.get(key, Sink()) for key in map(SinkKey, sorted(queries))}
        kept: Records = {
            key: record for key, record in nodes.items() if isinstance(key, DeletedKey | CondemnedKey | SinkTopicKey)
        }
        now_ms = self._clock.now_ms()
        for each in found.left_out:  # no write makes such a topic again unasked
            if each.is_loss and each.topic:
                kept.setdefault(DeletedKey(each.topic), Deleted(each.uuid, now_ms))
        self._create_missing(parents, "the namespace's sinks and outboxes")
        self._create_missing(kept, "the namespace's sinks and deleted topics")
        if any(cast(Entity, record).file is not None for record in entities.values()):
            storage.make_folder(names.OUTBOXES_FOLDER)
        for page in pages(list(entities.items()), _TOGETHER):
            moved: Records = {key: blobs.moved(key, cast(Entity, record)) for key, record in page}
            self._create_missing(moved, "entities")

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _create_missing(self, nodes: Mapping[AnyKey, NodeRecord], what: str) -> None:
        """Those that an earlier run has not made."""
        for page in pages(list(nodes.items()), _TOGETHER):
            found = self._metadata.read_many([cast("Key[NodeRecord]", key) for key, _ in page])
            missing = dict(item for item, node in zip(page, found, strict=True) if node is None)
            self._create(_creations(missing.items()), what)

    def _create(self, ops: Sequence[Op], what: str) -> None:
        """In as many transactions as are needed. Nobody else makes these nodes, so one that is there was made by us."""
        for some in _parts(ops):
            key = cast("Key[NodeRecord]", some[0].key)

            def look(key: Key[NodeRecord] = key) -> bool | None:
                self._metadata.sync()
                return None if self._metadata.read(key) is None else True

            self._send([*self._guards, *some], look, what)

    def _send(self, ops: Sequence[Op], look: Callable[[], bool | None], what: str) -> None:
        if not self._transactions.carry_out(ops, look, what):
            raise Conflict(
                f"{what}: refused. Another run of the same command has taken over, or somebody else has made a "
                "namespace here; this one has stopped",
                "LEDGER_REBUILD_FENCED",
            )


class _Blobs:
    """Long values of nodes, which are copied to new names: whoever has the old names may delete them there."""

    def __init__(self, storage: Storage, files: Mapping[str, bytes], limits: Limits) -> None:
        self._storage, self._files, self._limits = storage, files, limits

    def moved(self, key: AnyKey, record: Blob) -> Blob:
        kept = file_of(key, record)
        return record if kept is None else replace(record, file=self._moved(*kept))

    def _moved(self, folder: str, file: FileRef) -> FileRef:
        """The same name however often it is copied: an interrupted run leaves nothing that is not used by the next. It
        has a later version than any that a process of the old ZooKeeper will delete."""
        before = names.versioned_file(folder, file.epoch, file.uid)
        data = self._files.get(before) or bytes(self._storage.read_whole(before, file.length).to_pybytes())
        if len(data) != file.length or xxhash.xxh3_64_intdigest(data) != file.tail_hash:
            raise CorruptData(f"{self._storage.where(before)} is damaged, and so is what was saved of it")
        uid = xxhash.xxh3_128_digest(file.uid + self._storage.marker.encode())
        moved = replace(file, epoch=file.epoch + self._limits.repair_jump, uid=uid)
        path = names.versioned_file(folder, moved.epoch, moved.uid)
        self._storage.delete(path)  # perhaps an earlier run has written a part of it
        self._storage.write(path, data)
        return moved


def _creations(nodes: Iterable[tuple[AnyKey, NodeRecord]]) -> list[Op]:
    return [Create(key, record) for key, record in nodes]


def _parts(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """For one transaction each."""
    part: list[Op] = []
    size = 0
    for op in ops:
        assert isinstance(op, Create)
        [data] = exporting.dump([(op.key, op.record)]).values()
        if part and (size + len(data) > _TOGETHER_BYTES or len(part) >= _TOGETHER):
            yield part
            part, size = [], 0
        part.append(op)
        size += len(data)
    if part:
        yield part
