"""Checks a history: ``python -m pyspark_ledger.testing.checker history*.jsonl`` prints what is wrong, and then exits
with 1.

There is no list of exceptions. Whatever happened to the processes, to ZooKeeper and to the storage meanwhile, each of
these anomalies is a fault.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pyspark_ledger.errors import LedgerError
from pyspark_ledger.testing.anomalies import compaction, reading, sharing, subscriptions, tokens, writing
from pyspark_ledger.testing.anomalies.facts import Anomaly, Facts
from pyspark_ledger.testing.history import CursorSeen, Event, FinalTokens, Send, load

CHECKS: tuple[Callable[[Facts], Iterator[Anomaly]], ...] = (
    writing.aborted_read,
    writing.inconsistent_positions,
    writing.duplicate,
    writing.lost_write,
    writing.non_monotonic_send,
    writing.torn_commit,
    writing.torn_transaction,
    writing.zombie_effect,
    writing.named_file_missing,
    reading.unseen,
    reading.poll_skip,
    reading.non_monotonic_poll,
    reading.replay_divergence,
    subscriptions.stale_acknowledgement,
    subscriptions.cursor_going_back,
    subscriptions.passed_without_acknowledgement,
    subscriptions.dead_letter_twice,
    sharing.delivered_after_acknowledgement,
    sharing.key_out_of_order,
    tokens.token_spent_twice,
    tokens.token_without_effect,
    tokens.effect_without_token,
    compaction.compacted_difference,
    compaction.missed_deletion,
    compaction.compaction_going_back,
)
SHOWN = 10  # of each kind, in the report


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes:
        events: how many there were of each kind.
        anomalies: what is wrong; empty if nothing is.
        not_checked: what the history does not show, so that some anomalies could not be found.
    """

    events: Counter[str]
    anomalies: list[Anomaly]
    not_checked: list[str]

    @property
    def names(self) -> set[str]:
        return {anomaly.name for anomaly in self.anomalies}

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {name}" for name, count in sorted(self.events.items()))
        lines = [f"{self.events.total()} events: {counted or 'none'}."]
        lines += [f"Not checked: {text}." for text in self.not_checked]
        for name, group in groupby(self.anomalies, key=lambda anomaly: anomaly.name):
            found = list(group)
            lines += [f"{name} ({len(found)}):", *(f"  - {anomaly.text}" for anomaly in found[:SHOWN])]
            lines += [f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        return "\n".join([*lines, f"{len(self.anomalies)} anomalies." if self.anomalies else "No anomaly."])


def check(history: Sequence[Event]) -> Report:
    """Looks for every anomaly. Takes time in proportion to the history (and its logarithm)."""
    facts = Facts(history)
    anomalies = [anomaly for find in CHECKS for anomaly in find(facts)]
    return Report(Counter(type(event).__name__ for event in history), anomalies, list(_not_checked(facts)))


def _not_checked(facts: Facts) -> Iterator[str]:
    for topic in facts.topics:
        if topic.sends and topic.final is None:
            yield f"lost writes, duplicates, torn commits and tokens of '{topic.name}', without a final read of it"
        followed = {poll.subscription for poll in topic.polls if poll.subscription}
        for name in sorted(followed - {seen.subscription for seen in topic.of(CursorSeen)}):
            yield f"the cursor of subscription '{name}' of '{topic.name}', because nobody looked at it"
    spending = {send.group for send in facts.of(Send) if any(row.token is not None for row in send.rows)}
    for group in sorted(spending - {event.group for event in facts.of(FinalTokens)}):
        yield f"tokens of group '{group}' that may be left, without a list of them at the end"


def main(files: Sequence[str]) -> int:
    """0: no anomaly; 1: some; 2: no history."""
    if not files:
        print("usage: python -m pyspark_ledger.testing.checker history*.jsonl", file=sys.stderr)
        return 2
    try:
        report = check(load(files))
    except (LedgerError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if not report.events.total():
        print(f"there is no event in {', '.join(files)}: nothing was checked", file=sys.stderr)
        return 2
    print(report)
    return 1 if report.anomalies else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
