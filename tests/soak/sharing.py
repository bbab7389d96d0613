"""Who shares a subscription: workers by record and by key, with dead letters; and who makes of each order a payment and
a posting, in a transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, ClassVar

from pyspark_ledger.base.position import Position
from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.cursors import shares
from pyspark_ledger.cursors.node import CursorNode
from pyspark_ledger.cursors.receiving import Message
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.errors import LedgerError, OutcomeUnknown, Unavailable
from pyspark_ledger.outbox.transaction import Transaction
from pyspark_ledger.testing.history import Acknowledge, DeadLetters, Poll, Refuse, Row, Send
from tests.soak.roles import Role
from tests.soak.world import BY_KEY, DEAD, MAX_REDELIVERIES, ORDERS, PAID, PAY, POSTED, SHARE, row_of


class Member(Role):
    """Receives what it shares with others."""

    subscription: ClassVar[str]
    type: ClassVar[Any] = "shared"
    pause_s = 0.02
    consumer: SharedConsumer | None = None
    joined = 0

    def open(self, client: LedgerClient) -> None:
        if self.consumer is not None and client is self.client:
            self.leave()
        self.consumer = None  # of a connection that is closed there is nothing left to close
        super().open(client)

    def attached(self, **options: Any) -> SharedConsumer:
        if self.consumer is None:
            self.joined += 1
            prefetch = self.chance.choice([1, 5, 100])
            made = self.client.consumer(ORDERS, self.subscription, self.type, prefetch=prefetch, **options)
            assert isinstance(made, SharedConsumer)
            self.consumer = made
        return self.consumer

    def common(self) -> dict[str, Any]:
        return {"topic": ORDERS, "subscription": self.subscription, "role": f"member {self.joined}"}

    def receive(self, consumer: SharedConsumer, timeout_s: float) -> Message | None:
        event = Poll(shared=True, again=True, keyed=self.type == "key_shared", **self.common())
        with self.recorder.asking(event) as call:
            message = consumer.receive(timeout_s=timeout_s)
            if message is not None:
                call.ok(rows=(row_of(message),), revision=message.revision, epoch=message.epoch)
        return message

    def leave(self) -> None:
        consumer, self.consumer = self.consumer, None
        with suppress(LedgerError):  # what it had comes to others in any case
            if consumer is not None:
                consumer.close()


class Sharer(Member):
    """Acknowledges in any order, refuses some orders whenever they come, so that they die, and others now and then."""

    subscription = SHARE

    def open(self, client: LedgerClient) -> None:
        super().open(client)
        self.held: list[Message] = []
        self.noted: list[Message] = []  # acknowledged; whether that was written is not known

    def step(self) -> bool:
        options = {"redelivery_delay_s": 0.2, "max_redelivery_delay_s": 1.0}
        consumer = self.attached(max_redeliveries=MAX_REDELIVERIES, dead_letter_topic=DEAD, **options)
        message = self.receive(consumer, 0.2)
        if message is None:
            while self.held:
                self._acknowledge(consumer, self.held.pop())
            self._confirm(consumer)
        elif self._is_bad(message) or self.chance.random() < 0.02:
            self._refuse(consumer, message)
        else:
            self.held.append(message)
        if len(self.held) > 5:
            self._acknowledge(consumer, self.held.pop(self.chance.randrange(len(self.held))))
        if len(self.noted) > 20:
            self._confirm(consumer)
        if self.chance.random() < 0.003:
            self.held.clear()
            consumer.redeliver_unacknowledged()
        if self.chance.random() < 0.005:
            self.held.clear()
            self.leave()
        return message is not None

    def _is_bad(self, message: Message) -> bool:
        return self.world.chance("bad", message.position).random() < 0.01

    def _refuse(self, consumer: SharedConsumer, message: Message) -> None:
        with self.recorder.asking(Refuse(positions=(message.position,), **self.common())) as call:
            consumer.negative_acknowledge(message)
            call.ok()

    def _acknowledge(self, consumer: SharedConsumer, message: Message) -> None:
        event = Acknowledge(positions=(message.position,), revision=message.revision, **self.common())
        with self.recorder.asking(event) as call:
            counts = consumer.acknowledge(message)
            call.ok(moved=None if counts else False)
        if counts:
            self.noted.append(message)

    def _confirm(self, consumer: SharedConsumer) -> None:
        """Has acknowledgements written, and looks which the cursor has: those records must not come again."""
        if not self.noted:
            return
        consumer.flush()
        noted, self.noted = self.noted, []
        revision = max(message.revision for message in noted)
        of_it = [message for message in noted if message.revision == revision]
        event = Acknowledge(positions=tuple(each.position for each in of_it), revision=revision, **self.common())
        with self.recorder.asking(event) as call:
            cursor = CursorNode(namespace_of(self.client).log(ORDERS), self.subscription).refresh(sync=True)
            if cursor.revision != revision:
                call.ok(moved=False, positions=())
                return
            acks = shares.acks(cursor)
            done = (each for each in of_it if each.ordinal < cursor.ordinal or each.ordinal in acks)
            call.ok(moved=True, positions=tuple(each.position for each in done))


class KeySharer(Sharer):
    """The same, by key."""

    subscription = BY_KEY
    type = "key_shared"


def dead_letters(client: LedgerClient) -> Iterator[DeadLetters]:
    """The dead letters of each subscription, as they are now. Of a record that deletes its key the letter does not say
    which it was."""
    found: dict[str, list[Row]] = {SHARE: [], BY_KEY: []}
    for letter in client.reader(DEAD, end="latest"):
        value = json.loads(letter["record"])["v"]
        found[letter["subscription"]].append(Row(value or "", Position.parse(letter["position"])))
    for name, rows in found.items():
        yield DeadLetters(topic=ORDERS, subscription=name, rows=tuple(rows))


class Transactor(Member):
    """Reads orders, and for each of them writes a payment and a posting, once, over whatever happens. When the faults
    are over it takes many at once: two of these have to catch up with all who write orders."""

    subscription = PAY
    transactions = 0

    def step(self) -> bool:
        consumer = self.attached()
        wanted = self.chance.randint(1, 100 if self.world.is_calm else 8)
        messages: list[Message] = []
        while len(messages) < wanted and (message := self.receive(consumer, 0.0 if messages else 0.2)) is not None:
            messages.append(message)
        if messages:
            try:
                self._pay(consumer, messages)
            except LedgerError:
                self.leave()  # what was not acknowledged comes again
                raise
            if self.chance.random() < 0.02:
                self.leave()
        return bool(messages)

    def _pay(self, consumer: SharedConsumer, messages: list[Message]) -> None:
        self.transactions += 1
        name = f"{self.process}/{self.transactions}"
        rows = tuple(Row(row_of(message).value) for message in messages)
        positions = tuple(message.position for message in messages)
        acknowledge = Acknowledge(positions=positions, revision=messages[0].revision, together=name, **self.common())
        sends = [Send(topic=topic, rows=rows, role=acknowledge.role, together=name) for topic in (PAID, POSTED)]
        with ExitStack() as stack:
            asked = stack.enter_context(self.recorder.asking(acknowledge))
            sent = {send.topic: stack.enter_context(self.recorder.asking(send)) for send in sends}
            transaction = self.client.transaction()
            for topic in sent:
                transaction.append(topic, [{"v": row.value} for row in rows])
            transaction.acknowledge(consumer, messages)
            starts = self._commit(transaction)
            for topic, call in sent.items():
                call.ok(rows=tuple(_placed(row, starts[topic], number) for number, row in enumerate(rows)))
            asked.ok(moved=True)

    def _commit(self, transaction: Transaction) -> dict[str, Position]:
        """What is in doubt it tries again, for a while."""
        for _ in range(self.chance.randint(0, 3)):
            with suppress(OutcomeUnknown, Unavailable):
                return transaction.commit()
        return transaction.commit()


def _placed(row: Row, start: Position, number: int) -> Row:
    return Row(row.value, Position(start.ledger, start.entry, start.index + number))
