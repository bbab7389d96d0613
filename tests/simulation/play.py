"""One history: bad times, then good ones in which everybody must get on, then a look at everything."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import SimpleNamespace
from unittest.mock import patch

from pyspark_ledger.base.names import parse_staged_file, staged_file
from pyspark_ledger.base.position import EARLIEST, Position
from pyspark_ledger.cursors import receiving
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.datasource import planning
from pyspark_ledger.errors import DataLoss, LedgerError
from pyspark_ledger.lifecycle import gc
from pyspark_ledger.lifecycle.verify import verify
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.places import PlaceLike, earliest
from pyspark_ledger.log.reader import Reader, Record
from pyspark_ledger.metadata import chores, ephemeral
from pyspark_ledger.metadata.port import (
    CompactorKey,
    MemberKey,
    OwnerKey,
    PartKey,
    PinKey,
    ReviserKey,
    RewriterKey,
    RootKey,
)
from pyspark_ledger.testing.checker import Report, check
from pyspark_ledger.testing.disk import MemoryStorage
from pyspark_ledger.testing.history import (
    Acknowledge,
    DeadLetters,
    Event,
    FinalFiles,
    FinalLog,
    FinalTokens,
    Poll,
    Reset,
    Row,
    Send,
    merge,
)
from pyspark_ledger.testing.recorder import MemoryRecorder
from pyspark_ledger.testing.schedule import TurnLock
from pyspark_ledger.tokens.tokens import Tokens
from tests.simulation.keepers import BadLuck, Cleaner, CompactionLooker, Compactor, Operator, Rewriter, Trimmer
from tests.simulation.process import Process, Ticks
from tests.simulation.readers import CompactedQuery, Follower, Query, StateReader, SubscribedQuery
from tests.simulation.sharers import KeyMourner, KeySharer, Mourner, Sharer, Transactor
from tests.simulation.stage import DEAD, GRACE_S, LOG, OUT, SUBSCRIPTIONS, TABLE, Stage
from tests.simulation.subscribers import Looker, Resetter, Subscriber, ThreadedSubscriber
from tests.simulation.writers import (
    GROUP,
    BatchWriter,
    HurriedRecordWriter,
    HurriedWriter,
    RecordWriter,
    Spender,
    TableWriter,
    Writer,
    table_row,
)

BAD_TIMES_S = 8.0
GOOD_TIMES_S = 70.0  # time enough for everything that waits for a time-out
AFTERMATH_S = 30.0  # a pause, an outage and the deadlines of who met them
SCENES: dict[str, list[type[Process]]] = {
    "the log": [Writer, BatchWriter, RecordWriter, Follower, Query, Cleaner],
    "a crowd of writers": [
        HurriedWriter, HurriedWriter, HurriedWriter, HurriedRecordWriter, HurriedRecordWriter, HurriedRecordWriter,
        BatchWriter, Follower, Cleaner,
    ],
    "queries with a subscription": [BatchWriter, SubscribedQuery, SubscribedQuery, Resetter, Looker, Cleaner],
    "consumers": [Writer, Subscriber, Subscriber, Resetter, Looker, Cleaner],
    "consumers that share": [Writer, Sharer, Sharer, Sharer, Resetter, Looker, Cleaner],
    "consumers that share by key": [Writer, KeySharer, KeySharer, KeySharer, Resetter, Looker, Cleaner],
    "dead letters": [Writer, BatchWriter, Mourner, Mourner, Mourner, Looker, Cleaner],
    "dead letters by key": [Writer, BatchWriter, KeyMourner, KeyMourner, KeyMourner, Looker, Cleaner],
    "transactions": [Writer, BatchWriter, Transactor, Transactor, Transactor, Looker, Cleaner],
    "threads": [Writer, ThreadedSubscriber, ThreadedSubscriber, Resetter, Looker, Cleaner],
    "a table": [TableWriter, TableWriter, Compactor, Compactor, StateReader, CompactedQuery, CompactionLooker, Cleaner],
    "tokens": [Writer, Spender, Spender, Cleaner],
    "a log that is given up": [
        Writer, BatchWriter, SubscribedQuery, SubscribedQuery, Subscriber, Resetter, Looker, Follower, Query, Trimmer,
        Trimmer, Rewriter, Rewriter, Cleaner,
    ],
    "a table that is given up": [
        TableWriter, TableWriter, Compactor, Compactor, StateReader, CompactedQuery, CompactionLooker, Trimmer,
        Rewriter, Rewriter, Cleaner,
    ],
    "a rollback": [
        Writer, BatchWriter, RecordWriter, Follower, Follower, Query, Query, SubscribedQuery, Resetter, Cleaner,
        Operator,
    ],
    "everybody": [
        Writer, BatchWriter, RecordWriter, TableWriter, Follower, Query, SubscribedQuery, Subscriber, Resetter, Looker,
        Compactor, StateReader, CompactedQuery, CompactionLooker, Spender, Cleaner,
    ],
}  # fmt: skip
# After a rollback. A column may be gone that a query has just seen.
LOST_BY_ROLLBACK = ("LEDGER_SET_BACK", "LEDGER_POSITION_PAST_END", "LEDGER_COLUMN_NOT_FOUND")
TROUBLES = (0.0, 0.01, 0.03, 0.1)
CHANGES = (Send, Reset, Acknowledge)  # what may come to the server after a rollback that it was asked before


class Failure(Exception):
    """Something is wrong with the log, or with a process that should have got on."""


class Play:
    """``scene`` and ``trouble`` are drawn from the seed, unless they are given: then scenes that are added to the list
    do not change what happens."""

    def __init__(self, seed: int, scene: str = "", trouble: float | None = None) -> None:
        self.seed = seed
        self.stage = Stage(seed)
        chance = self.stage.chance
        drawn = chance.choices(list(SCENES), [1 if name == "everybody" else 4 for name in SCENES])[0]
        self.scene = scene or drawn
        drawn_trouble = chance.choice(TROUBLES)
        self.trouble = drawn_trouble if trouble is None else trouble
        self.troubled, self.ending = True, False
        self.events: dict[tuple[str, int], Event] = {}
        self.ticks = Ticks(self.stage.schedule, seed)
        self.rollbacks: list[Rollback] = []
        self.errors: list[Failure] = []
        self._open = ExitStack()
        self.sessions: dict[str, OpenNamespace] = {}  # by address: the queries'
        self.damaged: dict[str, bytes] = {}
        self.trims = any(kind is Trimmer for kind in SCENES[self.scene])
        self.old_topic = TABLE if Compactor in SCENES[self.scene] else LOG  # that is trimmed and rewritten
        self.copies: dict[str, dict[Position, Row]] = {}  # of what may have been given up since
        self._ever_damaged: set[str] = set()
        if any(issubclass(kind, Mourner) for kind in SCENES[self.scene]):
            self.stage.make_dead()
        self.cast: list[Process] = [
            kind(self, f"{kind.__name__.lower()}-{number}") for number, kind in enumerate(SCENES[self.scene], 1)
        ]

    def run(self) -> Report:
        with self.turns():
            try:
                self.bad_times()
                self.good_times()
                self.the_end()
                if self.errors:
                    raise self.errors[0]
            finally:
                self.stage.schedule.end()
            self.look_at_everything()
        return self.report()

    def report(self) -> Report:
        """Of each history that a rollback has ended, and of the last one; the first that has an anomaly."""
        before: Rollback | None = None
        resets: list[Reset] = []
        for rollback in [*self.rollbacks, None]:
            history = merge([*resets, *era(self.events.values(), before, rollback)])
            report = check(history)
            if report.anomalies:
                break
            before = rollback
            resets = [] if rollback is None else rollback.kept_resets(history)
        return report

    def mount(self, storage: MemoryStorage) -> None:
        self._open.enter_context(storage.mounted())

    def turns(self) -> ExitStack:
        """Locks that a process holds while another one has its turn would stop everybody."""
        stack = self._open
        for module in (ephemeral, receiving):
            stack.enter_context(
                patch.object(module, "threading", SimpleNamespace(RLock=lambda: TurnLock(self.stage.schedule)))
            )
        stack.enter_context(patch.object(logging.getLogger(chores.__name__), "exception", self.given_up))
        stack.enter_context(patch.object(planning, "shared_namespace", lambda where: self.sessions[where.zookeeper]))
        return stack

    def given_up(self, message: str, *what: object) -> None:
        """Whatever a chore raises that is no error of ours is logged by its thread, and would not be seen here."""
        error = sys.exc_info()[1]
        self.errors.append(Failure(f"{message % what}: {error!r}"))

    # -- the acts ------------------------------------------------------------------------------------------------

    @property
    def pace(self) -> float:
        """How much longer than usual everybody takes between two steps: in good times, much of the same happens."""
        return 1.0 if self.troubled or self.ending else 6.0

    def bad_times(self) -> None:
        luck = BadLuck(self, "bad luck")
        for process in self.cast:
            self.stage.schedule.start(process.name, process.live)
        if self.trouble:
            self.stage.schedule.start(luck.name, luck.live)
        if self.scene == "a rollback":
            self.plan_rollbacks()
        self.stage.schedule.wait(BAD_TIMES_S)

    def plan_rollbacks(self) -> None:
        """ZooKeeper comes back from a backup, up to three times, while everybody lives on."""
        chance, at = self.stage.chance, 0.0
        for _ in range(chance.randint(1, 3)):
            at += chance.uniform(0.5, 2.5)
            self.stage.later(at, self.back_up)
            at += chance.uniform(0.1, 2.0)
            self.stage.later(at, self.roll_back)

    def good_times(self) -> None:
        """Nothing fails any more. Everybody must do something within the time, and when nobody writes any more,
        everybody who follows must come to the end."""
        self.troubled = False
        self.mend_all()
        for process in self.cast:
            process.calm()
        self.stage.server.deliver_delayed()
        began = self.stage.schedule.now
        self.stage.schedule.wait(GOOD_TIMES_S / 2)
        stuck = [process for process in self.cast if not process.gets_on(began)]
        if stuck:
            raise Failure("; ".join(f"{each.name} does not get on, it was told {each.told}" for each in stuck))
        self.ending = True
        for process in self.cast:
            process.stopped = process.stopped or process.writes
        self.stage.schedule.wait(GOOD_TIMES_S / 2)
        late = [process for process in self.cast if not process.caught_up()]
        if late:
            raise Failure("; ".join(f"{each.name} never came to the end, it was told {each.told}" for each in late))

    def the_end(self) -> None:
        for process in self.cast:
            process.stopped = True
        self.stage.schedule.wait(30.0)
        for process in self.cast:  # who still waits for its turn
            process.kill()
        self.stage.schedule.wait(30.0)

    def attempt_to_leave(self, process: Process) -> None:
        try:
            process.leave()
            process.metadata.chores.close(connected=True)
        except LedgerError as error:
            raise Failure(f"{process.name} cannot leave: {error}") from error
        process.metadata.close()

    def back_up(self) -> None:
        self.backup = self.moment()

    def roll_back(self) -> None:
        time, kept, revisions = self.backup
        _, had, _ = self.moment()
        self.rollbacks.append(Rollback(self.ticks.monotonic(), kept, had, revisions))
        self.stage.server.restore(time)

    def moment(self) -> tuple[int, tuple[Row, ...], dict[str, int]]:
        """A time of the server, what the log has then, and the revisions of its subscriptions. Looking takes time, and
        what was delayed may come."""
        while True:
            time, rows = self.stage.server.time, self.rows(LOG)
            cursors = [CursorNode(self.stage.log(LOG), name) for name in SUBSCRIPTIONS]
            revisions = {cursor.name: cursor.refresh(sync=True).revision for cursor in cursors}
            if self.stage.server.time == time:
                return time, rows, revisions

    def rows(self, topic: str) -> tuple[Row, ...]:
        """What a topic has now."""
        self.mend_all()
        return tuple(final_row(topic, record) for record in Reader(self.stage.log(topic), "earliest", "latest"))

    # -- what is asked meanwhile -----------------------------------------------------------------------------------

    def is_end(self, topic: str, position: PlaceLike) -> bool:
        """Whether nothing of a topic comes after a position."""
        try:
            return not list(Reader(self.stage.log(topic), position, "latest"))
        except DataLoss:  # what comes after it was given up
            return False

    def anywhere(self, topic: str) -> Position:
        """Some position of a topic, by chance."""
        return self.stage.chance.choice([row.position for row in self.rows(topic)] or [EARLIEST]) or EARLIEST

    def mark(self, subscription: str) -> bool:
        """Whether everything is acknowledged."""
        log = self.stage.log(LOG)
        cursor = CursorNode(log, subscription).refresh(sync=True)
        return cursor.ordinal == log.view().head.records

    def damage(self, path: str, before: bytes) -> None:
        self.damaged[path] = before
        self._ever_damaged.add(path)

    def mend(self, path: str) -> None:
        before = self.damaged.pop(path, None)
        if before is not None and path in self.stage.disk.files():
            self.stage.disk.put(path, before)

    def keep_a_copy(self, topic: str) -> None:
        """Before ledgers are given up."""
        rows = self.rows(topic)
        self.copies.setdefault(topic, {}).update((row.position, row) for row in rows if row.position is not None)

    def ever_written(self, topic: str, rows: Iterable[Row]) -> tuple[Row, ...]:
        """What a topic has now, and before that what it has given up."""
        there = tuple(rows)
        begin = earliest(self.stage.log(topic).view())
        gone = [row for position, row in sorted(self.copies.get(topic, {}).items()) if position < begin]
        return (*gone, *there)

    def may_have_lost(self, process: Process, error: LedgerError) -> bool:
        """Whether an error that tells of a loss tells the truth. What a subscription has not passed is held back."""
        if error.code == "LEDGER_TRIMMED":
            return self.trims and not process.subscription
        return bool(self.rollbacks) and error.code in LOST_BY_ROLLBACK

    def may_fail(self) -> bool:
        """Whether the store or the disk may be in trouble, or has been a moment ago."""
        since_bad_times = self.stage.schedule.now - BAD_TIMES_S
        return bool(self.rollbacks) or (self.trouble > 0 and since_bad_times < AFTERMATH_S)

    def mend_all(self) -> None:
        for path in list(self.damaged):
            self.mend(path)

    def is_damaged(self, error: str) -> bool:
        """Whether an error names a file that was damaged."""
        return any(path in error for path in self._ever_damaged)

    # -- in the end ------------------------------------------------------------------------------------------------

    def look_at_everything(self) -> None:
        self.nothing_is_left_standing()
        recorder = MemoryRecorder(self.events, "the end", self.ticks)
        minted: list[str] = []
        for topic in (LOG, TABLE, OUT):
            log = self.stage.log(topic)
            records = list(Reader(log, "earliest", "latest"))
            rows = self.ever_written(topic, (final_row(topic, record) for record in records))
            recorder.saw(FinalLog(topic=topic, rows=rows))
            self.no_file_is_left(log, recorder)
            minted += [record.token for record in records if record.token and topic == LOG]
        present = Tokens(self.stage.log(LOG), GROUP).present(minted) if minted else []
        there = tuple(token for token, is_there in zip(minted, present, strict=True) if is_there)
        recorder.saw(FinalTokens(topic=LOG, group=GROUP, present=there))
        if DEAD in self.stage.topics:
            self.look_at_dead_letters(recorder)
        for topic in self.stage.topics:
            self.all_is_whole(self.stage.log(topic))

    def look_at_dead_letters(self, recorder: MemoryRecorder) -> None:
        rows: dict[str, list[Row]] = {}
        for letter in Reader(self.stage.log(DEAD), "earliest", "latest"):
            row = Row(str(json.loads(letter["record"])["n"]), Position.parse(letter["position"]))
            rows.setdefault(letter["subscription"], []).append(row)
        for name, died in rows.items():
            recorder.saw(DeadLetters(topic=LOG, subscription=name, rows=tuple(died)))
        self.no_file_is_left(self.stage.log(DEAD), recorder)

    def nothing_is_left_standing(self) -> None:
        """I16: no flag, no lock, no owner of a process that is gone."""
        for topic in self.stage.topics.values():
            metadata = self.stage.log(LOG).metadata
            kinds = (OwnerKey, ReviserKey, MemberKey, PinKey, CompactorKey, RewriterKey)
            parts = [key for key in metadata.children(RootKey(topic.uuid)) if isinstance(key, PartKey)]
            left = [key for part in parts for key in metadata.children(part) if isinstance(key, kinds)]
            if left:
                raise Failure(f"left standing: {left}")
        for name in SUBSCRIPTIONS:  # whoever was resetting it when it died is in nobody's way
            CursorHandle(self.stage.log(LOG), name).rewind()

    def all_is_whole(self, log: Log) -> None:
        """Nobody has damaged anything for good: so verifying has nothing to tell."""
        log.limits = replace(log.limits, verify_threads=1)  # time stands still for other threads
        assert isinstance(log.storage, MemoryStorage)
        with log.storage.mounted():
            wrong = [found for found in verify(log, deep=True).findings if found.is_harm]
        if wrong:
            raise Failure(f"verifying '{log.topic.name}' found: {wrong}")

    def no_file_is_left(self, log: Log, recorder: MemoryRecorder) -> None:
        """The leak oracle: when gc has had its time, there is no file that nothing names."""
        for _ in range(5):
            gc.collect(log)
            self.stage.schedule.now += GRACE_S
        gc.collect(log, thorough=True)  # which also finds what was staged late
        uuid, files = log.topic.uuid, gc.references(log, log.refresh(sync=True))
        named = {staged_file(uuid, file.epoch, file.uid) for file in files}
        present = {path for path in self.stage.disk.files() if path.startswith(f"{uuid}/")}
        recorder.saw(FinalFiles(topic=log.topic.name, named=tuple(sorted(named)), present=tuple(sorted(present))))
        staged = {path for path in present - named if parse_staged_file(uuid, path) is not None}
        if staged:
            raise Failure(f"files of '{log.topic.name}' that nothing names: {sorted(staged)}")


@dataclass(frozen=True)
class Rollback:
    """When it was, what the backup had, what the log had, and how far subscriptions were reset in the backup."""

    at: float
    kept: tuple[Row, ...]
    had: tuple[Row, ...]
    revisions: dict[str, int]

    def kept_resets(self, history: Iterable[Event]) -> list[Reset]:
        """Resets that the backup has brought back. In the history that ends, no two of a subscription have the same
        revision: so they are those up to the one that the backup had. Where they had put the subscription is not said
        again (as if they had been repeated), because how far it was read since belongs to the history that ends."""
        resets = (event for event in history if isinstance(event, Reset) and event.is_ok)
        kept = (reset for reset in resets if (reset.revision or 0) <= self.revisions[reset.subscription])
        return [replace(reset, repeated=True) for reset in kept]

    def is_read_before(self, event: Event) -> bool:
        """Whether a reader that was told later has not looked at the server since, and read what the log had. It looks
        every two seconds, and is told of the rollback then."""
        if not isinstance(event, Poll) or not self.at <= (event.told_at or 0.0) or event.asked_at >= self.at + 3.0:
            return False
        had, kept = ({(row.value, row.position) for row in rows} for rows in (self.had, self.kept))
        rows = {(row.value, row.position) for row in event.rows}
        return rows <= had and (event.asked_at < self.at or not rows <= kept)


def era(events: Iterable[Event], first: Rollback | None, last: Rollback | None) -> Iterator[Event]:
    """What was asked and told between two rollbacks. Of a request that was under way at one of them nothing is known:
    it may have come to the server before or after, and who was told "done" may have been told of what was lost since.
    """
    began, ended = 0.0 if first is None else first.at, float("inf") if last is None else last.at
    if first is not None:  # what the backup has brought back, as if somebody had sent it
        yield Send(process="the backup", topic=LOG, told="ok", rows=first.kept, asked_at=began)
    if last is not None:
        yield FinalLog(process="the last look", told="ok", topic=LOG, rows=last.had, asked_at=ended)
    for event in events:
        told_at = float("inf") if event.told_at is None else event.told_at
        if last is not None and last.is_read_before(event):
            yield event
        elif first is not None and first.is_read_before(event):
            continue
        elif began <= event.asked_at < ended and told_at < ended:
            yield event
        elif event.asked_at < ended and told_at >= began and (isinstance(event, CHANGES) or event.asked_at >= began):
            yield replace(event, told="unknown", told_at=None)


def final_row(topic: str, record: Record) -> Row:
    if topic == TABLE:
        return table_row(record["k"], record["n"], record.position)
    return Row(str(record["n"]), record.position)
