"""CPU seconds of a whole process tree, from /proc: driver, JVM, Python workers, ZooKeeper."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _CHILDREN_SYSTEM = 1, 11, 14  # fields of /proc/<pid>/stat after the command's ")"


def stats() -> Iterator[tuple[int, list[str]]]:
    """(pid, fields after the command) of every process that can be read."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text()
            except OSError:  # it ended between the listing and the read
                continue
            yield int(folder.name), text.rpartition(")")[2].split()


def tree(root: int | None = None) -> dict[int, list[str]]:
    """The root process (default: this one) and all its living descendants."""
    everything = dict(stats())
    children: dict[int, list[int]] = {}
    for pid, fields in everything.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    found, queue = {}, [root or os.getpid()]
    while queue:
        pid = queue.pop()
        if pid in everything:
            found[pid] = everything[pid]
            queue += children.get(pid, [])
    return found


def tree_cpu_seconds(root: int | None = None) -> float:
    """User and system time of the tree, with that of children that ended and were waited for."""
    ticks = sum(int(t) for fields in tree(root).values() for t in fields[_USER : _CHILDREN_SYSTEM + 1])
    return ticks / _TICKS_PER_SECOND
