"""The worlds in which tests happen. Test modules import from here, and never from one another."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def examples(count: int) -> int:
    """How many examples a property gets: what ``make test`` has time for, and twenty times as many in a search."""
    return 20 * count if settings.get_current_profile_name() == "search" else count


def histories(count: int) -> list[Any]:
    """Seeds for a test that plays one history each: so many in ``make test``. A search, which runs what is marked so,
    plays twenty times as many, all but these."""
    more = range(count, examples(count))
    return [*range(count), *(pytest.param(seed, marks=pytest.mark.soak) for seed in more)]


def interruptible() -> None:
    """In a process that a test starts, as its ``preexec_fn``: SIGINT interrupts it, as in a terminal. What a shell runs
    in the background ignores it, and so would every process below."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
