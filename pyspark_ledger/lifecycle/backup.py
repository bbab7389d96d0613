"""The continuous backup: what ZooKeeper knows is written to storage every minute, as far as it has changed.

A namespace whose ZooKeeper is lost can then be made again from storage alone, without what came after the last round.
A round reads in the order that ``saving`` explains: subscriptions and token groups, entities, and the logs last. It
writes in the reverse order. So wherever it ends, what storage has of the logs is never older than what it has of the
rest.

ZooKeeper itself may have been rolled back. Then what storage has is newer, and must not be replaced by what is older
(I18): each log is compared with its newest snapshot first, and the namespace with its own. As long as one of them is
behind, nothing is written but the logs that are not: a person decides how to go on. A rollback so short that it took
only acknowledgements, or tokens and entities together, shows nowhere: then the backup follows ZooKeeper, and has the
same as everybody who goes on with it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark_ledger.base import names
from pyspark_ledger.base.paging import pages
from pyspark_ledger.errors import Conflict, CorruptData, DataLoss, InvalidInput, LedgerError, NotFound
from pyspark_ledger.lifecycle import saved_files
from pyspark_ledger.lifecycle.looking import Look, Seen
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.lifecycle.saved_files import SavedFile, SavedFiles, Shelf
from pyspark_ledger.lifecycle.saving import Records, Saved, Saving, path_of_file
from pyspark_ledger.log import snapshots
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import AnyKey, CondemnedKey, DeletedKey, EntityKey, TopicKey
from pyspark_ledger.metadata.records import Topic
from pyspark_ledger.metadata.wallclock import believable_ms
from pyspark_ledger.zk_metadata import exporting, paths

NAMESPACE = "namespace"  # in place of a topic's name


@dataclass
class Round:
    """What a round of backup did.

    Attributes:
        logs: how many snapshots of topics' logs were written,
        readers: of their subscriptions and token groups,
        namespaces: and of the namespace.
        failed: why something was not backed up, by the name of the topic or the path of the node.
    """

    logs: int = 0
    readers: int = 0
    namespaces: int = 0
    failed: dict[str, LedgerError] = field(default_factory=dict)


class Backup:
    """Rounds of backup by one process, which remembers what is in storage."""

    def __init__(self, namespace: OpenNamespace) -> None:
        self._namespace, self._metadata, self._limits = namespace, namespace.metadata, namespace.limits
        self._look = Look(namespace)
        self._there: SavedFiles | None = None  # None: not known
        self._before: _Before | None = None
        self._listed_at, self._listed_over = 0.0, 0

    @property
    def last_ms(self) -> int:
        """When the last round that storage knows of began; 0 if there is none."""
        known = self._there.namespace if self._there is not None else []
        return known[-1].written_ms if known else 0

    def look(self) -> None:
        """Lists what is in storage, if that is not known, or others may have changed it."""
        self._namespace.storage.check_marked()
        now, connection = self._namespace.clock.monotonic(), self._metadata.connections
        is_recent = now - self._listed_at < self._limits.backup_idle_s
        if self._there is None or connection != self._listed_over or not is_recent:
            there = SavedFiles.list(self._namespace.storage)
            self._before = _Before.read(self._namespace, there.namespace)
            self._delete_unfinished(there)
            self._there, self._listed_at, self._listed_over = there, now, connection

    def _delete_unfinished(self, there: SavedFiles) -> None:
        """What a process that died has left: nobody takes so long to write a small file."""
        oldest_ms = self._now_ms() - int(1000 * self._limits.backup_idle_s)
        self._namespace.storage.delete_many([path for begun_ms, path in there.unfinished if begun_ms < oldest_ms])

    def _now_ms(self) -> int:
        return believable_ms(self._metadata, self._namespace.clock, self._limits)

    def run(self, pace: Pace) -> Round:
        """One round. What is damaged is left out, and said. A storage that fails ends it."""
        self.look()
        assert self._there is not None
        there, self._there = self._there, None  # if it ends early, nobody knows how far it came
        one = _OneRound(self._namespace, self._look, there, self._before, self._now_ms(), pace)
        one.run()
        self._there, self._before = there, one.before
        return one.done


class _OneRound:
    def __init__(
        self,
        namespace: OpenNamespace,
        look: Look,
        there: SavedFiles,
        before: _Before | None,
        began_ms: int,
        pace: Pace,
    ) -> None:
        self._namespace, self._look, self._there, self.before = namespace, look, there, before
        self._storage, self._limits, self._began_ms, self._pace = namespace.storage, namespace.limits, began_ms, pace
        self._shelf = Shelf(namespace.storage, namespace.clock, namespace.limits.kept_snapshots)
        self._saving = Saving(namespace)
        self._written: set[str] = set()  # UUIDs of topics
        self.done = Round(failed=self._saving.failed)

    def run(self) -> None:
        topics = self._saving.topics()
        waiting: dict[str, Saved] = {}  # readers, by the topic's UUID
        for page in pages(topics, self._limits.topics_at_once):
            self._pace.step()
            waiting |= self._changed_readers(page)
            if sum(saved.bytes for saved in waiting.values()) > self._limits.backup_bytes:
                self._finish(topics, waiting)
                waiting = {}
        self._finish(topics, waiting)
        self._delete_of_deleted_topics()

    def _finish(self, topics: Sequence[Topic], readers: Mapping[str, Saved]) -> None:
        """What comes after the readers of some topics were read: the rest is read, and all of it written."""
        namespace = self._changed_namespace(topics)
        if self._write_logs() and namespace is not None:
            if namespace.nodes:
                self._there.namespace = self._shelf.put_namespace(namespace, self._began_ms, self._there.namespace)
                self.before = _Before.of(self._there.namespace[-1], exporting.load(namespace.nodes, NAMESPACE))
                self.done.namespaces += 1
            for uuid, saved in readers.items():
                self._pace.step()
                there = self._there.readers.get(uuid, [])
                self._there.readers[uuid] = self._shelf.put_readers(uuid, saved, self._began_ms, there)
                self._written.add(uuid)
                self.done.readers += 1

    # -- readers -----------------------------------------------------------------------------------------------

    def _changed_readers(self, some: Sequence[Topic]) -> dict[str, Saved]:
        found, changed = self._saving.readers(some), {}
        for topic in some:
            records = found.get(topic.uuid)
            if records is not None and self._is_new(topic.uuid, records):
                saved = self._saving.readers_with_files(topic, records)
                if saved is not None:
                    changed[topic.uuid] = saved
        return changed

    def _is_new(self, uuid: str, records: Records) -> bool:
        there = self._there.readers.get(uuid)
        if not there:
            return bool(records)
        return there[-1].mark != Saved(exporting.dump(records.items())).mark

    # -- the namespace -------------------------------------------------------------------------------------------

    def _changed_namespace(self, topics: Sequence[Topic]) -> Saved | None:
        """Without nodes if there is nothing to write. None if it was rolled back, which is noted."""
        records, unreadable = self._saving.namespace(topics), self._saving.unreadable
        before, recent_ms = self.before, self._began_ms - 2 * self._limits.gc_grace_ms
        if before is not None and (lost := before.lost(records, unreadable, recent_ms)):
            self.done.failed[NAMESPACE] = _set_back(lost, self._storage.where(before.path))
            return None
        kept = self._kept(unreadable)
        mark, newest = Saved({**kept.nodes, **exporting.dump(records.items())}).mark, self._there.namespace[-1:]
        age_ms = self._began_ms - newest[0].written_ms if newest else 0
        if newest and newest[0].mark == mark and 0 <= age_ms < 1000 * self._limits.backup_idle_s:
            return Saved({})
        saved = self._saving.with_files(records)
        kept = self._kept(unreadable)  # files may be damaged too
        return Saved({**kept.nodes, **saved.nodes}, {**kept.files, **saved.files})

    def _kept(self, unreadable: Container[AnyKey]) -> Saved:
        """Of what cannot be read, the last copy stays in the backup."""
        found = saved_files.newest_readable(self._storage, self._there.namespace) if unreadable else None
        if found is None:
            return Saved({})
        kept = {key: record for key, record in found.records.items() if key in unreadable}
        named = {path_of_file(key, record) for key, record in kept.items()}
        return Saved(exporting.dump(kept.items()), {path: d for path, d in found.files.items() if path in named})

    # -- logs ----------------------------------------------------------------------------------------------------

    def _write_logs(self) -> bool:
        """False if what storage has of a log may be older than what was read before."""
        whole = True
        for seen in self._look.all():
            newest = self._there.logs.get(seen.uuid)
            if newest is None or newest.mark != snapshots.mark(seen.head.record, seen.policies.record):
                self._pace.step()
                whole &= self._write_log(seen)
        self.done.failed.update(self._look.unreadable)
        return whole

    def _write_log(self, seen: Seen) -> bool:
        log = self._look.log(seen)
        try:
            there = snapshots.listed(self._storage, seen.uuid)
            view = log.refresh(sync=True)
            log.check_not_set_back(view.head)
            snapshots.check_not_behind(log, view, there)
            self._there.logs[seen.uuid] = snapshots.renew(log, there)
        except NotFound:  # deleted meanwhile
            return True
        except (CorruptData, InvalidInput) as error:  # may last for long: the others do not wait for it
            self.done.failed[seen.topic.name] = error
            return True
        except (DataLoss, Conflict) as error:
            self.done.failed[seen.topic.name] = error
            return False
        self._written.add(seen.uuid)
        self.done.logs += 1
        return True

    def _delete_of_deleted_topics(self) -> None:
        """Who deletes a topic deletes its snapshots: what was written after that goes here."""
        for page in pages(sorted(self._written), self._limits.topics_at_once):
            marks = self._namespace.metadata.read_many([CondemnedKey(uuid) for uuid in page])
            for uuid, mark in zip(page, marks, strict=True):
                if mark is not None:
                    self._storage.delete_folder(names.recovery_folder_of_topic(self._storage.marker, uuid))


# -- whether the namespace was rolled back ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Before:
    """What the newest snapshot of the namespace had, and what does not go without leaving a mark."""

    written_ms: int
    path: str
    topics: Mapping[str, str]  # name -> UUID
    entities: frozenset[EntityKey]

    @classmethod
    def of(cls, file: SavedFile, records: Records) -> _Before:
        topics = {record.name: record.uuid for record in records.values() if isinstance(record, Topic)}
        return cls(file.written_ms, file.path, topics, frozenset(key for key in records if isinstance(key, EntityKey)))

    @classmethod
    def read(cls, namespace: OpenNamespace, files: Sequence[SavedFile]) -> _Before | None:
        found = saved_files.newest_readable(namespace.storage, files)
        return cls.of(found.file, found.records) if found is not None else None

    def lost(self, now: Records, unreadable: Container[AnyKey], recent_ms: int) -> str:
        """What is gone, and nobody has deleted it; empty: nothing. An entity is never deleted. A topic that is deleted
        leaves a mark on its name, until there is another one of that name; and for two graces one for its UUID."""
        for key in self.entities:
            if key not in now and key not in unreadable:
                return f"{paths.path(key)} is not there any more"
        for name, uuid in self.topics.items():
            topic = now.get(TopicKey(name))
            if TopicKey(name) in unreadable or CondemnedKey(uuid) in now or DeletedKey(name) in now:
                continue
            if not isinstance(topic, Topic) or (topic.uuid != uuid and self.written_ms > recent_ms):
                return f"topic '{name}' with the UUID {uuid} is not there any more, and nobody has deleted it"
        return ""


def _set_back(what: str, file: str) -> DataLoss:
    return DataLoss(
        f"{what}: ZooKeeper was rolled back to an older state, and {file} has a newer one. It is not replaced, and "
        "nothing but the logs of topics is backed up, until somebody decides how to go on: restore the newer state of "
        "ZooKeeper; or, to accept the loss, move away all files beside that one whose names begin with 'namespace-'",
        "LEDGER_SET_BACK",
    )
