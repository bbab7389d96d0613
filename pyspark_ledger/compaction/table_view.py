"""A compacted topic as a mapping in memory that follows the topic: key -> the last record of that key.

It begins with the state as a compacted reader gives it, and then reads the log itself, never a generation: so it sees
every deletion (I9). Each step goes from one end of the log to a later one, is put together first and takes effect at
once: nobody sees a part of a commit.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from copy import copy
from typing import Any

import pyarrow.types as pat

from pyspark_ledger.base.clock import Clock, Deadline
from pyspark_ledger.base.forks import OneProcess
from pyspark_ledger.base.position import Position
from pyspark_ledger.compaction import fold
from pyspark_ledger.compaction.plan import check_compactable, keyed, state_slices
from pyspark_ledger.compaction.work import with_tombstones
from pyspark_ledger.errors import CorruptData, DataLoss, InvalidInput, LedgerError, Unavailable
from pyspark_ledger.log import lost, places, scan, trimmed
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.log.reader import POLL_S, WAIT_S, projection
from pyspark_ledger.log.slices import Slice, joined
from pyspark_ledger.metadata.transactions import RolledBack

logger = logging.getLogger(__name__)

_RETRY_S = 1.0  # after ZooKeeper or the storage did not answer
_NAN = math.nan  # the one that stands for all of them
Row = dict[str, Any]


class TableView(Mapping[Any, Mapping[str, Any]]):
    """A live, read-only mapping of a topic with a key: key -> the last record of that key, as column -> value. Made by
    ``client.table_view(topic)``; any number of threads may use it. Close it, or use it with ``with``.

    A background thread follows the topic, as a reader without an end does. A deletion (a tombstone) removes its key;
    records without a key are left out; with a version column the highest version counts. What is seen is always the
    topic at one :attr:`position`, whole commits only; iterating, ``items()`` and ``values()`` go over one such state,
    also while the view moves on.

    >>> with client.table_view("orders") as orders:
    ...     before = orders.get(2)
    ...     with client.producer("orders") as producer:
    ...         _ = producer.send({"order_id": 2, "amount": 30.0})
    ...     _ = orders.wait_until_current(timeout_s=10)
    ...     before["amount"], orders[2]["amount"], len(orders)
    (20.0, 30.0, 3)

    Whatever asks it for something raises Unavailable while ZooKeeper or the storage does not answer, because nobody
    knows then how old the answer would be; it goes on by itself. Any other error ends it: it is raised each time, and
    another view has to be made. A view that was so slow that retention has given up what it had not read yet reads the
    whole state again.
    """

    def __init__(self, log: Log, columns: list[str] | None = None, *, fail_on_data_loss: bool = True) -> None:
        check_compactable(log)
        self._log, self._columns, self._fail_on_data_loss = log, columns, fail_on_data_loss
        self._process, self._is_float = OneProcess(), False
        self._moved = threading.Condition()  # guards what follows, which only the thread changes
        self._rows: dict[Any, Row] = {}
        self._ranks: dict[Any, Any] = {}  # with a version column: the version of each row
        self._position: Position
        self._error: LedgerError | None = None  # why it cannot say anything
        self._told: set[Position] = set()  # damaged entries that it has gone around
        self._ended = threading.Event()
        self._load(log.refresh(sync=True))
        self._history = log.histories
        name = f"ledger-table-view-{log.topic.name}"
        self._thread = threading.Thread(
            target=_follow, args=(weakref.ref(self), self._ended, log.clock), name=name, daemon=True
        )
        self._thread.start()

    # -- asking ---------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Row:
        """A copy of the row."""
        self._check()
        return dict(self._rows[self._identity(key)])

    def get(self, key: Any, default: Any = None) -> Any:
        """A copy of the row of a key, or the default if there is none."""
        self._check()
        row = self._rows.get(self._identity(key))
        return default if row is None else dict(row)

    def __contains__(self, key: object) -> bool:
        self._check()
        return self._identity(key) in self._rows

    def __len__(self) -> int:
        self._check()
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.snapshot())

    def keys(self) -> KeysView[Any]:
        """All keys, of one state."""
        return self.snapshot().keys()

    def values(self) -> ValuesView[Row]:
        """All rows, of one state."""
        return self.snapshot().values()

    def items(self) -> ItemsView[Any, Row]:
        """All keys with their rows, of one state."""
        return self.snapshot().items()

    def snapshot(self) -> dict[Any, Row]:
        """All of it as it is now, as a plain dict that does not change any more."""
        self._check()
        with self._moved:
            rows = dict(self._rows)  # a row itself is never changed, only replaced
        return {key: dict(row) for key, row in rows.items()}

    def __repr__(self) -> str:
        return f"<table view of topic {self._log.topic.name!r}: {len(self._rows):,} keys at {self._position}>"

    @property
    def position(self) -> Position:
        """Everything before this position has been taken into account."""
        self._check()
        return self._position

    def wait_until_current(self, timeout_s: float | None = None) -> bool:
        """Waits until the view has seen everything that is in the log at the time of this call. False if that takes
        longer than ``timeout_s``."""
        self._check()
        end = self._log.refresh(sync=True).head.end
        deadline = None if timeout_s is None else Deadline(self._log.clock, timeout_s)
        with self._moved:
            while self._position < end:
                self._check()
                if deadline is not None and deadline.passed:
                    return False
                self._moved.wait(None if deadline is None else deadline.remaining)
            return True

    def close(self) -> None:
        """Ends it. Closing twice is fine."""
        if self._process.is_another:
            return
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        with self._moved:
            self._error = InvalidInput("this table view is closed", "LEDGER_CLOSED")
            self._moved.notify_all()

    def __enter__(self) -> TableView:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        self._process.check("this table view")
        if self._error is not None:
            raise copy(self._error)

    def _identity(self, key: Any) -> Any:
        """A key as keys are compared: -0.0 is 0.0, and all NaNs are one."""
        if self._is_float and isinstance(key, float):
            return _NAN if math.isnan(key) else key + 0.0
        return key

    # -- following, in the thread ---------------------------------------------------------------------------

    def _step(self) -> float:
        """Takes what is new, and says how long to wait after that."""
        try:
            self._take(self._log.view(POLL_S))
            self._say(None)
            return WAIT_S
        except Unavailable as error:
            self._say(error)
            return _RETRY_S
        except LedgerError as error:
            ending = copy(error)
            ending.message = self._ending(error.message)
            self._end(ending)
        except Exception as error:  # it must not stand still without a word
            self._end(LedgerError(self._ending(f"{type(error).__name__}: {error}"), "LEDGER_UNEXPECTED_ERROR"))
        return 0.0

    def _say(self, error: LedgerError | None) -> None:
        if error is not self._error:
            with self._moved:
                self._error = error
                self._moved.notify_all()

    def _end(self, error: LedgerError) -> None:
        logger.warning("%s", error)
        self._ended.set()
        self._say(error)

    def _ending(self, why: str) -> str:
        return (
            f"the table view of topic '{self._log.topic.name}' has ended at {self._position}: {why}. Make another one"
        )

    def _take(self, view: View) -> None:
        if self._log.histories != self._history:
            raise RolledBack("ZooKeeper was rolled back to an older state, and it may show what was lost")
        if self._position >= view.head.end:
            return
        try:
            self._apply(self._new(view), view.head.end)
        except (DataLoss, CorruptData) as error:
            now = self._log.refresh(sync=True)
            if error.code not in ("LEDGER_TRIMMED", "LEDGER_FILE_MISSING") or not trimmed.is_gone(
                now.head, self._position
            ):
                raise
            logger.info("%s; its table view reads the whole state again", trimmed.loss(now.head, self._position))
            self._load(now)

    def _load(self, view: View) -> None:
        """The whole state."""
        log, end = self._log, view.head.end
        start = places.resolve(log, view, "earliest", compacted=True)
        self._tell_lost(view, start)
        slices = state_slices(log, view, start, end, not self._fail_on_data_loss)
        changes = self._read(view, tuple(slices), _Changes({}))
        rows = {key: row for key, row in changes.rows.items() if row is not None}
        with self._moved:
            self._rows, self._ranks, self._position = rows, changes.ranks, end
            self._moved.notify_all()

    def _new(self, view: View) -> _Changes:
        """What happens until the end of the view."""
        self._tell_lost(view, self._position)
        around = not self._fail_on_data_loss
        slices = joined(scan.slices(self._log, view, self._position, view.head.end, around_lost=around))
        return self._read(view, tuple(slices), _Changes(self._ranks))

    def _apply(self, changes: _Changes, end: Position) -> None:
        with self._moved:
            for key, row in changes.rows.items():
                if row is None:
                    self._rows.pop(key, None)
                    self._ranks.pop(key, None)
                else:
                    self._rows[key] = row
            self._ranks.update(changes.ranks)
            self._position = end
            self._moved.notify_all()

    def _read(self, view: View, pieces: tuple[Slice, ...], changes: _Changes) -> _Changes:
        slices = keyed(self._log, view, pieces)
        columns = projection(slices.schema, self._columns, self._log.topic.name).names
        self._is_float = pat.is_floating(slices.schema.field(slices.key).type)
        for piece in pieces:
            for rows, gone in with_tombstones(slices, piece, columns):
                keys = map(self._identity, rows.batch.column(slices.key).to_pylist())
                found = rows.batch.select(columns).to_pylist() if columns else [{} for _ in range(rows.batch.num_rows)]
                if slices.version:
                    versions = fold.ranks(rows.batch.column(slices.version)).to_pylist()
                    changes.take_versioned(keys, found, gone.to_pylist(), versions)
                else:
                    changes.take(keys, found, gone.to_pylist())
        return changes

    def _tell_lost(self, view: View, start: Position) -> None:
        if self._fail_on_data_loss:
            return
        for each in lost.between(self._log.files, view.head, start, view.head.end):
            if each.first not in self._told:
                self._told.add(each.first)
                logger.warning("%s; going around them, because fail_on_data_loss is False", each.loss(view.head.name))


class _Changes:
    """What records do to the keys, by the rules of ``fold``: a tombstone ends everything before it, also the versions;
    of versions the highest counts, and of equal ones the last."""

    def __init__(self, ranks: Mapping[Any, Any]) -> None:
        self.rows: dict[Any, Row | None] = {}  # None: the key is gone
        self.ranks: dict[Any, Any] = {}  # the version of each row in ``rows``
        self._before = ranks  # of what was there

    def take(self, keys: Iterable[Any], rows: list[Row], gone: list[bool]) -> None:
        for key, row, is_gone in zip(keys, rows, gone, strict=True):
            if key is not None:
                self.rows[key] = None if is_gone else row

    def take_versioned(self, keys: Iterable[Any], rows: list[Row], gone: list[bool], versions: list[Any]) -> None:
        for key, row, is_gone, version in zip(keys, rows, gone, versions, strict=True):
            if key is None:
                continue
            if is_gone:
                self.rows[key] = None
                self.ranks.pop(key, None)
            elif self._wins(key, version):
                self.rows[key], self.ranks[key] = row, version

    def _wins(self, key: Any, version: Any) -> bool:
        ranks = self.ranks if key in self.rows else self._before
        best = ranks.get(key)
        return best is None or (version is not None and version >= best)


def _follow(of: weakref.ref[TableView], ended: threading.Event, clock: Clock) -> None:
    """The thread: it does not keep a view alive that nobody else has."""
    while not ended.is_set():
        view = of()
        if view is None:
            return
        seconds = view._step()
        del view
        clock.wait(ended, seconds)
