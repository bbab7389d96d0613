"""Who may do what in a namespace, and who is told the truth about it."""

from __future__ import annotations

from tests.guards.guard import Guard

ACCESS = "lifecycle/test_access.py::"

GUARDS = [
    Guard(
        "roles/no-node-by-an-outdated-list",
        "zk_metadata/store.py",
        "        return [protocol.CheckVersion(self._path(NamespaceKey()), lists.version)] if lists.has_roles else []\n",
        instead="        return []\n",
        why="A node whose list is outdated keeps out who has a role, and lets in who has none any more (I20).",
        tests=(ACCESS + "test_where_there_are_roles_no_node_is_made_by_an_outdated_list_even_if_no_hint_comes_I20",),
    ),
    Guard(
        "roles/a-running-process-hears-of-the-first-role",
        "zk_metadata/access.py",
        "        return self._client is client and self._hints == self._seen_hints\n",
        instead="        return self._client is client\n",
        why="A process that knows of no roles checks none: only the hint tells it (I20).",
        tests=(ACCESS + "test_a_process_that_runs_makes_nodes_as_the_roles_are_now_I20",),
    ),
    Guard(
        "roles/old-code-keeps-out",
        "zk_metadata/codec.py",
        "return FORMAT_WITH_ROLES if isinstance(record, Namespace) and record.roles else FORMAT",
        instead="return FORMAT",
        why="Code that does not know of roles would make nodes that are open to everybody (I20).",
        tests=(ACCESS + "test_the_format_rises_with_the_first_role_so_that_old_code_keeps_out_I20",),
    ),
    Guard(
        "roles/another-round",
        "zk_metadata/access_tree.py",
        "if dry_run or (not done.changed and self._metadata.newest_lists().version == lists.version):",
        instead="if True:",
        why="Who has changed roles meanwhile has passed nodes that are wrong by now (I20).",
        tests=(ACCESS + "test_two_who_change_roles_at_once_leave_the_lists_as_the_record_says_I20",),
    ),
    Guard(
        "roles/the-caller-stays-admin",
        "lifecycle/access.py",
        "            self._check_after(after, who)\n",
        instead="",
        why="Nobody could mend the lists any more (I20).",
        tests=(ACCESS + "test_what_would_lock_everybody_out_is_refused_and_changes_nothing_I20",),
    ),
    Guard(
        "roles/a-refused-login-is-looked-up",
        "zk_metadata/store.py",
        "                if not connection.take_up_login():\n                    raise self._not_allowed",
        instead="                if True:\n                    raise self._not_allowed",
        why="A process that has not looked for its new login yet would fail (I20).",
        tests=(ACCESS + "test_who_took_no_look_for_long_takes_the_new_login_up_when_the_former_one_is_refused_I20",),
    ),
    Guard(
        "roles/a-commit-with-a-refused-login-is-sent-again",
        "zk_metadata/store.py",
        "if any(isinstance(each, NoAuthError) for each in results) and connection.take_up_login():",
        instead="if False:",
        why="A writer that has not looked for its new login yet would fail (I20).",
        tests=(ACCESS + "test_a_writer_that_took_no_look_for_long_takes_the_new_login_up_when_it_is_refused_I20",),
    ),
    Guard(
        "roles/a-right-that-is-lost-tells-nothing-of-what-was-sent",
        "metadata/transactions.py",
        "            if denied is not None and not outcome:\n",
        instead="            if denied is not None:\n",
        why="It was allowed when it was sent before, and may have been applied then (I14).",
        tests=(
            "metadata/test_transactions.py::test_who_loses_the_right_after_a_lost_answer_learns_what_became_of_it_I14",
        ),
    ),
    Guard(
        "roles/only-an-admin-ends-a-topic",
        "lifecycle/termination.py",
        ", lambda: [log.admins_guard()])",
        instead=")",
        why="A writer may write the head, and is not to end the topic (I20).",
        tests=("lifecycle/test_roles.py::test_who_may_not_do_a_thing_is_told_so_and_changes_nothing_I20",),
    ),
    Guard(
        "roles/a-killed-revoke-is-no-revoke",
        "lifecycle/access.py",
        "        mended = self.check() if grants else Mended()\n",
        instead="        mended = Mended()\n",
        why="The record has the role no more, and nodes still let in who was to lose it (I20).",
        tests=(ACCESS + "test_who_was_to_lose_a_role_is_in_no_list_when_a_killed_command_was_repeated_I20",),
    ),
]
