"""Where a record is: ledger, entry, index."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark_ledger.errors import InvalidInput

_SPELLING = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18})")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where a record is in a topic, written ``ledger:entry:index``. Positions are ordered as the records are.

    As the start or end of a read it is the *next* position to read, so an end is exclusive. After the last record of
    an entry comes the first of the next one: ``3:17:99`` is followed by ``3:18:0``.

    Attributes:
        ledger: which part of the log; ledgers are numbered from 0.
        entry: which entry of the ledger: the records that one task or one flush wrote.
        index: which row of the entry.

    >>> Position.parse("3:17:0") < Position(3, 18, 0)
    True
    >>> str(Position(3, 18, 0))
    '3:18:0'
    """

    ledger: int
    entry: int
    index: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position that a text such as ``3:17:0`` names. Raises InvalidInput if it names none."""
        match = _SPELLING.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise InvalidInput(
                f"{text!r} is not a position: write ledger:entry:index, as in 3:17:0", "LEDGER_INVALID_POSITION"
            )
        return cls(*(int(part) for part in match.groups()))


EARLIEST = Position(0, 0, 0)
