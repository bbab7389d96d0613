"""The checker finds each anomaly in a history that was clean, and nothing in clean ones."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.errors import Fenced, InvalidInput, OutcomeUnknown, Unavailable
from pyspark_ledger.testing.checker import CHECKS, check, main
from pyspark_ledger.testing.history import (
    Acknowledge,
    CompactedRead,
    CompactionSeen,
    CursorSeen,
    DeadLetters,
    FinalFiles,
    FinalLog,
    FinalTokens,
    Poll,
    Refuse,
    Reset,
    Row,
    Send,
    from_line,
    load,
    merge,
    to_line,
)
from pyspark_ledger.testing.recorder import Recorder
from tests.support import REPOSITORY, examples


class Story:
    """Writes a history down as it should be: what is sent is appended, and every event takes its time."""

    def __init__(self):
        self.events, self.log, self.numbers, self.now = [], [], Counter(), 0.0

    def add(self, event, process, told="ok"):
        self.numbers[process] += 1
        self.now += 1.0
        times = {"asked_at": self.now, "told_at": self.now + 0.5}
        self.events.append(
            replace(event, process=process, number=self.numbers[process], told=told, topic="orders", **times)
        )
        return len(self.events) - 1

    def send(self, process, *rows, told="ok", is_applied=True, **fields):
        """Rows are values, or rows. ``told`` and what really happened may be two things only if told "unknown"."""
        rows = tuple(Row(row) if isinstance(row, str) else row for row in rows)
        if is_applied:
            rows = tuple(replace(row, position=Position(0, len(self.log), i)) for i, row in enumerate(rows))
            self.log.append(rows)
        asked = tuple(replace(row, position=None) for row in rows)
        return self.add(Send(rows=rows if told == "ok" else asked, **fields), process, told)

    @property
    def rows(self):
        return [replace(row, token=None) for rows in self.log for row in rows]

    def poll(self, process, first, stop, **fields):
        return self.add(Poll(rows=tuple(self.rows[first:stop]), **fields), process)

    def at(self, number):
        return self.rows[number].position

    def end(self):
        self.add(FinalLog(rows=tuple(self.rows)), "end")
        return self.events


def story():
    """Eleven records by two producers, with whatever may happen to them, and readers of every kind."""
    story = Story()
    story.send("p1", "a1", producer="a", sequence=1)
    story.send("p1", "a2", "a3", "a4", producer="a", sequence=2)
    story.send("p2", "b1")
    story.send("p2", "b2", told="unknown")
    story.send("p2", "b3", told="refused", is_applied=False)
    story.send("p2", "b4")
    story.send("p1", "a5", told="unknown", is_applied=False, producer="a", sequence=3)
    story.send("p1", "a5", producer="a", sequence=3)
    story.send("p1", "a6", told="fenced", is_applied=False, producer="a", sequence=4, role="run-1")
    story.send("p3", Row("t1", key="k", token="T1"), group="g")
    story.send("p4", Row("t1-again", key="k", token="T1"), is_applied=False, group="g")
    story.send("p3", Row("t2", key="k", deletes=True), Row("t3", key="l"))
    # A reader, a Spark query that is restarted, a subscription with two owners and a reset, a compacted reader.
    story.poll("r", 0, 4, start=EARLIEST)
    story.poll("r", 4, 11)
    story.poll("driver-1", 0, 3, reader="q", batch=0)
    story.poll("driver-1", 3, 6, reader="q", batch=1)
    story.poll("driver-2", 3, 6, reader="q", batch=1)
    story.poll("driver-2", 6, 11, reader="q", batch=2)
    sub = {"subscription": "s"}
    story.add(CursorSeen(mark_delete=EARLIEST, **sub), "looker")
    story.poll("c1", 0, 5, epoch=1, **sub)
    story.add(Acknowledge(upto=story.at(2), positions=(story.at(3),), moved=True, **sub), "c1")
    story.add(CursorSeen(mark_delete=story.at(2), **sub), "looker")
    story.poll("c2", 2, 3, epoch=2, **sub)
    story.poll("c2", 4, 6, epoch=2, **sub)
    story.poll("c2", 4, 5, epoch=2, again=True, **sub)
    story.add(Reset(to=story.at(1), revision=1, **sub), "resetter")
    story.add(Acknowledge(upto=story.at(5), moved=False, **sub), "c2")
    story.add(CursorSeen(mark_delete=story.at(1), revision=1, **sub), "looker")
    story.poll("c2", 1, 11, epoch=2, revision=1, **sub)
    story.add(Acknowledge(upto=story.at(4), moved=True, revision=1, **sub), "c2")
    story.add(CursorSeen(mark_delete=story.at(4), revision=1, **sub), "looker")
    story.poll("live", 8, 9, compacted=True, start=EARLIEST)
    story.poll("live", 9, 11, compacted=True)
    story.add(CompactedRead(end=story.at(9), state=(("k", "t1"),)), "table")
    story.add(CompactedRead(end=Position(9, 0, 0), state=(("l", "t3"),)), "table")
    story.add(CompactionSeen(generation=1, horizon=story.at(3)), "looker")
    story.add(CompactionSeen(generation=2, horizon=story.at(8)), "other")
    story.add(FinalTokens(group="g", present=("T9",)), "end")
    story.add(FinalFiles(named=("x", "y"), present=("x", "y", "z")), "end")
    story.end()
    return story


def sharing():
    """Two consumers share by key. One dies with a record in hand, which then comes to the other; a record is refused
    and becomes a dead letter; and a skip keeps what was acknowledged."""
    told, by_key = Story(), {"subscription": "k", "shared": True, "keyed": True, "again": True}
    for n, key in enumerate("xyxyxxy"):
        told.send("p", Row(f"{key}{n}", key=key))
    told.add(CursorSeen(subscription="k"), "looker")
    told.poll("c1", 0, 1, epoch=1, role="first", **by_key)
    told.poll("c1", 2, 3, epoch=1, role="first", **by_key)
    told.poll("c2", 1, 2, epoch=1, **by_key)
    told.add(Refuse(subscription="k", positions=(told.at(1),)), "c2")
    told.poll("c2", 1, 2, epoch=1, **by_key)
    told.add(Acknowledge(subscription="k", positions=(told.at(0),)), "c1")
    told.add(Acknowledge(subscription="k", positions=(told.at(0),), moved=True), "c1")
    told.add(CursorSeen(subscription="k", mark_delete=told.at(1)), "looker")
    told.add(DeadLetters(subscription="k", rows=(told.rows[1],)), "looker")
    told.poll("c2", 2, 3, epoch=1, **by_key)  # c1 is dead
    told.poll("c2", 3, 4, epoch=1, **by_key)
    told.poll("c2", 4, 5, epoch=1, **by_key)
    told.add(Acknowledge(subscription="k", positions=(told.at(2),), moved=True), "c2")
    told.add(Reset(subscription="k", to=told.at(3), revision=1, keeps_acks=True), "resetter")
    told.poll("c2", 3, 5, epoch=1, revision=1, **by_key)
    told.add(Acknowledge(subscription="k", positions=(told.at(3), told.at(4)), revision=1), "c2")
    told.poll("c2", 5, 7, epoch=1, revision=1, **by_key)
    told.add(CursorSeen(subscription="k", revision=1, mark_delete=told.at(5)), "looker")
    told.end()
    return told


def transactions():
    """A process reads 'orders', and for each record writes to two topics and acknowledges, as a whole. It dies in the
    second, which was not done, and another does that again; and in the third, which was."""
    told, paid, sub = Story(), Story(), {"subscription": "pay"}

    def transact(number, process, name, outcome="ok", is_applied=True):
        paid.numbers, paid.now = told.numbers, told.now
        for topic in ("bills", "mails"):
            at = paid.send(process, f"{topic} {number}", told=outcome, is_applied=is_applied, together=name)
            paid.events[at] = replace(paid.events[at], topic=topic)
        told.now = paid.now
        ack = Acknowledge(positions=(told.at(number),), moved=True if outcome == "ok" else None, together=name, **sub)
        told.add(ack, process, outcome)

    for number in range(3):
        told.send("p", f"v{number}")
    told.add(CursorSeen(**sub), "looker")
    told.poll("t1", 0, 2, shared=True, again=True, **sub)
    transact(0, "t1", "t1/1")
    transact(1, "t1", "t1/2", "unknown", is_applied=False)
    told.poll("t2", 1, 3, shared=True, again=True, **sub)
    transact(1, "t2", "t2/1")
    transact(2, "t2", "t2/2", "unknown")
    told.add(CursorSeen(mark_delete=Position(1, 0, 0), **sub), "looker")
    ends = [FinalLog(topic=topic, told="ok", process="end", number=at, asked_at=99.0,
                     rows=tuple(row for row in paid.rows if row.value.startswith(topic)))
            for at, topic in enumerate(("bills", "mails"), 10)]  # fmt: skip
    return [*told.end(), *paid.events, *ends]


def find(events, kind, **fields):
    """The place of the first event of a kind with these fields."""
    return next(
        i
        for i, e in enumerate(events)
        if isinstance(e, kind) and all(getattr(e, name) == value for name, value in fields.items())
    )


def edit(events, kind, *, rows=None, change=None, **fields):
    """The history with one event changed: its rows by a function, other fields by a dictionary."""
    place = find(events, kind, **fields)
    event = events[place]
    if rows is not None:
        event = replace(event, rows=tuple(rows(event.rows)))
    return [*events[:place], replace(event, **(change or {})), *events[place + 1 :]]


def final(events, rows):
    return edit(events, FinalLog, rows=rows)


def without(value):
    return lambda rows: [row for row in rows if row.value != value]


def added(value, position):
    return lambda rows: [*rows, Row(value, position)]


def unplaced(rows):
    return [replace(row, position=None) for row in rows]


def swapped(rows, first, second):
    """Two records have changed places."""
    at = {row.value: row.position for row in rows}
    places = at | {first: at[second], second: at[first]}
    return sorted((replace(row, position=places[row.value]) for row in rows), key=lambda row: row.position)


def only_log(*sends):
    """A small history without readers: what an anomaly in the log itself implies for readers stays out."""
    story = Story()
    for process, values, fields in sends:
        story.send(process, *values, **fields)
    return story.end()


END = Position(7, 0, 0)
LOG = only_log(("p", ["v1"], {}), ("p", ["v2", "v3", "v4"], {}), ("p", ["v5"], {}), ("w", ["v6"], {"told": "unknown"}))
NUMBERED = only_log(*[("p", [f"v{n}"], {"producer": "a", "sequence": n, "told": "unknown"}) for n in range(4)])
TRIED = [
    *only_log(("p", [Row("t1", token="T1")], {"group": "g"}), ("p", ["v"], {})),
    FinalTokens(process="end", number=9, group="g", told="ok"),
]


def injected():
    """Anomaly, what else it implies, and a history that has it."""
    clean = story().events
    at = [row.position for row in story().rows]
    yield "aborted read", set(), edit(LOG, Send, rows=lambda rows: [Row("v1")], change={"told": "refused"}, process="p")
    yield "aborted read", set(), final(LOG, added("from nowhere", END))
    yield "aborted read", set(), edit(TRIED, Send, rows=lambda rows: [replace(rows[0], position=None)])
    yield "inconsistent positions", set(), edit(LOG, Send, rows=lambda rows: [replace(rows[0], position=END)])
    yield "inconsistent positions", {"non-monotonic poll", "poll skip", "unseen"}, edit(
        clean, Poll, process="r", number=2, rows=lambda rows: [replace(rows[0], position=at[3]), *rows[1:]]
    )  # fmt: skip
    yield "inconsistent positions", {"lost write", "aborted read"}, final(
        LOG, lambda rows: [replace(rows[0], value="other"), *rows[1:]]
    )  # fmt: skip
    yield "duplicate", set(), final(LOG, added("v5", END))
    yield "duplicate", set(), final(LOG, added("v6", END))  # an unknown one may be there once
    yield "lost write", set(), final(LOG, without("v5"))
    yield "non-monotonic send", set(), final(NUMBERED, lambda rows: swapped(rows, "v1", "v2"))
    yield "non-monotonic send", {"inconsistent positions"}, final(LOG, lambda rows: swapped(rows, "v1", "v5"))
    yield "torn commit", set(), final(
        edit(LOG, Send, number=2, rows=unplaced, change={"told": "unknown"}),
        without("v3"),
    )  # fmt: skip
    yield "torn commit", set(), final(
        only_log(("p", ["v1", "v2"], {"told": "unknown"}), ("w", ["v3"], {"told": "unknown"})),
        lambda rows: swapped(rows, "v2", "v3"),
    )  # fmt: skip
    paid = transactions()
    yield "torn transaction", set(), edit(paid, FinalLog, topic="mails", rows=without("mails 2"))
    yield "torn transaction", {"lost write"}, edit(paid, FinalLog, topic="bills", rows=without("bills 0"))
    yield "zombie effect", set(), edit(clean, Send, process="p1", number=3, change={"told": "fenced"})
    yield "zombie effect", set(), [
        *clean, replace(clean[find(clean, Poll, process="r")], number=9, role="run-1", process="p1"),
    ]  # fmt: skip
    yield "named file missing", set(), edit(clean, FinalFiles, change={"present": ("x", "z")})
    yield "unseen", {"poll skip"}, edit(clean, Poll, process="r", number=2, rows=lambda rows: rows[1:])
    yield "unseen", set(), [
        *only_log(*[("p", [f"v{n}"], {}) for n in range(4)]), *next_owner_skips(),
    ]  # fmt: skip
    yield "poll skip", {"unseen"}, edit(clean, Poll, process="r", rows=lambda rows: [rows[0], rows[3]])
    yield "poll skip", {"unseen"}, edit(clean, Poll, process="r", rows=lambda rows: rows[1:])
    yield "poll skip", {"unseen"}, edit(clean, Poll, process="driver-2", batch=2, rows=lambda rows: rows[1:])
    yield "poll skip", {"unseen"}, edit(clean, Poll, process="c2", revision=1, rows=lambda rows: rows[1:])
    yield "poll skip", set(), edit(clean, Poll, process="c1", rows=lambda rows: [*rows[:2], *rows[3:]])
    yield "non-monotonic poll", set(), edit(clean, Poll, process="r", rows=lambda rows: [*rows[:2], *rows[1:]])
    yield "non-monotonic poll", {"poll skip"}, edit(
        clean, Poll, process="r", number=2, rows=lambda rows: [rows[1], rows[0], *rows[2:]]
    )  # fmt: skip
    yield "non-monotonic poll", set(), edit(
        clean, Poll, process="r", number=2, rows=lambda rows: [story().rows[3], *rows]
    )  # fmt: skip
    yield "non-monotonic poll", set(), [
        *clean, replace(clean[find(clean, Poll, process="c2")], number=99, epoch=1, asked_at=99.0),
    ]  # fmt: skip
    yield "replay divergence", set(), edit(clean, Poll, process="driver-2", rows=lambda rows: rows[:-1])
    yield "stale acknowledgement", set(), edit(clean, Acknowledge, moved=False, change={"moved": True})
    yield "stale acknowledgement", {"passed without acknowledgement"}, edit(
        clean, CursorSeen, mark_delete=at[4], revision=1, change={"mark_delete": at[6]}
    )  # fmt: skip
    yield "cursor going back", set(), edit(
        clean, CursorSeen, mark_delete=at[4], revision=1, change={"mark_delete": EARLIEST}
    )  # fmt: skip
    yield "cursor going back", set(), edit(
        clean, CursorSeen, mark_delete=at[4], revision=1, change={"revision": 0, "mark_delete": at[2]}
    )  # fmt: skip
    shared = sharing().events
    taken = [row.position for row in sharing().rows]
    yield "passed without acknowledgement", set(), edit(
        shared, Acknowledge, revision=1, change={"positions": (taken[4],)}
    )  # fmt: skip
    yield "passed without acknowledgement", {"stale acknowledgement"}, edit(
        edit(paid, FinalLog, topic="mails", rows=without("mails 2")), FinalLog, topic="bills", rows=without("bills 2")
    )  # fmt: skip
    yield "passed without acknowledgement", set(), [
        *edit(shared, DeadLetters, change={"rows": ()}),
        CursorSeen(topic="orders", process="z", subscription="k", told="ok", mark_delete=taken[3], asked_at=21.6),
    ]  # fmt: skip
    yield "dead letter twice", set(), edit(shared, DeadLetters, rows=lambda rows: [*rows, *rows])
    yield "delivered after acknowledgement", set(), edit(
        shared, Poll, process="c2", number=4, rows=lambda rows: [sharing().rows[0], *rows]
    )  # fmt: skip
    yield "delivered after acknowledgement", set(), edit(
        shared, Poll, process="c2", number=5, rows=lambda rows: [sharing().rows[1], *rows]
    )  # fmt: skip
    yield "delivered after acknowledgement", set(), edit(
        paid, Poll, process="t2", rows=lambda rows: [story_row("v0", 0), *rows]
    )  # fmt: skip
    yield "key out of order", set(), edit(shared, Poll, process="c2", number=4, change={"rows": ()})
    yield "key out of order", set(), edit(
        edit(shared, DeadLetters, change={"rows": ()}),
        Poll, process="c2", number=3, rows=lambda rows: sharing().rows[3:4],
    )  # fmt: skip
    yield "token spent twice", set(), only_log(
        ("p", [Row("t1", token="T")], {"group": "g"}), ("w", [Row("t2", token="T")], {"group": "g"})
    )  # fmt: skip
    yield "token spent twice", set(), only_log(
        *[(who, [Row(f"by {who}", token="T")], {"group": "g", "told": "unknown"}) for who in "pw"]
    )  # fmt: skip
    yield "token without effect", set(), final(edit(TRIED, Send, change={"told": "unknown"}), without("t1"))
    yield "token without effect", {"lost write"}, final(TRIED, without("t1"))
    yield "effect without token", set(), edit(TRIED, FinalTokens, change={"present": ("T1",)})
    yield "compacted difference", set(), edit(clean, CompactedRead, change={"state": (("k", "b1"),)})
    yield "compacted difference", set(), edit(clean, CompactedRead, change={"state": ()})
    yield (
        "compacted difference",
        set(),
        edit(clean, CompactedRead, number=2, change={"state": (("k", "t1"), ("l", "t3"))}),
    )
    yield "missed deletion", set(), edit(clean, Poll, process="live", number=2, rows=without("t2"))
    yield "compaction going back", set(), edit(clean, CompactionSeen, process="other", change={"generation": 0})
    yield "compaction going back", set(), edit(clean, CompactionSeen, process="other", change={"horizon": at[1]})


def story_row(value, number):
    return Row(value, Position(0, number, 0))


def next_owner_skips():
    """Two owners of a subscription, one after the other, and a record that came to neither."""
    rows = only_log(*[("p", [f"v{n}"], {}) for n in range(4)])[-1].rows
    common = {"topic": "orders", "told": "ok", "subscription": "s", "number": 1}
    yield Poll(process="c1", rows=rows[:2], epoch=1, asked_at=90.0, told_at=90.5, **common)
    yield Poll(process="c2", rows=rows[3:], epoch=2, asked_at=91.0, told_at=91.5, **common)


INJECTED = list(injected())


def test_a_clean_history_has_no_anomaly():
    report = check(story().events)
    assert report.anomalies == [], str(report)
    assert report.not_checked == []
    assert str(report).endswith("No anomaly.")
    for events in (sharing().events, transactions()):
        report = check(merge(events))
        assert report.anomalies == [], str(report)
        assert report.not_checked == []


@pytest.mark.parametrize(("name", "implied", "history"), INJECTED, ids=[name for name, _, _ in INJECTED])
def test_an_injected_anomaly_is_found_and_no_other(name, implied, history):
    report = check(merge(history))
    assert report.names == {name, *implied}, str(report)
    assert all(anomaly.events for anomaly in report.anomalies)


def test_every_check_is_shown_to_find_something():
    names = {check.__name__.replace("_", " ").replace("non mono", "non-mono") for check in CHECKS}
    assert {name for name, _, _ in INJECTED} == names
    assert all(check.__doc__ for check in CHECKS)


def test_the_report_names_processes_positions_and_values():
    text = str(check(merge(edit(story().events, Poll, process="r", number=2, rows=lambda rows: rows[1:]))))
    assert "r, reading 'orders', went on from 'a4' at 0:1:2 to 'b2' at 0:3:0 (r#2), over 'b1' at 0:2:0" in text
    assert "'b1' at 0:2:0 of 'orders' never came to r, which read on to" in text


def test_what_the_history_cannot_show_is_said():
    events = [e for e in story().events if not isinstance(e, (FinalLog, FinalTokens, CursorSeen))]
    report = check(events)
    assert report.anomalies == []
    assert len(report.not_checked) == 3
    assert "without a final read" in str(report)


def test_what_was_trimmed_is_neither_lost_nor_skipped():
    events = final(LOG, lambda rows: rows[4:])
    events[-1] = replace(events[-1], start=events[-1].rows[0].position)
    assert check(events).anomalies == []


def test_a_reader_may_leave_out_what_a_skip_kept_acknowledged():
    told = Story()
    for n in range(6):
        told.send("p", f"v{n}")
    told.poll("c", 0, 4, subscription="s")
    told.add(Acknowledge(subscription="s", positions=(told.at(3),)), "c")
    told.add(Reset(subscription="s", to=told.at(2), revision=1, keeps_acks=True), "resetter")
    told.poll("c", 2, 3, subscription="s", revision=1)
    told.poll("c", 4, 6, subscription="s", revision=1)
    events = told.end()
    assert check(events).anomalies == []
    assert check(edit(events, Reset, change={"keeps_acks": False})).names == {"poll skip", "unseen"}


def test_what_a_skip_has_passed_over_is_not_unseen_and_what_lies_behind_it_is():
    told = Story()
    for n in range(8):
        told.send("p", f"v{n}")
    told.poll("c", 0, 2, subscription="s")
    told.add(Reset(subscription="s", to=told.at(4), revision=1, keeps_acks=True), "resetter")
    told.poll("c", 4, 6, subscription="s", revision=1)
    told.poll("c", 6, 8, subscription="s", revision=1)
    events = told.end()
    assert check(events).anomalies == []
    assert check(edit(events, Poll, number=2, change={"rows": ()})).names == {"poll skip", "unseen"}


def test_what_one_of_those_who_share_still_has_in_hand_is_unseen_only_when_the_cursor_has_passed_it():
    told, sub = Story(), {"subscription": "s"}
    for n in range(4):
        told.send("p", f"v{n}")
    told.add(CursorSeen(**sub), "looker")
    told.poll("c1", 0, 1, shared=True, again=True, **sub)
    told.poll("c2", 2, 4, shared=True, again=True, **sub)
    for process, n in (("c1", 0), ("c2", 2), ("c2", 3)):
        told.add(Acknowledge(positions=(told.at(n),), moved=True, **sub), process)
    told.add(CursorSeen(mark_delete=told.at(1), **sub), "looker")
    events = told.end()
    assert check(events).anomalies == []
    passed = edit(events, CursorSeen, number=2, change={"mark_delete": told.at(3)})
    assert check(passed).names == {"unseen", "passed without acknowledgement"}


def test_a_letter_that_died_before_a_reset_does_not_say_from_where_on_records_are_expected_after_it():
    told, sub = Story(), {"subscription": "s"}
    for n in range(6):
        told.send("p", f"v{n}")
    told.poll("c1", 0, 2, shared=True, again=True, **sub)
    told.add(Reset(to=told.at(4), revision=1, **sub), "resetter")
    told.poll("c1", 4, 6, shared=True, again=True, revision=1, **sub)
    told.add(DeadLetters(rows=(told.rows[0],), **sub), "looker")
    assert check(told.end()).anomalies == []


def test_a_skip_of_which_nobody_heard_may_have_kept_what_was_acknowledged_before():
    """The query went on from where it was, past two skips. The first of them made revision 1, and nobody was told."""
    told = Story()
    for n in range(6):
        told.send("p", f"v{n}")
    told.poll("c", 0, 4, subscription="s", reader="q", batch=0)
    told.add(Acknowledge(subscription="s", upto=told.at(4)), "c")
    told.add(Reset(subscription="s", keeps_acks=True), "resetter", "unknown")
    told.add(Reset(subscription="s", to=told.at(2), revision=2, keeps_acks=True), "another")
    told.poll("c", 4, 6, subscription="s", revision=2, reader="q", batch=1, start=told.at(4))
    events = told.end()
    assert check(events).anomalies == []
    for change in ({"keeps_acks": False}, {"told": "refused"}):  # then revision 1 was something else
        assert check(edit(events, Reset, number=1, change=change)).names == {"poll skip"}
    known = edit(events, Reset, number=1, change={"told": "ok", "revision": 1, "keeps_acks": False})
    assert check(known).names == {"poll skip", "unseen"}


def test_a_repeated_reset_does_not_say_where_it_had_put_the_subscription():
    told = Story()
    for n in range(4):
        told.send("p", f"v{n}")
    told.add(Reset(subscription="s", to=told.at(0), revision=1), "resetter", "unknown")
    told.poll("c", 0, 3, subscription="s", revision=1)
    told.add(Acknowledge(subscription="s", upto=told.at(2), revision=1), "c")
    told.add(Reset(subscription="s", to=told.at(2), revision=1, repeated=True), "resetter")
    events = told.end()
    assert check(events).anomalies == []
    assert check(edit(events, Reset, number=2, change={"repeated": False})).names == {"non-monotonic poll"}


# -- clean histories of a model ------------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
def test_whatever_a_right_log_does_is_no_anomaly(seed, steps):
    model = Model(random.Random(seed))
    for _ in range(steps):
        model.chance.choice(ACTS)(model)
    report = check(merge(model.told.end()))
    assert report.anomalies == [], str(report)


class Model:
    """Producers that hear what they hear, two readers, and a subscription that is acknowledged and reset."""

    def __init__(self, chance):
        self.chance, self.told, self.read = chance, Story(), Counter()
        self.mark = self.next = self.revision = 0
        self.epoch = 1

    def position(self, number):
        told = self.told
        return told.at(number) if number < len(told.rows) else Position(0, len(told.log), 0)

    def send(self):
        chance, number = self.chance, len(self.told.events)
        told = chance.choice(["ok", "ok", "unknown", "refused"])
        is_applied = told == "ok" or (told == "unknown" and chance.random() < 0.5)
        names = [f"v{number}.{n}" for n in range(chance.randint(1, 4))]
        rows = [Row(name, key=chance.choice("xyz"), deletes=chance.random() < 0.2) for name in names]
        self.told.send(chance.choice("pq"), *rows, told=told, is_applied=is_applied)

    def poll(self):
        who = self.chance.choice(["r1", "r2"])
        stop = self.chance.randint(self.read[who], len(self.told.rows))
        self.told.poll(who, self.read[who], stop, start=EARLIEST)
        self.read[who] = stop

    def consume(self):
        stop = self.chance.randint(self.next, len(self.told.rows))
        under = {"subscription": "s", "revision": self.revision, "epoch": self.epoch}
        self.told.poll(f"c{self.epoch}", self.next, stop, **under)
        self.next = stop

    def acknowledge(self):
        self.mark = self.chance.randint(self.mark, self.next)
        upto = self.position(self.mark)
        ack = Acknowledge(subscription="s", revision=self.revision, upto=upto, moved=True)
        self.told.add(ack, f"c{self.epoch}")

    def reset(self):
        self.mark = self.next = self.chance.randint(0, len(self.told.rows))
        self.revision += 1
        self.told.add(Reset(subscription="s", to=self.position(self.mark), revision=self.revision), "resetter")

    def take_over(self):
        self.epoch += 1
        self.next = self.mark

    def look(self):
        mark, end = self.position(self.mark), self.position(len(self.told.rows))
        self.told.add(CursorSeen(subscription="s", revision=self.revision, mark_delete=mark), "looker")
        last = {row.key: row for row in self.told.rows}
        state = tuple((key, row.value) for key, row in last.items() if not row.deletes)
        self.told.add(CompactedRead(end=end, state=state), "table")


ACTS = (Model.send, Model.send, Model.poll, Model.consume, Model.acknowledge, Model.reset, Model.take_over, Model.look)


# -- files ---------------------------------------------------------------------------------------------------------


def test_events_survive_being_written():
    for event in (*story().events, *sharing().events, *transactions()):
        assert from_line(to_line(event)) == event


class Ticks:
    now = 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now


def test_a_killed_process_leaves_an_unknown_event_and_half_a_line(tmp_path):
    file = tmp_path / "p.jsonl"
    recorder = Recorder(file, "p", Ticks())
    send = Send(topic="orders", rows=(Row("v1"),))
    with recorder.asking(send) as call:
        call.ok(rows=(Row("v1", EARLIEST),))
    for error in (OutcomeUnknown("?"), Fenced("!"), Unavailable("-"), ZeroDivisionError()):
        with pytest.raises(type(error)), recorder.asking(send):
            raise error
    with pytest.raises(KeyboardInterrupt), recorder.asking(send):
        raise KeyboardInterrupt
    recorder.close()
    file.write_text(file.read_text() + '{"kind":"send","proc')
    events = load([file])
    assert [event.told for event in events] == ["ok", "unknown", "fenced", "refused", "unknown", "unknown"]
    assert events[0].rows == (Row("v1", EARLIEST),)
    assert events[-1].told_at is None


NO_EVENTS = {
    "nonsense": "not an event",
    "[]": "not an event",
    '{"told":"ok"}': "its kind is None: there are send, poll",
    '{"kind":"dance"}': "its kind is 'dance': there are send, poll",
    '{"kind":"send","shoes":1}': "it has a field 'shoes', and a send has none",
    '{"kind":"send","told":"perhaps"}': "told is 'perhaps'",
    '{"kind":"poll","rows":[["v","here"]]}': "here",
}


@pytest.mark.parametrize(("line", "why"), NO_EVENTS.items())
def test_a_line_that_is_no_event_is_named(tmp_path, line, why):
    (tmp_path / "p.jsonl").write_text(f'{{"kind":"send"}}\n{line}\n')
    with pytest.raises(InvalidInput, match=rf"p\.jsonl, line 2: .*{why}"):
        load([tmp_path / "p.jsonl"])


def test_a_history_without_an_event_is_none_and_not_one_without_an_anomaly(tmp_path, capsys):
    (tmp_path / "p.jsonl").touch()
    assert main([str(tmp_path / "p.jsonl")]) == 2
    assert "p.jsonl: nothing was checked" in capsys.readouterr().err


def test_the_command_exits_with_1_if_there_is_an_anomaly(tmp_path):
    def run(events):
        by_process = {event.process: [] for event in events}
        for event in events:
            by_process[event.process].append(to_line(event) + "\n")
        for process, lines in by_process.items():
            (tmp_path / f"history-{process}.jsonl").write_text("".join(lines))
        files = sorted(map(str, tmp_path.glob("history-*.jsonl")))
        command = [sys.executable, "-m", "pyspark_ledger.testing.checker", *files]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)

    clean = run(LOG)
    assert (clean.returncode, clean.stdout.splitlines()[-1]) == (0, "No anomaly.")
    wrong = run(final(LOG, without("v5")))
    assert wrong.returncode == 1
    assert "p was told that 'v5' is in 'orders' at 0:2:0 (p#3), and it is not there" in wrong.stdout


# -- how long it takes ---------------------------------------------------------------------------------------------


def long_history(events):
    """Ten producers, five readers without and two with a subscription that take what is there, ten rows at a time."""
    told, chance = Story(), random.Random(1)
    rows, read = [], Counter()
    for number in range(events):
        who = chance.randrange(17)
        if who < 10:
            position = Position(number // 1000, number % 1000, 0)
            rows.append(Row(f"v{number}", position, f"k{number % 500}"))
            told.add(Send(rows=(rows[-1],), producer=f"p{who}", sequence=number), f"p{who}")
        else:
            new = tuple(rows[read[who] : read[who] + 10])
            read[who] += len(new)
            subscription = f"s{who}" if who > 14 else ""
            told.add(Poll(rows=new, subscription=subscription), f"r{who}")
    told.log = [rows]
    return told.end()


def test_twice_the_events_take_about_twice_as_long():
    # 200,000 events, in which 800,000 records are delivered, took 10 s of CPU on a busy machine.
    def seconds(history):
        began = time.process_time()
        assert check(history).anomalies == []
        return time.process_time() - began

    some, twice = long_history(5_000), long_history(10_000)
    assert min(seconds(twice) for _ in range(3)) < 3 * min(seconds(some) for _ in range(3))
