"""Garbage collection and repair."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "gc/the-right-place",
        "lifecycle/gc.py",
        ("    log.storage.check_marked()  # in the wrong place nothing can be found, and so nothing be judged\n"),
        instead="",
        why="Where the storage is not mounted nothing is judged or deleted (I12).",
        tests=(
            "log/test_folders.py::test_nobody_writes_or_deletes_in_a_root_without_its_marker_and_reading_goes_on_I1_I16",
        ),
    ),
    Guard(
        "gc/nothing-until-the-repair",
        "lifecycle/gc.py",
        "log.check_not_set_back(log.refresh(sync=True).head)",
        instead="log.refresh(sync=True)",
        why="After a rollback nothing is deleted before somebody has decided how to go on (I18).",
        tests=("log/test_rollback.py::test_until_the_repair_nobody_changes_the_topic",),
    ),
    Guard(
        "gc/files-of-the-future",
        "lifecycle/gc.py",
        (
            "    _check_not_rolled_back(log, epochs, dry_run=dry_run)  # before anything changes, or a refused run would wear it off\n"
        ),
        instead="",
        why="A file of a later epoch shows a rollback, and files that seem unnamed may be needed (I12, I18).",
        tests=("lifecycle/test_gc.py::test_a_refused_run_changes_nothing_so_that_the_next_one_is_refused_too_I18",),
    ),
    Guard(
        "gc/the-grace",
        "lifecycle/gc.py",
        (
            "    if not _is_old_enough(log, node):\n"
            "        return Collected(view.head.gc_epoch, (), age_s=age_s, is_due=False)\n"
        ),
        instead="",
        why="A batch that takes less time than the grace is never refused, and a backup as young can be read (I12).",
        tests=("lifecycle/test_gc.py::test_a_clock_of_zookeeper_that_was_a_year_ahead_does_not_stop_gc_for_a_year",),
    ),
    Guard(
        "gc/the-grace-when-it-raises",
        "lifecycle/gc.py",
        "if head.gc_epoch != epoch or not _is_old_enough(log, node):",
        instead="if head.gc_epoch != epoch:",
        why="Of two gcs the second one must not raise the epoch that the first has just begun (I12).",
        tests=("lifecycle/test_gc.py::test_an_epoch_whose_birth_was_written_anew_meanwhile_is_not_raised_I12",),
    ),
    Guard(
        "gc/the-epoch-that-it-saw",
        "lifecycle/gc.py",
        "if head.gc_epoch != epoch or not _is_old_enough(log, node):",
        instead="if not _is_old_enough(log, node):",
        why="A gc that paused must not raise an epoch that it has not judged (I12).",
        tests=(
            "lifecycle/test_gc.py::test_two_gcs_wherever_one_of_them_pauses_raise_once_in_a_grace_and_delete_nothing_that_is_named_I12",
        ),
    ),
    Guard(
        "gc/the-epochs-birth-at-its-version",
        "lifecycle/gc.py",
        "_born(node.record, epoch, first_commit), node.version)]",
        instead="_born(node.record, epoch, first_commit), None)]",
        why="The age is judged at the version that the raise replaces (I12).",
        tests=("lifecycle/test_gc.py::test_an_epoch_whose_birth_was_written_anew_meanwhile_is_not_raised_I12",),
    ),
    Guard(
        "gc/no-raise-until-the-repair",
        "lifecycle/gc.py",
        "        log.check_not_set_back(head)\n        first_commit",
        instead="        first_commit",
        why="A rollback that somebody notices while gc works stops it too (I18).",
        tests=("lifecycle/test_gc.py::test_a_rollback_that_is_noticed_while_gc_works_stops_it_I18",),
    ),
    Guard(
        "generations/readable-for-the-grace",
        "log/generations.py",
        "return replaced.epoch >= head.gc_epoch - 1",
        instead="return replaced.epoch >= head.gc_epoch",
        why="A batch that was planned before a generation was replaced can be read for the grace (I7, I12).",
        tests=(
            "compaction/test_compaction.py::test_a_generation_is_kept_until_two_gc_epochs_after_it_was_replaced_and_then_gone_by_name",
        ),
    ),
    Guard(
        "gc/what-was-named-when-the-epoch-began",
        "lifecycle/gc.py",
        "yield from (*_replaceable(log, view.head), *view.head.gc_kept)",
        instead="yield from _replaceable(log, view.head)",
        why="A file that was replaced in this epoch is still read by who has an older head (I12).",
        tests=(
            "lifecycle/test_gc.py::test_what_was_replaced_is_deleted_when_that_was_longer_ago_than_the_grace_and_not_sooner",
        ),
    ),
    Guard(
        "gc/what-is-kept-is-written-down",
        "lifecycle/gc.py",
        "return replace(after, gc_kept=kept, gc_gone=self._gone[kept])",
        instead="return replace(after, gc_gone=self._gone[kept])",
        why="Which files were named when the epoch began must be known when it ends (I12).",
        tests=(
            "lifecycle/test_gc.py::test_what_was_replaced_is_deleted_when_that_was_longer_ago_than_the_grace_and_not_sooner",
        ),
    ),
    Guard(
        "gc/snapshots-are-named",
        "lifecycle/gc.py",
        ("    files = (dedup.producers_file, dedup.evicted_file) if dedup is not None else ()\n"),
        instead=("    files = ()\n"),
        why="The snapshot of the producers is named by a node of its own (I12).",
        tests=("lifecycle/test_gc.py::test_a_snapshot_of_the_producers_stays_for_as_long_as_it_is_named_I12",),
    ),
    Guard(
        "gc/the-epoch-before-the-last",
        "lifecycle/gc.py",
        "return self.floor <= epoch < head.gc_epoch - 1",
        instead="return self.floor <= epoch < head.gc_epoch",
        why="A file of the last epoch may still be named by a commit (I12).",
        tests=("lifecycle/test_gc.py::test_what_a_killed_task_left_is_gone_after_three_runs_and_nothing_else",),
    ),
    Guard(
        "gc/lists-of-commits",
        "lifecycle/gc.py",
        "files = (*(entry.file for entry in log.entries(commit)), commit.highest_file, commit.entries_file)",
        instead="files = tuple(entry.file for entry in log.entries(commit))",
        why="A commit may name lists of entries and of ids (I12).",
        tests=("lifecycle/test_gc.py::test_long_lists_index_files_and_snapshots_survive_any_number_of_runs_I12",),
    ),
    Guard(
        "gc/open-commits",
        "lifecycle/gc.py",
        ("    for commit in view.open_commits:\n        yield from named_by(log, commit)\n"),
        instead="",
        why="Commits of the open ledger name files too (I12).",
        tests=("lifecycle/test_gc.py::test_a_slow_batch_is_named_while_gc_runs_I12",),
    ),
    Guard(
        "gc/sealed-commits",
        "lifecycle/gc.py",
        ("                yield from named_by(log, commit)\n    for commit"),
        instead=("                yield from ()\n    for commit"),
        why="Commits of sealed ledgers name files too (I12).",
        tests=(
            "lifecycle/test_gc.py::test_two_gcs_wherever_one_of_them_pauses_raise_once_in_a_grace_and_delete_nothing_that_is_named_I12",
        ),
    ),
    Guard(
        "gc/index-files",
        "lifecycle/gc.py",
        ("    yield from index.references(floor)\n"),
        instead="",
        why="The files of the index are named by each other (I12).",
        tests=(
            "lifecycle/test_gc.py::test_two_gcs_wherever_one_of_them_pauses_raise_once_in_a_grace_and_delete_nothing_that_is_named_I12",
        ),
    ),
    Guard(
        "gc/manifests",
        "lifecycle/gc.py",
        ("        yield generation.manifest\n"),
        instead="",
        why="A generation is found by its manifest (I12).",
        tests=(
            "compaction/test_compaction.py::test_a_compactor_that_dies_leaves_the_old_or_the_new_generation_and_gc_the_rest_I12",
        ),
    ),
    Guard(
        "gc/compacted-files",
        "lifecycle/gc.py",
        "            yield from _if_there(compacted.files_of, log.files, generation.manifest)\n",
        instead="",
        why="A manifest names the files of its generation (I12).",
        tests=(
            "compaction/test_compaction.py::test_a_compactor_that_dies_leaves_the_old_or_the_new_generation_and_gc_the_rest_I12",
        ),
    ),
    Guard(
        "gc/overtaken-is-told",
        "lifecycle/gc.py",
        "        _check_not_overtaken(log, view)\n",
        instead="",
        why="A gc that was overtaken says so, instead of calling the topic damaged (I14).",
        tests=("lifecycle/test_gc.py::test_a_topic_that_is_deleted_meanwhile_is_said_to_be",),
    ),
    Guard(
        "gc/deletes-before-it-raises",
        "lifecycle/gc.py",
        "    try:\n        _delete_replaced(log, view, deletion)\n",
        instead=(
            "    _raise_epoch(log, view.head.gc_epoch, next_epoch)\n"
            "    try:\n        _delete_replaced(log, view, deletion)\n"
        ),
        why="What the epoch kept is written down anew by the raise: deleting after it would be too late by a grace for a pause (I12).",
        tests=(
            "lifecycle/test_gc.py::test_a_gc_that_keeps_failing_adds_nothing_to_the_head_and_one_that_works_finishes_it_I13",
        ),
    ),
    Guard(
        "gc/a-file-of-an-epoch-that-came-meanwhile",
        "lifecycle/gc.py",
        "head = log.refresh(sync=True).head  # perhaps",
        instead="head = log.view().head  # perhaps",
        why="An epoch that another gc has raised meanwhile is no rollback (I14).",
        tests=(
            "lifecycle/test_gc.py::test_a_file_that_is_staged_in_a_new_epoch_while_gc_lists_the_files_is_no_rollback",
        ),
    ),
    Guard(
        "gc/a-clock-that-was-ahead",
        "lifecycle/gc.py",
        "if log.metadata.now_ms(exact=True) < node.modified_ms and mend:",
        instead="if False:",
        why="A clock of ZooKeeper that was ahead once must not stop gc for ever (I16).",
        tests=("lifecycle/test_gc.py::test_a_clock_of_zookeeper_that_was_a_year_ahead_does_not_stop_gc_for_a_year",),
    ),
    Guard(
        "gc/ledgers-that-are-pending",
        "lifecycle/gc.py",
        "    index = log.index(view, planned=True)\n    yield from index.references",
        instead="    index = log.index(view)\n    yield from index.references",
        why="Files of ledgers that were given up stay for batches that were planned before (I7, I15).",
        tests=(
            "lifecycle/test_retention.py::test_a_batch_that_was_planned_before_can_be_read_for_the_grace_and_is_data_loss_later",
        ),
    ),
    Guard(
        "gc/the-clock-of-zookeeper",
        "lifecycle/gc.py",
        "return log.metadata.now_ms() - node.modified_ms >= log.limits.gc_grace_ms",
        instead="return log.clock.now_ms() - node.modified_ms >= log.limits.gc_grace_ms",
        why="A wrong clock of the machine that runs gc must not end the grace (I12).",
        tests=("lifecycle/test_gc.py::test_the_clock_of_the_machine_that_runs_gc_does_not_count",),
    ),
    Guard(
        "repair/once",
        "lifecycle/repair.py",
        (
            "        if head.set_back is None and self._last_file_epoch <= head.gc_epoch:\n"
            "            return None  # it was applied when it was sent before, or somebody else was faster\n"
        ),
        instead="",
        why="A topic that another has repaired meanwhile needs no repair (I14).",
        tests=("log/test_rollback.py::test_a_repair_that_another_one_overtakes_does_nothing_I14",),
    ),
    Guard(
        "repair/after-the-epochs-of-files",
        "lifecycle/repair.py",
        "epoch = max(head.gc_epoch, noted.gc_epoch, self._last_file_epoch)",
        instead="epoch = max(head.gc_epoch, noted.gc_epoch)",
        why="No gc epoch is used twice: files of the lost history would look young (I12, I18).",
        tests=("log/test_rollback.py::test_a_repair_begins_after_the_epochs_of_files_that_nobody_has_noted_I12_I18",),
    ),
    Guard(
        "repair/after-the-epoch-of-the-note",
        "lifecycle/repair.py",
        "epoch = max(head.gc_epoch, noted.gc_epoch, self._last_file_epoch)",
        instead="epoch = max(head.gc_epoch, self._last_file_epoch)",
        why="No gc epoch is used twice, also if no file has it (I12, I18).",
        tests=("log/test_rollback.py::test_a_repair_begins_after_the_most_that_is_known_of_the_lost_history_I18",),
    ),
    Guard(
        "repair/after-the-lost-commits",
        "lifecycle/repair.py",
        "next_commit = max(head.next_commit, noted.next_commit) + limits.repair_jump",
        instead="next_commit = head.next_commit + limits.repair_jump",
        why="No number of a lost commit is used again (I18).",
        tests=("log/test_rollback.py::test_repair_accepts_the_loss_and_uses_no_number_twice",),
    ),
    Guard(
        "repair/after-the-lost-ledgers",
        "lifecycle/repair.py",
        "ledger=max(head.ledger, noted.ledger) + limits.repair_jump,",
        instead="ledger=head.ledger + limits.repair_jump,",
        why="No position of a lost record is used again (I18).",
        tests=("log/test_rollback.py::test_a_repair_begins_after_the_most_that_is_known_of_the_lost_history_I18",),
    ),
    Guard(
        "repair/after-the-lost-tokens",
        "lifecycle/repair.py",
        "next_token = max(head.token_base + head.tokens, noted.next_token) + limits.repair_token_jump",
        instead="next_token = head.token_base + head.tokens + limits.repair_token_jump",
        why="No token of a lost record is used again (I11, I18).",
        tests=("log/test_rollback.py::test_a_repair_begins_after_the_most_that_is_known_of_the_lost_history_I18",),
    ),
    Guard(
        "repair/what-is-named-is-kept",
        "lifecycle/repair.py",
        "return replace(after, gc_kept=gc.replaceable(after, snapshot))",
        instead="return replace(after)",
        why="The epoch begins with the repair: what is named then is kept for a grace (I12).",
        tests=("log/test_rollback.py::test_what_is_named_at_a_repair_is_kept_for_a_grace_after_it_was_replaced_I12",),
    ),
    Guard(
        "repair/a-cursor-is-moved-once",
        "lifecycle/repair.py",
        ("        if not _is_past_end(cursor, head):\n            return None\n"),
        instead="",
        why="A cursor that another repair has moved must not skip what was written since (I8).",
        tests=("log/test_rollback.py::test_two_repairs_at_a_time_skip_nothing_that_was_written_after_the_first",),
    ),
    Guard(
        "repair/epochs-are-read-before-the-head",
        "lifecycle/repair.py",
        (
            "    epochs = list(_file_epochs(log))  # before the head is read, or an epoch that gc has just begun would look later\n"
            "    head = log.refresh(sync=True).head\n"
        ),
        instead=("    head = log.refresh(sync=True).head\n    epochs = list(_file_epochs(log))\n"),
        why="An epoch that gc begins meanwhile must not look like damage (I14).",
        tests=("log/test_rollback.py::test_an_epoch_that_gc_begins_meanwhile_is_no_damage",),
    ),
    Guard(
        "repair/the-snapshot-has-seen-everything",
        "lifecycle/repair.py",
        "return replace(snapshot, next_commit=after.next_commit)",
        instead="return snapshot",
        why="The snapshot belongs to the ledger that begins now (I5).",
        tests=("log/test_rollback.py::test_a_schema_of_the_lost_history_is_not_taken_for_another_with_its_id_I18",),
    ),
    Guard(
        "condemned/with-the-deletion",
        "log/topics.py",
        "        Create(CondemnedKey(topic.uuid), record),\n",
        instead="",
        why="The transaction that deletes a topic also notes that its files are to go, or a crash leaves them (I16).",
        tests=("lifecycle/test_condemned.py::test_a_crash_at_any_step_is_harmless_and_completed_later_I16",),
    ),
    Guard(
        "condemned/not-a-topic-that-is-there",
        "lifecycle/condemned.py",
        "if node is not None and head is None and names.parse_topic_folder(key.uuid) is not None",
        instead="if node is not None and names.parse_topic_folder(key.uuid) is not None",
        why="The files of a topic that is there are never deleted with those of one that is not (I12).",
        tests=("lifecycle/test_condemned.py::test_a_uuid_that_a_topic_has_is_left_alone_even_if_it_is_condemned_I12",),
    ),
    Guard(
        "condemned/a-uuid",
        "lifecycle/condemned.py",
        "if node is not None and head is None and names.parse_topic_folder(key.uuid) is not None",
        instead="if node is not None and head is None",
        why="What is deleted is a topic's folder, and nothing else in the root or above it (I12).",
        tests=("lifecycle/test_condemned.py::test_a_condemned_node_whose_name_is_no_uuid_deletes_nothing",),
    ),
    Guard(
        "condemned/two-graces",
        "lifecycle/condemned.py",
        "is_over = now_ms - node.modified_ms >= 2 * namespace.limits.gc_grace_ms",
        instead="is_over = True",
        why="A task that runs late may still stage a file, and only the node tells that it is to go (I16).",
        tests=(
            "lifecycle/test_condemned.py::test_a_deleted_topic_has_no_files_at_once_and_nothing_at_all_after_two_graces",
        ),
    ),
    Guard(
        "condemned/the-right-place",
        "lifecycle/condemned.py",
        "    namespace.storage.check_marked()\n",
        instead="",
        why="Where the storage is not mounted there seems to be nothing left, and the node would go (I12, I16).",
        tests=("lifecycle/test_condemned.py::test_nothing_is_deleted_in_a_root_without_its_marker_I12",),
    ),
    Guard(
        "namespace-gc/only-unknown-folders",
        "lifecycle/namespace_gc.py",
        "if head is None and mark is None]",
        instead="]",
        why="A folder of this namespace is neither taken for unknown nor removed by hand (I12).",
        tests=("lifecycle/test_namespace_gc.py::test_a_folder_of_this_namespace_is_never_removed_by_hand_I12",),
    ),
]
