"""A shop whose billing is an outbox: orders with tokens, invoices, and parcels that leave the namespace."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import StagedBatch
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.token_prefix import TokenPrefix
from pyspark_ledger.files.entryfile import stage_entry
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.port import TokenBlockKey, TokenGroupKey
from pyspark_ledger.outbox.outbox import Dispatch, Outbox, Send
from pyspark_ledger.testing.memory import Faults, MemoryMetadata
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.worlds import SMALL, World

LIMITS = replace(SMALL, token_chunk=8, entity_bytes=150)


INVOICES = pa.schema([("order", pa.string()), ("total", pa.int64())])


class Shop:
    """Orders with tokens; a billing outbox that keeps totals; invoices, and parcels that leave the namespace."""

    def __init__(self, folder, *, foreign: bool = False, clock: Clock = SYSTEM_CLOCK):
        self.world = World(folder / "here", LIMITS, clock)
        for name in ("invoices", "audit"):
            topics.create_topic(self.world.metadata(), name, INVOICES, storage=self.world.storage)
        self.elsewhere = World(folder / "there", LIMITS, clock) if foreign else self.world
        self.parcels = topics.create_topic(
            self.elsewhere.metadata(), "parcels", INVOICES, storage=self.elsewhere.storage
        )
        self.dispatched: list[tuple[str, str | None]] = []
        self.shipped: list[str] = []
        self._orders = self.world.log()

    def log(self, topic: str, faults: Faults | None = None) -> Log:
        metadata = MemoryMetadata(self.world.server, faults, self.world.clock)
        return self._open(metadata, topic)

    def _open(self, metadata, topic: str) -> Log:
        found = topics.get_topic(metadata, topic)
        return Log(metadata, self.world.storage, found, limits=LIMITS, clock=self.world.clock)

    def order(self) -> str:
        """A new order's token."""
        log = self._orders
        rows = pa.RecordBatch.from_pydict({"n": [1]}, schema=pa.schema([("n", pa.int64())]))
        entry = stage_entry(log.storage, log.topic.uuid, log.view().head.gc_epoch, [rows], "lz4", log.clock)
        done = protocol.append(log, StagedBatch(log.clock.new_id(), (entry,), rows.schema, mints=True))
        return TokenPrefix(log.topic.uuid, done.start.ledger, done.start.entry).token(0)

    def billing(self, faults: Faults | None = None, dispatch=None, *, tokens: bool = True) -> Outbox:
        """The outbox in a process of its own."""
        metadata = MemoryMetadata(self.world.server, faults, self.world.clock)
        return Outbox(
            "billing", metadata, self.world.storage, lambda topic: self._open(metadata, topic), LIMITS,
            self.world.clock, dispatch=dispatch or self.dispatch,
            dispatch_tokens=self.parcel_tokens(metadata) if tokens else None,
        )  # fmt: skip

    def parcel_tokens(self, metadata=None) -> Tokens:
        if self.elsewhere is not self.world or metadata is None:
            metadata = self.elsewhere.metadata()
        log = Log(metadata, self.elsewhere.storage, self.parcels, limits=LIMITS, clock=self.world.clock)
        return Tokens(log, "shipping")

    def dispatch(self, payload, token) -> None:
        """Over a network that delivers; the receiver ships what it has not shipped yet."""
        self.dispatched.append((payload, token))
        if token is None or self.parcel_tokens().consume([token]) == [True]:
            self.shipped.append(payload)

    def invoiced(self, topic: str = "invoices") -> list[str]:
        return [record["order"] for record in Reader(self.log(topic), "earliest", "latest")]

    def tokens_in_flight(self) -> int:
        return sum(stats.in_flight for stats in Tokens(self.world.log(), "billing").stats())

    def parcel_blocks(self) -> list:
        keys = self.elsewhere.metadata().children(TokenGroupKey(self.parcels.uuid, "shipping"))
        return [key for key in keys if isinstance(key, TokenBlockKey)]


def bill(order: str, *, parcel: bool = False):
    """Counts the order, writes an invoice, and perhaps sends a parcel."""

    def handler(state):
        state = state or {"orders": []}
        state["orders"].append(order)
        out = [Send("invoices", {"order": order, "total": len(state["orders"])})]
        return state, [*out, Dispatch(f"parcel for {order}")] if parcel else out

    return handler
