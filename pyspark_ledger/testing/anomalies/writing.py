"""What went into the log, against what its senders were told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, pairwise

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.testing.anomalies.facts import Anomaly, Facts, Topic, said
from pyspark_ledger.testing.history import Acknowledge, Event, FinalFiles, Poll, Reset, Row, Send, rows_read


def aborted_read(facts: Facts) -> Iterator[Anomaly]:
    """A record was read whose sender was told "not done", or which nobody sent (I3, I14)."""
    found: dict[tuple[str, str], None] = {}
    for topic, event, row in facts.reads():
        if (topic.name, row.value) in found:
            continue
        told, send = topic.outcomes.get(row.value, ("never sent", None))
        if told in ("ok", "unknown"):
            continue
        found[topic.name, row.value] = None
        sent = "nobody sent it" if send is None else f"{send.process} was told that it was not done ({said(send)})"
        text = f"{event.process} read {row.value!r} at {row.position} of '{topic.name}', but {sent}"
        yield Anomaly("aborted read", text, (event,) if send is None else (event, send))


def inconsistent_positions(facts: Facts) -> Iterator[Anomaly]:
    """Two values were seen at one position; or a value was seen, or said to be, at another position than the one at
    which it is in the log (I1, I2). A value that the log itself has twice is a duplicate."""
    for topic in facts.topics:
        at: dict[Position, tuple[str, Event]] = {}
        places: dict[str, tuple[Position, Event]] = {}
        in_final = _final_places(topic)
        for event, row in _placed(topic):
            assert row.position is not None
            value, first = at.setdefault(row.position, (row.value, event))
            if value != row.value:
                yield Anomaly(
                    "inconsistent positions",
                    f"position {row.position} of '{topic.name}' is {value!r} for {first.process} ({said(first)}) and "
                    f"{row.value!r} for {event.process} ({said(event)})",
                    (first, event),
                )
            if row.position in in_final.get(row.value, ()):
                continue
            place, first = places.setdefault(row.value, (row.position, event))
            elsewhere = next(iter(in_final.get(row.value, ())), place)
            if elsewhere != row.position:
                yield Anomaly(
                    "inconsistent positions",
                    f"{row.value!r} of '{topic.name}' is at {row.position} for {event.process} ({said(event)}), "
                    f"and also at {elsewhere}",
                    (event,) if first is event else (first, event),
                )


def _placed(topic: Topic) -> Iterator[tuple[Event, Row]]:
    """Every record with its position, as it was read or told."""
    final = [] if topic.final is None else [(topic.final, row) for row in topic.final.rows]
    polled = ((poll, row) for poll in topic.polls for row in poll.rows)
    died = ((event, row) for event in topic.letters.values() for row in rows_read(event))
    told = ((send, row) for send in topic.sends if send.is_ok for row in send.rows)
    for event, row in chain(final, polled, died, told):
        if row.position is not None:
            yield event, row


def _final_places(topic: Topic) -> dict[str, list[Position]]:
    found: dict[str, list[Position]] = defaultdict(list)
    for row in () if topic.final is None else topic.final.rows:
        if row.position is not None:
            found[row.value].append(row.position)
    return found


def duplicate(facts: Facts) -> Iterator[Anomaly]:
    """A record is in the log twice, however often it was sent (I1, I5)."""
    for topic in facts.topics:
        for value, places in _final_places(topic).items():
            if len(places) > 1 and topic.final is not None:
                listed = " and ".join(map(str, places))
                sent = [send for _, send in [topic.outcomes[value]]] if value in topic.outcomes else []
                by = f", sent by {sent[0].process} ({said(sent[0])})" if sent else ""
                text = f"{value!r}{by} is in '{topic.name}' at {listed}"
                yield Anomaly("duplicate", text, (topic.final, *sent))


def lost_write(facts: Facts) -> Iterator[Anomaly]:
    """A sender was told "done", and the record is not in the log (I1). What was trimmed is not lost."""
    for topic in facts.topics:
        if topic.final is None:
            continue
        for value, (told, send) in topic.outcomes.items():
            if told != "ok" or value in topic.where:
                continue
            position = next(row.position for row in send.rows if row.value == value)
            if (position or EARLIEST) < topic.start:
                continue
            text = f"{send.process} was told that {value!r} is in '{topic.name}' at {position or 'some position'}"
            yield Anomaly("lost write", f"{text} ({said(send)}), and it is not there", (send, topic.final))


def non_monotonic_send(facts: Facts) -> Iterator[Anomaly]:
    """A producer's records are in the log in another order than the producer's: of its sequence numbers, or, without
    those, in which one process sent what was told "done" (I2)."""
    for topic in facts.topics:
        for who, sends in _in_sending_order(topic).items():
            rows = [(send, row) for send in sends for row in send.rows if row.value in topic.where]
            for (first, before), (then, row) in pairwise(rows):
                if topic.where[before.value] > topic.where[row.value]:
                    places = f"{topic.rows[topic.where[row.value]].position} and {_position(topic, before)}"
                    yield Anomaly(
                        "non-monotonic send",
                        f"{who} sent {before.value!r} before {row.value!r}; in '{topic.name}' it is after it: {places}",
                        (first,) if first is then else (first, then),
                    )


def _position(topic: Topic, row: Row) -> Position | None:
    return topic.rows[topic.where[row.value]].position


def _in_sending_order(topic: Topic) -> dict[str, list[Send]]:
    """Each batch once. One without a number that was sent again may have come in at any of the times."""
    numbered: dict[str, dict[int, Send]] = defaultdict(dict)
    others: dict[str, list[Send]] = defaultdict(list)
    times = _times_sent(topic)
    for send in topic.sends:
        if send.producer and send.sequence is not None:
            numbered[send.producer].setdefault(send.sequence, send)
        elif send.is_ok and all(times[row.value] == 1 for row in send.rows):
            others[f"{send.process} {send.producer}".strip()].append(send)
    by_number = {who: [sends[number] for number in sorted(sends)] for who, sends in numbered.items()}
    by_process = {who: sorted(sends, key=lambda send: send.number) for who, sends in others.items()}
    return by_process | by_number


def _times_sent(topic: Topic) -> dict[str, int]:
    times: dict[str, int] = defaultdict(int)
    for send in topic.sends:
        for row in send.rows:
            times[row.value] += 1
    return times


def torn_commit(facts: Facts) -> Iterator[Anomaly]:
    """Of records that were sent together some are in the log and some are not, or a stranger is between them (I1, I3).
    Records that were sent in several ways, and those whose tokens may have been gone, belong to no one commit."""
    for topic in facts.topics:
        if topic.final is None:
            continue
        batches = _batches_of(topic)
        for send in topic.sends:
            rows = [row for row in send.rows if len(batches[row.value]) == 1 and not _may_be_left_out(row)]
            there = [topic.where[row.value] for row in rows if row.value in topic.where]
            missing = [row.value for row in rows if row.value not in topic.where]
            if there and missing:
                whole = f"of {len(rows)} records that {send.process} sent at once ({said(send)}) "
                text = f"{len(there)} are in '{topic.name}'; not there: {', '.join(map(repr, missing[:5]))}"
                yield Anomaly("torn commit", whole + text, (send, topic.final))
            elif there and max(there) - min(there) >= len(rows) == len(send.rows):
                ours = {row.value for row in rows}
                between = next(row for row in topic.rows[min(there) : max(there)] if row.value not in ours)
                text = f"between the records that {send.process} sent at once ({said(send)}) lies {between.value!r}, "
                yield Anomaly("torn commit", f"{text}at {between.position} of '{topic.name}'", (send, topic.final))


def torn_transaction(facts: Facts) -> Iterator[Anomaly]:
    """Of what was sent to several topics in one transaction some is there and some is not (I3). Records that were sent
    in several transactions belong to none of them."""
    topics = {topic.name: topic for topic in facts.topics}
    times = {name: _transactions_of(topic) for name, topic in topics.items()}
    for name, sends in facts.transactions.items():
        if any(topics[send.topic].final is None or topics[send.topic].start > EARLIEST for send in sends):
            continue
        own = [(send, row) for send in sends for row in send.rows if times[send.topic][row.value] == {name}]
        there = [(send, row) for send, row in own if row.value in topics[send.topic].where]
        missing = [(send, row) for send, row in own if row.value not in topics[send.topic].where]
        if there and missing:
            (first, row), (other, lost) = there[0], missing[0]
            text = f"of transaction {name} by {first.process} ({said(first)}) {row.value!r} is in '{first.topic}', and "
            events = (first,) if first is other else (first, other)
            yield Anomaly("torn transaction", f"{text}{lost.value!r} is not in '{other.topic}'", events)


def _transactions_of(topic: Topic) -> dict[str, set[str]]:
    """Value -> the transactions in which it was sent."""
    found: dict[str, set[str]] = defaultdict(set)
    for send in topic.sends:
        for row in send.rows:
            found[row.value].add(send.together)
    return found


def _may_be_left_out(row: Row) -> bool:
    return row.token is not None and row.position is None


def _batches_of(topic: Topic) -> dict[str, set[tuple[str, ...]]]:
    """Value -> the batches in which it was sent."""
    found: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for send in topic.sends:
        batch = tuple(row.value for row in send.rows)
        for value in batch:
            found[value].add(batch)
    return found


def zombie_effect(facts: Facts) -> Iterator[Anomaly]:
    """After a process was told that another has taken over its role, something that it did in that role later had an
    effect: a record in the log, an acknowledgement that counted, a reset, a delivery (I6)."""
    topics = {topic.name: topic for topic in facts.topics}
    for (process, role, name), events in facts.by_role.items():
        fenced: Event | None = None
        for event in events:
            if fenced is not None and _has_effect(topics[name], event):
                what = (
                    f"{process}{f' as {role}' if role else ''} was told that it is fenced ({said(fenced)}), and then "
                )
                yield Anomaly("zombie effect", what + _effect(event), (fenced, event))
            if event.told == "fenced" and fenced is None:
                fenced = event


def _has_effect(topic: Topic, event: Event) -> bool:
    match event:
        case Send(told="ok"):
            return any(row.position is not None for row in event.rows)
        case Send(told="unknown"):
            return any(row.value in topic.where and topic.outcomes[row.value][1] is event for row in event.rows)
        case Poll(told="ok"):
            return bool(event.rows)
        case Acknowledge(told="ok"):
            return event.moved is not False
    return isinstance(event, Reset) and event.is_ok


def _effect(event: Event) -> str:
    match event:
        case Send(rows=rows):
            return f"its record {rows[0].value!r} went into '{event.topic}' ({said(event)})"
        case Poll(rows=rows):
            return f"was given {rows[0].value!r} at {rows[0].position} of '{event.topic}' ({said(event)})"
        case Acknowledge(subscription=subscription) | Reset(subscription=subscription):
            return f"moved subscription '{subscription}' of '{event.topic}' ({said(event)})"
    return said(event)


def named_file_missing(facts: Facts) -> Iterator[Anomaly]:
    """A file that is named is not there (I12)."""
    for event in facts.of(FinalFiles):
        present = set(event.present)
        for file in event.named:
            if file not in present:
                yield Anomaly("named file missing", f"'{event.topic}' names {file}, which is not there", (event,))
