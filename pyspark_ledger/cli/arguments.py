"""Values that a command line can say, as callbacks of its options: durations, and places in a topic."""

from __future__ import annotations

import re
from datetime import datetime

import click

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import InvalidInput

RATE = click.FloatRange(min=0, min_open=True)  # records per second
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None:
        raise click.BadParameter(f"'{text}' is no duration: write 30s, 10m, 1h or 7d")
    return float(match[1]) * _UNITS[match[2]]


def duration_or_never(context: click.Context, option: click.Parameter, text: str | None) -> float | str | None:
    return text if text == "never" else duration(context, option, text)


def spelled(seconds: float) -> str:
    """As :func:`duration` takes it, in the largest unit that says it exactly."""
    unit = next((unit for unit in ("d", "h", "m") if seconds % _UNITS[unit] == 0), "s")
    return f"{seconds / _UNITS[unit]:g}{unit}"


def place(_context: click.Context, _option: click.Parameter, text: str) -> str | Position | datetime:
    """A start or an end: what :data:`pyspark_ledger.log.reader.Bound` takes."""
    if text in ("earliest", "latest"):
        return text
    try:
        return Position.parse(text)
    except InvalidInput:
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"'{text}' is no place in a topic: use earliest, latest, a position as 3:17:0, or a time in ISO 8601"
        ) from None
