"""Every bound in one place. Tests make them small; nobody else should need to."""

from __future__ import annotations

from dataclasses import dataclass

# What no record or file of ours exceeds. Whoever reads one that does would only waste memory before it fails.
MOST_TABLE_BYTES = 4 << 30  # in memory, of an index file, a snapshot or another file that is read whole, or a batch
MOST_TABLE_ROWS = 1 << 25  # in such a file
MOST_FOOTER_BYTES = 8 << 20  # of an Arrow file: its schema, and where its batches are
MOST_TAIL_BYTES = 256 << 20  # of an entry file: what the checksums of its batches take
MOST_OPEN_COMMITS = 1 << 17  # of a ledger that is not sealed: they are read one by one
MOST_SCHEMAS = 1 << 17  # that a topic has had
MOST_BITMAP_NUMBERS = 1 << 27  # in one bitmap of tokens: 16 MB
MOST_BATCH_ROWS = 1 << 24  # in one record batch of an entry file: we write a 256th of that
MOST_MASKED_ROWS = 1 << 30  # of an entry of which some rows are masked: 128 MB
MOST_NUMBERS = 1 << 24  # of a set of numbers that are taken one by one
MOST_LINE_BYTES = 1 << 28  # of a file that a command reads: more than a record can have in most topics
MOST_TOPICS = 100  # that one query reads: each has a watch, and a part in every offset


@dataclass(frozen=True, slots=True)
class Limits:
    commits_per_ledger: int = 1_000
    bytes_per_ledger: int = 256 << 30
    ledger_age_ms: int = 24 * 3600 * 1000
    index_fanout: int = 1_000  # rows in one index file: a million commits need two levels, a billion three
    inline_entries: int = 16  # a commit with more entries keeps them in a file,
    inline_mask_bytes: int = 512  # and so does one whose masks are longer
    inline_producers_bytes: int = 100_000
    acks_bytes: int = 500_000  # of one cursor: at least 125,000 gaps between acknowledged records
    members: int = 100  # consumers that share a subscription,
    claim_runs: int = 500  # gaps in what each of them has in hand,
    shared_acks_bytes: int = 64_000  # and of acknowledged records after gaps, before nobody goes further ahead
    deliveries_bytes: int = 16_000  # of what a cursor remembers of records that were delivered in vain
    remembered_operations: int = 16
    remembered_revisions: int = 16
    kept_snapshots: int = 4  # of a kind in storage: if the newest is damaged, one before it is read
    backup_idle_s: float = 3600.0  # the namespace is backed up at least so often, even if nothing has changed
    backup_bytes: int = 64 << 20  # of cursors and token groups that a round of backup has in memory
    kept_generations: int = 1_000  # older compactions that a planned batch may still read, at most
    gc_grace_ms: int = 24 * 3600 * 1000  # how long a gc epoch lasts at least: a batch may take so long
    gc_thorough_epochs: int = 30  # every so many epochs gc looks at all files, for those that were staged late
    deletes_at_once: int = 1_000  # files
    topics_at_once: int = 500  # that are looked at together, of a namespace with thousands
    rewrite_below_bytes: int = 4 << 20  # files of entries that are smaller on average are worth rewriting
    rewritten_file_bytes: int = 128 << 20  # a file that holds many entries has about so many bytes, at most
    rewrite_ledgers: int = 100  # rewritten ledgers that are published at once,
    rewrite_bytes: int = 4 << 30  # or those with so many bytes to read: it must not take longer than the grace
    rewrite_looks: int = 100  # ledgers in a row with nothing to do, and older ones are not looked at
    verify_threads: int = 8  # that look at files
    pending_ranges: int = 4  # of ledgers that were given up, in the head: more are merged
    retention_parts: int = 10  # a ledger is sealed after this part of what its topic keeps, so that it can go in time,
    retention_ledger_ms: int = 60_000  # but not sooner than this
    sink_look_ms: int = 24 * 3600 * 1000  # how often a process reads again which topic its query writes to,
    sink_kept_ms: int = 90 * 24 * 3600 * 1000  # and how long that is kept at least if nobody asks for it
    seal_every_s: float = 60.0  # how often maintenance looks for ledgers to seal, and so on for each of its actions
    trim_every_s: float = 300.0
    quota_every_s: float = 60.0
    expire_every_s: float = 3600.0
    compact_every_s: float = 60.0
    rewrite_every_s: float = 600.0
    gc_every_s: float = 600.0
    sinks_every_s: float = 6 * 3600.0
    condemned_every_s: float = 600.0
    backup_every_s: float = 60.0
    gc_quiet_graces: int = 10  # a topic that nobody writes to is collected by maintenance once in so many graces
    standby_s: float = 2.0  # how often a maintainer that stands by looks whether it is needed
    failing_s: float = 3600.0  # how long maintenance waits at most before it tries again what has failed
    stuck_s: float = 600.0  # a maintainer that makes no step for so long does not count as alive
    clock_slack_ms: int = 60_000  # how far a writer's clock may be from ZooKeeper's before it is not believed
    nodes_per_delete: int = 500
    topics_together: int = 100  # that one transaction appends to: more would not fit into one that ZooKeeper takes
    repair_jump: int = 1_000  # a repaired topic goes on so many ledgers, commits and epochs after the last known ones
    repair_token_jump: int = 1 << 40  # and so many tokens
    token_chunk: int = 1 << 20  # tokens in one bitmap of what is consumed
    token_block: int = 1 << 16  # tokens in one minted node, at most
    inline_bitmap_bytes: int = 64  # a longer bitmap is kept in a node of its own,
    inline_bitmaps: int = 16  # and so are the oldest if there are more
    node_bitmap_bytes: int = 8_000  # a bitmap that is longer than this is kept in a file
    entity_bytes: int = 100_000  # and so is an entity
    past_runs: int = 16
    append_deadline_s: float = 120.0
    change_deadline_s: float = 120.0  # for finding out whether a change was applied
    change_attempts: int = 200  # how often somebody else may be faster before a change gives up
    look_attempts: int = 50  # how often a ledger may be sealed while it is read: that happens once in 1,000 commits
    purge_attempts: int = 5  # rounds of deleting what is left of a topic, while late writers add to it
    attach_grace_s: float = 5.0  # how much longer than its time-out a server may take to end a session
    attach_poll_s: float = 0.1
    waiting_log_s: float = 30.0  # how often somebody who waits writes a log line
    races: int = 2  # that a writer loses before it waits for its turn
    requests_at_once: int = 100  # of writers that wait, which one of them commits together
    request_bytes: int = 8_000  # of records that a request brings along: a writer with more writes its own file,
    request_rows: int = 1_000  # and so does one with more records
    answers: int = 128  # of those, kept for writers that are slow to look
    patience_s: float = 0.5  # how long who waits leaves it to the one who last committed for others, at most
    turn_s: float = 2.0  # a writer that does not take its turn for so long has to queue again
    identities: int = 16  # that have roles: each is in the access list of every node
    leftover_s: float = 60.0  # for how long a request whose answer was lost may still arrive


DEFAULT_LIMITS = Limits()
