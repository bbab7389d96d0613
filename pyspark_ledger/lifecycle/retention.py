"""Retention: gives up the oldest ledgers of a topic, as its policies say.

A ledger goes as a whole, when it is sealed and past what the topic keeps, by age or by size. A subscription that has
not passed it holds it back, and so does the newest compacted generation: the records after its horizon are needed for
the state of the keys. Nobody else does. One transaction moves the place where the log begins; the files go later, with
gc, so that batches that were planned before can still be read.

Whoever begins to need old records sets a guard node, at the version that was read before the head. So does this, and it
lists who holds ledgers back after it has read the guard: whoever comes after that makes this transaction fail (I15).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark_ledger.base.position import Position
from pyspark_ledger.log import places, scan, trimmed
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.places import PlaceLike
from pyspark_ledger.metadata.port import Check, CursorKey, Op, PartKey, PoliciesKey
from pyspark_ledger.metadata.records import Commit, Cursor, Head, PendingRange, Policies, Trim

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hold:
    """Who holds back ledgers that retention would give up.

    Attributes:
        by: a subscription, or the compaction.
        records: records that are held back, by it alone or by others too.
        bytes: stored bytes of these.
        subscription: the subscription's name; empty for the compaction.
    """

    by: str
    records: int
    bytes: int
    subscription: str = ""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What ``client.trim`` gave up, or with ``dry_run`` would give up.

    Attributes:
        begin: where the topic begins after that.
        ledgers: how many numbers of ledgers that were: all have one, and after a repair some are left out.
        records: how many records.
        bytes: how many stored bytes. Their files are deleted two to three days later, by gc.
        why: in a sentence, why that is all.
        holds: who holds back how much more.
    """

    begin: Position
    ledgers: int
    records: int
    bytes: int
    why: str
    holds: tuple[Hold, ...]


def trim(log: Log, *, before: PlaceLike | None = None, dry_run: bool = False) -> Trimmed:
    """Gives up what the topic's policies say; with ``before``, the ledgers that end before a place instead. Costs the
    same for a topic of ten ledgers and of a million."""
    if dry_run:
        return _plan(log, log.refresh(sync=True), before)[0]
    done = Trimmed(places.earliest(log.view()), 0, 0, 0, "", ())
    ops: list[Op] = []

    def given_up(head: Head) -> Head | None:
        nonlocal done, ops
        log.check_not_set_back(head)
        policies = log.policies()
        ops = [log.retention_guard(), Check(PoliciesKey(head.uuid), policies.version)]
        log.metadata.sync()  # who is listed now was there when the guard was read, whichever server answers
        done, trim = _plan(log, log.view(), before)
        return None if trim is None else replace(head, trim=trim, pending=_pending(log, head, trim))

    log.refresh(sync=True)
    log.change_head(given_up, "giving up ledgers", lambda: [*ops, log.admins_guard()])
    if done.ledgers:
        logger.info(
            "trimmed topic=%s begin=%s ledgers=%d records=%d bytes=%d",
            log.topic.name, done.begin, done.ledgers, done.records, done.bytes,
        )  # fmt: skip
    return done


def wanted(log: Log, view: View, policies: Policies) -> int:
    """The first ledger that is kept, if nobody holds back any."""
    return _Ledgers(log, view).first_kept(policies)


def waits_for_compaction(log: Log, view: View, policies: Policies) -> bool:
    """Whether ledgers are past what the topic keeps, and a compaction has to come first: the topic is to be compacted
    and never was, or the newest generation does not have what is in them."""
    done = view.head.generation.read if view.head.generation is not None else 0
    ledgers = _Ledgers(log, view)
    return bool(policies.compact_after_bytes) and max(ledgers.first, ledgers.of_record(done)) < ledgers.first_kept(
        policies
    )


def start_of_wanted(log: Log, view: View, policies: Policies) -> LedgerStart:
    """Where that ledger begins."""
    ledgers = _Ledgers(log, view)
    return ledgers.start(ledgers.first_kept(policies))


def held_back(log: Log, view: View, wanted: LedgerStart, ordinal: int) -> tuple[int, int]:
    """Records and bytes that retention would give up, and that somebody holds back who needs the record with so many
    before it."""
    ledgers = _Ledgers(log, view)
    held = ledgers.start(ledgers.of_record(ordinal))
    return max(0, wanted.records - held.records), max(0, wanted.bytes - held.bytes)


def next_ms(log: Log, view: View, policies: Policies) -> int | None:
    """When the first ledger that is there will be too old; None if none is sealed, or the topic has no retention by
    age."""
    index = log.index(view)
    leaf = next(index.leaves(lambda row: row.ledger, 0), None)
    if leaf is None or not policies.retention_ms:
        return None
    return index.commits(leaf)[-1].publish_ms + policies.retention_ms + 1


def holds(log: Log, view: View, policies: Policies) -> list[Hold]:
    """Who holds back how much of what retention would give up now. Changes nothing, and asks nobody if the topic keeps
    everything."""
    if not policies.retention_ms and not policies.retention_bytes:
        return []
    ledgers = _Ledgers(log, view)
    return [hold for hold, _ in _held(log, view, ledgers, ledgers.start(ledgers.first_kept(policies)))]


def held_by(log: Log, view: View) -> Iterator[tuple[str, int, str]]:
    """Who holds back ledgers, the number of records before the first one that is needed, and the subscription."""
    for cursor in subscriptions(log):
        yield f"subscription '{cursor.name}'", cursor.ordinal, cursor.name
    if view.head.generation is not None:
        yield f"the compaction, whose horizon is {view.head.generation.horizon}", view.head.generation.read, ""


def subscriptions(log: Log) -> list[Cursor]:
    keys = log.metadata.children(PartKey(log.topic.uuid, "subscriptions"))
    found = log.metadata.read_many([key for key in keys if isinstance(key, CursorKey)])
    return [cursor.record for cursor in found if cursor is not None]


# -- what is given up -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerStart:
    """Where a ledger begins, and what is before it."""

    ledger: int
    commit: int
    records: int
    bytes: int
    tokens: int


def _plan(log: Log, view: View, before: PlaceLike | None) -> tuple[Trimmed, Trim | None]:
    """What is given up, and where the log begins then; None if that does not change."""
    ledgers, policies = _Ledgers(log, view), log.policies().record
    asked = ledgers.first_kept(policies) if before is None else ledgers.before(before)
    start, target = ledgers.start(ledgers.first), ledgers.start(asked)
    held = list(_held(log, view, ledgers, target))
    holds = [hold for hold, _ in held]
    first = min([target, *(needed for _, needed in held)], key=lambda each: each.ledger)
    if first.ledger <= start.ledger:
        why = _why(policies, before, holds)
        return Trimmed(places.earliest(view), 0, 0, 0, why, tuple(holds)), None
    trim = Trim(
        Position(first.ledger, 0, 0), first.commit, first.records, first.bytes, first.tokens, ledgers.end_before(first)
    )
    done = Trimmed(
        trim.position,
        first.ledger - start.ledger,
        first.records - start.records,
        first.bytes - start.bytes,
        _why(policies, before, holds),
        tuple(holds),
    )
    return done, trim


def _held(log: Log, view: View, ledgers: _Ledgers, target: LedgerStart) -> Iterator[tuple[Hold, LedgerStart]]:
    """Who needs ledgers before the first one that would be kept, and the first of these."""
    for by, ordinal, subscription in held_by(log, view):
        needed = ledgers.start(ledgers.of_record(ordinal))
        if needed.ledger < target.ledger:
            hold = Hold(by, target.records - needed.records, target.bytes - needed.bytes, subscription)
            yield hold, needed


def _why(policies: Policies, before: PlaceLike | None, holds: list[Hold]) -> str:
    if holds:
        most = max(holds, key=lambda hold: hold.records)
        others = f", and {len(holds) - 1} more" if len(holds) > 1 else ""
        return f"{most.by} holds back {most.records:,} records{others}"
    if before is not None:
        return "there is no other sealed ledger that ends before that place"
    if not policies.retention_ms and not policies.retention_bytes:
        return "the topic keeps everything: it has neither a retention age nor a retention size"
    return "no other sealed ledger is past what the topic keeps"


def _pending(log: Log, head: Head, trim: Trim) -> tuple[PendingRange, ...]:
    """Ranges of one epoch are one. More than a few are merged under the later epoch: what is given up stays longer."""
    index = log.index(log.view())
    first = next(iter(index.leaves(lambda row: row.ledger, trimmed.begin(head).ledger)))
    ranges = [*head.pending, PendingRange(first.ledger, trim.position.ledger, head.gc_epoch)]
    while len(ranges) > 1 and (ranges[-2].epoch == ranges[-1].epoch or len(ranges) > log.limits.pending_ranges):
        at = len(ranges) - 2 if ranges[-2].epoch == ranges[-1].epoch else 0
        ranges[at : at + 2] = [PendingRange(ranges[at].first, ranges[at + 1].end, ranges[at + 1].epoch)]
    return tuple(ranges)


class _Ledgers:
    """Finds ledgers by what is before them: a few files of the index, however long the log is."""

    def __init__(self, log: Log, view: View) -> None:
        self._log, self._view = log, view
        self._index = log.index(view)

    @property
    def first(self) -> int:
        leaf = next(self._index.leaves(lambda row: row.ledger, 0), None)
        return self._view.head.ledger if leaf is None else leaf.ledger

    def first_kept(self, policies: Policies) -> int:
        """By age or by size, whichever gives up more."""
        kept = [self.first]
        if policies.retention_ms:
            # The smaller of two clocks: one that is ahead gives up nothing that is not old.
            now = min(self._log.clock.now_ms(), self._log.metadata.now_ms())
            kept.append(self._after_time(now - policies.retention_ms))
        if policies.retention_bytes:
            kept.append(self._of_byte(self._view.head.bytes - policies.retention_bytes))
        return max(kept)

    def before(self, place: PlaceLike) -> int:
        """The ledger that a place is in: those before it end before the place."""
        settled = places.settle(self._log, self._view, place).position
        return self.of_record(scan.records_before(self._log, self._view, settled))

    def _after_time(self, publish_ms: int) -> int:
        """The first ledger that has a commit which was published at or after a time."""
        leaves = self._index.leaves(lambda row: row.publish_ms, publish_ms)
        for leaf in leaves:  # the first one may have begun before, and the next ones begin after
            if self._index.commits(leaf)[-1].publish_ms >= publish_ms:
                return leaf.ledger
        return self._view.head.ledger

    def _of_byte(self, byte: int) -> int:
        """The ledger that a byte of the log, as they were written, is in."""
        if self._open.bytes <= byte:
            return self._view.head.ledger
        leaf = next(self._index.leaves(self._index.bytes_before, max(0, byte)), None)
        return self._view.head.ledger if leaf is None else leaf.ledger

    def of_record(self, ordinal: int) -> int:
        """The ledger of the record that has so many before it."""
        if self._open.records <= ordinal:
            return self._view.head.ledger
        leaf = next(self._index.leaves(lambda row: row.records_before, ordinal), None)
        return self._view.head.ledger if leaf is None else leaf.ledger

    def start(self, ledger: int) -> LedgerStart:
        leaf = self._index.leaf(ledger)
        return self._open if leaf is None else _start(self._index.commits(leaf)[0])

    @property
    def _open(self) -> LedgerStart:
        head = self._view.head
        if self._view.open_commits:
            return _start(self._view.open_commits[0])
        tokens = head.token_base + head.tokens
        return LedgerStart(head.ledger, head.ledger_first_commit, head.records, head.bytes, tokens)

    def end_before(self, start: LedgerStart) -> Position:
        """After the last record before a ledger."""
        leaf = next(leaf for leaf in self._index.leaves(lambda row: row.ledger, start.ledger - 1))
        for commit in reversed(self._index.commits(leaf)):
            entries = self._log.entries(commit)
            for number in range(len(entries) - 1, -1, -1):
                if entries[number].kept:
                    return Position(commit.ledger, commit.first_entry + number + 1, 0)
        return Position(leaf.ledger, 0, 0)


def _start(commit: Commit) -> LedgerStart:
    return LedgerStart(commit.ledger, commit.number, commit.records_before, commit.bytes_before, commit.tokens_before)
