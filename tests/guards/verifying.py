"""Verifying, and giving up what is damaged."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "verifying/a-ledger-is-looked-at-again",
        "lifecycle/verify.py",
        "                way.suspect(leaf.row.file, seen)\n                return False\n",
        instead="                pass\n",
        why="A ledger that was rewritten or given up while it was looked at is no loss (I12).",
        tests=("lifecycle/test_verify.py::test_who_acts_between_two_looks_at_files_is_no_false_alarm_I12",),
    ),
    Guard(
        "verifying/only-what-is-found-again",
        "lifecycle/verify.py",
        "found = [each for each in found if each in again]",
        instead="pass",
        why="A generation that was replaced and collected while it was looked at is no loss (I12).",
        tests=("lifecycle/test_verify.py::test_who_acts_between_two_looks_at_files_is_no_false_alarm_I12",),
    ),
    Guard(
        "verifying/nothing-from-memory",
        "lifecycle/verify.py",
        "fresh = Log(log.metadata, log.storage, log.topic, limits=log.limits, clock=log.clock)",
        instead="fresh = log",
        why="A damaged file is found, even if what it said is still in memory (I1).",
        tests=("lifecycle/test_verify.py::test_what_is_in_memory_hides_nothing_I1",),
    ),
    Guard(
        "skipping/only-what-is-damaged",
        "lifecycle/skipping.py",
        "    if not damage and not undo:",
        instead="    if False:",
        why="Nobody gives up what can be read (I1).",
        tests=("lifecycle/test_skipping.py::test_an_entry_that_is_whole_is_refused_and_so_is_one_that_is_not_there",),
    ),
    Guard(
        "skipping/gc-knows-the-list",
        "lifecycle/gc.py",
        "head.replaced, head.going, head.lost)",
        instead="head.replaced, head.going)",
        why="The list of lost entries is named by the head (I12).",
        tests=("lifecycle/test_skipping.py::test_gc_keeps_the_list_and_deletes_the_one_before_I12",),
    ),
    Guard(
        "skipping/lost-once",
        "cursors/loss.py",
        "lost=cursor.lost + more)",
        instead="lost=cursor.lost + lost.records)",
        why="What was acknowledged before is not lost to a subscription (I14).",
        tests=("lifecycle/test_skipping.py::test_what_was_refused_and_is_lost_since_is_not_delivered_again",),
    ),
]
