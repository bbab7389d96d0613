"""Immutable files in a folder or an object store.

ZooKeeper is the arbiter of what exists, so files need only two things: a name nobody else has, and to be
durable before anything names them.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs

from pyspark_ledger.errors import CorruptData, InvalidInput, Unavailable


class Sink(ABC):
    """A new file being written; durable when :meth:`close` returns, and not before."""

    @abstractmethod
    def write(self, data: Any) -> int: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """Stop writing. What is left behind has a name that nothing refers to."""


class Storage(ABC):
    """A root below which every path is relative."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @abstractmethod
    def create(self, path: str) -> Sink: ...

    @abstractmethod
    def size(self, path: str) -> int:
        """Bytes in the file; CorruptData if there is none: whoever asks was told by ZooKeeper that it exists."""

    @abstractmethod
    def read(self, path: str, offset: int, length: int) -> pa.Buffer: ...

    @abstractmethod
    def map(self, path: str) -> pa.Buffer | None:
        """The whole file without reading it, where the storage can do that."""

    @abstractmethod
    def list(self, folder: str) -> Iterator[str]:
        """Every file below a folder, nothing if the folder is not there."""

    @abstractmethod
    def delete(self, path: str) -> None: ...

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """A whole file at once; durable when it returns."""
        sink = self.create(path)
        try:
            sink.write(data)
        except BaseException:
            sink.abandon()
            raise
        sink.close()

    def where(self, path: str) -> str:
        """A file's full name, for messages."""
        return f"{self.uri.rstrip('/')}/{path}"

    def missing(self, path: str) -> CorruptData:
        return CorruptData(f"{self.where(path)} is missing, but ZooKeeper names it", "LEDGER_FILE_MISSING")


class LocalStorage(Storage):
    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._root = Path(unquote(urlsplit(uri).path))
        self._known_folders: set[Path] = set()

    def create(self, path: str) -> Sink:
        full = self._root / path
        self._ensure_folder(full.parent)
        return _LocalSink(full)

    def size(self, path: str) -> int:
        try:
            return (self._root / path).stat().st_size
        except FileNotFoundError:
            raise self.missing(path) from None

    def read(self, path: str, offset: int, length: int) -> pa.Buffer:
        try:
            with open(self._root / path, "rb", buffering=0) as file:
                return pa.py_buffer(os.pread(file.fileno(), length, offset))
        except FileNotFoundError:
            raise self.missing(path) from None

    def map(self, path: str) -> pa.Buffer:
        try:
            with open(self._root / path, "rb", buffering=0) as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise self.missing(path) from None
        if hasattr(mmap, "MADV_SEQUENTIAL"):
            mapped.madvise(mmap.MADV_SEQUENTIAL)
        return pa.py_buffer(mapped)

    def list(self, folder: str) -> Iterator[str]:
        for parent, _, names in os.walk(self._root / folder):
            for name in names:
                yield (Path(parent) / name).relative_to(self._root).as_posix()

    def delete(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def _ensure_folder(self, folder: Path) -> None:
        """A file is durable only if every folder above it is."""
        if folder in self._known_folders:
            return
        if not folder.is_dir():
            self._ensure_folder(folder.parent)
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise Unavailable(f"cannot make the folder {folder}: {error}", "LEDGER_STORAGE_UNAVAILABLE") from None
            _make_folder_durable(folder.parent)
        self._known_folders.add(folder)


class _LocalSink(Sink):
    """Writes a local file. Long ones are synced piece by piece in the background, so that the end need not wait for
    the disk to take all of it."""

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
        except OSError as error:  # the kernel tells of a lost page only once: to whoever syncs first
            self._failure = error

    def close(self) -> None:
        try:
            self._wait()
            if self._failure is not None:
                raise self._failure
            _make_durable(self._fd)
        finally:
            self.abandon()
        _make_folder_durable(self._path.parent)

    def abandon(self) -> None:
        self._wait()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _wait(self) -> None:
        if self._syncing is not None:
            self._syncing.join()


class ObjectStorage(Storage):
    """Any pyarrow filesystem: S3, GCS, HDFS… An object is durable when its upload is complete."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        # By process: a child that used its parent's connections would get its parent's answers. The parent's client
        # stays here in the child, since to close it would be to speak over those connections too.
        self._clients: dict[int, pa.fs.FileSystem] = {}
        self._root = self._connect()

    @property
    def _fs(self) -> pa.fs.FileSystem:
        if os.getpid() not in self._clients:
            self._connect()
        return self._clients[os.getpid()]

    def _connect(self) -> str:
        """Returns the path of the root."""
        uri = self.uri
        try:
            client, root = pa.fs.FileSystem.from_uri(uri)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise InvalidInput(
                f"storage '{uri}' cannot be opened: {error}. Use a folder or a URI that pyarrow.fs knows, "
                "as in s3://bucket/prefix?region=eu-west-1",
                "LEDGER_INVALID_STORAGE",
            ) from None
        self._clients.setdefault(os.getpid(), client)
        return str(root.rstrip("/"))

    def create(self, path: str) -> Sink:
        return _ObjectSink(self._fs.open_output_stream(f"{self._root}/{path}"))

    def size(self, path: str) -> int:
        info = self._fs.get_file_info(f"{self._root}/{path}")
        if info.type != pa.fs.FileType.File:
            raise self.missing(path)
        return int(info.size)

    def read(self, path: str, offset: int, length: int) -> pa.Buffer:
        try:
            with self._fs.open_input_file(f"{self._root}/{path}") as file:
                return pa.py_buffer(file.read_at(length, offset))
        except FileNotFoundError:
            raise self.missing(path) from None
        except OSError as error:
            raise Unavailable(f"cannot read {self.where(path)}: {error}", "LEDGER_STORAGE_UNAVAILABLE") from None

    def map(self, path: str) -> None:
        return None

    def list(self, folder: str) -> Iterator[str]:
        selector = pa.fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True, recursive=True)
        for info in self._fs.get_file_info(selector):
            if info.type == pa.fs.FileType.File:
                yield info.path[len(self._root) + 1 :]

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(f"{self._root}/{path}")


class _ObjectSink(Sink):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        self._stream.write(data)
        return memoryview(data).nbytes

    def close(self) -> None:
        self._stream.close()

    def abandon(self) -> None:
        # pyarrow completes an upload even when it is dropped: harmless, nothing names the object.
        self._stream.close()


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
    """One spelling for a storage root, so that two spellings of one place are not two places."""
    if not text.strip():
        raise InvalidInput("the option 'storage' is empty: give a folder or a URI", "LEDGER_INVALID_STORAGE")
    parts = urlsplit(text)
    if len(parts.scheme) <= 1:
        return Path(text).expanduser().absolute().as_uri()
    if parts.scheme == "file":
        return Path(unquote(parts.path)).as_uri()
    scheme = {"s3a": "s3", "s3n": "s3"}.get(parts.scheme, parts.scheme)
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}{query}"


_opened: dict[tuple[int, str], Storage] = {}
_opening = threading.Lock()


def open_storage(uri: str) -> Storage:
    """One storage per process and root: workers are reused over many tasks, and clients do not survive a fork."""
    key = (os.getpid(), normalise_uri(uri))
    with _opening:
        if key not in _opened:
            _opened[key] = LocalStorage(key[1]) if key[1].startswith("file:") else ObjectStorage(key[1])
        return _opened[key]


def _after_fork_in_child() -> None:
    """Another thread of the parent may have held the lock."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
