"""Consuming and minting tokens."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "tokens/guarded-at-the-groups-version",
        "tokens/groups.py",
        ("        return Check(self.key, self._version)\n"),
        instead=("        return Check(self.key, None)\n"),
        why="What is stored for later dispatch counts on a token that is still there (I11).",
        tests=("outbox/test_outbox.py::test_a_copy_that_looked_before_the_token_went_does_not_begin_again_I11",),
    ),
    Guard(
        "tokens/a-block-is-guarded",
        "tokens/groups.py",
        ("        return Check(self._key, self._node.version)\n"),
        instead=("        return Check(self._key, None)\n"),
        why="What is stored for later dispatch counts on a token that is still there (I11).",
        tests=("outbox/test_outbox.py::test_a_minted_token_that_went_meanwhile_stores_nothing_to_dispatch_I11",),
    ),
]
