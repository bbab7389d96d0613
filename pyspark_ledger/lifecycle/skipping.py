"""Giving up a damaged entry by name, so that readers can go around it; and taking that back, if a copy of its file was
put in its place.

Nobody does this but a person: a file that cannot be read today may be there tomorrow, on a backup or another disk. An
entry that is whole is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from pyspark_ledger.base import names
from pyspark_ledger.base.position import Position
from pyspark_ledger.errors import Conflict, CorruptData, InvalidInput
from pyspark_ledger.files.entryfile import EntryReader
from pyspark_ledger.log import folders, lost, scan, trimmed
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.lost import LostEntry
from pyspark_ledger.metadata.records import Entry, FileRef, Head

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """A damaged entry that ``client.skip_damaged`` has given up, or with ``dry_run`` would.

    Attributes:
        first: the position of its first record.
        end: the position after its last one.
        records: how many records are lost.
        file: the full name of the file.
        damage: what is wrong with it; empty if it was put right, and the entry was taken back.
    """

    first: Position
    end: Position
    records: int
    file: str
    damage: str


def skip_damaged(
    log: Log, position: Position, *, reason: str = "", undo: bool = False, dry_run: bool = False
) -> SkippedEntry:
    """Gives up the entry at a position, unless it is whole. ``undo``: takes that back, if it is whole again."""
    log.storage.check_marked()
    found, damage = _look_at(log, position)
    skipped = SkippedEntry(found.first, found.end, found.records, log.storage.where(found.file), damage)
    if damage and undo:
        raise InvalidInput(f"entry {_name(found)} is still damaged: {damage}", "LEDGER_ENTRY_DAMAGED")
    if not damage and not undo:
        raise InvalidInput(
            f"entry {_name(found)} of topic '{log.topic.name}' is whole: all of it can be read from {skipped.file}. "
            "Nothing was changed",
            "LEDGER_ENTRY_WHOLE",
        )
    if not dry_run:
        folders.prepare(log)
        _publish(log, replace(found, reason=reason), undo=undo)
        logger.warning(
            "%s topic=%s position=%s records=%d file=%s reason=%s", "taken back" if undo else "given up",
            log.topic.name, found.first, found.records, found.file, reason,
        )  # fmt: skip
    return skipped


def parse_entry(text: str) -> Position:
    """The entry that a text as ``3:17`` names, or ``3:17:5`` a record of it."""
    return Position.parse(f"{text}:0" if isinstance(text, str) and text.count(":") == 1 else text)


def _name(entry: LostEntry) -> str:
    return f"{entry.ledger}:{entry.entry}"


def _look_at(log: Log, position: Position) -> tuple[LostEntry, str]:
    """The entry at a position, and what is wrong with it. Its file is looked at before the view: if a later view still
    names it, it was named when it was found to be damaged."""
    view = log.refresh(sync=True)
    for _ in range(log.limits.look_attempts):
        entry = _entry_at(log, view, position)
        damage = _damage(log, entry)
        view = log.refresh(sync=True)
        if _entry_at(log, view, position) == entry:
            first = Position(position.ledger, position.entry, 0)
            path = names.staged_file(log.topic.uuid, entry.file.epoch, entry.file.uid)
            ordinal = scan.records_before(log, view, first)
            now = log.now_ms()
            return LostEntry(position.ledger, position.entry, ordinal, entry.kept, path, now), damage
    raise Conflict(f"topic '{log.topic.name}': its ledgers are rewritten faster than they can be looked at: try again")


def _entry_at(log: Log, view: View, position: Position) -> Entry:
    first = Position(position.ledger, position.entry, 0)
    if trimmed.begin(view.head) <= first < view.head.end:
        commit = next(log.commits_from(view, first), None)
        number = position.entry - commit.first_entry if commit is not None else -1
        if commit is not None and commit.ledger == position.ledger and 0 <= number < commit.entry_count:
            return log.entries(commit)[number]
    raise InvalidInput(
        f"topic '{log.topic.name}' has no entry {position.ledger}:{position.entry}: it begins at "
        f"{trimmed.begin(view.head)} and ends at {view.head.end}",
        "LEDGER_INVALID_POSITION",
    )


def _damage(log: Log, entry: Entry) -> str:
    """What is wrong with the rows of an entry; empty: nothing."""
    try:
        reader = EntryReader(log.storage, log.topic.uuid, entry.file)
        batches = reader.batches(entry.first_row, entry.first_row + entry.records)
        rows = sum(batch.num_rows for _, batch in batches)
    except CorruptData as error:
        return error.message
    return "" if rows == entry.records else f"it has {rows} rows, and its commit says {entry.records}"


def _publish(log: Log, entry: LostEntry, *, undo: bool) -> None:
    """Puts the entry on the list, or takes it off. Ledgers that were given up meanwhile need none."""
    staged: dict[tuple[FileRef | None, int], FileRef | None] = {}  # once, however often this is tried

    def edit(head: Head) -> Head | None:
        log.check_not_set_back(head)
        there = lost.fetch(log.files, head)
        if any(each.first == entry.first for each in there) is not undo:
            return None  # done before
        known = head.lost, head.gc_epoch
        if known not in staged:
            first = trimmed.first_ledger(head, planned=True)
            others = [each for each in there if each.first != entry.first and each.ledger >= first]
            staged[known] = lost.stage(log.files, others if undo else [*others, entry], head.gc_epoch)
        return replace(head, lost=staged[known])

    log.change_head(edit, "giving up a damaged entry", lambda: [log.admins_guard()])
