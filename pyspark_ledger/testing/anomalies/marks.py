"""What was acknowledged of the subscriptions of a topic, and where resets put them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from pyspark_ledger.base.position import Position
from pyspark_ledger.testing.history import Acknowledge, Poll, Reset

Before = Callable[[Position], int]  # how many records of the log lie before a position
Life = tuple[str, int]  # subscription, and the revision since which its acknowledgements count


class Marks:
    """What was acknowledged of one life of a subscription, and when it was asked for."""

    def __init__(self) -> None:
        self.single: dict[int, float] = {}  # place in the log -> when
        self._asked: list[float] = []
        self._highest: list[int] = []  # everything before this place, at the time beside it

    def add(self, ack: Acknowledge, before: Before) -> None:
        """In the order of asking."""
        for position in ack.positions:
            self.single.setdefault(before(position), ack.asked_at)
        upto = 0 if ack.upto is None else before(ack.upto)
        self._asked.append(ack.asked_at)
        self._highest.append(max(upto, self._highest[-1] if self._highest else 0))

    def cumulative(self, at: float) -> int:
        """Everything before this place was acknowledged at that time."""
        count = bisect_right(self._asked, at)
        return self._highest[count - 1] if count else 0

    def first_missing(self, start: int, stop: int, at: float) -> int:
        """The first place in [start, stop) that was not acknowledged at that time, else ``stop``."""
        place = max(start, self.cumulative(at))
        while place < stop and self.single.get(place, float("inf")) <= at:
            place += 1
        return min(place, stop)


class Subscriptions:
    """The subscriptions of a topic."""

    def __init__(self, acks: list[Acknowledge], resets: Iterable[Reset], before: Before) -> None:
        self._acks, self._before = acks, before
        resets = list(resets)
        self.resets = [reset for reset in resets if reset.is_ok and reset.revision is not None]
        self._dropping = [each for each in resets if each.told in ("ok", "unknown") and not each.keeps_acks]
        self._doubtful = {reset.subscription for reset in resets if reset.told == "unknown" and reset.keeps_acks}

    @cached_property
    def starts(self) -> dict[Life, Position]:
        """(subscription, revision) -> where a reset put it, if that is known."""
        known = (reset for reset in self.resets if not reset.repeated)
        return {(reset.subscription, reset.revision or 0): reset.to for reset in known}

    def skipped_before(self, subscription: str, life: int) -> int:
        """What lies before this place of the log may have been skipped in a life of a subscription."""
        lives = ((self.life(reset.subscription, reset.revision or 0), reset) for reset in self.resets)
        skips = (r.to for since, r in lives if r.keeps_acks and (r.subscription, since) == (subscription, life))
        return max(map(self._before, skips), default=0)

    @cached_property
    def _kept(self) -> set[Life]:
        return {(reset.subscription, reset.revision or 0) for reset in self.resets if reset.keeps_acks}

    def life(self, subscription: str, revision: int) -> int:
        """The revision since which acknowledgements still count: a skip keeps them, any other reset drops them."""
        while (subscription, revision) in self._kept:
            revision -= 1
        return revision

    @cached_property
    def marks(self) -> dict[Life, Marks]:
        """What was acknowledged, or may have been."""
        found: dict[Life, Marks] = defaultdict(Marks)
        for ack in self._acks:
            if ack.told in ("ok", "unknown") and ack.moved is not False:
                life = self.life(ack.subscription, ack.revision)
                found[ack.subscription, life].add(ack, self._before)
        return found

    def first_unacknowledged(self, poll: Poll, start: int, stop: int) -> int:
        """The first place in [start, stop) that was not acknowledged when a poll returned, else ``stop``."""
        at = poll.asked_at if poll.told_at is None else poll.told_at
        for life in self._lives(poll):
            if life in self.marks:
                start = self.marks[life].first_missing(start, stop, at)
        return start

    def _lives(self, poll: Poll) -> Iterator[Life]:
        """Of which lives of the subscription acknowledgements may count for a poll: of its own; and if that began with
        a revision that nobody was told of, then somebody has made it who does not know. If that may have been a skip,
        those from before it count as well."""
        revision = self.life(poll.subscription, poll.revision)
        yield poll.subscription, revision
        while revision > 0 and poll.subscription in self._doubtful and (poll.subscription, revision) not in self._told:
            revision = self.life(poll.subscription, revision - 1)
            yield poll.subscription, revision

    def times_begun_anew(self, subscription: str) -> int:
        """How often somebody has reset it, or may have, so that what was acknowledged comes again."""
        return sum(reset.subscription == subscription for reset in self._dropping)

    @cached_property
    def _told(self) -> set[Life]:
        return {(reset.subscription, reset.revision or 0) for reset in self.resets}
