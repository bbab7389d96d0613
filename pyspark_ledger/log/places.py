"""Places in a topic: what people give (earliest, latest, a position, a time, an offset) and the position that it means.

Spark's options, the client, the command line and cursors all do it in this way: :func:`parse` what was given, then
:func:`resolve` it for a read, or :func:`settle` it for a cursor, which must be at a record or at the end.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.errors import DataLoss, InvalidInput
from pyspark_ledger.log import scan

if TYPE_CHECKING:  # only for types: options are parsed where there is no log
    from pyspark_ledger.log.log import Log, View

OFFSET_FORMAT = 1  # of the offsets that Spark keeps in its checkpoints


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a topic as it was given: exactly one of a word, a position and a publish time."""

    word: Literal["", "earliest", "latest"] = ""
    position: Position | None = None
    uuid: str = ""  # of the topic that the position belongs to, if it came in an offset
    publish_ms: int | None = None


PlaceLike = str | Position | datetime | Place  # what callers may give


@dataclass(frozen=True, slots=True)
class Settled:
    """The position of a cursor that was moved to a place. ``exact`` is False if the place was a position that has no
    record (a masked row, or past the end): then this is the next position that has one, or the end."""

    position: Position
    exact: bool


# -- parsing ------------------------------------------------------------------------------------------------------


def parse(given: PlaceLike, what: str = "place in a topic") -> Place:
    """The place that was given. InvalidInput if it is none; ``what`` says in the message what it was needed for."""
    if isinstance(given, Place):
        return given
    if isinstance(given, Position):
        return Place(position=given)
    if isinstance(given, datetime):
        return Place(publish_ms=_milliseconds(given))
    place = (parse_offset(given) or _parse_iso(given)) if isinstance(given, str) else None
    if place is None:
        raise InvalidInput(
            f"{given!r} is no {what}: use earliest, latest, a position as 3:17:0, or a time in ISO 8601",
            "LEDGER_INVALID_POSITION",
        )
    return place


def parse_offset(text: str) -> Place | None:
    """earliest, latest, a position, or an offset's JSON; None if it is none of these."""
    text = text.strip()
    if text.lower() == "earliest":
        return Place(word="earliest")
    if text.lower() == "latest":
        return Place(word="latest")
    try:
        offset: dict[str, Any] = json.loads(text) if text.startswith("{") else {"pos": text}
        if offset.get("v", OFFSET_FORMAT) <= OFFSET_FORMAT:
            return Place(position=Position.parse(offset["pos"]), uuid=str(offset.get("topic", "")))
    except (ValueError, KeyError, TypeError, InvalidInput):
        return None
    raise InvalidInput(
        f"'{text}' is an offset of format {offset['v']}, this version knows {OFFSET_FORMAT}: upgrade pyspark-ledger",
        "LEDGER_NEWER_FORMAT",
    )


def parse_time(text: str) -> Place | None:
    """ISO 8601 or milliseconds since 1970; None if it is neither."""
    return Place(publish_ms=int(text)) if re.fullmatch(r"\s*-?\d+\s*", text) else _parse_iso(text)


def _parse_iso(text: str) -> Place | None:
    with contextlib.suppress(ValueError):
        return Place(publish_ms=_milliseconds(datetime.fromisoformat(text.strip())))
    return None


def _milliseconds(moment: datetime) -> int:
    """UTC, unless it says otherwise."""
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


# -- what it means ------------------------------------------------------------------------------------------------


def resolve(log: Log, view: View, given: PlaceLike) -> Position:
    """The position where a read starts or ends. A time means the first record published at or after it. A position past
    the end is refused: if a reader was there before, records were lost, and it must know."""
    place = parse(given)
    if place.publish_ms is not None:
        return at_time(log, view, place.publish_ms)
    if place.position is None:
        return earliest(view) if place.word == "earliest" else view.head.end
    check_topic(log, place)
    if place.position > view.head.end:
        view = log.refresh(sync=True)  # the server that answered first may be behind
    if place.position > view.head.end:
        raise DataLoss(
            f"position {place.position} is past the end {view.head.end} of topic '{log.topic.name}': it was never "
            "there, or ZooKeeper was rolled back to an older state and commits were lost",
            "LEDGER_POSITION_PAST_END",
        )
    return place.position


def settle(log: Log, view: View, given: PlaceLike) -> Settled:
    """The position of a cursor that is moved to a place: the record that is there, or the next one, or the end."""
    place = parse(given)
    if place.position is None:
        wanted = resolve(log, view, place)
    else:
        check_topic(log, place)
        wanted = min(place.position, view.head.end)
    settled = min(scan.position_at(log, view, scan.records_before(log, view, wanted)), view.head.end)
    return Settled(settled, exact=place.position in (None, settled))


def earliest(view: View) -> Position:
    """The first position that can be read."""
    return EARLIEST


def at_time(log: Log, view: View, publish_ms: int) -> Position:
    """The first record published at or after a time; the end if there is none."""
    commit = log.commit_at_time(view, publish_ms)
    return view.head.end if commit is None else Position(commit.ledger, commit.first_entry, 0)


def check_topic(log: Log, place: Place) -> None:
    """An offset must belong to this very topic, not to one that had its name before."""
    if place.uuid and place.uuid != log.topic.uuid:
        log.refresh(sync=True)  # if it is this one that was deleted, that is the better answer
        raise InvalidInput(
            f"the offset belongs to the topic {place.uuid}, '{log.topic.name}' is {log.topic.uuid}",
            "LEDGER_TOPIC_RECREATED",
        )
