"""What storage has of a topic's log beyond what ZooKeeper has, after ZooKeeper was rolled back.

Snapshots of the log name its commits. If one of them has commits that ZooKeeper does not have, ZooKeeper was rolled
back. Both histories begin with the same commits. If that is all that ZooKeeper has, nothing was committed since the
rollback, and the log can go on with what storage has.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark_ledger.errors import CorruptData, InvalidInput, Unavailable
from pyspark_ledger.lifecycle.jump import Known
from pyspark_ledger.lifecycle.rebuild_sources import check_usable
from pyspark_ledger.log import snapshots
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.snapshots import Listed, LogSnapshot


@dataclass(frozen=True, slots=True)
class Later:
    """What storage has of the commits that were lost.

    Attributes:
        saved: when the snapshot was taken that says so.
        where: that file.
        first_commit: the number of the first commit that ZooKeeper does not have.
        last_commit: the number of the last one.
        records: how many records these have.
        first_publish: when the first of them was published.
        last_publish: when the last one was.
        why_not: why they cannot be brought back; empty: they can.
    """

    saved: datetime
    where: str
    first_commit: int
    last_commit: int
    records: int
    first_publish: datetime | None
    last_publish: datetime | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Beyond:
    """What snapshots of the log show. ``is_lost``: the newest one has a commit that ZooKeeper does not have."""

    known: Known
    is_lost: bool = False
    where: str = ""
    snapshot: LogSnapshot | None = None  # the newest one that can be used, if it has something that was lost
    is_newest: bool = False
    later: Later | None = None

    def why_not(self) -> str:
        """Why nothing can be brought back; empty: something can."""
        return "what storage has beyond ZooKeeper has changed meanwhile" if self.later is None else self.later.why_not


def look_beyond(log: Log) -> Beyond:
    """Compares ZooKeeper with the snapshots of the log. The view of the log is read after they were listed."""
    there = snapshots.listed(log.storage, log.topic.uuid)
    view = log.refresh(sync=True)
    lost = [found for found in there if found.next_commit > view.head.repaired]
    known = Known(next_commit=max((found.next_commit for found in there), default=0))
    if not lost or log.has_commit(view, lost[-1].next_commit - 1, lost[-1].last_commit):
        return Beyond(known)
    where = log.storage.where(lost[-1].path)
    for found in reversed(lost):
        snapshot = _usable(log, found)
        if snapshot is not None:
            known |= Known.by(snapshot.head)
            later = _compared(log, view, snapshot, log.storage.where(found.path))
            if later is not None:
                return Beyond(known, True, where, snapshot, found == lost[-1], later)
    return Beyond(known, True, where)


def _usable(log: Log, found: Listed) -> LogSnapshot | None:
    try:
        snapshot = snapshots.read(log.storage, found)
        check_usable(log.files, snapshot, log.limits)
    except (CorruptData, InvalidInput, Unavailable):
        return None
    return snapshot


def _compared(log: Log, view: View, saved: LogSnapshot, where: str) -> Later | None:
    """What the snapshot has that ZooKeeper does not have; None if that is nothing."""
    there = View(saved.head, 0, saved.commits)
    here, last = view.head.next_commit, saved.head.next_commit - 1
    first = _first_difference(log, view, there)
    if first > last:
        return None
    commit = log.commit(there, first)
    why_not = ""
    if saved.head.trim is not None and here <= saved.head.trim.commit:
        why_not = "old ledgers were given up since: it cannot be told whether both begin with the same commits"
    elif first < here:
        why_not = (
            f"from commit {first} on ZooKeeper has other commits than storage, up to {here - 1}: they were made after "
            "the rollback, and one log cannot have both"
        )
    return Later(
        saved=_moment(saved.written_ms) or datetime.fromtimestamp(0, UTC),
        where=where,
        first_commit=first,
        last_commit=last,
        records=saved.head.records - (commit.records_before if commit is not None else saved.head.records),
        first_publish=_moment(commit.publish_ms) if commit is not None else None,
        last_publish=_moment(saved.head.last_publish_ms),
        why_not=why_not,
    )


def _first_difference(log: Log, view: View, there: View) -> int:
    """The first number at which two histories have another commit, or only one of them has one: found by halves,
    because each commit has the id of the one before. (Numbers may have gaps, which repairs have left.)"""
    same = max(_begin(view), _begin(there))
    end = min(view.head.next_commit, there.head.next_commit)
    while same < end:
        middle = (same + end) // 2
        if _last_id(log, view, middle) == _last_id(log, there, middle):
            same = middle + 1
        else:
            end = middle
    return max(same, end)


def _last_id(log: Log, view: View, number: int) -> bytes:
    """The id of the last commit up to a number."""
    after = log.commit(view, number + 1)
    if after is None:
        return view.head.last_commit
    if after.previous:
        return after.previous
    found = log.commit(view, number)  # what comes after it is of format 1
    return found.id if found is not None else b""


def _begin(view: View) -> int:
    return view.head.trim.commit if view.head.trim is not None else 0


def _moment(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None
