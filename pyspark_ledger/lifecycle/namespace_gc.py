"""Garbage collection for a whole namespace: all topics, those that were deleted, and folders that nobody knows.

Made for thousands of topics, most of which have nothing to do: these are looked at by the hundred, and need no request
of their own. An error with one of them does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark_ledger.base import names
from pyspark_ledger.base.paging import by_halves, pages
from pyspark_ledger.errors import Conflict, InvalidInput, LedgerError, NotFound
from pyspark_ledger.lifecycle import condemned, gc
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.metadata.port import CondemnedKey, GcKey, HeadKey, TopicKey, TopicsKey
from pyspark_ledger.metadata.records import Topic

Progress = Callable[[str, int, int], None]  # what is done, how much of it, and of how much


@dataclass(frozen=True, slots=True)
class TopicRun:
    """What gc did for one topic."""

    topic: str
    deleted: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class NamespaceRun:
    """What was done for a namespace, or with ``dry_run`` would be.

    Attributes:
        topics: how many topics there are.
        collected: those of which gc deleted files, or that it could not do.
        finished: those that were deleted before, and of which something was left.
        unknown: folders in the root that have the name of a topic's, and that this namespace does not know.
    """

    topics: int
    collected: tuple[TopicRun, ...]
    finished: tuple[condemned.Finished, ...]
    unknown: tuple[str, ...]

    @property
    def files(self) -> int:
        """How many files were deleted."""
        return sum(run.deleted for run in self.collected) + sum(each.files for each in self.finished)

    @property
    def errors(self) -> int:
        return sum(bool(run.error) for run in self.collected) + sum(bool(each.error) for each in self.finished)


def collect(namespace: OpenNamespace, *, dry_run: bool = False, progress: Progress = lambda *_: None) -> NamespaceRun:
    """Runs gc for every topic, finishes what was deleted, and looks for folders that nobody knows."""
    namespace.check_storage()
    namespace.metadata.sync()
    keys = [key for key in namespace.metadata.children(TopicsKey()) if isinstance(key, TopicKey)]
    namespace.metadata.now_ms(exact=True)
    runs: list[TopicRun] = []
    done = 0
    for page in pages(keys, namespace.limits.topics_at_once):
        for found in by_halves(page, partial(_due, namespace), _unreadable):
            run = found if isinstance(found, TopicRun) else _collect_one(namespace, found, dry_run)
            if run.deleted or run.error:
                runs.append(run)
        done += len(page)
        progress("topics", done, len(keys))
    finished = condemned.finish(namespace, dry_run=dry_run, progress=progress)
    return NamespaceRun(len(keys), tuple(runs), tuple(finished), tuple(unknown_folders(namespace)))


def _due(namespace: OpenNamespace, keys: Sequence[TopicKey]) -> list[Topic | TopicRun]:
    """The topics for which gc would do anything."""
    metadata = namespace.metadata
    topics = [topic.record for topic in metadata.read_many(keys) if topic is not None]
    nodes = metadata.read_many([GcKey(topic.uuid) for topic in topics])
    return [
        topic
        for topic, node in zip(topics, nodes, strict=True)
        if node is None or gc.is_due(metadata, node, namespace.limits)  # without a node: gc says what that means
    ]


def _unreadable(key: TopicKey, error: LedgerError) -> list[Topic | TopicRun]:
    return [TopicRun(key.name, error=str(error))]


def _collect_one(namespace: OpenNamespace, topic: Topic, dry_run: bool) -> TopicRun:
    try:
        return TopicRun(topic.name, gc.collect(namespace.log_of(topic), dry_run=dry_run).deleted)
    except NotFound:  # deleted meanwhile
        return TopicRun(topic.name)
    except LedgerError as error:
        return TopicRun(topic.name, error=str(error))


# -- folders that nobody knows --------------------------------------------------------------------------------------


def unknown_folders(namespace: OpenNamespace) -> list[str]:
    """Folders that have the name of a topic's, and that this namespace does not know: of another namespace in the same
    root, of a topic that is being made at this moment, or of one that an earlier version deleted and left."""
    found = namespace.storage.folders("")  # before the nodes are read: what is made meanwhile is known then
    uuids = [uuid for name in found if (uuid := names.parse_topic_folder(name)) is not None]
    namespace.metadata.sync()
    return [uuid for page in pages(uuids, namespace.limits.topics_at_once) for uuid in _unknown(namespace, page)]


def _unknown(namespace: OpenNamespace, uuids: Sequence[str]) -> list[str]:
    def look(some: Sequence[str]) -> list[str]:
        heads = namespace.metadata.read_many([HeadKey(uuid) for uuid in some])
        marks = namespace.metadata.read_many([CondemnedKey(uuid) for uuid in some])
        known = zip(some, heads, marks, strict=True)
        return [uuid for uuid, head, mark in known if head is None and mark is None]

    return by_halves(uuids, look, lambda *_: [])  # a node that is damaged is there, and so the folder is known


@dataclass(frozen=True, slots=True)
class UnknownFolder:
    """A folder that nobody knows.

    Attributes:
        uuid: its name.
        where: the folder, with the storage root.
        files: how many files are in it.
        bytes: how long these are.
    """

    uuid: str
    where: str
    files: int
    bytes: int


def inspect_folder(namespace: OpenNamespace, uuid: str) -> UnknownFolder:
    """What is in a folder that may be removed.

    :raises InvalidInput: the name is not that of a topic's folder.
    :raises Conflict: the folder is of a topic of this namespace.
    :raises NotFound: there is no such folder, or nothing in it.
    """
    storage = namespace.storage
    _check_unknown(namespace, uuid)
    folder = names.topic_folder(uuid)
    if folder not in storage.folders(""):
        raise NotFound(f"there is no folder {storage.where(folder)}: see 'pyspark-ledger namespace gc'")
    sizes = [storage.size(path) for path in storage.list(folder)]
    return UnknownFolder(uuid, storage.where(folder), len(sizes), sum(sizes))


def remove_folder(namespace: OpenNamespace, uuid: str) -> None:
    """Deletes a folder that nobody knows, with what is in it. Errors as of :func:`inspect_folder`."""
    namespace.check_storage()
    _check_unknown(namespace, uuid)
    namespace.storage.delete_folder(names.topic_folder(uuid))


def _check_unknown(namespace: OpenNamespace, uuid: str) -> None:
    if names.parse_topic_folder(uuid) is None:
        raise InvalidInput(
            f"'{uuid}' is no topic's folder: give a UUID, as 'pyspark-ledger namespace gc' shows them",
            "LEDGER_INVALID_FOLDER",
        )
    namespace.metadata.sync()
    if not _unknown(namespace, [uuid]):
        raise Conflict(
            f"folder '{uuid}' is of a topic of this namespace, or of one that was deleted and that "
            "'pyspark-ledger namespace gc' looks after: leave it",
            "LEDGER_FOLDER_IN_USE",
        )
