"""pyarrow.compute, imported with the first function that is taken from here. Most tasks need none of them, and each
process of theirs begins so much sooner. For modules that tasks import; others take pyarrow's own."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what Python and its tools ask every module
        raise AttributeError(name)
    import pyarrow.compute

    found = globals()[name] = getattr(pyarrow.compute, name)
    return found
