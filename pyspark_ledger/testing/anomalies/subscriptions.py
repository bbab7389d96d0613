"""Where subscriptions are: acknowledgements and resets."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.testing.anomalies.facts import Anomaly, Facts, Topic, said, went_back
from pyspark_ledger.testing.anomalies.marks import Life, Marks
from pyspark_ledger.testing.history import Acknowledge, CursorSeen, Poll, Reset


def stale_acknowledgement(facts: Facts) -> Iterator[Anomaly]:
    """An acknowledgement of what was read before a reset moved the cursor (I7): it was told that it did, or the cursor
    was seen further than the reset and the acknowledgements of its own revision could bring it."""
    for topic in facts.topics:
        yield from _told_to_have_moved(topic)
        yield from _moved_by_nobody(topic)


def _told_to_have_moved(topic: Topic) -> Iterator[Anomaly]:
    resets: dict[str, list[Reset]] = defaultdict(list)
    for reset in sorted(topic.subscriptions.resets, key=lambda reset: reset.told_at or 0.0):
        resets[reset.subscription].append(reset)
    ends = {name: [reset.told_at or 0.0 for reset in found] for name, found in resets.items()}
    for ack in topic.of(Acknowledge):
        if not (ack.is_ok and ack.moved) or ack.subscription not in resets:
            continue
        done = bisect_right(ends[ack.subscription], ack.asked_at)
        last = resets[ack.subscription][done - 1] if done else None
        if last is not None and (last.revision or 0) > ack.revision:
            text = (
                f"{ack.process} acknowledged records of revision {ack.revision} of subscription '{ack.subscription}' "
            )
            since = f"of '{topic.name}' ({said(ack)}) after its reset to revision {last.revision} ({said(last)}), and "
            yield Anomaly("stale acknowledgement", f"{text}{since}was told that the cursor moved", (last, ack))


def _moved_by_nobody(topic: Topic) -> Iterator[Anomaly]:
    subscriptions = topic.subscriptions
    starts: dict[Life, Position] = dict(subscriptions.starts)
    limits = {life: Marks() for life in subscriptions.marks}
    for ack in topic.of(Acknowledge):
        life = ack.subscription, subscriptions.life(ack.subscription, ack.revision)
        if life in limits:
            limits[life].add(_as_cumulative(ack), topic.before)
    for seen in topic.of(CursorSeen):
        if not seen.is_ok:
            continue
        start = starts.setdefault((seen.subscription, seen.revision), seen.mark_delete)
        life = seen.subscription, subscriptions.life(seen.subscription, seen.revision)
        at = seen.asked_at if seen.told_at is None else seen.told_at
        buried = max(topic.dead.get(seen.subscription, ()), default=-1) + 1
        furthest = max(topic.before(start), buried, limits[life].cumulative(at) if life in limits else 0)
        if topic.before(seen.mark_delete) > furthest:
            place = topic.positions[furthest]
            text = f"{seen.process} saw subscription '{seen.subscription}' of '{topic.name}' at {seen.mark_delete} "
            why = f"({said(seen)}); no acknowledgement of its revision {seen.revision} goes further than {place}"
            yield Anomaly("stale acknowledgement", text + why, (seen,))


def _as_cumulative(ack: Acknowledge) -> Acknowledge:
    """The furthest that an acknowledgement can bring the cursor: to after its last single position."""
    if ack.told in ("refused", "fenced") or ack.moved is False:
        return Acknowledge(asked_at=ack.asked_at)
    ends = [Position(at.ledger, at.entry, at.index + 1) for at in ack.positions]
    return Acknowledge(asked_at=ack.asked_at, upto=max([ack.upto or EARLIEST, *ends]))


def passed_without_acknowledgement(facts: Facts) -> Iterator[Anomaly]:
    """A subscription has moved past a record that nobody has acknowledged, and that is no dead letter (I1, I7): no one
    will ever get it."""
    for topic in facts.topics:
        starts, passed = topic.subscriptions.starts, dict[Life, int]()
        for seen in sorted(topic.of(CursorSeen), key=lambda seen: (seen.revision, seen.mark_delete)):
            life = seen.subscription, seen.revision
            if not seen.is_ok:
                continue
            first = passed.setdefault(life, topic.before(starts.get(life, seen.mark_delete)))
            passed[life] = stop = max(first, topic.before(seen.mark_delete))
            left = _left_alone(topic, seen, first, stop)
            if left is not None:
                row = topic.rows[left]
                text = f"{seen.process} saw subscription '{seen.subscription}' of '{topic.name}' at {seen.mark_delete} "
                why = f"({said(seen)}), past {row.value!r} at {row.position}, which nobody has acknowledged"
                yield Anomaly("passed without acknowledgement", text + why, (seen,))


def _left_alone(topic: Topic, seen: CursorSeen, first: int, stop: int) -> int | None:
    """The first place in [first, stop) of a record that was neither acknowledged nor died."""
    dead = topic.dead.get(seen.subscription, set())
    then = Poll(subscription=seen.subscription, revision=seen.revision, told_at=seen.told_at, asked_at=seen.asked_at)
    while (first := topic.subscriptions.first_unacknowledged(then, first, stop)) in dead and first < stop:
        first += 1
    return first if first < stop else None


def dead_letter_twice(facts: Facts) -> Iterator[Anomaly]:
    """A record is twice in the dead letters of a subscription, which was not reset meanwhile (I1)."""
    for topic in facts.topics:
        for name, letters in topic.letters.items():
            for position, times in Counter(row.position for row in letters.rows).items():
                if times > 1 + topic.subscriptions.times_begun_anew(name):
                    text = f"the dead letters of subscription '{name}' of '{topic.name}' have {position} {times} times"
                    yield Anomaly("dead letter twice", f"{text} ({said(letters)})", (letters,))


def cursor_going_back(facts: Facts) -> Iterator[Anomaly]:
    """A subscription was seen at an earlier position, or in an earlier revision, than before (I8). A reset may move it
    back; its revision is then greater."""
    for topic in facts.topics:
        by_name: dict[str, list[CursorSeen]] = defaultdict(list)
        for seen in topic.of(CursorSeen):
            if seen.is_ok:
                by_name[seen.subscription].append(seen)
        for name, all_seen in by_name.items():
            for first, then in went_back((seen, (seen.revision, seen.mark_delete)) for seen in all_seen):
                assert isinstance(first, CursorSeen)
                assert isinstance(then, CursorSeen)
                yield Anomaly(
                    "cursor going back",
                    f"subscription '{name}' of '{topic.name}' was at {first.mark_delete} in revision {first.revision} "
                    f"for {said(first)}, and later at {then.mark_delete} in revision {then.revision} for {said(then)}",
                    (first, then),
                )
