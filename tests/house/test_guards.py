"""The guards that ``make guards`` takes out are still where they were, and so are the tests that notice."""

from __future__ import annotations

import re

import pytest

from tests.guards import GUARDS
from tests.support import REPOSITORY


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_guard_is_where_the_table_says(guard):
    assert guard.found() == 1, f"{guard.file} has changed: look for the guard there, and mend its snippet"
    assert guard.instead != guard.snippet


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_guard_says_why_it_is_there_and_who_notices(guard):
    assert re.search(r"\(I\d+(?:, I\d+)*\)\.$", guard.why), "it ends with its invariants, as in (I6, I14)."
    for test in guard.tests:
        file, _, name = test.partition("::")
        path = REPOSITORY / "tests" / file
        assert path.exists(), test
        assert not name or re.search(rf"^(?:def |class )?{name.partition('::')[0]}\b", path.read_text(), re.M), test


def test_names_are_unique():
    assert len({guard.name for guard in GUARDS}) == len(GUARDS) >= 75
