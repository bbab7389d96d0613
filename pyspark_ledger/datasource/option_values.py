"""The values of Spark's options: each parser takes the option's name and its text, and says what would be right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from pyspark_ledger.base import names
from pyspark_ledger.base.limits import MOST_TOPICS
from pyspark_ledger.base.sizes import parse_size
from pyspark_ledger.datasource.executor.reading import METADATA_TYPE
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log import places
from pyspark_ledger.log.places import Place

_INT64 = 1 << 63


def invalid(option: str, value: object, expected: str) -> InvalidInput:
    return InvalidInput(f"option '{option}' is '{value}': {expected}", "LEDGER_INVALID_OPTION")


def paths(text: str) -> list[Any]:
    """Spark's own spelling of .load("a", "b")."""
    try:
        paths = json.loads(text)
    except (ValueError, RecursionError):
        paths = None
    if not isinstance(paths, list):
        raise invalid("paths", text, "it must be a JSON list of topics' names")
    return paths


def offsets(option: str, text: str, topics: Sequence[str]) -> list[Place]:
    found = [_offset(option, text, topic) for topic in topics]
    for topic, place in zip(topics, found, strict=True):
        if len(topics) > 1 and place.position is not None and place.topic != topic:
            raise invalid(
                option, text, f"it says nothing of topic '{topic}'. A position belongs to one topic: for several, use "
                "earliest, latest, a time, or an offset's JSON with all of them"
            )  # fmt: skip
    return found


def _offset(option: str, text: str, topic: str) -> Place:
    try:
        place = places.parse_offset(text, topic)
    except InvalidInput as wrong:
        raise InvalidInput(f"option '{option}': {wrong.message}", wrong.code) from None
    if place is None:
        raise invalid(option, text, "use earliest, latest, a position such as 3:17:0, or an offset's JSON")
    return place


def topic_names(option: str, text: str) -> tuple[str, ...]:
    topics = tuple(part.strip() for part in text.split(","))
    if not all(topics) or len(set(topics)) != len(topics):
        raise invalid(option, text, "it must be topics' names, each once, with commas between")
    if len(topics) > MOST_TOPICS:
        raise invalid(option, f"{text[:40]}…", f"{len(topics)} topics, and a query reads {MOST_TOPICS} at most")
    return tuple(map(names.check_topic_name, topics))


def timestamp(option: str, text: str) -> Place:
    place = places.parse_time(text)
    if place is None:
        raise invalid(option, text, "use ISO 8601, as in 2026-11-01T00:00:00Z, or milliseconds since 1970")
    return place


def integer(option: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise invalid(option, text, "it must be a whole number") from None
    if not -_INT64 <= number < _INT64:
        raise invalid(option, text, "it must be a number of 64 bits")
    return number


def positive(option: str, text: str) -> int:
    number = integer(option, text)
    if number < 1:
        raise invalid(option, text, "it must be at least 1")
    return number


def size(option: str, text: str) -> int:
    size = parse_size(text)
    if size is None:
        raise invalid(option, text, "it must be a number of bytes, as in 67108864 or 64m")
    return size


def duration(option: str, text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h)?", text.strip().lower())
    if match is None:
        raise invalid(option, text, "it must be a duration, as in 500ms, 30s, 15m or 1h")
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2] or "s"]


def boolean(option: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise invalid(option, text, "it must be true or false")
    return text.strip().lower() == "true"


def metadata_fields(option: str, text: str) -> tuple[str, ...]:
    """Which fields of it: ``true`` stands for all."""
    fields = METADATA_TYPE.names
    if text.strip().lower() in ("true", "false"):
        return tuple(fields) if boolean(option, text) else ()
    known = {name.lower(): name for name in fields}
    asked = [name.strip().lower() for name in text.split(",")]
    if not all(name in known for name in asked):
        raise invalid(option, text, f"it must be true or false, or some of the fields {', '.join(fields)}")
    return tuple(known[name] for name in asked)


def nonempty(option: str, text: str) -> str:
    if not text.strip():
        raise invalid(option, text, "it must not be empty")
    return text.strip()


def subscription_name(_: str, text: str) -> str:
    return names.check_subscription_name(text.strip())


def topic_name(_: str, text: str) -> str:
    return names.check_topic_name(text.strip())


def group_name(_: str, text: str) -> str:
    return names.check_group_name(text.strip())


def columns(option: str, text: str) -> tuple[str, ...]:
    columns = tuple(part.strip() for part in text.split(","))
    if not all(columns) or len(set(columns)) != len(columns):
        raise invalid(option, text, "it must be column names, each once, with commas between")
    return columns


def one_of(*allowed: str) -> Callable[[str, str], str]:
    def parse(option: str, text: str) -> str:
        if text.strip().lower() not in allowed:
            raise invalid(option, text, f"it must be one of {', '.join(allowed)}")
        return text.strip().lower()

    return parse
