"""A pipeline with tokens: orders that mint them, invoices that consume them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pyspark_ledger.append import append as protocol
from pyspark_ledger.append.admission import ByTokens, StagedBatch
from pyspark_ledger.base.clock import SYSTEM_CLOCK, Clock
from pyspark_ledger.base.token_prefix import TokenPrefix
from pyspark_ledger.files.entryfile import EntryWriter
from pyspark_ledger.log import topics
from pyspark_ledger.log.log import Log
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.metadata.port import PartKey, TokenGroupKey
from pyspark_ledger.metadata.records import Entry, Topic
from pyspark_ledger.testing.memory import Faults, MemoryMetadata
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.ids import NumberRuns, TokenRuns
from pyspark_ledger.tokens.tokens import Tokens
from tests.support.worlds import SCHEMA, SMALL, World

TINY = replace(SMALL, token_chunk=8, token_block=4, inline_bitmap_bytes=24, inline_bitmaps=2, node_bitmap_bytes=5)


class Pipeline:
    """Orders that mint tokens, and invoices that consume them."""

    def __init__(self, folder, limits=TINY, clock: Clock = SYSTEM_CLOCK):
        self.world = World(folder, limits, clock)
        self.orders = self.world.topic
        self.invoices = topics.create_topic(self.world.metadata(), "invoices", SCHEMA, storage=self.world.storage)

    def log(self, topic=None, faults: Faults | None = None) -> Log:
        metadata = MemoryMetadata(self.world.server, faults, self.world.clock)
        return Log(metadata, self.world.storage, topic or self.orders, limits=self.world.limits, clock=self.world.clock)

    def order(self, *numbers: int, mints: bool = True) -> list[str]:
        """Appends orders, and tells their tokens."""
        log = self.log()
        done = protocol.append(log, batch(log, [numbers], mints=mints))
        return [
            TokenPrefix(log.topic.uuid, done.start.ledger, done.start.entry).token(index)
            for index in range(len(numbers))
        ]

    def invoice(self, tasks: list[list[tuple[int, str | int]]], log=None, group="invoices", fan_out=False):
        """Appends invoices, each with the token of its order, all as text or all as numbers."""
        log = log or self.log(self.invoices)
        groups = Groups.in_namespace_of(log, group)
        return protocol.append(log, batch_with_tokens(log, tasks, groups, fan_out=fan_out, minted_by=self.orders))

    def numbers(self) -> list[int | None]:
        """The tokens of all orders, as numbers."""
        return [record.token_number for record in Reader(self.log(), "earliest", "latest")]

    def invoiced(self) -> list[int]:
        return [record["n"] for record in Reader(self.log(self.invoices), "earliest", "latest")]

    def tokens(self, group="invoices", faults: Faults | None = None) -> Tokens:
        return Tokens(self.log(faults=faults), group)

    def nodes(self, group="invoices") -> list:
        metadata = self.world.metadata()
        keys = metadata.children(PartKey(self.orders.uuid, "tokens"))
        return [key for key in keys if key == TokenGroupKey(self.orders.uuid, group)] + metadata.children(
            TokenGroupKey(self.orders.uuid, group)
        )


def batch(log: Log, tasks, **fields) -> StagedBatch:
    entries = tuple(stage(log, rows) for rows in tasks)
    return StagedBatch(log.clock.new_id(), entries, SCHEMA, **fields)


def batch_with_tokens(
    log: Log, tasks, groups: Groups, *, fan_out: bool = False, minted_by: Topic | None = None, **fields
) -> StagedBatch:
    """Tokens that are numbers need the topic that minted them."""
    runs = [token_runs([token for _, token in rows], minted_by) for rows in tasks]
    numbers = [[number for number, _ in rows] for rows in tasks]
    return batch(log, numbers, admission=ByTokens(groups, runs, fan_out=fan_out), **fields)


def token_runs(tokens, minted_by: Topic | None = None) -> pa.Table:
    if any(isinstance(token, int) for token in tokens):
        assert minted_by is not None
        numbers = NumberRuns(minted_by.uuid, minted_by.name)
        numbers.add(pa.array(tokens, pa.int64()))
        return numbers.table()
    gathered = TokenRuns()
    gathered.add(pa.array(tokens, pa.string()))
    return gathered.table()


def stage(log: Log, numbers) -> Entry:
    writer = EntryWriter(log.storage, log.topic.uuid, log.view().head.gc_epoch, SCHEMA, clock=log.clock)
    writer.write(pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA))
    entry = writer.close()
    assert entry is not None
    return entry
