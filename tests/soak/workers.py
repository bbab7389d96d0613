"""The Python processes: ``python -m tests.soak.workers WORLD ROLE NAME START``.

Each does one small thing after the other, records it, and goes on after whatever a fault may lead to. Any other error
ends it, which the run takes for a failure.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark_ledger import lifecycle
from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.cursors.consumer import Consumer, Message
from pyspark_ledger.errors import DataLoss, Fenced, LedgerError, Unavailable
from pyspark_ledger.lifecycle.actions import ACTIONS
from pyspark_ledger.lifecycle.maintenance import Maintenance
from pyspark_ledger.outbox.outbox import Send as Outgoing
from pyspark_ledger.testing.history import (
    Acknowledge,
    CompactedRead,
    CompactionSeen,
    CursorSeen,
    Poll,
    Reset,
    Row,
    Send,
)
from tests.soak.roles import Role
from tests.soak.sharing import KeySharer, Sharer, Transactor, dead_letters
from tests.soak.world import (
    ARCHIVE,
    BILLING,
    BY_KEY,
    CODE,
    EXPECTED,
    FOLLOW,
    INVOICES,
    JOBS,
    KEYS,
    ORDERS,
    SHARE,
    SUBSCRIPTIONS,
    TOGETHER,
    TRIMMED,
    WORK,
    World,
    content,
    is_expected,
    row_of,
)

# -- writing --------------------------------------------------------------------------------------------------------


class Named(Role):
    """Numbers its records itself. After a restart it asks the log where it was, and sends the same again."""

    topic = ORDERS
    mints = False

    def open(self, client: LedgerClient) -> None:
        super().open(client)
        self.producer = client.producer(self.topic, self.name, mint_tokens=self.mints, linger_ms=None)
        last = self.producer.last_sequence_id
        self.next = 0 if last is None else last + 1

    def step(self) -> None:
        numbers = range(self.next, self.next + TOGETHER)
        records = [content(self.world, self.topic, self.name, number) for number in numbers]
        rows = [
            Row(f"{self.name}-{number}", None, record.get("k"), record["v"] is None)
            for number, record in zip(numbers, records, strict=True)
        ]
        event = Send(topic=self.topic, producer=self.name, sequence=self.next, rows=tuple(rows))
        with self.recorder.asking(event) as call:
            sent = [self.producer.send(record, number) for record, number in zip(records, numbers, strict=True)]
            self.producer.flush()
            call.ok(rows=tuple(_placed(row, receipt) for row, receipt in zip(rows, sent, strict=True)))
        self.next += TOGETHER


class Minter(Named):
    """Its records have tokens."""

    topic = JOBS
    mints = True


class Plain(Role):
    """Numbers nothing. What is in doubt it flushes again, and sometimes gives up; a restart begins with new records."""

    count = 0
    waiting: tuple[Row, ...] = ()

    def open(self, client: LedgerClient) -> None:
        super().open(client)
        self.producer: Producer = client.producer(ORDERS, linger_ms=None)
        self.waiting = ()

    def step(self) -> None:
        if not self.waiting:
            rows = tuple(self._row() for _ in range(self.chance.randint(1, TOGETHER)))
            self.receipts = [self.producer.send({"k": row.key, "v": row.value}) for row in rows]
            self.waiting = rows
        with self.recorder.asking(Send(topic=ORDERS, rows=self.waiting)) as call:
            self.producer.flush()
            call.ok(rows=tuple(_placed(row, at) for row, at in zip(self.waiting, self.receipts, strict=True)))
        self.waiting = ()

    def _row(self) -> Row:
        self.count += 1
        return Row(f"{self.process}-{self.count}", None, f"k{self.chance.randrange(KEYS)}")


class Service(Plain):
    """Its producer stores by itself, and it only waits. What could not be stored for some seconds is given up, and the
    history holds what the future said to that."""

    pause_s = 0.1

    def open(self, client: LedgerClient) -> None:
        super().open(client)
        self.producer = client.producer(ORDERS, linger_ms=5.0, delivery_timeout_s=8.0)

    def step(self) -> None:
        row = self._row()
        with self.recorder.asking(Send(topic=ORDERS, rows=(row,))) as call:
            call.ok(rows=(_placed(row, self.producer.send({"k": row.key, "v": row.value})),))


def _placed(row: Row, receipt: Any) -> Row:
    return Row(row.value, receipt.result().position, row.key, row.deletes)


class Spender(Role):
    """Processes jobs through an outbox, in competition with a query that takes the same tokens."""

    pause_s = 0.2

    def open(self, client: LedgerClient) -> None:
        super().open(client)
        self.outbox = client.outbox(BILLING, mint_tokens=False)
        self.position = Position(max(0, client.end(JOBS).ledger - 1), 0, 0)  # most of the older jobs are done

    def step(self) -> bool | None:
        reader = self.client.reader(JOBS, self.position, "latest")
        job = next(iter(reader), None)
        if job is None:
            return False
        value, before = f"{self.process}-{job['v']}", self.client.end(INVOICES)
        row = Row(value, token=job.token)
        with self.recorder.asking(Send(topic=INVOICES, group=BILLING, rows=(row,))) as call:
            done = self.outbox.process(job["v"], str(job.token), _bill(value), entity=f"e{(job.sequence_id or 0) % 5}")
            if done.duplicate:
                call.ok()
            else:
                with suppress(LedgerError):  # then nothing is said of it
                    call.ok(rows=(self._found(value, str(job.token), before),))
        self.position = reader.position
        return None

    def _found(self, value: str, token: str, start: Position) -> Row:
        """Where it is. One that is nowhere loses its token here, so that it counts as a lost write."""
        found = (r.position for r in self.client.reader(INVOICES, start, "latest") if r["v"] == value)
        position = next(found, None)
        return Row(value) if position is None else Row(value, position, token=token)


def _bill(value: str) -> Callable[[Any], tuple[Any, list[Outgoing]]]:
    return lambda state: ((state or 0) + 1, [Outgoing(INVOICES, {"v": value})])


# -- reading --------------------------------------------------------------------------------------------------------


class Reader(Role):
    """Reads on from where it stopped; now and then from somewhere else, also from a place that was given up. And looks
    at the state of the keys."""

    reads = 0
    role = 0

    def open(self, client: LedgerClient) -> None:
        super().open(client)
        self._begin(None)

    def _begin(self, position: Position | None) -> None:
        """None: wherever the topic begins."""
        self.position = position
        self.role += 1

    def step(self) -> None:
        self.reads += 1
        if self.reads % 15 == 0:
            self._read_state()
        elif self.reads % 25 == 0:
            end = self.client.end(ORDERS)
            self._begin(None if self.chance.random() < 0.2 else min(anywhere(self.chance, end), end))
        else:
            try:
                self._read_on()
            except DataLoss as loss:
                if loss.code != TRIMMED:
                    raise
                said(loss)
                self._begin(None)

    def _read_on(self) -> None:
        with self.recorder.asking(Poll(topic=ORDERS, start=self.position, role=f"reader {self.role}")) as call:
            reader = self.client.reader(ORDERS, self.position or "earliest", "latest")
            rows = tuple(row_of(record) for record in islice(reader, self.chance.randint(1, 200)))
            call.ok(rows=rows)
        self.position = reader.position

    def _read_state(self) -> None:
        with self.recorder.asking(CompactedRead(topic=ORDERS)) as call:
            end = self.client.end(ORDERS)
            rows = [row_of(record) for record in self.client.reader(ORDERS, end=end, compacted=True)]
            call.ok(end=end, state=tuple((row.key, row.value) for row in rows))


class Worker(Role):
    """Follows the subscription of the Python consumers, acknowledges in any order, leaves and comes back."""

    subscription, may_refuse = WORK, True
    pause_s = 0.02
    role = 0
    consumer: Consumer | None = None

    def open(self, client: LedgerClient) -> None:
        if self.consumer is not None and client is self.client:
            with suppress(LedgerError):  # it was fenced
                self._leave()
        self.consumer = None  # of a connection that is closed there is nothing left to close
        super().open(client)

    def _common(self) -> dict[str, Any]:
        return {"topic": ORDERS, "subscription": self.subscription, "role": f"consumer {self.role}"}

    def step(self) -> bool | None:
        if self.consumer is None:
            self.role += 1
            self.held: list[Message] = []
            # What is redelivered one by one has no order, so only some do that: of the others the order is checked.
            self.refuses = self.may_refuse and self.chance.random() < 0.4
            self.consumer = self.client.consumer(ORDERS, self.subscription, "failover")
        event = Poll(**self._common())
        with self.recorder.asking(event) as call:
            message = self.consumer.receive(timeout_s=0.2)
            if message is not None:
                again = self.refuses and message.delivery_count > 1
                call.ok(rows=(row_of(message),), again=again, revision=message.revision, epoch=message.epoch)
        self._handle(self.consumer, message)
        return message is not None

    def _handle(self, consumer: Consumer, message: Message | None) -> None:
        if message is None:
            while self.held:
                self._acknowledge(consumer, self.held.pop())
            consumer.flush()
        elif self.refuses and self.chance.random() < 0.1:
            consumer.negative_acknowledge(message)
        else:
            self.held.append(message)
        if len(self.held) > 10:
            self._acknowledge(consumer, self.held.pop(self.chance.randrange(len(self.held))))
        if not self.refuses and self.chance.random() < 0.01:
            consumer.redeliver_unacknowledged()
            self.held.clear()
        if self.chance.random() < 0.005:
            self._leave()

    def _acknowledge(self, consumer: Consumer, message: Message) -> None:
        event = Acknowledge(positions=(message.position,), revision=message.revision, **self._common())
        with self.recorder.asking(event) as call:
            call.ok(moved=None if consumer.acknowledge(message) else False)

    def _leave(self) -> None:
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            consumer.close()


class Archivist(Worker):
    """Has every record in the history before it acknowledges it. What it has not acknowledged cannot be given up (I15),
    so that in the end it is known what there was."""

    subscription, may_refuse = ARCHIVE, False

    def _handle(self, consumer: Consumer, message: Message | None) -> None:
        if message is None:
            consumer.flush()
        else:
            self._acknowledge(consumer, message)


# -- subscriptions --------------------------------------------------------------------------------------------------


def anywhere(chance: random.Random, end: Position) -> Position:
    """Most of these are no record's position: then the next one counts, or the end."""
    ledger = chance.randint(max(0, end.ledger - 3), end.ledger)
    return Position(ledger, chance.randrange(20), chance.randrange(TOGETHER))


class Resetter(Role):
    """Moves the subscription of the query in every way. Two may do so at once."""

    subscription: str = FOLLOW
    pause_s = 3.0
    calls = 0

    def step(self) -> None:
        act = self.chance.choice(["reset", "reset", "latest", "skip", "clear", "rewind", "redeliver"])
        to = str(anywhere(self.chance, self.client.end(ORDERS))) if act == "reset" else "latest"
        self._do(act, to, self.chance.randint(1, 20), uuid.uuid4().bytes)

    def _do(self, act: str, to: str, count: int, operation: bytes, *, repeated: bool = False) -> None:
        cursor = self.client.cursor(ORDERS, self.subscription)
        keeps = act in ("skip", "clear", "rewind", "redeliver")  # these do not move a query back that is ahead
        ways: dict[str, Callable[[], Any]] = {
            "skip": lambda: cursor.skip(count, operation_id=operation),
            "clear": lambda: cursor.clear_backlog(operation_id=operation),
            "rewind": lambda: cursor.rewind(operation_id=operation),
            "redeliver": lambda: cursor.redeliver(operation_id=operation),
        }
        self.calls += 1  # being fenced ends one call; the next one may do the same, and does it as somebody else
        event = Reset(topic=ORDERS, subscription=self.subscription, keeps_acks=keeps, role=f"reset {self.calls}")
        with self.recorder.asking(event) as call:
            done = ways.get(act, lambda: cursor.reset(to, operation_id=operation))()
            call.ok(to=done.position, revision=done.revision, repeated=repeated)


class CarefulResetter(Resetter):
    """The only one of its subscriptions, which have single acknowledgements: whether they count after a reset depends
    on what that was, so it notes what it is about to do, and repeats it until it knows. In one of them nothing comes
    again that was acknowledged: so no record may have two dead letters."""

    pause_s = 1.5

    def step(self) -> None:
        if not self.settle():
            name = self.chance.choice([WORK, WORK, SHARE, BY_KEY])
            again = [] if name == SHARE else ["reset", "latest"]
            act = self.chance.choice([*again, "skip", "skip", "clear", "rewind", "redeliver"])
            to = str(anywhere(self.chance, self.client.end(ORDERS))) if act == "reset" else "latest"
            operation = uuid.uuid4()
            note(self._file, [name, act, to, self.chance.randint(1, 20), operation.hex])
            self._carry_out(repeated=False)

    def settle(self) -> bool:
        """Finishes what was begun and is in doubt, if there is something."""
        if not self._file.exists():
            return False
        self._carry_out(repeated=True)
        return True

    def _carry_out(self, *, repeated: bool) -> None:
        self.subscription, act, to, count, operation = json.loads(self._file.read_text())
        self._do(act, to, count, bytes.fromhex(operation), repeated=repeated)
        self._file.unlink()

    @property
    def _file(self) -> Path:
        return self.world.path("state", self.name)


def note(file: Path, what: object) -> None:
    """The whole of it or nothing."""
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(what))
    draft.replace(file)


# -- housekeeping ---------------------------------------------------------------------------------------------------


class Looker(Role):
    """Looks at the subscriptions, at dead letters and at the compaction."""

    pause_s = 0.8
    letters = 0

    def step(self) -> None:
        for name in SUBSCRIPTIONS:
            with self.recorder.asking(CursorSeen(topic=ORDERS, subscription=name)) as call:
                stats = self.client.cursor(ORDERS, name).stats()
                call.ok(revision=stats.revision, mark_delete=stats.mark_delete)
        found = list(dead_letters(self.client))
        if sum(len(each.rows) for each in found) > self.letters:
            self.letters = sum(len(each.rows) for each in found)
            for each in found:
                self.recorder.saw(each)
        with self.recorder.asking(CompactionSeen(topic=ORDERS)) as call:
            compaction = self.client.compaction(ORDERS)
            if compaction is not None:
                call.ok(generation=compaction.generation, horizon=compaction.horizon)


class Maintainer(Role):
    """One of two: one leads, the other stands by. Its grace and its retention are those of a test: on a busy machine a
    batch can take longer again and again. So when it matters that everybody goes on, nothing is given up or deleted."""

    def __init__(self, world: World, name: str, start: int) -> None:
        super().__init__(world, name, start)
        self.ears = Ears(lambda: _progressed(world, name, time.time()))
        logging.getLogger(lifecycle.__name__).addHandler(self.ears)
        logging.getLogger(lifecycle.__name__).setLevel(logging.INFO)

    def open(self, client: LedgerClient) -> None:
        super().open(client)
        self.is_calm = self.world.is_calm
        actions = [action for action in ACTIONS if not self.is_calm or action.name not in ("trim", "gc")]
        self.maintenance = Maintenance(namespace_of(client), actions=actions)

    def step(self) -> None:
        if self.is_calm != self.world.is_calm:
            self.maintenance.close()
            self.open(self.client)
        self.maintenance.step()
        if self.ears.unexpected:
            raise RuntimeError(self.ears.unexpected)
        if not self.maintenance.health.ready:
            raise Unavailable(self.maintenance.health.error)


class Ears(logging.Handler):
    """Maintenance goes on after every error, and only logs it: so one that no fault explains is heard here. A round
    over all topics takes minutes on a busy machine, so each thing that was done counts as progress."""

    unexpected = ""

    def __init__(self, something_done: Callable[[], None]) -> None:
        super().__init__()
        self._something_done = something_done

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno < logging.WARNING:
            print(f"{time.monotonic():.1f} {text}", flush=True)
            self._something_done()
            return
        said(text)
        if record.exc_info or any(code not in EXPECTED for code in CODE.findall(text)):
            self.unexpected = text


ROLES: dict[str, type[Role]] = {
    "named": Named, "plain": Plain, "service": Service, "minter": Minter, "spender": Spender, "reader": Reader,
    "worker": Worker, "resetter": Resetter, "careful": CarefulResetter, "looker": Looker, "archivist": Archivist,
    "maintainer": Maintainer, "sharer": Sharer, "keysharer": KeySharer, "transactor": Transactor,
}  # fmt: skip


# -- the process ----------------------------------------------------------------------------------------------------


def run(world: World, role: Role) -> None:
    """Until SIGTERM. Each time it connects anew it is as if a program were started again."""
    while not _leaving:
        try:
            client = world.client()
        except LedgerError as error:
            _note(error)
            continue
        try:
            _steps(world, role, client)
        except LedgerError as error:
            _note(error)
        finally:
            with suppress(LedgerError):
                client.close()


def _steps(world: World, role: Role, client: LedgerClient) -> None:
    role.open(client)
    while not _leaving:
        begun = time.time()
        try:
            did = role.step()
        except LedgerError as error:
            _note(error)
            if isinstance(error, Fenced):
                role.open(client)
            elif role.chance.random() < 0.3:
                return
            continue
        _progressed(world, role.name, begun)
        if did is not True:
            time.sleep(role.chance.uniform(0, 2 * role.pause_s))


def _progressed(world: World, name: str, begun: float) -> None:
    file = world.progress(name)
    with suppress(OSError):
        file.write_text(str(begun))


def said(what: object) -> None:
    """What it was told is a line in its log."""
    print(f"{time.monotonic():.1f} told {what}", flush=True)


def _note(error: LedgerError) -> None:
    said(error)
    if not is_expected(error):
        raise error
    time.sleep(0.1)


def die_with_parent() -> None:
    """Also while it is stopped, and also if the run itself is killed."""
    with suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() == 1:  # it was killed before we could ask for this
        sys.exit(1)


def _give_way() -> None:
    """Forty of these on two cores would leave Spark no time to start its own processes in, for which it waits ten
    seconds. Linux may count by sessions, and then this process's own number says nothing to those of others."""
    os.nice(10)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("10")


_leaving: list[bool] = []


def leave(*_: object) -> None:
    """As Ctrl-C does: in the middle of whatever it is doing. If it hangs, its log says where. An exception that comes
    while kazoo wakes up its connection is lost there, so this is remembered too."""
    faulthandler.dump_traceback_later(20)
    _leaving.append(True)
    sys.exit(0)


def main(file: str, role: str, name: str, start: str) -> None:
    die_with_parent()
    _give_way()
    signal.signal(signal.SIGTERM, leave)
    world = World.load(file)
    run(world, ROLES[role](world, name, int(start)))


if __name__ == "__main__":
    main(*sys.argv[1:])
