"""Spark's source and sink on the driver."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = [
    Guard(
        "planner/a-checkpoint-is-recognised",
        "datasource/stream_planner.py",
        ("        if found and not self._recognised:\n"),
        instead=("        if False:\n"),
        why="A query that has seen lost commits must not go on over others in their places (I18).",
        tests=(
            "datasource/test_offsets.py::test_a_log_that_has_grown_past_the_old_end_again_is_recognised_when_the_query_starts_I18",
        ),
    ),
    Guard(
        "planner/recognised-from-the-newest-head",
        "datasource/stream_planner.py",
        ("            view = self._newest(log)\n            for offset in found:\n                view"),
        instead=("            for offset in found:\n                view"),
        why="What a server has not seen yet is not lost (I14).",
        tests=(
            "datasource/test_lost_hints.py::test_a_checkpoint_that_has_seen_more_than_the_head_in_memory_has_lost_nothing_I14",
        ),
    ),
    Guard(
        "planner/the-subscription-is-recognised",
        "datasource/stream_planner.py",
        ("                    self._subscription.check_cursor(offset)\n"),
        instead=("                    pass\n"),
        why="A subscription that was made again is another one (I7).",
        tests=(
            "datasource/test_offsets.py::test_a_cursor_made_again_at_the_same_revision_and_epoch_is_recognised_by_its_id",
        ),
    ),
    Guard(
        "planner/told-again",
        "datasource/stream_planner.py",
        ("            self._recognised = False  # whoever calls again all the same is told again\n"),
        instead="",
        why="A query that asks again after a loss is told again (I18).",
        tests=(
            "cursors/test_acks_past_end.py::test_a_query_that_lives_through_a_rollback_acknowledges_nothing_in_the_place_of_what_is_lost_I8",
        ),
    ),
    Guard(
        "planner/a-start-past-the-end-is-looked-at-again",
        "datasource/stream_planner.py",
        (
            "        if first.position > view.head.end:\n"
            "            view = self._newest(log)  # the server that answered first may be behind\n"
        ),
        instead="",
        why="What a server has not seen yet is not lost (I14).",
        tests=(
            "datasource/test_lost_hints.py::test_a_subscription_that_was_moved_past_the_end_in_memory_has_lost_nothing_I14",
        ),
    ),
    Guard(
        "planner/a-start-past-the-end-is-told",
        "datasource/stream_planner.py",
        "if at is not None and self._is_lost(log, view, first.position):",
        instead="if False:",
        why="A start past the end means lost commits, and later records would be skipped (I18).",
        tests=(
            "datasource/test_offsets.py::test_a_query_that_runs_through_a_rollback_fails_or_goes_on_as_it_was_told_to",
        ),
    ),
    Guard(
        "planner/an-end-past-the-end-is-looked-at-again",
        "datasource/stream_planner.py",
        ("        if last.position > view.head.end:\n            view = self._newest(log)\n"),
        instead=("        if last.position > view.head.end:\n"),
        why="A batch that Spark has logged is read, whatever a server that is behind shows (I7).",
        tests=("datasource/test_lost_hints.py::test_a_logged_batch_past_the_end_in_memory_is_read_I7",),
    ),
    Guard(
        "planner/discarded-batches-read-nothing",
        "datasource/stream_planner.py",
        "if begin >= last.position or (self._subscription is not None and self._subscription.is_void(last)):",
        instead="if begin >= last.position:",
        why="A batch that a reset has discarded reads nothing, now and in every replay (I7).",
        tests=(
            "datasource/test_subscription.py::test_discarded_batches_read_nothing_for_ever_and_finished_ones_what_they_read",
        ),
    ),
    Guard(
        "planner/a-batch-reads-its-generation",
        "datasource/stream_planner.py",
        "generation = generations.numbered(log, view, last.generation) if last.generation else None",
        instead="generation = view.head.generation if last.generation else None",
        why="A batch that Spark has logged reads the same rows for ever (I7).",
        tests=(
            "datasource/test_read_compacted.py::test_limits_hold_in_the_compacted_part_and_replays_are_exact_over_generations_I7",
        ),
    ),
    Guard(
        "planner/dropped-deletions-are-told",
        "datasource/stream_planner.py",
        "if generation is not None and generation.tombstones_from > seen:",
        instead="if False:",
        why="A reader that would miss deletions is told so (I9).",
        tests=(
            "datasource/test_read_compacted.py::test_a_query_that_comes_back_after_its_deletions_were_dropped_is_told_so",
        ),
    ),
    Guard(
        "planner/a-reader-is-pinned",
        "datasource/stream_planner.py",
        ("        self._pin.move(generation.number if generation else 0, seen)\n"),
        instead="",
        why="A running reader keeps the deletions that it has not seen (I9).",
        tests=(
            "datasource/test_read_compacted.py::test_a_fresh_query_begins_anywhere_in_a_generation_that_dropped_deletions_I9",
        ),
    ),
    Guard(
        "planner/a-batch-of-another-revision-has-its-own-start",
        "datasource/stream_planner.py",
        "if first is None or first.revision != last.revision:",
        instead="if first is None:",
        why="After a reset a batch begins where the reset says (I7).",
        tests=(
            "datasource/test_subscription.py::test_a_logged_batch_reads_its_interval_also_when_a_reset_came_before_it_ran_I7",
        ),
    ),
    Guard(
        "planner/the-beginning-is-resolved-once",
        "datasource/stream_planner.py",
        ("        if self._start is None:\n            log = self.log()"),
        instead=("        if True:\n            log = self.log()"),
        why="A query that begins at latest must not skip what comes while it waits (I1).",
        tests=("datasource/test_source.py::test_batch_0_replayed_with_starting_offsets_latest_reads_the_same_I7",),
    ),
    Guard(
        "planner/nothing-but-numbers-has-changed",
        "datasource/stream_planner.py",
        (
            "        if rows == 0:\n"
            "            return None  # a ledger was sealed: only the position's number has changed\n"
        ),
        instead="",
        why="A seal makes no empty batch (I2).",
        tests=("datasource/test_source.py::test_an_offset_stays_byte_identical_when_a_ledger_is_sealed_behind_it",),
    ),
    Guard(
        "planner/its-own-end-is-the-newest",
        "datasource/stream_planner.py",
        "self._target = self._newest(self.log()).head.end",
        instead="self._target = self.log().view().head.end",
        why="A run with availableNow reads all that was there when it began (I1).",
        tests=("datasource/test_lost_hints.py::test_available_now_reads_to_the_end_that_is_there_I1",),
    ),
    Guard(
        "planner/acknowledged-only-when-recognised",
        "datasource/stream_planner.py",
        ("            self._recognise(log, self._current()[1], done)\n"),
        instead="",
        why="Nothing is acknowledged before the query knows where it is (I8, I18).",
        tests=("datasource/test_offsets.py::test_nothing_is_acknowledged_before_the_query_knows_where_it_is_I8_I18",),
    ),
    Guard(
        "planner/the-pin-is-released",
        "datasource/stream_planner.py",
        ("            self._pin.release()\n"),
        instead=("            pass\n"),
        why="A query that has ended keeps no deletions (I13).",
        tests=(
            "datasource/test_read_compacted.py::test_a_query_that_comes_back_after_its_deletions_were_dropped_is_told_so",
        ),
    ),
    Guard(
        "subscription/no-batch-during-a-reset",
        "datasource/subscription.py",
        "while cursor.reviser and self._attachment.is_under_revision():",
        instead="while False:",
        why="While somebody resets the subscription no batch is planned (I7).",
        tests=("datasource/test_subscription.py::test_while_the_cursor_is_being_moved_no_batch_is_planned",),
    ),
    Guard(
        "subscription/acknowledged-under-the-same-revision",
        "datasource/subscription.py",
        ("        if at is not None and at.revision == cursor.revision:\n            return self._go_on(at, cursor)\n"),
        instead=("        if at is not None:\n            return self._go_on(at, cursor)\n"),
        why="After a reset the query begins where the cursor is (I7).",
        tests=(
            "datasource/test_subscription.py::test_a_logged_batch_reads_its_interval_also_when_a_reset_came_before_it_ran_I7",
        ),
    ),
    Guard(
        "subscription/reset-while-it-acknowledges",
        "datasource/subscription.py",
        "cursor = self._acknowledge(at) or cursor",
        instead="self._acknowledge(at)",
        why="A reset may come between the look and the acknowledgement (I7).",
        tests=(
            "datasource/test_lost_hints.py::test_a_reset_that_comes_while_a_query_acknowledges_is_followed_at_once_I7",
        ),
    ),
    Guard(
        "subscription/a-reset-that-the-cursor-has-never-seen",
        "datasource/subscription.py",
        "            self._check_revision(at, cursor)\n",
        instead="            pass\n",
        why="After a rollback another reset has the number of a lost one (I7, I18).",
        tests=("cursors/test_lost_resets.py",),
    ),
    Guard(
        "subscription/the-reset-travels-in-offsets",
        "datasource/subscription.py",
        "return cls(position, start, cursor.revision, cursor.epoch, SeenRevision.of(cursor).reset)",
        instead="return cls(position, start, cursor.revision, cursor.epoch)",
        why="After a rollback another reset has the number of a lost one (I7, I18).",
        tests=("cursors/test_lost_resets.py",),
    ),
    Guard(
        "subscription/a-later-revision-is-of-another-cursor",
        "cursors/revision.py",
        "return since >= 0 and (",
        instead="return (",
        why="A revision that the cursor has not reached is of another cursor (I18).",
        tests=(
            "datasource/test_lost_hints.py::test_a_checkpoint_without_a_cursor_id_and_of_a_later_revision_is_of_another_cursor_I18",
        ),
    ),
    Guard(
        "subscription/a-forward-move-does-not-go-back",
        "datasource/subscription.py",
        "if at is not None and at.revision >= cursor.last_backward_revision:  # later revisions only moved it forward",
        instead="if False:",
        why="A skip does not deliver again what the query has read (I8).",
        tests=("datasource/test_subscription.py::test_skip_and_clear_backlog_never_move_a_running_query_back",),
    ),
    Guard(
        "subscription/what-others-acknowledged",
        "datasource/subscription.py",
        "if at.position >= acknowledged or at.revision != self._attached.revision:",
        instead="if True:",
        why="What others have acknowledged is not delivered again (I8).",
        tests=(
            "datasource/test_subscription.py::test_who_comes_back_is_not_given_what_another_has_acknowledged_I7_I8",
        ),
    ),
    Guard(
        "subscription/recognised-by-its-epoch",
        "datasource/subscription.py",
        "if at is not None and attached_under is not None and at.epoch >= attached_under and not self._is_past_end(at):",
        instead="if False:",
        why="A cursor without an id that was made again is known by its epoch (I7).",
        tests=("datasource/test_offsets.py::test_a_cursor_without_an_id_is_judged_by_its_epoch_as_before",),
    ),
    Guard(
        "subscription/nothing-done-for-another-cursor",
        "datasource/subscription.py",
        ("        self._check_identity(end)\n        self._acknowledge(end)"),
        instead="        self._acknowledge(end)",
        why="A checkpoint of another cursor acknowledges nothing here (I8).",
        tests=(
            "datasource/test_subscription.py::test_a_subscription_that_was_made_again_at_the_same_revision_is_told_from_the_old_one",
        ),
    ),
    Guard(
        "subscription/finished-batches-are-not-void",
        "datasource/subscription.py",
        "return end.position > next(finished, EARLIEST)",
        instead="return True",
        why="A batch that had finished before the reset reads what it read (I7).",
        tests=(
            "datasource/test_subscription.py::test_discarded_batches_read_nothing_for_ever_and_finished_ones_what_they_read",
        ),
    ),
    Guard(
        "subscription/batches-of-later-revisions-are-not-void",
        "datasource/subscription.py",
        ("        if end.revision >= cursor.void_below:\n            return False\n"),
        instead="",
        why="Only batches from before the reset are discarded (I7).",
        tests=(
            "datasource/test_subscription.py::test_a_logged_batch_reads_its_interval_also_when_a_reset_came_before_it_ran_I7",
        ),
    ),
    Guard(
        "subscription/waiting-for-a-reset-ends",
        "datasource/subscription.py",
        "if self._deadline.passed and reviser is not None:",
        instead="if False:",
        why="A reset that is stuck does not make a query wait for ever (I16).",
        tests=(
            "datasource/test_subscription.py::test_an_available_now_query_whose_cursor_is_moved_without_an_end_says_by_whom_I16",
        ),
        hangs=True,
    ),
    Guard(
        "subscription/only-an-owner-plans",
        "datasource/subscription.py",
        ("        cursor = self._attachment.verified()\n        being_reset"),
        instead=("        cursor = self._attachment.node.current(60.0)\n        being_reset"),
        why="A query that was replaced plans no batch (I6).",
        tests=(
            "datasource/test_lost_hints.py::test_a_query_that_was_replaced_plans_nothing_also_if_it_has_nothing_to_acknowledge_I6",
        ),
    ),
    Guard(
        "subscription/an-acknowledgement-past-the-end",
        "datasource/subscription.py",
        ('        except DataLoss as error:\n            logger.warning("subscription=%s: not acknowledged'),
        instead=(
            '        except ZeroDivisionError as error:\n            logger.warning("subscription=%s: not acknowledged'
        ),
        why="Planning says what is lost, or goes on from the end if the user wants that (I16).",
        tests=(
            "cursors/test_acks_past_end.py::test_a_query_whose_checkpoint_is_past_the_end_does_not_move_the_cursor_there",
        ),
    ),
    Guard(
        "sink/the-topic-that-was-staged-for",
        "datasource/write_commit.py",
        ("        if log.topic.uuid != uuid:\n            raise gone_meanwhile(options.topic, recreated=True)\n"),
        instead="",
        why="Files of a deleted topic are not named by another one (I1).",
        tests=(
            "datasource/test_sink_topic.py::test_files_staged_for_a_topic_are_never_committed_to_the_one_made_since_I1",
        ),
    ),
    Guard(
        "sink/the-topic-of-the-query",
        "datasource/write_commit.py",
        ("        sinks.check(query, options.topic, log.topic)\n"),
        instead="",
        why="A query never goes on in a topic that was made since under the same name (I1).",
        tests=(
            "datasource/test_sink_topic.py::test_foreach_batch_whose_topic_goes_while_it_writes_is_told_how_to_go_on_I16",
        ),
    ),
    Guard(
        "sink/the-topic-is-noted-before-the-append",
        "datasource/write_commit.py",
        ("            sinks.remember(query, log.topic)\n"),
        instead=("            pass\n"),
        why="What a query has run on is never replaced by a topic made since (I1).",
        tests=("datasource/test_sink_topic.py::test_a_query_does_not_make_its_deleted_topic_again_I1_I16",),
    ),
    Guard(
        "sink/an-empty-first-batch-notes-its-topic",
        "datasource/write_commit.py",
        "if is_empty and (not query or sinks.remembers(query, options.topic, uuid)):",
        instead="if is_empty:",
        why="A query that has run on a topic counts on it, also if its batch was empty (I1).",
        tests=("datasource/test_sink_topic.py::test_a_query_does_not_make_its_deleted_topic_again_I1_I16",),
    ),
    Guard(
        "sink/batches-are-known-by-their-offsets",
        "datasource/write_commit.py",
        "BatchId(number, query, run, Checkpoint(options.checkpoint, plan.storage).digest(number))",
        instead="BatchId(number, query, run)",
        why="A batch of other data under the same id is told from a replay by the digest of its offsets (I5).",
        tests=(
            "datasource/test_sink.py::test_a_replayed_batch_of_a_stream_whose_offsets_agree_is_a_line_to_see_and_no_mistake",
        ),
    ),
    Guard(
        "sink/skipped-rows-are-told",
        "datasource/write_commit.py",
        "return ByBatchId(batch_id, rows if any(message.skipped for message in staged) else None)",
        instead="return ByBatchId(batch_id)",
        why="A batch whose tasks have written nothing must not be committed as an empty one (I1).",
        tests=("datasource/test_sink.py::test_a_name_let_go_in_the_middle_of_a_replay_is_an_error_and_no_drop_I1",),
    ),
    Guard(
        "sink/left-out-records-are-told",
        "datasource/write_commit.py",
        "return ByRecordIds(ids, left_out, _left_out(log, staged))",
        instead="return ByRecordIds(ids)",
        why="If a producer was forgotten since, records that tasks left out are new again (I1).",
        tests=(
            "datasource/test_sink_topic.py::test_records_that_tasks_left_out_are_not_lost_when_their_producer_is_forgotten_meanwhile_I1",
        ),
    ),
    Guard(
        "sink/a-deletion-is-told",
        "datasource/write_commit.py",
        ("        namespace.sinks.check(query, options.topic, topics.find_topic(namespace.metadata, options.topic))\n"),
        instead="",
        why="A query whose topic was deleted is told how to go on (I16).",
        tests=(
            "datasource/test_sink_topic.py::test_foreach_batch_whose_topic_goes_while_it_writes_is_told_how_to_go_on_I16",
        ),
    ),
    Guard(
        "sink/planned-for-the-topic-of-the-query",
        "datasource/write_plan.py",
        ("    namespace.sinks.check(query, options.topic, topic)\n"),
        instead="",
        why="A query never goes on in a topic that was made since under the same name (I1).",
        tests=("datasource/test_sink_topic.py::test_a_query_does_not_make_its_deleted_topic_again_I1_I16",),
    ),
    Guard(
        "sink/planned-after-a-sync",
        "datasource/write_plan.py",
        ("        namespace.metadata.sync()  # a server that is behind may have the topic that was there before\n"),
        instead=("        pass\n"),
        why="A server that is behind may show a topic that was deleted (I14).",
        tests=("datasource/test_sink_topic.py::test_a_stale_server_does_not_refuse_a_query_that_was_let_go",),
    ),
    Guard(
        "sink/planned-from-the-newest-head",
        "datasource/write_plan.py",
        ("    log = _known_log(namespace, options, 0)\n    if log is None:\n"),
        instead=("    log = _known_log(namespace, options, FRESH_S)\n    if log is None:\n"),
        why="A replay of what another process has committed is recognised before its files are written (I5).",
        tests=("datasource/test_sink.py::test_a_producer_name_belongs_to_one_query_until_it_is_let_go_I5",),
    ),
    Guard(
        "sink/committed-to-the-topic-that-is-there",
        "datasource/write_plan.py",
        "if log is None or log.topic.uuid != uuid:",
        instead="if log is None:",
        why="A log in memory may be of a topic that was deleted (I1).",
        tests=(
            "datasource/test_sink_topic.py::test_what_a_query_has_run_on_is_not_replaced_by_a_topic_made_since_I1_I16",
        ),
    ),
    Guard(
        "sink/committed-after-a-sync",
        "datasource/write_plan.py",
        ("        namespace.metadata.sync()\n        log = _open_log(namespace, options)"),
        instead="        log = _open_log(namespace, options)",
        why="A topic that was made a moment ago is there (I14).",
        tests=("datasource/test_sink_topic.py::test_a_stale_server_does_not_refuse_a_query_that_was_let_go",),
    ),
    Guard(
        "sink/a-commit-makes-no-topic",
        "datasource/write_plan.py",
        ("    if again:\n        raise gone_meanwhile(name, recreated=False)\n"),
        instead="",
        why="A topic that was deleted while a batch was written is not made again (I1).",
        tests=("datasource/test_sink_topic.py::TestSinkMachine::runTest",),
    ),
    Guard(
        "sink/a-deleted-topic-is-not-made-again",
        "datasource/write_plan.py",
        ("    if deleted is not None:\n"),
        instead=("    if False:\n"),
        why="A write does not make the name of a deleted topic again unasked (I1).",
        tests=("datasource/test_sink_topic.py::test_a_query_does_not_make_its_deleted_topic_again_I1_I16",),
    ),
    Guard(
        "sink/create-topic-false",
        "datasource/write_plan.py",
        ("    if options.create_topic is False:\n"),
        instead=("    if False:\n"),
        why="Who says that no topic is to be made is told that there is none (I16).",
        tests=("datasource/test_sink_topic.py::test_a_name_that_is_new_is_made_by_everybody_but_who_says_no",),
    ),
    Guard(
        "sink/replays-are-planned",
        "datasource/write_plan.py",
        "replays=_replays(options, log) if options.deduplicate and options.ids is None else {},",
        instead="replays={},",
        why="A replayed batch writes no files (I13).",
        tests=(
            "datasource/test_sink.py::test_a_replayed_batch_is_recognised_before_and_after_its_files_are_written_I5",
        ),
    ),
    Guard(
        "sink/refused-by-the-newest-policies",
        "datasource/write_plan.py",
        (
            "            log.refresh(sync=True)  # the policies in memory may be old, and nobody is refused because of that\n"
        ),
        instead=("            pass\n"),
        why="A refusal may come from old policies in memory (I14).",
        tests=(
            "datasource/test_sink_topic.py::test_who_was_refused_because_deduplication_was_off_is_not_refused_after_it_was_turned_on_I14",
        ),
    ),
    Guard(
        "sink/ids-where-they-count",
        "datasource/write_plan.py",
        ("        check_deduplicates(log)\n"),
        instead=("        pass\n"),
        why="Who asks for deduplication where it is off is told before tasks run (I16).",
        tests=(
            "datasource/test_sink_topic.py::test_who_asks_for_deduplication_where_it_is_off_is_told_before_tasks_run_I16",
        ),
    ),
    Guard(
        "sinks/the-newest-note",
        "log/sinks.py",
        ("        self._metadata.sync()\n        found = self._metadata.read(SinkTopicKey(query, name))"),
        instead="        found = self._metadata.read(SinkTopicKey(query, name))",
        why="A server that is behind may not know which topic the query writes to (I1).",
        tests=("datasource/test_sink_topic.py::test_nobody_is_refused_on_the_word_of_a_server_that_is_behind",),
    ),
    Guard(
        "sinks/read-again-over-a-new-connection",
        "log/sinks.py",
        ("            and seen.connection == self._metadata.connections\n"),
        instead="",
        why="A rollback may have undone the note (I18).",
        tests=("datasource/test_sink_topic.py::test_a_connection_that_was_lost_is_a_reason_to_look_again_I18",),
    ),
    Guard(
        "sinks/noted-only-of-the-topic-that-is-there",
        "log/sinks.py",
        "[Check(TopicKey(topic.name), name.version), Create(key, SinkTopic(topic.uuid))]",
        instead="[Create(key, SinkTopic(topic.uuid))]",
        why="A topic that is deleted meanwhile is not noted (I1).",
        tests=("datasource/test_sink_topic.py::test_a_topic_deleted_at_the_moment_of_the_note_is_not_noted",),
    ),
    Guard(
        "sinks/another-topic-is-refused",
        "log/sinks.py",
        ("        if found.record.uuid != now:\n            raise"),
        instead=("        if False:\n            raise"),
        why="A query never goes on in a topic that was made since under the same name (I1).",
        tests=("datasource/test_sink_topic.py::test_a_query_does_not_make_its_deleted_topic_again_I1_I16",),
    ),
    Guard(
        "datasource/a-logged-batch-also-reads-what-was-given-up",
        "datasource/stream_planner.py",
        "last.base or EARLIEST, planned=True, around_lost=True)",
        instead="last.base or EARLIEST, around_lost=True)",
        why="A logged batch reads the same, for the grace also after its ledgers were given up (I7).",
        tests=(
            "datasource/test_trimmed.py::test_a_batch_that_spark_has_logged_reads_the_same_for_the_grace_and_is_data_loss_later_I7",
        ),
    ),
    Guard(
        "datasource/a-place-that-is-gone-is-told",
        "datasource/stream_planner.py",
        "        first = self._past_what_is_gone(log, view, at, first, end)\n",
        instead="",
        why="A query does not go on behind a gap without being told (I14).",
        tests=(
            "datasource/test_trimmed.py::test_a_query_whose_place_is_gone_is_told_which_records_how_many_and_what_to_do_I14",
        ),
    ),
    Guard(
        "datasource/who-is-ahead-has-lost-nothing",
        "datasource/subscription.py",
        "return min(cursor.evicted, max(0, cursor.ordinal - at.records))",
        instead="return cursor.evicted",
        why="Who is told of a loss is told the truth (I14).",
        tests=(
            "datasource/test_trimmed.py::test_a_query_that_is_ahead_of_an_eviction_has_lost_nothing_and_is_not_moved_back",
        ),
    ),
]
