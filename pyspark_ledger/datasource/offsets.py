"""What Spark keeps in its checkpoint for a ledger stream.

An offset is the next position to read. Spark compares offsets as text, so the keys are sorted and a position has
one spelling. The constant ``{"initial": true}`` stands for "wherever the options say": the first real offset carries
where that was in ``from``, so that a replay of batch 0 reads what it read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log.places import OFFSET_FORMAT
from pyspark_ledger.metadata.records import Topic

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

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "epoch": self.epoch,
            "pos": str(self.position),
            "rev": self.revision,
            "topic": self.uuid,
            "v": OFFSET_FORMAT,
        }
        if self.start is not None:
            fields["from"] = str(self.start)
        if self.generation is not None:
            fields |= {"gen": self.generation, "base": str(self.base)}
        return dict(sorted(fields.items()))


def is_initial(offset: dict[str, Any]) -> bool:
    return offset.get("initial") is True


def parse(offset: dict[str, Any], topic: Topic) -> Offset:
    """An offset from a checkpoint; an error by name if it belongs to another topic or a newer version."""
    try:
        if offset["v"] > OFFSET_FORMAT:
            raise InvalidInput(
                f"the checkpoint has offsets of format {offset['v']}, this version knows {OFFSET_FORMAT}: upgrade "
                "pyspark-ledger",
                "LEDGER_NEWER_FORMAT",
            )
        start = Position.parse(offset["from"]) if "from" in offset else None
        base = Position.parse(offset["base"]) if "base" in offset else None
        found = Offset(
            offset["topic"],
            Position.parse(offset["pos"]),
            start,
            offset["rev"],
            offset["epoch"],
            offset.get("gen"),
            base,
        )
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"the checkpoint has an offset that is not a ledger's: {offset} ({error})") from None
    if found.uuid != topic.uuid:
        raise InvalidInput(
            f"the checkpoint belongs to a topic '{topic.name}' with the id {found.uuid}, which was deleted; the topic "
            f"that now has that name is {topic.uuid}. Start with a new checkpoint",
            "LEDGER_TOPIC_RECREATED",
        )
    return found
