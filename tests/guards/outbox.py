"""The outbox and its entities."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "outbox/staged-too-long-ago-is-staged-again",
        "outbox/processing.py",
        ("            self._handled = None  # gc ran twice meanwhile: stage again\n"),
        instead="",
        why="A message must not fail for ever because gc ran (I16).",
        tests=("outbox/test_outbox.py::test_gc_between_staging_and_commit_stages_again_I12",),
        hangs=True,
    ),
]
