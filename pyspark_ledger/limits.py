"""Every bound in one place. Tests make them small; nobody else should need to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    commits_per_ledger: int = 1_000
    bytes_per_ledger: int = 256 << 30
    ledger_age_ms: int = 24 * 3600 * 1000
    index_fanout: int = 1_000  # rows in one index file: a million commits need two levels, a billion three
    inline_entries: int = 16  # more than these go to a file that the commit names
    inline_mask_bytes: int = 512  # likewise
    inline_producers_bytes: int = 100_000
    acks_bytes: int = 500_000  # of one cursor: at least 125,000 gaps between acknowledged records
    remembered_operations: int = 16
    remembered_revisions: int = 16
    kept_generations: int = 3  # compactions that a planned batch may still read
    nodes_per_delete: int = 500
    past_runs: int = 16
    append_deadline_s: float = 120.0


DEFAULT_LIMITS = Limits()
