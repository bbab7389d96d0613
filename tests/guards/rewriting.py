"""Rewriting small files."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "rewriting/the-leaf-that-was-copied",
        "lifecycle/rewriting.py",
        "return leaf is not None and leaf.file == copied.before.file",
        instead="return leaf is not None",
        why="Of two rewriters that copied the same ledger the second changes nothing (I6, I12).",
        tests=(
            "lifecycle/test_rewriting.py::test_of_two_that_have_copied_the_same_ledger_the_second_changes_nothing_I6",
        ),
    ),
    Guard(
        "rewriting/not-what-was-given-up",
        "lifecycle/rewriting.py",
        "Index(log.files, head.index, first_ledger(head)).leaf(",
        instead="Index(log.files, head.index).leaf(",
        why="The index does not change where files may be gone (I12).",
        tests=("lifecycle/test_rewriting.py::test_a_ledger_that_was_given_up_meanwhile_is_left_out_I12",),
    ),
    Guard(
        "rewriting/its-files-are-young",
        "lifecycle/rewriting.py",
        "        check_epochs(log, head, (each.after.file for each in copied))  # the others of a ledger are of the same epoch\n",
        instead="",
        why="gc may have deleted files that were written two epochs ago (I12).",
        tests=("lifecycle/test_rewriting.py::test_one_that_always_takes_longer_gives_up_and_changes_nothing",),
    ),
    Guard(
        "rewriting/too-long-begins-again",
        "lifecycle/rewriting.py",
        "if conflict.code != STAGED_TOO_LONG_AGO or last_try:",
        instead="if True:",
        why="One that took longer than the grace once does its work all the same (I16).",
        tests=("lifecycle/test_rewriting.py::test_one_that_takes_longer_than_the_grace_begins_again_I12",),
    ),
    Guard(
        "rewriting/nothing-until-the-repair",
        "lifecycle/rewriting.py",
        "        log.check_not_set_back(head)\n",
        instead="",
        why="After a rollback nobody writes before somebody has decided how to go on (I18).",
        tests=("lifecycle/test_rewriting.py::test_nothing_is_published_after_a_rollback_was_noticed_I18",),
    ),
    Guard(
        "rewriting/the-index-is-of-this-epoch",
        "lifecycle/rewriting.py",
        "known = (head.index, head.going, head.gc_epoch, ",
        instead="known = (head.index, head.going, ",
        why="What is replaced in this epoch is kept for as long as that says (I12).",
        tests=(
            "lifecycle/test_rewriting.py::test_what_is_replaced_while_gc_raises_the_epoch_is_kept_from_then_on_I12",
        ),
    ),
    Guard(
        "rewriting/old-leaves-go",
        "lifecycle/rewriting.py",
        "gone = [*before, *leaves, *",
        instead="gone = [*before, *",
        why="What was replaced is deleted some time, and not before (I12, I13).",
        tests=("lifecycle/test_rewriting.py::test_old_files_go_after_the_grace_and_new_ones_stay_I12",),
    ),
    Guard(
        "rewriting/what-goes-already",
        "lifecycle/rewriting.py",
        "gone = [*before, *leaves, *",
        instead="gone = [*leaves, *",
        why="What was replaced before is not forgotten (I12, I13).",
        tests=("lifecycle/test_rewriting.py::test_old_files_go_after_the_grace_and_new_ones_stay_I12",),
    ),
    Guard(
        "rewriting/old-nodes-go",
        "lifecycle/rewriting.py",
        "*(Going(node, epoch) for node in nodes)]",
        instead="]",
        why="A node of the index that was copied is deleted some time, and not before (I12, I13).",
        tests=("lifecycle/test_rewriting.py::test_old_files_go_after_the_grace_and_new_ones_stay_I12",),
    ),
    Guard(
        "rewriting/only-the-same-columns",
        "lifecycle/rewrite_copy.py",
        "return not is_full and bool(schema.equals(self._schema, check_metadata=True))",
        instead="return not is_full and set(schema.names) <= set(self._schema.names)",
        why="Whether a record is a tombstone is judged by the columns of its entry (I2, I9).",
        tests=("lifecycle/test_rewriting.py::test_only_entries_with_the_same_columns_share_a_file",),
    ),
    Guard(
        "rewriting/all-rows-of-an-entry",
        "lifecycle/rewrite_copy.py",
        "if self._rows - first != entry.records:",
        instead="if False:",
        why="An entry that is shorter than its commit says would move all that come after it (I1, I2).",
        tests=("lifecycle/test_rewriting.py::test_an_entry_that_is_shorter_than_its_commit_says_moves_nothing",),
    ),
    Guard(
        "rewriting/a-damaged-ledger-is-left-alone",
        "lifecycle/rewrite_copy.py",
        '            yield Skipped(each.ledger, f"{error}")\n',
        instead="            raise error\n",
        why="A damaged file does not hold up the ledgers after it (I16).",
        tests=("lifecycle/test_rewriting.py::test_a_ledger_with_a_damaged_file_stays_as_it_is_and_the_file_is_named",),
    ),
]
