"""Compaction: generations, and who still needs deletions."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "compaction/generations-follow-each-other",
        "compaction/run.py",
        "if last_number(head) != generation.number - 1:",
        instead="if False:",
        why="A compactor that was overtaken changes nothing (I6, I10).",
        tests=(
            "compaction/test_compaction.py::test_horizon_and_generation_only_grow_and_an_overtaken_compactor_changes_nothing_I6_I10_pulsar_25118",
        ),
    ),
    Guard(
        "compaction/nothing-until-the-repair",
        "compaction/run.py",
        ("        log.check_not_set_back(head)\n"),
        instead="",
        why="After a rollback nobody writes before somebody has decided how to go on (I18).",
        tests=(
            "compaction/test_compaction.py::test_what_was_compacted_before_a_rollback_was_noticed_is_not_published_I18",
        ),
    ),
    Guard(
        "compaction/its-files-are-young",
        "compaction/run.py",
        ("        check_epochs(log, head, [*files, generation.manifest])\n"),
        instead="",
        why="gc may have deleted files that were written two epochs ago (I12).",
        tests=(
            "compaction/test_compaction.py::test_what_was_compacted_two_gc_epochs_ago_is_not_published_because_its_files_may_be_gone_I12",
        ),
    ),
    Guard(
        "compaction/the-one-before-is-kept",
        "compaction/run.py",
        "[*replaced, Replaced(last, head.gc_epoch)]",
        instead="[*replaced]",
        why="Batches that were planned on the generation before still read it (I7).",
        tests=(
            "compaction/test_compaction.py::test_a_compactor_that_dies_leaves_the_old_or_the_new_generation_and_gc_the_rest_I12",
        ),
    ),
    Guard(
        "compaction/the-list-is-of-this-epoch",
        "compaction/run.py",
        "known = head.replaced, head.gc_epoch",
        instead="known = head.replaced, 0",
        why="A list that was staged for an earlier try may be too old by now, and says a wrong epoch (I12).",
        tests=(
            "compaction/test_compaction.py::test_a_generation_counts_as_replaced_from_the_epoch_in_which_it_was_I12",
        ),
    ),
    Guard(
        "compaction/one-compactor",
        "log/locks.py",
        ("    if other is not None:\n        since ="),
        instead=("    if False:\n        since ="),
        why="A second compactor is told at once, instead of working in vain (I6).",
        tests=("compaction/test_compaction.py::test_a_second_compactor_is_refused_at_once_with_the_name_of_the_first",),
    ),
    Guard(
        "compaction/the-lock-is-released",
        "log/locks.py",
        ("        lock.release()\n"),
        instead=("        pass\n"),
        why="The next compaction can begin (I16).",
        tests=("compaction/test_compaction.py::test_a_compaction_that_failed_leaves_no_lock_I16",),
    ),
    Guard(
        "compaction/from-the-newest-head",
        "compaction/plan.py",
        ("    view = log.refresh(sync=True)\n    previous"),
        instead=("    view = log.view()\n    previous"),
        why="What was written before the call is compacted, also if this process has not seen it (I9).",
        tests=(
            "compaction/test_compaction.py::test_as_many_generations_as_can_be_kept_are_an_error_by_name_before_any_work_and_gc_helps_I13",
        ),
    ),
    Guard(
        "compaction/no-work-in-vain",
        "compaction/plan.py",
        ("    check_room(log, view.head)  # before the work is done in vain\n"),
        instead="",
        why="A compaction that cannot be published is refused before it reads the topic (I16).",
        tests=(
            "compaction/test_compaction.py::test_as_many_generations_as_can_be_kept_are_an_error_by_name_before_any_work_and_gc_helps_I13",
        ),
    ),
    Guard(
        "compaction/a-failed-one-deletes-its-files",
        "compaction/work.py",
        ("        writer.discard()\n"),
        instead="",
        why="A compaction that fails leaves no files for gc to find after days (I13).",
        tests=("compaction/test_compaction.py::test_an_interrupted_compaction_leaves_nothing_behind",),
    ),
    Guard(
        "compaction/tombstones-are-kept-as-long-as-needed",
        "compaction/work.py",
        "gone = gone.filter(at_or_after(positions, work.tombstones_from).take(gone))",
        instead="gone = gone.slice(0, 0)",
        why="A deletion is dropped only when everybody who may need it has seen it (I9).",
        tests=("compaction/test_compaction.py::test_tombstones_go_when_every_reader_is_past_them_and_not_before",),
    ),
    Guard(
        "pins/the-first-generation",
        "compaction/pins.py",
        "if not kept or kept[0].number in (1, view.head.last_generation + 1):",
        instead="if not kept:",
        why="While the first generation is kept there may be readers of the log alone, who have seen every key (I9).",
        tests=("compaction/test_compaction.py::test_every_tombstone_stays_while_the_first_generation_can_be_read",),
    ),
    Guard(
        "pins/the-oldest-generation",
        "compaction/pins.py",
        "needed = [kept[0].horizon]",
        instead="needed = [view.head.end]",
        why="Who reads a generation that is kept has not seen the deletions after it (I9).",
        tests=(
            "compaction/test_compaction.py::test_who_reads_the_oldest_generation_that_is_kept_finds_every_deletion_after_it_I9",
        ),
    ),
    Guard(
        "pins/subscriptions",
        "compaction/pins.py",
        ("    needed += [cursor.record.mark_delete for cursor in cursors if cursor is not None]\n"),
        instead="",
        why="A subscription that has not passed a deletion needs it (I9).",
        tests=("compaction/test_compaction.py::test_tombstones_go_when_every_reader_is_past_them_and_not_before",),
    ),
    Guard(
        "pins/running-readers",
        "compaction/pins.py",
        ("    needed += [pin.record.position for pin in pins if pin is not None]\n"),
        instead="",
        why="A running reader that has not passed a deletion needs it (I9).",
        tests=("compaction/test_compaction.py::test_tombstones_go_when_every_reader_is_past_them_and_not_before",),
    ),
    Guard(
        "pins/it-does-not-go-back",
        "compaction/pins.py",
        "return max(kept[-1].tombstones_from, min(needed))",
        instead="return min(needed)",
        why="What a generation has dropped is gone, and the next one must say so (I9, I10).",
        tests=("compaction/test_compaction.py::test_what_a_generation_has_dropped_no_later_one_claims_to_have_I9_I10",),
    ),
    Guard(
        "pins/a-pin-that-failed-is-tried-again",
        "compaction/pins.py",
        ("        with contextlib.suppress(TransactionLost, OutcomeUnknown):  # tried again with the next batch\n"),
        instead=(
            "        self._generation = generation\n"
            "        with contextlib.suppress(TransactionLost, OutcomeUnknown):\n"
        ),
        why="A reader whose pin was not made would have its deletions dropped (I9).",
        tests=("compaction/test_compaction.py::test_a_pin_whose_move_got_lost_is_moved_with_the_next_batch_I9",),
    ),
    Guard(
        "generations/gone-only-after-a-sync",
        "log/generations.py",
        ("        view = log.refresh(sync=True)\n        last = view.head.generation\n"),
        instead=("        pass\n"),
        why="A generation that a server does not know yet is not gone (I7).",
        tests=("log/test_stale_servers.py::test_a_generation_published_a_moment_ago_is_not_gone",),
    ),
    Guard(
        "generations/not-after-the-end",
        "log/generations.py",
        "if last is None or end is None or last.horizon <= end:",
        instead="if True:",
        why="A later generation has dropped records that were the last of their key at the end of the read (I9).",
        tests=(
            "datasource/test_read_compacted.py::test_a_stream_that_ends_before_the_horizon_ends_with_the_state_at_its_end_I9",
        ),
    ),
]
