"""Compacted reads, and what was seen of compaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.testing.anomalies.facts import Anomaly, Facts, Topic, said, went_back
from pyspark_ledger.testing.anomalies.reading import streams
from pyspark_ledger.testing.history import CompactedRead, CompactionSeen, Event, Poll, Row


@dataclass(frozen=True, slots=True)
class State:
    """What somebody takes for the state of a topic before a position: key -> value, None for what it saw deleted."""

    end: Position
    values: dict[str, str | None]
    is_whole: bool  # a key that is not in it does not exist
    event: Event


@dataclass(frozen=True, slots=True)
class Difference:
    topic: Topic
    state: State
    key: str
    seen: str | None
    right: Row | None  # the last record of the key, which may delete it


def compacted_difference(facts: Facts) -> Iterator[Anomaly]:
    """A compacted read has another value of a key than the log has, read to the same position (I9)."""
    for found in _differences(facts):
        if not _is_missed_deletion(found):
            right = "nothing" if found.right is None or found.right.deletes else repr(found.right.value)
            yield _anomaly("compacted difference", found, right)


def missed_deletion(facts: Facts) -> Iterator[Anomaly]:
    """A reader that follows a compacted topic saw a key and read on past its deletion, and was not given that (I9)."""
    for found in _differences(facts):
        if _is_missed_deletion(found) and found.right is not None:
            yield _anomaly("missed deletion", found, f"deleted at {found.right.position}")


def _anomaly(name: str, found: Difference, right: str) -> Anomaly:
    state = found.state
    return Anomaly(
        name,
        f"key {found.key!r} of '{found.topic.name}' before {state.end} is {found.seen or 'nothing'!r} for "
        f"{state.event.process} ({said(state.event)}); in the log it is {right}",
        (state.event,),
    )


def _is_missed_deletion(found: Difference) -> bool:
    is_live = isinstance(found.state.event, Poll)
    return is_live and found.seen is not None and found.right is not None and found.right.deletes


def _differences(facts: Facts) -> Iterator[Difference]:
    """In one pass over each log, with the states in the order of their ends."""
    for topic in facts.topics:
        if topic.start > EARLIEST:  # the first part of the log is not known
            continue
        rows, folded, done = iter(topic.rows), _Folded(), 0
        for state in sorted(_states(topic), key=lambda state: state.end):
            upto = topic.before(state.end)
            for row in islice(rows, upto - done):
                folded.add(row)
            done = upto
            for key in folded.different(state):
                yield Difference(topic, state, key, state.values.get(key), folded.last.get(key))


class _Folded:
    """The log up to some position: the last record of every key."""

    def __init__(self) -> None:
        self.last: dict[str, Row] = {}
        self._alive = 0

    def add(self, row: Row) -> None:
        if row.key is not None:
            self._alive += (not row.deletes) - (self.value(row.key) is not None)
            self.last[row.key] = row

    def value(self, key: str) -> str | None:
        row = self.last.get(key)
        return None if row is None or row.deletes else row.value

    def different(self, state: State) -> list[str]:
        wrong = [key for key, value in state.values.items() if self.value(key) != value]
        if state.is_whole and sum(value is not None for value in state.values.values()) != self._alive:
            missing = (key for key in self.last if key not in state.values and self.value(key) is not None)
            return [*wrong, *missing]
        return wrong


def _states(topic: Topic) -> Iterator[State]:
    for read in topic.of(CompactedRead):
        if read.is_ok:
            yield State(read.end, dict(read.state), True, read)
    for polls in streams(topic).values():
        if polls[0].compacted:
            yield from _followed(polls)


def _followed(polls: list[Poll]) -> Iterator[State]:
    """What a reader has put together at the end of each revision."""
    values: dict[str, str | None] = {}
    end, first = EARLIEST, polls[0]
    for number, poll in enumerate(polls):
        if poll.revision != first.revision:
            values, first, end = {}, poll, EARLIEST
        for row in poll.rows:
            if row.key is not None:
                values[row.key] = None if row.deletes else row.value
            if row.position is not None:
                end = max(end, Position(row.position.ledger, row.position.entry, row.position.index + 1))
        end = max(end, poll.end or EARLIEST)
        if number + 1 == len(polls) or polls[number + 1].revision != poll.revision:
            yield State(end, values, first.start == EARLIEST, poll)


def compaction_going_back(facts: Facts) -> Iterator[Anomaly]:
    """The generation or the horizon of a topic was seen lower than before (I10)."""
    for topic in facts.topics:
        all_seen = [seen for seen in topic.of(CompactionSeen) if seen.is_ok]
        pairs = [*went_back((s, s.generation) for s in all_seen), *went_back((s, s.horizon) for s in all_seen)]
        for first, then in dict.fromkeys(pairs):
            assert isinstance(first, CompactionSeen)
            assert isinstance(then, CompactionSeen)
            yield Anomaly(
                "compaction going back",
                f"'{topic.name}' had generation {first.generation} with horizon {first.horizon} for {said(first)}, and "
                f"later {then.generation} with {then.horizon} for {said(then)}",
                (first, then),
            )
