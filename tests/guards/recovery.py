"""Recovery: what is left in storage, and what it shows."""

from __future__ import annotations

from tests.guards.guard import Guard

SNAPSHOTS = "log/test_snapshots.py"

GUARDS = [
    Guard(
        "snapshots/gc-looks-at-them",
        "lifecycle/gc.py",
        "    snapshots.check_not_behind(log, log.view(), there, note=not dry_run)\n",
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
        tests=(f"{SNAPSHOTS}::test_after_a_repair_what_was_lost_is_no_reason_to_refuse_I16",),
    ),
    Guard(
        "snapshots/dedup-and-head-belong-together",
        "log/snapshots.py",
        " and snapshot.dedup.next_commit == head.ledger_first_commit",
        instead="",
        why="A snapshot with the producers of a later ledger would take new batches for replays (I5).",
        tests=(f"{SNAPSHOTS}::test_a_seal_while_it_is_taken_does_not_mix_two_states_I5",),
    ),
]
