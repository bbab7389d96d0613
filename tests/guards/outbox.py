"""The outbox and its entities."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "outbox/an-entity-at-its-version",
        "outbox/entities.py",
        "else Put(key, record, loaded.found.version)",
        instead="else Put(key, record, None)",
        why="A handler that ran on an older state changes nothing (I11).",
        tests=("outbox/test_outbox.py::test_two_messages_that_share_nothing_but_their_entity_both_count_I11",),
    ),
    Guard(
        "outbox/a-change-is-known-by-its-id",
        "outbox/entities.py",
        "look = self._transactions.by_id(key, loaded.found, operation, what)",
        instead='look = self._transactions.by_id(key, loaded.found, b"", what)',
        why="Whether a change was applied is known by its id (I14).",
        tests=("outbox/test_outbox.py::test_an_unknown_outcome_is_found_out_I14",),
    ),
    Guard(
        "outbox/a-state-that-was-replaced-is-read-again",
        "outbox/entities.py",
        (
            "            if now is None or now.record.file == record.file:\n"
            "                root.check_not_left(self._metadata, self._storage)\n"
            "                raise\n"
            "            return self.load(entity)"
        ),
        instead="            raise",
        why="A file that is gone because the entity names another one is no damage (I16).",
        tests=("outbox/test_outbox.py::test_state_whose_file_is_swept_meanwhile_is_read_again",),
    ),
    Guard(
        "outbox/a-long-state-goes-to-a-file",
        "outbox/entities.py",
        "if len(data) > self._limits.entity_bytes:",
        instead="if False:",
        why="An entity's node is bounded (I13).",
        tests=("outbox/test_outbox.py::test_long_state_is_in_a_file_and_old_files_go",),
    ),
    Guard(
        "outbox/old-states-are-swept",
        "outbox/entities.py",
        ("        if file is not None or replaced is not None:\n            self._blobs(entity).sweep("),
        instead=("        if False:\n            self._blobs(entity).sweep("),
        why="Files of states that were replaced are deleted (I13).",
        tests=("outbox/test_outbox.py::test_long_state_is_in_a_file_and_old_files_go",),
    ),
    Guard(
        "outbox/a-duplicate-is-told-the-newest-state",
        "outbox/processing.py",
        ("            self._resources.metadata.sync()\n            return Processed(True"),
        instead="            return Processed(True",
        why="The state that a duplicate is told has the effect of the first one (I14).",
        tests=("outbox/test_outbox.py::test_a_duplicate_is_told_the_state_that_has_the_effect_of_the_first_one_I14",),
    ),
    Guard(
        "outbox/stored-only-with-its-token",
        "outbox/processing.py",
        "[*ops, *minting, *spending.guards()]",
        instead="[*ops, *minting]",
        why="A message whose token is gone does not begin again (I11).",
        tests=("outbox/test_outbox.py::test_a_copy_that_looked_before_the_token_went_does_not_begin_again_I11",),
    ),
    Guard(
        "outbox/the-token-goes-with-the-effect",
        "outbox/processing.py",
        ("            ops += spending.ops()\n"),
        instead=("            pass\n"),
        why="A token is consumed with its effect or not at all (I11).",
        tests=("outbox/test_outbox.py::test_a_message_changes_state_and_writes_records_once_I11",),
    ),
    Guard(
        "outbox/the-token-goes-with-the-last-step",
        "outbox/processing.py",
        "if not self._resources.entities.change(self._entity, loaded, content, spending.ops()):",
        instead="if not self._resources.entities.change(self._entity, loaded, content, []):",
        why="A message that was dispatched is not dispatched again (I11).",
        tests=("outbox/test_outbox.py::test_a_parcel_is_dispatched_with_a_token_and_nothing_is_left_I11",),
    ),
    Guard(
        "outbox/a-prefix-is-stored-before-it-is-minted",
        "outbox/processing.py",
        (
            "        if not self._persist(loaded, registered):\n"
            "            return\n"
            "        minter.mint_at(prefix, len(pending.payloads))\n"
        ),
        instead=(
            "        minter.mint_at(prefix, len(pending.payloads))\n"
            "        if not self._persist(loaded, registered):\n"
            "            return\n"
        ),
        why="After a crash anybody can take back tokens that were minted and never sent (I13).",
        tests=("outbox/test_outbox.py::test_a_crash_at_any_step_of_the_long_way_ships_one_parcel_I11",),
    ),
    Guard(
        "outbox/one-attempt-is-chosen",
        "outbox/processing.py",
        "is_ours = now.next_version == loaded.next_version + 1",
        instead="is_ours = True",
        why="Only one attempt's tokens are ever dispatched (I11).",
        tests=("outbox/test_outbox.py::test_attempts_that_lost_leave_no_tokens_behind",),
    ),
    Guard(
        "outbox/an-attempt-that-lost-takes-back-its-tokens",
        "outbox/processing.py",
        ("            minter.discard(prefix)\n"),
        instead=("            pass\n"),
        why="Tokens that are never sent do not stay (I13).",
        tests=("outbox/test_outbox.py::test_attempts_that_lost_leave_no_tokens_behind",),
    ),
    Guard(
        "outbox/attempts-that-lost-are-cleaned-up",
        "outbox/processing.py",
        ("                if lost is not None and attempt != pending.prefix:\n"),
        instead=("                if False:\n"),
        why="Tokens that a crashed attempt has minted do not stay (I13).",
        tests=("outbox/test_outbox.py::test_a_crash_at_any_step_of_the_long_way_ships_one_parcel_I11",),
    ),
    Guard(
        "outbox/the-chosen-tokens-stay",
        "outbox/processing.py",
        "if lost is not None and attempt != pending.prefix:",
        instead="if lost is not None:",
        why="The tokens that were dispatched are the receiver's to consume (I11).",
        tests=("outbox/test_outbox.py::test_the_tokens_that_were_dispatched_are_the_receivers_to_consume_I11",),
    ),
    Guard(
        "outbox/a-handler-runs-on-the-state-that-it-changes",
        "outbox/processing.py",
        "if self._handled is None or self._handled[0] != loaded.next_version:",
        instead="if self._handled is None:",
        why="What a handler returned for an older state is not stored over a newer one (I11).",
        tests=(
            "outbox/test_outbox.py::test_another_message_of_the_entity_meanwhile_runs_the_handler_again_on_the_new_state",
        ),
    ),
    Guard(
        "outbox/staged-too-long-ago-is-staged-again",
        "outbox/processing.py",
        ("            self._handled = None  # gc ran twice meanwhile: stage again\n"),
        instead="",
        why="A message must not fail for ever because gc ran (I16).",
        tests=("outbox/test_outbox.py::test_gc_between_staging_and_commit_stages_again_I12",),
        hangs=True,
    ),
    Guard(
        "outbox/its-nodes-are-looked-for-again",
        "outbox/outbox.py",
        "        if self._ready_over != connection:",
        instead="        if not self._ready_over:",
        why="A rollback may have taken the outbox's node with it (I16, I18).",
        tests=("outbox/test_outbox.py::test_an_outbox_whose_nodes_were_rolled_back_makes_them_again_I16",),
        hangs=True,
    ),
    Guard(
        "outbox/why-it-was-refused-is-for-the-topics-to-judge",
        "outbox/outbox.py",
        ("        self._resources.refused(refusal)\n"),
        instead=("        return\n"),
        why="Policies that somebody has changed must be read again, or it is refused for ever (I16).",
        tests=("outbox/test_outbox.py::test_policies_that_somebody_changes_do_not_stop_an_outbox_for_ever_I16",),
        hangs=True,
    ),
    Guard(
        "outbox/refused-it-reads-again",
        "outbox/processing.py",
        ("        self.groups.reload()\n"),
        instead="",
        why="A group has another version now, and the next try must know it (I17).",
        tests=("outbox/test_outbox.py::test_a_copy_that_looked_before_the_token_went_does_not_begin_again_I11",),
        hangs=True,
    ),
    Guard(
        "outbox/a-forked-transaction-does-nothing",
        "outbox/transaction.py",
        '        self._process.check("this transaction")\n',
        instead="",
        why="The parent and its child would both do what was collected before the fork (I6).",
        tests=("cursors/test_forks.py::test_a_forked_child_is_refused_and_its_parent_goes_on_I6",),
    ),
]
