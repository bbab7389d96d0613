"""The head, its view in memory, rollbacks, and sealing."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "seal/a-refusal-may-be-a-rollback",
        "log/seal.py",
        ("        log.refused(refusal)\n"),
        instead=("        pass\n"),
        why="A seal that is refused because of the tip has met a rollback (I18).",
        tests=("log/test_rollback.py::test_a_tip_that_is_missing_is_an_error_by_name_I16",),
        hangs=True,
    ),
]
