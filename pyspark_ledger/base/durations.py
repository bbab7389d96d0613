"""Times as people write them: 30s, 10m, 1h or 7d."""

from __future__ import annotations

import re

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 1_000_000 * 86_400  # what Python can say of a time is not much longer


def parse_duration(text: str) -> float | None:
    """Seconds; None if it is no duration."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else None
    return seconds if seconds is not None and seconds <= _LONGEST_S else None


def spelled_duration(seconds: float) -> str:
    """As :func:`parse_duration` takes it, in the largest unit that says it exactly."""
    unit = next((unit for unit in ("d", "h", "m") if seconds % _UNITS[unit] == 0), "s")
    return f"{seconds / _UNITS[unit]:g}{unit}"
