"""A subscription seen from outside: look at it and move it, also while a query or a consumer follows it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import Conflict, CursorUnderRevision, InvalidInput
from pyspark_ledger.log import places, scan
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.places import Place, PlaceLike, Settled
from pyspark_ledger.metadata.records import Cursor

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResetResult:
    """What a reset did, or a skip, a rewind, a redelivery: where the cursor is now.

    ``exact`` is False only after a reset to a position that has no record (masked, or past the end): the cursor is then
    at the next valid one."""

    position: Position
    revision: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class ResetPreview:
    """What a reset would do. ``exact`` is as in :class:`ResetResult`."""

    current: Position  # where the cursor is
    position: Position  # where it would be
    exact: bool
    skipped_records: int  # not acknowledged, and nobody would get them
    repeated_records: int  # acknowledged, and they would come again


@dataclass(frozen=True, slots=True)
class CursorStats:
    """What anybody may see of a subscription."""

    name: str
    mark_delete: Position
    backlog_records: int
    backlog_bytes: int
    backlog_seconds: float  # age of the oldest record that is not acknowledged
    owner: str  # empty: nobody is attached
    epoch: int
    revision: int  # position resets so far
    revising_seconds: float | None  # since when one is running; None: none is
    individual_acks: int
    properties: Mapping[str, int]


class CursorHandle:
    """A subscription seen from outside: look at it and move it, also while a query or a consumer follows it."""

    def __init__(self, log: Log, name: str) -> None:
        self._log = log
        self._node = CursorNode(log, name)

    @property
    def name(self) -> str:
        return self._node.name

    def reset(self, to: PlaceLike, *, discard_planned: bool = False, operation_id: bytes | None = None) -> ResetResult:
        """Moves the subscription to ``earliest``, ``latest``, a position, or the first record published at or after a
        time (a datetime or ISO 8601). Whoever follows it goes on from there: a query with its next batch.

        A batch that Spark has logged is still read as it was planned. ``discard_planned`` voids such batches if they
        have not finished: they read nothing, now and in every replay. It is the way past a record that makes a query
        fail for ever, and not exactly-once for a query with state.

        With an ``operation_id`` of 16 bytes a repeated call is done once."""
        place = self._destination(to)
        settled: Settled | None = None

        def move(cursor: Cursor) -> Cursor:
            nonlocal settled
            view = self._log.refresh(sync=True)
            settled = places.settle(self._log, view, place)
            ordinal = scan.records_before(self._log, view, settled.position)
            moved = self._node.moved(cursor, ordinal, position=settled.position)
            void_below = cursor.revision + 1 if discard_planned else cursor.void_below
            return replace(moved, last_backward_revision=cursor.revision + 1, void_below=void_below, properties=())

        cursor = self._revise(move, operation_id)
        if settled is None:  # an earlier call with this operation id did it
            settled = places.settle(self._log, self._log.refresh(sync=True), place)
        return ResetResult(cursor.mark_delete, cursor.revision, settled.exact)

    def preview(self, to: PlaceLike) -> ResetPreview:
        """What :meth:`reset` to the same place would do now. Changes nothing."""
        place = self._destination(to)
        cursor, view = self._node.refresh(sync=True), self._log.refresh(sync=True)
        settled = places.settle(self._log, view, place)
        ordinal = scan.records_before(self._log, view, settled.position)
        acks = self._node.acks(cursor)  # of records after the cursor's position; a reset drops them
        acks_after = len(acks.since(ordinal))
        return ResetPreview(
            current=cursor.mark_delete,
            position=settled.position,
            exact=settled.exact,
            skipped_records=max(0, ordinal - cursor.ordinal) - (len(acks) - acks_after),
            repeated_records=max(0, cursor.ordinal - ordinal) + acks_after,
        )

    def _destination(self, to: PlaceLike) -> Place:
        place = places.parse(to, "place to reset to")
        places.check_topic(self._log, place)
        return place

    def skip(self, records: int, *, operation_id: bytes | None = None) -> ResetResult:
        """Acknowledges the next so many records that are not acknowledged. Never moves a running query back."""
        if type(records) is not int or records < 0:
            raise InvalidInput(f"cannot skip {records!r} records: give a whole number, 0 or more")

        def forward(cursor: Cursor) -> Cursor:
            acks, ordinal, left = self._node.acks(cursor), cursor.ordinal, records
            while left:
                ordinal = acks.next_missing(ordinal)
                gap = next((start for start, _ in acks.since(ordinal)), ordinal + left) - ordinal
                step = min(gap, left)
                ordinal, left = ordinal + step, left - step
            ordinal = min(acks.next_missing(ordinal), self._log.refresh(sync=True).head.records)
            return self._node.moved(cursor, ordinal, acks)

        cursor = self._revise(forward, operation_id)
        return ResetResult(cursor.mark_delete, cursor.revision)

    def clear_backlog(self, *, operation_id: bytes | None = None) -> ResetResult:
        """Acknowledges everything that is in the topic now. Never moves a running query back."""

        def forward(cursor: Cursor) -> Cursor:
            return self._node.moved(cursor, self._log.refresh(sync=True).head.records)

        cursor = self._revise(forward, operation_id)
        return ResetResult(cursor.mark_delete, cursor.revision)

    def rewind(self, *, operation_id: bytes | None = None) -> ResetResult:
        """Whoever follows the subscription reads everything again that is not acknowledged."""
        cursor = self._revise(lambda cursor: replace(cursor, last_backward_revision=cursor.revision + 1), operation_id)
        return ResetResult(cursor.mark_delete, cursor.revision)

    def redeliver(self, *, operation_id: bytes | None = None) -> ResetResult:
        """As :meth:`rewind`, under a new epoch: the redelivered records can be told from the first delivery."""

        def again(cursor: Cursor) -> Cursor:
            return replace(cursor, last_backward_revision=cursor.revision + 1, epoch=cursor.epoch + 1)

        cursor = self._revise(again, operation_id)
        return ResetResult(cursor.mark_delete, cursor.revision)

    def _revise(self, edit: Callable[[Cursor], Cursor], operation_id: bytes | None) -> Cursor:
        operation = self._log.clock.new_id() if operation_id is None else operation_id
        if not isinstance(operation, bytes) or len(operation) != 16:
            raise InvalidInput(f"operation_id is {operation!r}: it must be 16 bytes")
        cursor = self._node.refresh(sync=True)
        if operation in cursor.operations:
            return cursor
        controller = RevisionController(self._node)
        controller.start_revision()
        revised = controller.end_revision(edit, operation)
        logger.info(
            "revised topic=%s subscription=%s revision=%d position=%s",
            self._log.topic.name, self.name, revised.revision, revised.mark_delete,
        )  # fmt: skip
        return revised

    def mark_delete(self, position: Position | str, properties: Mapping[str, int] | None = None) -> Position:
        """Acknowledges everything before a position, and attaches properties to it. Forward only: going back is
        :meth:`reset`."""
        wanted = position if isinstance(position, Position) else Position.parse(position)
        attached = _attached(properties or {})

        def forward(cursor: Cursor) -> Cursor | None:
            if self._node.reviser(cursor) is not None:
                raise CursorUnderRevision(f"subscription '{self.name}' is being reset: try again")
            view = self._log.refresh(sync=True)
            self._log.check_not_past_end(view, wanted)
            settled = places.settle(self._log, view, wanted).position
            if settled < cursor.mark_delete:
                raise InvalidInput(
                    f"subscription '{self.name}' is at {cursor.mark_delete}, past {wanted}: mark_delete only moves "
                    "forward, reset() moves back",
                    "LEDGER_POSITION_BEHIND",
                )
            moved = self._node.moved(
                cursor, scan.records_before(self._log, view, settled), self._node.acks(cursor), settled
            )
            done = replace(moved, properties=attached, reviser=b"", revising_since_ms=0)
            return None if done == cursor else done

        return self._node.update(forward).mark_delete

    def properties(self) -> dict[str, int]:
        """What is attached to the mark-delete position."""
        return dict(self._node.refresh(sync=True).properties)

    def stats(self) -> CursorStats:
        cursor = self._node.refresh(sync=True)
        view = self._log.refresh(sync=True)
        acks = self._node.acks(cursor)
        owner, reviser = self._node.owner(cursor), self._node.reviser(cursor)
        now = self._log.clock.now_ms()
        backlog = view.head.records - cursor.ordinal - len(acks)
        oldest = self._log.commit_at_ordinal(view, cursor.ordinal).publish_ms if backlog else now
        return CursorStats(
            name=self.name,
            mark_delete=cursor.mark_delete,
            backlog_records=backlog,
            backlog_bytes=view.head.bytes - scan.bytes_before(self._log, view, cursor.mark_delete) if backlog else 0,
            backlog_seconds=max(0, now - oldest) / 1000,
            owner=owner.name if owner is not None else "",
            epoch=cursor.epoch,
            revision=cursor.revision,
            revising_seconds=(now - cursor.revising_since_ms) / 1000 if reviser is not None else None,
            individual_acks=len(acks),
            properties=dict(cursor.properties),
        )

    def delete(self) -> None:
        """Removes the subscription. Refused while somebody is attached or resets it."""
        self._node.remove(self._check_unused)

    def _check_unused(self, cursor: Cursor) -> None:
        owner = self._node.owner(cursor)
        if owner is not None:
            raise Conflict(
                f"subscription '{self.name}' is in use by {owner.name}: stop it first", "LEDGER_CURSOR_IN_USE"
            )
        if self._node.reviser(cursor) is not None:
            raise CursorUnderRevision(f"subscription '{self.name}' is being reset: try again")


def _attached(properties: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    if not isinstance(properties, Mapping):
        raise InvalidInput(f"properties are {properties!r}: give a mapping", "LEDGER_INVALID_PROPERTY")
    for name, value in properties.items():
        if type(name) is not str or type(value) is not int or not -1 << 63 <= value < 1 << 63:
            raise InvalidInput(
                f"property {name!r} is {value!r}: a property is a name with a whole number of 64 bits",
                "LEDGER_INVALID_PROPERTY",
            )
    return tuple(sorted(properties.items()))
