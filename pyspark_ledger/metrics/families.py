"""The names of all metrics: one prefix, base units, ``_total`` for what only grows."""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    help: str
    labels: tuple[str, ...] = ("topic",)


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
    "ledger_topic_records_total": Family("Records ever committed."),
    "ledger_topic_bytes_total": Family("Stored bytes ever committed."),
    "ledger_topic_commits_total": Family("Commits ever made."),
    "ledger_topic_end_ledger": Family("The ledger of the end position: the one that is open."),
    "ledger_topic_end_entry": Family("The entry of the end position, in its ledger."),
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
    "ledger_topic_tokens_total": Family("Tokens minted with the topic's records."),
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
    "ledger_cursor_epochs_total": Family("Attachments and redeliveries so far (PIP-84).", _CURSOR),
    "ledger_cursor_revisions_total": Family("Position resets so far (PIP-269).", _CURSOR),
    "ledger_cursor_revision_running": Family("1 while the position is being reset.", _CURSOR),
    "ledger_compaction_generation": Family("The newest generation; absent if there is none."),
    "ledger_compaction_horizon_ledger": Family("The ledger of the compaction horizon."),
    "ledger_compaction_horizon_entry": Family("The entry of the compaction horizon, in its ledger."),
    "ledger_compaction_records": Family("Records in the newest generation."),
    "ledger_compaction_bytes": Family("Stored bytes of the newest generation."),
    "ledger_compaction_ratio": Family("Records in the newest generation, of those before its horizon."),
    "ledger_compaction_backlog_records": Family("Records after the compaction horizon."),
    "ledger_compaction_finished_timestamp_seconds": Family("When the newest generation was published."),
    "ledger_compaction_duration_seconds": Family("How long the newest generation took to make."),
    "ledger_compaction_running": Family("1 while somebody compacts the topic."),
    "ledger_compaction_running_seconds": Family("How long the compaction that runs now has been running; else 0."),
}
