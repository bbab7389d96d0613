"""Moves the files of a namespace to another storage root, while others use it.

Nearly all of the time goes into copying, and meanwhile everything runs. Then writing is refused (``moving``), what is
new is copied, all that ZooKeeper names is looked for among the copies, and the namespace gets its new root. The former
files stay until somebody deletes them with :func:`delete_old`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_ledger.base import names
from pyspark_ledger.base.uris import check_no_keys, shown
from pyspark_ledger.errors import Conflict, CorruptData, InvalidInput, NotFound
from pyspark_ledger.files.storage import Storage, normalise_uri, open_storage
from pyspark_ledger.lifecycle import belongings
from pyspark_ledger.lifecycle.copying import Copies
from pyspark_ledger.lifecycle.moving import Mover, moving_elsewhere
from pyspark_ledger.log import root
from pyspark_ledger.metadata.port import CondemnedKey, CondemnedsKey
from pyspark_ledger.metadata.records import Head, Namespace, Topic

logger = logging.getLogger(__name__)

_SHOWN_FILES = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be moved.

    Attributes:
        storage: the root that the namespace has.
        to: the root that it is to have.
        topics: how many topics there are.
        outboxes: outboxes with entities that have files.
        files: how many files are to be in the new root.
        bytes: and how long they are.
        there: how many of them are there already, by name and length.
        begun_by: who has begun to move it and not finished; empty: nobody.
        is_done: whether the namespace has that root already.
    """

    storage: str
    to: str
    topics: int = 0
    outboxes: int = 0
    files: int = 0
    bytes: int = 0
    there: int = 0
    begun_by: str = ""
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """What was done.

    Attributes:
        storage: the root that the namespace has now.
        former: the one before.
        topics: how many topics were moved.
        files: how many files are in the new root.
        copied: how many of them this run has copied; the others were there.
        copied_bytes: and how long those are.
        missing: files that ZooKeeper names, and that were in neither root: they were lost before. Of very many only
            the first 1,000.
        missing_files: how many that were.
    """

    storage: str
    former: str
    topics: int
    files: int
    copied: int
    copied_bytes: int
    missing: tuple[str, ...] = ()
    missing_files: int = 0


def plan(mover: Mover, to: str) -> Plan:
    """Looks at everything, and changes nothing.

    :raises NotFound: there is no namespace.
    :raises InvalidInput: the root cannot be the new one.
    :raises Conflict: somebody has begun to move it elsewhere.
    """
    check_no_keys(to)
    to, record = normalise_uri(to), mover.namespace()
    if record.moving is None and record.storage == to:
        return Plan(record.storage, to, is_done=True)
    _check_target(record, to)
    source, target = open_storage(record.storage), open_storage(to)
    topics = mover.topics()
    files = size = there = 0
    for folder in belongings.folders(mover.metadata, source, topics, names.marker_file(record.id)):
        copies = dict(target.sizes(folder))
        for path, length in source.sizes(folder):
            files, size, there = files + 1, size + length, there + (copies.get(path) == length)
        mover.progress("looking", files, 0)
    own = belongings.outboxes(mover.metadata, source)
    begun_by = record.moving.by if record.moving is not None else ""
    return Plan(record.storage, to, len(topics), len(own), files, size, there, begun_by)


def _check_target(record: Namespace, to: str) -> None:
    if record.moving is not None and record.moving.to != to:
        raise moving_elsewhere(record.moving)
    if f"{to}/".startswith(f"{record.storage.rstrip('/')}/"):
        raise InvalidInput(
            f"{to} is inside {shown(record.storage)}, where the files are now: give a place outside of it",
            "LEDGER_INVALID_STORAGE",
        )


def move(mover: Mover, to: str, *, trust_existing: bool = False, files: int = 0) -> Moved:
    """Moves the namespace. Can be interrupted and repeated at any point. ``trust_existing``: a file that is there
    already with the right length is not read; ``files`` is how many there are, for the progress that is shown."""
    check_no_keys(to)
    to = normalise_uri(to)
    with mover.alone():
        record = mover.namespace()
        if record.moving is None and record.storage == to:
            if record.moved_from:
                mover.unmark(record, record.moved_from)  # an earlier run has died before it did
            return Moved(to, record.moved_from, len(mover.topics()), 0, 0, 0)
        _check_target(record, to)
        if record.moving is not None:
            record = mover.go_back()  # who began it has died: writing goes on while the rest is copied
        source, target = open_storage(record.storage), open_storage(to)
        source_marked(record).check_marked()
        target.prove_usable(names.probe_file(mover.clock.new_id()))
        check_other_place(mover, target, source)
        copies = Copies(
            source, target, trust_existing=trust_existing, told=lambda done: mover.progress("copying", done, files)
        )
        work = _Work(mover, source, target, copies, names.marker_file(record.id))
        work.copy_all()  # while everybody works
        begun = mover.begin(record, to)
        with mover.or_back(begun):
            mover.fence(begun, source)
            work.copy_all()
            root.mark(target, begun, mover.clock, mover.address)
            done = mover.finish(begun)
        mover.unmark(done, source.uri)
    logger.info("moved the storage from %s to %s: files=%d", source.uri, target.uri, len(copies.done))
    return work.moved()


def source_marked(record: Namespace) -> Storage:
    """The root that the namespace has, with its marker."""
    return open_storage(record.storage, names.marker_file(record.id)) if record.marked else open_storage(record.storage)


def check_other_place(mover: Mover, target: Storage, source: Storage) -> None:
    if belongings.same_place(target, source, names.probe_file(mover.clock.new_id())):
        raise InvalidInput(
            f"{target.uri} is the same place as {source.uri}, where the files are now: there is nothing to move. To "
            "give the place its other name, use 'pyspark-ledger namespace set-storage'",
            "LEDGER_SAME_STORAGE",
        )


class _Work:
    """The copying of one run: all of it while everybody works, and what is new when nobody does."""

    def __init__(self, mover: Mover, source: Storage, target: Storage, copies: Copies, marker: str) -> None:
        self._mover, self._source, self._target, self._copies, self._marker = mover, source, target, copies, marker
        self._seen: dict[str, Head] = {}  # as of the last time that all which was named by then had been copied
        self._topics: list[Topic] = []
        self._missing: list[str] = []

    def copy_all(self) -> None:
        """First by folders, and then what ZooKeeper names: a file that another machine has written a moment ago may
        not be listed yet on a network disk, but is found by its name."""
        metadata, topics = self._mover.metadata, self._mover.topics()
        self._topics, self._missing = topics, []
        folders = belongings.folders(metadata, self._source, topics, self._marker)
        for top in dict.fromkeys(folder.partition("/")[0] for folder in folders):
            self._target.make_folder(top)
        for folder in folders:
            self._copies.folder(folder)
        for topic in topics:
            self._copy_named(topic)
        for outbox in belongings.outboxes(metadata, self._source):
            self._look_for(belongings.named_by_outbox(metadata, outbox))

    def _copy_named(self, topic: Topic) -> None:
        log, seen = self._mover.log(topic, self._source), self._seen.get(topic.uuid)
        try:
            view = log.refresh(sync=True)
            floor = (0, 0)
            if seen is not None and seen.going == view.head.going:  # no ledger was rewritten meanwhile
                floor = (seen.gc_epoch - 1, seen.ledger_first_commit)
            self._look_for(belongings.named_by_topic(log, view, *floor))
            self._seen[topic.uuid] = view.head
        except NotFound:
            pass  # deleted meanwhile
        except CorruptData as error:  # a file that leads to others: those were copied with their folder
            self._missing.append(error.message)

    def _look_for(self, paths: Iterable[str]) -> None:
        new = [path for path in dict.fromkeys(paths) if path not in self._copies.done]
        self._copies.files(new)
        self._missing += [path for path in new if path not in self._copies.done]

    def moved(self) -> Moved:
        copies = self._copies
        return Moved(
            self._target.uri,
            self._source.uri,
            len(self._topics),
            len(copies.done),
            copies.copied,
            copies.copied_bytes,
            tuple(self._missing[:_SHOWN_FILES]),
            len(self._missing),
        )


def abandon(mover: Mover) -> Namespace:
    """Gives up a move that was begun and not finished: the namespace keeps its root, and writing goes on. What was
    copied stays where it is.

    :raises InvalidInput: no move was begun.
    """
    with mover.alone():
        record = mover.namespace()
        if record.moving is None:
            raise InvalidInput(
                f"nobody is moving the storage of this namespace: it is in {shown(record.storage)}", "LEDGER_NOT_MOVING"
            )
        return mover.go_back()


# -- what is left in the former root --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is left of a namespace in the root that it had before.

    Attributes:
        storage: that root.
        folders: folders of the namespace's topics and outboxes.
        files: how many files are in them.
        bytes: and how long they are.
        kept: folders that stay, because they may be another namespace's.
    """

    storage: str
    folders: tuple[str, ...]
    files: int
    bytes: int
    kept: tuple[str, ...]


def leftovers(mover: Mover) -> Leftovers:
    """What :func:`delete_old` would delete.

    :raises InvalidInput: the namespace was not moved, or what it was moved to is the same place.
    :raises Conflict: it is being moved, or something that it needs is not in its new root.
    """
    record = mover.namespace()
    if record.moving is not None:
        raise moving_elsewhere(record.moving)
    if not record.moved_from:
        raise InvalidInput(
            f"the storage of this namespace was not moved: all its files are in {shown(record.storage)}",
            "LEDGER_NOT_MOVED",
        )
    former, now = open_storage(record.moved_from), source_marked(record)
    now.check_marked()
    check_other_place(mover, now, former)
    topics = mover.topics()
    _check_complete(mover, now, topics)
    own = {*(topic.uuid for topic in topics), *_condemned(mover)}
    found = set(former.folders(""))
    folders = sorted(names.topic_folder(uuid) for uuid in own if names.topic_folder(uuid) in found)
    folders += found & {names.recovery_folder(names.marker_file(record.id))}
    kept = sorted(name for name in found if names.parse_topic_folder(name) is not None and name not in own)
    outboxes = [f"{names.OUTBOXES_FOLDER}/{name}" for name in belongings.outboxes(mover.metadata, former)]
    if kept or any(map(names.is_marker_file, former.files(""))):
        kept += outboxes  # of two namespaces in one root nobody knows whose outbox that is
    else:
        folders += outboxes
    sizes = [size for folder in folders for _, size in former.sizes(folder)]
    return Leftovers(former.uri, tuple(folders), len(sizes), sum(sizes), tuple(kept))


def _condemned(mover: Mover) -> list[str]:
    """Topics of this namespace that were deleted: their files in the former root are nobody's."""
    found = mover.metadata.children(CondemnedsKey())
    uuids = [key.uuid for key in found if isinstance(key, CondemnedKey)]
    return [uuid for uuid in uuids if names.parse_topic_folder(uuid) is not None]


def _check_complete(mover: Mover, storage: Storage, topics: list[Topic]) -> None:
    for topic in topics:
        try:
            why = belongings.newest_missing(mover.log(topic, storage))
        except NotFound:
            continue  # deleted meanwhile
        if why:
            raise Conflict(
                f"topic '{topic.name}' is not complete in {shown(storage.uri)}: {why}. Nothing was deleted",
                "LEDGER_INCOMPLETE",
            )


def delete_old(mover: Mover) -> Leftovers:
    """Deletes the files of this namespace in the root that it had before."""
    with mover.alone():
        found = leftovers(mover)
        former = open_storage(found.storage)
        for number, folder in enumerate(found.folders, 1):
            former.delete_folder(folder)
            mover.progress("deleting", number, len(found.folders))
        former.remove_folder(names.OUTBOXES_FOLDER)
    logger.info("deleted the former storage %s: files=%d", found.storage, found.files)
    return found
