"""What Spark keeps in its checkpoint for a ledger stream.

An offset is the next position to read. Spark compares offsets as text, so the keys are sorted and a position has
one spelling. The constant ``{"initial": true}`` stands for "wherever the options say": the first real offset carries
where that was in ``from``, so that a replay of batch 0 reads what it read.

Offsets also say what a query has seen: the last commit of which a record lies before the position, and which cursor it
follows, under which reset. A query compares them with the topic: after a rollback of ZooKeeper, or if a subscription
was deleted and made again, the same number stands for something else.

A query may read several topics. What Spark keeps is one *document*, with a part for each of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import index
from typing import TYPE_CHECKING, Any

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log import scan
from pyspark_ledger.log.places import OFFSET_FORMAT, SeenCommit, parts_of
from pyspark_ledger.metadata.records import Topic

if TYPE_CHECKING:
    from pyspark_ledger.log.log import Log, View

INITIAL: dict[str, Any] = {"initial": True}


@dataclass(frozen=True, slots=True)
class Offset:
    uuid: str
    position: Position
    start: Position | None = None  # ``from``: where this batch begins, if that is not where the last one ended
    revision: int = 0
    epoch: int = 0
    generation: int | None = None  # with readCompacted: the batch reads from this one; 0: there was none yet
    base: Position | None = None  # and skips tombstones before this: the reader never saw what they removed
    cursor: bytes = b""  # how the id of the subscription's cursor begins; empty: none, or not known
    reset: bytes = b""  # how the id of the reset that made the revision begins; empty: none, or not known
    # These follow from the position, and offsets of version 1 do not have them.
    name: str = ""  # the topic's
    records: int | None = None  # before the position: the difference of two offsets is a lag
    commit: SeenCommit | None = None  # the last one of which a record lies before the position

    def seen(self, log: Log, view: View) -> Offset:
        """With what follows from the position: a look-up in memory or in the index, however long the log is."""
        records = scan.records_before(log, view, self.position)
        last = scan.last_commit_before(log, view, records)
        commit = SeenCommit.of(last) if last is not None else None
        return replace(self, name=log.topic.name, records=records, commit=commit)

    def part(self) -> dict[str, Any]:
        """What a document says of this topic."""
        assert self.records is not None, "of version 1: such an offset is read, and never written"
        fields: dict[str, Any] = {
            "epoch": self.epoch,
            "id": self.uuid,
            "pos": str(self.position),
            "records": self.records,
            "rev": self.revision,
        }
        if self.commit is not None:
            fields["commit"] = str(self.commit)
        if self.cursor:
            fields["cursor"] = self.cursor.hex()
        if self.start is not None:
            fields["from"] = str(self.start)
        if self.reset:
            fields["reset"] = self.reset.hex()
        if self.generation is not None:
            fields |= {"gen": self.generation, "base": str(self.base)}
        return dict(sorted(fields.items()))


def document(parts: Mapping[str, Any]) -> dict[str, Any]:
    """What Spark keeps, from what is said of each topic."""
    return {"topics": dict(sorted(parts.items())), "v": OFFSET_FORMAT}


def is_initial(offset: Any) -> bool:
    """Any JSON may come from a checkpoint: those of other sources have numbers, for one."""
    return isinstance(offset, dict) and offset.get("initial") is True


def parts(given: Any) -> dict[str, dict[str, Any]]:
    """What a document of a checkpoint says of each topic, by name; of version 1, under an empty name. An error by name
    if it is of a newer version, or no document of a ledger."""
    try:
        return parts_of(given, "an offset of the checkpoint")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _no_offset(given, error) from None


def parse(name: str, fields: Any, topic: Topic) -> Offset:
    """What a document says of a topic, under the name that it has there. An error by name if it is another topic's."""
    try:
        found = Offset(
            fields["id"],
            Position.parse(fields["pos"]),
            Position.parse(fields["from"]) if "from" in fields else None,
            index(fields["rev"]),
            index(fields["epoch"]),
            index(fields["gen"]) if "gen" in fields else None,
            Position.parse(fields["base"]) if "base" in fields else None,
            bytes.fromhex(fields.get("cursor", "")),
            bytes.fromhex(fields.get("reset", "")),
            name,
            index(fields["records"]) if "records" in fields else None,
            SeenCommit.parse(fields["commit"]) if "commit" in fields else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _no_offset(fields, error) from None
    if found.uuid != topic.uuid:
        raise _of_another_topic(found, topic)
    return found


def _no_offset(given: Any, error: Exception) -> InvalidInput:
    return InvalidInput(
        f"the checkpoint has an offset that is not a ledger's: {_shown(given)} ({type(error).__name__}: {error}). "
        "It belongs to another source, or was changed: restore it from a copy, or start with a new checkpoint"
    )


def _shown(offset: Any) -> str:
    try:
        return json.dumps(offset)
    except (TypeError, ValueError, RecursionError):  # nested so deeply that it cannot even be shown
        return "no JSON"


def _of_another_topic(found: Offset, topic: Topic) -> InvalidInput:
    if found.name not in ("", topic.name):
        whose = f"to the topic '{found.name}' ({found.uuid}), and this query reads '{topic.name}' ({topic.uuid})"
    else:
        whose = (
            f"to a topic '{topic.name}' with the id {found.uuid}, which was deleted; the topic that now has that name "
            f"is {topic.uuid}"
        )
    return InvalidInput(f"the checkpoint belongs {whose}. Start with a new checkpoint", "LEDGER_TOPIC_RECREATED")
