"""Recovery: what is left in storage, and what it shows."""

from __future__ import annotations

from tests.guards.guard import Guard

SNAPSHOTS = "log/test_snapshots.py"

GUARDS = [
    Guard(
        "snapshots/gc-looks-at-them",
        "lifecycle/gc.py",
        "    snapshots.check_not_behind(log, log.refresh(sync=True), there, note=not dry_run)\n",
        instead="",
        why="After a rollback that no process has survived gc would delete what the lost history has named (I18).",
        tests=(f"{SNAPSHOTS}::test_gc_notices_a_rollback_that_no_process_has_survived_I18",),
    ),
    Guard(
        "snapshots/a-dry-run-notes-nothing",
        "lifecycle/gc.py",
        "there, note=not dry_run)",
        instead="there)",
        why="Who only asks what gc would do must not stop every writer of the topic by it (I18).",
        tests=(f"{SNAPSHOTS}::test_a_dry_run_of_gc_notices_it_and_changes_nothing_I18",),
    ),
    Guard(
        "snapshots/a-seal-looks-at-them",
        "log/seal.py",
        "    snapshots.check_not_behind(log, view, there)\n",
        instead="",
        why="A writer that has not seen the lost history would go on beside it for ever (I18).",
        tests=(f"{SNAPSHOTS}::test_a_writer_notices_it_with_the_next_seal_I18",),
    ),
    Guard(
        "snapshots/gc-leaves-one-before-it-deletes",
        "lifecycle/gc.py",
        "        snapshots.leave(log, there)  # before anything is deleted that the newest one may name\n",
        instead="        pass\n",
        why="The newest snapshot would name files that gc deletes, and nothing could be rebuilt from it (I12).",
        tests=(f"{SNAPSHOTS}::test_what_the_newest_one_names_is_never_deleted_I12",),
    ),
    Guard(
        "snapshots/what-was-repaired-is-known",
        "log/snapshots.py",
        " or there[-1].next_commit <= view.head.repaired",
        instead="",
        why="What a repair has given up would be taken for another rollback (I16).",
        tests=(
            f"{SNAPSHOTS}::test_after_a_repair_that_could_leave_none_what_was_lost_is_no_reason_to_refuse_either_I16",
        ),
    ),
    Guard(
        "snapshots/dedup-and-head-belong-together",
        "log/snapshots.py",
        " and snapshot.dedup.next_commit == head.ledger_first_commit",
        instead="",
        why="A snapshot with the producers of a later ledger would take new batches for replays (I5).",
        tests=(f"{SNAPSHOTS}::test_a_seal_while_it_is_taken_does_not_mix_two_states_I5",),
    ),
    Guard(
        "repair/nothing-was-committed-since",
        "lifecycle/repair.py",
        "        if why := look_beyond(log).why_not():\n",
        instead='        if why := "":\n',
        why="A commit that is made after somebody has looked must not be overwritten by what storage has (I1, I18).",
        tests=("lifecycle/test_repair.py::test_a_commit_that_is_made_during_the_repair_is_not_lost_I1_I18",),
    ),
    Guard(
        "repair/histories-are-compared",
        "lifecycle/beyond.py",
        "    elif first < here:\n",
        instead="    elif False:\n",
        why="What was committed since the rollback must not be overwritten by what storage has (I1, I18).",
        tests=("lifecycle/test_repair.py::test_two_histories_are_not_mixed_and_it_is_said_where_they_part_I18",),
    ),
    Guard(
        "repair/after-the-snapshots",
        "lifecycle/beyond.py",
        "    known = Known(next_commit=max((found.next_commit for found in there), default=0))\n",
        instead="    known = Known()\n",
        why="No number of a commit that only a snapshot knows is used again (I18).",
        tests=(
            "lifecycle/test_repair.py::test_a_repair_begins_after_commits_that_only_the_name_of_a_damaged_file_shows_I18",
        ),
    ),
    Guard(
        "repair/who-lost-nothing-goes-on",
        "log/log.py",
        "if before is None or self.refresh(sync=True).head.last_change == before.head.last_change:",
        instead="if True:",
        why="Who finds all that it has seen again must not be told of a loss (I14).",
        tests=(
            "lifecycle/test_repair.py::test_a_writer_of_the_lost_commits_goes_on_whatever_version_its_head_has_I18",
        ),
    ),
    Guard(
        "rebuild/past-generations",
        "lifecycle/jump.py",
        "        last_generation=known.generation + limits.repair_jump,\n",
        instead="",
        why="A generation of the lost history may have been read: its number must not be used again (I10).",
        tests=("lifecycle/test_rebuild.py::test_no_ledger_commit_epoch_token_or_generation_is_used_again_I1_I10_I11",),
    ),
    Guard(
        "rebuild/old-marker",
        "lifecycle/rebuild.py",
        "        storage.delete(names.marker_file(found.id))\n",
        instead="",
        why="Writers of the old ZooKeeper would go on beside the new one (I6).",
        tests=("lifecycle/test_rebuild.py::test_writers_and_gc_of_the_old_zookeeper_refuse_I6_I12",),
    ),
    Guard(
        "rebuild/one-run",
        "lifecycle/rebuild.py",
        "self._send([*self._guards, *some], look, what)",
        instead="self._send(list(some), look, what)",
        why="Of two runs at once one could build on what the other has made half (I6).",
        tests=(
            "lifecycle/test_rebuild.py::test_a_request_of_the_earlier_run_that_arrives_late_does_no_harm_to_the_later_one_I6",
        ),
    ),
    Guard(
        "rebuild/begins-a-topic-anew",
        "lifecycle/rebuild.py",
        "                topics.purge(self._metadata, uuid, self._limits, self._guards)\n",
        instead="                pass\n",
        why="A topic of which an interrupted run has made a part must be made again from the beginning (I16).",
        tests=("lifecycle/test_rebuild.py::test_a_rebuild_that_dies_at_any_transaction_is_completed_by_the_next_I16",),
    ),
    Guard(
        "rebuild/long-values-have-new-names",
        "lifecycle/rebuild.py",
        "        uid = xxhash.xxh3_128_digest(file.uid + self._storage.marker.encode())\n        moved = replace(file, epoch=file.epoch + self._limits.repair_jump, uid=uid)\n",
        instead="        return file\n        moved = file\n",
        why="A process of the old ZooKeeper deletes long values that it has replaced (I12).",
        tests=(
            "lifecycle/test_rebuild.py::test_tokens_and_entities_of_the_old_zookeeper_delete_no_long_value_of_the_new_one_I12",
        ),
    ),
    Guard(
        "lost/who-looks-for-a-topic-is-told",
        "log/namespace.py",
        "            root.check_not_lost(self.metadata, self._asked_storage, self.address)\n",
        instead="",
        why="That there is no such topic leads to making it again, while its records are in storage (I16).",
        tests=(
            "log/test_lost_namespace.py::test_who_looks_for_a_topic_is_told_that_all_are_lost_and_of_a_new_namespace_that_there_is_none_I16",
        ),
    ),
    Guard(
        "lost/a-process-of-spark-begins-anew",
        "client.py",
        "            _forget_disconnected()\n",
        instead="            pass\n",
        why="A ZooKeeper that was rolled back refuses who has seen more, and Spark keeps its processes (I16).",
        tests=("zk_metadata/test_zk_rollback.py::test_a_process_that_spark_keeps_is_let_in_at_once_I16",),
    ),
    Guard(
        "rebuild/half-made",
        "log/root.py",
        "    if namespace is not None and namespace.rebuilding:\n",
        instead="    if False:\n",
        why="Nobody may use a namespace of which only a part is there (I16).",
        tests=("lifecycle/test_rebuild.py::test_nobody_can_use_a_namespace_that_is_half_made_I16",),
    ),
    Guard(
        "rebuild/used-once",
        "lifecycle/rebuild.py",
        "        self._mark(storage, names.rebuilt_file(names.marker_file(found.id), node.record.id))\n",
        instead="",
        why="An older state would be taken for the newest one by the next rebuild (I18).",
        tests=(
            "lifecycle/test_rebuild.py::test_what_was_rebuilt_can_be_rebuilt_and_an_older_state_is_not_taken_I1_I18",
        ),
    ),
    Guard(
        "rebuild/begun-is-not-whole",
        "lifecycle/rebuild.py",
        "        self._mark(storage, names.made_from_file(storage.marker, found.id))\n",
        instead="",
        why="What an interrupted rebuild has left would be taken for a namespace (I16).",
        tests=("lifecycle/test_rebuild.py::test_a_rebuild_whose_zookeeper_is_lost_too_begins_again_I16",),
    ),
    Guard(
        "rebuild/readers-are-not-newer-than-the-log",
        "lifecycle/rebuild_sources.py",
        "        if not chosen[2]:  # what readers have done must not be newer than the log\n",
        instead="        if False:\n",
        why="A subscription would be past the end of its log, and tokens be consumed whose effect is lost (I1, I11).",
        tests=(
            "lifecycle/test_rebuild.py::test_if_the_newest_snapshot_is_damaged_the_one_before_it_is_taken_and_readers_fit_it",
        ),
    ),
    Guard(
        "rebuild/before-the-beginning",
        "lifecycle/rebuild_readers.py",
        "    elif is_before_begin(cursor, head, policies):\n",
        instead="    elif False:\n",
        why="A subscription would be told of a loss that it has consented to (I15).",
        tests=(
            "lifecycle/test_rebuild.py::test_a_subscription_does_not_stay_before_what_was_given_up_with_its_consent_I15",
        ),
    ),
    Guard(
        "rebuild/deleted-topics",
        "lifecycle/rebuild_sources.py",
        '    if topic.uuid in condemned:\n        return "it was deleted"\n',
        instead="",
        why="A topic that was deleted must not come back, because somebody was late with a snapshot of it (I1).",
        tests=("lifecycle/test_rebuild.py::test_a_deleted_topic_does_not_come_back_I1",),
    ),
]
