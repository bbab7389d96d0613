"""Deduplication by sequence ids."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "dedup/an-older-batch-is-an-error",
        "dedup/batch_ids.py",
        "if batch.sequence < state.sequence:",
        instead="if False:",
        why="An older batch id comes from an old checkpoint: it is neither new nor a replay (I5).",
        tests=("dedup/test_dedup.py::test_anything_else_is_an_error_never_a_silent_drop_I6",),
    ),
    Guard(
        "dedup/a-replay-has-the-same-offsets",
        "dedup/batch_ids.py",
        "if batch.digest == state.digest if has_digests else records == state.records:",
        instead="if True:",
        why="The same id with other data is another batch: to drop it would lose data (I1, I5).",
        tests=("dedup/test_dedup.py::test_anything_else_is_an_error_never_a_silent_drop_I6",),
    ),
    Guard(
        "dedup/a-name-belongs-to-one-query",
        "dedup/batch_ids.py",
        "if batch.query != state.query:",
        instead="if False:",
        why="Batch ids of two queries cannot be compared (I5).",
        tests=("dedup/test_dedup.py::test_an_owned_name_says_both_sides_and_the_way_out",),
    ),
    Guard(
        "dedup/a-replaced-run-is-fenced",
        "dedup/batch_ids.py",
        "if batch.run and batch.run in state.past_runs:",
        instead="if False:",
        why="A run that was replaced changes nothing (I6).",
        tests=("dedup/test_dedup.py::test_anything_else_is_an_error_never_a_silent_drop_I6",),
    ),
    Guard(
        "dedup/batches-or-records",
        "dedup/batch_ids.py",
        "if state.per_record:",
        instead="if False:",
        why="A name numbers batches or records; ids of the two cannot be compared (I5).",
        tests=("dedup/test_record_ids.py::test_a_name_numbers_batches_or_records_and_never_both",),
    ),
    Guard(
        "dedup/records-or-batches",
        "dedup/producers.py",
        "if taken := self._owned.keys() & unknown:",
        instead="if (taken := self._owned.keys() & unknown) and False:",
        why="A name numbers batches or records; ids of the two cannot be compared (I5).",
        tests=("dedup/test_record_ids.py::test_a_name_numbers_batches_or_records_and_never_both",),
    ),
    Guard(
        "dedup/an-evicted-producer-of-records",
        "dedup/producers.py",
        ("            self.check_not_evicted(unknown, topic)\n"),
        instead="",
        why="Of an evicted producer nobody knows whether a record is new (I5).",
        tests=(
            "dedup/test_record_ids.py::test_nobody_is_evicted_unless_a_policy_says_so_and_the_evicted_are_reported",
        ),
    ),
    Guard(
        "dedup/the-evicted-stay-known",
        "dedup/producers.py",
        "kept._evicted = self._evicted | {",
        instead="kept._evicted = {",
        why="Who was evicted by an earlier seal is still not known (I5).",
        tests=(
            "dedup/test_record_ids.py::test_nobody_is_evicted_unless_a_policy_says_so_and_the_evicted_are_reported",
        ),
    ),
    Guard(
        "dedup/old-runs-are-bounded",
        "dedup/batch_ids.py",
        "(*before, last)[-at_most:]",
        instead="(*before, last)",
        why="The state of a producer does not grow with its restarts (I13).",
        tests=("dedup/test_dedup.py::test_the_last_sixteen_runs_are_remembered",),
    ),
    Guard(
        "dedup/ranges-that-meet-are-compared",
        "dedup/record_ids.py",
        "whole = pc.and_not(is_new(self._low, last_of_range), pc.is_in(self._codes, value_set=self._suspects))",
        instead="whole = is_new(self._low, last_of_range)",
        why="Two tasks may bring the same id: only their rows show it (I5).",
        tests=("dedup/test_record_ids.py::test_of_equal_ids_in_a_batch_the_first_wins_in_a_task_and_across_tasks_I5",),
    ),
    Guard(
        "dedup/the-first-of-equal-ids",
        "dedup/record_ids.py",
        ("        if len(self._suspects):\n            rows ="),
        instead=("        if False:\n            rows ="),
        why="Of equal ids in a batch only the first one counts (I5).",
        tests=("dedup/test_record_ids.py::test_of_equal_ids_in_a_batch_the_first_wins_in_a_task_and_across_tasks_I5",),
    ),
    Guard(
        "dedup/ranges-that-touch-meet",
        "dedup/record_ids.py",
        "pc.less_equal(low[1:], high[:-1])",
        instead="pc.less(low[1:], high[:-1])",
        why="A range that begins with the id with which another ends shares it (I5).",
        tests=("dedup/test_record_ids.py::test_tasks_whose_ids_meet_only_at_the_edge_share_that_id_I5",),
    ),
    Guard(
        "dedup/last-ids-only-rise",
        "dedup/record_ids.py",
        "highest if pc.all(rises).as_py() else highest.filter(rises)",
        instead="highest",
        why="A batch of old ids must not put a producer's last id back (I5).",
        tests=("dedup/test_record_ids.py::test_old_records_beside_new_ones_of_another_do_not_put_the_last_id_back_I5",),
    ),
    Guard(
        "dedup/every-record-has-an-id",
        "dedup/id_ranges.py",
        "if column.null_count:",
        instead="if False:",
        why="A record without an id can be compared with nothing (I5).",
        tests=("dedup/test_record_ids.py::test_a_record_without_an_id_is_an_error_not_a_guess",),
    ),
]
