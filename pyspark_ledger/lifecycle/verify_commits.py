"""Whether commits follow each other and add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import CorruptData
from pyspark_ledger.files import mask
from pyspark_ledger.lifecycle.findings import Span
from pyspark_ledger.metadata.records import Commit, Entry, Head


@dataclass(frozen=True, slots=True)
class Chain:
    """How the log stands after a commit: what the next one has to follow."""

    ledger: int
    number: int
    id: bytes
    entry: int  # the next one of the ledger
    records: int
    bytes: int
    token: int  # the next one's number
    publish_ms: int

    @classmethod
    def after(cls, commit: Commit, before: Chain | None) -> Chain:
        token = max(commit.tokens_before, before.token if before is not None else 0)  # 0: of format 1
        return cls(
            ledger=commit.ledger,
            number=commit.number,
            id=commit.id,
            entry=commit.first_entry + commit.entry_count,
            records=commit.records_before + commit.records,
            bytes=commit.bytes_before + commit.bytes,
            token=commit.tokens_before + commit.records if commit.mints else token,
            publish_ms=commit.publish_ms,
        )

    @property
    def end(self) -> Position:
        return Position(self.ledger, self.entry, 0)


BEGINNING = Chain(-1, -1, b"", 0, 0, 0, 0, 0)


def span_of(commit: Commit) -> Span:
    first = Position(commit.ledger, commit.first_entry, 0)
    return Span(first, Position(commit.ledger, commit.first_entry + commit.entry_count, 0), commit.records)


def span_of_entry(commit: Commit, number: int, entry: Entry) -> Span:
    return Span(Position(commit.ledger, number, 0), Position(commit.ledger, number + 1, 0), entry.kept)


def wrong_with(commit: Commit, before: Chain | None, head: Head) -> Iterator[str]:
    """In what a commit does not follow the one before. None: that one is not known, because it is gone or damaged."""
    if before is None:
        return
    begins = commit.ledger != before.ledger
    # Where a repair has left a gap, numbers of ledgers, commits and tokens go on far away.
    has_gap = begins and before.number + 1 < commit.number <= head.repaired
    expected = {
        "number": (before.number + 1, commit.number, has_gap),
        "ledger": (before.ledger + 1 if begins else before.ledger, commit.ledger, has_gap),
        "first entry": (0 if begins else before.entry, commit.first_entry, False),
        "number of records before it": (before.records, commit.records_before, False),
        "number of bytes before it": (before.bytes, commit.bytes_before, False),
        "first token": (before.token, commit.tokens_before, has_gap or not commit.mints),
    }
    for what, (right, found, may_differ) in expected.items():
        if found != right and not may_differ:
            yield f"its {what} is {found}, and should be {right}"
    if commit.publish_ms < before.publish_ms:
        yield "it was published before the one before it"
    if commit.previous and before.id and commit.previous != before.id:
        yield "it follows another commit than the one before it"


def wrong_with_trim(commit: Commit, head: Head) -> Iterator[str]:
    """In what the first commit that is left contradicts what the head says of those before it."""
    trim = head.trim
    if trim is None or commit.number != trim.commit:
        return
    found = (commit.ledger, commit.records_before, commit.bytes_before)
    if found != (trim.position.ledger, trim.records, trim.bytes):
        yield f"the head says that {trim.records} records with {trim.bytes} bytes were before it, and it says otherwise"


def wrong_inside(commit: Commit, entries: Sequence[Entry]) -> Iterator[str]:
    """In what a commit contradicts its own entries."""
    if len(entries) != commit.entry_count:
        yield f"it has {len(entries)} entries, and says {commit.entry_count}"
    if (kept := sum(entry.kept for entry in entries)) != commit.records:
        yield f"its entries have {kept} records, and it says {commit.records}"
    is_rewritten = any(entry.file_rows for entry in entries)  # its size stays what was written
    if not is_rewritten and (size := sum(entry.bytes for entry in entries)) != commit.bytes:
        yield f"its entries have {size} bytes, and it says {commit.bytes}"
    if (masked := sum(entry.masked for entry in entries)) > commit.dropped:
        yield f"{masked} of its records are masked, and it says that {commit.dropped} were dropped"
    yield from _wrong_order(entries)


def _wrong_order(entries: Sequence[Entry]) -> Iterator[str]:
    """Entries that share a file are in it in their own order."""
    ends: dict[bytes, int] = {}
    for number, entry in enumerate(entries):
        if entry.first_row < ends.get(entry.file.uid, 0):
            yield f"its entry {number} begins at row {entry.first_row} of a file, inside or before the entry before it"
        ends[entry.file.uid] = entry.first_row + entry.records


def wrong_with_entry(entry: Entry) -> str:
    """In what an entry contradicts itself; empty: in nothing."""
    if entry.records <= 0 or not 0 <= entry.masked < entry.records:
        return f"{entry.masked} of its {entry.records} rows are masked"
    if bool(entry.mask) != bool(entry.masked):
        return f"{entry.masked} of its rows are masked, and it has {'a' if entry.mask else 'no'} mask"
    if entry.file_rows and not 0 <= entry.first_row <= entry.first_row + entry.records <= entry.file_rows:
        return f"it begins at row {entry.first_row} of a file with {entry.file_rows} rows, and has {entry.records}"
    try:
        kept = mask.count(entry.mask, entry.records, 0, entry.records)
    except CorruptData as error:
        return error.message
    return "" if kept == entry.kept else f"its mask keeps {kept} rows, and it says {entry.kept}"


def wrong_with_head(head: Head, last: Chain, open_bytes: int) -> Iterator[str]:
    """In what the head contradicts the last commit."""
    is_new = head.next_commit == head.repaired and last.number < head.next_commit  # nothing was written since a repair
    begins = last.ledger < head.ledger
    expected = {
        "next commit": (last.number + 1, head.next_commit, is_new),
        "open ledger": (last.ledger + 1 if begins else last.ledger, head.ledger, is_new),
        "next entry": (0 if begins else last.entry, head.next_entry, False),
        "number of records": (last.records, head.records, False),
        "number of bytes": (last.bytes, head.bytes, False),
        "number of bytes in the open ledger": (open_bytes, head.ledger_bytes, False),
        "last commit": (last.id.hex(), head.last_commit.hex(), last.number < 0),
        "last publish time": (last.publish_ms, head.last_publish_ms, last.number < 0),
    }
    for what, (right, found, may_differ) in expected.items():
        if found != right and not may_differ:
            yield f"its {what} is {found}, and should be {right}"
