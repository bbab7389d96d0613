"""Transactions and ephemeral nodes."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "transactions/nothing-is-missing-before-a-sync",
        "metadata/transactions.py",
        ("    if found is None:\n        metadata.sync()\n        found = metadata.read(key)\n    return found\n"),
        instead=("    return found\n"),
        why="What a server has not seen yet is there (I14).",
        tests=("log/test_stale_servers.py::test_a_topic_made_a_moment_ago_is_found",),
    ),
    Guard(
        "transactions/the-newest-is-synced",
        "metadata/transactions.py",
        (
            "        self.metadata.sync()\n"
            "        found = self.metadata.read(self.key)\n"
            "        if found is None:\n"
            "            raise self.missing()"
        ),
        instead=(
            "        found = self.metadata.read(self.key)\n        if found is None:\n            raise self.missing()"
        ),
        why="The newest state is what is stored, and not what a server that is behind shows (I14).",
        tests=(
            "metadata/test_transactions.py::test_an_operation_whose_answer_was_lost_is_known_by_its_id_and_not_by_what_others_did_since_I14",
        ),
    ),
    Guard(
        "transactions/unavailable-after-unknown-is-unknown",
        "metadata/transactions.py",
        (
            "            if attempt.in_doubt:\n"
            '                raise _unknown(what, "ZooKeeper does not answer any more") from error\n'
        ),
        instead="",
        why="Unavailable says that nothing was changed, and that is not known (I14).",
        tests=(
            "metadata/test_transactions.py::test_unavailable_after_a_look_that_could_not_tell_is_an_unknown_outcome_too_I14",
        ),
    ),
    Guard(
        "transactions/written-at-its-version",
        "metadata/transactions.py",
        "put = Put(cast(AnyKey, self._node.key), cast(NodeRecord, edited), found.version)",
        instead="put = Put(cast(AnyKey, self._node.key), cast(NodeRecord, edited), None)",
        why="An edit of an older record must not undo somebody else's (I14).",
        tests=("metadata/test_transactions.py::test_who_loses_every_race_is_told_to_try_again",),
    ),
    Guard(
        "transactions/an-operation-is-remembered",
        "metadata/transactions.py",
        ("            edited = self._transactions.remembering(edited, self._operation)\n"),
        instead=("            pass\n"),
        why="Whether it was applied is known by its id in the record (I14).",
        tests=(
            "metadata/test_transactions.py::test_an_edit_with_an_operation_id_is_made_once_whatever_happens_to_the_answers_I14",
        ),
    ),
    Guard(
        "transactions/remembered-operations-are-bounded",
        "metadata/transactions.py",
        "operations = (*operations_of(record), operation)[-self._limits.remembered_operations :]",
        instead="operations = (*operations_of(record), operation)",
        why="A record does not grow with its changes (I13).",
        tests=(
            "metadata/test_transactions.py::test_an_operation_that_lost_its_place_among_the_remembered_ones_is_unknown_never_guessed_I14",
        ),
    ),
    Guard(
        "transactions/done-before",
        "metadata/transactions.py",
        ("        if self._is_done(found):\n            return found.record\n        edited, found"),
        instead="        edited, found",
        why="An operation that is repeated is made once (I14).",
        tests=(
            "metadata/test_transactions.py::test_an_edit_with_an_operation_id_is_made_once_whatever_happens_to_the_answers_I14",
        ),
    ),
    Guard(
        "transactions/not-edited-twice",
        "metadata/transactions.py",
        "return (None if self._is_done(found) else self._edit(found.record)), found",
        instead="return self._edit(found.record), found",
        why="An edit that was made is not judged a second time: it might be refused (I14).",
        tests=(
            "metadata/test_transactions.py::test_an_operation_that_is_repeated_is_not_made_again_because_a_server_is_behind_I14",
        ),
    ),
    Guard(
        "transactions/a-no-after-a-synced-read",
        "metadata/transactions.py",
        (
            "            if edited is not None:\n"
            "                return edited, found\n"
            "            found = self._node.newest()\n"
        ),
        instead=("            return edited, found\n"),
        why="A rejection may come from an old record in memory (I14).",
        tests=("metadata/test_transactions.py::test_a_no_is_given_only_after_a_synced_read_I14",),
    ),
    Guard(
        "transactions/a-refusal-after-a-synced-read",
        "metadata/transactions.py",
        ("            except LedgerError:\n                edited = None\n"),
        instead=("            except ZeroDivisionError:\n                edited = None\n"),
        why="A rejection may come from an old record in memory (I14).",
        tests=("metadata/test_transactions.py::test_a_no_is_given_only_after_a_synced_read_I14",),
    ),
    Guard(
        "transactions/a-rollback-is-told",
        "metadata/transactions.py",
        (
            "            except RolledBack:  # that is true in any case, and the next try would know nothing of it\n"
            "                raise\n"
        ),
        instead="",
        why="A rollback is told once: who tries again would go on without what was lost (I18).",
        tests=(
            "cursors/test_acks_past_end.py::test_a_position_that_was_acknowledged_of_the_lost_history_is_refused_I8",
        ),
    ),
    Guard(
        "transactions/sent-again-while-it-may-arrive",
        "metadata/transactions.py",
        ("            if self._found.version == before.version:\n                return None\n"),
        instead=("            if self._found.version == before.version:\n                return False\n"),
        why="While the record has its old version the change may still arrive (I14).",
        tests=("log/test_policies.py::test_who_never_gets_through_is_told_so",),
    ),
    Guard(
        "transactions/recognised-by-its-id",
        "metadata/transactions.py",
        ("        if operation in now:\n            return True\n"),
        instead="",
        why="A change that was applied is known by its id (I14).",
        tests=("metadata/test_transactions.py::test_a_refused_resend_is_not_taken_for_somebody_elses_race_I14",),
    ),
    Guard(
        "transactions/too-much-has-happened",
        "metadata/transactions.py",
        ('            raise _unknown(what, "too much has happened since to tell whether it was applied")\n'),
        instead=("            pass\n"),
        why="What cannot be known any more is not guessed (I14).",
        tests=(
            "metadata/test_transactions.py::test_an_operation_that_lost_its_place_among_the_remembered_ones_is_unknown_never_guessed_I14",
        ),
    ),
    Guard(
        "transactions/in-doubt-until-somebody-has-looked",
        "metadata/transactions.py",
        ("            self.in_doubt = True\n"),
        instead="",
        why="Until somebody has looked nobody is told that nothing was changed (I14).",
        tests=(
            "metadata/test_transactions.py::test_unavailable_after_a_look_that_could_not_tell_is_an_unknown_outcome_too_I14",
        ),
    ),
    Guard(
        "transactions/a-refused-resend-is-looked-at",
        "metadata/transactions.py",
        ("                if not unknown:\n                    return False\n                refused = True"),
        instead=("                return False\n                refused = True"),
        why="A transaction that is sent again is refused also if the first one has arrived (I14).",
        tests=("metadata/test_transactions.py::test_a_refused_resend_is_not_taken_for_somebody_elses_race_I14",),
    ),
    Guard(
        "transactions/an-unavailable-resend-is-looked-at",
        "metadata/transactions.py",
        ("            except Unavailable:\n                if not unknown:\n                    raise\n"),
        instead=("            except Unavailable:\n                raise\n"),
        why="Unavailable says that nothing was changed, and that is not known (I14).",
        tests=(
            "metadata/test_transactions.py::test_a_resend_that_is_not_sent_because_zookeeper_is_away_is_followed_by_another_look_I14",
        ),
    ),
    Guard(
        "transactions/a-refused-one-is-not-sent-again",
        "metadata/transactions.py",
        ("            if refused:\n                return False\n"),
        instead="",
        why="A transaction that was refused once is refused always: to send it again helps nobody (I16).",
        tests=("tokens/test_tokens.py::test_a_rival_in_the_group_settles_an_unknown_outcome_for_good_I11_I14",),
    ),
    Guard(
        "transactions/sending-again-ends",
        "metadata/transactions.py",
        (
            "            if deadline.passed:\n"
            '                raise _unknown(what, "it was sent again and again, and never answered")\n'
        ),
        instead="",
        why="Who gets no answer is told so within the deadline (I16).",
        tests=("log/test_topics.py::test_a_topic_that_was_not_made_is_never_said_to_be_there_I14",),
        hangs=True,
    ),
    Guard(
        "transactions/looking-ends",
        "metadata/transactions.py",
        (
            "                if deadline.passed:\n"
            '                    raise _unknown(what, "it was sent, and ZooKeeper does not answer any more") from None\n'
        ),
        instead="",
        why="Who gets no answer is told so within the deadline (I16).",
        tests=("metadata/test_ephemeral.py::test_a_create_that_arrives_after_its_call_has_given_up_is_removed_I16",),
        hangs=True,
    ),
    Guard(
        "transactions/looking-is-retried",
        "metadata/transactions.py",
        ('                if deadline.passed:\n                    raise _unknown(what, "it was sent, and'),
        instead=('                if True:\n                    raise _unknown(what, "it was sent, and'),
        why="A ZooKeeper that is away for a moment is no reason to leave an outcome unknown (I14).",
        tests=(
            "metadata/test_transactions.py::test_a_zookeeper_that_is_away_for_a_moment_leaves_no_outcome_unknown_I14",
        ),
    ),
    Guard(
        "transactions/by-id-while-it-may-arrive",
        "metadata/transactions.py",
        (
            "            if (None if found is None else found.version) == (None if before is None else before.version):\n"
            "                return None\n"
        ),
        instead="",
        why="While the record has its old version the change may still arrive (I14).",
        tests=("metadata/test_transactions.py::test_a_refused_resend_is_not_taken_for_somebody_elses_race_I14",),
    ),
    Guard(
        "transactions/by-id-is-synced",
        "metadata/transactions.py",
        ("            self._metadata.sync()\n            found = self._metadata.read(key)\n            if (None"),
        instead=("            found = self._metadata.read(key)\n            if (None"),
        why="A server that is behind would show that it was not applied (I14).",
        tests=("tokens/test_tokens.py::test_an_outcome_that_too_much_has_followed_is_not_guessed_I14",),
    ),
    Guard(
        "transactions/races-end",
        "metadata/transactions.py",
        ("for _ in range(self._limits.change_attempts):\n                done"),
        instead=("while True:\n                done"),
        why="Who loses every race is told so (I16).",
        tests=("metadata/test_transactions.py::test_who_loses_every_race_is_told_to_try_again",),
        hangs=True,
    ),
    Guard(
        "transactions/refusals-are-told",
        "metadata/transactions.py",
        ("                self._refused(error)\n"),
        instead="",
        why="Some refusals say more than that somebody was faster (I18).",
        tests=("outbox/test_outbox.py::test_policies_that_somebody_changes_do_not_stop_an_outbox_for_ever_I16",),
        hangs=True,
    ),
    Guard(
        "transactions/made-or-found",
        "metadata/transactions.py",
        ("            if found is not None or look():\n                return"),
        instead=("            if found is not None:\n                return"),
        why="A node that somebody else has made meanwhile is found (I14).",
        tests=("metadata/test_transactions.py::test_a_node_that_another_makes_meanwhile_is_found_I14",),
    ),
    Guard(
        "transactions/why-it-cannot-be-made",
        "metadata/transactions.py",
        ("            check()\n"),
        instead="",
        why="Who cannot make a node because its topic is gone is told that (I16).",
        tests=("metadata/test_transactions.py::test_a_node_that_can_neither_be_found_nor_made_says_why",),
    ),
    Guard(
        "ephemeral/what-a-failed-call-left-is-replaced",
        "metadata/ephemeral.py",
        "if other is not None and not self._is_leftover(other.record):",
        instead="if other is not None:",
        why="What a failed call of this process left does not block it for as long as it lives (I16).",
        tests=(
            "metadata/test_ephemeral.py::test_a_create_that_arrives_after_its_holder_has_left_is_in_nobodys_way_in_the_same_process_I16",
        ),
    ),
    Guard(
        "ephemeral/a-create-without-an-answer-is-taken-back",
        "metadata/ephemeral.py",
        ("                self.abandon(may_arrive=True)\n            raise"),
        instead="                pass\n            raise",
        why="A call that raised leaves no node for as long as its process lives (I16).",
        tests=("metadata/test_ephemeral.py::test_a_create_that_arrives_after_its_call_has_given_up_is_removed_I16",),
    ),
    Guard(
        "ephemeral/a-create-that-arrives-after-a-refusal",
        "metadata/ephemeral.py",
        "        elif self._may_arrive:  # when whoever has it now has left\n",
        instead="        elif False:\n",
        why="A call that was refused leaves no node for as long as its process lives (I16).",
        tests=("metadata/test_ephemeral.py::test_a_create_that_arrives_after_its_call_was_refused_is_removed_I16",),
    ),
    Guard(
        "ephemeral/a-create-that-arrives-after-the-look",
        "metadata/ephemeral.py",
        "if other is not None and self._is_ours(other.record):",
        instead="if False:",
        why="Nobody is refused because of itself (I14, I16).",
        tests=("metadata/test_ephemeral.py::test_a_create_that_arrives_while_who_had_it_leaves_is_ones_own_I14",),
    ),
    Guard(
        "ephemeral/a-create-that-may-arrive-late",
        "metadata/ephemeral.py",
        ("        if self._may_arrive:\n            self.abandon(may_arrive=True)\n"),
        instead="",
        why="A create may arrive after its holder has left (I16).",
        tests=(
            "metadata/test_ephemeral.py::test_a_create_that_arrives_after_its_holder_has_left_is_in_nobodys_way_in_the_same_process_I16",
        ),
    ),
    Guard(
        "ephemeral/recognised-by-its-id",
        "metadata/ephemeral.py",
        "return None if found is None else self._is_ours(found.record)",
        instead="return None if found is None else True",
        why="After a lost answer the node that is there may be another's (I14).",
        tests=(
            "metadata/test_ephemeral.py::test_after_a_lost_answer_the_node_of_another_is_not_taken_for_ones_own_I14",
        ),
    ),
    Guard(
        "ephemeral/the-look-is-synced",
        "metadata/ephemeral.py",
        ("        self._may_arrive = True\n        self._metadata.sync()\n"),
        instead=("        self._may_arrive = True\n"),
        why="A server that is behind would show that nobody has it (I14).",
        tests=(
            "metadata/test_ephemeral.py::test_after_a_lost_answer_a_server_that_is_behind_does_not_hide_what_was_made_I14",
        ),
    ),
    Guard(
        "ephemeral/who-has-it-is-synced",
        "metadata/ephemeral.py",
        ("            self._metadata.sync()\n            other = self._metadata.read(self._key)"),
        instead="            other = self._metadata.read(self._key)",
        why="Who was refused is told by whom (I14).",
        tests=(
            "metadata/test_ephemeral.py::test_who_is_refused_is_told_by_whom_at_once_also_by_a_server_that_is_behind_I14",
        ),
    ),
    Guard(
        "ephemeral/put-only-into-ones-own",
        "metadata/ephemeral.py",
        "if found is not None and found.own:",
        instead="if found is not None:",
        why="A node of an old session goes with that: it has to be made again (I9).",
        tests=("metadata/test_ephemeral.py::test_a_pin_that_stands_in_an_old_session_is_moved_into_the_new_one_I9",),
    ),
    Guard(
        "ephemeral/only-ones-own-is-removed",
        "metadata/ephemeral.py",
        ("        if found is not None and self._is_ours(found.record):\n            self._delete()"),
        instead=("        if found is not None:\n            self._delete()"),
        why="Who leaves must not delete the node of its successor (I6).",
        tests=("metadata/test_ephemeral.py::test_who_leaves_late_does_not_delete_the_node_of_its_successor_I6",),
    ),
    Guard(
        "ephemeral/remade-only-by-who-is-named",
        "metadata/ephemeral.py",
        ("            if check is None:\n                return False\n"),
        instead=("            if check is None:\n                check = Check(self._key, 0)\n"),
        why="Who was replaced after a lost session must not take its place again (I6).",
        tests=("cursors/test_cursor.py::test_an_owner_whose_picture_of_the_cursor_is_old_is_fenced_all_the_same_I6",),
    ),
    Guard(
        "ephemeral/remade-together-with-the-check",
        "metadata/ephemeral.py",
        ("            ops.append(check)\n"),
        instead="",
        why="Between the look at the record and the create somebody else may have come (I6).",
        tests=("cursors/test_cursor.py::test_an_owner_that_is_replaced_while_it_makes_its_node_again_leaves_none_I6",),
    ),
    Guard(
        "ephemeral/not-taken-back-from-a-successor",
        "metadata/ephemeral.py",
        ("        elif found is not None and not self._is_ours(found.record):\n            return False\n"),
        instead="",
        why="A lock that was lost with a session stays with who took it (I6).",
        tests=("metadata/test_ephemeral.py::test_after_a_lost_session_it_is_not_taken_back_from_a_successor_I6",),
    ),
    Guard(
        "ephemeral/a-node-of-an-old-session",
        "metadata/ephemeral.py",
        "is_there = found is not None and found.own and self._is_ours(found.record)",
        instead="is_there = found is not None and self._is_ours(found.record)",
        why="A node of an old session goes with that: it has to be made again (I6).",
        tests=(
            "metadata/test_ephemeral.py::test_a_node_of_an_old_session_of_ours_is_not_trusted_because_it_goes_with_that",
        ),
    ),
    Guard(
        "ephemeral/vacated-after-a-sync",
        "metadata/ephemeral.py",
        ("        self._metadata.sync()  # a stale read could miss a node, which would then be left behind\n"),
        instead="",
        why="A node that is missed would be in the way of the next one (I16).",
        tests=(
            "metadata/test_ephemeral.py::test_who_leaves_takes_its_node_along_also_from_a_server_that_is_behind_I16",
        ),
    ),
    Guard(
        "ephemeral/a-failed-removal-is-retried",
        "metadata/ephemeral.py",
        ("            self.abandon(may_arrive=self._may_arrive)\n            return\n"),
        instead=("            return\n"),
        why="A node that could not be removed is removed later (I16).",
        tests=(
            "metadata/test_ephemeral.py::test_a_client_that_closes_takes_back_what_its_failed_calls_left_also_if_nobody_has_tried_yet_I16",
        ),
    ),
    Guard(
        "ephemeral/removing-goes-on-while-it-may-arrive",
        "metadata/ephemeral.py",
        ("            if self._clock.monotonic() < deadline:\n                return 1.0\n"),
        instead="",
        why="A create may arrive after a removal that found nothing (I16).",
        tests=("metadata/test_ephemeral.py::test_a_create_that_arrives_after_its_call_has_given_up_is_removed_I16",),
    ),
    Guard(
        "ephemeral/it-is-made-again",
        "metadata/ephemeral.py",
        "        if other is None:\n            self.keep()\n",
        instead="        if other is None:\n            pass\n",
        why="A holder that lost its session and lives on keeps what it holds (I6).",
        tests=("metadata/test_ephemeral.py::test_a_pin_is_moved_and_made_again_where_it_was_moved_to",),
    ),
    Guard(
        "ephemeral/who-leaves-does-not-come-back",
        "metadata/ephemeral.py",
        (
            "    def release(self) -> None:\n"
            '        """Deletes the node; if that fails now, in the background."""\n'
            "        self.forget()\n"
        ),
        instead=(
            '    def release(self) -> None:\n        """Deletes the node; if that fails now, in the background."""\n'
        ),
        why="A node that was released must not be made again (I16).",
        tests=("metadata/test_ephemeral.py::test_what_was_released_does_not_come_back_I16",),
    ),
]
