"""Transactions from Python: records for several topics, acknowledgements and tokens, all of them or nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import pyarrow as pa

from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.append.claim import BatchClaim
from pyspark_ledger.append.pooled_tokens import Consumption
from pyspark_ledger.append.prepared import STAGED_TOO_LONG_AGO
from pyspark_ledger.append.record_check import RecordCheck
from pyspark_ledger.append.several import Beside, Part, Together, check_number
from pyspark_ledger.base.forks import OneProcess
from pyspark_ledger.base.given import check_flag
from pyspark_ledger.base.position import Position
from pyspark_ledger.cursors.acknowledging import Acknowledging
from pyspark_ledger.cursors.receiving import Message, Receiver
from pyspark_ledger.dedup.batch_ids import BatchId
from pyspark_ledger.dedup.sequences import checked_id
from pyspark_ledger.errors import Conflict, InvalidInput, NotFound
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.log import folders
from pyspark_ledger.log.log import FRESH_S, Log
from pyspark_ledger.log.namespace import OpenNamespace
from pyspark_ledger.log.sinks import job_key
from pyspark_ledger.tokens.tokens import Tokens, claims_of, spender_of

_STAGINGS = 5

Rows: TypeAlias = Mapping[str, Any] | Iterable[Mapping[str, Any]] | pa.RecordBatch | pa.Table


@dataclass
class _Rows:
    """What one topic gets."""

    log: Log
    batches: list[pa.RecordBatch] = field(default_factory=list)


class Transaction:
    """Appends to several topics, acknowledges messages and consumes tokens: all of it, or nothing. Made by
    ``client.transaction()``.

    Nothing happens before the end of the ``with`` block, or :meth:`commit`. If the block raises, nothing happens at
    all. So a consumer that writes what it makes of its messages does that once for each, over crashes at any line:

    >>> _ = client.create_topic("invoices", pa.schema([("order_id", pa.int64()), ("total", pa.float64())]))
    >>> with client.consumer("orders", "billing") as consumer:
    ...     message = consumer.receive(timeout_s=5)
    ...     with client.transaction() as t:
    ...         t.append("invoices", {"order_id": message["order_id"], "total": 9.5})
    ...         t.acknowledge(consumer, message)
    >>> [record["order_id"] for record in client.reader("invoices", end="latest")]
    [1]

    It is for one thread, and for one commit.
    """

    def __init__(
        self,
        namespace: OpenNamespace,
        *,
        producer: str | None = None,
        sequence_id: int | None = None,
        mint_tokens: bool = False,
    ) -> None:
        if (producer is None) != (sequence_id is None) or producer == "":
            raise InvalidInput("give both producer and sequence_id, or neither: an id counts within one producer")
        if producer is not None and not (isinstance(producer, str) and producer.strip()):
            raise InvalidInput(f"the producer's name is {producer!r}, and must be a text", "LEDGER_INVALID_NAME")
        check_flag("mint_tokens", mint_tokens)
        self._namespace, self._mints = namespace, mint_tokens
        self._producer, self._sequence_id = producer or "", checked_id(sequence_id)
        self._duplicate = False
        self._process = OneProcess()
        self._rows: dict[str, _Rows] = {}
        self._messages: dict[int, tuple[Receiver, list[Message]]] = {}
        self._tokens: dict[tuple[str, str], Consumption] = {}
        self._together: Together | None = None
        self._positions: dict[str, Position] | None = None
        self._closed = False

    # -- what it will do -----------------------------------------------------------------------------------

    def append(self, topic: str, rows: Rows) -> None:
        """Adds records for a topic: one record (column -> value), several of them, or Arrow data.

        Raises InvalidInput if a record does not fit the topic, NotFound if there is no such topic; then nothing of this
        call was added."""
        self._check_may_add()
        check_number(len(self._rows.keys() | {topic}), self._namespace.limits)
        batches = self._fitting(topic, rows)
        if batches:
            self._rows.setdefault(topic, _Rows(self._log(topic))).batches += batches

    def _fitting(self, topic: str, rows: Rows) -> list[pa.RecordBatch]:
        """In the topic's schema. What is known of the topic here may be old: it may have got columns since, or be
        another topic of the same name. So a refusal counts after a second look only."""
        given = rows if isinstance(rows, Mapping | pa.RecordBatch | pa.Table) else _listed(rows, topic)
        try:
            return _as_arrow(self._log(topic), given)
        except InvalidInput:
            if topic in self._rows:
                self._log(topic).refresh(sync=True)
            else:
                self._namespace.metadata.sync()
                _kept_logs(self._namespace).pop(topic, None)
            return _as_arrow(self._log(topic), given)

    def acknowledge(self, consumer: Receiver, messages: Message | Iterable[Message]) -> None:
        """Acknowledges messages that this consumer, of any type, has delivered. If one of them is outdated by the time
        of the commit, because the subscription was reset or its messages are delivered again, is acknowledged already,
        or is another's by now, then the commit raises Conflict (LEDGER_MESSAGE_OUTDATED), and nothing is changed."""
        self._check_may_add()
        if not isinstance(consumer, Receiver):
            raise InvalidInput(f"{consumer!r} is no consumer: client.consumer(topic, subscription) makes one")
        given = [messages] if isinstance(messages, Message) else list(messages)
        for each in given:
            if not isinstance(each, Message):
                raise InvalidInput(f"{each!r} is no message of a consumer")
            consumer._check_ours(each)
        for other, _ in self._messages.values():
            if other is not consumer and other._node.key == consumer._node.key:
                raise InvalidInput(
                    f"{consumer._node.what}: two of its consumers in one transaction. Make one for each of them"
                )
        self._messages.setdefault(id(consumer), (consumer, []))[1].extend(given)

    def consume(self, tokens: Tokens, ids: Sequence[str] | Sequence[int]) -> None:
        """Consumes tokens: ``tokens`` is ``client.tokens(topic, group)``. If one of them is gone by the time of the
        commit, that raises Conflict (LEDGER_TOKEN_CONSUMED), and nothing is changed.

        Raises InvalidInput if something is not a token, or is a token of another topic."""
        self._check_may_add()
        claims = claims_of(tokens, ids)
        log, groups = spender_of(tokens)
        if not len(ids):
            return
        key = (log.topic.uuid, groups.name)
        if key not in self._tokens:
            self._tokens[key] = Consumption(log, groups)
        self._tokens[key].add(claims, ids)

    # -- doing it ------------------------------------------------------------------------------------------

    def commit(self) -> dict[str, Position]:
        """Does all of it, and returns where the records of each topic begin. The end of the ``with`` block calls it.

        If it raises OutcomeUnknown, all of it or nothing may have been done: call it again, and it finds out. After
        Unavailable, nothing was changed, and it may be called again too. Calling it after it was done changes nothing.

        Raises Conflict if a message is outdated (LEDGER_MESSAGE_OUTDATED), if a token is gone (LEDGER_TOKEN_CONSUMED),
        or if other writers were faster again and again; Fenced if another consumer has taken over the subscription;
        CursorUnderRevision while somebody resets it; InvalidInput (LEDGER_TOO_LARGE) if it is more than ZooKeeper takes
        at once. Then nothing was changed."""
        if self._positions is None:
            self._check_open()
            try:
                self._positions = self._commit()
            except (Conflict, NotFound):
                _kept_logs(self._namespace).clear()  # a topic was deleted, or made again, or its files were moved
                raise
            self._closed = True
        return self._positions

    @property
    def positions(self) -> dict[str, Position] | None:
        """Where the records of each topic begin; None before the commit."""
        return self._positions

    @property
    def duplicate(self) -> bool:
        """Whether the commit has found that its sequence id was written before, and has changed nothing."""
        return self._duplicate

    def _commit(self) -> dict[str, Position]:
        for attempt in range(_STAGINGS):
            if self._together is None:
                self._together = self._staged()
            try:
                results = self._together.append()
                self._duplicate = results is None
                if results is None:
                    return {}
                return {topic: result.start for topic, result in zip(self._rows, results, strict=True)}
            except Conflict as conflict:  # gc ran twice since the files were staged
                if conflict.code != STAGED_TOO_LONG_AGO or attempt == _STAGINGS - 1:
                    raise
                self._together = None
                for rows in self._rows.values():
                    rows.log.refresh(sync=True)
        raise AssertionError("not reached")

    def _staged(self) -> Together:
        acknowledged = [Acknowledging(consumer, messages) for consumer, messages in self._messages.values()]
        here = self._namespace
        beside: list[Acknowledging | Consumption] = [*acknowledged, *self._tokens.values()]
        for each in beside:
            if not each.is_of(here.metadata):
                raise InvalidInput("a transaction takes consumers and tokens of the client that it was made by")
        parts = [self._part(rows) for rows in self._rows.values()]
        also: list[Beside] = [*self._claim(), *beside]
        return Together(here.metadata, here.limits, here.clock, parts, also, what="a transaction")

    def _claim(self) -> list[BatchClaim]:
        if self._sequence_id is None:
            return []
        here, id = self._namespace, BatchId(self._sequence_id)
        records = sum(batch.num_rows for rows in self._rows.values() for batch in rows.batches)
        key = job_key(self._producer)
        return [BatchClaim(here.metadata, here.limits, here.clock, key, self._producer, id, records)]

    def _part(self, rows: _Rows) -> Part:
        log, schema = rows.log, max((batch.schema for batch in rows.batches), key=len)
        epoch = log.gc_epoch(FRESH_S)
        folders.prepare(log)
        batches = [schemas.project(batch, schema) for batch in rows.batches]  # the topic may have got columns meanwhile
        entry = stage_entry(log.storage, log.topic.uuid, epoch, batches, "lz4", log.clock)
        return Part(log, StagedBatch(log.clock.new_id(), (entry,), schema, producer=self._producer, mints=self._mints))

    def _log(self, topic: str) -> Log:
        kept = _kept_logs(self._namespace)
        if topic not in kept:
            kept[topic] = self._namespace.log(topic)
        return kept[topic]

    def _check_open(self) -> None:
        self._process.check("this transaction")
        if self._closed:
            raise InvalidInput("this transaction has ended: make another one", "LEDGER_CLOSED")

    def _check_may_add(self) -> None:
        self._check_open()
        if self._together is not None:
            raise InvalidInput(
                "this transaction was tried already: commit it again, or make another one", "LEDGER_CLOSED"
            )

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.commit()
        elif self._together is None:
            self._closed = True


class _Logs(threading.local):
    """The topics that a thread has written to: who writes again and again need not read them again."""

    def __init__(self) -> None:
        self.by_name: dict[str, Log] = {}


_logs: WeakKeyDictionary[OpenNamespace, _Logs] = WeakKeyDictionary()


def _kept_logs(namespace: OpenNamespace) -> dict[str, Log]:
    return _logs.setdefault(namespace, _Logs()).by_name


def _listed(rows: object, topic: str) -> list[Mapping[str, Any]]:
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes):
        raise InvalidInput(
            f"for topic '{topic}' give a record (column -> value), several of them, or Arrow data: {rows!r} is none of "
            "these",
            "LEDGER_INVALID_VALUE",
        )
    return list(rows)


def _as_arrow(log: Log, rows: Rows) -> list[pa.RecordBatch]:
    """In the topic's schema, as it is known here. InvalidInput names the column that does not fit."""
    schema, topic = log.schema(log.view().head.schema_id), log.topic.name
    if isinstance(rows, pa.RecordBatch | pa.Table):
        schemas.merge(schema, schemas.canonical(rows.schema), may_add=False)
        batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
        return [schemas.conform(schemas.project(batch, schema), schema) for batch in batches if batch.num_rows]
    check = RecordCheck(schema, topic)
    records = [check.take(record)[0] for record in ([rows] if isinstance(rows, Mapping) else rows)]
    return [schemas.conform(schemas.from_records(records, schema, topic), schema)] if records else []
