"""A disk in memory, for tests. It answers as a local folder does, and can fail in the ways that disks fail: full,
broken, without power, rotten; on demand, or at random from a seed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import pyarrow as pa

from pyspark_ledger.errors import disk_errors
from pyspark_ledger.files import storage as storages
from pyspark_ledger.files.storage import Sink, Storage
from pyspark_ledger.testing.memory import Crash

StorageFault = Literal["full", "fails"]

READING = frozenset({"size", "read", "map"})
FILLING = frozenset({"make_folder", "create", "write", "close"})  # what a full disk refuses


class StorageFaults:
    """Which calls fail, and how: by rates from a seed, or one by one.

    - ``full``: no space left, in what needs space; of a write a part stays behind.
    - ``fails``: the disk answers with an error: of a write a part stays behind, what was synced may be durable or not.

    ``full``, ``fails`` and ``read_fails`` are rates: the last one of errors in what only reads.
    """

    def __init__(
        self, seed: int | random.Random = 0, full: float = 0.0, fails: float = 0.0, read_fails: float = 0.0
    ) -> None:
        self.random = seed if isinstance(seed, random.Random) else random.Random(seed)
        self.full, self.fails, self.read_fails = full, fails, read_fails
        self.full_until_freed = False  # as long as this is set, whatever needs space is refused
        self.calls = 0  # how many could have failed: what ``next`` counts
        self._next: deque[StorageFault | None] = deque()

    def next(self, *faults: StorageFault | None) -> None:
        """What happens to the next calls, one each; None lets one through, as does ``full`` if it needs no space."""
        self._next.extend(faults)

    def of_call(self, call: str) -> StorageFault | None:
        """For the storage: what happens to this one."""
        self.calls += 1
        fault = self._next.popleft() if self._next else self._draw(call)
        if call in FILLING and (fault == "full" or self.full_until_freed):
            return "full"
        return "fails" if fault == "fails" else None

    def _draw(self, call: str) -> StorageFault | None:
        if call in READING:
            return "fails" if self.read_fails and self.random.random() < self.read_fails else None
        if not (self.full or self.fails):
            return None
        at = self.random.random()
        return "full" if at < self.full else "fails" if at < self.full + self.fails else None


@dataclass(eq=False, slots=True)
class _File:
    data: bytes | bytearray
    synced: bool = False


class Disk:
    """What all processes share: the files as they see them, and as they would be found after a power cut.

    The two differ in what was made, replaced or deleted in a folder since that was last synced; and in the content of
    files that were never synced."""

    def __init__(self) -> None:
        self.boots = 0
        self._files: dict[str, _File] = {}
        self._durable: dict[str, _File] = {}
        self._folders: set[str] = set()
        self._durable_folders: set[str] = set()
        self._unsettled: dict[str, set[str]] = defaultdict(set)  # by folder: paths in it that may differ

    # -- what happens to it -------------------------------------------------------------------------------------

    def power_loss(self, random: random.Random) -> None:
        """Whatever was not durable is lost, cut short or torn, each drawn. Processes die with it: to their storages
        every call is a Crash, and new ones are opened."""
        self.boots += 1
        for folder in sorted(self._folders ^ self._durable_folders):  # those above come first
            survives = random.random() < 0.5 and (not folder or _above(folder) in self._folders)
            (self._folders.add if survives else self._folders.discard)(folder)
        found: dict[str, _File] = {}
        for path in sorted(self._files.keys() | self._durable.keys()):
            seen, kept = self._files.get(path), self._durable.get(path)
            file = seen if seen is kept else random.choice((seen, kept))
            if file is not None and self._reachable(_above(path)):
                found[path] = file if file.synced else _File(_torn(bytes(file.data), random), synced=True)
        self._folders = {folder for folder in self._folders if self._reachable(folder)}
        self._files, self._durable, self._durable_folders = found, dict(found), set(self._folders)
        self._unsettled.clear()

    def sync(self) -> None:
        """All that is seen is durable from now on."""
        for file in self._files.values():
            file.synced = True
        self._durable, self._durable_folders = dict(self._files), set(self._folders)
        self._unsettled.clear()

    def flip(self, path: str, random: random.Random) -> None:
        """One bit of the file is another one: bit rot."""
        data = bytearray(self._files[path].data)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        self.put(path, bytes(data))

    def tear(self, path: str, length: int) -> None:
        """Only the first ``length`` bytes are left."""
        self.put(path, bytes(self._files[path].data[:length]))

    def put(self, path: str, data: bytes | None) -> None:
        """Another content, or none at all: what somebody did to the file, durably."""
        if data is None:
            self._files.pop(path, None)
            self._durable.pop(path, None)
        else:
            self._files[path] = self._durable[path] = _File(data, synced=True)

    # -- what is on it -------------------------------------------------------------------------------------------

    def files(self) -> list[str]:
        """Every file that is there, durable or not, in order."""
        return sorted(self._files)

    def folders(self) -> list[str]:
        return sorted(self._folders)

    def content(self, path: str) -> bytes:
        return bytes(self._files[path].data)

    def is_durable(self, path: str) -> bool:
        """Whether the file, as it is seen, would survive a power cut."""
        file = self._files.get(path)
        return file is not None and file.synced and self._durable.get(path) is file

    def _reachable(self, folder: str) -> bool:
        while folder:
            if folder not in self._folders:
                return False
            folder = _above(folder)
        return folder in self._folders

    # What follows is for the storages.

    def find(self, path: str) -> _File | None:
        return self._files.get(path)

    def set(self, path: str, file: _File | None) -> None:
        """Seen by all from now on; durable when the folder is synced."""
        if file is None:
            self._files.pop(path, None)
        else:
            self._files[path] = file
        self._unsettled[_above(path)].add(path)

    def has_folder(self, folder: str) -> bool:
        return folder in self._folders

    def set_folder(self, folder: str, *, there: bool) -> None:
        (self._folders.add if there else self._folders.discard)(folder)

    def is_empty(self, folder: str) -> bool:
        inside = f"{folder}/" if folder else ""
        below = (name for name in (*self._files, *self._folders) if name)
        return not any(name.startswith(inside) for name in below)

    def sync_entry(self, folder: str) -> None:
        """What the folder above says of this one is durable: that it is there, or is not."""
        (self._durable_folders.add if folder in self._folders else self._durable_folders.discard)(folder)

    def sync_folder(self, folder: str) -> None:
        """What is in the folder, by name, is durable; the content of files is another thing."""
        for path in self._unsettled.pop(folder, ()):
            file = self._files.get(path)
            if file is None:
                self._durable.pop(path, None)
            else:
                self._durable[path] = file


class MemoryStorage(Storage):
    """What one process sees of a :class:`Disk`. ``on_call`` is told the name of every operation before it happens: a
    test lets others act there, or raises Crash, after which this process does nothing more."""

    def __init__(
        self, disk: Disk, faults: StorageFaults | None = None, *, marker: str = "", uri: str = "memory://disk"
    ) -> None:
        super().__init__(uri, marker)
        self.on_call: Callable[[str], None] | None = None
        self._disk, self._faults = disk, faults
        self._boot, self._crashed = disk.boots, False
        self._synced: set[str] = set()  # folders that this process has synced, as LocalStorage knows them

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Meanwhile ``open_storage`` gives this storage for its uri, also to the tasks of a job, which do not look for
        the marker."""
        keys = {(os.getpid(), self.uri, marker, self.moves, None) for marker in (self.marker, "")}
        before = {key: storages._opened[key] for key in keys if key in storages._opened}
        for key in keys:
            storages._opened[key] = self
        try:
            yield
        finally:
            for key in keys:
                del storages._opened[key]
            for key, opened in before.items():
                storages._opened[key] = opened

    def _begin(self, call: str) -> StorageFault | None:
        """Before every operation. Returns how it is to fail."""
        self._check_alive()
        if self.on_call is not None:
            try:
                self.on_call(call)
            except Crash:
                self._crashed = True  # a dead process does nothing more, not even in its finally clauses
                raise
            self._check_alive()
        return None if self._faults is None else self._faults.of_call(call)

    def _check_alive(self) -> None:
        if self._crashed or self._boot != self._disk.boots:
            raise Crash("this process is dead")

    def _random(self) -> random.Random:
        assert self._faults is not None  # who else would have said that it fails?
        return self._faults.random

    # -- folders -------------------------------------------------------------------------------------------------

    def make_folder(self, name: str) -> None:
        if name:
            self.check_marked()
            if not self._disk.has_folder(""):
                raise self.not_there("")
        with disk_errors("make the folder", self.where(name)):
            fault = self._begin("make_folder")
            self._ensure_folder(name, fault)
            _fail_if(fault)

    def _ensure_folder(self, folder: str, fault: StorageFault | None) -> None:
        """Makes it and those above it, and syncs each once in a process, whoever made it."""
        if folder in self._synced and self._disk.has_folder(folder):
            return
        if fault is not None and self._random().random() < 0.5:
            _fail(fault)
        if folder:
            self._ensure_folder(_above(folder), None)
        self._disk.set_folder(folder, there=True)
        if fault is not None:  # it is made, and not durable
            _fail(fault)
        self._disk.sync_entry(folder)
        self._synced.add(folder)

    def has_folder(self, name: str) -> bool:
        with disk_errors("look for", self.where(name)):
            _fail_if(self._begin("has_folder"))
            return self._disk.has_folder(name)

    def is_bare(self) -> bool:
        with disk_errors("look into", self.where("")):
            _fail_if(self._begin("is_bare"))
            return self._disk.is_empty("")

    def remove_folder(self, name: str) -> None:
        self._synced.clear()
        if self._begin("remove_folder") is None and self._disk.is_empty(name):
            self._disk.set_folder(name, there=False)

    def folders(self, folder: str) -> Sequence[str]:
        with disk_errors("list", self.where(folder)):
            _fail_if(self._begin("list"))
        inside = f"{folder}/" if folder else ""
        below = (name[len(inside) :] for name in self._disk.folders() if name.startswith(inside))
        return sorted(name for name in below if name and "/" not in name)

    def delete_folder(self, folder: str) -> None:
        """Step by step, as ``rm -r`` does, so that a process can die between any two of them."""
        self.delete_many(tuple(self.list(folder)))
        for name in reversed(self._disk.folders()):  # those that are inside others first
            if name == folder or name.startswith(f"{folder}/"):
                self.remove_folder(name)

    def _is_marked(self) -> bool:
        with disk_errors("look for", self.where(self.marker)):
            _fail_if(self._begin("is_marked"))
            return self._disk.find(self.marker) is not None

    # -- files ---------------------------------------------------------------------------------------------------

    def create(self, path: str) -> Sink:
        with disk_errors("create", self.where(path)):
            fault = self._begin("create")
            folder = _above(path)
            top = folder.partition("/")[0]
            if not self._disk.has_folder(top):
                raise self.not_there(top)
            self._ensure_folder(folder, fault)
            _fail_if(fault)
            if self._disk.find(path) is not None:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            file = _File(bytearray())
            self._disk.set(path, file)
            return _MemorySink(self, path, file)

    def size(self, path: str) -> int:
        return len(self._found("size", path).data)

    def read(self, path: str, offset: int, length: int) -> pa.Buffer:
        data = self._found("read", path).data
        return pa.py_buffer(bytes(data[offset : offset + length]))

    def map(self, path: str) -> pa.Buffer:
        return pa.py_buffer(bytes(self._found("map", path).data))

    def _found(self, call: str, path: str) -> _File:
        with disk_errors("read", self.where(path)):
            _fail_if(self._begin(call))
            file = self._disk.find(path)
            if file is None:
                top = _above(path).partition("/")[0]
                raise self.missing(path) if self._disk.has_folder(top) else self.not_there(top)
            return file

    def list(self, folder: str) -> Iterator[str]:
        with disk_errors("list", self.where(folder)):
            _fail_if(self._begin("list"))
        inside = f"{folder}/" if folder else ""
        yield from [path for path in self._disk.files() if path.startswith(inside)]

    def delete(self, path: str) -> None:
        with disk_errors("delete", self.where(path)):
            _fail_if(self._begin("delete"))
            self._disk.set(path, None)

    def replace(self, path: str, data: bytes, temporary: str) -> None:
        with self._not_left_behind(temporary):
            self.write(temporary, data)
            with disk_errors("write", self.where(path)):
                self._rename(temporary, path, self._begin("replace"))
        self._read_back(path, data)

    def _rename(self, old: str, new: str, fault: StorageFault | None) -> None:
        if fault is not None and self._random().random() < 0.5:
            _fail(fault)
        self._disk.set(new, self._disk.find(old))
        self._disk.set(old, None)
        _fail_if(fault)  # it is replaced, and not durable
        self._disk.sync_folder(_above(new))

    # For the sink.

    def write_to(self, path: str, file: _File, data: Any) -> int:
        view = memoryview(data).cast("B")
        assert isinstance(file.data, bytearray)
        with disk_errors("write", self.where(path)):
            fault = self._begin("write")
            if fault is not None:
                file.data += view[: self._random().randint(0, len(view))]
                _fail(fault)
        file.data += view
        return len(view)

    def close_file(self, path: str, file: _File) -> None:
        with disk_errors("write", self.where(path)):
            fault = self._begin("close")
            file.data = bytes(file.data)
            if fault is not None and self._random().random() < 0.5:
                _fail(fault)
            file.synced = True
            _fail_if(fault)  # its content is durable, its name is not
            self._disk.sync_folder(_above(path))


class _MemorySink(Sink):
    def __init__(self, storage: MemoryStorage, path: str, file: _File) -> None:
        self._storage, self._path, self._file = storage, path, file

    def write(self, data: Any) -> int:
        return self._storage.write_to(self._path, self._file, data)

    def close(self) -> None:
        self._storage.close_file(self._path, self._file)

    def abandon(self) -> None:
        self._file.data = bytes(self._file.data)


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _fail_if(fault: StorageFault | None) -> None:
    if fault is not None:
        _fail(fault)


def _fail(fault: StorageFault) -> NoReturn:
    number = errno.ENOSPC if fault == "full" else errno.EIO
    raise OSError(number, os.strerror(number))


def _torn(data: bytes, random: random.Random) -> bytes:
    """What a file system may have of data that were written and not synced."""
    start, stop = sorted(random.randint(0, len(data)) for _ in range(2))
    hole = data[:start] + bytes(stop - start)
    return random.choice((data, b"", data[:start], hole, hole + data[stop:]))
