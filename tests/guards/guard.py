"""What a guard is, in words and as a change of the code that takes it out."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support import REPOSITORY

PACKAGE = REPOSITORY / "pyspark_ledger"


@dataclass(frozen=True, slots=True)
class Guard:
    """One place in the code that keeps a promise when something goes wrong, and so is passed over unnoticed as long as
    nothing does."""

    name: str  # as in append/recognised-by-its-id
    file: str  # below the package
    snippet: str  # stands there exactly once
    instead: str  # what stands there without the guard
    why: str  # one sentence, with the invariant
    tests: tuple[str, ...] = ()  # below tests/, one or more that notice; empty: all of the room's
    hangs: bool = False  # without the guard something goes on for ever, and that is what is noticed

    @property
    def selected(self) -> tuple[str, ...]:
        """What pytest is to run."""
        return tuple(f"tests/{test}" for test in self.tests or (self.file.partition("/")[0],))

    def found(self) -> int:
        """How often the snippet stands in its file."""
        return (PACKAGE / self.file).read_text().count(self.snippet)

    def taken_out(self, code: str) -> str:
        return code.replace(self.snippet, self.instead)
