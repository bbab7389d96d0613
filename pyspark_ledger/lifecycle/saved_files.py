"""The snapshots of readers and of the namespace in storage: their names, writing one, and reading it.

Their names have the time and a hash of what is in them. So a process that has just started knows from a list of names
what has changed since, and reads none of the files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files.nodefile import NodeFile
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.lifecycle.saving import Records, Saved
from pyspark_ledger.log import snapshots
from pyspark_ledger.zk_metadata import exporting

WHAT, WRITTEN = "what", "written_ms"  # facts in the file


class SavedFile(NamedTuple):
    """A snapshot in storage, by its name; later ones are greater."""

    written_ms: int
    mark: bytes
    path: str


@dataclass
class SavedFiles:
    """All snapshots of a namespace, by their names, oldest first."""

    logs: dict[str, snapshots.Listed] = field(default_factory=dict)  # UUID -> the newest
    readers: dict[str, list[SavedFile]] = field(default_factory=lambda: defaultdict(list))
    namespace: list[SavedFile] = field(default_factory=list)
    unfinished: list[tuple[int, str]] = field(default_factory=list)  # when they were begun

    @classmethod
    def list(cls, storage: Storage) -> SavedFiles:
        found = cls()
        for path in storage.list(names.recovery_folder(storage.marker)):
            uuid = path.split("/")[1]
            if (log := names.parse_log_snapshot_file(path)) is not None:
                listed = snapshots.Listed(*log, path)
                found.logs[uuid] = max(listed, found.logs.get(uuid, listed))
            elif (readers := names.parse_readers_snapshot_file(path)) is not None:
                found.readers[uuid].append(SavedFile(*readers, path))
            elif (namespace := names.parse_namespace_snapshot_file(path)) is not None:
                found.namespace.append(SavedFile(*namespace, path))
            elif (begun_ms := names.parse_unfinished_snapshot_file(path)) is not None:
                found.unfinished.append((begun_ms, path))
        for some in (*found.readers.values(), found.namespace):
            some.sort()
        return found

    @property
    def newest_ms(self) -> int | None:
        """When the newest one of any kind was begun: a round writes those of what has changed."""
        ours = [some[-1].written_ms for some in (*self.readers.values(), self.namespace) if some]
        return max([*ours, *(each.written_ms for each in self.logs.values())], default=None)


def readers_of(storage: Storage, uuid: str) -> list[SavedFile]:
    """The snapshots of a topic's readers, newest last."""
    found = storage.list(names.recovery_folder_of_topic(storage.marker, uuid))
    parsed = ((names.parse_readers_snapshot_file(path), path) for path in found)
    return sorted(SavedFile(*each, path) for each, path in parsed if each is not None)


def of_namespace(storage: Storage) -> list[SavedFile]:
    """The snapshots of the namespace, newest last."""
    folder = names.recovery_folder(storage.marker)
    found = [f"{folder}/{name}" for name in storage.files(folder)]
    parsed = ((names.parse_namespace_snapshot_file(path), path) for path in found)
    return sorted(SavedFile(*each, path) for each, path in parsed if each is not None)


def read(storage: Storage, path: str) -> NodeFile:
    """A snapshot of any kind.

    :raises CorruptData: it is damaged: use the one before it.
    """
    data = storage.read_whole(path).to_pybytes()
    return NodeFile.from_bytes(data, storage.where(path))


class Found(NamedTuple):
    """What is in a snapshot."""

    file: SavedFile
    records: Records
    files: Mapping[str, bytes]


def newest_readable(storage: Storage, files: Sequence[SavedFile]) -> Found | None:
    """The newest one that is not damaged."""
    for file in reversed(files):
        try:
            found = read(storage, file.path)
            return Found(file, exporting.load(found.nodes, storage.where(file.path)), found.files)
        except CorruptData:
            continue
    return None


class Shelf:
    """Where a namespace's snapshots are put. Of each kind a few are kept."""

    def __init__(self, storage: Storage, clock: Clock, keep: int) -> None:
        self._storage, self._clock, self._keep = storage, clock, keep

    def put_readers(self, uuid: str, saved: Saved, read_ms: int, there: Sequence[SavedFile]) -> list[SavedFile]:
        """Writes a snapshot of a topic's readers, which were read at that time or later, and deletes the oldest ones.
        ``there``: the snapshots that there were. Returns those that there are now."""
        folder = names.recovery_folder_of_topic(self._storage.marker, uuid)
        written_ms = _after(there, read_ms)
        path = names.readers_snapshot_file(folder, written_ms, saved.mark)
        return self._put("the readers of a topic", SavedFile(written_ms, saved.mark, path), saved, there)

    def put_namespace(self, saved: Saved, read_ms: int, there: Sequence[SavedFile]) -> list[SavedFile]:
        """The same for the namespace."""
        folder = names.recovery_folder(self._storage.marker)
        written_ms = _after(there, read_ms)
        path = names.namespace_snapshot_file(folder, written_ms, saved.mark)
        return self._put("a namespace", SavedFile(written_ms, saved.mark, path), saved, there)

    def _put(self, what: str, file: SavedFile, saved: Saved, there: Sequence[SavedFile]) -> list[SavedFile]:
        content = NodeFile({WHAT: what, WRITTEN: str(file.written_ms)}, saved.nodes, saved.files)
        snapshots.write_file(self._storage, file.path, content, file.written_ms, self._clock)
        now = [*there, file]
        self._storage.delete_many([old.path for old in now[: -self._keep]])
        return now[-self._keep :]


def _after(there: Sequence[SavedFile], read_ms: int) -> int:
    """What is newer has the greater name, also if the clock of who wrote the last one was ahead."""
    return max([read_ms, *(file.written_ms + 1 for file in there)])
