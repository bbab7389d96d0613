"""Who shares a subscription: by record, by key, with dead letters, and in transactions."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors import shares
from pyspark_ledger.cursors.backoff import Backoff
from pyspark_ledger.cursors.consumer import Consumer, Message
from pyspark_ledger.cursors.dead_letters import DeadLetters
from pyspark_ledger.cursors.key_shared_consumer import KeySharedConsumer
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.errors import LedgerError, OutcomeUnknown, Unavailable
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.outbox.transaction import Transaction
from pyspark_ledger.testing.history import Acknowledge, Poll, Refuse, Row, Send
from tests.simulation.stage import DEAD, LOG, OUT, TABLE
from tests.simulation.subscribers import Subscriber
from tests.simulation.writers import table_row

MAX_REDELIVERIES = 2


class Sharer(Subscriber):
    """One of several who share the subscription: each record goes to one of them, in no order."""

    kind: type[SharedConsumer] = SharedConsumer

    def attach(self) -> SharedConsumer:
        self.roles = getattr(self, "roles", 0) + 1
        self.held: list[Message] = []
        self.noted: list[Message] = []  # acknowledged; whether that was written is not known
        self.idle = False
        prefetch = self.stage.chance.choice([1, 3, 1_000])
        return self.kind(self.log(LOG, watch=True), self.subscription, prefetch=prefetch, **self.options())

    def options(self) -> dict[str, Any]:
        return {}

    def namespace(self) -> OpenNamespace:
        return OpenNamespace(self.metadata, self.storage, limits=self.stage.limits, clock=self.clock)

    def receive(self, consumer: Consumer | SharedConsumer) -> None:
        with self.recorder.asking(Poll(**self.common())) as call:
            message = consumer.receive(timeout_s=0.0)
            self.idle = message is None
            if message is None:
                return call.refused("nothing came")
            self.held.append(message)
            row = Row(str(message["n"]), message.position)
            return call.ok(rows=(row,), revision=message.revision, epoch=message.epoch, again=True, shared=True)

    def acknowledge(self, consumer: Consumer | SharedConsumer) -> None:
        before = list(self.held)
        super().acknowledge(consumer)
        self.noted += [message for message in before if message not in self.held]

    def acknowledge_all(self, consumer: Consumer | SharedConsumer) -> None:
        if self.stage.happens(0.1):
            consumer.redeliver_unacknowledged()
        elif self.noted:
            self.confirm(consumer)

    def confirm(self, consumer: Consumer | SharedConsumer) -> None:
        """Has acknowledgements written, and looks which the cursor has: those records must not come again."""
        consumer.flush()
        noted, self.noted = self.noted, []
        revision = max(message.revision for message in noted)
        event = Acknowledge(revision=revision, **self.common())
        with self.recorder.asking(event) as call:
            cursor = CursorNode(self.log(LOG), self.subscription).refresh(sync=True)
            acks = shares.acks(cursor)
            done = [
                message.position
                for message in noted
                if message.revision == revision == cursor.revision
                and (message.ordinal < cursor.ordinal or message.ordinal in acks)
            ]
            call.ok(positions=tuple(done), moved=bool(done))


class KeySharer(Sharer):
    """The same, by key."""

    kind = KeySharedConsumer


class Mourner(Sharer):
    """Refuses some records whenever they come, so that they end up among the dead letters."""

    def options(self) -> dict[str, Any]:
        grave = DeadLetters(self.namespace(), DEAD, MAX_REDELIVERIES)
        return {"grave": grave, "backoff": Backoff(0.2, 0.5, MAX_REDELIVERIES)}

    def receive(self, consumer: Consumer | SharedConsumer) -> None:
        super().receive(consumer)
        if not self.idle and self.held[-1]["n"] % 5 == 0:
            self.refuse(consumer)

    def refuse(self, consumer: Consumer | SharedConsumer) -> None:
        if self.held:
            with self.recorder.asking(Refuse(positions=(self.held[-1].position,), **self.common())) as call:
                consumer.negative_acknowledge(self.held[-1])
                call.ok()
            self.held.pop()


class KeyMourner(Mourner):
    kind = KeySharedConsumer


class Transactor(Sharer):
    """Makes two records of each that it receives, in two topics, and acknowledges it, all of that or nothing: so each
    is there once in the end."""

    transactions = 0

    def step(self) -> None:
        if self.consumer is None:
            self.consumer = self.attach()
        if self.play.ending:
            return self.finish(self.consumer)
        acts = [self.receive] * 5 + [self.acknowledge] * 4 + [self.acknowledge_all, self.come_back]
        self.stage.chance.choice(acts)(self.consumer)
        return None

    def acknowledge(self, consumer: Consumer | SharedConsumer) -> None:
        some, self.held = self.held[:3], self.held[3:]
        if some:
            try:
                self.transact(consumer, some)
            except LedgerError:
                with suppress(LedgerError):
                    self.leave()  # what was not acknowledged comes again
                raise

    def transact(self, consumer: Consumer | SharedConsumer, messages: list[Message]) -> None:
        self.transactions += 1
        name = f"{self.name}-{self.lives}/{self.transactions}"
        numbers = [message["n"] for message in messages]
        rows = {
            OUT: tuple(Row(str(number)) for number in numbers),
            TABLE: tuple(table_row(f"made of {number}", number, None) for number in numbers),
        }
        positions = tuple(message.position for message in messages)
        event = Acknowledge(positions=positions, revision=messages[0].revision, together=name, **self.common())
        with ExitStack() as stack:
            asked = stack.enter_context(self.recorder.asking(event))
            sends = [Send(topic=topic, rows=some, role=event.role, together=name) for topic, some in rows.items()]
            sent = {send.topic: stack.enter_context(self.recorder.asking(send)) for send in sends}
            transaction = Transaction(self.namespace())
            transaction.append(OUT, [{"n": number} for number in numbers])
            transaction.append(TABLE, [{"k": f"made of {number}", "n": number} for number in numbers])
            transaction.acknowledge(consumer, messages)
            starts = self.commit(transaction)
            for topic, call in sent.items():
                call.ok(rows=tuple(_placed(row, starts[topic], index) for index, row in enumerate(rows[topic])))
            asked.ok(moved=True)

    def commit(self, transaction: Transaction) -> dict[str, Position]:
        """What is in doubt it tries again, sometimes."""
        if self.stage.happens(0.5):
            with suppress(OutcomeUnknown, Unavailable):
                return transaction.commit()
        return transaction.commit()


def _placed(row: Row, start: Position, index: int) -> Row:
    return Row(row.value, Position(start.ledger, start.entry, start.index + index), row.key)
