"""`python -m benchmarks.peers.report RESULTS`: writes the tables of docs/benchmarks.md, between its two markers, and
the plots, from the results of a run; and keeps the results beside this file, so that a test can compare all three. What
the run did not measure stays as it was: every workload says what it was taken on."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.systems import LEDGER
from benchmarks.peers.work.base import Workload, middle
from benchmarks.peers.work.table import WORKLOADS
from benchmarks.session import REPOSITORY
from website.plots import COLOURS, bars

PAGE = REPOSITORY / "docs" / "benchmarks.md"
PICTURES = REPOSITORY / "docs" / "pictures" / "peers"
SHOWN = Path(__file__).with_name("results.json")
BEGIN, END = "<!-- peers: begin; written by python -m benchmarks.peers.report -->", "<!-- peers: end -->"

Results = dict[str, dict[str, Any]]  # by workload: its `environment` and its `runs`


def written(page: str, results: Results) -> str:
    """The page with what stands between the markers replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page has no markers: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{_section(results)}\n\n{END}{after}"


def plots(results: Results) -> Iterator[tuple[str, str]]:
    """The name of each picture, and its SVG."""
    for workload, part in _shown(results):
        runs = part["runs"]
        for plot in workload.plots:
            found = [(name, middle(runs[name], plot.key)) for name in runs]
            rows = [(name, round(value, 3), COLOURS[LEDGER not in name]) for name, value in found if value is not None]
            if rows:
                yield _picture(workload, plot.key), bars(plot.title, rows)


def _section(results: Results) -> str:
    """What most workloads were taken on stands once, above; the others say their own."""
    taken_on = {workload.name: _conditions(part["environment"]) for workload, part in _shown(results)}
    usual = Counter(taken_on.values()).most_common(1)[0][0]
    parts = [usual]
    for workload, part in _shown(results):
        runs = part["runs"]
        heading, _, table = workload.table(runs).partition("\n\n")
        images = [
            f"![{plot.title}](pictures/peers/{_picture(workload, plot.key)}.svg)"
            for plot in workload.plots
            if any(middle(runs[name], plot.key) is not None for name in runs)
        ]
        own = [taken_on[workload.name]] if taken_on[workload.name] != usual else []
        parts += [heading, *own, *images, table]
    return "\n\n".join(parts)


def _shown(results: Results) -> Iterator[tuple[Workload, dict[str, Any]]]:
    for kind in WORKLOADS:
        if kind.name in results:
            yield kind(), results[kind.name]


def _picture(workload: Workload, key: str) -> str:
    return f"{workload.name}-{key.replace('_', '-').replace('@', '-')}"


def _conditions(environment: dict[str, Any]) -> str:
    sizes, jars = environment["sizes"], ", ".join(f"`{jar}`" for jar in environment["jars"])
    return (
        f"Taken on {environment['taken']} at commit {environment['commit']}: {sizes['rows']:,} records of 128 bytes, "
        f"{sizes['wide_rows']:,} of 1 kB, {environment['rounds']} rounds after a warm-up, in rotating order; medians, "
        f"and in brackets the least and the most. PySpark {environment['pyspark']}, local[{environment['cores']}] of "
        f"{environment['cores_of_the_machine']} cores, Python {environment['python']}, pyarrow "
        f"{environment['pyarrow']}, {environment['java']}, confluent-kafka {environment['confluent_kafka']}; {jars}."
    )


def write(results: Results, page: Path, pictures: Path, shown: Path) -> None:
    page.write_text(written(page.read_text(), results))
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.svg"):
        old.unlink()
    for name, svg in plots(results):
        (pictures / f"{name}.svg").write_text(svg)
    shown.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.report", description=__doc__)
    parser.add_argument("results", type=Path, help="what python -m benchmarks.peers has written")
    asked = parser.parse_args()
    results = json.loads(asked.results.read_text())
    if any(part["environment"]["small"] for part in results.values()):
        parser.error("these are the results of a run with --small, which show that it runs and nothing else")
    kept = json.loads(SHOWN.read_text()) if SHOWN.exists() else {}
    write(kept | results, PAGE, PICTURES, SHOWN)
    print(f"written: {PAGE}, {PICTURES}, {SHOWN}; new there: {', '.join(results)}")
    if missing := [kind.name for kind in WORKLOADS if kind.name not in kept | results]:
        print(f"not measured yet, and so not on the page: {', '.join(missing)}")


if __name__ == "__main__":
    main()
