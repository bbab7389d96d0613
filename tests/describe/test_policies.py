"""Policies as people write them are read back as they were, and what is none is told with its name."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pyspark_ledger.base.durations import parse_duration, spelled_duration
from pyspark_ledger.describe import policies
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.metadata.records import Policies


def test_what_is_shown_is_what_can_be_given():
    some = Policies(True, 500, 86_400_000, 7 * 86_400_000, 5 << 30, 1 << 30, 3_600_000, True, 60_000, 1 << 20, 4 << 20)
    shown = {name: str(value).lower() for name, value in policies.policies(some).items()}
    assert policies.parse(shown) == {
        "deduplication": True,
        "snapshot_commits": 500,
        "evict_producers_after": timedelta(days=1),
        "retention_age": timedelta(days=7),
        "retention_bytes": 5 << 30,
        "backlog_quota_bytes": 1 << 30,
        "backlog_quota_age": timedelta(hours=1),
        "backlog_action": "evict",
        "expire_subscriptions_after": timedelta(minutes=1),
        "compact_after_bytes": 1 << 20,
        "rewrite_below_bytes": 4 << 20,
    }
    nothing = {name: str(value).lower() for name, value in policies.policies(Policies()).items()}
    given = policies.parse(nothing)
    assert {value for name, value in given.items() if name not in ("snapshot_commits", "backlog_action")} == {None}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention_age", "7"), ("retention_age", "0s"), ("retention_age", ""), ("retention_bytes", "7d"),
        ("retention_bytes", "-1"), ("backlog_quota", "1GB,2GB"), ("backlog_quota", "x"), ("backlog_action", "keep"),
        ("deduplication", "yes"), ("snapshot_commits", "-5"), ("snapshot_commits", "1e3"), ("retention", "7d"),
    ],
)  # fmt: skip
def test_what_is_no_policy_is_told(name, text):
    with pytest.raises(InvalidInput) as refused:
        policies.parse({name: text})
    assert text in refused.value.message or name in refused.value.message


@pytest.mark.parametrize("text", ["30s", "10m", "1h", "7d", "90s", "0.5s"])
def test_a_duration_is_spelled_so_that_it_is_read_back(text):
    assert parse_duration(spelled_duration(parse_duration(text))) == parse_duration(text)
