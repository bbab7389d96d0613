"""The entities of an outbox, one node each: business state, and what its messages have yet to dispatch.

An entity's version guards its state. Its node is never deleted: a new node's versions would start at 0 again, and an
outdated writer could match one of them by accident.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash

from pyspark_ledger.base import names
from pyspark_ledger.base.clock import Clock
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.errors import CorruptData, damage
from pyspark_ledger.files.blobs import Blobs
from pyspark_ledger.files.storage import Storage
from pyspark_ledger.metadata.port import Create, EntityKey, Metadata, Op, OutboxKey, Put, TransactionLost, Versioned
from pyspark_ledger.metadata.records import Entity, Marker
from pyspark_ledger.metadata.transactions import Transactions


@dataclass(frozen=True, slots=True)
class Pending:
    """What one message has yet to dispatch.

    Attributes:
        payloads: the messages.
        prefix: the prefix of the tokens that are sent with them; empty if it is not chosen yet, or none are sent.
        attempts: prefixes with which tokens may have been minted; only those of ``prefix`` are ever sent.
    """

    payloads: tuple[Any, ...]
    prefix: str = ""
    attempts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """An entity's business state, and what its messages have yet to dispatch, by message id."""

    state: Any = None
    pending: Mapping[str, Pending] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        pending = {
            id: {"payloads": list(p.payloads), "place": p.prefix, "attempts": list(p.attempts)}
            for id, p in self.pending.items()
        }
        return json.dumps({"state": self.state, "pending": pending}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Content:
        with damage("what is stored of an entity of an outbox"):
            parsed = json.loads(data)
            pending = {
                id: Pending(tuple(p["payloads"]), p["place"], tuple(p["attempts"]))
                for id, p in parsed["pending"].items()
            }
            return cls(parsed["state"], pending)

    def with_pending(self, message_id: str, pending: Pending | None) -> Content:
        others = {id: other for id, other in self.pending.items() if id != message_id}
        return replace(self, pending=others if pending is None else {**others, message_id: pending})


@dataclass(frozen=True, slots=True)
class Loaded:
    found: Versioned[Entity] | None
    content: Content

    @property
    def next_version(self) -> int:
        return 0 if self.found is None else self.found.version + 1


class Entities:
    def __init__(
        self,
        outbox: str,
        metadata: Metadata,
        storage: Storage,
        limits: Limits,
        clock: Clock,
        refused: Callable[[TransactionLost], None],
    ) -> None:
        self._outbox, self._metadata, self._storage = outbox, metadata, storage
        self._limits, self._clock = limits, clock
        self._transactions = Transactions(metadata, limits, clock, refused)

    def ensure(self) -> None:
        """Creates the outbox's own node if it is missing."""
        self._transactions.make(OutboxKey(self._outbox), Marker(), f"outbox '{self._outbox}'")

    def load(self, entity: str) -> Loaded:
        found = self._metadata.read(EntityKey(self._outbox, entity))
        if found is None:
            return Loaded(None, Content())
        record = found.record
        try:
            data = record.content if record.file is None else self._blobs(entity).fetch(record.file)
        except CorruptData:
            # The file is deleted once the entity names another one: read the entity to see whether it does.
            self._metadata.sync()
            now = self._metadata.read(EntityKey(self._outbox, entity))
            if now is None or now.record.file == record.file:
                raise
            return self.load(entity)
        return Loaded(found, Content.from_bytes(data))

    def change(self, entity: str, loaded: Loaded, content: Content, other_ops: Sequence[Op]) -> bool:
        """Stores the content, together with other operations, if the entity is still as it was loaded."""
        operation, key = self._clock.new_id(), EntityKey(self._outbox, entity)
        what = f"a change of entity '{entity}' of outbox '{self._outbox}'"
        before = loaded.found.record.operations if loaded.found is not None else ()
        data, file = content.to_bytes(), None
        if len(data) > self._limits.entity_bytes:
            self._storage.make_folder(names.OUTBOXES_FOLDER)
            file = self._blobs(entity).stage(data, loaded.next_version)
        record = self._transactions.remembering(Entity(b"" if file else data, file, before), operation)
        own: Op = Create(key, record) if loaded.found is None else Put(key, record, loaded.found.version)

        look = self._transactions.by_id(key, loaded.found, operation, what)
        if not self._transactions.carry_out([own, *other_ops], look, what):
            return False
        replaced = None if loaded.found is None else loaded.found.record.file
        if file is not None or replaced is not None:
            self._blobs(entity).sweep(loaded.next_version, file, replaced)
        return True

    def _blobs(self, entity: str) -> Blobs:
        return Blobs(self._storage, folder_of(self._outbox, entity), self._clock)


def folder_of(outbox: str, entity: str) -> str:
    """Where the long states of an entity are kept."""
    return names.entity_folder(outbox, xxhash.xxh3_128_hexdigest(entity.encode()))
