"""What a history is: what processes asked of a log, and what they were told.

Every process writes a file of its own, a line of JSON for each event (:mod:`.recorder`); the files together are the
history, and :mod:`.checker` looks for what must never be in one.

A *value* names a record: no two records that are sent to a topic have the same, unless one is the other, sent again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.errors import InvalidInput

Told = Literal["ok", "refused", "fenced", "unknown"]
"""What the caller was told: done; not done; not done, and another has taken over; nothing that it can rely on."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record, as it was asked for or as it was read.

    Attributes:
        value: the record's name, unique in its topic.
        position: where it is, if that is known.
        key: its key, in a topic with keys.
        deletes: whether it is a tombstone.
        token: what it consumes. In a send that was told ``ok``, a row with a token and no position was left out,
            because the token was gone.
    """

    value: str
    position: Position | None = None
    key: str | None = None
    deletes: bool = False
    token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One call and its answer.

    Attributes:
        process: who asked. A process asks one thing after the other; one that is started anew has another name.
        number: events of a process are numbered in the order in which it asked.
        asked_at, told_at: in seconds, on a clock that all processes share; no ``told_at``: it was never answered.
        told: the answer.
        error: in words, for the report.
        role: as what the process acts, such as a producer's run or a consumer: being fenced ends a role.
        topic: of which topic.
    """

    process: str = ""
    number: int = 0
    asked_at: float = 0.0
    told_at: float | None = None
    told: Told = "unknown"
    error: str = ""
    role: str = ""
    topic: str = ""

    @property
    def is_ok(self) -> bool:
        return self.told == "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Event):
    """Records that become visible together. Told ``ok``: all of them are in the log, now or from before.

    Attributes:
        rows: what was sent, in order; in the answer with positions, where those are told.
        producer: under which name; empty if it has none.
        sequence: the number that the producer gave it.
        group: the token group, if the rows have tokens.
        together: names a transaction over several topics: what has the same name is done as a whole, or not at all.
    """

    rows: tuple[Row, ...] = ()
    producer: str = ""
    sequence: int | None = None
    group: str = ""
    together: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(Event):
    """Records that a reader, a consumer or a batch of a Spark query was given.

    Attributes:
        rows: in the order in which they came, with positions.
        reader: what goes on where it stopped: a query with its checkpoint, also over restarts; otherwise a reader
            lives and dies with its process.
        subscription, revision, epoch: under which they were read, if by a subscription.
        batch: the number of the batch, in a Spark query. The same batch must read the same for ever.
        discarded: a reset has voided the batch by name, so that it reads nothing.
        again: these are redelivered one by one, out of order, as the consumer says.
        shared: others share the subscription, and these are only some of the records. What came to nobody before a
            reset may have been on its way to another.
        keyed: they share it by key: the records of one key come in order, to one consumer at a time.
        compacted: only the last record of every key need come.
        start, end: what was asked for, if that is known: from ``start`` to before ``end``.
    """

    rows: tuple[Row, ...] = ()
    reader: str = ""
    subscription: str = ""
    revision: int = 0
    epoch: int = 0
    batch: int | None = None
    discarded: bool = False
    again: bool = False
    shared: bool = False
    keyed: bool = False
    compacted: bool = False
    start: Position | None = None
    end: Position | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge(Event):
    """Records are said to be handled: everything before ``upto``, and the single ``positions``.

    Attributes:
        revision: under which they were read.
        moved: told: whether the cursor has it. False: it does not count, the subscription was reset since. None: the
            consumer has noted it, and writes it later.
        together: the transaction of which it is a part, as of a :class:`Send`.
    """

    subscription: str = ""
    revision: int = 0
    upto: Position | None = None
    positions: tuple[Position, ...] = ()
    moved: bool | None = None
    together: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Event):
    """A consumer gives records back: they are to come again."""

    subscription: str = ""
    positions: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(Event):
    """A subscription is moved; its revision rises.

    Attributes:
        to: where to; in the answer, where it is now.
        revision: told: the new one.
        keeps_acks: what was acknowledged one by one after the new position stays so, as after a skip.
        repeated: the call was repeated, with the same operation id, until it was answered: then ``to`` is where the
            subscription was by that time, which may be after where the reset had put it.
    """

    subscription: str = ""
    to: Position = EARLIEST
    revision: int | None = None
    keeps_acks: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorSeen(Event):
    """Somebody looked at a subscription, with a synced read: everything before ``mark_delete`` is done."""

    subscription: str = ""
    revision: int = 0
    mark_delete: Position = EARLIEST


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters(Event):
    """Somebody read all dead letters of a subscription. ``rows``: the records that died, where they are in the topic of
    the subscription; without a value (``""``) where the letter does not tell it."""

    subscription: str = ""
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedRead(Event):
    """The state of a topic: the value of every key, from the records before ``end``."""

    end: Position = EARLIEST
    state: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSeen(Event):
    """Somebody looked at what is compacted, with a synced read."""

    generation: int = 0
    horizon: Position = EARLIEST


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalLog(Event):
    """The whole log, read when nobody wrote any more. What was before ``start`` had been trimmed."""

    rows: tuple[Row, ...] = ()
    start: Position = EARLIEST


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTokens(Event):
    """Which tokens of a group are still there, when nobody consumes any more; all others are gone."""

    group: str = ""
    present: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalFiles(Event):
    """Which files are named by ZooKeeper, and which are there."""

    named: tuple[str, ...] = ()
    present: tuple[str, ...] = ()


KINDS: dict[str, type[Event]] = {
    "send": Send,
    "poll": Poll,
    "acknowledge": Acknowledge,
    "refuse": Refuse,
    "dead-letters": DeadLetters,
    "reset": Reset,
    "cursor": CursorSeen,
    "compacted": CompactedRead,
    "compaction": CompactionSeen,
    "final-log": FinalLog,
    "final-tokens": FinalTokens,
    "final-files": FinalFiles,
}
_NAMES = {kind: name for name, kind in KINDS.items()}
_FIELDS = {kind: [(field.name, field.default) for field in fields(kind)] for kind in KINDS.values()}
_HINTS = {kind: get_type_hints(kind) for kind in KINDS.values()}
_POSITIONS = {"start", "end", "upto", "to", "mark_delete", "horizon"}
_UNSAID: tuple[object, ...] = (None, None, False, None)  # what is left out at the end of a row


# -- as lines ------------------------------------------------------------------------------------------------------


def to_line(event: Event) -> str:
    """The event as one line of JSON, without what is as by default."""
    said = ((name, getattr(event, name), default) for name, default in _FIELDS[type(event)])
    plain = {name: _plain(name, value) for name, value, default in said if value != default}
    return json.dumps({"kind": _NAMES[type(event)], **plain}, separators=(",", ":"))


def from_line(line: str) -> Event:
    """The event that a line holds. Raises InvalidInput if it holds none."""
    try:
        said = json.loads(line)
        name = said.pop("kind", None)
        kind = KINDS.get(name)
        if kind is None:
            raise ValueError(f"its kind is {name!r}: there are {', '.join(KINDS)}")
        unknown = [name for name in said if name not in _HINTS[kind]]
        if unknown:
            raise ValueError(f"it has a field '{unknown[0]}', and a {name} has none")
        found = {name: _parsed(name, value) for name, value in said.items()}
        for name, value in found.items():
            if not _is(value, _HINTS[kind][name]):
                raise TypeError(f"{name} is {value!r}")
        return kind(**found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"not an event of a history: {error}") from None


def _is(value: Any, hint: Any) -> bool:
    """Whether a field may have this value."""
    if hint in (int, bool):
        return type(value) is hint
    if hint is float:
        return type(value) is int or (isinstance(value, float) and math.isfinite(value))
    if isinstance(hint, type):
        return _is_row(value) if hint is Row else isinstance(value, hint)
    kinds = get_args(hint)
    if get_origin(hint) is Literal:
        return value in kinds
    if get_origin(hint) is not tuple:  # one of several
        return any(_is(value, kind) for kind in kinds)
    if kinds[-1] is not ...:
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_is, value, kinds))
    return isinstance(value, tuple) and all(_is(each, kinds[0]) for each in value)


def _is_row(row: Any) -> bool:
    """Said at length, because there may be very many."""
    return (
        isinstance(row, Row)
        and isinstance(row.value, str)
        and (row.key is None or isinstance(row.key, str))
        and isinstance(row.deletes, bool)
        and (row.token is None or isinstance(row.token, str))
    )


def _plain(name: str, value: Any) -> Any:
    if name == "rows":
        return [_plain_row(row) for row in value]
    if name == "positions":
        return [str(position) for position in value]
    return str(value) if name in _POSITIONS else value


def _plain_row(row: Row) -> list[Any]:
    said = [row.value, row.position and str(row.position), row.key, row.deletes, row.token]
    while len(said) > 1 and said[-1] == _UNSAID[len(said) - 2]:
        said.pop()
    return said


def _parsed(name: str, value: Any) -> Any:
    if name == "rows":
        return tuple(_parsed_row(*row) for row in value)
    if name == "positions":
        return tuple(Position.parse(text) for text in value)
    if name == "state":
        return tuple((key, item) for key, item in value)
    if name in _POSITIONS:
        return None if value is None else Position.parse(value)
    return tuple(value) if isinstance(value, list) else value


def _parsed_row(value: str, position: str | None = None, *rest: Any) -> Row:
    return Row(value, None if position is None else Position.parse(position), *rest)


# -- as files ------------------------------------------------------------------------------------------------------


def load(files: Iterable[str | Path]) -> list[Event]:
    """The history that several processes have written, each into a file of its own.

    An event is there twice, before and after its answer; the later line counts. A process that was killed leaves a
    question without an answer, which is unknown, and perhaps half a line at the end. Raises InvalidInput for anything
    else that is no event, with its file and line.
    """
    found: dict[tuple[str, int], Event] = {}
    for file in files:
        for event in _load(Path(file)):
            found[event.process, event.number] = event
    return merge(found.values())


def merge(events: Iterable[Event]) -> list[Event]:
    """In the order in which they were asked; of each process in its own order."""
    return sorted(events, key=lambda event: (event.asked_at, event.process, event.number))


def _load(file: Path) -> Iterable[Event]:
    lines = file.read_text(errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            if line:
                yield from_line(line)
        except InvalidInput as error:
            if number == len(lines):  # no end of line: the process was killed in the middle
                return
            raise InvalidInput(f"{file}, line {number}: {error.message}") from None


def rows_read(event: Event) -> Sequence[Row]:
    """The records that an event saw in the log."""
    if isinstance(event, DeadLetters) and event.is_ok:
        return [row for row in event.rows if row.value]
    return event.rows if isinstance(event, (Poll, FinalLog)) and event.is_ok else ()
