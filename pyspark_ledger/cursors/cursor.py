"""Cursors: a subscription's durable position, and the ways to move it.

Everything about a cursor is one node, changed only at its version. Acknowledging moves it forward. Moving it any other
way is a *revision* (PIP-269): the cursor is flagged, edited, and unflagged with its revision raised, so that whoever
holds something read or planned before can tell that it is outdated. While it is flagged nobody reads on and
acknowledgements fail.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark_ledger.base.names import check_subscription_name, this_process
from pyspark_ledger.base.position import Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.errors import Conflict, CursorUnderRevision, Fenced, InvalidInput, NotFound, OutcomeUnknown
from pyspark_ledger.log import scan
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Bound, resolve
from pyspark_ledger.metadata.port import (
    Create,
    CursorKey,
    Delete,
    Op,
    OwnerKey,
    Put,
    ReviserKey,
    TransactionLost,
    Versioned,
)
from pyspark_ledger.metadata.records import Cursor, Holder, Past

logger = logging.getLogger(__name__)

_ATTEMPTS = 200
Edit = Callable[[Cursor], Cursor | None]


class CursorNode:
    """One cursor as one process sees it: in memory, with a watch that says when to look again."""

    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, check_subscription_name(name)
        self.key = CursorKey(log.topic.uuid, name)
        self.owner_key = OwnerKey(log.topic.uuid, name)
        self.reviser_key = ReviserKey(log.topic.uuid, name)
        self._seen: Versioned[Cursor] | None = None
        self._seen_at = 0.0
        self._hinted = False

    def current(self, max_age_s: float = 0.0) -> Cursor:
        """What is in memory, read anew if a watch fired or it is too old."""
        old = self.log.clock.monotonic() - self._seen_at > max_age_s
        return self.refresh() if self._seen is None or self._hinted or old else self._seen.record

    def refresh(self, *, sync: bool = False) -> Cursor:
        if sync:
            self.log.metadata.sync()
        self._hinted = False
        seen_at = self.log.clock.monotonic()
        found = self.log.metadata.read(self.key, self._hint)
        if found is not None and self._seen is not None and found.version < self._seen.version and not sync:
            return self.refresh(sync=True)  # a new session may answer from the past
        if found is None:
            if not sync:
                return self.refresh(sync=True)
            self.log.refresh()  # if the topic is gone, that is the better answer
            raise NotFound(
                f"topic '{self.log.topic.name}' has no subscription '{self.name}': a first query or consumer makes it, "
                f"or client.create_cursor('{self.log.topic.name}', '{self.name}')",
                "LEDGER_CURSOR_NOT_FOUND",
            )
        self._seen, self._seen_at = found, seen_at
        return found.record

    def _hint(self) -> None:
        self._hinted = True

    def ensure(self, start: Bound | Callable[[], Position]) -> Cursor:
        """Makes the cursor if it is not there."""
        try:
            return self.refresh(sync=True)
        except NotFound as missing:
            if missing.code != "LEDGER_CURSOR_NOT_FOUND":
                raise
        view = self.log.refresh(sync=True)
        position = start() if callable(start) else scan.settle(self.log, view, resolve(self.log, view, start))
        ordinal = scan.records_before(self.log, view, position)
        made = Cursor(self.name, position, ordinal, self.log.clock.now_ms())
        with contextlib.suppress(TransactionLost, OutcomeUnknown):  # somebody was faster, or it was us
            self.log.metadata.transact([Create(self.key, made)])
        return self.refresh(sync=True)

    def update(self, edit: Edit, ops: Callable[[Cursor], Iterable[Op]] = lambda _: ()) -> Cursor:
        """Changes the cursor at its version, as often as it takes. ``edit`` returns None when there is nothing to do,
        also because an earlier sending whose answer was lost has done it (I14)."""
        cursor = self.current(max_age_s=60.0)
        for attempt in range(_ATTEMPTS):
            edited = edit(cursor)
            if edited is None and attempt == 0:
                cursor = self.refresh(sync=True)  # a wrong yes is caught by the version, a wrong no only here
                edited = edit(cursor)
            if edited is None:
                return cursor
            assert self._seen is not None
            try:
                self.log.metadata.transact([Put(self.key, edited, self._seen.version), *ops(edited)])
            except (TransactionLost, OutcomeUnknown):
                self.log.clock.sleep(self.log.clock.jitter(0.002))
                cursor = self.refresh(sync=True)
                continue
            self._seen = Versioned(edited, self._seen.version + 1)
            self._seen_at = self.log.clock.monotonic()
            return edited
        raise self._too_busy()

    def remove(self, check: Callable[[Cursor], None]) -> None:
        """Deletes the cursor at the version that ``check`` has seen: whoever comes in between has changed it."""
        sent = False
        for _ in range(_ATTEMPTS):
            try:
                check(self.refresh(sync=True))
            except NotFound:
                if sent:
                    return  # a sending whose answer was lost did it
                raise
            assert self._seen is not None
            nodes = [*self.vacate(self.owner_key), *self.vacate(self.reviser_key)]
            try:
                self.log.metadata.transact([Delete(self.key, self._seen.version), *nodes])
                return
            except TransactionLost:
                continue
            except OutcomeUnknown:
                sent = True
        raise self._too_busy()

    def _too_busy(self) -> Conflict:
        return Conflict(f"subscription '{self.name}' is too busy: try again")

    # -- who holds it --------------------------------------------------------------------------------------
    # A holder's ephemeral node and its id in the cursor come and go in one transaction; only a session that ends takes
    # the node alone. So a node with another id than the cursor's was left behind, and means nothing.

    def owner(self, cursor: Cursor) -> Holder | None:
        """Who is attached and lives."""
        return self._living(self.owner_key, cursor.owner)

    def reviser(self, cursor: Cursor) -> Holder | None:
        """Who is moving the cursor and lives."""
        return self._living(self.reviser_key, cursor.reviser)

    def _living(self, key: OwnerKey | ReviserKey, id: bytes) -> Holder | None:
        if not id:
            return None
        self.log.metadata.sync()  # a stale answer must not make a living one dead
        found = self.log.metadata.read(key)
        return found.record if found is not None and found.record.id == id else None

    def vacate(self, key: OwnerKey | ReviserKey) -> list[Op]:
        """Removes whatever node is there, in a transaction that changes the cursor's holder: one who leaves or is
        replaced, or what was left behind."""
        self.log.metadata.sync()  # or a node that was not seen would be left behind
        return [] if self.log.metadata.read(key) is None else [Delete(key)]

    def is_being_revised(self, cursor: Cursor) -> bool:
        """Whether somebody is moving the cursor right now. The flag of one who died over it is cleared."""
        while cursor.reviser:
            if self.reviser(cursor) is not None:
                return True
            cursor = self.unflag(cursor.reviser)
        return False

    def unflag(self, reviser: bytes) -> Cursor:
        """Ends a revision and changes nothing: its reviser gave up, or died."""

        def clear(cursor: Cursor) -> Cursor | None:
            return replace(cursor, reviser=b"", revising_since_ms=0) if cursor.reviser == reviser else None

        return self.update(clear, lambda _: self.vacate(self.reviser_key))

    # -- acknowledging -------------------------------------------------------------------------------------

    def acks(self, cursor: Cursor) -> Runs:
        return Runs.unpack(cursor.acks, cursor.ordinal)

    def moved(self, cursor: Cursor, ordinal: int, acks: Runs | None = None, position: Position | None = None) -> Cursor:
        """The cursor with everything below an ordinal done, and some above it. Properties belong to a position, and
        go when it changes."""
        if position is None:
            view = self.log.view()
            if ordinal >= view.head.records:
                view = self.log.refresh(sync=True)
            position = scan.position_at(self.log, view, ordinal)
        packed = b"" if acks is None else acks.since(ordinal).pack(ordinal)
        if len(packed) > self.log.limits.acks_bytes:
            raise InvalidInput(
                f"subscription '{self.name}' would have {len(packed)} bytes of gaps between acknowledged records: "
                f"acknowledge the oldest ones first (mark-delete is at {cursor.mark_delete})",
                "LEDGER_TOO_MANY_GAPS",
            )
        properties = cursor.properties if position == cursor.mark_delete else ()
        return replace(cursor, mark_delete=position, ordinal=ordinal, acks=packed, properties=properties)


@dataclass(frozen=True, slots=True)
class Moved:
    """What a reset did: where the cursor is, and where it was asked to go."""

    position: Position
    revision: int
    asked: str

    @property
    def exact(self) -> bool:
        """False if the position was gone, masked or past the end, and the next valid one was taken."""
        return str(self.position) == self.asked


class RevisionController:
    """PIP-269: one revision of a cursor at a time, and everybody can tell before from after."""

    def __init__(self, node: CursorNode, name: str = "") -> None:
        self._node = node
        self._id = node.log.clock.new_id()
        self._name = name or this_process()

    @property
    def revision(self) -> int:
        return self._node.refresh(sync=True).revision

    def is_outdated(self, revision: int) -> bool:
        """Whether something read or planned under a revision may no longer be delivered or acknowledged."""
        cursor = self._node.current()
        return cursor.revision != revision or bool(cursor.reviser)

    def start_revision(self) -> Cursor:
        """Flags the cursor. Fails at once if somebody else has, and lives; a dead one's flag is taken over."""

        def flag(cursor: Cursor) -> Cursor | None:
            if cursor.reviser == self._id:
                return None
            other = self._node.reviser(cursor)
            if other is not None:
                since = datetime.fromtimestamp(cursor.revising_since_ms / 1000, UTC)
                raise CursorUnderRevision(
                    f"subscription '{self._node.name}' is being reset by {other.name}, since "
                    f"{since:%Y-%m-%d %H:%M:%S} UTC: try again"
                )
            return replace(cursor, reviser=self._id, revising_since_ms=self._node.log.clock.now_ms())

        holder = Holder(self._id, self._name, self._node.log.clock.now_ms())
        key = self._node.reviser_key
        return self._node.update(flag, lambda _: [*self._node.vacate(key), Create(key, holder, ephemeral=True)])

    def end_revision(self, editor: Edit) -> Cursor:
        """Applies the edit, clears the flag and raises the revision, in one transaction. An editor that returns None
        or raises leaves the cursor as it was."""
        before = self._node.refresh(sync=True)

        def finish(cursor: Cursor) -> Cursor | None:
            if cursor.revision == before.revision + 1 and not cursor.reviser:
                return None  # an earlier sending did it
            if cursor.reviser != self._id:
                raise Fenced(
                    f"the revision of subscription '{self._node.name}' was taken over by another, because this one was "
                    "thought dead: nothing was changed, try again",
                    "LEDGER_REVISION_FENCED",
                )
            edited = editor(replace(cursor, reviser=b"", revising_since_ms=0))
            if edited is None:
                return None
            pasts = (*cursor.pasts, Past(cursor.revision, cursor.mark_delete))
            remembered = pasts[-self._node.log.limits.remembered_revisions :]
            return replace(edited, revision=cursor.revision + 1, pasts=remembered)

        try:
            revised = self._node.update(finish, lambda _: self._node.vacate(self._node.reviser_key))
        except Fenced:
            raise
        except Exception:
            self.give_up()
            raise
        if revised.reviser == self._id:  # the editor had nothing to do
            self.give_up()
        return self._node.current(max_age_s=60.0)

    def give_up(self) -> None:
        """Clears the flag and changes nothing."""
        self._node.unflag(self._id)


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

    def reset(self, to: Bound, *, discard_planned: bool = False, operation_id: bytes | None = None) -> Moved:
        """Moves the subscription to ``earliest``, ``latest``, a position, or the first record published at or after a
        time (a datetime or ISO 8601). Whoever follows it goes on from there: a query with its next batch.

        A batch that Spark has logged is still read as it was planned. ``discard_planned`` voids such batches if they
        have not finished: they read nothing, now and in every replay. It is the way past a record that makes a query
        fail for ever, and not exactly-once for a query with state.

        With an ``operation_id`` of 16 bytes a repeated call is done once."""
        asked = _bound(to)

        def move(cursor: Cursor) -> Cursor:
            view = self._log.refresh(sync=True)
            wanted = asked if isinstance(asked, Position) else resolve(self._log, view, asked)
            position = scan.settle(self._log, view, min(wanted, view.head.end))
            moved = self._node.moved(cursor, scan.records_before(self._log, view, position), position=position)
            void_below = cursor.revision + 1 if discard_planned else cursor.void_below
            return replace(moved, rewound=cursor.revision + 1, void_below=void_below, properties=())

        cursor = self._revise(move, operation_id)
        return Moved(cursor.mark_delete, cursor.revision, str(asked))

    def skip(self, records: int, *, operation_id: bytes | None = None) -> Moved:
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
        return Moved(cursor.mark_delete, cursor.revision, f"skip {records}")

    def clear_backlog(self, *, operation_id: bytes | None = None) -> Moved:
        """Acknowledges everything that is in the topic now. Never moves a running query back."""

        def forward(cursor: Cursor) -> Cursor:
            return self._node.moved(cursor, self._log.refresh(sync=True).head.records)

        cursor = self._revise(forward, operation_id)
        return Moved(cursor.mark_delete, cursor.revision, "clear backlog")

    def rewind(self, *, operation_id: bytes | None = None) -> Moved:
        """Whoever follows the subscription reads everything again that is not acknowledged."""
        cursor = self._revise(lambda cursor: replace(cursor, rewound=cursor.revision + 1), operation_id)
        return Moved(cursor.mark_delete, cursor.revision, "rewind")

    def redeliver(self, *, operation_id: bytes | None = None) -> Moved:
        """As :meth:`rewind`, under a new epoch: the redelivered records can be told from the first delivery."""

        def again(cursor: Cursor) -> Cursor:
            return replace(cursor, rewound=cursor.revision + 1, epoch=cursor.epoch + 1)

        cursor = self._revise(again, operation_id)
        return Moved(cursor.mark_delete, cursor.revision, "redeliver")

    def _revise(self, edit: Callable[[Cursor], Cursor], operation_id: bytes | None) -> Cursor:
        operation = self._log.clock.new_id() if operation_id is None else operation_id
        if not isinstance(operation, bytes) or len(operation) != 16:
            raise InvalidInput(f"operation_id is {operation!r}: it must be 16 bytes")
        cursor = self._node.refresh(sync=True)
        if operation in cursor.operations:
            return cursor
        controller = RevisionController(self._node)
        controller.start_revision()

        def edit_once(cursor: Cursor) -> Cursor | None:
            if operation in cursor.operations:
                return None
            edited = edit(cursor)
            done = (*edited.operations, operation)[-self._log.limits.remembered_operations :]
            return replace(edited, operations=done)

        revised = controller.end_revision(edit_once)
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
            settled = scan.settle(self._log, view, wanted)
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


def _bound(to: Bound) -> Bound:
    if isinstance(to, (Position, datetime)) or to in ("earliest", "latest"):
        return to
    with contextlib.suppress(InvalidInput):
        return Position.parse(to)
    with contextlib.suppress(ValueError, TypeError):
        return datetime.fromisoformat(to)
    raise InvalidInput(
        f"{to!r} is no place to reset to: use earliest, latest, a position as 3:17:0, or a time in ISO 8601",
        "LEDGER_INVALID_POSITION",
    )


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
