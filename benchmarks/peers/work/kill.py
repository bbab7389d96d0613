"""SIGKILL to the driver in mid-stream, several times: how long until the next new record is visible, what is lost,
what is there twice. The job is started again at once, from its checkpoint."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.contestants import Results
from benchmarks.peers.driver import Job, driver
from benchmarks.peers.follow import follow
from benchmarks.peers.stage import Stage
from benchmarks.peers.systems import System
from benchmarks.peers.work.base import Column, Figures, Workload, percentile

RATE = 2_000  # rows per second
PATIENCE_S = 300.0
SETTLE_S = 20.0


class Seen:
    """What a stream has made visible so far."""

    def __init__(self, system: System, stack: ExitStack) -> None:
        self._look = follow(system, stack)
        self.times: Counter[int] = Counter()
        self.newest = -1

    def look(self) -> None:
        found = self._look()
        self.times.update(found)
        self.newest = max([self.newest, *found])

    def wait_for(self, number: int, job: Job) -> None:
        """Until a record of this number or a higher one is visible."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.look()
            if self.newest >= number:
                return
            job.check()
            if time.monotonic() > deadline:
                job.fail(f"made nothing new visible in {PATIENCE_S:g} s")
            time.sleep(0.01)


def lost_and_doubled(times: Counter[int], last: int) -> tuple[int, int]:
    """Of the records up to the last one: how many are not there, and how many are there once more than they should."""
    up_to = [count for number, count in times.items() if number <= last]
    return last + 1 - len(up_to), sum(up_to) - len(up_to)


class Kill(Workload):
    name = "kill"
    title = "SIGKILL to the driver in mid-stream"
    one_round = True

    def run(self, stage: Stage, name: str) -> Figures:
        with stage.bench.scratch() as folder, stage.fresh(name) as system, ExitStack() as stack:
            system.create(stage.bench.spark)
            seen = Seen(system, stack)
            times_s, last = self._kills(stage, system, folder, seen)
        lost, doubled = lost_and_doubled(seen.times, last)
        return {
            "again_s": round(percentile(times_s, 0.5), 2),
            "again_most_s": round(max(times_s), 2),
            "kills": len(times_s),
            "records": last + 1,
            "lost": lost,
            "doubled": doubled,
        }

    def _kills(self, stage: Stage, system: System, folder: Path, seen: Seen) -> tuple[list[float], int]:
        """Seconds from each kill to the next new record, and up to which record all must be there in the end."""
        chance, times_s = random.Random(1), []
        words = {
            "job": "pace", "place": system.place.words(), "work": str(folder), "jars": [str(jar) for jar in stage.jars],
            "rate": RATE, "started_at": time.time(),
        }  # fmt: skip
        job = driver(folder / "job.log", **words)
        try:
            for _ in range(stage.sizes.kills):
                seen.wait_for(seen.newest + 2 * RATE, job)
                time.sleep(chance.random())
                job.kill()
                began = time.monotonic()
                seen.look()  # what was on its way is not new
                job = driver(folder / "job.log", **words)
                seen.wait_for(seen.newest + 1, job)
                times_s.append(time.monotonic() - began)
            seen.wait_for(seen.newest + 2 * RATE, job)
            last = seen.newest
            self._settle(seen, last)
        finally:
            job.kill()
        return times_s, last

    def _settle(self, seen: Seen, last: int) -> None:
        """Others of the newest one's batch may still be on their way, while the job goes on."""
        deadline = time.monotonic() + SETTLE_S
        while lost_and_doubled(seen.times, last)[0] and time.monotonic() < deadline:
            time.sleep(0.1)
            seen.look()

    def columns(self, runs: Results) -> Sequence[Column]:
        return [
            Column("again_s", "seconds to the next new record, median", 1),
            Column("again_most_s", "longest", 1),
            Column("kills", "kills", 0),
            Column("records", "records", 0),
            Column("lost", "lost", 0),
            Column("doubled", "doubled", 0),
        ]
