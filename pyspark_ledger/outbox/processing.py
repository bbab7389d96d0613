"""How an outbox processes one message, step by step. The process may crash after each step.

If all that the handler returned goes to topics of the namespace, one transaction does everything: it changes the
state at its version, consumes the message's token and appends the records.

Messages that leave the namespace cannot be part of a transaction. They are stored with the state, together with the
tokens that the receiver will check. Those are chosen before anything is dispatched, so that a retry dispatches the same
tokens again. Only then is the message's own token consumed, in one step with removing what was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.append.prepared import STAGED_TOO_LONG_AGO
from pyspark_ledger.append.several import Part, Together, check_number
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.token_prefix import TokenPrefix
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.log import folders
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import Metadata, Op, TransactionLost
from pyspark_ledger.outbox.entities import Entities, Loaded, Pending
from pyspark_ledger.outbox.messages import Dispatch, Dispatcher, Handler, Processed, Send, check_returned
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.minting import Minter
from pyspark_ledger.tokens.spending import Spending


@dataclass
class Resources:
    """What the messages of one outbox are processed with. Kept from one message to the next."""

    name: str
    metadata: Metadata
    limits: Limits
    clock: Clock
    entities: Entities
    groups: Groups  # whose tokens are consumed
    open_topic: Callable[[str], Log]
    dispatch: Dispatcher | None
    minter: Minter | None  # of the receivers' tokens
    mint_tokens: bool  # for records that handlers send to topics
    _logs: dict[str, Log] = field(default_factory=dict)

    def log(self, topic: str) -> Log:
        if topic not in self._logs:
            self._logs[topic] = self.open_topic(topic)
        return self._logs[topic]

    @property
    def mints_here(self) -> bool:
        """Whether the receivers' tokens are in this namespace: then one transaction mints them and changes the
        state."""
        return self.minter is not None and self.minter.metadata is self.metadata

    def refused(self, refusal: TransactionLost) -> None:
        for log in self._logs.values():
            log.refused(refusal)

    def refresh(self) -> None:
        """A transaction was refused: an entity, a topic or a group has another version now."""
        self.clock.sleep(self.clock.jitter(0.002))
        self.groups.reload()
        for log in self._logs.values():
            log.refresh()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a handler returned, checked, with its records staged."""

    state: Any
    appends: Together
    payloads: tuple[Any, ...]


class Processing:
    """The processing of one message, by one call of ``Outbox.process``."""

    def __init__(self, resources: Resources, message_id: str, token: pa.Table, handler: Handler, entity: str) -> None:
        self._resources, self._message_id, self._token = resources, message_id, token
        self._handler, self._entity = handler, entity
        self._handled: tuple[int, _Outcome] | None = None  # the entity's version that the handler saw, and its outcome
        self._dispatched = False

    def step(self) -> Processed | None:
        """Reads how far the message has come, and does the next step; None if there are more."""
        loaded = self._resources.entities.load(self._entity)
        spending = self._take_token()
        if spending is None:
            self._resources.metadata.sync()
            return Processed(True, self._resources.entities.load(self._entity).content.state)
        pending = loaded.content.pending.get(self._message_id)
        if pending is None:
            return self._handle(loaded, spending)
        if self._resources.minter is not None and not pending.prefix:
            self._choose_tokens(self._resources.minter, loaded, pending)
            return None
        return self._finish(loaded, pending, spending)

    def _take_token(self) -> Spending | None:
        """The message's token, ready to be consumed; None if it is gone."""

        def take(spending: Spending) -> Spending | None:
            return spending if spending.take(self._token) is None else None

        return Spending.decide(self._resources.groups, take)

    # -- the handler, and everything that one transaction can do

    def _handle(self, loaded: Loaded, spending: Spending) -> Processed | None:
        outcome = self._run(loaded)
        content = replace(loaded.content, state=outcome.state)
        try:
            ops: list[Op] = list(outcome.appends.prepare())
        except Conflict as conflict:
            if conflict.code != STAGED_TOO_LONG_AGO:
                raise
            self._handled = None  # gc ran twice meanwhile: stage again
            self._resources.refresh()
            return None
        if outcome.payloads:
            pending, minting = self._first_pending(outcome.payloads)
            content, ops = content.with_pending(self._message_id, pending), [*ops, *minting, *spending.guards()]
        else:
            ops += spending.ops()
        if not self._resources.entities.change(self._entity, loaded, content, ops):
            self._resources.refresh()
            return None
        outcome.appends.finish()
        if outcome.payloads:
            return None
        spending.committed()
        return Processed(False, outcome.state)

    def _run(self, loaded: Loaded) -> _Outcome:
        if self._handled is None or self._handled[0] != loaded.next_version:
            state, outgoing = check_returned(self._handler(loaded.content.state))
            self._handled = (loaded.next_version, self._stage(state, outgoing))
        return self._handled[1]

    def _stage(self, state: Any, outgoing: list[Send | Dispatch]) -> _Outcome:
        payloads = tuple(message.payload for message in outgoing if isinstance(message, Dispatch))
        if payloads:
            self._dispatcher()
        records: dict[str, list[Mapping[str, Any]]] = {}
        for message in outgoing:
            if isinstance(message, Send):
                records.setdefault(message.topic, []).append(message.record)
        # Everything is checked before the first file is written.
        logs = {topic: self._resources.log(topic) for topic in records}
        tables = {topic: _as_arrow(logs[topic], rows) for topic, rows in records.items()}
        resources = self._resources
        check_number(len(tables), resources.limits)
        parts = [Part(logs[topic], self._batch(logs[topic], table)) for topic, table in tables.items()]
        return _Outcome(state, Together(resources.metadata, resources.limits, resources.clock, parts), payloads)

    def _batch(self, log: Log, rows: pa.RecordBatch) -> StagedBatch:
        epoch = log.view().head.gc_epoch
        folders.prepare(log)
        entry = stage_entry(log.storage, log.topic.uuid, epoch, [rows], "lz4", log.clock)
        return StagedBatch(
            log.clock.new_id(), (entry,), rows.schema, producer=self._resources.name, mints=self._resources.mint_tokens
        )

    def _first_pending(self, payloads: tuple[Any, ...]) -> tuple[Pending, list[Op]]:
        """If the receivers' tokens are in this namespace, the same transaction mints them: an attempt that loses then
        leaves none behind."""
        minter = self._resources.minter
        if minter is None or not self._resources.mints_here:
            return Pending(payloads), []
        prefix = minter.new_prefix()
        return Pending(payloads, str(prefix)), [minter.mint_op(prefix, len(payloads))]

    # -- what leaves the namespace

    def _choose_tokens(self, minter: Minter, loaded: Loaded, pending: Pending) -> None:
        """Mints the receivers' tokens in their own namespace. The prefix is stored before, so that anybody can clean
        up after a crash; it is chosen last, so that only one attempt's tokens are ever dispatched."""
        prefix = minter.new_prefix()
        registered = replace(pending, attempts=(*pending.attempts, str(prefix)))
        if not self._persist(loaded, registered):
            return
        minter.mint_at(prefix, len(pending.payloads))
        self._resources.refresh()
        now = self._resources.entities.load(self._entity)
        is_ours = now.next_version == loaded.next_version + 1
        if not is_ours or not self._persist(now, replace(registered, prefix=str(prefix))):
            minter.discard(prefix)

    def _finish(self, loaded: Loaded, pending: Pending, spending: Spending) -> Processed | None:
        """Dispatches, removes the tokens of attempts that lost, and consumes the message's own token."""
        dispatch, minter = self._dispatcher(), self._resources.minter
        if not self._dispatched:
            prefix = TokenPrefix.parse(pending.prefix)
            for index, payload in enumerate(pending.payloads):
                dispatch(payload, None if prefix is None else prefix.token(index))
            self._dispatched = True
        if minter is not None:
            for attempt in pending.attempts:
                lost = TokenPrefix.parse(attempt)
                if lost is not None and attempt != pending.prefix:
                    minter.discard(lost)
        content = loaded.content.with_pending(self._message_id, None)
        if not self._resources.entities.change(self._entity, loaded, content, spending.ops()):
            self._resources.refresh()
            return None
        spending.committed()
        return Processed(False, content.state)

    def _dispatcher(self) -> Dispatcher:
        if self._resources.dispatch is None:
            raise InvalidInput(
                f"message '{self._message_id}' has something to dispatch: make outbox '{self._resources.name}' with a "
                "function for that, client.outbox(name, dispatch=...)",
                "LEDGER_NO_DISPATCH",
            )
        return self._resources.dispatch

    def _persist(self, loaded: Loaded, pending: Pending) -> bool:
        content = loaded.content.with_pending(self._message_id, pending)
        if self._resources.entities.change(self._entity, loaded, content, []):
            return True
        self._resources.refresh()
        return False


def _as_arrow(log: Log, records: list[Mapping[str, Any]]) -> pa.RecordBatch:
    schema = log.schema(log.view().head.schema_id)
    for record in records:
        schemas.check_columns(schema, record, log.topic.name)
    rows = schemas.from_records(records, schema, log.topic.name)
    return schemas.conform(rows, schema)  # refuses a null where the topic allows none
