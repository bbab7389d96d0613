"""Cursors: resets, owners, acknowledgements, the consumer."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "cursors/a-message-of-another-subscription",
        "cursors/receiving.py",
        "if message.source != self._node.key:",
        instead="if False:",
        why="Its number is another record there, which nobody has handled and nobody would get any more (I1).",
        tests=(
            "outbox/test_transaction.py::"
            "test_a_message_of_another_subscription_is_refused_and_nothing_is_acknowledged_I14",
        ),
    ),
    Guard(
        "cursors/a-server-that-is-behind",
        "cursors/node.py",
        "if found is not None and self._seen is not None and found.version < self._seen.version and not sync:",
        instead="if False:",
        why="An older cursor than the one in memory comes from a server that is behind (I7, I8).",
        tests=("cursors/test_stale_cursors.py::test_a_cursor_does_not_go_back_because_a_server_is_behind_I8",),
    ),
    Guard(
        "cursors/gone-only-after-a-sync",
        "cursors/node.py",
        ("            if not sync:\n                return self.refresh(sync=True)\n"),
        instead="",
        why="A subscription that a server does not know yet is not gone (I14).",
        tests=("cursors/test_stale_cursors.py::test_a_subscription_made_a_moment_ago_is_there_I14",),
    ),
    Guard(
        "cursors/read-again-over-a-new-connection",
        "cursors/node.py",
        " or self._connection != self.log.metadata.connections:",
        instead=":",
        why="After a rollback a version may belong to another cursor (I18).",
        tests=("log/test_rollback.py::test_a_cursor_from_before_is_read_again_after_a_reconnect_I18",),
    ),
    Guard(
        "cursors/a-hint-makes-it-read-again",
        "cursors/node.py",
        "if self._seen is None or self._hinted or old",
        instead="if self._seen is None or old",
        why="A reset is noticed with the next record, and not seconds later (I7).",
        tests=(
            "cursors/test_consumer.py::test_a_sequential_read_in_flight_when_the_cursor_is_reset_is_dropped_pip_269_scenario_2",
        ),
    ),
    Guard(
        "cursors/a-new-one-sets-the-retention-guard",
        "cursors/node.py",
        "ops = [self.log.retention_guard(), Create(self.key, self._new(start, compacted))]",
        instead="ops = [Create(self.key, self._new(start, compacted))]",
        why="Who makes a subscription is ordered against who gives up old ledgers (I15).",
        tests=("cursors/test_retention_guard.py::test_a_new_subscription_sets_the_guard",),
    ),
    Guard(
        "cursors/the-guard-is-read-before-the-head",
        "cursors/node.py",
        "ops = [self.log.retention_guard(), Create(self.key, self._new(start, compacted))]",
        instead="ops = [Create(self.key, self._new(start, compacted)), self.log.retention_guard()]",
        why="A guard that is read after the head says nothing of a trim in between (I15).",
        tests=("cursors/test_retention_guard.py::test_a_new_subscription_reads_the_guard_before_the_head_I15",),
    ),
    Guard(
        "cursors/removed-at-its-version",
        "cursors/node.py",
        "[Delete(self.key, found.version), *nodes]",
        instead="[Delete(self.key), *nodes]",
        why="Nobody can attach between the check and the deletion (I6).",
        tests=("cursors/test_cursor.py::test_a_cursor_that_somebody_attaches_to_in_between_is_not_deleted",),
    ),
    Guard(
        "cursors/removed-by-whom",
        "cursors/node.py",
        "return None if now == before else now is None",
        instead="return now is None",
        why="While the cursor is as it was, the deletion may still arrive (I14).",
        tests=("cursors/test_cursor.py::test_a_delete_whose_answer_is_lost_is_done_once_I14",),
    ),
    Guard(
        "cursors/removed-with-its-holders",
        "cursors/node.py",
        ("            nodes = [op for key in keys for op in self.vacate(key)]\n"),
        instead=("            nodes: list[Op] = []\n"),
        why="A node that is left behind would be in the way of the next subscription of that name (I16).",
        tests=("cursors/test_stale_cursors.py::test_a_node_that_was_left_behind_goes_with_its_subscription_I16",),
    ),
    Guard(
        "cursors/a-holder-is-the-one-that-the-cursor-names",
        "cursors/node.py",
        "return found.record if found is not None and found.record.id == id else None",
        instead="return found.record if found is not None else None",
        why="A node with another id is a leftover (I6).",
        tests=(
            "cursors/test_stale_cursors.py::test_a_node_that_was_left_behind_is_nobodys_also_if_the_cursor_names_one_that_died_I6",
        ),
    ),
    Guard(
        "cursors/nobody-looks-dead-in-a-stale-answer",
        "cursors/node.py",
        ("        self.log.metadata.sync()  # in a stale answer somebody who is alive could look dead\n"),
        instead="",
        why="Somebody who is alive must not be thought dead (I6).",
        tests=("cursors/test_stale_cursors.py::test_an_owner_whose_node_was_made_again_a_moment_ago_is_alive_I6",),
    ),
    Guard(
        "cursors/a-failed-call-holds-nothing",
        "cursors/node.py",
        "if not id or id in self.log.metadata.chores.leftovers:",
        instead="if not id:",
        why="What a failed call of this process left does not block it for as long as it lives (I16).",
        tests=(
            "cursors/test_failed_calls.py::test_a_reset_that_failed_can_be_repeated_at_once_by_the_same_process_I16",
        ),
    ),
    Guard(
        "cursors/only-who-is-named-makes-its-node-again",
        "cursors/node.py",
        "return Check(self.key, found.version) if found and _names(found.record, key, holder.id) else None",
        instead="return Check(self.key, found.version) if found else None",
        why="Who was replaced after a lost session must not take its place again (I6).",
        tests=("cursors/test_cursor.py::test_an_owner_whose_picture_of_the_cursor_is_old_is_fenced_all_the_same_I6",),
    ),
    Guard(
        "cursors/not-given-up-in-a-stale-answer",
        "cursors/node.py",
        ("                self.log.metadata.sync()  # because of a stale answer we would give up what is still ours\n"),
        instead="",
        why="A stale answer is no reason to give up a subscription (I16).",
        tests=(
            "cursors/test_stale_cursors.py::test_a_resetter_does_not_give_up_its_flag_because_a_server_is_behind_I16",
        ),
    ),
    Guard(
        "cursors/vacated-after-a-sync",
        "cursors/node.py",
        ("        self.log.metadata.sync()  # a stale read could miss a node, which would then be left behind\n"),
        instead="",
        why="A holder's node that is missed would be left behind (I16).",
        tests=("cursors/test_cursor.py::test_a_resetter_or_an_owner_with_an_old_picture_leaves_no_node_behind",),
    ),
    Guard(
        "cursors/only-this-flag-is-cleared",
        "cursors/node.py",
        "if cursor.reviser == reviser else None",
        instead="",
        why="Who clears the flag of one that died must not clear the next one's (I6, I7).",
        tests=(
            "cursors/test_stale_cursors.py::test_who_clears_the_flag_of_a_dead_resetter_leaves_the_next_ones_I6_I7",
        ),
    ),
    Guard(
        "cursors/gaps-are-bounded",
        "cursors/node.py",
        "if len(packed) > self.log.limits.acks_bytes:",
        instead="if False:",
        why="A cursor's node is bounded (I13).",
        tests=(
            "cursors/test_failed_calls.py::test_a_consumer_whose_last_acknowledgements_cannot_be_written_lets_the_subscription_go_I16",
        ),
    ),
    Guard(
        "cursors/no-acknowledgement-past-the-end",
        "cursors/node.py",
        ("        if acknowledged > view.head.records:\n            raise"),
        instead=("        if False:\n            raise"),
        why="From past the end new records would be skipped later (I18).",
        tests=("cursors/test_acks_past_end.py::test_no_acknowledgement_past_the_end_is_written_whoever_has_it",),
    ),
    Guard(
        "cursors/the-end-is-the-newest",
        "cursors/node.py",
        (
            "        if ordinal >= view.head.records or acknowledged > view.head.records:\n"
            "            view = self.log.refresh(sync=True)\n"
        ),
        instead="",
        why="An acknowledgement is refused only by the newest head (I14).",
        tests=(
            "cursors/test_acks_past_end.py::test_what_was_acknowledged_of_the_lost_history_is_not_taken_for_new_records_I8",
        ),
    ),
    Guard(
        "cursors/properties-belong-to-a-position",
        "cursors/node.py",
        "properties = cursor.properties if position == cursor.mark_delete else ()",
        instead="properties = cursor.properties",
        why="Numbers that were attached to another position would be wrong here (I8).",
        tests=("cursors/test_stale_cursors.py::test_properties_are_dropped_by_whatever_moves_the_cursor_I8",),
    ),
    Guard(
        "cursors/one-reset-at-a-time",
        "cursors/revision.py",
        ("            if other is not None:\n                raise under_revision"),
        instead=("            if False:\n                raise under_revision"),
        why="Two resets at once would end in a place that neither of them was told (I7).",
        tests=("cursors/test_failed_calls.py::test_the_flag_of_a_reset_that_failed_is_cleared_in_the_background_I16",),
    ),
    Guard(
        "cursors/a-fenced-reset-changes-nothing",
        "cursors/revision.py",
        ("            if cursor.reviser != self._id:\n                raise Fenced("),
        instead=("            if False:\n                raise Fenced("),
        why="A resetter that was thought dead changes nothing (I6).",
        tests=(
            "cursors/test_failed_calls.py::test_a_resetter_that_was_thought_dead_is_told_that_its_reset_was_not_made_I6_I14",
        ),
    ),
    Guard(
        "cursors/a-reset-raises-the-revision",
        "cursors/revision.py",
        "return replace(shares.begun_anew(edited), revision=cursor.revision + 1, past_revisions=remembered)",
        instead="return replace(shares.begun_anew(edited), past_revisions=remembered)",
        why="What was read before a reset is recognised by its revision (I7).",
        tests=("cursors/test_cursor.py::test_an_old_acknowledgement_never_moves_a_reset_cursor_I7_pulsar_26304",),
    ),
    Guard(
        "cursors/a-reset-is-known-by-an-id",
        "cursors/revision.py",
        "operation=operation or self._id",
        instead="operation=operation",
        why="Whether a reset was applied is known by its id, whatever others have done since (I14).",
        tests=("cursors/test_cursor.py::test_a_revision_without_an_operation_of_its_own_is_known_by_its_id_I14",),
    ),
    Guard(
        "cursors/a-reset-that-failed-leaves-no-flag",
        "cursors/revision.py",
        (
            "        except BaseException:\n"
            "            self._leave_to_chores(may_arrive=True)\n"
            "            raise\n"
            "        self._holding.keep()"
        ),
        instead="        self._holding.keep()",
        why="A call that raised leaves no flag for as long as its process lives (I16).",
        tests=(
            "cursors/test_failed_calls.py::test_the_flag_of_a_reset_that_never_learned_of_it_is_cleared_in_the_background_I16",
        ),
    ),
    Guard(
        "cursors/a-reset-without-an-answer-is-cleaned-up",
        "cursors/revision.py",
        ("            self._leave_to_chores()\n            raise\n        except BaseException:"),
        instead=("            raise\n        except BaseException:"),
        why="A reset that ZooKeeper does not answer leaves no flag for as long as its process lives (I16).",
        tests=(
            "cursors/test_failed_calls.py::test_a_reset_that_failed_can_be_repeated_at_once_by_the_same_process_I16",
        ),
    ),
    Guard(
        "cursors/a-resetter-keeps-its-node",
        "cursors/revision.py",
        ("        self._holding.keep()\n        return flagged"),
        instead="        return flagged",
        why="A resetter that lost its session and lives on is not thought dead (I6).",
        tests=("cursors/test_cursor.py::test_a_resetter_that_lost_its_session_and_lives_on_is_not_thought_dead_I6",),
    ),
    Guard(
        "cursors/past-revisions-are-bounded",
        "cursors/revision.py",
        "remembered = past_revisions[-self._node.log.limits.remembered_revisions :]",
        instead="remembered = past_revisions",
        why="A cursor's node is bounded (I13).",
        tests=("cursors/test_cursor.py::test_a_cursor_remembers_so_many_revisions_and_no_more_I13",),
    ),
    Guard(
        "cursors/a-refused-edit-clears-the-flag",
        "cursors/revision.py",
        ("        except BaseException:\n            self.give_up()\n            raise\n"),
        instead=("        except BaseException:\n            raise\n"),
        why="A reset whose place is refused leaves no flag (I16).",
        tests=("cursors/test_cursor.py::test_an_edit_that_fails_leaves_the_cursor_as_it_was",),
    ),
    Guard(
        "cursors/a-repeated-reset-is-done-once",
        "cursors/handle.py",
        ("        if operation in cursor.operations:\n            return cursor\n"),
        instead="",
        why="Calls with the same operation id are done once, also while somebody else resets (I14).",
        tests=(
            "cursors/test_cursor.py::test_a_reset_that_is_repeated_is_told_what_it_did_also_while_another_one_is_under_way_I14",
        ),
    ),
    Guard(
        "cursors/a-reset-sets-the-retention-guard",
        "cursors/handle.py",
        "self._revise(move, operation_id, lambda: guard)",
        instead="self._revise(move, operation_id)",
        why="A reset into old records is ordered against who gives them up (I15).",
        tests=("cursors/test_retention_guard.py::test_a_reset_looks_again_if_ledgers_were_given_up_meanwhile",),
    ),
    Guard(
        "cursors/a-reset-reads-the-guard-before-the-head",
        "cursors/handle.py",
        ("            guard[:] = [self._log.retention_guard()]\n            view = self._log.refresh(sync=True)\n"),
        instead=(
            "            view = self._log.refresh(sync=True)\n            guard[:] = [self._log.retention_guard()]\n"
        ),
        why="A guard that is read after the head says nothing of a trim in between (I15).",
        tests=("cursors/test_retention_guard.py::test_a_reset_reads_the_guard_before_the_head_I15",),
    ),
    Guard(
        "cursors/a-reset-sees-the-newest-end",
        "cursors/handle.py",
        (
            "            view = self._log.refresh(sync=True)\n"
            "            settled = places.settle(self._log, view, place, compacted=cursor.compacted)\n"
            "            ordinal = scan.records_before(self._log, view, settled.position)\n"
            "            moved"
        ),
        instead=(
            "            view = self._log.view()\n"
            "            settled = places.settle(self._log, view, place, compacted=cursor.compacted)\n"
            "            ordinal = scan.records_before(self._log, view, settled.position)\n"
            "            moved"
        ),
        why="A reset to latest is to the end that is there, and not to one in memory (I14).",
        tests=(
            "cursors/test_cursor.py::test_a_reset_to_latest_is_to_the_end_that_is_there_and_not_to_one_in_memory_I14",
        ),
    ),
    Guard(
        "cursors/a-reset-voids-what-was-planned",
        "cursors/handle.py",
        "last_backward_revision=cursor.revision + 1, void_below=void_below, properties=()",
        instead="void_below=void_below, properties=()",
        why="A query that is ahead goes back with a reset (I7).",
        tests=(
            "datasource/test_subscription.py::test_a_logged_batch_reads_its_interval_also_when_a_reset_came_before_it_ran_I7",
        ),
    ),
    Guard(
        "cursors/no-mark-delete-during-a-reset",
        "cursors/handle.py",
        (
            "            if self._node.reviser(cursor) is not None:\n"
            "                raise CursorUnderRevision(f\"subscription '{self.name}' is being reset: try again\")\n"
            "            view"
        ),
        instead="            view",
        why="While somebody resets the cursor nobody else moves it (I7).",
        tests=("cursors/test_cursor.py::test_an_acknowledgement_during_a_revision_changes_nothing",),
    ),
    Guard(
        "cursors/no-mark-delete-past-the-end",
        "cursors/handle.py",
        ("            self._log.check_not_past_end(view, wanted)\n"),
        instead="",
        why="From past the end new records would be skipped later (I18).",
        tests=("cursors/test_cursor.py::test_mark_delete_past_the_end_is_refused_I18",),
    ),
    Guard(
        "cursors/mark-delete-only-forward",
        "cursors/handle.py",
        "if settled < cursor.mark_delete:",
        instead="if False:",
        why="Only a reset moves a cursor back (I8).",
        tests=("cursors/test_cursor.py::test_mark_delete_moves_backward_only_by_a_reset_I8",),
    ),
    Guard(
        "cursors/not-deleted-under-its-owner",
        "cursors/handle.py",
        ("        if followers:\n            names"),
        instead=("        if False:\n            names"),
        why="A subscription is not deleted while somebody follows it (I6).",
        tests=("cursors/test_cursor.py::test_a_cursor_in_use_is_not_deleted",),
    ),
    Guard(
        "cursors/not-deleted-during-a-reset",
        "cursors/handle.py",
        (
            "        if self._node.reviser(cursor) is not None:\n"
            "            raise CursorUnderRevision(f\"subscription '{self.name}' is being reset: try again\")\n"
            "\n"
            "\n"
            "def"
        ),
        instead=("\n\ndef"),
        why="A subscription is not deleted while somebody resets it (I6).",
        tests=("cursors/test_cursor.py::test_a_cursor_that_is_being_reset_is_not_deleted",),
    ),
    Guard(
        "cursors/an-offset-of-this-topic",
        "cursors/handle.py",
        ("        places.check_topic(self._log, place)\n"),
        instead="",
        why="A position of another topic means nothing here (I7).",
        tests=("cursors/test_reset_preview.py::test_a_place_in_another_topic_is_refused_before_anything_is_done",),
    ),
    Guard(
        "cursors/an-offset-of-this-history",
        "cursors/handle.py",
        ("        places.check_seen(self._log, place)\n"),
        instead="",
        why="A reset to an offset of a lost history would skip records (I18).",
        tests=(
            "datasource/test_offsets.py::test_options_with_an_offset_that_knows_a_lost_commit_are_refused_and_stop_nobody",
        ),
    ),
    Guard(
        "cursors/an-owner-changes-its-cursor",
        "cursors/follower.py",
        ("        self._check_in(cursor)\n        if cursor.reviser:"),
        instead="        if cursor.reviser:",
        why="Who was replaced writes no acknowledgement (I6).",
        tests=(
            "cursors/test_consumer.py::test_a_consumer_that_was_away_is_fenced_and_its_acknowledgements_change_nothing_I6",
        ),
    ),
    Guard(
        "cursors/an-owner-acknowledges",
        "cursors/attachment.py",
        ("            self._check_in(cursor)\n            if cursor.revision != revision"),
        instead="            if cursor.revision != revision",
        why="A query that was replaced acknowledges nothing (I6).",
        tests=("cursors/test_cursor.py::test_an_owner_that_was_away_is_fenced_and_changes_nothing_I6",),
    ),
    Guard(
        "cursors/attached-once-under-an-epoch",
        "cursors/attachment.py",
        "if cursor.epoch != seen.epoch or cursor.reviser:",
        instead="if cursor.reviser:",
        why="Who attaches must not push out another that was faster (I6).",
        tests=("cursors/test_cursor.py::test_who_attaches_does_not_push_out_another_that_was_faster_I6",),
    ),
    Guard(
        "cursors/nobody-attaches-during-a-reset",
        "cursors/attachment.py",
        "if cursor.epoch != seen.epoch or cursor.reviser:",
        instead="if cursor.epoch != seen.epoch:",
        why="A reset that begins while somebody attaches comes first (I7).",
        tests=("cursors/test_cursor.py::test_a_reset_that_begins_while_somebody_attaches_comes_first_I7",),
    ),
    Guard(
        "cursors/an-owner-has-an-epoch-of-its-own",
        "cursors/attachment.py",
        "                epoch=cursor.epoch + 1,\n                compacted=self._compacted,\n",
        instead="                compacted=self._compacted,\n",
        why="Records of different owners are told apart by their epoch (I6).",
        tests=("cursors/test_cursor.py::test_an_owner_that_was_away_is_fenced_and_changes_nothing_I6",),
    ),
    Guard(
        "cursors/only-an-owner-leaves",
        "cursors/attachment.py",
        "if cursor.owner == self._id else None",
        instead="",
        why="An owner that was replaced must not detach its successor (I6).",
        tests=("cursors/test_cursor.py::test_an_owner_that_was_away_is_fenced_and_changes_nothing_I6",),
    ),
    Guard(
        "cursors/an-owner-looks-at-its-node",
        "cursors/follower.py",
        "while self._log.clock.monotonic() - self._verified_at > lease:",
        instead="while False:",
        why="An owner that was away notices that it lost its session (I6).",
        tests=("cursors/test_cursor.py::test_an_owner_whose_picture_of_the_cursor_is_old_is_fenced_all_the_same_I6",),
    ),
    Guard(
        "cursors/the-node-of-this-session",
        "cursors/follower.py",
        "if holder is not None and holder.own and holder.record.id == self._id:",
        instead="if holder is not None and holder.record.id == self._id:",
        why="A node of an old session goes with that, and somebody else attaches (I6).",
        tests=("cursors/test_cursor.py::test_an_owner_does_not_rely_on_a_node_of_its_old_session_I6",),
    ),
    Guard(
        "cursors/no-acknowledgement-of-an-old-revision",
        "cursors/attachment.py",
        "if cursor.revision != revision or cursor.reviser or position <= cursor.mark_delete:",
        instead="if cursor.reviser or position <= cursor.mark_delete:",
        why="What was read before a reset does not move the cursor (I7).",
        tests=("cursors/test_cursor.py::test_an_old_acknowledgement_never_moves_a_reset_cursor_I7_pulsar_26304",),
    ),
    Guard(
        "cursors/no-acknowledgement-of-a-lost-reset",
        "cursors/attachment.py",
        "            if not seen.is_of(cursor):\n",
        instead="            if False:\n",
        why="After a rollback another reset has the number of a lost one (I7, I18).",
        tests=("cursors/test_lost_resets.py",),
    ),
    Guard(
        "cursors/a-reset-is-known-by-its-id",
        "cursors/revision.py",
        "(not self.reset or not ids or self.reset in ids)",
        instead="True",
        why="After a rollback another reset has the number of a lost one (I7, I18).",
        tests=("cursors/test_lost_resets.py",),
    ),
    Guard(
        "cursors/no-acknowledgement-during-a-reset",
        "cursors/attachment.py",
        "if cursor.revision != revision or cursor.reviser or position <= cursor.mark_delete:",
        instead="if cursor.revision != revision or position <= cursor.mark_delete:",
        why="While somebody resets the cursor nobody else moves it (I7).",
        tests=("cursors/test_cursor.py::test_an_acknowledgement_during_a_revision_changes_nothing",),
    ),
    Guard(
        "cursors/acknowledgements-only-forward",
        "cursors/attachment.py",
        "if cursor.revision != revision or cursor.reviser or position <= cursor.mark_delete:",
        instead="if cursor.revision != revision or cursor.reviser:",
        why="Only a reset moves a cursor back (I8).",
        tests=(
            "cursors/test_cursor.py::test_an_acknowledgement_that_another_has_overtaken_does_not_move_the_cursor_back_I8",
        ),
    ),
    Guard(
        "cursors/acknowledged-up-to-the-end",
        "cursors/attachment.py",
        ("            self._log.check_not_past_end(view, position)\n"),
        instead="",
        why="From past the end new records would be skipped later (I18).",
        tests=("cursors/test_acks_past_end.py::test_an_owner_is_refused_by_name_and_may_go_on",),
    ),
    Guard(
        "cursors/no-change-during-a-reset",
        "cursors/follower.py",
        ("        if cursor.reviser:\n            raise CursorUnderRevision("),
        instead=("        if False:\n            raise CursorUnderRevision("),
        why="While somebody resets the cursor its owner writes nothing (I7).",
        tests=("cursors/test_cursor.py::test_an_owner_changes_nothing_while_somebody_resets_the_cursor_I7",),
    ),
    Guard(
        "cursors/single-acknowledgements-stay",
        "cursors/attachment.py",
        "moved = self.node.moved(cursor, ordinal, self.node.acks(cursor), position)",
        instead="moved = self.node.moved(cursor, ordinal, None, position)",
        why="Records that were acknowledged one by one do not come again (I8).",
        tests=(
            "cursors/test_cursor.py::test_what_was_acknowledged_one_by_one_stays_so_when_a_query_acknowledges_what_is_before_I8",
        ),
    ),
    Guard(
        "cursors/a-failed-attach-lets-go",
        "cursors/follower.py",
        ("            self._leave_to_chores(may_arrive=True)\n\n    def _attempt"),
        instead=("            pass\n\n    def _attempt"),
        why="A call that raised does not hold the subscription for as long as its process lives (I16).",
        tests=("cursors/test_failed_calls.py::test_an_attachment_that_failed_leaves_no_owner_I16",),
    ),
    Guard(
        "cursors/a-failed-detach-is-retried",
        "cursors/follower.py",
        ("            self._leave_to_chores()\n        finally:"),
        instead="        finally:",
        why="A subscription that could not be released is released later (I16).",
        tests=("cursors/test_failed_calls.py::test_an_owner_that_could_not_say_goodbye_does_so_in_the_background_I16",),
    ),
    Guard(
        "cursors/a-living-owner-is-waited-for",
        "cursors/follower.py",
        ("        if self._in_the_way(cursor, followers):\n            waiting"),
        instead=("        if False:\n            waiting"),
        why="A subscription has one owner at a time (I6).",
        tests=("cursors/test_cursor.py::test_an_exclusive_owner_is_named_to_the_second",),
    ),
    Guard(
        "cursors/waiting-for-an-owner-ends",
        "cursors/follower.py",
        "if self._deadline.passed and not self._follower.waits_for_owner:",
        instead="if False:",
        why="Who cannot have the subscription is told so (I16).",
        tests=("cursors/test_cursor.py::test_an_exclusive_owner_is_named_to_the_second",),
        hangs=True,
    ),
    Guard(
        "cursors/waiting-for-a-reset-ends",
        "cursors/follower.py",
        ("        if self._deadline.passed:\n            raise under_revision(self._node, reviser, cursor)\n"),
        instead="",
        why="A reset that is stuck does not make others wait for ever (I16).",
        tests=(
            "cursors/test_failed_calls.py::test_whoever_attaches_to_a_cursor_whose_reset_does_not_end_is_told_by_whom_I16",
        ),
        hangs=True,
    ),
    Guard(
        "cursors/fenced-is-told",
        "cursors/attachment.py",
        ("        if cursor.owner != self._id:\n            raise Fenced("),
        instead=("        if False:\n            raise Fenced("),
        why="An owner that was replaced must stop (I6).",
        tests=(
            "cursors/test_consumer.py::test_a_consumer_that_was_away_is_fenced_and_its_acknowledgements_change_nothing_I6",
        ),
    ),
    Guard(
        "consumer/what-is-done-is-not-delivered",
        "cursors/consumer.py",
        ("            if not self._is_done(message.ordinal):\n                return self._counted(message)"),
        instead=("            if True:\n                return self._counted(message)"),
        why="A record that was acknowledged does not come again (I8).",
        tests=(
            "cursors/test_consumer.py::test_redelivery_brings_everything_unacknowledged_in_order_before_anything_new",
        ),
    ),
    Guard(
        "consumer/a-read-of-an-old-epoch",
        "cursors/consumer.py",
        "if read.epoch < self._epoch or read.revision != self._revision or self._node.current(POLL_S).reviser:",
        instead="if read.revision != self._revision or self._node.current(POLL_S).reviser:",
        why="A read that comes back after a redelivery would move the position on (I7).",
        tests=("cursors/test_consumer.py::test_a_read_in_flight_when_redelivery_was_asked_for_is_dropped_pip_84",),
    ),
    Guard(
        "consumer/a-read-of-an-old-revision",
        "cursors/consumer.py",
        "if read.epoch < self._epoch or read.revision != self._revision or self._node.current(POLL_S).reviser:",
        instead="if read.epoch < self._epoch or self._node.current(POLL_S).reviser:",
        why="A read that comes back after a reset would move the position on (I7).",
        tests=(
            "cursors/test_consumer.py::test_a_sequential_read_in_flight_when_the_cursor_is_reset_is_dropped_pip_269_scenario_2",
        ),
    ),
    Guard(
        "consumer/a-read-during-a-reset",
        "cursors/consumer.py",
        "if read.epoch < self._epoch or read.revision != self._revision or self._node.current(POLL_S).reviser:",
        instead="if read.epoch < self._epoch or read.revision != self._revision:",
        why="What was read while somebody resets the subscription is not delivered (I7).",
        tests=("cursors/test_consumer.py::test_a_read_that_comes_back_while_the_cursor_is_being_moved_is_dropped",),
    ),
    Guard(
        "consumer/no-read-begins-during-a-reset",
        "cursors/consumer.py",
        (
            "        if self._node.current(POLL_S).reviser and self._follower.is_under_revision():\n"
            "            return None\n"
        ),
        instead="",
        why="While somebody resets the subscription nothing is read (I7).",
        tests=("cursors/test_consumer.py::test_a_read_that_comes_back_while_the_cursor_is_being_moved_is_dropped",),
    ),
    Guard(
        "consumer/an-old-acknowledgement-is-refused",
        "cursors/consumer.py",
        ("            if message.revision != self._revision:\n                return False\n"),
        instead="",
        why="Who acknowledges what was read before a reset is told that it does not count (I7).",
        tests=("cursors/test_consumer.py::test_what_was_read_before_a_reset_and_waits_in_the_queue_is_dropped",),
    ),
    Guard(
        "consumer/a-lost-reset-is-noticed",
        "cursors/consumer.py",
        "        self._check_revision(cursor)\n        if (cursor.revision, cursor.epoch)",
        instead="        if (cursor.revision, cursor.epoch)",
        why="After a rollback another reset has the number of a lost one (I7, I18).",
        tests=("cursors/test_lost_resets.py",),
    ),
    Guard(
        "consumer/no-acknowledgement-of-a-lost-reset",
        "cursors/consumer.py",
        "            self._check_revision(cursor)\n            if cursor.revision != revision:\n",
        instead="            if cursor.revision != revision:\n",
        why="After a rollback another reset has the number of a lost one (I7, I18).",
        tests=("cursors/test_lost_resets.py",),
    ),
    Guard(
        "consumer/an-old-acknowledgement-is-not-written",
        "cursors/consumer.py",
        (
            "            if cursor.revision != revision:\n"
            "                return None  # an old acknowledgement moves nothing (I7)\n"
        ),
        instead="",
        why="A reset cancels acknowledgements that are not written yet (I7).",
        tests=("cursors/test_redelivery.py::test_an_acknowledgement_that_was_not_written_is_cancelled_by_a_reset_I7",),
    ),
    Guard(
        "consumer/unwritten-acknowledgements-count",
        "cursors/consumer.py",
        ("            acks |= ((0, self._mark), *self._acks, *Runs.of(self._fresh))\n"),
        instead=("            pass\n"),
        why="After a redelivery what was acknowledged does not come again (I8).",
        tests=(
            "cursors/test_redelivery.py::test_an_acknowledgement_that_could_not_be_written_during_a_reset_still_counts_if_that_fails_I8",
        ),
    ),
    Guard(
        "consumer/a-rollback-ends-it",
        "cursors/consumer.py",
        ("        self._check_open()\n        self._check_history()\n"),
        instead=("        self._check_open()\n"),
        why="What it has received may be lost, and other records may be in their places (I18).",
        tests=(
            "cursors/test_acks_past_end.py::test_what_was_acknowledged_of_the_lost_history_is_not_taken_for_new_records_I8",
        ),
    ),
    Guard(
        "consumer/a-rollback-cancels-acknowledgements",
        "cursors/consumer.py",
        ("    def _flush(self) -> None:\n        self._check_history()\n"),
        instead=("    def _flush(self) -> None:\n"),
        why="Acknowledgements of lost records must not be written over others (I18).",
        tests=(
            "cursors/test_acks_past_end.py::test_what_was_acknowledged_of_the_lost_history_is_not_taken_for_new_records_I8",
        ),
    ),
    Guard(
        "consumer/what-could-not-be-written-is-written-later",
        "cursors/consumer.py",
        ("            self._unwritten += writing\n"),
        instead=("            pass\n"),
        why="Acknowledgements whose writing failed are written by the next flush (I8).",
        tests=(
            "cursors/test_redelivery.py::test_an_acknowledgement_that_could_not_be_written_is_written_later_without_being_asked_I8",
        ),
    ),
    Guard(
        "consumer/a-failed-start-detaches",
        "cursors/consumer.py",
        ("        except BaseException:\n            self._follower.detach()\n            raise\n"),
        instead=("        except BaseException:\n            raise\n"),
        why="A consumer that could not be made does not hold the subscription (I16).",
        tests=("cursors/test_failed_calls.py::test_a_consumer_that_could_not_be_made_leaves_no_owner_I16",),
    ),
    Guard(
        "consumer/close-always-detaches",
        "cursors/consumer.py",
        (
            "                finally:\n"
            "                    self._closed = True\n"
            "                    self._follower.detach()\n"
        ),
        instead=(
            "                finally:\n"
            "                    self._closed = True\n"
            "                self._follower.detach()\n"
        ),
        why="The subscription is released also if acknowledgements could not be written (I16).",
        tests=(
            "cursors/test_failed_calls.py::test_a_consumer_whose_last_acknowledgements_cannot_be_written_lets_the_subscription_go_I16",
        ),
    ),
    Guard(
        "consumer/a-failed-read-loses-no-redelivery",
        "cursors/consumer.py",
        ("            self._refused.put_back(read.ordinals or ())\n"),
        instead=("            pass\n"),
        why="Records that are to be delivered again must not get lost with a read that failed (I1).",
        tests=("cursors/test_redelivery.py::test_what_could_not_be_read_again_is_not_forgotten_I1",),
    ),
    Guard(
        "consumer/an-outdated-read-loses-no-redelivery",
        "cursors/consumer.py",
        (
            "                self._refused.put_back(read.ordinals)  # the reset that is under way may still fail: deliver them then\n"
        ),
        instead=("                pass\n"),
        why="Records that are to be delivered again come also if a reset began meanwhile and failed (I1).",
        tests=(
            "cursors/test_redelivery.py::test_what_was_read_again_while_a_reset_began_is_not_forgotten_if_the_reset_fails_I1",
        ),
    ),
    Guard(
        "cursors/an-eviction-asks-again",
        "cursors/eviction.py",
        "if cursor.ordinal >= ordinal or not still(cursor):",
        instead="if cursor.ordinal >= ordinal:",
        why="Who has acknowledged enough meanwhile keeps its records (I15).",
        tests=("cursors/test_eviction.py::test_it_never_moves_a_cursor_back_and_asks_again_whether_it_has_to_be_I8",),
    ),
    Guard(
        "cursors/an-eviction-only-moves-forward",
        "cursors/eviction.py",
        "if cursor.ordinal >= ordinal or not still(cursor):",
        instead="if not still(cursor):",
        why="Mark-delete moves back only by a reset (I8).",
        tests=("cursors/test_eviction.py::test_it_never_moves_a_cursor_back_and_asks_again_whether_it_has_to_be_I8",),
    ),
    Guard(
        "cursors/an-evicted-consumer-is-told",
        "cursors/receiving.py",
        "                    self._check_eviction(cursor)\n",
        instead="",
        why="Nobody goes on behind a gap without being told (I14).",
        tests=("cursors/test_eviction.py::test_a_consumer_is_told_until_a_person_resets_the_subscription",),
    ),
    Guard(
        "cursors/another-eviction-is-another-loss",
        "cursors/loss.py",
        "if not cursor.evicted or cursor.revision != seen.revision:",
        instead="if not cursor.evicted:",
        why="What was taken since is not accepted unseen (I14).",
        tests=("datasource/test_trimmed.py::test_another_eviction_in_the_middle_of_that_is_told_I14",),
    ),
    Guard(
        "cursors/compacted-ones-stay-before-the-begin",
        "log/places.py",
        "        if compacted and view.head.generation is not None:\n            return Settled(wanted, exact=True)\n",
        instead="",
        why="A generation still has what the log has given up (I9).",
        tests=(
            "datasource/test_trimmed.py::test_a_subscription_of_compacted_reads_begins_and_is_reset_at_what_was_given_up_pulsar_11287_12429",
        ),
    ),
    Guard(
        "cursors/a-forked-consumer-does-nothing",
        "cursors/receiving.py",
        '        self._process.check(f"{self._node.what}: this consumer")\n',
        instead="        pass\n",
        why="The child would receive and acknowledge as its parent, beside it (I6).",
        tests=("cursors/test_forks.py::test_a_forked_child_is_refused_and_its_parent_goes_on_I6",),
        hangs=True,
    ),
]
