"""Tokens from Python: a message may be processed while its token is there, and its token goes with the effect.

>>> tokens = client.tokens("orders")                    # doctest: +SKIP
>>> [token] = tokens.mint()                             # a client takes one, and sends its order with it
>>> tokens.present([token])
[True]
>>> tokens.consume([token])                             # whoever is told True, processes it
[True]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_ledger.base import names
from pyspark_ledger.base.bitmap import Bitmap
from pyspark_ledger.base.clock import Deadline
from pyspark_ledger.base.token_prefix import TokenPrefix
from pyspark_ledger.errors import InvalidInput, LedgerError
from pyspark_ledger.log.log import Log, View
from pyspark_ledger.metadata.port import (
    Check,
    Create,
    Delete,
    Op,
    RootKey,
    TokenBlockKey,
    TokenChunkKey,
    TokenGroupKey,
    Versioned,
)
from pyspark_ledger.metadata.records import TokenBlock, TokenGroup
from pyspark_ledger.metadata.transactions import PlainNode
from pyspark_ledger.tokens.groups import Groups
from pyspark_ledger.tokens.ids import TokenRuns
from pyspark_ledger.tokens.spending import Spending


@dataclass(frozen=True, slots=True)
class TokenStats:
    """What one group has left of a topic's tokens."""

    group: str
    in_flight: int  # present: minted and not consumed
    consumed: int  # of the topic's records
    blocks: int  # minted for messages from outside, and not used up
    nodes: int
    bytes: int  # of bitmaps, in nodes and files


class Tokens:
    """The tokens of one topic, for one group: those of its records, and those minted here for messages that come from
    outside. A token that was minted here counts for this group alone."""

    def __init__(self, log: Log, group: str) -> None:
        self.log, self.group = log, names.check_group_name(group)
        self._key = TokenGroupKey(log.topic.uuid, group)
        self._groups = Groups.in_namespace_of(log, group)

    # -- minting -------------------------------------------------------------------------------------------

    def mint(self, n: int = 1) -> list[str]:
        """New tokens: whoever hands one in with a message has it processed once."""
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise InvalidInput(f"n is {n!r}: how many tokens to mint, at least 1")
        self.ensure_group()
        tokens: list[str] = []
        while len(tokens) < n:
            count = min(n - len(tokens), self.log.limits.token_block)
            prefix = self.new_prefix()
            self.mint_at(prefix, count)
            tokens += [prefix.token(index) for index in range(count)]
        return tokens

    def new_prefix(self) -> TokenPrefix:
        """One with which nobody has minted yet."""
        return TokenPrefix(self.log.topic.uuid, block=self.log.clock.new_id().hex())

    def block(self, prefix: TokenPrefix, n: int) -> Create:
        """What mints so many tokens, in a transaction of the caller's. The group must exist."""
        key = TokenBlockKey(prefix.uuid, self.group, prefix.block)
        return Create(key, TokenBlock(n, b"", self.log.clock.now_ms()))

    def mint_at(self, prefix: TokenPrefix, n: int) -> None:
        """Mints so many tokens with a new prefix. The group must exist; its version is checked, because every
        consumption changes it: a mint that arrives late, when its tokens are used up, does not bring them back."""
        key, deadline = TokenBlockKey(prefix.uuid, self.group, prefix.block), self._deadline()

        def look() -> bool | None:
            self.log.metadata.sync()
            return None if self.log.metadata.read(key) is None else True

        while True:
            ops: list[Op] = [Check(self._key, self._node.known().version), self.block(prefix, n)]
            if self.log.transactions.carry_out(ops, look, f"minting for {self}", deadline):
                return
            self.log.metadata.sync()  # somebody consumed meanwhile

    def discard(self, prefix: TokenPrefix) -> None:
        """Takes back what was minted with a prefix and never handed out. The group's version moves on even if nothing
        is there: a mint that arrives later is refused."""
        key = TokenBlockKey(prefix.uuid, self.group, prefix.block)

        def take_back(_: TokenGroup) -> list[Op]:
            self.log.metadata.sync()
            block = self.log.metadata.read(key)
            return [] if block is None else [Delete(key, block.version)]

        what, operation = f"taking back tokens of {self}", self.log.clock.new_id()
        self.log.transactions.change(self._node, lambda group: group, what, operation=operation, also=take_back)

    @property
    def _node(self) -> PlainNode[TokenGroup]:
        return PlainNode(self.log.metadata, self._key, self._missing)

    def _missing(self) -> LedgerError:
        self.log.refresh(sync=True)  # says so if the topic is gone
        return InvalidInput(f"{self} is not there", "LEDGER_GROUP_NOT_FOUND")

    def ensure_group(self) -> None:
        """Makes the group's node, unless it is there."""
        made = TokenGroup(self.log.limits.token_chunk)
        self.log.transactions.make(self._key, made, str(self), lambda: self.log.refresh(sync=True))

    # -- looking and consuming -----------------------------------------------------------------------------

    def present(self, ids: Sequence[str]) -> list[bool]:
        """Which of these tokens are there: minted, and not consumed by this group."""
        claims = self._claims(ids)
        self._groups.reload()
        return Spending.decide(self._groups, lambda spending: _told(spending.take(claims, fan_out=True), ids))

    def consume(self, ids: Sequence[str]) -> list[bool]:
        """Consumes these tokens. True for each that this call consumed: of several callers one is told so. A token
        that is given twice counts where it stands first."""
        claims, operation, deadline = self._claims(ids), self.log.clock.new_id(), self._deadline()

        def attempt(spending: Spending) -> tuple[list[bool], Spending]:
            return _told(spending.take(claims), ids), spending

        while True:
            took, spending = Spending.decide(self._groups, attempt)
            if not any(took) or self._spend(spending, operation, deadline):
                return took
            self.log.clock.sleep(self.log.clock.jitter(0.002))
            self._groups.reload()

    def _spend(self, spending: Spending, operation: bytes, deadline: Deadline) -> bool:
        group = self._groups.group(self.log.topic.uuid)
        assert group is not None
        before = None if group.version is None else Versioned(group.record, group.version)
        ops, what = spending.ops(operation, group), f"consuming for {self}"
        look = self.log.transactions.by_id(group.key, before, operation, what)
        if not self.log.transactions.carry_out(ops, look, what, deadline):
            return False
        spending.committed()
        return True

    def _claims(self, ids: Sequence[str]) -> pa.Table:
        if isinstance(ids, str) or not all(isinstance(id, str) for id in ids):
            raise InvalidInput("give a list of tokens, each a string", "LEDGER_INVALID_TOKEN")
        claims = TokenRuns("tokens")
        claims.add(pa.array(ids, pa.string()))
        for id in ids:
            if not id.startswith(f"{self.log.topic.uuid}:"):
                raise InvalidInput(
                    f"token {id} does not belong to topic '{self.log.topic.name}' ({self.log.topic.uuid})",
                    "LEDGER_INVALID_TOKEN",
                )
        return claims.table()

    # -- looking from outside ------------------------------------------------------------------------------

    def stats(self) -> list[TokenStats]:
        """Of every group that has consumed tokens of this topic, or minted some."""
        view = self.log.refresh(sync=True)
        keys = self.log.metadata.children(RootKey(self.log.topic.uuid))
        return [self._stats(view, key.group) for key in keys if isinstance(key, TokenGroupKey)]

    def _stats(self, view: View, group: str) -> TokenStats:
        metadata, key = self.log.metadata, TokenGroupKey(self.log.topic.uuid, group)
        found = metadata.read(key)
        record = found.record if found is not None else TokenGroup(self.log.limits.token_chunk)
        below = metadata.children(key)
        chunks = [c.record for c in metadata.read_many([k for k in below if isinstance(k, TokenChunkKey)]) if c]
        blocks = [b.record for b in metadata.read_many([k for k in below if isinstance(k, TokenBlockKey)]) if b]
        left = sum(block.tokens - Bitmap(block.tokens, block.bitmap).count for block in blocks)
        size = len(record.whole) + len(record.spilled) + sum(len(bitmap) for _, bitmap in record.partials)
        size += sum(chunk.file.length if chunk.file else len(chunk.bitmap) for chunk in chunks)
        size += sum(len(block.bitmap) for block in blocks)
        in_flight = view.head.tokens - record.consumed + left
        return TokenStats(group, in_flight, record.consumed, len(blocks), 1 + len(below), size)

    def _deadline(self) -> Deadline:
        return self.log.transactions.deadline()

    def __str__(self) -> str:
        return f"group '{self.group}' of topic '{self.log.topic.name}'"


def _told(kept: pa.BooleanArray | None, ids: Sequence[str]) -> list[bool]:
    return [True] * len(ids) if kept is None else kept.to_pylist()
