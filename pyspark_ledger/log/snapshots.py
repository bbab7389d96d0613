"""What a topic's log needs to be made again, in a small file in storage: its nodes in ZooKeeper, as they were.

Storage has every record, but only ZooKeeper knows which files are part of a topic, and in which order. So whoever seals
a ledger leaves a *snapshot*: head, open commits, dedup snapshot, schemas and policies. Maintenance leaves more of them,
and gc leaves one before it deletes anything: so no file that the newest snapshot names is ever deleted.

The newest snapshots also show a rollback of ZooKeeper to a process that has just started (I18): they name a commit that
the head does not have.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple, cast

import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.errors import Conflict, CorruptData, LedgerError
from pyspark_ledger.files.nodefile import NodeFile
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.log import rollback
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import (
    AnyKey,
    CommitKey,
    DedupKey,
    GcKey,
    HeadKey,
    Key,
    PoliciesKey,
    SchemaKey,
    TopicKey,
)
from pyspark_ledger.metadata.records import Commit, DedupSnapshot, GcEpoch, Head, NodeRecord, Policies, Schema, Topic
from pyspark_ledger.metadata.transactions import RolledBack
from pyspark_ledger.zk_metadata import exporting

logger = logging.getLogger(__name__)

_WHAT, _WRITTEN = "what", "written_ms"
_A_LOG = "the log of a topic"


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """A topic's log at one version of its head."""

    written_ms: int
    topic: Topic
    head: Head
    commits: tuple[Commit, ...]  # of the open ledger
    dedup: DedupSnapshot
    policies: Policies
    gc: GcEpoch
    schemas: tuple[Schema, ...]

    def records(self) -> list[tuple[AnyKey, NodeRecord]]:
        uuid, ledger = self.head.uuid, self.head.ledger
        return [
            (TopicKey(self.topic.name), self.topic),
            (HeadKey(uuid), self.head),
            (DedupKey(uuid), self.dedup),
            (PoliciesKey(uuid), self.policies),
            (GcKey(uuid), self.gc),
            *((SchemaKey(uuid, schema.id), schema) for schema in self.schemas),
            *((CommitKey(uuid, ledger, commit.number), commit) for commit in self.commits),
        ]


class Listed(NamedTuple):
    """A snapshot in storage, by its name; later ones are greater."""

    next_commit: int
    written_ms: int
    last_commit: bytes
    path: str

    @property
    def mark(self) -> bytes:
        return names.snapshot_mark(self.path)


# -- taking one ---------------------------------------------------------------------------------------------------


def take(log: Log) -> LogSnapshot:
    """The log as it is now."""
    for _ in range(log.limits.look_attempts):
        written_ms, view = log.now_ms(), log.refresh(sync=True)
        uuid, head = view.head.uuid, view.head
        keys: list[Key[NodeRecord]] = [
            cast("Key[NodeRecord]", key)
            for key in (TopicKey(head.name), DedupKey(uuid), PoliciesKey(uuid), GcKey(uuid))
        ]
        keys += [cast("Key[NodeRecord]", SchemaKey(uuid, number)) for number in range(head.schema_id + 1)]
        found = [node.record for node in log.metadata.read_many(keys) if node is not None]
        if len(found) == len(keys):
            topic, dedup, policies, gc, *schemas = found
            snapshot = LogSnapshot(
                written_ms, cast(Topic, topic), head, view.open_commits, cast(DedupSnapshot, dedup),
                cast(Policies, policies), cast(GcEpoch, gc), tuple(cast("list[Schema]", schemas)),
            )  # fmt: skip
            if snapshot.topic.uuid == uuid and snapshot.dedup.next_commit == head.ledger_first_commit:
                return snapshot
    raise Conflict(f"topic '{log.topic.name}' is sealed or deleted faster than it can be looked at: try again")


# -- in storage ---------------------------------------------------------------------------------------------------


def listed(storage: Storage, uuid: str) -> list[Listed]:
    """The snapshots of a topic that there are, newest last. None in a root that has no namespace."""
    if not storage.marker:
        return []
    folder = names.recovery_folder_of_topic(storage.marker, uuid)
    parsed = ((names.parse_log_snapshot_file(path), path) for path in storage.list(folder))
    return sorted(Listed(*found, path) for found, path in parsed if found is not None)


def mark(head: Head, policies: Policies) -> bytes:
    """Stands for the state of a topic's log: every change of the head has an id of its own. It is in the name of the
    snapshot, so that nobody has to read the file to know whether the topic has changed since."""
    record = exporting.dump([(PoliciesKey(head.uuid), policies)])
    return xxhash.xxh3_128_digest(head.last_change + b"".join(record.values()))


def write(storage: Storage, snapshot: LogSnapshot, clock: Clock) -> Listed:
    """Durable when it returns."""
    head, written_ms = snapshot.head, snapshot.written_ms
    folder = names.recovery_folder_of_topic(storage.marker, head.uuid)
    state = mark(head, snapshot.policies)
    path = names.log_snapshot_file(folder, head.next_commit, written_ms, head.last_commit, state)
    file = NodeFile({_WHAT: _A_LOG, _WRITTEN: str(written_ms)}, exporting.dump(snapshot.records()))
    write_file(storage, path, file, written_ms, clock)
    return Listed(head.next_commit, written_ms, head.last_commit, path)


def write_file(storage: Storage, path: str, file: NodeFile, written_ms: int, clock: Clock) -> None:
    """A snapshot of any kind. Its name says what is in it, so no file of that name may have only a part."""
    storage.make_folder(names.recovery_folder(storage.marker))
    folder = path.rpartition("/")[0]
    storage.replace(path, file.to_bytes(), names.unfinished_snapshot_file(folder, written_ms, clock.new_id()))


def read(storage: Storage, found: Listed) -> LogSnapshot:
    where = storage.where(found.path)
    file = NodeFile.from_bytes(storage.read_whole(found.path).to_pybytes(), where)
    return from_records(exporting.load(file.nodes, where), found.written_ms, where)


def from_records(records: dict[AnyKey, NodeRecord], written_ms: int, where: str) -> LogSnapshot:
    """The log of the one topic that these are of."""
    of: dict[type, list[NodeRecord]] = {}
    for record in records.values():
        of.setdefault(type(record), []).append(record)
    try:
        [topic], [head], [dedup], [policies], [gc] = (
            of[kind] for kind in (Topic, Head, DedupSnapshot, Policies, GcEpoch)
        )
    except (KeyError, ValueError):
        raise CorruptData(f"{where} does not have all nodes of a topic; use another copy") from None
    commits = sorted(cast("list[Commit]", of.get(Commit, [])), key=lambda commit: commit.number)
    schemas = sorted(cast("list[Schema]", of.get(Schema, [])), key=lambda schema: schema.id)
    return LogSnapshot(
        written_ms, cast(Topic, topic), cast(Head, head), tuple(commits), cast(DedupSnapshot, dedup),
        cast(Policies, policies), cast(GcEpoch, gc), tuple(schemas),
    )  # fmt: skip


# -- leaving one, and looking at those that there are ---------------------------------------------------------------


def check_not_behind(log: Log, view: View, there: list[Listed], *, note: bool = True) -> None:
    """Raises DataLoss if ZooKeeper was rolled back to before the newest snapshot that was listed before the view was
    read. (What differs before a repair was known to whoever repaired.) ``note``: after that was written into the head.
    """
    if not there or there[-1].next_commit <= view.head.repaired:
        return
    number, id = there[-1].next_commit - 1, there[-1].last_commit
    if note:
        log.check_has_commit(view, number, id)
    elif not log.has_commit(view, number, id):
        raise rollback.loss(log.topic.name, f"{log.storage.where(there[-1].path)} has a commit that is lost")


def renew(log: Log, there: list[Listed]) -> Listed:
    """Writes a snapshot, and deletes the oldest ones. ``there``: those that were listed a moment ago."""
    written = write(log.storage, take(log), log.clock)
    old = sorted({*there, written})[: -log.limits.kept_snapshots]
    log.storage.delete_many([each.path for each in old if each != written])
    return written


def leave(log: Log, there: list[Listed] | None = None) -> None:
    """Does the same, for whoever has done something else: a disk that fails here is no reason to tell them otherwise
    (I14)."""
    if not log.storage.marker:
        return  # a root without a namespace
    try:
        renew(log, listed(log.storage, log.topic.uuid) if there is None else there)
    except RolledBack:
        raise
    except LedgerError as error:
        logger.warning("topic=%s: no snapshot of its log was left in storage: %s", log.topic.name, error)
