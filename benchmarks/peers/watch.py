"""What a process and all its descendants use together: private memory (RssAnon: mapped files and the page cache do not
count) and CPU. Looked at twenty times a second, so that those that end, and that nobody waits for, are counted too."""

from __future__ import annotations

import threading

from benchmarks.cpu import own_ticks, seconds_of, tree
from benchmarks.memory import INTERVAL_S, anonymous_bytes


class Watch(threading.Thread):
    """`with Watch(job, servers) as watch: …`, then `peak_mb` is the most memory that these had together, and `cpu_s`
    what they have spent: the job since its start, the servers meanwhile."""

    def __init__(self, job: int, servers: list[int]) -> None:
        super().__init__(daemon=True)
        self._job, self._servers = job, servers
        self._ended = threading.Event()
        self._ticks: dict[int, int] = {}
        self._before = {pid: own_ticks(fields) for root in servers for pid, fields in tree(root).items()}
        self.peak_mb = 0.0

    @property
    def cpu_s(self) -> float:
        return seconds_of(sum(self._ticks.values()) - sum(self._before.get(pid, 0) for pid in self._ticks))

    def run(self) -> None:
        while True:
            found = {pid: fields for root in (self._job, *self._servers) for pid, fields in tree(root).items()}
            self._ticks |= {pid: own_ticks(fields) for pid, fields in found.items()}
            self.peak_mb = max(self.peak_mb, sum(map(anonymous_bytes, found)) / 1e6)
            if self._ended.wait(INTERVAL_S):
                return

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
