"""Values as people read them on a page: numbers with thin spaces, sizes, and how long ago something was."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

_THIN = "\u202f"  # a narrow space that does not break
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(value: Any) -> str:
    return "–" if value is None else f"{round(value):,}".replace(",", _THIN)


def counted(number: int, noun: str) -> str:
    """As in "1 topic" and "2 topics"."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def short(value: Any) -> str:
    """A number in three digits or so."""
    if value is None:
        return "–"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{_THIN}{unit}"
    return f"{value:.3g}" if value != round(value) else count(value)


def size(value: Any) -> str:
    if value is None:
        return "–"
    amount, unit = float(value), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.3g}{_THIN}{_UNITS[unit]}" if amount < 1000 else f"{amount:.0f}{_THIN}{_UNITS[unit]}"


def duration(seconds: Any) -> str:
    """In its two largest units."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"0{_THIN}s" if not seconds else f"<1{_THIN}ms" if seconds < 0.001 else f"{seconds * 1000:.0f}{_THIN}ms"
    left, parts = int(seconds), []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= length:
            parts.append(f"{left // length}{_THIN}{unit}")
            left %= length
    return " ".join(parts[:2])


def ago(moment: datetime | None, now: datetime) -> Markup:
    """How long ago; the moment itself is its title."""
    if moment is None:
        return Markup('<span class="faint">never</span>')
    seconds = (now - moment).total_seconds()
    said = "just now" if abs(seconds) < 1 else f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"
    exact = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact.isoformat(), absolute(exact), said)


def absolute(moment: datetime | None) -> str:
    return "–" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def unit(text: str) -> Markup:
    """The unit of a size, a time or a number, smaller than the number."""
    number, space, rest = text.rpartition(_THIN)
    if not space or rest.isdigit() or " " in text:
        return escape(text)
    return Markup('{}<small class="unit">{}{}</small>').format(number, _THIN, rest)


WAYS: dict[str, Callable[[Any], str]] = {"count": count, "short": short, "size": size, "duration": duration}
