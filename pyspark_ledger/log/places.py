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
from pyspark_ledger.log import scan, trimmed

if TYPE_CHECKING:  # only for types: options are parsed where there is no log
    from pyspark_ledger.log.log import Log, View
    from pyspark_ledger.metadata.records import Commit

OFFSET_FORMAT = 2  # of the offsets that Spark keeps in its checkpoints
SEEN_BYTES = 4  # of an id: enough to tell two histories of a log apart
_SEEN = re.compile(rf"([0-9]{{1,18}}):([0-9a-f]{{{2 * SEEN_BYTES}}})")
_MILLISECONDS = re.compile(r"-?[0-9]{1,19}")  # the largest long stands for "no end"


@dataclass(frozen=True, slots=True)
class SeenCommit:
    """A commit as an offset names it, written ``17:0a1b2c3d``: its number, and how its id begins. After a rollback of
    ZooKeeper another commit may have the number, but not the id."""

    number: int
    id: bytes

    def __str__(self) -> str:
        return f"{self.number}:{self.id.hex()}"

    @classmethod
    def of(cls, commit: Commit) -> SeenCommit:
        return cls(commit.number, commit.id[:SEEN_BYTES])

    @classmethod
    def parse(cls, text: str) -> SeenCommit:
        match = _SEEN.fullmatch(text)
        if match is None:
            raise InvalidInput(f"{text!r} is not a commit of an offset, as in 17:0a1b2c3d", "LEDGER_INVALID_POSITION")
        return cls(int(match[1]), bytes.fromhex(match[2]))


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a topic as it was given: exactly one of a word, a position and a publish time."""

    word: Literal["", "earliest", "latest"] = ""
    position: Position | None = None
    uuid: str = ""  # of the topic that the position belongs to, if it came in an offset
    topic: str = ""  # and that topic's name, which offsets of version 1 do not have
    publish_ms: int | None = None
    commit: SeenCommit | None = None  # the last one before the position, if it came in an offset


PlaceLike = str | Position | datetime | Place  # what callers may give


@dataclass(frozen=True, slots=True)
class Settled:
    """The position of a cursor that was moved to a place. ``exact`` is False if the place was a position that has no
    record (a masked row, past the end, or given up): then this is the next position that has one, or the end."""

    position: Position
    exact: bool


# -- parsing ------------------------------------------------------------------------------------------------------


def parse(given: PlaceLike, what: str = "place in a topic", topic: str = "") -> Place:
    """The place that was given. InvalidInput if it is none; ``what`` says in the message what it was needed for. Of an
    offset of several topics, what it says of ``topic``."""
    if isinstance(given, Place):
        return given
    if isinstance(given, Position):
        return Place(position=given)
    if isinstance(given, datetime):
        return Place(publish_ms=_milliseconds(given))
    place = (parse_offset(given, topic) or _parse_iso(given)) if isinstance(given, str) else None
    if place is None:
        raise InvalidInput(
            f"{given!r} is no {what}: use earliest, latest, a position as 3:17:0, an offset's JSON, or a time "
            "in ISO 8601",
            "LEDGER_INVALID_POSITION",
        )
    return place


def parse_offset(text: str, topic: str = "") -> Place | None:
    """earliest, latest, a position, or what an offset's JSON says of a topic; None if it is none of these."""
    text = text.strip()
    if text.lower() == "earliest":
        return Place(word="earliest")
    if text.lower() == "latest":
        return Place(word="latest")
    try:
        offset: dict[str, Any] = json.loads(text) if text.startswith("{") else {"pos": text}
        name, fields = part_of({"v": 1, "topic": "", **offset}, topic, f"the offset {text}")
        commit = SeenCommit.parse(fields["commit"]) if "commit" in fields else None
        return Place(position=Position.parse(fields["pos"]), uuid=str(fields["id"]), topic=name, commit=commit)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    except InvalidInput as error:
        if error.code == "LEDGER_INVALID_POSITION":
            return None
        raise


def parts_of(offset: dict[str, Any], what: str) -> dict[str, dict[str, Any]]:
    """What the JSON of an offset says about each of its topics, by name, with the fields as of version 2. Version 1 had
    those of its one topic beside the version, and no name: then that is empty. KeyError and the like if it is no
    offset; InvalidInput if it is of a newer version, and then ``what`` says which."""
    version = offset["v"]
    if version > OFFSET_FORMAT:
        raise InvalidInput(
            f"{what} is of format {version}, this version knows {OFFSET_FORMAT}: upgrade pyspark-ledger",
            "LEDGER_NEWER_FORMAT",
        )
    if version == 1:
        return {"": {**offset, "id": offset["topic"]}}
    if version != OFFSET_FORMAT:
        raise ValueError(f"there is no format {version}")
    topics = offset["topics"]
    if not topics or not all(isinstance(fields, dict) for fields in topics.values()):
        raise ValueError("it says nothing of a topic")
    return dict(topics)


def part_of(offset: dict[str, Any], topic: str, what: str) -> tuple[str, dict[str, Any]]:
    """The name and the fields of a topic in an offset. An offset of one topic is taken whatever name it has: who uses
    it compares the topics' ids, and says more."""
    parts = parts_of(offset, what)
    if topic in parts:
        return topic, parts[topic]
    if len(parts) > 1:
        wanted = f"'{topic}' is not one of them" if topic else "give what it says of one of them"
        raise InvalidInput(f"{what} is of several topics, {', '.join(sorted(parts))}: {wanted}")
    ((name, fields),) = parts.items()
    return name, fields


def parse_time(text: str) -> Place | None:
    """ISO 8601 or milliseconds since 1970; None if it is neither."""
    if not _MILLISECONDS.fullmatch(text.strip()):
        return _parse_iso(text)
    return Place(publish_ms=int(text)) if -(2**63) <= int(text) < 2**63 else None


def _parse_iso(text: str) -> Place | None:
    with contextlib.suppress(ValueError):
        return Place(publish_ms=_milliseconds(datetime.fromisoformat(text.strip())))
    return None


def _milliseconds(moment: datetime) -> int:
    """UTC, unless it says otherwise."""
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


# -- what it means ------------------------------------------------------------------------------------------------


def resolve(log: Log, view: View, given: PlaceLike, *, compacted: bool = False) -> Position:
    """The position where a read starts or ends. A time means the first record published at or after it. A position past
    the end is refused: if a reader was there before, records were lost, and it must know. Who reads from a position
    that retention has given up is told so then. A ``compacted`` read still finds records from before the place where
    the log begins, in a generation: for it, what lies before that place is not gone."""
    place = parse(given)
    first = EARLIEST if compacted and view.head.generation is not None else earliest(view)
    if place.publish_ms is not None:
        found = at_time(log, view, place.publish_ms)
        return first if found == earliest(view) else found
    if place.position is None:
        return first if place.word == "earliest" else view.head.end
    check_topic(log, place)
    if place.position > view.head.end:
        view = log.refresh(sync=True)  # the server that answered first may be behind
    if place.position > view.head.end:
        raise DataLoss(
            f"position {place.position} is past the end {view.head.end} of topic '{log.topic.name}': it was never "
            "there, or ZooKeeper was rolled back to an older state and commits were lost",
            "LEDGER_POSITION_PAST_END",
        )
    check_seen(log, place)
    return place.position


def check_seen(log: Log, place: Place) -> None:
    """DataLoss if an offset knows a commit that the log does not have. It was given by a person, who may have mistyped
    it: so, other than for a checkpoint, nothing is written into the head because of it."""
    seen = place.commit
    if seen is None or log.has_commit(log.view(), seen.number, seen.id):
        return
    if not log.has_commit(log.refresh(sync=True), seen.number, seen.id):
        raise DataLoss(
            f"the offset knows commit {seen} of topic '{log.topic.name}', which is another one or not there: ZooKeeper "
            "was rolled back to an older state and commits were lost, or the offset was changed by hand. To use its "
            f"position all the same, give only that: {place.position}",
            "LEDGER_SET_BACK",
        )


def settle(log: Log, view: View, given: PlaceLike, *, compacted: bool = False) -> Settled:
    """The position of a cursor that is moved to a place: the record that is there, or the next one, or the end. One
    for ``compacted`` reads stays at a place from before the log begins: a generation still has what was there."""
    place = parse(given)
    if place.position is None:
        wanted = resolve(log, view, place, compacted=compacted)
    else:
        check_topic(log, place)
        wanted = min(place.position, view.head.end)
    if wanted < earliest(view):
        if compacted and view.head.generation is not None:
            return Settled(wanted, exact=True)
        wanted = earliest(view)
    settled = min(scan.position_at(log, view, scan.records_before(log, view, wanted)), view.head.end)
    return Settled(settled, exact=place.position in (None, settled))


def earliest(view: View) -> Position:
    """The first position that can be read."""
    return trimmed.begin(view.head)


def at_time(log: Log, view: View, publish_ms: int) -> Position:
    """The first record published at or after a time; the end if there is none."""
    commit = log.commit_at_time(view, publish_ms)
    return view.head.end if commit is None else Position(commit.ledger, commit.first_entry, 0)


def check_topic(log: Log, place: Place) -> None:
    """An offset must belong to this very topic, not to one that had its name before."""
    if place.uuid and place.uuid != log.topic.uuid:
        log.refresh(sync=True)  # if it is this one that was deleted, that is the better answer
        known = f"'{place.topic}' ({place.uuid})" if place.topic else place.uuid
        raise InvalidInput(
            f"the offset belongs to the topic {known}, and '{log.topic.name}' is {log.topic.uuid}: give an offset of "
            "this topic, or a position as 3:17:0. Offsets of a topic that was deleted mean nothing in one that has its "
            "name now",
            "LEDGER_TOPIC_RECREATED",
        )
