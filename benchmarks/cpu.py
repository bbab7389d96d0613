"""What /proc knows: CPU seconds, and the processes that descend from this one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PARENT = 1  # the field of /proc/<pid>/stat after the command's ")"
_OWN_TIMES = slice(11, 13)  # user and system
_TIMES = slice(11, 15)  # user and system, its own and those of its children that have ended


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


def own_cpu_seconds() -> float:
    """What this process and its descendants have spent so far, with those that have ended and that their parents have
    waited for: of a machine that others use too."""
    return seconds_of(sum(sum(map(int, fields[_TIMES])) for fields in tree().values()))


def own_ticks(fields: list[str]) -> int:
    """What a process has spent, without its children."""
    return sum(map(int, fields[_OWN_TIMES]))


def seconds_of(ticks: int) -> float:
    return ticks / _TICKS_PER_SECOND


def machine_cpu_seconds() -> float:
    """What the whole machine has spent so far, user and system. A sum over the processes would lose those that end
    in between: Spark starts and ends Python workers as it likes. So run benchmarks where nothing else runs."""
    user, nice, system = (int(field) for field in Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / _TICKS_PER_SECOND
