"""What the tokens of one entry have in common: everything but the index.

A token is ``<topic UUID>:<ledger>:<entry>:<index>`` for a record of a topic, ``<topic UUID>:m<block>:<index>`` for one
that was minted for a message from outside.

The tokens of a topic's records are also numbers, one after the other in the order of the records. They begin at one
that the topic's UUID gives: a number of another topic, or of one that had the same name, is none of this topic's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from pyspark_ledger.base import compute as pc

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_SPELLING = re.compile(rf"({_UUID}):(?:([0-9]{{1,18}}):([0-9]{{1,18}})|m([0-9a-f]{{32}}))")


_RANDOM_BITS = (1 << 62) - 1  # of a UUID, after its variant
_NUMBERS = ":#"


def first_number(uuid: str) -> int:
    """The number of a topic's first token."""
    return int(uuid.replace("-", ""), 16) & _RANDOM_BITS


def prefix_of_numbers(uuid: str) -> str:
    """What stands for the prefix of tokens that are given as numbers: the index counts from the topic's first token. No
    token that is text has it."""
    return f"{uuid}{_NUMBERS}"


def topic_of_numbers(prefix: str) -> str:
    """The UUID in such a prefix; empty if it is another one."""
    return prefix.removesuffix(_NUMBERS) if prefix.endswith(_NUMBERS) else ""


@dataclass(frozen=True, slots=True)
class TokenPrefix:
    """An entry of a topic, or a block that was minted."""

    uuid: str
    ledger: int = -1
    entry: int = -1
    block: str = ""

    @classmethod
    def parse(cls, text: str) -> TokenPrefix | None:
        match = _SPELLING.fullmatch(text)
        if match is None:
            return None
        uuid, ledger, entry, block = match.groups()
        return cls(uuid, block=block) if block else cls(uuid, int(ledger), int(entry))

    def __str__(self) -> str:
        return f"{self.uuid}:m{self.block}" if self.block else f"{self.uuid}:{self.ledger}:{self.entry}"

    def token(self, index: int) -> str:
        return f"{self}:{index}"

    def tokens(self, indexes: pa.Array) -> pa.Array:
        return pc.binary_replace_slice(
            indexes.cast(pa.string()), 0, 0, f"{self}:"
        )  # the quickest way to put it in front
