"""A namespace that gets another storage root."""

from __future__ import annotations

from tests.guards.guard import Guard

_MOVE = "lifecycle/test_move_storage.py"

GUARDS = [
    Guard(
        "moving/a-head-is-written-through-its-own-root",
        "log/log.py",
        "if head.moves != self.storage.moves:\n            raise root.refusal",
        instead="if False:\n            raise root.refusal",
        why="Who has the former root open must not name a file that is only there (I1).",
        tests=(f"{_MOVE}::test_an_object_store_whose_marker_nobody_looks_at_again_is_guarded_by_the_head_I1",),
    ),
    Guard(
        "moving/another-root-only-after-a-sync",
        "log/folders.py",
        "        log.refresh(sync=True)  # perhaps a server that is behind has told it\n",
        instead="        pass\n",
        why="A head that a server has not seen yet is of no other root (I14).",
        tests=(f"{_MOVE}::test_a_head_from_a_server_that_is_behind_is_of_no_other_root_I14",),
    ),
    Guard(
        "moving/every-change-of-a-head",
        "log/log.py",
        "            if not in_any_root:\n                self.check_root(head)\n",
        instead="",
        why="Compactions, rewritings and repairs name files too, and begin again if they were overtaken (I1).",
        tests=(f"{_MOVE}::test_a_rewriting_that_is_paused_begins_again_and_names_nothing_that_is_left_behind_I1",),
    ),
    Guard(
        "moving/a-seal-in-its-own-root",
        "log/seal.py",
        "    log.check_root(head)\n",
        instead="",
        why="A seal names an index file (I1).",
        tests=(f"{_MOVE}::test_a_seal_that_is_paused_names_no_index_that_is_left_behind_I1",),
    ),
    Guard(
        "moving/staged-before-the-gc-epoch-was-raised",
        "lifecycle/moving.py",
        "gc_epoch=head.gc_epoch + _EPOCHS)",
        instead="gc_epoch=head.gc_epoch)",
        why="Tasks have staged in the former root, and a new driver opens the new one (I12).",
        tests=(f"{_MOVE}::test_a_batch_that_was_staged_in_the_former_root_is_refused_by_who_opens_the_new_one_I12",),
    ),
    Guard(
        "moving/a-long-bitmap-is-looked-after",
        "tokens/groups.py",
        "            root.check_not_moved(self._group.log.metadata, self._group.log.storage)\n",
        instead="",
        why="No head guards a file of tokens (I1).",
        tests=(f"{_MOVE}::test_a_long_value_that_is_written_after_the_copying_is_not_named_I1",),
    ),
    Guard(
        "moving/a-long-entity-is-looked-after",
        "outbox/entities.py",
        "            raise\n        root.check_not_moved(self._metadata, self._storage)\n",
        instead="            raise\n",
        why="No head guards a file of an entity (I1).",
        tests=(f"{_MOVE}::test_a_long_value_that_is_written_after_the_copying_is_not_named_I1",),
    ),
    Guard(
        "moving/a-topic-is-made-before-or-refused",
        "log/topics.py",
        "        *([] if namespace is None else [Check(NamespaceKey(), namespace.version)]),\n",
        instead="",
        why="A topic that is made after the topics were listed would be fenced by nobody (I1).",
        tests=(f"{_MOVE}::test_a_topic_is_made_before_the_move_or_not_at_all_I1",),
    ),
    Guard(
        "moving/finished-by-who-began-it",
        "lifecycle/moving.py",
        "            if record.moves != begun.moves:\n",
        instead="            if False:\n",
        why="A mover that was overtaken changes nothing (I6).",
        tests=(f"{_MOVE}::test_a_mover_that_was_overtaken_finishes_nothing_I6",),
    ),
    Guard(
        "moving/a-rollback-is-noted-first",
        "lifecycle/moving.py",
        "            _note_rollback(log)  # files of later epochs show it, and would not any more when the epoch is raised\n",
        instead="            pass\n",
        why="Files of later epochs are what shows a rollback, and the raised epoch would hide them (I18).",
        tests=(f"{_MOVE}::test_files_of_a_later_epoch_are_noted_before_the_epoch_is_raised_I18",),
    ),
    Guard(
        "moving/back-if-it-fails",
        "lifecycle/moving.py",
        "                    self.go_back()\n",
        instead="                    pass\n",
        why="A full disk must not leave a namespace that nobody can write (I16).",
        tests=(f"{_MOVE}::test_a_disk_that_is_full_at_the_end_leaves_the_namespace_as_it_was_I16",),
    ),
    Guard(
        "moving/the-same-place-keeps-its-marker",
        "lifecycle/moving.py",
        "and not same_place(now, storage, names.probe_file(self.clock.new_id()))",
        instead="",
        why="The former root under another name is the root (I1).",
        tests=("lifecycle/test_set_storage.py::test_the_same_place_may_get_another_name_and_keeps_its_marker_I1",),
    ),
    Guard(
        "moving/a-copy-is-read-back",
        "lifecycle/copying.py",
        "if length != size or _digest(_parts(self._target, path)) != digest.digest():",
        instead="if length != size:",
        why="A copy counts only if it can be read, and is the same (I1).",
        tests=(f"{_MOVE}::test_a_copy_that_does_not_read_back_the_same_is_refused_I1",),
    ),
    Guard(
        "moving/looked-at-again-when-nobody-writes",
        "lifecycle/set_storage.py",
        "            inspect(mover, to)  # again: perhaps somebody has written before he was refused\n",
        instead="",
        why="A copy may be complete at the first look and not any more when it becomes the root (I1).",
        tests=("lifecycle/test_set_storage.py::test_what_is_written_while_it_looks_is_not_lost_I1",),
    ),
]
