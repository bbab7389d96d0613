"""Acknowledgements as a part of a transaction, together with what was made of the messages: see ``client.transaction``.

What a consumer's ``acknowledge`` takes note of in memory is written later, and dropped if it comes too late. Here it is
written with the rest, or nothing is, so a message that can no longer be acknowledged refuses all.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_ledger.append.several import Beside
from pyspark_ledger.base.runs import Runs
from pyspark_ledger.cursors.receiving import Message, Receiver
from pyspark_ledger.errors import Conflict
from pyspark_ledger.metadata.port import Metadata, Op, Put, Versioned
from pyspark_ledger.metadata.records import Cursor

OUTDATED = "LEDGER_MESSAGE_OUTDATED"


class Acknowledging(Beside):
    """Acknowledges messages, each for the first time, in a transaction with other things. Nothing is known of it in
    memory before the transaction was applied."""

    def __init__(self, consumer: Receiver, messages: Sequence[Message]) -> None:
        self._consumer, self._messages = consumer, messages
        self._node = consumer._node
        self._ordinals = Runs.of(message.ordinal for message in messages)
        self._before: Versioned[Cursor] | None = None
        self._after: Cursor | None = None

    def is_of(self, metadata: Metadata) -> bool:
        return self._consumer._log.metadata is metadata

    def ops(self) -> Sequence[Op]:
        consumer = self._consumer
        with consumer._lock:
            consumer._check_open()
            consumer._check_history()
            found = self._node.known()
            self._check(found.record)
            self._before, self._after = found, consumer._with_acknowledged(found.record, self._ordinals)
        return [Put(self._node.key, self._after, found.version)]

    def _check(self, cursor: Cursor) -> None:
        consumer = self._consumer
        consumer._follower.check_may_change(cursor)
        consumer._check_revision(cursor)
        for message in self._messages:
            if (message.revision, message.epoch) != (cursor.revision, cursor.epoch):
                why = f"of revision {message.revision} and epoch {message.epoch}, and the subscription is at revision "
                why += f"{cursor.revision} and epoch {cursor.epoch}: it was reset, or its messages are delivered again"
                raise self._outdated(message, why)
        judge = consumer._judge(cursor)
        for message in self._messages:
            if why := judge(message.ordinal):
                raise self._outdated(message, why)

    def _outdated(self, message: Message, why: str) -> Conflict:
        return Conflict(
            f"{self._node.what}: message {message.position} is {why}. Nothing was changed: leave it out, or begin "
            "again with what the consumer delivers now",
            OUTDATED,
        )

    def refresh(self) -> None:
        with self._consumer._lock:
            self._node.refresh(sync=True)

    def look(self) -> bool | None:
        """Asked only if nothing was appended and no token consumed: then it does no harm if it was somebody else who
        has acknowledged the same."""
        assert self._before is not None
        with self._consumer._lock:
            now = self._node.newest()
        if now.version == self._before.version:
            return None
        acks = self._node.acks(now.record) | ((0, now.record.ordinal),)
        return now.record.revision == self._before.record.revision and acks | self._ordinals == acks

    def committed(self) -> None:
        assert self._before is not None
        assert self._after is not None
        consumer = self._consumer
        with consumer._lock:
            self._node.replaced(self._before, self._after)
            if consumer._revision == self._after.revision:
                consumer._note_acknowledged(self._ordinals)
