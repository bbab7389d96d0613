"""Values that a command line can say, as callbacks of its options: durations, sizes, and places in a topic."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from pyspark_ledger.base.sizes import parse_size, spelled_size
from pyspark_ledger.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark_ledger.log.places import Place

RATE = click.FloatRange(min=0, min_open=True)  # records per second
NEVER = "never"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 1_000_000 * 86_400  # what Python can say of a time is not much longer


def duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Seconds."""
    if text is None:
        return None
    seconds = _seconds(text)
    if seconds is None:
        raise click.BadParameter(f"'{text}' is no duration: write 30s, 10m, 1h or 7d")
    return seconds


def _seconds(text: str) -> float | None:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else None
    return seconds if seconds is not None and seconds <= _LONGEST_S else None


def duration_or_never(context: click.Context, option: click.Parameter, text: str | None) -> float | str | None:
    seconds = text if text == NEVER else duration(context, option, text)
    if seconds == 0:
        raise click.BadParameter(f"'{text}' is no time to keep anything: write 30s, 10m, 1h or 7d, or {NEVER}")
    return seconds


def size(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """Bytes."""
    if text is None:
        return None
    found = parse_size(text)
    if found is None:
        raise click.BadParameter(f"'{text}' is no size: write 67108864, 64MB or 500GB")
    return found


def size_or_never(context: click.Context, option: click.Parameter, text: str | None) -> int | str | None:
    return text if text == NEVER else size(context, option, text)


Quota = tuple[int | None, float | None]  # bytes and seconds; None: any number


def quota(_context: click.Context, _option: click.Parameter, text: str | None) -> Quota | None:
    """A size, a time or both. All of the quota is said at once: a part that is left out is no limit."""
    if text is None or text == NEVER:
        return None if text is None else (None, None)
    sizes: list[int] = []
    times: list[float] = []
    for part in text.split(","):
        seconds = _seconds(part)  # looked at first: 5m is five minutes here
        found = parse_size(part) if seconds is None else None
        if seconds is None and found is None:
            raise click.BadParameter(
                f"'{part}' is neither a size nor a time: write 100GB, 7d, both as 100GB,7d or never"
            )
        times += [] if seconds is None else [seconds]
        sizes += [] if found is None else [found]
    if len(sizes) > 1 or len(times) > 1:
        raise click.BadParameter(f"'{text}' says twice how much, or how long: write one size, one time, or both")
    return (sizes[0] if sizes else None), (times[0] if times else None)


def spelled(seconds: float) -> str:
    """As :func:`duration` takes it, in the largest unit that says it exactly."""
    unit = next((unit for unit in ("d", "h", "m") if seconds % _UNITS[unit] == 0), "s")
    return f"{seconds / _UNITS[unit]:g}{unit}"


def time_or_never(milliseconds: int) -> str:
    """A policy as it is stored, as the command line takes it."""
    return spelled(milliseconds / 1000) if milliseconds else NEVER


def bytes_or_never(count: int) -> str:
    return spelled_size(count) if count else NEVER


def place(_context: click.Context, _option: click.Parameter, text: str | None) -> Place | None:
    """A start, an end, or where a cursor is sent."""
    from pyspark_ledger.log import places

    if text is None:
        return None
    try:
        return places.parse(text)
    except InvalidInput as error:
        raise click.BadParameter(error.message) from None
