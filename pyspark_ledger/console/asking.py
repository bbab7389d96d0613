"""A request as the console's functions get it, without HTTP: what was asked, by whom, in texts that are still to be
understood. What is wrong with one is said with its name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_ledger.errors import InvalidInput

READ_ONLY, NOT_SIGNED_IN, FORGED = "LEDGER_CONSOLE_READ_ONLY", "LEDGER_CONSOLE_NOT_SIGNED_IN", "LEDGER_CONSOLE_FORGED"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks. ``name`` is empty for who may only look."""

    name: str = ""
    csrf: str = ""  # what a form of this visitor has to bring
    session: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Asked:
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    visitor: Visitor = Visitor()
    url: str = "/"

    @property
    def topic(self) -> str:
        return self.path["topic"]

    @property
    def subscription(self) -> str:
        return self.path["subscription"]

    def only(self, *names: str) -> None:
        """:raises InvalidInput: something was asked that means nothing here."""
        for given, where in ((self.query, "query parameter"), (self.body, "field")):
            for name in given:
                if name not in names:
                    near = difflib.get_close_matches(name, names, 1)
                    hint = (
                        f": did you mean '{near[0]}'?" if near else f"; there are {', '.join(names)}" if names else ""
                    )
                    raise InvalidInput(f"there is no {where} '{name}' here{hint}", "LEDGER_UNKNOWN_PARAMETER")

    def text(self, name: str, default: str = "") -> str:
        value = self.body.get(name, self.query.get(name))
        if value is None:
            return default
        if not isinstance(value, str):
            raise _wrong(name, value, "a text")
        return value

    def needed(self, name: str, what: str) -> str:
        value = self.text(name)
        if not value:
            raise InvalidInput(f"'{name}' is missing: give {what}", "LEDGER_MISSING_PARAMETER")
        return value

    def number(self, name: str, default: int, low: int, high: int) -> int:
        value = self.body.get(name, self.query.get(name))
        if value in (None, ""):
            return default
        wanted = f"a whole number from {low:,} to {high:,}"
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise _wrong(name, value, wanted)
        return value

    def flag(self, name: str) -> bool:
        value = self.body.get(name, self.query.get(name))
        known = {None: False, "": False, False: False, True: True, "true": True, "on": True, "1": True, "false": False}
        known["0"] = False
        if not isinstance(value, str | bool | None) or value not in known:
            raise _wrong(name, value, "true or false")
        return known[value]

    def choice(self, name: str, choices: tuple[str, ...], default: str = "") -> str:
        value = self.text(name) or default
        if value not in choices:
            raise _wrong(name, value, f"one of {', '.join(choices)}")
        return value


def _wrong(name: str, value: object, wanted: str) -> InvalidInput:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return InvalidInput(f"'{name}' is {shown}: it must be {wanted}", "LEDGER_INVALID_PARAMETER")
