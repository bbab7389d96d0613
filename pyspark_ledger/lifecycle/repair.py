"""After ZooKeeper was rolled back to an older state: what is known of the loss, and how a topic goes on.

A rollback loses the commits that were made after the state to which ZooKeeper was set back. Storage may still have
them: the newest snapshot of the log says which they were. If nothing was committed since the rollback, they are brought
back (:func:`bring_back`), and whoever has seen them goes on as if nothing had happened. Otherwise there are two
histories, of which ZooKeeper has one: then the topic goes on without the other (:func:`accept_loss`).

In both cases it goes on with numbers that nothing of the lost history can have used: see ``jump``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark_ledger.base import names
from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.lifecycle.beyond import Beyond, Later, look_beyond
from pyspark_ledger.lifecycle.jump import GoneOn, Jump, Known
from pyspark_ledger.lifecycle.rebuild_readers import is_before_begin, is_past_end
from pyspark_ledger.log import snapshots, trimmed
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import Create, CursorKey, DedupKey, GcKey, Op, PartKey, PoliciesKey, Put, SchemaKey
from pyspark_ledger.metadata.records import Cursor, DedupSnapshot, GcEpoch, Head, SetBack
from pyspark_ledger.metadata.transactions import find

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Damage:
    """What is known of a rollback of ZooKeeper.

    Attributes:
        found: when it was noticed.
        found_by: who noticed it.
        why: what was noticed.
        end: the end of the topic as it is now.
        records: records of the topic as it is now.
        last_publish: when the last commit that is left was published; None if there is none.
        lost_commits: commits that are known to be lost; there may be more that nobody knows of.
        later_files: files that were written after the state to which ZooKeeper was rolled back, as far as their names
            show it.
        subscriptions: those that are past the end: a repair moves them to the end.
        later: what storage has of what was lost; None if it has nothing.
    """

    found: datetime
    found_by: str
    why: str
    end: Position
    records: int
    last_publish: datetime | None
    lost_commits: int
    later_files: int
    subscriptions: tuple[str, ...]
    later: Later | None = None


def inspect(log: Log) -> Damage | None:
    """What is known of a rollback; None if nobody has noticed one, and nothing shows it. Changes nothing."""
    return _found(log)[0]


def _found(log: Log) -> tuple[Damage | None, Beyond]:
    epochs = _epochs(log)  # before the head is read, or an epoch that gc has just begun would look later
    beyond = look_beyond(log)
    head = log.view().head
    later = sum(_count_files(log, epoch) for epoch in epochs if epoch > head.gc_epoch)
    noted = head.set_back
    if noted is None and not later and not beyond.is_lost:
        return None, beyond
    if noted is None:
        why = f"{later} files are of later gc epochs"
        if beyond.is_lost:
            why = f"{beyond.where} has a commit that it does not have"
        noted = SetBack(log.clock.now_ms(), names.this_process(), why)
    next_commit = max(noted.next_commit, beyond.known.next_commit if beyond.is_lost else 0)
    damage = Damage(
        found=_moment(noted.found_ms),
        found_by=noted.found_by,
        why=noted.why,
        end=head.end,
        records=head.records,
        last_publish=_moment(head.last_publish_ms) if head.last_publish_ms else None,
        lost_commits=max(0, next_commit - head.next_commit),
        later_files=later,
        subscriptions=tuple(name for name, _ in _cursors(log, lambda cursor: is_past_end(cursor, head))),
        later=beyond.later,
    )
    known = Known(gc_epoch=max(epochs, default=0)) | beyond.known
    return damage, replace(beyond, known=known)


def accept_loss(log: Log) -> Damage:
    """The topic goes on with what is there. Can be interrupted and repeated.

    :raises InvalidInput: there is nothing to repair.
    """
    damage, beyond = _found(log)
    if damage is None:
        raise _nothing_to_repair(log)
    for name in damage.subscriptions:
        _fit(log, name)
    _Repair(log, beyond).carry_out()
    snapshots.leave(log)
    logger.warning("repaired topic=%s end=%s lost_commits=%d", log.topic.name, damage.end, damage.lost_commits)
    return damage


def bring_back(log: Log) -> Damage:
    """The topic goes on with what storage has. Can be interrupted and repeated. Subscriptions and token groups stay as
    ZooKeeper has them: what was acknowledged since then is delivered again, and tokens that were consumed since then
    are there again.

    :raises InvalidInput: there is nothing to repair, or storage has nothing that follows what is there.
    """
    damage, beyond = _found(log)
    if damage is None:
        raise _nothing_to_repair(log)
    if damage.later is None or damage.later.why_not:
        why = damage.later.why_not if damage.later is not None else "storage has no commit that ZooKeeper does not have"
        raise InvalidInput(
            f"topic '{log.topic.name}': nothing can be brought back, and nothing was changed: {why}. What is left is "
            "to accept the loss",
            "LEDGER_NOT_BROUGHT_BACK",
        )
    _BringBack(log, beyond).carry_out()
    head, policies = log.refresh(sync=True).head, log.policies().record
    for name, _ in _cursors(log, lambda found: is_past_end(found, head) or is_before_begin(found, head, policies)):
        _fit(log, name)
    snapshots.leave(log)
    logger.warning("repaired topic=%s records=%d brought back", log.topic.name, damage.later.records)
    return damage


def _nothing_to_repair(log: Log) -> InvalidInput:
    return InvalidInput(
        f"topic '{log.topic.name}' needs no repair: nothing shows that ZooKeeper was rolled back",
        "LEDGER_NOTHING_TO_REPAIR",
    )


class _Repair:
    """One transaction: seals the open ledger, begins a new one far away, and allows writing again."""

    def __init__(self, log: Log, beyond: Beyond) -> None:
        self._log, self._beyond = log, beyond
        self._ops: list[Op] = []

    def carry_out(self) -> None:
        self._log.change_head(self._repaired, "a repair", lambda: self._ops)

    def _repaired(self, head: Head) -> Head | None:
        known = self._beyond.known
        is_known = known.gc_epoch <= head.gc_epoch and (not self._beyond.is_lost or known.next_commit <= head.repaired)
        if head.set_back is None and is_known:
            return None  # it was applied when it was sent before, or somebody else was faster
        uuid = head.uuid
        dedup, begun = find(self._log.metadata, DedupKey(uuid)), find(self._log.metadata, GcKey(uuid))
        assert dedup is not None
        assert begun is not None
        after = self._gone_on(head, dedup.record)
        self._ops = [
            Put(DedupKey(uuid), after.dedup, dedup.version),
            Put(GcKey(uuid), GcEpoch(after.head.gc_epoch), begun.version),
            *self._others(),
        ]
        return after.head

    def _gone_on(self, head: Head, dedup: DedupSnapshot) -> GoneOn:
        log = self._log
        if dedup.next_commit != head.ledger_first_commit:
            raise Conflict(f"topic '{head.name}' was sealed at this moment: try again")
        jump = Jump(log.files, log.limits, log.clock.now_ms(), staged_in=head.gc_epoch)
        return jump.of(head, log.view().open_commits, dedup, self._beyond.known)

    def _others(self) -> Iterator[Op]:
        return iter(())


class _BringBack(_Repair):
    """The same, with the log as storage has it."""

    def _gone_on(self, head: Head, dedup: DedupSnapshot) -> GoneOn:
        log, saved = self._log, self._beyond.snapshot
        assert saved is not None
        if why := look_beyond(log).why_not():
            raise InvalidInput(f"topic '{head.name}': {why}; nothing was changed", "LEDGER_NOT_BROUGHT_BACK")
        # In the epoch of what the index has: a node of it is never older than what is below it.
        staged_in = max(head.gc_epoch, saved.head.gc_epoch)
        jump = Jump(log.files, log.limits, log.clock.now_ms(), staged_in=staged_in, intact=self._beyond.is_newest)
        brought = replace(saved.head, moves=head.moves)  # as of the namespace
        return jump.of(brought, saved.commits, saved.dedup, self._beyond.known | Known.by(head))

    def _others(self) -> Iterator[Op]:
        """Policies and schemas, which are newer than those that ZooKeeper has."""
        metadata, uuid, saved = self._log.metadata, self._log.topic.uuid, self._beyond.snapshot
        assert saved is not None
        policies = find(metadata, PoliciesKey(uuid))
        assert policies is not None
        yield Put(PoliciesKey(uuid), saved.policies, policies.version)
        for schema in saved.schemas:
            found = find(metadata, SchemaKey(uuid, schema.id))
            if found is None:
                yield Create(SchemaKey(uuid, schema.id), schema)
            elif found.record != schema:
                yield Put(SchemaKey(uuid, schema.id), schema, found.version)


def _epochs(log: Log) -> list[int]:
    """The gc epochs that have a folder."""
    found = map(names.parse_epoch_folder, log.storage.folders(names.topic_folder(log.topic.uuid)))
    return [epoch for epoch in found if epoch is not None]


def _count_files(log: Log, epoch: int) -> int:
    return sum(1 for _ in log.storage.list(names.epoch_folder(log.topic.uuid, epoch)))


def _fit(log: Log, name: str) -> None:
    """Moves a cursor that is past the end to the end, and one that is before where the log begins to there. Unless
    another repair has done it: then there may be new records by now, which must not be skipped."""

    def move(cursor: Cursor) -> Cursor | None:
        head = log.refresh(sync=True).head
        if is_past_end(cursor, head):
            moved = node.moved(cursor, head.records, position=head.end)
            return replace(moved, last_backward_revision=cursor.revision + 1, properties=())
        if is_before_begin(cursor, head, log.policies().record):
            ordinal = trimmed.records_before_begin(head)
            return node.moved(cursor, ordinal, node.acks(cursor), trimmed.begin(head))
        return None

    node = CursorNode(log, name)
    revision = RevisionController(node)
    revision.start_revision()
    revision.end_revision(move)


def _cursors(log: Log, wanted: Callable[[Cursor], bool]) -> Iterator[tuple[str, Cursor]]:
    keys = log.metadata.children(PartKey(log.topic.uuid, "subscriptions"))
    for found in log.metadata.read_many([key for key in keys if isinstance(key, CursorKey)]):
        if found is not None and wanted(found.record):
            yield found.record.name, found.record


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
