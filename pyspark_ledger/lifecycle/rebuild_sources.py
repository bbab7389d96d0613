"""Where a namespace can be made again from: the recovery folder of its storage, or a backup file.

Each topic has snapshots of its log and of its readers (subscriptions, token groups), the namespace has one of the rest
(which topics there are, sinks, outboxes with their entities). The newest of each that can be used counts; if one is
damaged, the one before it does, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import SYSTEM_CLOCK
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.dedup.producers import Producers
from pyspark_ledger.errors import Conflict, CorruptData, InvalidInput, NotFound, Unavailable, disk_errors
from pyspark_ledger.files.nodefile import NodeFile
from pyspark_ledger.files.storage import Storage, open_storage
from pyspark_ledger.files.topicfiles import TopicFiles
from pyspark_ledger.lifecycle import saved_files
from pyspark_ledger.lifecycle.jump import Known
from pyspark_ledger.lifecycle.saved_files import WRITTEN, SavedFile, SavedFiles
from pyspark_ledger.lifecycle.saving import Records
from pyspark_ledger.log import snapshots
from pyspark_ledger.log.snapshots import LogSnapshot
from pyspark_ledger.metadata.port import (
    AnyKey,
    CommitKey,
    CondemnedKey,
    CursorKey,
    DedupKey,
    DeletedKey,
    EntityKey,
    GcKey,
    HeadKey,
    NamespaceKey,
    OutboxKey,
    PoliciesKey,
    SchemaKey,
    SinkKey,
    SinkTopicKey,
    TokenBlockKey,
    TokenChunkKey,
    TokenGroupKey,
    TopicKey,
)
from pyspark_ledger.metadata.records import Head, Namespace, Topic
from pyspark_ledger.zk_metadata import exporting

OF_LOG = (HeadKey, DedupKey, PoliciesKey, GcKey, SchemaKey, CommitKey)
OF_READERS = (CursorKey, TokenGroupKey, TokenChunkKey, TokenBlockKey)
OF_NAMESPACE = (NamespaceKey, TopicKey, DeletedKey, CondemnedKey, SinkKey, SinkTopicKey, OutboxKey, EntityKey)

_UNUSABLE = (CorruptData, InvalidInput, Unavailable)  # a folder that is missing is Unavailable


@dataclass(frozen=True, slots=True)
class Part:
    """Records that were saved together, and the contents of files that they name."""

    written_ms: int = 0  # 0: nothing was saved
    nodes: Records = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SavedTopic:
    """One topic.

    Attributes:
        log: its log.
        where: the file that this is from.
        is_newest: whether that is the newest one that was written.
        readers: its subscriptions and token groups.
        known: how far its history had come, as far as anything shows it.
        unusable: newer files that could not be used, and why.
    """

    log: LogSnapshot
    where: str
    is_newest: bool
    readers: Part
    known: Known
    unusable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A topic that is not made again."""

    topic: str
    uuid: str
    why: str
    is_loss: bool  # else it was deleted


@dataclass(frozen=True, slots=True)
class SavedNamespace:
    """A namespace. ``id`` is what it had."""

    id: bytes
    where: str
    record: Namespace | None
    rest: Part
    topics: tuple[SavedTopic, ...]
    left_out: tuple[LeftOut, ...]
    unusable: tuple[str, ...] = ()


def _first_that_works(storage: Storage, found: Sequence[SavedFile], unusable: list[str]) -> Part:
    """The newest of these files that can be read; nothing if there is none."""
    for file in reversed(found):
        try:
            content = saved_files.read(storage, file.path)
            return Part(file.written_ms, exporting.load(content.nodes, storage.where(file.path)), content.files)
        except _UNUSABLE as error:
            unusable.append(error.message)
    return Part()


# -- from storage ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """A namespace of which storage has something."""

    id: bytes
    rebuilt_as: bytes | None = None  # the one that was made from it, and goes on instead of it
    is_whole: bool = True  # else it was begun to make it from another one, and that was not finished


def candidates(storage: Storage) -> dict[bytes, Candidate]:
    ids = [id for name in storage.folders("") if (id := names.parse_recovery_folder(name)) is not None]
    rebuilt = {id: _marked(storage, id, names.parse_rebuilt_file) for id in ids}
    origins = {id: _marked(storage, id, names.parse_made_from_file) for id in ids}
    return {id: Candidate(id, rebuilt[id], rebuilt.get(origins[id] or b"", id) == id) for id in ids}


def _marked(storage: Storage, id: bytes, parse: Callable[[str], bytes | None]) -> bytes | None:
    marks = map(parse, storage.list(names.recovery_folder(names.marker_file(id))))
    return next((other for other in marks if other is not None), None)


@dataclass(frozen=True, slots=True)
class InStorage:
    """What storage has of one namespace."""

    uri: str
    id: bytes
    limits: Limits

    @classmethod
    def chosen(cls, uri: str, asked: str | None, limits: Limits) -> InStorage:
        """The one namespace in this root that can be rebuilt, or the one that is asked for."""
        found = candidates(open_storage(uri))
        if asked is not None:
            return cls(uri, _checked(asked, found).id, limits)
        left = [each.id for each in found.values() if each.is_whole and each.rebuilt_as is None]
        if not left:
            raise NotFound(
                f"there is nothing in {uri} from which a namespace can be rebuilt: is it the right storage root? It "
                "has a folder ledger-recovery-<namespace id> for each namespace",
                "LEDGER_NOTHING_SAVED",
            )
        if len(left) > 1:
            raise InvalidInput(
                f"there are several namespaces in {uri}: choose one with --namespace: {_hexes(left)}",
                "LEDGER_SEVERAL_NAMESPACES",
            )
        return cls(uri, left[0], limits)

    def read(self) -> SavedNamespace:
        storage = open_storage(self.uri, names.marker_file(self.id))
        folder = names.recovery_folder(storage.marker)
        there, unusable = SavedFiles.list(storage), list[str]()
        rest = _first_that_works(storage, there.namespace, unusable)
        topics: list[SavedTopic] = []
        left_out: list[LeftOut] = []
        for uuid in sorted({*there.logs, *there.readers}):
            found = self._topic(storage, uuid, there.readers.get(uuid, []))
            if isinstance(found, SavedTopic):
                topics.append(found)
            else:
                left_out.append(found)
        known = {topic.log.head.uuid for topic in topics} | {each.uuid for each in left_out}
        left_out += [
            LeftOut(topic.name, topic.uuid, "no snapshot of its log is in storage", is_loss=True)
            for topic in rest.nodes.values()
            if isinstance(topic, Topic) and topic.uuid not in known
        ]
        return _named(self.id, storage.where(folder), rest, topics, left_out, tuple(unusable), self.limits)

    def _topic(self, storage: Storage, uuid: str, readers: Sequence[SavedFile]) -> SavedTopic | LeftOut:
        unusable: list[str] = []
        known = Known()
        chosen: tuple[LogSnapshot, str, bool] | None = None
        listed = snapshots.listed(storage, uuid)
        for found in reversed(listed):
            known |= Known(next_commit=found.next_commit)
            try:
                log = snapshots.read(storage, found)
                known |= Known.by(log.head)
                if chosen is None:
                    check_usable(TopicFiles(storage, uuid, SYSTEM_CLOCK), log, self.limits)
                    chosen = log, storage.where(found.path), found == listed[-1]
            except _UNUSABLE as error:
                unusable.append(error.message)
        if chosen is None:
            return LeftOut("", uuid, "; ".join(unusable) or "no snapshot of its log is in storage", is_loss=True)
        if not chosen[2]:  # what readers have done must not be newer than the log
            readers = [each for each in readers if each.written_ms <= chosen[0].written_ms] or readers
        part = _first_that_works(storage, readers, unusable)
        return SavedTopic(*chosen, part, known, tuple(unusable))


def check_usable(files: TopicFiles, log: LogSnapshot, limits: Limits) -> None:
    """Raises CorruptData if a log cannot go on from a snapshot: the right edge of its index, or what is needed to know
    its producers, is missing or damaged."""
    for ref in log.head.index:
        files.fetch(ref)
    producers = Producers.load(log.dedup, files, limits)
    for commit in log.commits:
        producers.apply(commit, files)
        if commit.entries_file is not None:
            files.fetch_entries(commit.entries_file)


# -- from a backup file ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InFile:
    """What a backup file has."""

    path: Path
    uri: str
    limits: Limits

    def read(self) -> SavedNamespace:
        where = str(self.path)
        with disk_errors("read", self.path):
            file = NodeFile.from_bytes(self.path.read_bytes(), where)
        nodes = exporting.load(file.nodes, where)
        record = nodes.get(NamespaceKey())
        if not isinstance(record, Namespace) or not record.id:
            raise InvalidInput(f"{where} is no backup of a namespace: it does not have its record", "LEDGER_NO_BACKUP")
        part = Part(int(file.facts.get(WRITTEN, "0")), nodes, file.files)
        storage = open_storage(self.uri, names.marker_file(record.id))
        topics: list[SavedTopic] = []
        left_out: list[LeftOut] = []
        for topic in [each for each in nodes.values() if isinstance(each, Topic)]:
            try:
                topics.append(_topic_of(part, topic, storage, where, self.limits))
            except _UNUSABLE as error:
                left_out.append(LeftOut(topic.name, topic.uuid, error.message, is_loss=True))
        rest = Part(part.written_ms, _only(nodes, OF_NAMESPACE), part.files)
        return _named(record.id, where, rest, topics, left_out, (), self.limits)


def _topic_of(part: Part, topic: Topic, storage: Storage, where: str, limits: Limits) -> SavedTopic:
    """One topic in a file that has all of them."""
    own = {key: record for key, record in part.nodes.items() if getattr(key, "uuid", None) == topic.uuid}
    head = own.get(HeadKey(topic.uuid))
    if not isinstance(head, Head):
        raise CorruptData(f"{where} does not have the head of topic '{topic.name}'")
    of_log: Records = {key: record for key, record in _only(own, OF_LOG).items() if _is_open(key, head)}
    log = snapshots.from_records({**of_log, TopicKey(topic.name): topic}, part.written_ms, where)
    check_usable(TopicFiles(storage, topic.uuid, SYSTEM_CLOCK), log, limits)
    readers = Part(part.written_ms, _only(own, OF_READERS), part.files)
    newer = [found.next_commit for found in snapshots.listed(storage, topic.uuid)]
    known = Known.by(head) | Known(next_commit=max(newer, default=0))
    said = (
        (f"storage has a later state of this topic than {where}: 'pyspark-ledger namespace rebuild' takes that",)
        if known.next_commit > head.next_commit
        else ()
    )
    return SavedTopic(log, where, True, readers, known, said)


def _is_open(key: AnyKey, head: Head) -> bool:
    """Of commits only those of the open ledger: others are in the index, and were about to be deleted."""
    return not isinstance(key, CommitKey) or (key.ledger == head.ledger and key.number < head.next_commit)


def _only(nodes: Records, kinds: tuple[type, ...]) -> Records:
    return {key: record for key, record in nodes.items() if isinstance(key, kinds)}


# -- which topics ---------------------------------------------------------------------------------------------------


def _named(
    id: bytes,
    where: str,
    rest: Part,
    topics: list[SavedTopic],
    left_out: list[LeftOut],
    unusable: tuple[str, ...],
    limits: Limits,
) -> SavedNamespace:
    """Without topics that were deleted, and with one topic for each name."""
    condemned = {key.uuid for key in rest.nodes if isinstance(key, CondemnedKey)}
    by_uuid = {topic.uuid: topic.name for topic in rest.nodes.values() if isinstance(topic, Topic)}
    chosen: dict[str, SavedTopic] = {}
    gone = [
        LeftOut(each.topic or by_uuid.get(each.uuid, ""), each.uuid, each.why, each.is_loss)
        for each in left_out
        if each.uuid not in condemned and (each.is_loss or each.uuid in by_uuid)
    ]
    for topic in sorted(topics, key=lambda topic: (topic.log.topic.created_ms, topic.log.head.uuid in by_uuid)):
        record = topic.log.topic
        if why := _why_deleted(record, rest, condemned, limits):
            gone.append(LeftOut(record.name, record.uuid, why, is_loss=False))
            continue
        before = chosen.get(record.name)
        if before is not None:
            other = before.log.topic
            gone.append(LeftOut(other.name, other.uuid, "a later topic has its name", is_loss=False))
        chosen[record.name] = topic
    own = rest.nodes.get(NamespaceKey())
    in_order = tuple(chosen[name] for name in sorted(chosen))
    return SavedNamespace(id, where, own if isinstance(own, Namespace) else None, rest, in_order, tuple(gone), unusable)


def _why_deleted(topic: Topic, rest: Part, condemned: set[str], limits: Limits) -> str:
    """Why a topic of which there is a snapshot is not one of the namespace; empty: it is. One that was made at about
    the time when the namespace was saved, by some clock, may be missing there: it is taken."""
    if topic.uuid in condemned:
        return "it was deleted"
    listed = rest.nodes.get(TopicKey(topic.name))
    if isinstance(listed, Topic) and listed.uuid == topic.uuid:
        return ""
    if rest.written_ms and topic.created_ms + 2 * limits.clock_slack_ms < rest.written_ms:
        return "it was deleted: the namespace was saved after it was made, and does not have it"
    return ""


def _checked(asked: str, found: Mapping[bytes, Candidate]) -> Candidate:
    wanted = asked.lower().removeprefix("ledger-namespace-").removeprefix("ledger-recovery-")
    candidate = next((each for id, each in found.items() if id.hex() == wanted), None)
    if candidate is None:
        raise NotFound(
            f"nothing is saved of a namespace '{asked}'; there are: {_hexes(found) or 'none'}", "LEDGER_NOTHING_SAVED"
        )
    if not candidate.is_whole:
        raise Conflict(
            f"namespace {wanted} was begun to be rebuilt from another one, and that was not finished: rebuild the "
            "other one",
            "LEDGER_REBUILD_UNFINISHED",
        )
    if candidate.rebuilt_as is not None:
        raise Conflict(
            f"namespace {wanted} was rebuilt as {candidate.rebuilt_as.hex()}, which goes on instead of it: "
            f"rebuild that one. (If its state is to be used all the same, delete the file 'rebuilt-as-…' in the folder "
            f"{names.recovery_folder(wanted)} first)",
            "LEDGER_REBUILT_BEFORE",
        )
    return candidate


def _hexes(ids: Iterable[bytes]) -> str:
    return ", ".join(id.hex() for id in ids)
