"""A topic's policies, as people read and write them: durations, sizes, and the word never."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pyspark_ledger.base.durations import parse_duration, spelled_duration
from pyspark_ledger.base.sizes import parse_size, spelled_size
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.metadata.records import Policies

NEVER = "never"
Quota = tuple[int | None, float | None]  # bytes and seconds; None: any number


def policies(policies: Policies) -> Mapping[str, Any]:
    return {
        "deduplication": "default" if policies.deduplication is None else policies.deduplication,
        "snapshot_commits": policies.snapshot_commits or "default",
        "evict_producers_after": time_or_never(policies.evict_producers_ms),
        "retention_age": time_or_never(policies.retention_ms),
        "retention_bytes": bytes_or_never(policies.retention_bytes),
        "backlog_quota": _quota(policies),
        "backlog_action": "evict" if policies.evict_backlog else "hold",
        "expire_subscriptions_after": time_or_never(policies.expire_subscriptions_ms),
        "compact_after": bytes_or_never(policies.compact_after_bytes),
        "rewrite_below": bytes_or_never(policies.rewrite_below_bytes),
    }


def _quota(policies: Policies) -> str:
    limits = bytes_or_never(policies.backlog_bytes), time_or_never(policies.backlog_ms)
    return ",".join(limit for limit in limits if limit != NEVER) or NEVER


def time_or_never(milliseconds: int) -> str:
    """A policy as it is stored, as it is given."""
    return spelled_duration(milliseconds / 1000) if milliseconds else NEVER


def bytes_or_never(count: int) -> str:
    return spelled_size(count) if count else NEVER


def parse_quota(text: str) -> Quota:
    """A size, a time or both. All of the quota is said at once: a part that is left out is no limit."""
    if text == NEVER:
        return None, None
    sizes: list[int] = []
    times: list[float] = []
    for part in text.split(","):
        seconds = parse_duration(part)  # looked at first: 5m is five minutes here
        found = parse_size(part) if seconds is None else None
        if seconds is None and found is None:
            raise InvalidInput(f"'{part}' is neither a size nor a time: write 100GB, 7d, both as 100GB,7d or never")
        times += [] if seconds is None else [seconds]
        sizes += [] if found is None else [found]
    if len(sizes) > 1 or len(times) > 1:
        raise InvalidInput(f"'{text}' says twice how much, or how long: write one size, one time, or both")
    return (sizes[0] if sizes else None), (times[0] if times else None)


# -- what is to be changed, as the client takes it ---------------------------------------------------------------

_TIMES = ("evict_producers_after", "retention_age", "expire_subscriptions_after")
_SIZES = {
    "retention_bytes": "retention_bytes",
    "compact_after": "compact_after_bytes",
    "rewrite_below": "rewrite_below_bytes",
}


def changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """From values that were parsed: seconds, bytes, or never."""
    found: dict[str, Any] = {name: given[name] for name in ("snapshot_commits", "backlog_action") if name in given}
    found |= {name: _time(given[name]) for name in _TIMES if name in given}
    found |= {field: _size(given[name]) for name, field in _SIZES.items() if name in given}
    if "deduplication" in given:
        found["deduplication"] = {"true": True, "false": False, "default": None}[given["deduplication"]]
    if "backlog_quota" in given:
        size, seconds = given["backlog_quota"]
        found |= {"backlog_quota_bytes": size, "backlog_quota_age": _time(seconds)}
    return found


def _time(seconds: float | str | None) -> timedelta | None:
    return timedelta(seconds=seconds) if isinstance(seconds, float) else None


def _size(size: int | str) -> int | None:
    return size if isinstance(size, int) else None


def parse(texts: Mapping[str, str]) -> dict[str, Any]:
    """From texts, as a form has them: what :func:`changes` gives."""
    return changes({name: _parsed(name, text.strip()) for name, text in texts.items()})


def _parsed(name: str, text: str) -> Any:
    if name == "backlog_quota":
        return parse_quota(text)
    if name == "snapshot_commits":
        if text != "default" and not (text.isascii() and text.isdigit() and len(text) < 10):
            raise _wrong(name, text, "a whole number of commits, or default")
        return 0 if text == "default" else int(text)
    if name == "deduplication":
        return _one_of(name, text.lower(), ("true", "false", "default"))
    if name == "backlog_action":
        return _one_of(name, text, ("hold", "evict"))
    if name not in (*_TIMES, *_SIZES):
        raise InvalidInput(f"there is no policy '{name}'", "LEDGER_INVALID_POLICY")
    found = text if text == NEVER else parse_duration(text) if name in _TIMES else parse_size(text)
    if not found:
        raise _wrong(name, text, f"{'30s, 10m, 1h or 7d' if name in _TIMES else '64MB or 500GB'}, or never")
    return found


def _one_of(name: str, text: str, words: tuple[str, ...]) -> str:
    if text not in words:
        raise _wrong(name, text, " or ".join(words))
    return text


def _wrong(name: str, text: str, wanted: str) -> InvalidInput:
    return InvalidInput(f"{name} is '{text}': write {wanted}", "LEDGER_INVALID_POLICY")
