"""Who follows a subscription from Python, and who moves it."""

from __future__ import annotations

from typing import Any

from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.consumer import Consumer, Message
from pyspark_ledger.cursors.handle import CursorHandle, ResetResult
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.errors import LedgerError, OutcomeUnknown
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.testing.history import Acknowledge, CursorSeen, Poll, Reset, Row
from pyspark_ledger.testing.memory import Crash
from pyspark_ledger.testing.recorder import MemoryRecorder
from tests.simulation.process import Process
from tests.simulation.stage import LOG, SUBSCRIPTIONS


class Subscriber(Process):
    """Receives, acknowledges in any order, has some redelivered, leaves and comes back."""

    subscription = "shared"
    thinks_s = 0.1

    def begin(self) -> None:
        self.consumer: Consumer | SharedConsumer | None = None

    def attach(self) -> Consumer | SharedConsumer:
        self.roles = getattr(self, "roles", 0) + 1
        self.held: list[Message] = []
        self.idle = False
        return Consumer(self.log(LOG, watch=True), self.subscription, "failover")

    def gets_on(self, since: float) -> bool:
        return any(each.done_at >= since for each in self.play.cast if isinstance(each, Subscriber))

    def common(self) -> dict[str, str]:
        return {"topic": LOG, "subscription": self.subscription, "role": f"consumer {self.roles}"}

    def step(self) -> None:
        if self.consumer is None:
            self.consumer = self.attach()
        if self.play.ending:
            return self.finish(self.consumer)
        acts = [self.receive] * 5 + [self.acknowledge] * 4 + [self.acknowledge_all, self.refuse, self.come_back]
        self.stage.chance.choice(acts)(self.consumer)
        return None

    def finish(self, consumer: Consumer | SharedConsumer) -> None:
        """When nobody writes any more: everything is handled in the end."""
        for _ in range(50):
            self.receive(consumer)
            if self.idle:
                break
        while self.held:
            self.acknowledge(consumer)
        consumer.flush()

    def receive(self, consumer: Consumer | SharedConsumer) -> None:
        with self.recorder.asking(Poll(**self.common())) as call:
            message = consumer.receive(timeout_s=0.0)
            self.idle = message is None
            if message is not None:
                self.held.append(message)
                again = message.delivery_count > 1
                row = Row(str(message["n"]), message.position)
                call.ok(rows=(row,), revision=message.revision, epoch=message.epoch, again=again)
            else:
                call.refused("nothing came")

    def acknowledge(self, consumer: Consumer | SharedConsumer) -> None:
        if self.held:
            message = self.stage.chance.choice(self.held)
            event = Acknowledge(positions=(message.position,), revision=message.revision, **self.common())
            with self.recorder.asking(event) as call:
                call.ok(moved=None if consumer.acknowledge(message) else False)
            self.held.remove(message)

    def acknowledge_all(self, consumer: Consumer | SharedConsumer) -> None:
        if self.held and self.stage.happens(0.3):
            message = max(self.held, key=lambda message: message.ordinal)
            at = message.position
            upto = Position(at.ledger, at.entry, at.index + 1)
            with self.recorder.asking(Acknowledge(upto=upto, revision=message.revision, **self.common())) as call:
                counts = consumer.acknowledge_cumulative(message)
                call.ok(moved=None if counts else False)
            done = [each for each in self.held if each.ordinal <= message.ordinal] if counts else [message]
            self.held = [each for each in self.held if each not in done]

    def refuse(self, consumer: Consumer | SharedConsumer) -> None:
        if self.held:
            consumer.negative_acknowledge(self.held[-1])
            self.held.pop()

    def come_back(self, consumer: Consumer | SharedConsumer) -> None:
        if self.stage.happens(0.2):
            self.leave()

    def leave(self) -> None:
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            consumer.close()

    consumer = None

    def caught_up(self) -> bool:
        return self.play.mark(self.subscription)


class ThreadedSubscriber(Subscriber):
    """Three threads share a consumer: each record goes to one of them, and any of them acknowledges it."""

    def receive(self, consumer: Consumer | SharedConsumer) -> None:
        running, errors = [0, 1, 2], list[BaseException]()

        def work(thread: int) -> None:
            try:
                for _ in range(2):
                    self.receive_in(thread, consumer)
            except (LedgerError, Crash) as error:
                errors.append(error)
            finally:
                running.remove(thread)

        for thread in list(running):
            self.stage.schedule.start(f"{self.name}, thread {thread}", lambda thread=thread: work(thread))
        while running:
            self.stage.schedule.wait(0.01)
        if errors:
            raise errors[0]

    def receive_in(self, thread: int, consumer: Consumer | SharedConsumer) -> None:
        with self.recorders[thread].asking(Poll(**self.common())) as call:
            message = consumer.receive(timeout_s=0.0)
            self.idle = message is None
            if message is None:
                return call.refused("nothing came")
            given = (self.roles, message.ordinal, message.epoch, message.revision, message.delivery_count)
            assert given not in self.given, f"two threads were given {message} (I2)"
            self.given.add(given)
            self.held.append(message)
            row = Row(str(message["n"]), message.position)
            return call.ok(rows=(row,), revision=message.revision, epoch=message.epoch, again=True)

    def begin(self) -> None:
        super().begin()
        names = [f"{self.name}-{self.lives}, thread {number} of run {self.steps}" for number in range(3)]
        self.recorders = [MemoryRecorder(self.play.events, name, self.play.ticks) for name in names]
        self.given: set[tuple[int, ...]] = set()


class Resetter(Process):
    """Moves subscriptions from outside, to anywhere; what it does not know the outcome of it repeats."""

    thinks_s = 2.0
    calls = 0

    def begin(self) -> None:
        self.target = self.log(LOG)
        self.doubtful: tuple[str, str, Any, bytes] | None = None

    def step(self) -> None:
        if self.play.ending:
            return
        if self.doubtful is None:
            how = self.stage.chance.choice(["reset", "reset", "reset", "skip", "clear_backlog", "rewind", "redeliver"])
            name = self.stage.chance.choice(sorted(SUBSCRIPTIONS))
            to = self.anywhere() if how == "reset" else self.stage.chance.randint(0, 5)
            self.doubtful = how, name, to, self.clock.new_id()
            self.tries = 0
        how, name, to, operation = self.doubtful
        self.tries += 1
        # Those that only move forward do not move a query back that is ahead: what it has read before counts.
        keeps_acks = how != "reset"
        self.calls += 1  # being fenced ends one call, and the next one is another role
        role, repeated = f"reset {self.calls}", self.tries > 1
        event = Reset(topic=LOG, subscription=name, keeps_acks=keeps_acks, repeated=repeated, role=role)
        try:
            with self.recorder.asking(event) as call:
                done = self.move(CursorHandle(self.target, name), how, to, operation)
                call.ok(to=done.position, revision=done.revision)
        except OutcomeUnknown:
            raise
        except BaseException:
            self.doubtful = None
            raise
        self.doubtful = None

    def anywhere(self) -> str:
        if self.stage.happens(0.5):
            return self.stage.chance.choice(["earliest", "latest"])
        known = [record.position for record in Reader(self.target, "earliest", "latest")]
        return str(self.stage.chance.choice(known)) if known else "latest"

    def move(self, handle: CursorHandle, how: str, to: Any, operation: bytes) -> ResetResult:
        if how == "reset":
            return handle.reset(to, operation_id=operation)
        if how == "skip":
            return handle.skip(to, operation_id=operation)
        done: ResetResult = getattr(handle, how)(operation_id=operation)
        return done


class Looker(Process):
    """Looks at the subscriptions. Nothing happens to it but time."""

    thinks_s = 1.0

    def step(self) -> None:
        self.faults.stop()
        for name in SUBSCRIPTIONS:
            with self.recorder.asking(CursorSeen(topic=LOG, subscription=name)) as call:
                cursor = CursorNode(self.log(LOG), name).refresh(sync=True)
                call.ok(revision=cursor.revision, mark_delete=cursor.mark_delete)
