"""Charts as SVG, drawn here: they need no library and no script, and widths are in percent, so that texts keep their
size on every screen. Colours come from the style sheet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from markupsafe import Markup

from pyspark_ledger.console import words

_NARROW_PX = 320  # marks that would overlap on a screen of this width are in different lanes
_FLAG_PX = 24
_LANE_PX, _BAR_PX = 22, 34
_GIVEN_UP = 6.0  # percent of the bar's width, for what retention gave up
_SPARK_PX, _CHART_PX = 24.0, 120.0
_FLAGS = 52
X = Callable[[int], float]  # where a record is, in percent


def _svg(kind: str, height: float, label: str, inside: str) -> Markup:
    return Markup(f'<svg class="{kind}" height="{height:.0f}" role="img" aria-label="{escape(label)}">{inside}</svg>')


def _rect(kind: str, x: float, y: float, width: float, height: float, title: str = "") -> str:
    """``x`` and ``width`` in percent."""
    said = f"<title>{escape(title)}</title>" if title else ""
    place = f'x="{x:.3f}%" y="{y:.1f}" width="{width:.3f}%" height="{height:.1f}"'
    return f'<rect class="{kind}" {place}>{said}</rect>'


def _text(x: float, y: float, text: str) -> str:
    anchor = "end" if x >= 100 else "start"
    return f'<text class="tick" x="{x:g}%" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


# -- how much came when --------------------------------------------------------------------------------------------


def spark(values: Sequence[int], label: str) -> Markup:
    """A row of bars, as wide as its cell."""
    if not values:
        return Markup('<span class="faint">…</span>')
    width, most = 100 / len(values), max(values)
    inside = f'<line class="axis" x1="0" x2="100%" y1="{_SPARK_PX}" y2="{_SPARK_PX}"/>'
    for at, value in enumerate(values):
        if value:
            tall = max(1.5, (_SPARK_PX - 2) * value / most)
            inside += _rect("bars", at * width, _SPARK_PX - tall, width * 0.72, tall)
    return _svg("spark", _SPARK_PX + 1, label, inside)


def over_time(buckets: Sequence[Mapping[str, Any]], value: str, way: str, label: str, kind: str = "bars") -> Markup:
    """One value of the buckets: bars for what came, an area for what has become of it."""
    values, shown = [bucket[value] for bucket in buckets], words.WAYS[way]
    most, least = max(values, default=0), 0 if kind == "bars" else min(values, default=0)
    width, spread, room = 100 / max(len(values), 1), max(most - least, 1), _CHART_PX - 18
    lowest = "" if kind == "bars" and most else shown(least)  # bars begin at nothing
    inside = _grid([shown(most), shown(least + (most - least) / 2), lowest] if most > least else ["", "", lowest])
    for at, (bucket, each) in enumerate(zip(buckets, values, strict=True)):
        tall = room * (each - least) / spread
        tall = max(tall, 2.0) if each > least or kind == "area" else 0.0
        inside += _rect(kind, at * width, _CHART_PX - tall, width * (0.8 if kind == "bars" else 1.02), tall)
        when = f"{bucket['from']:%Y-%m-%d %H:%M:%S} to {bucket['to']:%H:%M:%S} UTC"
        inside += _rect("hover", at * width, 0, width, _CHART_PX, f"{when}: {shown(each)}")
    if buckets:
        inside += _text(0, _CHART_PX + 15, _short(buckets[0]["from"]))
        inside += _text(100, _CHART_PX + 15, _short(buckets[-1]["to"]))
    return _svg("chart", _CHART_PX + 20, label, inside)


def _grid(labels: Sequence[str]) -> str:
    lines = ""
    for at, label in enumerate(labels):
        y = 18 + (_CHART_PX - 18) * at / 2
        lines += f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        lines += _text(0, y - 4, label) if label else ""
    return lines


def _short(moment: datetime) -> str:
    return f"{moment:%m-%d %H:%M:%S} UTC"


# -- the topic from its start to its end -------------------------------------------------------------------------


def letter(number: int) -> str:
    """A, B, … Z, AA: what stands on a subscription's flag, and before its name below."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(65 + rest) + text
    return text


def bar(topic: Mapping[str, Any]) -> Markup:
    """A topic as one bar: what was given up, its ledgers, the compaction horizon, and where each subscription is."""
    x = _scale(topic["begin"], topic["end"])
    flags = [(letter(number), x(mark["at"]), mark) for number, mark in enumerate(topic["subscriptions"][:_FLAGS])]
    lanes = _lanes([at for _, at, _ in flags])
    top = 6 + _LANE_PX * (max(lanes, default=-1) + 1)
    inside = _ledgers(topic, x, top)
    if topic["horizon"] is not None:
        inside += _horizon(topic, x(topic["horizon"]), top)
    for (name, at, mark), lane in zip(flags, lanes, strict=True):
        inside += _flag(name, at, mark, top, 4 + _LANE_PX * lane)
    height = top + _BAR_PX + 22
    inside += _text(0, height - 4, words.count(topic["begin"]))
    inside += _text(100, height - 4, f"{words.count(topic['end'])} records")
    return _svg("bar", height, _said(topic), inside)


def _scale(begin: int, end: int) -> X:
    left = _GIVEN_UP if begin else 0.0

    def x(record: int) -> float:
        share = (record - begin) / (end - begin) if end > begin else 0.0
        return left + (100 - left) * max(0.0, min(1.0, share))

    return x


def _lanes(places: Sequence[float]) -> list[int]:
    """For each flag the lowest lane in which it overlaps no other."""
    taken: list[list[float]] = []
    found = []
    for place in places:
        at = place * _NARROW_PX / 100
        lane = next((n for n, others in enumerate(taken) if all(abs(at - o) >= _FLAG_PX for o in others)), len(taken))
        taken += [[]] if lane == len(taken) else []
        taken[lane].append(at)
        found.append(lane)
    return found


def _ledgers(topic: Mapping[str, Any], x: X, top: int) -> str:
    begin = topic["begin"]
    shapes = _rect("gone", 0, top, _GIVEN_UP, _BAR_PX, f"given up by retention: {begin:,} records") if begin else ""
    for number, ledger in enumerate(topic["ledgers"]):
        width = max(x(ledger["to"]) - x(ledger["from"]), 0.6 if ledger["open"] else 0.0)
        title = f"ledger {ledger['ledger']}: {ledger['to'] - ledger['from']:,} records"
        kind, title = ("open", f"{title}, open") if ledger["open"] else (f"ledger{number % 2}", title)
        shapes += _rect(kind, min(x(ledger["from"]), 100 - width), top, width, _BAR_PX, title)
    return shapes


def _horizon(topic: Mapping[str, Any], at: float, top: int) -> str:
    title = f"compaction horizon {topic['horizon_position']}: the {topic['horizon']:,} records before it are compacted"
    strip = _rect("strip", 0, top + _BAR_PX - 5, at, 5, title)
    return f'<g class="horizon">{strip}<line {_upright(at, top - 3, top)}/></g>'


def _flag(name: str, at: float, mark: Mapping[str, Any], top: int, y: int) -> str:
    title = f"{mark['subscription']} at {mark['position']}: {mark['behind']:,} records behind"
    kind = "flag" + ("" if mark["followed"] else " idle") + ("" if mark["behind"] else " done")
    anchor, shift = ("start", 4) if at < 50 else ("end", -4)
    text = f'<text x="{at:.3f}%" dx="{shift}" y="{y + 11}" text-anchor="{anchor}">{name}</text>'
    return f'<g class="{kind}"><title>{escape(title)}</title><line {_upright(at, y, top)}/>{text}</g>'


def _upright(at: float, y: int, top: int) -> str:
    """A line through the bar."""
    return f'x1="{at:.3f}%" x2="{at:.3f}%" y1="{y}" y2="{top + _BAR_PX + 4}"'


def _said(topic: Mapping[str, Any]) -> str:
    """The bar in a sentence, for those who do not see it."""
    horizon = "" if topic["horizon"] is None else f"; compacted up to record {topic['horizon']:,}"
    where = [f"{mark['subscription']} is {mark['behind']:,} behind" for mark in topic["subscriptions"][:20]]
    behind = f"; {', '.join(where)}" if where else ""
    return f"records {topic['begin']:,} to {topic['end']:,} in {len(topic['ledgers'])} ledgers{horizon}{behind}"
