"""The faults of a run, drawn from its seed. Each begins, lasts for a while and ends, and is a line in the log."""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from pyspark_ledger.base import names
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from tests.soak.disk import Disk
from tests.soak.processes import Process
from tests.soak.world import COPIES, JOBS, ORDERS

DRIVERS_REST_S = 25.0  # or Spark would do nothing but start
REPLACED = {"named", "minter", "plain", "service", "worker", "resetter", "archivist", "maintainer", "spender"}
REPLACED |= {"sharer", "keysharer", "transactor"}


@dataclass
class Faults:
    """What is under way, and what comes next. One fault of ZooKeeper and one of the disk at a time, one of a process
    for each process."""

    chance: random.Random
    cast: list[Process]
    zookeeper: LocalZooKeeper
    disk: Disk
    client: LedgerClient
    say: Callable[[str], None]
    counts: Counter[str] = field(default_factory=Counter)
    _ends: list[tuple[float, int, str, Callable[[], None]]] = field(default_factory=list)
    _busy: set[str] = field(default_factory=set)
    _numbers: count[int] = field(default_factory=count)
    _rested: dict[str, float] = field(default_factory=dict)

    def run(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        following = time.monotonic()
        self._kill_drivers_soon(min(seconds / 3, 30.0))
        while (now := time.monotonic()) < deadline:
            self._end_due(now)
            for process in self.cast:
                if process.name not in self._busy:
                    process.look()
            if now >= following:
                self._draw()
                following = now + self.chance.uniform(0.5, 3.0)
            time.sleep(0.05)

    def _kill_drivers_soon(self, seconds: float) -> None:
        """So that batches are replayed also in a short run."""
        for driver in (each for each in self.cast if each.is_driver):
            self._later(driver.name, self.chance.uniform(0, seconds), partial(self._kill, driver))

    def end_all(self) -> None:
        while self._ends:
            self._end_due(self._ends[0][0])
        self.disk.restore_all()

    def _end_due(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, _, target, end = heapq.heappop(self._ends)
            self._busy.discard(target)
            end()
            self._rested[target] = time.monotonic()

    def _draw(self) -> None:
        draw = self.chance.choices(
            [self._kill, self._pause, self._replace, self._kill_server, self._pause_server, self._kill_two, self._fill,
             self._damage],
            [30, 22, 10, 12, 10, 3, 5, 8],
        )[0]  # fmt: skip
        draw()

    def _begin(self, kind: str, target: str, seconds: float, what: str, end: Callable[[], None]) -> None:
        """It has begun."""
        self.counts[kind] += 1
        self.say(f"{what}, for {seconds:.1f} s")
        self._later(target, seconds, end)

    def _later(self, target: str, seconds: float, end: Callable[[], None]) -> None:
        self._busy.add(target)
        heapq.heappush(self._ends, (time.monotonic() + seconds, next(self._numbers), target, end))

    # -- processes ---------------------------------------------------------------------------------------------------

    def _process(self, roles: set[str] | None = None) -> Process | None:
        now = time.monotonic()
        free = [each for each in self.cast if each.name not in self._busy and (roles is None or each.role in roles)]
        free = [each for each in free if not each.is_driver or now - self._rested.get(each.name, 0.0) > DRIVERS_REST_S]
        if not free:
            return None
        # Drivers are few and do most of the work, so their turn comes more often.
        process = self.chance.choices(free, [5 if each.is_driver else 1 for each in free])[0]
        process.await_question(1.0)
        time.sleep(self.chance.uniform(0, 0.02))
        return process

    def _kill(self, process: Process | None = None) -> None:
        process = process or self._process()
        if process is not None:
            process.kill()
            seconds = self.chance.choice([0.0, self.chance.uniform(0, 2), process.session_s + 2])
            self._begin("kill", process.name, seconds, f"SIGKILL of {process.name}", process.start)

    def _pause(self) -> None:
        process = self._process()
        if process is not None:
            is_long = self.chance.random() < 0.4
            seconds = process.session_s + self.chance.uniform(2, 4) if is_long else self.chance.uniform(0.3, 2.5)
            process.pause()
            kind = "pause beyond the session" if is_long else "pause"
            self._begin(kind, process.name, seconds, f"SIGSTOP of {process.name}", process.resume)

    def _replace(self) -> None:
        """Stopped for so long that another is started in its place; then both run for a while."""
        process = self._process(REPLACED)
        if process is None:
            return
        process.pause()

        def replace() -> None:
            process.replace()
            both = self.chance.uniform(1, 5)
            self._begin("both", process.name, both + 2, f"a second {process.name}", lambda: resume(both))

        def resume(seconds: float) -> None:
            process.resume_zombie()
            self._begin("zombie", process.name, seconds, f"the first {process.name} goes on", process.end_zombie)

        seconds = process.session_s + self.chance.uniform(0, 3)
        self._begin("replace", process.name, seconds, f"SIGSTOP of {process.name}, to be replaced", replace)

    # -- ZooKeeper ---------------------------------------------------------------------------------------------------

    def _server(self) -> tuple[int, str] | None:
        if "zookeeper" in self._busy:
            return None
        try:
            leader = self.zookeeper.leader(5.0)
        except LedgerError:
            return None
        leads = self.chance.random() < 0.5
        member = leader if leads else (leader + self.chance.randint(1, 2)) % 3
        return member, f"member {member} of ZooKeeper, which {'leads' if leads else 'follows'}"

    def _kill_server(self) -> None:
        found = self._server()
        if found is not None:
            member, what = found
            self.zookeeper.kill(member)
            seconds = self.chance.uniform(0.5, 8)
            self._begin("kill of a server", "zookeeper", seconds, f"SIGKILL of {what}", lambda: self._restart([member]))

    def _pause_server(self) -> None:
        found = self._server()
        if found is not None:
            member, what = found
            self.zookeeper.pause(member)
            seconds = self.chance.choice([self.chance.uniform(0.5, 3), self.chance.uniform(6, 12)])
            end = lambda: self.zookeeper.resume(member)  # noqa: E731
            self._begin("pause of a server", "zookeeper", seconds, f"SIGSTOP of {what}", end)

    def _kill_two(self) -> None:
        """No quorum is left."""
        found = self._server()
        if found is not None:
            members = [found[0], (found[0] + 1) % 3]
            for member in members:
                self.zookeeper.kill(member)
            seconds = self.chance.uniform(1, 12)
            what = f"SIGKILL of two members of ZooKeeper, {members}"
            self._begin("no quorum", "zookeeper", seconds, what, lambda: self._restart(members))

    def _restart(self, members: list[int]) -> None:
        for member in members:
            self.zookeeper.restart(member)

    # -- the disk ----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        if "disk" not in self._busy:
            leave = self.chance.choice([0, 0, 8_192, 65_536])
            self.disk.fill(leave)
            what = f"the disk is full but for {leave} bytes" if self.disk.is_mounted else "the disk takes no files"
            self._begin("full disk", "disk", self.chance.uniform(1, 6), what, self.disk.free)

    def _damage(self) -> None:
        """Only a file that is named is whole, and can be put back as it was. Most readers follow the end: so it is one
        of the last entries, or any file, of an index or of a generation too."""
        if self._busy & {"disk", "zookeeper"}:
            return
        topic = self.chance.choice([ORDERS, ORDERS, COPIES, JOBS])
        try:
            log = namespace_of(self.client).log(topic)
            view = log.refresh(sync=True)
            if self.chance.random() < 0.7:
                found = [entry.file for commit in view.open_commits for entry in log.entries(commit)][-3:]
            else:
                found = list(gc.references(log, view))
        except LedgerError:
            return
        files = [self.disk.storage / names.staged_file(log.topic.uuid, file.epoch, file.uid) for file in found]
        there = [file for file in files if file.exists()]
        if there:
            file = self.chance.choice(there)
            how = self.disk.damage(file, self.chance)
            seconds, what = self.chance.uniform(2, 8), f"{file.name} of {topic}: {how}"
            self._begin("damaged file", "disk", seconds, what, lambda: self.disk.restore(file))
