"""Immutable files in a folder or an object store.

ZooKeeper decides which files are part of a topic. So files need only two things: a unique name, and to be durable
before ZooKeeper refers to them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import shutil
import stat
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from pyspark_ledger.base.limits import MOST_TABLE_BYTES
from pyspark_ledger.base.roots import told
from pyspark_ledger.errors import CorruptData, InvalidInput, LedgerError, Unavailable, disk_error, disk_errors
from pyspark_ledger.files import inside

if TYPE_CHECKING:
    import pyarrow.fs

    from pyspark_ledger.base.settings import Settings

logger = logging.getLogger(__name__)

_DELETING_THREADS = 16  # of an object store, where most of the time is spent waiting
_READING_THREADS = 8  # likewise, for a task or a reader
_AHEAD = 8  # how many files are opened before they are needed, if that is done in the background
_PROOF = b"pyspark-ledger can write here\n"
# Not through a link, and without waiting for somebody to write to a pipe.
_TO_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_KEPT_SETTINGS = 4  # of one root: with keys of a limited time, tasks are given others every hour
BEING_MOVED = -1  # the ``moves`` of a storage through which nobody may write


T = TypeVar("T")


class Sink(ABC):
    """A new file being written; durable when :meth:`close` returns, and not before. What the disk or the object store
    says against it is raised as Unavailable, with the file's name."""

    @abstractmethod
    def write(self, data: Any) -> int: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """Stops writing. Nothing refers to the file that is left behind."""


class Opened:
    """A file of which parts are read: it was looked for, and its length is known."""

    def __init__(self, storage: Storage, path: str, length: int) -> None:
        self._storage, self._path, self.length = storage, path, length

    def read(self, offset: int, length: int) -> pa.Buffer:
        """May be called by several threads at a time."""
        return self._storage.read(self._path, offset, length)


class Storage(ABC):
    """A root below which every path is relative. Every method raises Unavailable, with the name of the file, if the
    disk or the object store fails, is full, or does not let us in. ``marker`` is the name of a file that shows that
    this is the right root; empty: nobody has to look for one, as in a task. ``moves`` is how often the namespace had
    been given another root when this one was opened: see ``log.root``."""

    def __init__(self, uri: str, marker: str = "", moves: int = 0, settings: Settings | None = None) -> None:
        self.uri, self.marker, self.moves = uri, marker, moves
        self.settings = settings  # how to get there
        self._shown = _shown(uri).partition("?")[0].rstrip("/")
        self.is_left = False  # somebody has noticed that the namespace has another root now
        self._seen_marked = False

    def check_marked(self) -> None:
        """Before something is written or deleted by a process that can do so anywhere.

        :raises Unavailable: the root has no marker file, and so is not the right one.
        """
        if self.marker and not self._is_marked():
            raise Unavailable(
                f"{self.where(self.marker)} is not there: is the storage mounted on this machine, or was the folder "
                "moved (docs/recovery.md)? Or was the namespace rebuilt at another ZooKeeper address: then use that "
                "one. The namespace has this file in its storage root. Nothing is written or deleted without it, or "
                "the log would be split over two places. If this is the right place, nothing was rebuilt, and only "
                "the file was lost, make an empty one of that name",
                "LEDGER_STORAGE_MISSING",
            )

    @abstractmethod
    def _is_marked(self) -> bool: ...

    def make_folder(self, name: str) -> None:  # noqa: B027 - an object store has no folders
        """Makes a folder right below the root, or with an empty name the root itself and what is above it. Durable
        when it returns. Whoever asks knows that it may be new: see ``log.folders``."""

    def has_folder(self, name: str) -> bool:
        """Whether a folder right below the root, or with an empty name the root, is there. In an object store there
        are no folders, and so none is ever missing."""
        return True

    def is_bare(self) -> bool:
        """Whether the root is not there or has nothing in it: what is left where a volume is not mounted."""
        return False

    def remove_folder(self, name: str) -> None:  # noqa: B027
        """Removes a folder below the root that is empty. One that has files stays."""

    @abstractmethod
    def create(self, path: str) -> Sink:
        """Begins a new file. The folder right below the root must be there; what is below that is made."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Bytes in the file; CorruptData if it is missing, because ZooKeeper says that it exists."""

    @abstractmethod
    def read(self, path: str, offset: int, length: int) -> pa.Buffer: ...

    def read_whole(self, path: str, length: int | None = None) -> pa.Buffer:
        """A file that is looked at as a whole; with ``length``, what a record says of it, one byte more of it if there
        is one.

        :raises CorruptData: it would take more memory than any such file needs. A few bytes can be a file that says to
            have a terabyte.
        """
        opened = self.open(path) if length is None else None
        found = opened.length if opened is not None else length or 0
        if found > MOST_TABLE_BYTES:
            raise CorruptData(
                f"{self.where(path)} would have {found} bytes, and none like it has more than {MOST_TABLE_BYTES}; "
                "restore it, or what names it, from a copy"
            )
        return opened.read(0, found + 1) if opened is not None else self.read(path, 0, found + 1)

    def open(self, path: str) -> Opened:
        """A file of which parts are read. An object store is asked for it once, and not again for each part."""
        return Opened(self, path, self.size(path))

    whole_bytes = 0  # files that are not mapped and no longer than this are read whole, instead of their end first

    def begin(self, work: Callable[[], T]) -> Callable[[], T]:
        """What to call, once, for the result of work that waits for the storage most of the time. It is done then;
        for an object store it is begun at once in another thread."""
        return work

    def ahead(self, works: Iterable[Callable[[], T]]) -> Iterator[T]:
        """The result of each, in order; some are begun before they are needed."""
        begun: deque[Callable[[], T]] = deque()
        for work in works:
            begun.append(self.begin(work))
            if len(begun) > _AHEAD:
                yield begun.popleft()()
        while begun:
            yield begun.popleft()()

    @abstractmethod
    def map(self, path: str) -> pa.Buffer | None:
        """The whole file without reading it, where the storage can do that."""

    @abstractmethod
    def list(self, folder: str) -> Iterator[str]:
        """Every file below a folder, nothing if the folder is not there."""

    def sizes(self, folder: str) -> Iterator[tuple[str, int]]:
        """Every file below a folder with its length; one that is deleted meanwhile may be left out."""
        for path in self.list(folder):
            with contextlib.suppress(CorruptData):
                yield path, self.size(path)

    def folders(self, folder: str) -> Sequence[str]:
        """The names of the folders right below a folder, in order; none if the folder is not there. With an empty name:
        right below the root."""
        above = len(folder) + 1 if folder else 0
        below = (path[above:] for path in self.list(folder))
        return sorted({path.partition("/")[0] for path in below if "/" in path})

    def files(self, folder: str) -> Sequence[str]:
        """The names of the files right below a folder, in order, without looking into the folders below it; none if the
        folder is not there. With an empty name: right below the root."""
        above = len(folder) + 1 if folder else 0
        return sorted(path[above:] for path in self.list(folder) if "/" not in path[above:])

    @abstractmethod
    def delete(self, path: str) -> None: ...

    def delete_many(self, paths: Sequence[str]) -> None:
        """Deletes files, those that are there. If it fails, some of them may be gone."""
        for path in paths:
            self.delete(path)

    def delete_folder(self, folder: str) -> None:
        """Deletes a folder below the root with everything in it, if it is there."""
        self.delete_many(tuple(self.list(folder)))
        for below in sorted(self.folders(folder), reverse=True):
            self.remove_folder(f"{folder}/{below}")
        self.remove_folder(folder)

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """A whole file at once; durable when it returns."""
        sink = self.create(path)
        try:
            sink.write(data)
        except BaseException:
            sink.abandon()
            raise
        sink.close()

    def replace(self, path: str, data: bytes, temporary: str) -> None:
        """Writes a whole file, also where there is one already, and reads it back. Nobody ever sees a part of it.
        ``temporary`` is a name for the time being, in the same folder."""
        self.write(path, data)
        self._read_back(path, data)

    @contextlib.contextmanager
    def _not_left_behind(self, path: str) -> Iterator[None]:
        """Around what may fail half way with a file that no gc looks for: it is deleted then, if that is possible."""
        try:
            yield
        except LedgerError:
            with contextlib.suppress(LedgerError):  # what failed first matters more
                self.delete(path)
            raise

    def _read_back(self, path: str, data: bytes) -> None:
        if self.read(path, 0, len(data) + 1).to_pybytes() != data:
            raise Unavailable(
                f"{self.where(path)} was written and read back, and is not the same: use another storage",
                "LEDGER_STORAGE_UNAVAILABLE",
            )

    def where(self, path: str) -> str:
        """A file's full name, for messages: without keys that an old URI may have, and without parameters, which are
        no part of it."""
        return f"{self._shown}/{path}"

    @property
    def root(self) -> Root:
        """What tasks need to open it."""
        return Root(self.uri, self.settings.for_tasks() if self.settings else None)

    def prove_usable(self, name: str) -> None:
        """Makes the root, writes a file of this name into it, reads it back and deletes it."""
        self.make_folder("")
        with self._not_left_behind(name):
            self.write(name, _PROOF)
            self._read_back(name, _PROOF)
            self.delete(name)

    def not_there(self, folder: str) -> Unavailable:
        return Unavailable(
            f"the folder {self.where(folder).rstrip('/')} is not there: is the storage mounted on this machine? It was "
            "made once, and is not made again, or the log would be split over two disks. If it is lost, restore it "
            "from a copy",
            "LEDGER_STORAGE_MISSING",
        )

    def missing(self, path: str) -> LedgerError:
        """What to raise if a file is not there. Where the marker is missing too, nothing is lost: this is not the root
        any more, or not mounted."""
        if self.marker:
            self._seen_marked = False
            with contextlib.suppress(Unavailable):
                if not self._is_marked():
                    return Unavailable(
                        f"{self.where(path)} is missing, and so is the file {self.marker} that marks the namespace's "
                        "storage root: the storage was moved, or is not mounted on this machine. If it was moved, "
                        "open the topic again, in a new query or with a new reader",
                        "LEDGER_STORAGE_MISSING",
                    )
        return CorruptData(
            f"{self.where(path)} is missing. ZooKeeper named it when this read was planned. If that is longer ago than "
            "gc's grace, retention may have given the records up since, or rewriting moved them: start the read or the "
            "query again, which says if they are gone. Otherwise the file is lost: restore it from a copy, and see "
            "'pyspark-ledger topics verify'",
            "LEDGER_FILE_MISSING",
        )


class LocalStorage(Storage):
    def __init__(self, uri: str, marker: str = "", moves: int = 0, settings: Settings | None = None) -> None:
        super().__init__(uri, marker, moves, settings)
        self._root = Path(unquote(urlsplit(uri).path))
        self._root_path = str(self._root)  # a Path is slow to put together, and small files are read by the thousand
        self._marker_path = str(self._root / marker)
        self._known_folders: set[Path] = set()
        self._fence = inside.Fence(self._root_path)

    def make_folder(self, name: str) -> None:
        if name:
            self.check_marked()
            if not self.has_folder(""):
                raise self.not_there("")
        self._fence.check_folder(name)
        if not self.has_folder(name):
            self._forget_folders()
        self._ensure_folder(self._root / name)

    def _is_marked(self) -> bool:
        return _stat(self._marker_path) is not None

    def is_bare(self) -> bool:
        with disk_errors("look into", self._root):
            return not self._root.is_dir() or next(self._root.iterdir(), None) is None

    def has_folder(self, name: str) -> bool:
        found = _stat(f"{self._root_path}/{name}")
        return found is not None and stat.S_ISDIR(found.st_mode)

    def _forget_folders(self) -> None:
        self._known_folders.clear()
        self._fence.forget()

    def remove_folder(self, name: str) -> None:
        self._fence.check_folder(name)
        self._forget_folders()
        with contextlib.suppress(OSError):
            (self._root / name).rmdir()

    def create(self, path: str) -> Sink:
        self._fence.check_file(path)
        full = self._root / path
        self._ensure_below(path, full.parent)
        with disk_errors("create", full):
            try:
                return _LocalSink(full)
            except FileNotFoundError:  # the disk was unmounted, or the folder deleted, since we looked
                self._forget_folders()
            self._ensure_below(path, full.parent)
            return _LocalSink(full)

    def _ensure_below(self, path: str, folder: Path) -> None:
        if folder not in self._known_folders:
            top = path.partition("/")[0] if "/" in path else ""
            if not self.has_folder(top):
                raise self.not_there(top)
            self._ensure_folder(folder)

    def size(self, path: str) -> int:
        self._fence.check_file(path)
        try:
            return os.stat(f"{self._root_path}/{path}").st_size
        except OSError as error:
            raise self._unreadable(path, error) from None

    def read(self, path: str, offset: int, length: int) -> pa.Buffer:
        try:
            with self._open(path) as fd:
                left = max(0, os.fstat(fd).st_size - offset)  # memory is taken before anything is read
                return pa.py_buffer(os.pread(fd, min(length, left), offset))
        except OSError as error:
            raise self._unreadable(path, error) from None

    def map(self, path: str) -> pa.Buffer:
        try:
            with self._open(path) as fd:
                if os.fstat(fd).st_size == 0:  # which cannot be mapped
                    return pa.py_buffer(b"")
                mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise self._unreadable(path, error) from None
        if hasattr(mmap, "MADV_SEQUENTIAL"):
            mapped.madvise(mmap.MADV_SEQUENTIAL)
        return pa.py_buffer(mapped)

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[int]:
        self._fence.check_file(path)
        fd = os.open(f"{self._root_path}/{path}", _TO_READ)
        try:
            yield fd
        finally:
            os.close(fd)

    def list(self, folder: str) -> Iterator[str]:
        self._fence.check_folder(folder)
        for parent, _, names in os.walk(self._root / folder, onerror=_refuse_to_list):
            for name in names:
                yield (Path(parent) / name).relative_to(self._root).as_posix()

    def folders(self, folder: str) -> Sequence[str]:
        self._fence.check_folder(folder)
        full = self._root / folder
        with disk_errors("list", full):
            try:
                return sorted(entry.name for entry in os.scandir(full) if entry.is_dir(follow_symlinks=False))
            except FileNotFoundError:
                return []

    def files(self, folder: str) -> Sequence[str]:
        self._fence.check_folder(folder)
        full = self._root / folder
        with disk_errors("list", full):
            try:
                return sorted(entry.name for entry in os.scandir(full) if entry.is_file(follow_symlinks=False))
            except FileNotFoundError:
                return []

    def delete(self, path: str) -> None:
        self._fence.check_file(path)
        full = self._root / path
        with disk_errors("delete", full):
            full.unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        self._fence.check_folder(folder)
        self._forget_folders()
        full = self._root / folder
        with disk_errors("delete", full), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(full)

    def replace(self, path: str, data: bytes, temporary: str) -> None:
        self._fence.check_file(path)
        full = self._root / path
        with self._not_left_behind(temporary):
            self.write(temporary, data)
            with disk_errors("write", full):
                (self._root / temporary).replace(full)
                _make_folder_durable(full.parent)
        self._read_back(path, data)

    def _unreadable(self, path: str, error: OSError) -> LedgerError:
        """What to raise if a file cannot be read."""
        if not isinstance(error, FileNotFoundError):
            return disk_error(error, "read", f"{self._root_path}/{path}")
        top = path.partition("/")[0] if "/" in path else ""
        return self.missing(path) if self.has_folder(top) else self.not_there(top)

    def _ensure_folder(self, folder: Path) -> None:
        if folder not in self._known_folders:
            with disk_errors("make the folder", folder):
                self._ensure_durable(Path(os.path.realpath(folder)))
            self._known_folders.add(folder)

    def _ensure_durable(self, folder: Path) -> None:
        """A file is durable only if every folder above it is. One that is found may have been made a moment ago, by a
        process that has not synced it yet and perhaps never will: so each is synced here, once in a process."""
        if folder in self._known_folders or os.path.ismount(folder):
            return
        self._ensure_durable(folder.parent)
        if folder.is_dir():
            self._sync_found(folder.parent)
        else:
            folder.mkdir(exist_ok=True)
            _make_folder_durable(folder.parent)
        self._known_folders.add(folder)

    def _sync_found(self, folder: Path) -> None:
        try:
            _make_folder_durable(folder)
        except PermissionError:  # above the root we may be allowed to pass through, and no more
            if folder.is_relative_to(os.path.realpath(self._root)):
                raise


def _stat(path: str) -> os.stat_result | None:
    """None if there is nothing. Before each commit there are two such looks, so this is to be quick."""
    with disk_errors("look for", path):
        try:
            return os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _refuse_to_list(error: OSError) -> None:
    """A folder that is not there, or not any more, has no files; of one that cannot be looked at nobody knows."""
    if not isinstance(error, FileNotFoundError):
        with disk_errors("list", error.filename):
            raise error


class _LocalSink(Sink):
    """Writes a local file. A long one is synced in the background while it is written, so that closing it need not wait
    until all of it is on disk."""

    SYNC_EVERY_BYTES = 32 << 20

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._unsynced = 0
        self._syncing: threading.Thread | None = None
        self._failure: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        with disk_errors("write", self._path):
            while done < len(view):  # a signal or a full disk may cut a write short
                done += os.write(self._fd, view[done:])
        self._unsynced += done
        if self._unsynced >= self.SYNC_EVERY_BYTES and (self._syncing is None or not self._syncing.is_alive()):
            self._unsynced = 0
            self._syncing = threading.Thread(target=self._sync_early, name="ledger-sync", daemon=True)
            self._syncing.start()
        return done

    def _sync_early(self) -> None:
        try:
            # Only to have less to wait for in close(), so the cheapest sync will do: macOS has no fdatasync.
            getattr(os, "fdatasync", os.fsync)(self._fd)
        except OSError as error:  # the kernel reports a lost page only once, to the first sync
            self._failure = error

    def close(self) -> None:
        with disk_errors("write", self._path):
            try:
                self._wait()
                if self._failure is not None:
                    raise self._failure
                _make_durable(self._fd)
            finally:
                self._close()
            _make_folder_durable(self._path.parent)

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # why it is abandoned matters more
            self._close()

    def _close(self) -> None:
        self._wait()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _wait(self) -> None:
        if self._syncing is not None:
            self._syncing.join()


class ObjectStorage(Storage):
    """Any pyarrow filesystem: S3, GCS, HDFS… An object is durable when its upload is complete."""

    whole_bytes = 1 << 20  # so many are there about as soon as the answer to one more request would be

    def __init__(self, uri: str, marker: str = "", moves: int = 0, settings: Settings | None = None) -> None:
        super().__init__(uri, marker, moves, settings)
        # By process: a child that used its parent's connections would get its parent's answers. The parent's client
        # stays here in the child, since to close it would be to speak over those connections too.
        self._clients: dict[int, pa.fs.FileSystem] = {}
        self._threads: dict[int, ThreadPoolExecutor] = {}  # likewise
        self._values = settings.storage_settings if settings else {}
        self._may_change = settings is not None and settings.has_profile
        self._root = self._connect()

    @property
    def _fs(self) -> pa.fs.FileSystem:
        if self._may_change:
            self._take_new_values()
        if os.getpid() not in self._clients:
            self._connect()
        return self._clients[os.getpid()]

    def _take_new_values(self) -> None:
        """Keys in a profile may be changed while we run: what begins after that uses the new ones."""
        assert self.settings is not None
        try:
            values = self.settings.storage_settings
        except LedgerError as error:  # the file is just being written, or is wrong: what we have may still do
            logger.warning("the profile cannot be read, and the storage is used as before: %s", error)
            return
        if values != self._values:
            self._values = values
            self._clients.pop(os.getpid(), None)

    def _connect(self) -> str:
        """Returns the path of the root."""
        from pyspark_ledger.files import access  # not for tasks with a folder

        client, root = access.file_system(self.uri, self._values)
        self._clients.setdefault(os.getpid(), client)
        return str(root.rstrip("/"))

    def _full(self, path: str) -> str:
        inside.check_name(path, self.where(""))
        return f"{self._root}/{path}"

    def _is_marked(self) -> bool:
        """Looked at once: a bucket is not unmounted, and a look is a request."""
        if not self._seen_marked:
            with _store_errors("look for", self.where(self.marker)):
                info = self._fs.get_file_info(self._full(self.marker))
            self._seen_marked = info.type == pa.fs.FileType.File
        return self._seen_marked

    def create(self, path: str) -> Sink:
        with _store_errors("create", self.where(path)):
            return _ObjectSink(self._fs.open_output_stream(self._full(path)), self.where(path))

    def size(self, path: str) -> int:
        with _store_errors("read", self.where(path)):
            info = self._fs.get_file_info(self._full(path))
        if info.type != pa.fs.FileType.File:
            raise self.missing(path)
        return int(info.size)

    def read(self, path: str, offset: int, length: int) -> pa.Buffer:
        return self.open(path).read(offset, length)

    def open(self, path: str) -> Opened:
        with _store_errors("read", self.where(path)):
            try:
                file = self._fs.open_input_file(self._full(path))
            except FileNotFoundError:
                raise self.missing(path) from None
            return _OpenedObject(self, path, file)

    def begin(self, work: Callable[[], T]) -> Callable[[], T]:
        threads = self._threads.get(os.getpid())
        if threads is None:
            threads = self._threads.setdefault(os.getpid(), ThreadPoolExecutor(_READING_THREADS))
        return threads.submit(work).result

    def map(self, path: str) -> None:
        return None

    def list(self, folder: str) -> Iterator[str]:
        return (path for path, _ in self.sizes(folder))

    def sizes(self, folder: str) -> Iterator[tuple[str, int]]:
        selector = pa.fs.FileSelector(self._full(folder), allow_not_found=True, recursive=True)
        with _store_errors("list", self.where(folder)):
            found = self._fs.get_file_info(selector)
        for info in found:
            if info.type == pa.fs.FileType.File:
                yield info.path[len(self._root) + 1 :], int(info.size)

    def folders(self, folder: str) -> Sequence[str]:
        return self._right_below(folder, pa.fs.FileType.Directory)

    def files(self, folder: str) -> Sequence[str]:
        return self._right_below(folder, pa.fs.FileType.File)

    def _right_below(self, folder: str, kind: pa.fs.FileType) -> Sequence[str]:
        """An object store answers with a thousand names at a time, of which a folder is one, whatever is in it."""
        selector = pa.fs.FileSelector(self._full(folder).rstrip("/"), allow_not_found=True)
        with _store_errors("list", self.where(folder)):
            found = self._fs.get_file_info(selector)
        return sorted(info.base_name for info in found if info.type == kind)

    def delete(self, path: str) -> None:
        with _store_errors("delete", self.where(path)), contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(self._full(path))

    def delete_many(self, paths: Sequence[str]) -> None:
        """pyarrow deletes many objects in one request only if they are a whole folder: so here several at a time."""
        with ThreadPoolExecutor(_DELETING_THREADS) as pool:
            for _ in pool.map(self.delete, paths):
                pass

    def delete_folder(self, folder: str) -> None:
        """Up to a thousand objects in one request."""
        with _store_errors("delete", self.where(folder)), contextlib.suppress(FileNotFoundError):
            self._fs.delete_dir(self._full(folder))


class _OpenedObject(Opened):
    """pyarrow has asked for its length when it was opened: there is no way to tell it what we know from the commit."""

    def __init__(self, storage: Storage, path: str, file: Any) -> None:
        super().__init__(storage, path, int(file.size()))
        self._file = file

    def read(self, offset: int, length: int) -> pa.Buffer:
        with _store_errors("read", self._storage.where(self._path)):
            try:
                left = max(0, self.length - offset)  # some take the memory before they look what there is
                return pa.py_buffer(self._file.read_at(min(length, left), offset))
            except OSError:
                self._storage.size(self._path)  # which says so if it was deleted since it was opened
                raise


class _ObjectSink(Sink):
    def __init__(self, stream: Any, where: str) -> None:
        self._stream, self._where = stream, where

    def write(self, data: Any) -> int:
        with _store_errors("write", self._where):
            self._stream.write(data)
        return memoryview(data).nbytes

    def close(self) -> None:
        with _store_errors("write", self._where):
            self._stream.close()

    def abandon(self) -> None:
        # pyarrow completes an upload even if the stream is dropped: harmless, because nothing refers to the object.
        with contextlib.suppress(OSError):  # why it is abandoned matters more
            self._stream.close()


def _store_errors(doing: str, where: str) -> contextlib.AbstractContextManager[None]:
    return disk_errors(doing, where, otherwise="see to the credentials, the bucket and the network")


def _make_durable(fd: int) -> None:
    """Returns when what was written will survive a power cut."""
    if sys.platform != "darwin":
        os.fsync(fd)
        return
    import fcntl

    # On macOS fsync gives the data to the drive and does not wait until the drive has written them: F_FULLFSYNC does.
    # Network file systems may not know it, and fsync is then the best there is. After any other error fsync must not
    # be tried: a lost page is reported only once, so it would succeed.
    try:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL):
            raise
        os.fsync(fd)


def _make_folder_durable(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        _make_durable(fd)
    finally:
        os.close(fd)


def normalise_uri(text: str) -> str:
    """The storage root in one spelling, so that two spellings of the same root are recognised as equal."""
    if not text.strip():
        raise InvalidInput("the option 'storage' is empty: give a folder or a URI", "LEDGER_INVALID_STORAGE")
    try:
        parts = urlsplit(text)
        if len(parts.scheme) <= 1:
            return Path(text).expanduser().absolute().as_uri()
        if parts.scheme == "file":
            return Path(unquote(parts.path)).as_uri()
    except (ValueError, RuntimeError) as error:  # a relative path in a URI, half an address, ~ of nobody, odd bytes
        message = f"storage '{_shown(text)}' is no folder and no URI: {error}"
        raise InvalidInput(message, "LEDGER_INVALID_STORAGE") from None
    scheme = {"s3a": "s3", "s3n": "s3"}.get(parts.scheme, parts.scheme)
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}{query}"


def _shown(uri: str) -> str:
    """Without keys, which only a URI with one of these can have."""
    if "@" not in uri and "?" not in uri:
        return uri
    from pyspark_ledger.base.uris import shown  # not for tasks with a folder

    return shown(uri)


_opened: dict[tuple[int, str, str, int, Settings | None], Storage] = {}
_opening = threading.Lock()


def open_storage(uri: str, marker: str = "", moves: int = 0, settings: Settings | None = None) -> Storage:
    """One storage per process, root, marker, number of moves and settings: workers are reused over many tasks, and
    clients do not survive a fork. Without settings those count that ``base.roots`` was told."""
    root = normalise_uri(uri)
    if root.startswith("file:"):
        settings = None
    elif settings is None:
        settings = told(root)
    key = (os.getpid(), root, marker, moves, settings)
    with _opening:
        if key not in _opened:
            kind = LocalStorage if root.startswith("file:") else ObjectStorage
            _opened[key] = kind(root, marker, moves, settings)
            for old in [each for each in _opened if each[:4] == key[:4]][:-_KEPT_SETTINGS]:
                del _opened[old]
        return _opened[key]


@dataclass(frozen=True, slots=True)
class Root:
    """Where files are and how to get there, as tasks are given it. The settings are those of the moment when it was
    made: they are as new as the batch that is planned."""

    uri: str
    settings: Settings | None = None

    def open(self) -> Storage:
        return open_storage(self.uri, settings=self.settings)


def _after_fork_in_child() -> None:
    """Another thread of the parent may have held the lock."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
