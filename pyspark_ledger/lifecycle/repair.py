"""After ZooKeeper was rolled back to an older state: what is known of the loss, and how a topic goes on without it.

A rollback loses the commits that were made after the backup. Processes that survived it, offsets and files still speak
of them. So a repaired topic goes on with numbers that nothing of the lost history can have used: the next ledger,
commit, gc epoch and token come well after the largest that is known. Positions and tokens of lost records then name
nothing, and a writer, a reader or a gc of the lost history is recognised for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark_ledger.base import names
from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.lifecycle.jump import Jump, Known
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import CursorKey, DedupKey, GcKey, Op, PartKey, Put
from pyspark_ledger.metadata.records import Cursor, GcEpoch, Head, SetBack

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


def inspect(log: Log) -> Damage | None:
    """What is known of a rollback; None if nobody has noticed one, and nothing shows it. Changes nothing."""
    epochs = list(_file_epochs(log))  # before the head is read, or an epoch that gc has just begun would look later
    head = log.refresh(sync=True).head
    later = sum(epoch > head.gc_epoch for epoch in epochs)
    noted = head.set_back
    if noted is None and not later:
        return None
    if noted is None:
        noted = SetBack(log.clock.now_ms(), names.this_process(), f"{later} files are of later gc epochs")
    return Damage(
        found=_moment(noted.found_ms),
        found_by=noted.found_by,
        why=noted.why,
        end=head.end,
        records=head.records,
        last_publish=_moment(head.last_publish_ms) if head.last_publish_ms else None,
        lost_commits=max(0, noted.next_commit - head.next_commit),
        later_files=later,
        subscriptions=tuple(_past_end(log, head)),
    )


def accept_loss(log: Log) -> Damage:
    """The topic goes on with what is there. Can be interrupted and repeated.

    :raises InvalidInput: there is nothing to repair.
    """
    damage = inspect(log)
    if damage is None:
        raise InvalidInput(
            f"topic '{log.topic.name}' needs no repair: nothing shows that ZooKeeper was rolled back",
            "LEDGER_NOTHING_TO_REPAIR",
        )
    for name in damage.subscriptions:
        _move_to_end(log, name)
    _Repair(log, max(_file_epochs(log), default=0)).carry_out()
    logger.warning("repaired topic=%s end=%s lost_commits=%d", log.topic.name, damage.end, damage.lost_commits)
    return damage


class _Repair:
    """One transaction: seals the open ledger, begins a new one far away, and allows writing again."""

    def __init__(self, log: Log, last_file_epoch: int) -> None:
        self._log, self._last_file_epoch = log, last_file_epoch
        self._ops: list[Op] = []

    def carry_out(self) -> None:
        self._log.change_head(self._repaired, "a repair", lambda: self._ops)

    def _repaired(self, head: Head) -> Head | None:
        if head.set_back is None and self._last_file_epoch <= head.gc_epoch:
            return None  # it was applied when it was sent before, or somebody else was faster
        log, uuid = self._log, head.uuid
        dedup, begun = log.metadata.read(DedupKey(uuid)), log.metadata.read(GcKey(uuid))
        assert dedup is not None
        assert begun is not None
        if dedup.record.next_commit != head.ledger_first_commit:
            raise Conflict(f"topic '{head.name}' was sealed at this moment: try again")
        jump = Jump(log.files, log.limits, log.clock.now_ms(), staged_in=head.gc_epoch)
        after = jump.of(head, log.view().open_commits, dedup.record, Known(gc_epoch=self._last_file_epoch))
        self._ops = [
            Put(DedupKey(uuid), after.dedup, dedup.version),
            Put(GcKey(uuid), GcEpoch(after.head.gc_epoch), begun.version),
        ]
        return after.head


def _file_epochs(log: Log) -> Iterator[int]:
    for path in log.storage.list(names.topic_folder(log.topic.uuid)):
        parsed = names.parse_staged_file(log.topic.uuid, path)
        if parsed is not None:
            yield parsed[0]


def _move_to_end(log: Log, name: str) -> None:
    """Unless another repair has done it: then there may be new records by now, which must not be skipped."""

    def move(cursor: Cursor) -> Cursor | None:
        head = log.refresh(sync=True).head
        if not _is_past_end(cursor, head):
            return None
        moved = node.moved(cursor, head.records, position=head.end)
        return replace(moved, last_backward_revision=cursor.revision + 1, properties=())

    node = CursorNode(log, name)
    revision = RevisionController(node)
    revision.start_revision()
    revision.end_revision(move)


def _is_past_end(cursor: Cursor, head: Head) -> bool:
    return cursor.ordinal > head.records or cursor.mark_delete > head.end


def _past_end(log: Log, head: Head) -> Iterator[str]:
    keys = log.metadata.children(PartKey(log.topic.uuid, "subscriptions"))
    for found in log.metadata.read_many([key for key in keys if isinstance(key, CursorKey)]):
        if found is not None and _is_past_end(found.record, head):
            yield found.record.name


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
