"""Sharing a subscription by key: the records of one key come in order, to one consumer at a time.

A key falls into a slot, and each slot belongs to one consumer. It reads the log from where the subscription is, and
delivers only the records of its slots. When somebody joins, slots are dealt to it. Their owner delivers nothing more of
them, and hands them over in the change of the cursor in which it has acknowledged the last record of them that it had
in hand. So the new owner, which begins where the subscription is, overtakes nobody (PIP-269, footnote 4).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors import shares
from pyspark_ledger.cursors.receiving import Fetched, Message, Read
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.log import keys, scan
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.lost import LostEntry
from pyspark_ledger.log.reader import POLL_S
from pyspark_ledger.log.rows import read_slice
from pyspark_ledger.log.slices import LogSlice
from pyspark_ledger.metadata.records import Cursor

SCAN_RECORDS = 1_000  # times the number of members are looked at together
NEVER = (1 << 63) - 1  # an ordinal that no record has


class KeySharedConsumer(SharedConsumer):
    """See :class:`SharedConsumer`."""

    _sharing = "key_shared"

    def __init__(self, log: Log, *args: Any, **options: Any) -> None:
        check_key(log)
        self._key = pa.schema([log.schema(log.refresh(sync=True).head.schema_id).field(log.topic.key)])
        super().__init__(log, *args, **options)

    def _adopt(self, cursor: Cursor) -> None:
        super()._adopt(cursor)
        self._noticed: Cursor | None = None
        self._is_placed = True  # whether the position is that of the ordinal: to look that up may fail
        self._served = self._leaving = Runs()
        self._from = [NEVER] * keys.SLOTS  # by slot: the records of it that were not read yet begin there
        self._slot_of: dict[int, int] = {}  # of records that were read and are not done
        self._ahead: deque[Message] = deque()  # read, and not claimed yet
        self._blocked: dict[int, set[int]] = {}  # by slot: refused records. Until they are done no later ones come

    def _notice(self, cursor: Cursor) -> None:
        if cursor is not self._noticed:
            self._noticed = cursor
            served = shares.served(cursor, self._follower.id)
            self._drop(set((self._served - served).numbers()))
            for slot in (served - self._served).numbers():
                self._begin_slot(slot, cursor.ordinal)
            self._served, self._leaving = served, shares.leaving(cursor, self._follower.id)
        if not self._leaving:
            return
        ready = self._leaving - Runs.of(self._slot_of[ordinal] for ordinal in self._hand)
        if ready:
            with contextlib.suppress(Conflict):  # others change it all the time: then later
                self._exchange(ready=ready)

    def _begin_slot(self, slot: int, ordinal: int) -> None:
        """The records of a slot are read from an ordinal on; what was read of others is not read again."""
        self._from[slot] = ordinal
        if ordinal < self._ordinal:
            self._ordinal, self._is_placed = ordinal, False

    def _drop(self, slots: Collection[int]) -> None:
        """Delivers no more of these slots. What was delivered of them stays in hand."""
        if not slots:
            return
        for slot in slots:
            self._from[slot] = NEVER
            self._blocked.pop(slot, None)
        self._give_away({ordinal for ordinal, slot in self._slot_of.items() if slot in slots} - self._hand.keys())

    def _put_down(self, ordinals: set[int]) -> None:
        super()._put_down(ordinals)
        self._ahead = deque(message for message in self._ahead if message.ordinal not in ordinals)

    def _give_away(self, ordinals: set[int]) -> None:
        """Claims these no longer: they are read again, by somebody else or later."""
        self._give_back(ordinals)
        self._put_down(ordinals)
        for ordinal in ordinals:
            del self._slot_of[ordinal]

    # -- receiving -----------------------------------------------------------------------------------------

    def _begin_read(self) -> Read | None:
        cursor, view = self._node.current(POLL_S), self._log.view(POLL_S)
        if cursor.reviser and self._follower.is_under_revision():
            return None
        self._take_due()
        if self._unread:
            ordinals = self._unread.first(self._prefetch, self._log.limits.claim_runs)
            return Read(self._epoch, self._revision, ordinals, self._position, self._ordinal)
        if not self._is_current(cursor):
            return None
        if self._ahead or self._ordinal >= shares.reachable(cursor, view.head.records, self._log.limits):
            return None
        if not self._is_placed:
            self._position, self._is_placed = scan.position_at(self._log, view, self._ordinal), True
        self._check_trimmed(view.head)
        self._check_lost(view.head)
        if self._ordinal >= view.head.records:
            return None
        return Read(self._epoch, self._revision, None, self._position, self._ordinal)

    def _read_more(self) -> bool:
        return self._remove_dead() or super()._read_more() or (bool(self._ahead) and self._claim_ahead())

    def _remove_dead(self) -> bool:
        """Whether something has changed."""
        cursor = self._node.current(POLL_S)
        dead = self._follower.dead(cursor)
        if dead:
            self._exchange(dead=dead)
        return bool(dead) and self._node.current(POLL_S) is not cursor

    def _take_due(self) -> None:
        """Of each slot only the first one that was refused comes again, so that they stay in order."""
        before = self._unread
        super()._take_due()
        now = self._log.clock.monotonic()
        for ordinal in (self._unread - before).numbers():
            if ordinal != min(self._blocked[self._slot_of[ordinal]]):
                self._unread = self._unread.without(ordinal)
                self._away.add(ordinal)
                self._refused.add(ordinal, 1, now)

    def _fetch(self, read: Read) -> Fetched:
        if read.ordinals is not None:
            return self._fetch_known(read)
        self._slots_found: dict[int, int] = {}
        records = SCAN_RECORDS * len(self._node.current(POLL_S).members)
        return self._fetch_from(read, read.start, read.ordinal, records)

    def _wanted(self, piece: LogSlice) -> LogSlice | None:
        """The records of its slots that were not read yet. Of the others only the keys are looked at."""
        chosen = [pa.array([], pa.int64())]
        for rows in read_slice(self._log.storage, self._log.topic.uuid, piece, self._key):
            ordinals = rows.ordinals()
            slots = keys.slots(rows.batch.column(0), ordinals)
            mine = pc.greater_equal(ordinals, pa.array(self._from, pa.int64()).take(slots))
            chosen.append(rows.indexes.filter(mine))
            found = zip(ordinals.filter(mine).to_pylist(), slots.filter(mine).to_pylist(), strict=True)
            self._slots_found.update(found)
        indexes = pa.concat_arrays(chosen)
        return piece.choose(pc.is_in(pa.arange(0, piece.all_rows), value_set=indexes)) if len(indexes) else None

    def _keep(self, read: Read, fetched: Fetched) -> None:
        if read.ordinals is not None:
            return super()._keep(read, fetched)
        cursor = self._node.current(POLL_S)
        acks = shares.acks(cursor)
        for message in fetched.messages:
            ordinal = message.ordinal
            is_done = ordinal < cursor.ordinal or ordinal in acks or ordinal in self._done
            if not is_done and ordinal not in self._slot_of:
                self._slot_of[ordinal] = self._slots_found[ordinal]
                self._ahead.append(message)
        self._position, self._ordinal = fetched.next_position, fetched.next_ordinal
        self._from = [max(ordinal, fetched.next_ordinal) for ordinal in self._from]
        return None

    def _claim_ahead(self) -> bool:
        """Claims what was read. False if that does not work now."""
        read = Runs.of(message.ordinal for message in self._ahead)

        def some(now: Cursor, keeps: Runs) -> Runs:
            free = read & shares.unclaimed(now, NEVER, self._follower.id, keeps)
            return shares.portion(now, free, self._prefetch, self._room(keeps))

        with contextlib.suppress(Conflict):  # others change it all the time: then later
            new = self._exchange(some)
            self._queue.extend(message for message in self._ahead if message.ordinal in new)
            mark = self._node.current(POLL_S).ordinal  # somebody may have moved it forward from outside
            self._ahead = deque(each for each in self._ahead if each.ordinal not in new and each.ordinal >= mark)
        return bool(self._queue)

    # -- acknowledging -------------------------------------------------------------------------------------

    def _is_done(self, ordinal: int) -> None:
        super()._is_done(ordinal)
        slot = self._slot_of.pop(ordinal)
        refused = self._blocked.get(slot)
        if refused is not None:
            refused.discard(ordinal)
            if not refused:  # what was put down comes now: it is later than all that were delivered
                del self._blocked[slot]
                self._begin_slot(slot, ordinal + 1)

    def _refuse(self, ordinal: int) -> None:
        """Until the record is done, later ones of its key are held back, with all of its slot."""
        super()._refuse(ordinal)
        slot = self._slot_of[ordinal]
        if slot not in self._served:  # the next owner begins with it
            self._give_away({ordinal})
            return
        refused = self._blocked.setdefault(slot, set())
        refused.add(ordinal)
        self._from[slot] = NEVER
        later = {other for other, its in self._slot_of.items() if its == slot}
        self._give_away(later - self._hand.keys() - refused)

    def _is_given_up(self, each: LostEntry) -> None:
        super()._is_given_up(each)
        for ordinal in range(each.ordinal, each.ordinal + each.records):
            if ordinal in self._slot_of and ordinal not in self._hand:
                self._put_down({ordinal})
                self._is_done(ordinal)


def check_key(log: Log) -> None:
    """Raises if records of a topic cannot be told apart by their key."""
    topic = log.topic
    if not topic.key:
        raise InvalidInput(
            f"topic '{topic.name}' has no key, and consumers of type 'key_shared' share its records by key: use type "
            "'shared', or make a topic with a key (option keyColumn, or --key)",
            "LEDGER_NO_KEY",
        )
    schemas.check_key(log.schema(log.view().head.schema_id).field(topic.key).type, topic.key, topic.name)
