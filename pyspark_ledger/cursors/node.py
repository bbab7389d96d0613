"""The node of a cursor: a subscription's durable position. Every change checks the node's version."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from pyspark_ledger.base.names import check_subscription_name
from pyspark_ledger.base.position import Position
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors import shares
from pyspark_ledger.errors import Conflict, DataLoss, InvalidInput, NotFound
from pyspark_ledger.log import places, scan
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.places import PlaceLike
from pyspark_ledger.metadata.ephemeral import Ephemeral
from pyspark_ledger.metadata.port import (
    Check,
    Create,
    CursorKey,
    Delete,
    MemberKey,
    Op,
    OwnerKey,
    ReviserKey,
    Versioned,
)
from pyspark_ledger.metadata.records import Cursor, Holder

logger = logging.getLogger(__name__)

Edit = Callable[[Cursor], Cursor | None]
HolderKey = OwnerKey | ReviserKey | MemberKey


class CursorNode:
    """One cursor as one process sees it: kept in memory, with a watch that says when to read it again."""

    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, check_subscription_name(name)
        self.key = CursorKey(log.topic.uuid, name)
        self.owner_key = OwnerKey(log.topic.uuid, name)
        self.reviser_key = ReviserKey(log.topic.uuid, name)
        self._seen: Versioned[Cursor] | None = None
        self._connection = 0  # over which it was read
        self._seen_at = 0.0
        self._hinted = False

    def member_key(self, id: bytes) -> MemberKey:
        return MemberKey(self.log.topic.uuid, self.name, id)

    def twin(self) -> CursorNode:
        """The same cursor for another thread: what is in memory is not shared."""
        return CursorNode(self.log, self.name)

    def current(self, max_age_s: float = 0.0) -> Cursor:
        """The cursor from memory; read again if its watch fired, it is older than ``max_age_s``, or the connection is
        another one."""
        old = self.log.clock.monotonic() - self._seen_at > max_age_s
        if self._seen is None or self._hinted or old or self._connection != self.log.metadata.connections:
            return self.refresh()
        return self._seen.record

    def refresh(self, *, sync: bool = False) -> Cursor:
        if sync:
            self.log.metadata.sync()
        self._hinted = False
        seen_at, connection = self.log.clock.monotonic(), self.log.metadata.connections
        found = self.log.metadata.read(self.key, self._hint)
        if found is not None and self._seen is not None and found.version < self._seen.version and not sync:
            return self.refresh(sync=True)  # the server of a new session may lag behind
        if found is None:
            if not sync:
                return self.refresh(sync=True)
            self.log.refresh()  # raises if the whole topic is gone, which is the better answer
            raise NotFound(
                f"topic '{self.log.topic.name}' has no subscription '{self.name}': a first query or consumer makes it, "
                f"or 'pyspark-ledger cursors create {self.log.topic.name} {self.name}'",
                "LEDGER_CURSOR_NOT_FOUND",
            )
        self._seen, self._seen_at, self._connection = found, seen_at, connection
        return found.record

    def _hint(self) -> None:
        self._hinted = True

    # -- as a node that is changed at its version ----------------------------------------------------------

    def known(self) -> Versioned[Cursor]:
        self.current(max_age_s=60.0)
        return self._newest_seen()

    def newest(self) -> Versioned[Cursor]:
        self.refresh(sync=True)
        return self._newest_seen()

    def changed(self, now: Versioned[Cursor]) -> None:
        self._seen, self._seen_at = now, self.log.clock.monotonic()

    def replaced(self, before: Versioned[Cursor], after: Cursor) -> None:
        """Takes note of a change that was part of another transaction. Asks nobody: it is done, and whoever did it must
        not be told otherwise because the server is away now (I14)."""
        if self._seen is not None and self._seen.version == before.version:
            self.changed(Versioned(after, before.version + 1))

    def _newest_seen(self) -> Versioned[Cursor]:
        assert self._seen is not None
        return self._seen

    @property
    def what(self) -> str:
        return f"subscription '{self.name}' of topic '{self.log.topic.name}'"

    def update(
        self, edit: Edit, also: Callable[[Cursor], Iterable[Op]] = lambda _: (), *, operation: bytes = b""
    ) -> Cursor:
        """Changes the cursor; see :meth:`Transactions.change`."""
        return self.log.transactions.change(self, edit, self.what, operation=operation, also=also)

    def ensure(self, start: PlaceLike, *, compacted: bool = False) -> Cursor:
        """Creates the cursor if it does not exist; ``compacted``: for readers of compacted ledgers."""
        start = places.parse(start)  # what is no place is refused also where the cursor exists, and nobody needs one
        try:
            return self.refresh(sync=True)
        except NotFound as missing:
            if missing.code != "LEDGER_CURSOR_NOT_FOUND":
                raise
        self.log.ensure_part("subscriptions")
        for _ in range(self.log.limits.change_attempts):
            ops = [self.log.retention_guard(), Create(self.key, self._new(start, compacted))]
            if self.log.transactions.carry_out(ops, self._is_there, self.what) or self._is_there():
                return self.refresh(sync=True)
        raise Conflict(f"{self.what}: it can neither be found nor made; try again")

    def _new(self, start: PlaceLike, compacted: bool) -> Cursor:
        view = self.log.refresh(sync=True)
        wanted = places.resolve(self.log, view, start, compacted=compacted)
        position = places.settle(self.log, view, wanted, compacted=compacted).position
        ordinal = scan.records_before(self.log, view, position)
        now, id = self.log.clock.now_ms(), self.log.clock.new_id()
        return Cursor(self.name, position, ordinal, now, id=id, compacted=compacted)

    def _is_there(self) -> bool | None:
        self.log.metadata.sync()
        return None if self.log.metadata.read(self.key) is None else True

    def remove(self, check: Callable[[Cursor], None]) -> None:
        """Deletes the cursor at the version that ``check`` has seen, so that nobody can attach in between."""
        for _ in range(self.log.limits.change_attempts):
            found = self.newest()
            check(found.record)
            members = [self.member_key(each.id) for each in found.record.members]
            keys: list[HolderKey] = [self.owner_key, self.reviser_key, *members]
            nodes = [op for key in keys for op in self.vacate(key)]
            look = partial(self._is_removed, found)
            if self.log.transactions.carry_out([Delete(self.key, found.version), *nodes], look, self.what):
                return
        raise Conflict(f"{self.what}: others change it all the time; try again")

    def _is_removed(self, before: Versioned[Cursor]) -> bool | None:
        self.log.metadata.sync()
        now = self.log.metadata.read(self.key)
        return None if now == before else now is None

    # -- who holds it --------------------------------------------------------------------------------------
    # One transaction writes a holder's id to the cursor and creates its ephemeral node, and one removes both. Only the
    # end of a session deletes the node alone. So a node with another id than the cursor's is a leftover: ignore it.

    def owner(self, cursor: Cursor) -> Holder | None:
        """Who is attached and alive."""
        return self._living(self.owner_key, cursor.owner)

    def reviser(self, cursor: Cursor) -> Holder | None:
        """Who is resetting the cursor and alive."""
        return self._living(self.reviser_key, cursor.reviser)

    def followers(self, cursor: Cursor) -> list[Holder]:
        """Who follows it and is alive: its owner, or those who share it."""
        owner = self.owner(cursor)
        return ([owner] if owner is not None else []) + self.living(each.id for each in cursor.members)

    def living(self, members: Iterable[bytes]) -> list[Holder]:
        """Those of some who share the cursor that are alive."""
        ids = [id for id in members if id not in self.log.metadata.chores.leftovers]
        if not ids:
            return []
        self.log.metadata.sync()  # none of them may look dead in a stale answer
        found = self.log.metadata.read_many([self.member_key(id) for id in ids])
        return [each.record for each in found if each is not None]

    def _living(self, key: HolderKey, id: bytes) -> Holder | None:
        if not id or id in self.log.metadata.chores.leftovers:  # a failed call of this process holds nothing
            return None
        self.log.metadata.sync()  # in a stale answer somebody who is alive could look dead
        found = self.log.metadata.read(key)
        return found.record if found is not None and found.record.id == id else None

    def holding(self, key: HolderKey, holder: Holder) -> Ephemeral[Holder]:
        """The ephemeral node of a holder whom the cursor names."""

        def guard() -> Check | None:
            found = self.log.metadata.read(self.key)
            if found is None or not _names(found.record, key, holder.id):
                self.log.metadata.sync()  # because of a stale answer we would give up what is still ours
                found = self.log.metadata.read(self.key)
            return Check(self.key, found.version) if found and _names(found.record, key, holder.id) else None

        role = {OwnerKey: "owner", ReviserKey: "reviser", MemberKey: "member"}[type(key)]
        what = f"{self.what}: {holder.name} as its {role}"
        return Ephemeral(self.log.metadata, self.log.limits, self.log.clock, key, holder, what, guard)

    def vacate(self, key: HolderKey) -> list[Op]:
        """Deletes the holder's node, if there is one, in a transaction that changes the cursor's holder."""
        self.log.metadata.sync()  # a stale read could miss a node, which would then be left behind
        return [] if self.log.metadata.read(key) is None else [Delete(key)]

    def is_being_revised(self, cursor: Cursor) -> bool:
        """Whether somebody is resetting the cursor right now; see :meth:`living_reviser`."""
        return self.living_reviser(cursor) is not None

    def living_reviser(self, cursor: Cursor) -> Holder | None:
        """Who is resetting the cursor right now. If the one who began died, the flag is cleared."""
        while cursor.reviser:
            reviser = self.reviser(cursor)
            if reviser is not None:
                return reviser
            cursor = self.unflag(cursor.reviser)
        return None

    def unflag(self, reviser: bytes) -> Cursor:
        """Ends a revision without changing the position: its reviser gave up, or died."""

        def clear(cursor: Cursor) -> Cursor | None:
            return replace(cursor, reviser=b"", revising_since_ms=0) if cursor.reviser == reviser else None

        return self.update(clear, lambda _: self.vacate(self.reviser_key))

    # -- acknowledging -------------------------------------------------------------------------------------

    def acks(self, cursor: Cursor) -> Runs:
        return shares.acks(cursor)

    def moved(self, cursor: Cursor, ordinal: int, acks: Runs | None = None, position: Position | None = None) -> Cursor:
        """The cursor with everything before an ordinal acknowledged, and ``acks`` after it. Properties belong to a
        position, and are dropped when it changes."""
        if position is None:
            position = self._position_at(ordinal, max([ordinal, *(stop for _, stop in acks or ())]))
        packed = b"" if acks is None else acks.since(ordinal).pack(ordinal)
        if len(packed) > self.log.limits.acks_bytes:
            raise InvalidInput(
                f"subscription '{self.name}' would have {len(packed)} bytes of gaps between acknowledged records: "
                f"acknowledge the oldest ones first (mark-delete is at {cursor.mark_delete})",
                "LEDGER_TOO_MANY_GAPS",
            )
        properties = cursor.properties if position == cursor.mark_delete else ()
        return replace(cursor, mark_delete=position, ordinal=ordinal, acks=packed, properties=properties)

    def _position_at(self, ordinal: int, acknowledged: int) -> Position:
        """Of a record. An acknowledgement past the end is refused: from there new records would be skipped later."""
        view = self.log.view()
        if ordinal >= view.head.records or acknowledged > view.head.records:
            view = self.log.refresh(sync=True)
        if acknowledged > view.head.records:
            raise DataLoss(
                f"{self.what}: the first {acknowledged} records have acknowledgements, and the topic has "
                f"{view.head.records}: ZooKeeper was set back to an older state, and commits were lost. The cursor was "
                "not changed; whoever attaches anew goes on from there",
                "LEDGER_POSITION_PAST_END",
            )
        return scan.position_at(self.log, view, ordinal)


def _names(cursor: Cursor, key: HolderKey, id: bytes) -> bool:
    if isinstance(key, MemberKey):
        return shares.member(cursor, id) is not None
    return (cursor.owner if isinstance(key, OwnerKey) else cursor.reviser) == id
