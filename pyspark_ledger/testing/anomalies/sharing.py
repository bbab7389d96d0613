"""Consumers that share a subscription."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from pyspark_ledger.testing.anomalies.facts import Anomaly, Facts, Topic, said
from pyspark_ledger.testing.anomalies.marks import Life, Marks
from pyspark_ledger.testing.history import Acknowledge, CursorSeen, DeadLetters, Poll, Refuse, Row

Holder = tuple[str, str, str, int, int]  # process, role, subscription, revision, epoch


def delivered_after_acknowledgement(facts: Facts) -> Iterator[Anomaly]:
    """A consumer was given a record that it asked for when the cursor was known to have it acknowledged, or when it was
    seen among the dead letters (I7). After a reset that is right. Batches of a query may be read again."""
    for topic in facts.topics:
        known = _known_to_be_done(topic)
        for poll in topic.polls:
            life = poll.subscription, topic.subscriptions.life(poll.subscription, poll.revision)
            if poll.batch is not None or life not in known:
                continue
            # Who has not heard of a skip yet goes on for a moment with what lies before it.
            marks = [each for revision, each in known[life].items() if revision <= poll.revision]
            for row in poll.rows:
                place = 0 if row.position is None else topic.before(row.position)
                if any(each.first_missing(place, place + 1, poll.asked_at) > place for each in marks):
                    text = f"{poll.process} was given {row.value!r} at {row.position} of '{topic.name}' ({said(poll)})"
                    why = f"though subscription '{poll.subscription}' was known to be done with it before"
                    yield Anomaly("delivered after acknowledgement", f"{text}, {why}", (poll,))


def _known_to_be_done(topic: Topic) -> dict[Life, dict[int, Marks]]:
    """By when somebody had been told so, in which revision of a life."""
    shared = {poll.subscription for poll in topic.polls if poll.shared}
    told: list[Acknowledge] = [ack for ack in topic.of(Acknowledge) if ack.is_ok and ack.moved]
    for seen in topic.of(CursorSeen):
        if seen.is_ok and seen.subscription in shared:  # one who owns it alone may hear later that it was fenced
            done = Acknowledge(subscription=seen.subscription, revision=seen.revision, upto=seen.mark_delete)
            told.append(replace(done, told_at=seen.told_at))
    for letters in topic.of(DeadLetters):
        if letters.is_ok and not topic.subscriptions.times_begun_anew(letters.subscription):
            positions = tuple(row.position for row in letters.rows if row.position is not None)
            told.append(Acknowledge(subscription=letters.subscription, positions=positions, told_at=letters.told_at))
    known: dict[Life, dict[int, Marks]] = defaultdict(lambda: defaultdict(Marks))
    since = [replace(ack, asked_at=ack.told_at) for ack in told if ack.told_at is not None]
    for ack in sorted(since, key=lambda ack: ack.asked_at):
        life = topic.subscriptions.life(ack.subscription, ack.revision)
        known[ack.subscription, life][ack.revision].add(ack, topic.before)
    return dict(known)


def key_out_of_order(facts: Facts) -> Iterator[Anomaly]:
    """Of consumers that share by key one was given a record while an earlier one of its key was neither acknowledged
    nor in its own hands: it was another's, or to come again (I2; PIP-269, footnote 4)."""
    for topic in facts.topics:
        keyed = {poll.subscription for poll in topic.polls if poll.keyed}
        if keyed:
            yield from _overtaken(topic, keyed)


def _overtaken(topic: Topic, keyed: set[str]) -> Iterator[Anomaly]:
    places = _places_by_key(topic)
    first = _first_given(topic, keyed)
    hands: dict[Holder, set[int]] = defaultdict(set)
    passed: dict[tuple[Life, str], int] = {}  # of a key, everything before this one of its places was acknowledged
    for event in sorted(topic.events, key=lambda event: event.told_at or event.asked_at):
        if isinstance(event, Refuse) and event.is_ok and event.subscription in keyed:
            for holder, hand in hands.items():
                if holder[:3] == (event.process, event.role, event.subscription):
                    hand.difference_update(map(topic.before, event.positions))
        if not isinstance(event, Poll) or not event.is_ok or event.subscription not in keyed:
            continue
        revision = event.subscription, event.revision
        hand = hands[event.process, event.role, event.subscription, event.revision, event.epoch]
        for row in event.rows:
            if row.position is None:
                continue
            place = topic.before(row.position)
            if row.key is not None:
                mine = places[row.key]
                start = bisect_left(mine, max(first[revision], passed.get((revision, row.key), 0)))
                earlier = mine[start : bisect_left(mine, place)]
                left = [each for each in earlier if not _is_done(topic, event, each)]
                passed[revision, row.key] = left[0] if left else place
                missing = next((each for each in left if each not in hand), None)
                if missing is not None:
                    yield _told(topic, event, row, topic.rows[missing])
            hand.add(place)


def _places_by_key(topic: Topic) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(topic.rows):
        if row.key is not None:
            found[row.key].append(place)
    return found


def _first_given(topic: Topic, keyed: set[str]) -> dict[Life, int]:
    """(subscription, revision) -> where it began, or else the first place of which anything was given."""
    found: dict[Life, int] = {}
    for poll in topic.polls:
        if poll.subscription in keyed:
            for row in poll.rows:
                if row.position is not None:
                    place, life = topic.before(row.position), (poll.subscription, poll.revision)
                    found[life] = min(place, found.get(life, place))
    begun = {life: topic.before(position) for life, position in topic.subscriptions.starts.items()}
    return found | begun


def _is_done(topic: Topic, poll: Poll, place: int) -> bool:
    dead = topic.dead.get(poll.subscription, set())
    return place in dead or topic.subscriptions.first_unacknowledged(poll, place, place + 1) > place


def _told(topic: Topic, poll: Poll, row: Row, before: Row) -> Anomaly:
    text = f"{poll.process} was given {row.value!r} at {row.position} of '{topic.name}' ({said(poll)}), and before it "
    why = f"comes {before.value!r} at {before.position} of the same key {row.key!r}, which it was not given"
    return Anomaly("key out of order", text + why, (poll,))
