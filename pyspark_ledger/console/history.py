"""How much came when: from the publish times and the running totals of the commits, so nobody has to collect anything.

Publish times never go back, so the totals at a moment are a search. Between two moments with equal totals nothing came,
and nothing is looked up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark_ledger.base.durations import parse_duration
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.trimmed import records_before_begin

RANGES = ("15m", "1h", "6h", "24h", "7d", "30d", "all")
Totals = tuple[int, int]  # records and bytes before a moment


@dataclass(frozen=True, slots=True)
class Bucket:
    from_ms: int
    to_ms: int
    records: int
    bytes: int
    total_records: int  # of the topic, at its end
    total_bytes: int


def span(log: Log, view: View, name: str, now_ms: int) -> tuple[int, int]:
    """From when to when."""
    if name not in RANGES:
        raise InvalidInput(f"'range' is '{name}': it must be one of {', '.join(RANGES)}", "LEDGER_INVALID_PARAMETER")
    if name != "all":
        return now_ms - round((parse_duration(name) or 0) * 1000), now_ms
    first = next(log.commits_since(view, 0), None)
    began = log.topic.created_ms if first is None else first.publish_ms
    return min(began, now_ms - 1000), now_ms


def buckets(log: Log, view: View, from_ms: int, to_ms: int, count: int) -> list[Bucket]:
    """What came in each of ``count`` parts of that time."""
    edges = [from_ms + (to_ms - from_ms) * at // count for at in range(count + 1)]
    totals: dict[int, Totals] = {}
    _fill(log, view, edges, totals)
    return [
        Bucket(one, other, totals[other][0] - totals[one][0], totals[other][1] - totals[one][1], *totals[other])
        for one, other in pairwise(edges)
    ]


def _fill(log: Log, view: View, edges: Sequence[int], totals: dict[int, Totals]) -> None:
    for edge in (edges[0], edges[-1]):
        if edge not in totals:
            totals[edge] = _totals_at(log, view, edge)
    if totals[edges[0]] == totals[edges[-1]]:
        totals.update(dict.fromkeys(edges, totals[edges[0]]))
    elif len(edges) > 2:
        middle = len(edges) // 2
        _fill(log, view, edges[: middle + 1], totals)
        _fill(log, view, edges[middle:], totals)


def _totals_at(log: Log, view: View, moment_ms: int) -> Totals:
    """Of what was published before a moment, and what was given up."""
    head, opened = view.head, view.open_commits
    if moment_ms > head.last_publish_ms:
        return head.records, head.bytes
    if not opened or opened[0].publish_ms >= moment_ms:
        found = log.commit_at_time(view, moment_ms)
        if found is None:
            return head.records, head.bytes
        return max(found.records_before, records_before_begin(head)), found.bytes_before
    commit = opened[bisect_left(opened, moment_ms, key=lambda commit: commit.publish_ms)]
    return commit.records_before, commit.bytes_before
