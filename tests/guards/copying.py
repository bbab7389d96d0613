"""Live tables, and topics that are copied elsewhere."""

from __future__ import annotations

from tests.guards.guard import Guard

_VIEW = "compaction/test_table_view.py"
_COPY = "lifecycle/test_copy_topic.py"

GUARDS = [
    Guard(
        "table-view/what-was-taken-away-is-read-anew",
        "compaction/table_view.py",
        "            self._load(now)\n",
        instead="            self._position = now.head.end\n",
        why="A view that retention has overtaken must not keep what was deleted in the gap (I9).",
        tests=(f"{_VIEW}::test_a_view_that_retention_has_overtaken_reads_the_whole_state_again_I9",),
    ),
    Guard(
        "table-view/a-row-and-its-version-go-together",
        "compaction/table_view.py",
        "                    self._ranks.pop(key, None)\n",
        instead="                    pass\n",
        why="After a deletion versions count anew (I9).",
        tests=(f"{_VIEW}::test_after_a_deletion_versions_count_anew_I9",),
    ),
    Guard(
        "copy-topic/a-gap-is-told",
        "lifecycle/copy_topic.py",
        "if last is not None and last + 1 < gone and gone != int(self._producer.name.removeprefix(self._prefix)):",
        instead="if False:",
        why="Deletions among the records that retention took would be missing in the copy (I9).",
        tests=(f"{_COPY}::test_what_retention_has_taken_between_two_runs_is_told_and_nothing_is_copied",),
    ),
    Guard(
        "copy-topic/a-key-alone-is-no-deletion",
        "lifecycle/copy_topic.py",
        "(part.select(alone) if empty[start].as_py() else part)",
        instead="part",
        why="A compacted record with nothing but its key must not delete it in the copy (I9).",
        tests=(f"{_COPY}::test_a_key_alone_that_only_a_generation_has_is_there_in_the_copy_I9",),
    ),
    Guard(
        "copy-topic/numbers-are-the-sources",
        "lifecycle/copy_topic.py",
        "self._producer.send_batch(records, numbers)",
        instead="self._producer.send_batch(records)",
        why="Whoever goes on with a copy knows by the numbers where it stands, also after gaps (I5).",
        tests=(f"{_COPY}::test_a_copy_goes_around_lost_entries_and_goes_on_after_them_I5",),
    ),
]
