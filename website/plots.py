"""Plots of the figures in docs/benchmarks.md, as SVG. They are drawn from the tables of that page, so that a plot and
its table say the same. Run: python -m website.plots (make pictures)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "pictures" / "plots"

WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 640, 230, 90, 46, 22, 8
COLOURS = ("#4c51bf", "#a3aed0")  # ours, others


@dataclass(frozen=True)
class Plot:
    name: str
    title: str
    section: str  # of benchmarks.md; its first table is drawn
    column: str  # whose figures are drawn
    ours: str  # rows with this in their name are drawn in our colour
    label: str = "{}"  # how a row is called


PLOTS = (
    Plot("source", "Reading: million rows a second, in batch", "Source", "M rows/s in batch", "ledger"),
    Plot("sink", "Writing: million rows a second, in batch", "Sink", "M rows/s in batch", "ledger"),
    Plot("tokens", "Topic to topic, with and without tokens: speed", "Tokens", "speed", "numbers"),
    Plot("writers", "Commits a second of all writers of one topic", "Many writers", "commits/s", "", "{} processes"),
)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, svg in drawn(DOCS / "benchmarks.md"):
        (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")


def drawn(page: Path) -> Iterator[tuple[str, str]]:
    """Each plot's name, and the plot."""
    text = page.read_text(encoding="utf-8")
    for plot in PLOTS:
        yield plot.name, bars(plot.title, list(_bars(plot, text)))


def bars(title: str, rows: list[tuple[str, float, str]]) -> str:
    """A chart of horizontal bars: for each a label, a figure and a colour."""
    longest = max(value for _, value, _ in rows)
    height = TOP + len(rows) * (BAR + GAP) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#1a202c">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="26" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (label, value, colour) in enumerate(rows):
        y = TOP + number * (BAR + GAP)
        length = max(1.0, (WIDTH - LEFT - RIGHT) * value / longest)
        lines += [
            f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" fill="{colour}"/>',
            f'<text x="{LEFT + length + 8:.1f}" y="{y + 16}">{value:,g}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def _bars(plot: Plot, text: str) -> Iterator[tuple[str, float, str]]:
    header, *rows = _table(text, plot.section)
    for cells in rows:
        name = re.sub(r"`| \(.*\)", "", cells[0])
        figure = _figure(cells[header.index(plot.column)])
        yield plot.label.format(name), figure, COLOURS[0 if plot.ours in name else 1]


def _table(text: str, section: str) -> list[list[str]]:
    """The first table below the heading that begins with these words: its rows, with their cells."""
    found = re.search(rf"^## {re.escape(section)}[\s\S]*?((?:^\|.*\n)+)", text, re.M)
    if found is None:
        raise LookupError(f"docs/benchmarks.md has no section '{section}' with a table")
    lines = [line for line in found[1].splitlines() if "---" not in line]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]


def _figure(cell: str) -> float:
    """The figure of a cell, without what stands in brackets; of runs, which a comma and a space divide, the mean."""
    runs = [float(run.replace(",", "")) for run in cell.partition("(")[0].strip(" *").split(", ")]
    return runs[0] if len(runs) == 1 else round(sum(runs) / len(runs))


if __name__ == "__main__":
    main()
