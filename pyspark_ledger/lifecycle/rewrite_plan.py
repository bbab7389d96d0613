"""Which ledgers are worth rewriting.

A ledger is rewritten once. That shows in the name of its leaf, which carries the ledger: so no state is needed, and the
leaves of a thousand ledgers that are done cost one file of the index. Of the others the leaf is read. Ledgers are
looked at from the newest back, until there was nothing to do for a hundred in a row; those that were found are
rewritten from the oldest on, so that what an interrupted run has left undone is found by the next one. Ledgers before
such a hundred are found only if everything is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pyspark_ledger.base import names
from pyspark_ledger.log import lost
from pyspark_ledger.log.index import IndexRow
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.records import Entry


@dataclass(frozen=True, slots=True)
class LedgerWork:
    """A ledger whose small files are to be joined."""

    leaf: IndexRow
    below_bytes: int  # entries whose files are smaller are joined with their neighbours,
    file_bytes: int  # to files of about this size
    entries: int  # that are copied,
    bytes: int  # as they are stored now,
    files: int  # and in how many files they will be, at least
    lost: frozenset[int] = frozenset()  # damaged entries that were given up: they stay as they are

    @property
    def ledger(self) -> int:
        return self.leaf.ledger


def plan(log: Log, view: View, below_bytes: int, *, everything: bool) -> list[LedgerWork]:
    """What there is to do, the oldest ledger first."""
    found: list[LedgerWork] = []
    in_vain = 0
    for leaf in log.index(view).newest_first():
        work = _work(log, view, leaf, below_bytes) if everything or not was_rewritten(leaf) else None
        if work is not None:
            found.append(work)
        in_vain = 0 if work is not None else in_vain + 1
        if in_vain >= log.limits.rewrite_looks and not everything:
            break
    return found[::-1]


def was_rewritten(leaf: IndexRow) -> bool:
    return names.ledger_in_id(leaf.file.uid) == leaf.ledger


def _work(log: Log, view: View, leaf: IndexRow, below_bytes: int) -> LedgerWork | None:
    """None if the ledger's files are large enough on average, or would not get fewer."""
    commits = log.index(view).commits(leaf)
    written, count = sum(commit.bytes for commit in commits), sum(commit.entry_count for commit in commits)
    if not count or written >= below_bytes * count:
        return None  # known without a look at long lists of entries
    file_bytes = max(below_bytes, log.limits.rewritten_file_bytes)
    entries = [entry for commit in commits for entry in log.entries(commit)]
    given_up = frozenset(each.entry for each in lost.fetch(log.files, view.head) if each.ledger == leaf.ledger)
    runs = [entries[run.start : run.stop] for run in small_runs(entries, leaf.ledger, below_bytes, given_up)]
    if not runs:
        return None
    sizes = [sum(entry.bytes for entry in run) for run in runs]
    files = sum(-(-size // file_bytes) for size in sizes)
    return LedgerWork(leaf, below_bytes, file_bytes, sum(map(len, runs)), sum(sizes), files, given_up)


def small_runs(
    entries: Sequence[Entry], ledger: int, below_bytes: int, lost: frozenset[int] = frozenset()
) -> Iterator[range]:
    """Where neighbours are in two or more small files, and not lost. (Writers that commit together share a file.)"""

    def is_small(number: int) -> bool:
        entry = entries[number]
        was_rewritten = entry.file_rows > 0 and names.ledger_in_id(entry.file.uid) == ledger
        return not was_rewritten and entry.file.length < below_bytes and number not in lost

    for joins, run in groupby(range(len(entries)), is_small):
        numbers = list(run)
        if joins and entries[numbers[0]].file != entries[numbers[-1]].file:
            yield range(numbers[0], numbers[-1] + 1)


def in_groups(work: Sequence[LedgerWork], log: Log) -> Iterator[list[LedgerWork]]:
    """What is published at once: many ledgers, so that nodes of the index are copied rarely, but no more than can be
    copied within the grace."""
    group: list[LedgerWork] = []
    for each in work:
        size = sum(other.bytes for other in group) + each.bytes
        if group and (len(group) >= log.limits.rewrite_ledgers or size > log.limits.rewrite_bytes):
            yield group
            group = []
        group.append(each)
    if group:
        yield group
