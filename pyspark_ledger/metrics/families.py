"""The names of all metrics: one prefix, base units, ``_total`` for what only grows."""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    help: str
    labels: tuple[str, ...] = ("topic",)


Sample = tuple[str, tuple[str, ...], float]  # name of the family, labels, value
_CURSOR = ("topic", "subscription")
_GROUP = ("topic", "group")
_PRODUCER = ("topic", "producer")
_SEEN = "in commits since the exporter started and in the ledger that was open then"
# A name that ends with _total is a counter, the others are gauges.
FAMILIES = {
    "ledger_up": Family("1 if the namespace could be read.", ()),
    "ledger_scrape_errors_total": Family(
        "Topics and subscriptions that could not be read, since the exporter started."
    ),
    "ledger_scrape_late_topics": Family(
        "Topics of which details are from an earlier scrape, because this one had no more time for them.", ()
    ),
    "ledger_maintainer": Family("1, for the process that leads maintenance; absent if there is none.", ("process",)),
    "ledger_condemned_topics": Family("Topics that were deleted, and whose files are being deleted.", ()),
    "ledger_topic_records_total": Family("Records ever committed."),
    "ledger_topic_bytes_total": Family("Stored bytes ever committed."),
    "ledger_topic_commits_total": Family("Commits ever made."),
    "ledger_topic_end_ledger": Family("The ledger of the end position: the one that is open."),
    "ledger_topic_end_entry": Family("The entry of the end position, in its ledger."),
    "ledger_topic_begin_ledger": Family(
        "The ledger of the begin position; absent, as what follows, if nothing was given up."
    ),
    "ledger_topic_trimmed_records_total": Family("Records that retention has given up."),
    "ledger_topic_trimmed_bytes_total": Family("Stored bytes that retention has given up."),
    "ledger_topic_kept_records": Family("Records that can be read."),
    "ledger_topic_kept_bytes": Family("Stored bytes of these."),
    "ledger_topic_pending_ranges": Family("Ranges of ledgers that were given up, and whose files are still there."),
    "ledger_topic_gc_epoch": Family("The gc epoch."),
    "ledger_topic_gc_epoch_age_seconds": Family("How long the gc epoch has lasted, by ZooKeeper's clock."),
    "ledger_topic_terminated": Family("1 if the topic takes no more appends; else absent."),
    "ledger_topic_set_back": Family(
        "1 if ZooKeeper was rolled back, and somebody has to decide how to go on; else absent."
    ),
    "ledger_topic_last_publish_timestamp_seconds": Family("Publish time of the last commit."),
    "ledger_topic_producers": Family("Producers whose sequence ids are remembered."),
    "ledger_topic_evicted_producers": Family("Producers that the topic's policy has evicted."),
    "ledger_topic_dropped_duplicates_total": Family(
        f"Duplicates left out {_SEEN}. A batch that has nothing new makes no commit, and is not counted."
    ),
    "ledger_producer_records_total": Family(f"Records {_SEEN}.", _PRODUCER),
    "ledger_producer_bytes_total": Family(f"Stored bytes {_SEEN}.", _PRODUCER),
    "ledger_producer_sequence_id": Family("The last sequence id.", _PRODUCER),
    "ledger_producer_last_publish_timestamp_seconds": Family("Publish time of the last sequence id.", _PRODUCER),
    "ledger_producer_fenced_runs": Family(
        "Runs of the query that were replaced by a newer one and are fenced; the last 16 are remembered. Attempts of "
        "theirs to write are refused and leave no trace.",
        _PRODUCER,
    ),
    "ledger_topic_tokens_total": Family("Tokens minted with the topic's records; absent if there are none."),
    "ledger_tokens_in_flight": Family("Tokens that are there: minted, and not consumed by the group.", _GROUP),
    "ledger_tokens_consumed_total": Family("Tokens of the topic's records that the group has consumed.", _GROUP),
    "ledger_tokens_nodes": Family("ZooKeeper nodes that tell what the group has consumed.", _GROUP),
    "ledger_tokens_bytes": Family("Bytes of bitmaps, in nodes and files.", _GROUP),
    "ledger_cursor_backlog_records": Family("Records that are not acknowledged.", _CURSOR),
    "ledger_cursor_backlog_bytes": Family("Stored bytes after the subscription's position.", _CURSOR),
    "ledger_cursor_backlog_seconds": Family("Age of the oldest record that is not acknowledged.", _CURSOR),
    "ledger_cursor_position_ledger": Family("The ledger of the subscription's position.", _CURSOR),
    "ledger_cursor_position_entry": Family("The entry of the subscription's position, in its ledger.", _CURSOR),
    "ledger_cursor_individual_acks": Family("Records acknowledged out of order.", _CURSOR),
    "ledger_cursor_attached": Family("1 if a query or a consumer follows the subscription.", _CURSOR),
    "ledger_cursor_members": Family("Living consumers that share the subscription.", _CURSOR),
    "ledger_cursor_epochs_total": Family("Attachments and redeliveries so far (PIP-84).", _CURSOR),
    "ledger_cursor_revisions_total": Family("Position resets so far (PIP-269).", _CURSOR),
    "ledger_cursor_revision_running": Family("1 while the position is being reset.", _CURSOR),
    "ledger_cursor_held_records": Family("Records that retention would give up, and that it holds back.", _CURSOR),
    "ledger_cursor_held_bytes": Family("Stored bytes of these.", _CURSOR),
    "ledger_cursor_over_quota": Family("1 if it holds back more than the topic's backlog quota.", _CURSOR),
    "ledger_cursor_evicted_records": Family(
        "Records that a backlog quota took from it, and that its reader was not told of yet.", _CURSOR
    ),
    "ledger_cursor_lost_records_total": Family("Records that it has lost, and that its reader was told of.", _CURSOR),
    "ledger_compaction_generation": Family("The newest generation; absent if there is none."),
    "ledger_compaction_horizon_ledger": Family("The ledger of the compaction horizon."),
    "ledger_compaction_horizon_entry": Family("The entry of the compaction horizon, in its ledger."),
    "ledger_compaction_records": Family("Records in the newest generation."),
    "ledger_compaction_bytes": Family("Stored bytes of the newest generation."),
    "ledger_compaction_ratio": Family("Records in the newest generation, of those before its horizon."),
    "ledger_compaction_backlog_records": Family("Records after the compaction horizon."),
    "ledger_compaction_finished_timestamp_seconds": Family("When the newest generation was published."),
    "ledger_compaction_duration_seconds": Family("How long the newest generation took to make."),
    "ledger_compaction_running": Family("1 while somebody compacts the topic; absent if it was never compacted."),
    "ledger_compaction_running_seconds": Family("How long the compaction that runs now has been running; else 0."),
}
_QUERY = ("query", "source", "topic", "subscription")
# What a Spark job tells of its own queries, on its driver's port.
QUERIES = {
    "ledger_query_lag_records": Family("Records that the query has not finished.", _QUERY),
    "ledger_query_lag_bytes": Family("Stored bytes of these, by the topic's mean record.", _QUERY),
    "ledger_query_lag_seconds": Family("Age of the oldest record that the query has not finished.", _QUERY),
}
_ACTION = ("action",)
# What the process tells that does the maintenance, on its own port.
MAINTENANCE = {
    "ledger_maintenance_leads": Family("1 if this process leads, 0 if it stands by.", ()),
    "ledger_maintenance_ready": Family("1 if ZooKeeper has answered, and this process leads or stands by.", ()),
    "ledger_maintenance_runs_total": Family("Rounds of an action over all topics.", _ACTION),
    "ledger_maintenance_failures_total": Family("Topics for which an action failed, in all rounds.", _ACTION),
    "ledger_maintenance_failing_topics": Family("Topics for which an action fails now.", _ACTION),
    "ledger_maintenance_seconds_total": Family("Time that an action took, with what it waited.", _ACTION),
    "ledger_maintenance_last_success_timestamp_seconds": Family(
        "When a round of an action ended in which nothing failed.", _ACTION
    ),
    "ledger_backup_age_seconds": Family(
        "Time since the last round of backup in which nothing failed, of the process that leads; +Inf: none is known.",
        (),
    ),
    "ledger_maintenance_done_total": Family("What an action did, by what is counted.", ("action", "what")),
}
# What a process with producers tells of them, in a registry of its own.
WRITERS = {
    "ledger_writer_turns_total": Family("Commits of this process that were made in turn, while others waited."),
    "ledger_writer_combined_total": Family("Commits of others that were taken along with these."),
    "ledger_writer_waits_total": Family("Appends of this process that have waited for their turn."),
    "ledger_writer_waited_seconds_total": Family("How long these have waited, together."),
}
