"""What a commit and the start of a query cost as the number of commits grows: one row per commit, by Spark's batch
write; then a query is started again from its checkpoint, and gets the newest commits. The ledger grows on by its
Python producer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contestants import Results
from benchmarks.data import numbered
from benchmarks.peers.stage import Stage
from benchmarks.peers.systems import LEDGER, Ledger, System
from benchmarks.peers.work.base import Column, Figures, Workload, by_step, percentile
from benchmarks.session import drain

WINDOW = 10  # commits whose median is the cost of one
STARTS = 5
PLANNING = ("latestOffset", "getOffset", "getBatch", "queryPlanning", "setOffsetRange", "reportLatestOffset")


@dataclass
class Age:
    """One topic and how long its commits took."""

    stage: Stage
    system: System
    folder: Path
    times_ms: list[float] = field(default_factory=list)

    def commit(self) -> None:
        frame = numbered(self.stage.bench.spark, 1, 1)
        began = time.perf_counter()
        self.system.append(frame)
        self.times_ms.append(1e3 * (time.perf_counter() - began))

    def grow(self, age: int) -> None:
        while len(self.times_ms) < age:
            self.commit()

    def grow_by_producer(self, age: int) -> float:
        """The median of the last commits, in ms; these are not beside those of Spark's batch writes."""
        assert isinstance(self.system, Ledger)
        times_ms: list[float] = []
        with self.system.client() as client, client.producer(self.system.place.topic, linger_ms=None) as producer:
            for number in range(len(self.times_ms), age):
                began = time.perf_counter()
                producer.send({"id": number, "text": f"{number:020d}", "payload": bytes(100)})
                producer.flush()
                times_ms.append(1e3 * (time.perf_counter() - began))
        self.times_ms += times_ms
        return percentile(times_ms[-100 * WINDOW :], 0.5)

    def starts(self) -> Iterator[tuple[float, float]]:
        """(planning ms, seconds of the whole query) of queries that begin where the one before has ended."""
        self._query()  # brings the checkpoint to the end, however far that is
        for _ in range(STARTS):
            self.commit()
            began = time.perf_counter()
            durations = self._query()
            yield sum(durations.get(name, 0) for name in PLANNING), time.perf_counter() - began

    def _query(self) -> dict[str, Any]:
        stream = self.system.stream(self.stage.bench.spark)
        progress = drain(stream, "noop", self.folder / "checkpoint")
        return progress[-1]["durationMs"] if progress else {}


class Ageing(Workload):
    name = "ageing"
    title = "Cost of a commit and of starting a query, by number of commits"
    one_round = True

    def run(self, stage: Stage, name: str) -> Figures:
        figures: Figures = {}
        with stage.bench.scratch() as folder, stage.fresh(name, partitions=1) as system:
            system.create(stage.bench.spark)
            age = Age(stage, system, folder)
            for commits in stage.sizes.ages:
                age.grow(commits)
                figures |= self._at(commits, age, percentile(age.times_ms[-WINDOW:], 0.5))
            for commits in stage.sizes.later_ages if name == LEDGER else ():
                figures |= self._at(commits, age, None, age.grow_by_producer(commits))
        return figures

    def _at(self, commits: int, age: Age, commit_ms: float | None, producer_ms: float | None = None) -> Figures:
        starts = list(age.starts())
        found = {
            "commit_ms": commit_ms,
            "producer_ms": producer_ms,
            "planning_ms": percentile([ms for ms, _ in starts], 0.5),
            "start_s": percentile([seconds for _, seconds in starts], 0.5),
        }
        print(f"    {age.system.place.system} at {commits} commits: {found}", flush=True)
        return {f"{key}@{commits}": round(value, 3) for key, value in found.items() if value is not None}

    def columns(self, runs: Results) -> Sequence[Column]:
        return [
            Column("commit_ms", "commit by Spark, ms", 1),
            Column("producer_ms", "by the Python producer, ms", 1),
            Column("planning_ms", "planning, ms", 0),
            Column("start_s", "whole query, s"),
        ]

    def table(self, runs: Results) -> str:
        return by_step(self.title, "commits", runs, self.columns(runs))
