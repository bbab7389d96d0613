"""Whether what a user gives is what it has to be."""

from __future__ import annotations

from pyspark_ledger.errors import InvalidInput


def is_number(value: object) -> bool:
    """A bool is none, and neither is a text that looks like one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} is {value!r}, and must be True or False")
