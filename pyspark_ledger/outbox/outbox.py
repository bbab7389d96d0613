"""The outbox: handlers with business state, whose effects happen once over crashes at any line.

A handler is given an entity's state and returns the new state and messages. If all of them go to topics of the
namespace, one transaction does everything: the state at its version, the token consumed, the records appended.

Messages that leave the namespace cannot be part of a transaction. They are persisted with the state, together with the
tokens that the receiver will check: fresh ones for every attempt, chosen before anything is dispatched, so that a
retry dispatches the same tokens again. Only then does the message's own token go, in one step with the record of what
was dispatched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.append.append import STAGED_TOO_LONG_AGO, finish, prepare
from pyspark_ledger.base import names
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.base.token_prefix import TokenPrefix
from pyspark_ledger.errors import Conflict, InvalidInput
from pyspark_ledger.files import schema as schemas
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.log.log import Log
from pyspark_ledger.metadata.port import Metadata, Op
from pyspark_ledger.outbox.entities import Entities, Loaded, Pending
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.ids import TokenRuns
from pyspark_ledger.tokens.spending import Spending
from pyspark_ledger.tokens.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Send:
    """A record for a topic of the namespace."""

    topic: str
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A message that leaves the namespace, as JSON; the outbox's ``dispatch`` function takes it out."""

    payload: Any


Handler = Callable[[Any], tuple[Any, Iterable[Send | Dispatch]]]
Dispatcher = Callable[[Any, str | None], None]  # payload, the token that the receiver is to consume


@dataclass(frozen=True, slots=True)
class Processed:
    """What came of a message: the entity's state after it. A duplicate changed nothing."""

    duplicate: bool
    state: Any


class Outbox:
    """Processes each message once: its token is there, or it is a duplicate. ``name`` is also the group whose tokens
    are consumed. For one thread at a time; any number of processes."""

    def __init__(
        self,
        name: str,
        metadata: Metadata,
        storage: Storage,
        open_topic: Callable[[str], Log],
        limits: Limits,
        clock: Clock,
        *,
        dispatch: Dispatcher | None = None,
        dispatch_tokens: Tokens | None = None,
        mint_tokens: bool = True,
    ) -> None:
        self.name = names.check_outbox_name(name)
        self.dispatch, self.dispatch_tokens, self.mint_tokens = dispatch, dispatch_tokens, mint_tokens
        self.entities = Entities(name, metadata, storage, limits, clock)
        self.groups = Groups(metadata, name, lambda uuid: Log.by_uuid(metadata, storage, uuid, limits, clock))
        self._metadata, self._open_topic, self._clock = metadata, open_topic, clock
        self._logs: dict[str, Log] = {}
        self._ready = False

    def process(self, message_id: str, token: str, handler: Handler, *, entity: str = "") -> Processed:
        """Runs ``handler(state)`` and makes what it returns true, once for each token. ``state`` is JSON, None at
        first. The handler may be run again if somebody else changes the entity meanwhile, so it must have no effects
        but what it returns. A message always goes to the same entity. If this raises, nothing is half done: process
        the message again."""
        for what, value in (("message_id", message_id), ("token", token), ("entity", entity)):
            if not isinstance(value, str):
                raise InvalidInput(f"{what} is {value!r}: it must be a string")
        runs = TokenRuns("token")
        runs.add(pa.array([token], pa.string()))
        message = _Message(self, message_id, runs.table(), handler, entity)
        self._make_ready()
        while (processed := message.step()) is None:
            pass
        return processed

    def state(self, entity: str = "") -> Any:
        """An entity's state; None if it has none."""
        self._metadata.sync()
        return self.entities.load(entity).content.state

    def pending(self, entity: str = "") -> dict[str, Pending]:
        """What messages have yet to dispatch, because whoever processed them has not come back."""
        self._metadata.sync()
        return dict(self.entities.load(entity).content.pending)

    # -- for the messages ----------------------------------------------------------------------------------

    def topic(self, name: str) -> Log:
        if name not in self._logs:
            self._logs[name] = self._open_topic(name)
        return self._logs[name]

    @property
    def mints_here(self) -> bool:
        """Whether the receivers' tokens are in this namespace: then they are minted in one step with the state."""
        return self.dispatch_tokens is not None and self.dispatch_tokens.log.metadata is self._metadata

    def look_again(self) -> None:
        """Some version has moved on: an entity's, a topic's or a group's."""
        self._clock.sleep(self._clock.jitter(0.002))
        self.groups.reload()
        for log in self._logs.values():
            log.refresh()

    def _make_ready(self) -> None:
        if not self._ready:
            self.entities.ensure()
            if self.dispatch_tokens is not None:
                self.dispatch_tokens.ensure_group()
            self._ready = True


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a handler returned, checked, and staged as far as it can be."""

    state: Any
    batches: list[tuple[Log, StagedBatch]]
    payloads: tuple[Any, ...]


class _Message:
    """One call of process: steps that may each be the last one before a crash."""

    def __init__(self, outbox: Outbox, id: str, token: pa.Table, handler: Handler, entity: str) -> None:
        self._outbox, self._id, self._token, self._handler, self._entity = outbox, id, token, handler, entity
        self._handled: tuple[int, _Outcome] | None = None  # for which version of the entity, and what came of it
        self._dispatched = False

    def step(self) -> Processed | None:
        """Looks where the message is and takes it one step on; None if there are more."""
        loaded = self._outbox.entities.load(self._entity)
        spending = self._take()
        if spending is None:
            return Processed(True, self._outbox.state(self._entity))
        pending = loaded.content.pending.get(self._id)
        if pending is None:
            return self._handle(loaded, spending)
        if self._outbox.dispatch_tokens is not None and not pending.place:
            self._choose(loaded, pending)
            return None
        return self._finish(loaded, pending, spending)

    def _take(self) -> Spending | None:
        """The message's token, to be consumed; None if it is gone."""

        def take(spending: Spending) -> Spending | None:
            return spending if spending.take(self._token) is None else None

        return Spending.decide(self._outbox.groups, take)

    # -- the handler, and everything that one transaction can do

    def _handle(self, loaded: Loaded, spending: Spending) -> Processed | None:
        outcome = self._run(loaded)
        content = replace(loaded.content, state=outcome.state)
        try:
            appends = [(log, prepare(log, batch)) for log, batch in outcome.batches]
        except Conflict as conflict:
            if conflict.code != STAGED_TOO_LONG_AGO:
                raise
            self._handled = None  # gc ran twice meanwhile: stage again
            self._outbox.look_again()
            return None
        ops: list[Op] = [op for _, prepared in appends for op in prepared.ops]
        if outcome.payloads:
            pending, minting = self._first_pending(outcome.payloads)
            content, ops = content.with_pending(self._id, pending), [*ops, *minting, *spending.guards()]
        else:
            ops += spending.ops()
        if not self._outbox.entities.change(self._entity, loaded, content, ops):
            self._outbox.look_again()
            return None
        for log, prepared in appends:
            finish(log, prepared)
        if outcome.payloads:
            return None
        spending.committed()
        return Processed(False, outcome.state)

    def _run(self, loaded: Loaded) -> _Outcome:
        if self._handled is None or self._handled[0] != loaded.next_version:
            state, outgoing = _returned(self._handler(loaded.content.state))
            self._handled = (loaded.next_version, self._stage(state, outgoing))
        return self._handled[1]

    def _stage(self, state: Any, outgoing: list[Send | Dispatch]) -> _Outcome:
        payloads = tuple(message.payload for message in outgoing if isinstance(message, Dispatch))
        if payloads:
            self._dispatcher()
        _check_json("state", state)
        _check_json("payload", payloads)
        records: dict[str, list[Mapping[str, Any]]] = {}
        for message in outgoing:
            if isinstance(message, Send):
                records.setdefault(message.topic, []).append(message.record)
        logs = {topic: self._outbox.topic(topic) for topic in records}  # every topic is there before a file is written
        tables = {topic: _as_arrow(logs[topic], rows) for topic, rows in records.items()}
        return _Outcome(
            state, [(logs[topic], self._batch(logs[topic], table)) for topic, table in tables.items()], payloads
        )

    def _batch(self, log: Log, rows: pa.RecordBatch) -> StagedBatch:
        epoch = log.view().head.gc_epoch
        entry = stage_entry(log.storage, log.topic.uuid, epoch, [rows], "lz4", log.clock)
        return StagedBatch(
            log.clock.new_id(), (entry,), rows.schema, producer=self._outbox.name, mints=self._outbox.mint_tokens
        )

    def _first_pending(self, payloads: tuple[Any, ...]) -> tuple[Pending, list[Op]]:
        """The receivers' tokens are minted in the same transaction, if they can be: an attempt that loses then leaves
        none behind."""
        tokens = self._outbox.dispatch_tokens
        if tokens is None or not self._outbox.mints_here:
            return Pending(payloads), []
        place = tokens.new_prefix()
        return Pending(payloads, str(place)), [tokens.block(place, len(payloads))]

    # -- what leaves the namespace

    def _choose(self, loaded: Loaded, pending: Pending) -> None:
        """Mints the receivers' tokens in their own namespace: registered first, so that somebody else can clean up
        after us; chosen last, so that no other attempt's tokens are ever dispatched."""
        tokens = self._outbox.dispatch_tokens
        assert tokens is not None
        place = tokens.new_prefix()
        registered = replace(pending, attempts=(*pending.attempts, str(place)))
        if not self._persist(loaded, registered):
            return
        tokens.mint_at(place, len(pending.payloads))
        self._outbox.look_again()
        now = self._outbox.entities.load(self._entity)
        is_ours = now.next_version == loaded.next_version + 1
        if not is_ours or not self._persist(now, replace(registered, place=str(place))):
            tokens.discard(place)

    def _finish(self, loaded: Loaded, pending: Pending, spending: Spending) -> Processed | None:
        outbox, dispatch = self._outbox, self._dispatcher()
        if not self._dispatched:
            place = TokenPrefix.parse(pending.place)
            for index, payload in enumerate(pending.payloads):
                dispatch(payload, None if place is None else place.token(index))
            self._dispatched = True
        if outbox.dispatch_tokens is not None:
            for attempt in pending.attempts:
                lost = TokenPrefix.parse(attempt)
                if lost is not None and attempt != pending.place:
                    outbox.dispatch_tokens.discard(lost)
        content = loaded.content.with_pending(self._id, None)
        if not outbox.entities.change(self._entity, loaded, content, spending.ops()):
            self._outbox.look_again()
            return None
        spending.committed()
        return Processed(False, content.state)

    def _dispatcher(self) -> Dispatcher:
        if self._outbox.dispatch is None:
            raise InvalidInput(
                f"message '{self._id}' has something to dispatch: make outbox '{self._outbox.name}' with a function "
                "for that, client.outbox(name, dispatch=...)",
                "LEDGER_NO_DISPATCH",
            )
        return self._outbox.dispatch

    def _persist(self, loaded: Loaded, pending: Pending) -> bool:
        content = loaded.content.with_pending(self._id, pending)
        if self._outbox.entities.change(self._entity, loaded, content, []):
            return True
        self._outbox.look_again()
        return False


def _returned(result: Any) -> tuple[Any, list[Send | Dispatch]]:
    try:
        state, outgoing = result
        messages = list(outgoing)
    except (TypeError, ValueError):
        raise InvalidInput("a handler returns (state, messages)", "LEDGER_INVALID_HANDLER") from None
    for message in messages:
        if not isinstance(message, Send | Dispatch):
            raise InvalidInput(f"a handler's messages are Send or Dispatch, not {message!r}", "LEDGER_INVALID_HANDLER")
    return state, messages


def _check_json(what: str, value: Any) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"a handler's {what} must be JSON: {error}", "LEDGER_INVALID_HANDLER") from None


def _as_arrow(log: Log, records: list[Mapping[str, Any]]) -> pa.RecordBatch:
    schema = log.schema(log.view().head.schema_id)
    for record in records:
        schemas.check_columns(schema, record, log.topic.name)
    rows = schemas.from_records(records, schema, log.topic.name)
    return schemas.conform(rows, schema)  # says so if a null is where none may be
