"""The continuous backup, and a ZooKeeper that has lost its data."""

from __future__ import annotations

from tests.guards.guard import Guard

_ORDER = "lifecycle/test_backup_order.py"
_BACKUP = "lifecycle/test_backup.py"

GUARDS = [
    Guard(
        "backup/logs-are-read-last",
        "lifecycle/backup.py",
        (
            "        namespace = self._changed_namespace(topics)\n"
            "        if self._write_logs() and namespace is not None:\n"
        ),
        instead=(
            "        whole = self._write_logs()\n"
            "        namespace = self._changed_namespace(topics)\n"
            "        if whole and namespace is not None:\n"
        ),
        why="An entity that is read after the logs may have an effect that none of them has (I11).",
        tests=(_ORDER,),
    ),
    Guard(
        "backup/entities-are-read-after-tokens",
        "lifecycle/backup.py",
        "        self._finish(topics, waiting)\n        self._delete_of_deleted_topics()\n",
        instead=(
            "        self._finish(topics, {})\n"
            "        waiting = {k: v for p in pages(topics, 2) for k, v in self._changed_readers(p).items()}\n"
            "        self._changed_namespace = lambda _: Saved({})\n"
            "        self._finish(topics, waiting)\n"
            "        self._delete_of_deleted_topics()\n"
        ),
        why="A token that is gone, while the entity does not have its effect, would never be processed (I11).",
        tests=(_ORDER,),
    ),
    Guard(
        "backup/logs-are-written-first",
        "lifecycle/backup.py",
        "        if self._write_logs() and namespace is not None:\n",
        instead=(
            "        for uuid, saved in readers.items():\n"
            "            self._shelf.put_readers(uuid, saved, self._began_ms, [])\n"
            "        if self._write_logs() and namespace is not None:\n"
        ),
        why="A round that dies leaves no subscription past the end of its log, and no token without its effect (I1, I11).",
        tests=(_ORDER,),
    ),
    Guard(
        "backup/entities-are-written-before-tokens",
        "lifecycle/backup.py",
        "            if namespace.nodes:\n",
        instead=(
            "            for uuid, saved in readers.items():\n"
            "                self._shelf.put_readers(uuid, saved, self._began_ms, [])\n"
            "            if namespace.nodes:\n"
        ),
        why="A round that dies leaves no token that is gone while the entity does not have its effect (I11).",
        tests=(f"{_ORDER}::test_a_round_that_dies_anywhere_while_everybody_acts_I1_I11",),
    ),
    Guard(
        "backup/a-group-with-its-chunks",
        "lifecycle/saving.py",
        "            if key in now and now[key] != group:\n",
        instead="            if False:\n",
        why="A group and chunks of another version of it would give back tokens, or take some that are not consumed (I11).",
        tests=(f"{_ORDER}::test_a_token_group_is_saved_with_the_chunks_that_belong_to_it_I11",),
    ),
    Guard(
        "backup/not-behind-its-snapshot",
        "lifecycle/backup.py",
        "            snapshots.check_not_behind(log, view, there)\n",
        instead="",
        why="A topic that was set back does not replace what storage has of it (I18).",
        tests=(f"{_BACKUP}::test_what_storage_has_of_a_topic_that_was_set_back_is_not_replaced_I18",),
    ),
    Guard(
        "backup/nothing-of-a-namespace-that-was-set-back",
        "lifecycle/backup.py",
        "        if before is not None and (lost := before.lost(records, unreadable, recent_ms)):\n",
        instead="        if before is not None and not (lost := 'nothing'):\n",
        why="Topics and entities that a rollback took stay in the backup (I18).",
        tests=(
            f"{_BACKUP}::test_a_topic_that_is_gone_and_was_not_deleted_shows_a_rollback_I18",
            f"{_BACKUP}::test_an_entity_that_is_gone_shows_a_rollback_I18",
        ),
    ),
    Guard(
        "backup/what-is-left-waits-for-the-logs",
        "lifecycle/backup.py",
        "            self.done.failed[seen.topic.name] = error\n            return False\n",
        instead="            self.done.failed[seen.topic.name] = error\n            return True\n",
        why="Where one log is behind, tokens and entities of the whole namespace may be (I11, I18).",
        tests=(f"{_BACKUP}::test_what_storage_has_of_a_topic_that_was_set_back_is_not_replaced_I18",),
    ),
    Guard(
        "backup/written-late-for-a-deleted-topic",
        "lifecycle/backup.py",
        "        self._delete_of_deleted_topics()\n",
        instead="",
        why="Of a topic that was deleted nothing stays for ever (I16).",
        tests=(f"{_BACKUP}::test_a_topic_that_is_deleted_during_the_round_leaves_no_snapshots",),
    ),
    Guard(
        "backup/newer-is-greater",
        "lifecycle/saved_files.py",
        "    return max([read_ms, *(file.written_ms + 1 for file in there)])\n",
        instead="    return read_ms\n",
        why="After a process whose clock was ahead, what is newer still counts as the newest (I8).",
        tests=(f"{_BACKUP}::test_a_wrong_clock_does_not_make_an_older_state_the_newest",),
    ),
    Guard(
        "root/not-a-new-namespace",
        "log/root.py",
        "    if lost:\n        raise _lost(storage, lost, address)\n",
        instead="",
        why="A ZooKeeper that has lost its data is not taken for a new one (I16, I18).",
        tests=("log/test_lost_namespace.py",),
    ),
    Guard(
        "root/somebody-else-was-faster",
        "log/root.py",
        (
            "    if lost and (made := find(metadata, NamespaceKey())) is not None:  # by somebody else, a moment ago\n"
            "        return made.record\n"
        ),
        instead="",
        why="Two that make a namespace at once are not told that it is lost (I14).",
        tests=("log/test_lost_namespace.py::test_who_comes_second_uses_what_the_first_has_made",),
    ),
]
