"""Cursors: resets, owners, acknowledgements, the consumer."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "consumer/an-outdated-read-loses-no-redelivery",
        "cursors/consumer.py",
        (
            "                self._refused.put_back(read.ordinals)  # the reset that is under way may still fail: deliver them then\n"
        ),
        instead=("                pass\n"),
        why="Records that are to be delivered again come also if a reset began meanwhile and failed (I1).",
        tests=(
            "cursors/test_redelivery.py::test_what_was_read_again_while_a_reset_began_is_not_forgotten_if_the_reset_fails_I1",
        ),
    ),
]
