"""Numbers of bytes as people write them. A kilobyte has 1024, as in Spark's own settings, with or without an "i"."""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]{1,19})\s*([kmgt]?)i?b?")
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
MOST_BYTES = (1 << 63) - 1


def parse_size(text: str) -> int | None:
    """Bytes, from ``67108864``, ``64m``, ``64MB`` or ``64MiB``; None if it is nothing of that kind, or over 63 bits."""
    match = _SIZE.fullmatch(text.strip().lower())
    size = int(match[1]) << _SHIFTS[match[2]] if match else 0
    return size if 0 < size <= MOST_BYTES else None


def spelled_size(size: int) -> str:
    """As :func:`parse_size` takes it, in the largest unit that says it exactly."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        shift = _SHIFTS[unit[0].lower()]
        if size >> shift << shift == size:
            return f"{size >> shift}{unit}"
    return f"{size}B"
