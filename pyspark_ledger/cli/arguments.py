"""Values that a command line can say, as callbacks of its options: durations, sizes, and places in a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pyspark_ledger.base.durations import parse_duration
from pyspark_ledger.base.sizes import parse_size
from pyspark_ledger.describe.policies import NEVER, Quota, parse_quota
from pyspark_ledger.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark_ledger.log.places import Place

RATE = click.FloatRange(min=0, min_open=True)  # records per second


def duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Seconds."""
    if text is None:
        return None
    seconds = parse_duration(text)
    if seconds is None:
        raise click.BadParameter(f"'{text}' is no duration: write 30s, 10m, 1h or 7d")
    return seconds


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


def quota(_context: click.Context, _option: click.Parameter, text: str | None) -> Quota | None:
    """A size, a time or both."""
    try:
        return None if text is None else parse_quota(text)
    except InvalidInput as error:
        raise click.BadParameter(error.message) from None


def place(_context: click.Context, _option: click.Parameter, text: str | None) -> Place | None:
    """A start, an end, or where a cursor is sent."""
    from pyspark_ledger.log import places

    if text is None:
        return None
    try:
        return places.parse(text)
    except InvalidInput as error:
        raise click.BadParameter(error.message) from None
