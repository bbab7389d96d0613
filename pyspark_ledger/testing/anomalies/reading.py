"""What readers were given, and in which order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_ledger.base.position import Position
from pyspark_ledger.testing.anomalies.facts import Anomaly, Facts, Topic, said
from pyspark_ledger.testing.history import CursorSeen, Poll, Row


@dataclass(frozen=True, slots=True)
class Step:
    """From one record to the next one that a reader was given.

    Attributes:
        before: the record before, or None at the start of a revision; then ``floor`` says where that is, if known.
        may_go_back: what was not acknowledged is delivered again from here on.
    """

    reader: str
    earlier: Poll | None
    before: Row | None
    floor: Position | None
    poll: Poll
    row: Row
    may_go_back: bool = False


def non_monotonic_poll(facts: Facts) -> Iterator[Anomaly]:
    """A reader was given a record at or before one that it had been given already, in another poll or in the same one;
    or something of an older revision or epoch after a newer one (I2, I7). After a reset, going back is right."""
    for topic in facts.topics:
        for reader, polls in streams(topic).items():
            yield from _older_revisions(topic, reader, polls)
            for step in _steps(topic, reader, polls):
                last = step.floor if step.before is None else step.before.position
                if step.may_go_back or last is None or step.row.position is None:
                    continue
                if step.row.position < last or (step.row.position == last and step.before is not None):
                    yield Anomaly("non-monotonic poll", _told(topic, step, "back"), _events(step))


def poll_skip(facts: Facts) -> Iterator[Anomaly]:
    """Between two records that a reader was given, one after the other, there are records in the log that it was not
    given (I1, I2). A subscription may leave out what was acknowledged before."""
    for topic in facts.topics:
        for reader, polls in streams(topic).items():
            for step in _steps(topic, reader, polls):
                if step.row.position is None or step.poll.compacted:
                    continue
                skipped = _skipped(topic, step, topic.before(step.row.position))
                if skipped is not None:
                    text = f"{_told(topic, step, 'on')}, over {skipped.value!r} at {skipped.position}"
                    yield Anomaly("poll skip", text, _events(step))


def _skipped(topic: Topic, step: Step, stop: int) -> Row | None:
    """The first record between that should have come."""
    if step.before is not None and step.before.position is not None:
        start = topic.upto(step.before.position)
    elif step.floor is not None:
        start = topic.before(step.floor)
    else:
        return None
    if stop <= start:
        return None
    missing = topic.subscriptions.first_unacknowledged(step.poll, start, stop) if step.poll.subscription else start
    return topic.rows[missing] if missing < stop else None


def unseen(facts: Facts) -> Iterator[Anomaly]:
    """A record is in the log, and a reader or a subscription that read past it was never given it, by none of its
    processes (I1)."""
    for topic in facts.topics:
        for who, polls in _audiences(topic).items():
            given = {topic.before(row.position) for poll in polls for row in poll.rows if row.position in topic.log}
            if not given:
                continue
            first, last = _first_expected(topic, polls, min(given)), max(given)
            if last - first + 1 == len(given):
                continue
            first = max(first, _skipped_before(topic, polls[0]))
            stop = min(last, _still_to_come(topic, polls[0], last))
            given |= topic.dead.get(polls[0].subscription, set())  # some of them since an earlier reset
            missing = [number for number in range(first, stop) if number not in given]
            if missing:
                row, more = topic.rows[missing[0]], f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                text = f"{row.value!r} at {row.position}{more} of '{topic.name}' never came to {who}, which read on to "
                yield Anomaly("unseen", f"{text}{topic.rows[last].position}", (polls[-1],))


def _audiences(topic: Topic) -> dict[str, list[Poll]]:
    """Who must see everything, and what it was given: a subscription since a reset, or a reader."""
    found: dict[str, list[Poll]] = defaultdict(list)
    last: dict[str, int] = {}
    for poll in topic.polls:
        life = topic.subscriptions.life(poll.subscription, poll.revision)
        last[poll.subscription] = max(last.get(poll.subscription, 0), life)
    for poll in topic.polls:
        if poll.compacted:
            continue
        if poll.subscription:
            life = topic.subscriptions.life(poll.subscription, poll.revision)
            if poll.shared and life < last[poll.subscription]:
                continue
            found[f"subscription '{poll.subscription}' since revision {life}"].append(poll)
        else:
            found[_reader(poll)].append(poll)
    return found


def _first_expected(topic: Topic, polls: list[Poll], first_given: int) -> int:
    name, start = polls[0].subscription, polls[0].start
    if name:
        start = topic.subscriptions.starts.get((name, topic.subscriptions.life(name, polls[0].revision)), start)
    return first_given if start is None else min(first_given, topic.before(start))


def _skipped_before(topic: Topic, poll: Poll) -> int:
    """A skip is an acknowledgement of what perhaps nobody was given."""
    life = topic.subscriptions.life(poll.subscription, poll.revision)
    return topic.subscriptions.skipped_before(poll.subscription, life) if poll.subscription else 0


def _still_to_come(topic: Topic, poll: Poll, last: int) -> int:
    """Of those who share a subscription one may have records in hand that it was not asked for yet, while others read
    on: what the cursor has not passed comes to somebody later."""
    if not poll.shared:
        return last
    life = topic.subscriptions.life(poll.subscription, poll.revision)
    passed = (
        topic.before(seen.mark_delete)
        for seen in topic.of(CursorSeen)
        if seen.is_ok
        and seen.subscription == poll.subscription
        and topic.subscriptions.life(seen.subscription, seen.revision) == life
    )
    return max(passed, default=last)


def replay_divergence(facts: Facts) -> Iterator[Anomaly]:
    """A batch of a Spark query read something else when it was read again (I7). One that a reset has discarded by name
    reads nothing."""
    for topic in facts.topics:
        first: dict[tuple[str, int], Poll] = {}
        for poll in topic.polls:
            if poll.batch is None or poll.discarded:
                continue
            known = first.setdefault((_reader(poll), poll.batch), poll)
            if known.rows != poll.rows:
                text = f"batch {poll.batch} of {_reader(poll)} was {_range(known)} of '{topic.name}' for {said(known)}"
                yield Anomaly("replay divergence", f"{text}, and {_range(poll)} for {said(poll)}", (known, poll))


def _range(poll: Poll) -> str:
    if not poll.rows:
        return "nothing"
    ends = f"{poll.rows[0].position} to {poll.rows[-1].position}"
    return f"{len(poll.rows)} records, {ends} ({poll.rows[0].value!r} to {poll.rows[-1].value!r})"


# -- in which order polls count ------------------------------------------------------------------------------------


def streams(topic: Topic) -> dict[str, list[Poll]]:
    """Readers and what they were given, in order: the batches of a query by number, each once; the polls of a process
    in its order. What is redelivered one by one has no order."""
    batches: dict[str, dict[int, Poll]] = defaultdict(dict)
    others: dict[str, list[Poll]] = defaultdict(list)
    for poll in topic.polls:
        if poll.again:
            continue
        if poll.batch is not None:
            batches[_reader(poll)].setdefault(poll.batch, poll)
        else:
            others[_reader(poll)].append(poll)
    for polls in others.values():
        polls.sort(key=lambda poll: poll.number)
    return others | {reader: [polls[number] for number in sorted(polls)] for reader, polls in batches.items()}


def _reader(poll: Poll) -> str:
    if poll.batch is not None:
        return poll.reader or poll.process
    return " ".join(part for part in (poll.process, poll.reader, poll.role, poll.subscription) if part)


def _steps(topic: Topic, reader: str, polls: list[Poll]) -> Iterator[Step]:
    starts = topic.subscriptions.starts
    earlier: Poll | None = None
    before: Row | None = None
    for poll in polls:
        floor = None
        same = earlier is not None and (earlier.subscription, earlier.revision) == (poll.subscription, poll.revision)
        if not same:
            before = None
            floor = starts.get((poll.subscription, poll.revision), poll.start)
        redelivers = same and earlier is not None and earlier.epoch < poll.epoch and poll.batch is None
        for number, row in enumerate(poll.rows):
            yield Step(reader, earlier, before, floor, poll, row, may_go_back=redelivers and number == 0)
            earlier, before, floor = poll, row, None


def _older_revisions(topic: Topic, reader: str, polls: list[Poll]) -> Iterator[Anomaly]:
    newest: Poll | None = None
    for poll in polls:
        if newest is not None and (poll.revision, poll.epoch) < (newest.revision, newest.epoch) and poll.rows:
            now, then = (f"revision {each.revision}, epoch {each.epoch} ({said(each)})" for each in (poll, newest))
            text = f"{reader} was given {poll.rows[0].value!r} at {poll.rows[0].position} of '{topic.name}' under {now}"
            yield Anomaly("non-monotonic poll", f"{text}, after records of {then}", (newest, poll))
        else:
            newest = poll


def _told(topic: Topic, step: Step, way: str) -> str:
    last = f"the reset to {step.floor}" if step.before is None else f"{step.before.value!r} at {step.before.position}"
    return (
        f"{step.reader}, reading '{topic.name}', went {way} from {last} to {step.row.value!r} at "
        f"{step.row.position} ({said(step.poll)})"
    )


def _events(step: Step) -> tuple[Poll, ...]:
    return (step.poll,) if step.earlier is None or step.earlier is step.poll else (step.earlier, step.poll)
