"""What a workload is: what it prepares, how one contestant does it once, and how its figures become a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, ClassVar

from benchmarks.contestants import Results, race
from benchmarks.peers.stage import Stage
from benchmarks.peers.systems import LEDGER
from benchmarks.report import markdown

Figures = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A figure of the results and its heading. With `spread`, the least and the most of the rounds stand beside it."""

    key: str
    heading: str
    digits: int = 2
    spread: bool = False

    def cell(self, runs: Sequence[Figures]) -> str:
        found = middle(runs, self.key)
        if found is None:
            return ""
        values = [run[self.key] for run in runs]
        text = f"{found:,.{self.digits}f}"
        if self.spread and len(values) > 1:
            text += f" ({min(values):,.{self.digits}f} to {max(values):,.{self.digits}f})"
        return text


@dataclass(frozen=True)
class Plot:
    """A figure that is drawn, from the same medians as the table."""

    key: str
    title: str


@dataclass(frozen=True)
class Versus:
    """How the ledger compares with each of the others in a figure: over 1 it is the better one, under 1 it is worse."""

    key: str
    heading: str
    less_is_better: bool = False

    def cell(self, runs: Results, name: str) -> str:
        ours, theirs = middle(runs.get(LEDGER, []), self.key), middle(runs[name], self.key)
        if not ours or not theirs or name == LEDGER:
            return ""
        return f"{theirs / ours if self.less_is_better else ours / theirs:.2f}"


def middle(runs: Sequence[Figures], key: str) -> float | None:
    """The median of the rounds; None if this contestant does not have the figure."""
    values = [run[key] for run in runs if key in run]
    return median(values) if values else None


class Workload(ABC):
    name: ClassVar[str]
    title: ClassVar[str]
    one_round: ClassVar[bool] = False  # what it measures takes long, or begins anew each time
    warm_up: ClassVar[bool] = True  # for what goes on in the one session; and never where one round is all
    plots: ClassVar[tuple[Plot, ...]] = ()
    versus: ClassVar[tuple[Versus, ...]] = ()

    def contestants(self, stage: Stage) -> tuple[str, ...]:
        return stage.names

    def prepare(self, stage: Stage) -> None:  # noqa: B027  most have nothing to prepare
        """What all contestants use, made once."""

    def clean(self, stage: Stage) -> None:  # noqa: B027
        """Removes what was prepared."""

    @abstractmethod
    def run(self, stage: Stage, name: str) -> Figures:
        """One contestant, once, from nothing to nothing."""

    @abstractmethod
    def columns(self, runs: Results) -> Sequence[Column]: ...

    def measure(self, stage: Stage) -> Results:
        bench = replace(stage.bench, rounds=1) if self.one_round else stage.bench
        runs = {name: partial(self.run, stage, name) for name in self.contestants(stage)}
        self.prepare(stage)
        try:
            return race(bench, runs, lambda _, run: run(), warm_up=self.warm_up and not self.one_round)
        finally:
            self.clean(stage)

    def table(self, runs: Results) -> str:
        return compared(self.title, runs, self.columns(runs), self.versus)


def compared(title: str, runs: Results, columns: Sequence[Column], versus: Sequence[Versus]) -> str:
    """A row for each contestant."""
    lines = []
    for name, results in runs.items():
        cells = [column.cell(results) for column in columns]
        lines.append([name, *cells, *(other.cell(runs, name) for other in versus)])
    headings = [column.heading for column in columns] + [other.heading for other in versus]
    return markdown(title, ["", *headings], lines)


def by_step(title: str, step: str, runs: Results, columns: Sequence[Column]) -> str:
    """A row for each contestant and each step that it came to; the keys of its figures end with `@` and the step."""
    lines = []
    for name, results in runs.items():
        steps = {int(key.partition("@")[2]) for result in results for key in result}
        for number in sorted(steps):
            at = [replace(column, key=f"{column.key}@{number}") for column in columns]
            lines.append([name, f"{number:,}", *(column.cell(results) for column in at)])
    return markdown(title, ["", step, *(column.heading for column in columns)], lines)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all is not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
