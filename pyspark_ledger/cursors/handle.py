"""A subscription seen from outside: look at it and move it, also while a query or a consumer follows it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors import shares
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.revision import RevisionController
from pyspark_ledger.errors import Conflict, CursorUnderRevision, InvalidInput
from pyspark_ledger.log import places, scan
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.places import Place, PlaceLike, Settled
from pyspark_ledger.metadata.port import Op
from pyspark_ledger.metadata.records import Cursor

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResetResult:
    """Where a subscription is after a reset, a skip, a rewind or a redelivery.

    Attributes:
        position: its position, the next one to acknowledge.
        revision: its revision, which each of these raises by one.
        exact: False only after a reset to a position that has no record (a masked row, or past the end): then the
            subscription is at the next position that has one, or at the end.
    """

    position: Position
    revision: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class ResetPreview:
    """What a reset would do.

    Attributes:
        current: the subscription's position now.
        position: its position after the reset.
        exact: as in :class:`ResetResult`.
        skipped_records: records that are not acknowledged, and would not be delivered any more.
        repeated_records: records that are acknowledged, and would be delivered again.
    """

    current: Position
    position: Position
    exact: bool
    skipped_records: int
    repeated_records: int


@dataclass(frozen=True, slots=True)
class MemberStats:
    """One of the consumers that share a subscription.

    Attributes:
        name: its process.
        is_alive: False if its session has ended; then the others take what it has.
        seconds: for how long it has been there.
        records: how many it has for itself, delivered or about to be, that are not acknowledged.
        slots: the keys that come to it, of 1,024 parts; 0 if the subscription is not shared by key.
    """

    name: str
    is_alive: bool
    seconds: float
    records: int
    slots: int


@dataclass(frozen=True, slots=True)
class CursorStats:
    """The state of a subscription.

    Attributes:
        name: the subscription's name.
        mark_delete: its position: everything before is acknowledged.
        backlog_records: records that are not acknowledged.
        backlog_bytes: stored bytes after the position.
        backlog_seconds: age of the oldest record that is not acknowledged.
        owner: who follows it alone; empty if nobody does.
        epoch: how often somebody attached or had records redelivered.
        revision: how often the position was reset.
        revising_seconds: for how long a reset has been running; None if there is none.
        individual_acks: records after the position that are acknowledged.
        properties: numbers attached to the position.
        evicted: records that a backlog quota took from it, and that nobody has accepted as lost yet: until then, or
            until a reset, whoever follows it is told.
        lost: records that it has lost so far, and that its reader went on without.
        sharing: ``shared`` or ``key_shared`` if consumers share it, or did so last; else empty.
        members: the consumers that share it, each a :class:`MemberStats`.
    """

    name: str
    mark_delete: Position
    backlog_records: int
    backlog_bytes: int
    backlog_seconds: float
    owner: str
    epoch: int
    revision: int
    revising_seconds: float | None
    individual_acks: int
    properties: Mapping[str, int]
    evicted: int = 0
    lost: int = 0
    sharing: str = ""
    members: tuple[MemberStats, ...] = ()

    @property
    def followers(self) -> list[str]:
        """Who follows it and is alive: its owner, or those who share it."""
        living = [each.name for each in self.members if each.is_alive]
        return [self.owner, *living] if self.owner else living


class CursorHandle:
    """A subscription seen from outside: look at it and move it, also while a query or a consumer follows it. Made by
    ``client.cursor(topic, subscription)``.

    Methods that move it raise NotFound (LEDGER_CURSOR_NOT_FOUND) if there is no such subscription, CursorUnderRevision
    if somebody else resets it right now, and Unavailable or OutcomeUnknown if ZooKeeper does not answer. Those that
    take an ``operation_id`` (16 bytes, such as ``uuid.uuid4().bytes``) can be repeated safely after any error: calls
    with the same id are done once.

    >>> cursor = client.create_cursor("orders", "billing")
    >>> cursor.stats().backlog_records
    3
    >>> cursor.reset("latest")
    ResetResult(position=Position(ledger=0, entry=1, index=0), revision=1, exact=True)
    >>> cursor.stats().backlog_records
    0
    """

    def __init__(self, log: Log, name: str) -> None:
        self._log = log
        self._node = CursorNode(log, name)

    @property
    def name(self) -> str:
        """The subscription's name."""
        return self._node.name

    def reset(self, to: PlaceLike, *, discard_planned: bool = False, operation_id: bytes | None = None) -> ResetResult:
        """Moves the subscription to any place in the topic. Whoever follows it continues from there, a query with its
        next batch.

        ``to`` is ``earliest``, ``latest``, a position, a time (a datetime or ISO 8601, for the first record published
        at or after it), or a Spark offset's JSON.

        For readers with ``readCompacted`` ``earliest`` is the start of the compacted records, also of those whose
        originals the log has given up. A reset also ends what a backlog quota began: nobody is told of it any more.

        A batch that Spark has logged is still read as it was planned. With ``discard_planned``, such batches read
        nothing if they have not finished, now and in every replay. That is the way past a record that makes a query
        fail again and again. It is not exactly-once for a query that keeps state.

        Raises InvalidInput if ``to`` is not a place, or an offset of another topic; DataLoss (LEDGER_SET_BACK) if it is
        an offset that knows a commit which is not in the log; Fenced (LEDGER_REVISION_FENCED) if another reset took
        over because this one seemed dead.

        >>> cursor = client.create_cursor("orders", "shipping", start="latest")
        >>> cursor.reset("0:0:1").position
        Position(ledger=0, entry=0, index=1)
        """
        place = self._destination(to)
        settled: Settled | None = None
        guard: list[Op] = []

        def move(cursor: Cursor) -> Cursor:
            nonlocal settled
            guard[:] = [self._log.retention_guard()]
            view = self._log.refresh(sync=True)
            settled = places.settle(self._log, view, place, compacted=cursor.compacted)
            ordinal = scan.records_before(self._log, view, settled.position)
            moved = self._node.moved(cursor, ordinal, position=settled.position)
            void_below = cursor.revision + 1 if discard_planned else cursor.void_below
            return replace(
                moved, last_backward_revision=cursor.revision + 1, void_below=void_below, properties=(), evicted=0
            )

        cursor = self._revise(move, operation_id, lambda: guard)
        if settled is None:  # an earlier call with the same operation id has moved it
            settled = places.settle(self._log, self._log.refresh(sync=True), place, compacted=cursor.compacted)
        return ResetResult(cursor.mark_delete, cursor.revision, settled.exact)

    def preview(self, to: PlaceLike) -> ResetPreview:
        """Says what :meth:`reset` to the same place would do now. Changes nothing. Raises what :meth:`reset` raises
        for a wrong place.

        >>> client.create_cursor("orders", "audit", start="latest").preview("earliest").repeated_records
        3
        """
        place = self._destination(to)
        cursor, view = self._node.refresh(sync=True), self._log.refresh(sync=True)
        settled = places.settle(self._log, view, place, compacted=cursor.compacted)
        ordinal = scan.records_before(self._log, view, settled.position)
        acks = self._node.acks(cursor)  # after the cursor's position; a reset drops them
        acks_after = len(acks.since(ordinal))
        return ResetPreview(
            current=cursor.mark_delete,
            position=settled.position,
            exact=settled.exact,
            skipped_records=max(0, ordinal - cursor.ordinal) - (len(acks) - acks_after),
            repeated_records=max(0, cursor.ordinal - ordinal) + acks_after,
        )

    def _destination(self, to: PlaceLike) -> Place:
        place = places.parse(to, "place to reset to", self._log.topic.name)
        places.check_topic(self._log, place)
        places.check_seen(self._log, place)
        return place

    def skip(self, records: int, *, operation_id: bytes | None = None) -> ResetResult:
        """Acknowledges the next ``records`` records that are not acknowledged. A query that is ahead of that is not
        moved back. Raises InvalidInput if ``records`` is not a whole number of at least 0.

        >>> client.create_cursor("orders", "audit").skip(2).position
        Position(ledger=0, entry=0, index=2)
        """
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
        """Acknowledges everything that is in the topic now. A query that is ahead of that is not moved back."""

        def forward(cursor: Cursor) -> Cursor:
            return self._node.moved(cursor, self._log.refresh(sync=True).head.records)

        cursor = self._revise(forward, operation_id)
        return ResetResult(cursor.mark_delete, cursor.revision)

    def rewind(self, *, operation_id: bytes | None = None) -> ResetResult:
        """Makes whoever follows the subscription read everything again that is not acknowledged."""
        cursor = self._revise(lambda cursor: replace(cursor, last_backward_revision=cursor.revision + 1), operation_id)
        return ResetResult(cursor.mark_delete, cursor.revision)

    def redeliver(self, *, operation_id: bytes | None = None) -> ResetResult:
        """As :meth:`rewind`, and raises the epoch: a record that is delivered again has a greater epoch than the first
        time."""

        def again(cursor: Cursor) -> Cursor:
            return replace(cursor, last_backward_revision=cursor.revision + 1, epoch=cursor.epoch + 1)

        cursor = self._revise(again, operation_id)
        return ResetResult(cursor.mark_delete, cursor.revision)

    def _revise(
        self,
        edit: Callable[[Cursor], Cursor],
        operation_id: bytes | None,
        also: Callable[[], Iterable[Op]] = lambda: (),
    ) -> Cursor:
        operation = self._log.clock.new_id() if operation_id is None else operation_id
        if not isinstance(operation, bytes) or len(operation) != 16:
            raise InvalidInput(f"operation_id is {operation!r}: it must be 16 bytes")
        cursor = self._node.refresh(sync=True)
        if operation in cursor.operations:
            return cursor
        controller = RevisionController(self._node)
        controller.start_revision()
        revised = controller.end_revision(edit, operation, also)
        logger.info(
            "revised topic=%s subscription=%s revision=%d position=%s",
            self._log.topic.name, self.name, revised.revision, revised.mark_delete,
        )  # fmt: skip
        return revised

    def mark_delete(self, position: Position | str, properties: Mapping[str, int] | None = None) -> Position:
        """Acknowledges everything before a position, and attaches numbers to it, which stay until the position
        changes. Returns the position. Moves only forward; :meth:`reset` moves back.

        ``position`` is a Position or a text such as ``3:17:0``; ``properties`` maps names to whole numbers of 64 bits.

        Raises InvalidInput if the position is behind the subscription's (LEDGER_POSITION_BEHIND) or a property is not
        valid; DataLoss (LEDGER_POSITION_PAST_END) if it is past the end of the topic.

        >>> cursor = client.create_cursor("orders", "files")
        >>> cursor.mark_delete("0:0:2", {"offset": 4711})
        Position(ledger=0, entry=0, index=2)
        >>> cursor.properties()
        {'offset': 4711}
        """
        wanted = position if isinstance(position, Position) else Position.parse(position)
        attached = _attached(properties or {})

        def forward(cursor: Cursor) -> Cursor | None:
            if self._node.reviser(cursor) is not None:
                raise CursorUnderRevision(f"subscription '{self.name}' is being reset: try again")
            view = self._log.refresh(sync=True)
            self._log.check_not_past_end(view, wanted)
            settled = places.settle(self._log, view, wanted, compacted=cursor.compacted).position
            if settled < cursor.mark_delete:
                raise InvalidInput(
                    f"subscription '{self.name}' is at {cursor.mark_delete}, past {wanted}: acknowledging only "
                    "moves it forward, a reset moves it back",
                    "LEDGER_POSITION_BEHIND",
                )
            moved = self._node.moved(
                cursor, scan.records_before(self._log, view, settled), self._node.acks(cursor), settled
            )
            done = replace(moved, properties=attached, reviser=b"", revising_since_ms=0)
            return None if done == cursor else done

        return self._node.update(forward).mark_delete

    def properties(self) -> dict[str, int]:
        """The numbers that :meth:`mark_delete` attached to the position."""
        return dict(self._node.refresh(sync=True).properties)

    def stats(self) -> CursorStats:
        """The subscription's position, backlog, owner and so on: a :class:`CursorStats`."""
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
            evicted=cursor.evicted,
            lost=cursor.lost,
            sharing=cursor.sharing,
            members=self._members(cursor, now),
        )

    def _members(self, cursor: Cursor, now_ms: int) -> tuple[MemberStats, ...]:
        living = {each.id for each in self._node.living(each.id for each in cursor.members)}
        return tuple(
            MemberStats(
                name=each.name,
                is_alive=each.id in living,
                seconds=max(0, now_ms - each.since_ms) / 1000,
                records=len(shares.held(cursor, each)),
                slots=len(shares.slots(each)),
            )
            for each in cursor.members
        )

    def delete(self) -> None:
        """Deletes the subscription. Raises Conflict (LEDGER_CURSOR_IN_USE) while somebody follows it."""
        self._node.remove(self._check_unused)

    def _check_unused(self, cursor: Cursor) -> None:
        followers = self._node.followers(cursor)
        if followers:
            names = ", ".join(each.name for each in followers)
            raise Conflict(f"subscription '{self.name}' is in use by {names}: stop it first", "LEDGER_CURSOR_IN_USE")
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
