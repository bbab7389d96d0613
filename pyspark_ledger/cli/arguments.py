"""Values that a command line can say, as callbacks of its options: durations, and places in a topic."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from pyspark_ledger.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark_ledger.log.places import Place

RATE = click.FloatRange(min=0, min_open=True)  # records per second
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", text)
    if match is None:
        raise click.BadParameter(f"'{text}' is no duration: write 30s, 10m, 1h or 7d")
    return float(match[1]) * _UNITS[match[2]]


def duration_or_never(context: click.Context, option: click.Parameter, text: str | None) -> float | str | None:
    return text if text == "never" else duration(context, option, text)


def spelled(seconds: float) -> str:
    """As :func:`duration` takes it, in the largest unit that says it exactly."""
    unit = next((unit for unit in ("d", "h", "m") if seconds % _UNITS[unit] == 0), "s")
    return f"{seconds / _UNITS[unit]:g}{unit}"


def place(_context: click.Context, _option: click.Parameter, text: str) -> Place:
    """A start, an end, or where a cursor is sent."""
    from pyspark_ledger.log import places

    try:
        return places.parse(text)
    except InvalidInput as error:
        raise click.BadParameter(error.message) from None
