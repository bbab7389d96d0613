"""What a history says, in the order in which the checks ask for it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.testing.anomalies.marks import Subscriptions
from pyspark_ledger.testing.history import (
    Acknowledge,
    DeadLetters,
    Event,
    FinalLog,
    Poll,
    Reset,
    Row,
    Send,
    Told,
    rows_read,
)

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """What is wrong, in words, and the events that show it."""

    name: str
    text: str
    events: tuple[Event, ...]


@dataclass
class Topic:
    """What is known of one topic."""

    name: str
    events: list[Event] = field(default_factory=list)

    def of(self, kind: type[E]) -> list[E]:
        """Events of a kind, in the order in which they were asked."""
        return [event for event in self.events if isinstance(event, kind)]

    @cached_property
    def sends(self) -> list[Send]:
        return self.of(Send)

    @cached_property
    def polls(self) -> list[Poll]:
        return [poll for poll in self.of(Poll) if poll.is_ok]

    @cached_property
    def final(self) -> FinalLog | None:
        return next((event for event in reversed(self.of(FinalLog)) if event.is_ok), None)

    @cached_property
    def letters(self) -> dict[str, DeadLetters]:
        """Subscription -> its dead letters, as they were read last."""
        return {event.subscription: event for event in self.of(DeadLetters) if event.is_ok}

    @cached_property
    def dead(self) -> dict[str, set[int]]:
        """Subscription -> the places in the log of what has died."""
        return {
            name: {self.before(row.position) for row in event.rows if row.position is not None}
            for name, event in self.letters.items()
        }

    @cached_property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions(self.of(Acknowledge), self.of(Reset), self.before)

    @property
    def start(self) -> Position:
        """Before this, what is missing was trimmed."""
        return EARLIEST if self.final is None else self.final.start

    @cached_property
    def log(self) -> dict[Position, Row]:
        """The log: its final read, or without one everything that anybody saw or was told of. In order."""
        if self.final is not None:
            return _in_order(self.final.rows)
        told = (row for send in self.sends if send.is_ok for row in send.rows)
        return _in_order((*told, *(row for poll in self.polls for row in poll.rows)))

    @cached_property
    def positions(self) -> list[Position]:
        return list(self.log)

    @cached_property
    def rows(self) -> list[Row]:
        return list(self.log.values())

    @cached_property
    def where(self) -> dict[str, int]:
        """Value -> its place in the log, counted from 0."""
        return {row.value: number for number, row in enumerate(self.rows)}

    @cached_property
    def _places(self) -> list[tuple[int, int, int]]:
        """Plain tuples, because they are compared much faster."""
        return [_place(position) for position in self.log]

    def before(self, position: Position) -> int:
        """How many records lie before a position."""
        return bisect_left(self._places, _place(position))

    def upto(self, position: Position) -> int:
        """How many records lie before a position or at it."""
        return bisect_right(self._places, _place(position))

    @cached_property
    def outcomes(self) -> dict[str, tuple[Told, Send]]:
        """Value -> what its sender was told in the end, and by which answer. Who heard nothing sends it again."""
        found: dict[str, tuple[Told, Send]] = {}
        for send in self.sends:
            for row in send.rows:
                told = outcome(send, row)
                if row.value not in found or _WEIGHT[told] > _WEIGHT[found[row.value][0]]:
                    found[row.value] = told, send
        return found


def _place(position: Position) -> tuple[int, int, int]:
    return position.ledger, position.entry, position.index


def _in_order(rows: Iterable[Row]) -> dict[Position, Row]:
    placed = [(row.position, row) for row in rows if row.position is not None]
    return dict(sorted(placed, key=lambda at: _place(at[0])))


_WEIGHT: dict[Told, int] = {"refused": 0, "fenced": 0, "unknown": 1, "ok": 2}


def outcome(send: Send, row: Row) -> Told:
    """What became of one record of a send, as its sender was told. One whose token was gone was left out."""
    was_left_out = send.is_ok and row.token is not None and row.position is None
    return "refused" if was_left_out else send.told


@dataclass
class Facts:
    """A history by topics."""

    history: Sequence[Event]

    @cached_property
    def topics(self) -> list[Topic]:
        found: dict[str, Topic] = {}
        for event in self.history:
            if event.topic not in found:
                found[event.topic] = Topic(event.topic)
            found[event.topic].events.append(self._settled(event))
        return list(found.values())

    def _settled(self, event: Event) -> Event:
        """What became of an acknowledgement in a transaction whose outcome is unknown is shown by what was sent in it:
        if nothing of that is there, it was not done."""
        if not isinstance(event, Acknowledge) or not event.together or event.told != "unknown":
            return event
        sends = self.transactions.get(event.together, [])
        if not sends or any(send.topic not in self._final for send in sends):
            return event
        is_done = any(row.value in self._final[send.topic] for send in sends for row in send.rows)
        return event if is_done else replace(event, told="refused")

    @cached_property
    def transactions(self) -> dict[str, list[Send]]:
        """What was sent in each transaction over several topics."""
        found: dict[str, list[Send]] = defaultdict(list)
        for send in self.of(Send):
            if send.together:
                found[send.together].append(send)
        return found

    @cached_property
    def _final(self) -> dict[str, set[str]]:
        """The values of topics of which nothing was trimmed, in the end."""
        whole = (event for event in self.of(FinalLog) if event.is_ok and event.start == EARLIEST)
        return {event.topic: {row.value for row in event.rows} for event in whole}

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.history if isinstance(event, kind)]

    def reads(self) -> Iterator[tuple[Topic, Event, Row]]:
        """Every record that anybody saw in a log."""
        for topic in self.topics:
            for event in topic.events:
                for row in rows_read(event):
                    yield topic, event, row

    @cached_property
    def by_role(self) -> dict[tuple[str, str, str], list[Event]]:
        """(process, role, topic) -> what it did, in its order."""
        found: dict[tuple[str, str, str], list[Event]] = defaultdict(list)
        for event in sorted(self.history, key=lambda event: (event.process, event.number)):
            found[event.process, event.role, event.topic].append(event)
        return found


def went_back(seen: Iterable[tuple[Event, Any]]) -> Iterator[tuple[Event, Event]]:
    """Pairs of observations, the second of them begun after the first had ended, or later in the same process, that
    saw less. Of two that overlap in time nothing can be said."""
    by_begin = sorted(seen, key=lambda at: (at[0].asked_at, at[0].process, at[0].number))
    by_end = sorted((at for at in by_begin if at[0].told_at is not None), key=lambda at: at[0].told_at or 0.0)
    most: tuple[Event, Any] | None = None
    own: dict[str, tuple[Event, Any]] = {}  # the most that each process saw
    ended = 0
    for event, value in by_begin:
        while ended < len(by_end) and (by_end[ended][0].told_at or 0.0) < event.asked_at:
            if most is None or by_end[ended][1] > most[1]:
                most = by_end[ended]
            ended += 1
        earlier = [at for at in (most, own.get(event.process)) if at is not None and at[1] > value]
        if earlier:
            yield earlier[0][0], event
        if event.process not in own or value > own[event.process][1]:
            own[event.process] = event, value


def said(event: Event) -> str:
    """An event's process and number, as the report names it."""
    return f"{event.process}#{event.number}"
