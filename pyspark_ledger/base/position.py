"""Where a record is: ledger, entry, index."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark_ledger.errors import InvalidInput

_SPELLING = re.compile(r"(\d{1,18}):(\d{1,18}):(\d{1,18})")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """``L:E:I``. As an offset it is the *next* position to read, so intervals are half open.

    Every position has one spelling: after the last record of an entry comes ``L:E+1:0``.
    """

    ledger: int
    entry: int
    index: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Position:
        match = _SPELLING.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise InvalidInput(
                f"{text!r} is not a position: write ledger:entry:index, as in 3:17:0", "LEDGER_INVALID_POSITION"
            )
        return cls(*(int(part) for part in match.groups()))


EARLIEST = Position(0, 0, 0)
