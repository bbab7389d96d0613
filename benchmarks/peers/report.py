"""`python -m benchmarks.peers.report RESULTS`: writes the tables of docs/benchmarks.md, between its two markers, and
the plots, from the results of a run; and keeps the results beside this file, so that a test can compare all three."""

from __future__ import annotations

import argparse
import json
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


def written(page: str, results: dict[str, Any]) -> str:
    """The page with what stands between the markers replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page has no markers: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{_section(results)}\n\n{END}{after}"


def plots(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The name of each picture, and its SVG."""
    for workload, runs in _shown(results):
        for plot in workload.plots:
            found = [(name, middle(runs[name], plot.key)) for name in runs]
            rows = [(name, round(value, 3), COLOURS[LEDGER not in name]) for name, value in found if value is not None]
            if rows:
                yield _picture(workload, plot.key), bars(plot.title, rows)


def _section(results: dict[str, Any]) -> str:
    parts = [_conditions(results["environment"])]
    for workload, runs in _shown(results):
        heading, _, table = workload.table(runs).partition("\n\n")
        images = [
            f"![{plot.title}](pictures/peers/{_picture(workload, plot.key)}.svg)"
            for plot in workload.plots
            if any(middle(runs[name], plot.key) is not None for name in runs)
        ]
        parts += [heading, *images, table]
    return "\n\n".join(parts)


def _shown(results: dict[str, Any]) -> Iterator[tuple[Workload, dict[str, list[dict[str, Any]]]]]:
    for kind in WORKLOADS:
        if kind.name in results["workloads"]:
            yield kind(), results["workloads"][kind.name]


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


def write(results: dict[str, Any], page: Path, pictures: Path, shown: Path) -> None:
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
    if results["environment"]["small"]:
        parser.error("these are the results of a run with --small, which show that it runs and nothing else")
    if missing := [kind.name for kind in WORKLOADS if kind.name not in results["workloads"]]:
        print(f"not in these results, and so not on the page any more: {', '.join(missing)}")
    write(results, PAGE, PICTURES, SHOWN)
    print(f"written: {PAGE}, {PICTURES}, {SHOWN}")


if __name__ == "__main__":
    main()
