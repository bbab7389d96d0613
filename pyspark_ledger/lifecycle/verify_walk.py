"""Where verifying is on its way through a log that changes meanwhile.

What looks wrong is a *suspect* until a later view still names it. Then it was named when it was found to be wrong, for
what was replaced is never named again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_ledger.lifecycle.findings import Finding
from pyspark_ledger.lifecycle.verify_commits import BEGINNING, Chain
from pyspark_ledger.lifecycle.verify_index import Mark
from pyspark_ledger.log.log import View
from pyspark_ledger.log.trimmed import first_ledger, records_before_begin
from pyspark_ledger.metadata.records import FileRef

_MOST_LOOKS = 5  # at the open ledger of a topic in which something changes all the time


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found in one ledger."""

    findings: tuple[Finding, ...]
    after: Chain | None  # how the log stands after it; None if that cannot be told
    commits: int = 0
    entries: int = 0
    records: int = 0


class Walk:
    """The next ledger to look at, and what is known of the log before it."""

    def __init__(self, view: View) -> None:
        self.chain: Chain | None = BEGINNING if view.head.trim is None else None
        self.mark = _begin(view)
        self._suspects: dict[FileRef, Seen | None] = {}  # a leaf with what was found; None: a node of the index
        self._told: set[FileRef] = set()
        self._open: tuple[int, Sequence[Finding]] = (-1, ())
        self._looks = 0

    def goes_on(self, view: View) -> None:
        """With a later view. Perhaps the ledgers that came next were given up meanwhile."""
        begin = _begin(view)
        if begin.ledger > self.mark.ledger:
            self.lost(begin)

    def passed(self, ledger: int, seen: Seen, after: Mark) -> None:
        records = after.records if seen.after is None else seen.after.records
        self.mark, self.chain = Mark(ledger + 1, records), seen.after
        self._suspects.clear()

    def lost(self, after: Mark) -> None:
        """Nothing is known of the log up to here."""
        self.mark, self.chain = after, None

    # -- nodes and leaves ------------------------------------------------------------------------------------------

    def is_told(self, node: FileRef) -> bool:
        return node in self._told

    def tell(self, node: FileRef) -> None:
        self._told.add(node)

    def is_confirmed(self, node: FileRef) -> bool:
        """Whether a node that is wrong was wrong in an earlier view."""
        is_known = node in self._suspects
        self._suspects[node] = None
        return is_known

    def suspected(self, leaf: FileRef) -> Seen | None:
        """What was found in this leaf in an earlier view."""
        return self._suspects.get(leaf)

    def suspect(self, leaf: FileRef, seen: Seen) -> None:
        self._suspects[leaf] = seen

    # -- the open ledger -------------------------------------------------------------------------------------------

    def confirmed(self, ledger: int, found: Sequence[Finding]) -> list[Finding] | None:
        """What was found in the open ledger before, and is found again; None if it has to be looked at again."""
        before, self._open = self._open, (ledger, found)
        self._looks += 1
        again = [each for each in found if ledger == before[0] and each in before[1]]
        return again if len(again) == len(found) or self._looks >= _MOST_LOOKS else None


def _begin(view: View) -> Mark:
    """The first ledger that can be read, also by who has planned to, and the records before it as far as is known."""
    return Mark(first_ledger(view.head, planned=True), records_before_begin(view.head))
