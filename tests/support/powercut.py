"""The power is cut after every call that a process made to the operating system, in the manner of ALICE: what may a
file system have kept by then? It keeps what was synced. Of the rest it keeps anything: of a file's content all,
nothing, a part or zeros; of a folder's entries any of those that were made, renamed or removed since the folder was
synced."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Event = tuple[Any, ...]
ROOT = 0  # the inode of the base folder, which is durable from the start


class PowerCut:
    """Records what happens below ``base``, and what its callers were promised."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Event] = []
        self._base = os.path.realpath(base)
        self._inodes: dict[str, int] = {self._base: ROOT}  # by path, as processes see it
        self._files: dict[int, int] = {}  # file descriptor -> inode
        self._lock = threading.RLock()  # one thing after the other: long files are synced by a thread
        monkeypatch.setattr(sys, "platform", "linux")
        for name in ("open", "close", "write", "fsync", "fdatasync", "mkdir", "replace", "unlink"):
            if hasattr(os, name):
                monkeypatch.setattr(os, name, self._recorded(getattr(self, f"_{name}"), getattr(os, name)))

    def promise(self, path: str, *contents: bytes | None) -> None:
        """From now on the file has one of these contents, whatever happens; None: it may be missing."""
        self.events.append(("promise", path, contents))

    def promise_folder(self, path: str) -> None:
        self.events.append(("promise", path, ("folder",)))

    def broken(self) -> list[str]:
        """Every promise that some state after some cut does not keep."""
        return [broken for cut in range(len(self.events) + 1) for broken in _broken_at(self.events[:cut])]

    def _recorded(self, record: Callable[..., None], real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with self._lock:
                result = real(*args, **options)
                record(result, *args)
                return result

        return call

    def _open(self, fd: int, path: Any, flags: int, *_: Any) -> None:
        full = os.path.realpath(path)
        if flags & os.O_CREAT and full not in self._inodes and full.startswith(self._base):
            self._link(full)
        if full in self._inodes:
            self._files[fd] = self._inodes[full]

    def _mkdir(self, _: None, path: Any, *__: Any) -> None:
        self._link(os.path.realpath(path), folder=True)

    def _link(self, full: str, *, folder: bool = False) -> None:
        self._inodes[full] = len(self.events) + 1
        self.events.append(("set", *self._entry(full), self._inodes[full], folder))

    def _entry(self, full: str) -> tuple[int, str]:
        return self._inodes[os.path.dirname(full)], os.path.basename(full)

    def _close(self, _: None, fd: int) -> None:
        self._files.pop(fd, None)

    def _write(self, done: int, fd: int, data: Any) -> None:
        if fd in self._files:
            self.events.append(("write", self._files[fd], bytes(memoryview(data).cast("B")[:done])))

    def _fsync(self, _: None, fd: int) -> None:
        if fd in self._files:
            self.events.append(("sync", self._files[fd]))

    _fdatasync = _fsync

    def _replace(self, _: None, source: Any, target: Any) -> None:
        old, new = os.path.realpath(source), os.path.realpath(target)
        self._inodes[new] = self._inodes.pop(old)
        self.events.append(("rename", *self._entry(old), os.path.basename(new), self._inodes[new]))

    def _unlink(self, _: None, path: Any, *__: Any) -> None:
        full = os.path.realpath(path)
        self.events.append(("set", *self._entry(full), None, False))
        self._inodes.pop(full, None)


@dataclass
class _Disk:
    """What is synced, and what is not."""

    entries: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    unsynced_entries: list[Event] = field(default_factory=list)
    content: dict[int, bytes] = field(default_factory=lambda: defaultdict(bytes))
    synced: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # bytes
    folders: set[int] = field(default_factory=lambda: {ROOT})
    promises: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        match event:
            case ("promise", path, contents):
                self.promises[path] = contents
            case ("write", inode, data):
                self.content[inode] += data
            case ("sync", inode):
                self.synced[inode] = len(self.content[inode])
                mine = [entry for entry in self.unsynced_entries if entry[1] == inode]
                self.unsynced_entries = [entry for entry in self.unsynced_entries if entry[1] != inode]
                for entry in mine:
                    _apply(entry, self.entries)
            case ("set", _, _, inode, is_folder):
                if is_folder:
                    self.folders.add(inode)
                self.unsynced_entries.append(event)
            case _:
                self.unsynced_entries.append(event)

    def trees(self) -> Iterator[dict[str, int]]:
        """Path -> inode, for every choice of the entries that were not synced."""
        for kept in itertools.product((False, True), repeat=len(self.unsynced_entries)):
            entries = defaultdict(dict, {folder: dict(names) for folder, names in self.entries.items()})
            for entry in itertools.compress(self.unsynced_entries, kept):
                _apply(entry, entries)
            yield dict(_walk(entries, ROOT, ""))

    def contents(self, inode: int) -> set[Any]:
        if inode in self.folders:
            return {"folder"}
        whole, safe = self.content[inode], self.synced[inode]
        half = (safe + len(whole)) // 2
        zeros = bytes(len(whole) - half)
        return {whole, whole[:safe], whole[:half], whole[:half] + zeros, whole[:safe] + bytes(len(whole) - safe)}


def _apply(entry: Event, entries: dict[int, dict[str, int]]) -> None:
    match entry:
        case ("set", folder, name, None, _):
            entries[folder].pop(name, None)
        case ("set", folder, name, inode, _):
            entries[folder][name] = inode
        case ("rename", folder, old, new, inode):
            entries[folder].pop(old, None)
            entries[folder][new] = inode


def _walk(entries: dict[int, dict[str, int]], folder: int, path: str) -> Iterator[tuple[str, int]]:
    for name, inode in entries.get(folder, {}).items():
        yield f"{path}{name}", inode
        yield from _walk(entries, inode, f"{path}{name}/")


def _broken_at(events: list[Event]) -> Iterator[str]:
    disk = _Disk()
    for event in events:
        disk.see(event)
    for tree in disk.trees():
        for path, promised in disk.promises.items():
            found = disk.contents(tree[path]) if path in tree else {None}
            for content in found - set(promised):
                yield f"after {events[-1][:2]}: {path} is {content!r}, and {promised!r} was promised"
