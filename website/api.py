"""The page of the Python API, made from docstrings: every public name, and the classes that these give back."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import FunctionType

import pyspark_ledger
from pyspark_ledger import spark

# What people get and do not make themselves, by its home.
GIVEN_BACK = {
    "pyspark_ledger.append.producer": ("Producer", "Sent", "Receipt"),
    "pyspark_ledger.outbox.transaction": ("Transaction",),
    "pyspark_ledger.log.reader": ("Reader", "Record"),
    "pyspark_ledger.compaction.table_view": ("TableView",),
    "pyspark_ledger.cursors.consumer": ("Consumer", "Message"),
    "pyspark_ledger.cursors.shared_consumer": ("SharedConsumer",),
    "pyspark_ledger.cursors.handle": ("CursorHandle", "CursorStats", "MemberStats", "ResetPreview", "ResetResult"),
    "pyspark_ledger.tokens.tokens": ("Tokens", "TokenStats"),
    "pyspark_ledger.outbox.outbox": ("Outbox", "Processed"),
}

TOP = """# The Python API

Made from the docstrings in the code. [The Python client](../client.md) explains the same by task.
"""


def page() -> str:
    names = [*pyspark_ledger.__all__, *(name for name in spark.__all__ if name not in pyspark_ledger.__all__)]
    values = {name: getattr(pyspark_ledger, name, None) or getattr(spark, name) for name in names}
    errors = [value for value in values.values() if inspect.isclass(value) and issubclass(value, Exception)]
    for_spark = [values[name] for name in (*spark.__all__, "register")]
    rest = [value for value in values.values() if value not in errors and value not in for_spark]
    sections = {
        "To import from pyspark_ledger": [place(value) for value in rest],
        "What these give back": [f"{module}.{name}" for module, names in GIVEN_BACK.items() for name in names],
        "For Spark jobs": [place(value) for value in for_spark],
        "Errors": [place(value) for value in errors],
    }
    return TOP + "".join(f"\n## {title}\n\n{_blocks(places)}" for title, places in sections.items())


def undocumented(text: str) -> list[str]:
    """What the page shows and has no docstring: names, and public methods of classes. The site would show them bare."""
    places = [line.removeprefix("::: ") for line in text.splitlines() if line.startswith("::: ")]
    return [name for place in places for name, value in _members(place) if not (inspect.getdoc(value) or "").strip()]


def place(value: type) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _members(place: str) -> Iterator[tuple[str, object]]:
    module, _, name = place.rpartition(".")
    value = getattr(importlib.import_module(module), name)
    yield place, value
    kinds = inspect.getmro(value) if inspect.isclass(value) else ()
    ours = [kind for kind in kinds if kind.__module__.startswith("pyspark_ledger")]
    for member in sorted({member for kind in ours for member in vars(kind) if not member.startswith("_")}):
        if isinstance(inspect.getattr_static(value, member), FunctionType | property | classmethod | staticmethod):
            yield f"{place}.{member}", getattr(value, member)


def _blocks(places: list[str]) -> str:
    return "".join(f"::: {place}\n\n" for place in places)
